//! A directory of a snapshot: its entries by name, as documents named by their hash.
//!
//! ```text
//! node  = 1 (version) | 0 leaf | number of entries | entry*
//!       | 1 (version) | 1 branch | number of children | (last name below it | document id 32)*
//! entry = name | kind 1 byte | meta | by kind:
//!   0 file        size | link | recipe 16 unless the size is 0
//!   1 directory   document id 32
//!   2 symlink     target
//!   3 fifo, 4 socket
//!   5 character device, 6 block device: number
//! ```
//! Meta as in `event`; here it always has the xattrs. Names are unique, sorted bytewise, not empty, neither
//! `.` nor `..`, and contain no `/` or zero byte. *Link* is 0, or a number that all names of a file with
//! several names share; it has no meaning outside this snapshot.
//!
//! Invariants: a list of entries has exactly one tree. A leaf ends behind an entry whose name's hash ends in
//! [`CUT_BITS`] zero bits, or when it is full; a branch ends behind a child whose id does so. So a change
//! rewrites one leaf and the branches above it, and equal directories have equal ids, on any machine.

use super::error::{HistoryError, Result};
use super::wire::{Input, put_bytes, put_meta};
use crate::id::{DocumentId, RecipeId};
use crate::recipe::put_varint;
use crate::store::{DocumentKind, Store, Writer};
use crate::tree::Meta;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

const VERSION: u8 = 1;
/// A page ends behind an entry whose hash ends in this many zero bits: 64 entries on average,
const CUT_BITS: u32 = 6;
/// unless it has fewer entries than this,
const PAGE_MIN: usize = 16;
/// or at this many entries.
const PAGE_MAX: usize = 512;
/// Depth limit of a tree of pages, whatever documents claim.
const DEPTH_MAX: usize = 16;

/// Kind and content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File {
        /// Its length in bytes.
        size: u64,
        /// 0, or the number that all its names share.
        link: u64,
        /// Its content; `None` if it is empty.
        recipe: Option<RecipeId>,
    },
    /// A directory: its node.
    Directory(DocumentId),
    /// A symlink: its target.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device: its number.
    CharDevice(u64),
    /// A block device: its number.
    BlockDevice(u64),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// Its other attributes.
    pub meta: Meta,
    /// Its kind and content.
    pub node: Node,
}

impl Entry {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.name.as_bytes());
        out.push(match self.node {
            Node::File { .. } => 0,
            Node::Directory(_) => 1,
            Node::Symlink(_) => 2,
            Node::Fifo => 3,
            Node::Socket => 4,
            Node::CharDevice(_) => 5,
            Node::BlockDevice(_) => 6,
        });
        put_meta(out, &self.meta);
        match &self.node {
            Node::File { size, link, recipe } => {
                put_varint(out, *size);
                put_varint(out, *link);
                out.extend(recipe.iter().flat_map(|recipe| recipe.0));
            }
            Node::Directory(id) => out.extend_from_slice(&id.0),
            Node::Symlink(target) => put_bytes(out, target),
            Node::CharDevice(number) | Node::BlockDevice(number) => put_varint(out, *number),
            Node::Fifo | Node::Socket => {}
        }
    }

    /// Decodes an entry whose name may be empty, as a root's is.
    pub(super) fn decode(input: &mut Input<'_>) -> Option<Entry> {
        let name = OsStr::from_bytes(input.bytes()?).to_owned();
        let kind = input.byte()?;
        let meta = input.meta()?;
        let node = match kind {
            0 => {
                let (size, link) = (input.number()?, input.number()?);
                let recipe = if size == 0 { None } else { Some(RecipeId(input.array()?)) };
                Node::File { size, link, recipe }
            }
            1 => Node::Directory(DocumentId(input.array()?)),
            2 => Node::Symlink(input.bytes()?.to_vec()),
            3 => Node::Fifo,
            4 => Node::Socket,
            5 => Node::CharDevice(input.number()?),
            6 => Node::BlockDevice(input.number()?),
            _ => return None,
        };
        Some(Entry { name, meta, node })
    }
}

enum Page {
    Leaf(Vec<Entry>),
    Branch(Vec<(OsString, DocumentId)>),
}

fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Decodes and encodes a page; `None` if `bytes` are invalid. For `fuzz`.
#[cfg(any(test, feature = "testing"))]
pub(super) fn again(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(match decode(bytes)? {
        Page::Leaf(entries) => leaf(&entries),
        Page::Branch(children) => branch(&children),
    })
}

pub(super) fn leaf(page: &[Entry]) -> Vec<u8> {
    let mut out = vec![VERSION, 0];
    put_varint(&mut out, page.len() as u64);
    page.iter().for_each(|entry| entry.encode(&mut out));
    out
}

pub(super) fn branch(page: &[(OsString, DocumentId)]) -> Vec<u8> {
    let mut out = vec![VERSION, 1];
    put_varint(&mut out, page.len() as u64);
    for (last, id) in page {
        put_bytes(&mut out, last.as_bytes());
        out.extend_from_slice(&id.0);
    }
    out
}

fn decode(bytes: &[u8]) -> Option<Page> {
    let mut input = Input(bytes);
    if input.byte()? != VERSION {
        return None;
    }
    let kind = input.byte()?;
    let count = input.number().filter(|count| *count <= PAGE_MAX as u64)?;
    let page = match kind {
        0 => Page::Leaf((0..count).map(|_| Entry::decode(&mut input)).collect::<Option<Vec<_>>>()?),
        1 => {
            let child = |input: &mut Input<'_>| {
                Some((OsStr::from_bytes(input.bytes()?).to_owned(), DocumentId(input.array()?)))
            };
            Page::Branch((0..count).map(|_| child(&mut input)).collect::<Option<Vec<_>>>()?)
        }
        _ => return None,
    };
    let in_order = match &page {
        Page::Leaf(entries) => {
            entries.iter().all(|entry| is_name(&entry.name)) && entries.is_sorted_by(|a, b| a.name < b.name)
        }
        Page::Branch(children) => children.len() > 1 && children.is_sorted_by(|a, b| a.0 < b.0),
    };
    (input.ended() && in_order).then_some(page)
}

fn page(store: &Store, id: &DocumentId) -> Result<Page> {
    let bytes = store.document(DocumentKind::Node, id)?;
    decode(&bytes).ok_or(HistoryError::Form { what: "a directory", document: *id })
}

/// Writes the entries of a directory, sorted by name; returns its id. As durable as other content of the
/// writer.
pub(super) fn write(writer: &mut Writer, entries: &[Entry]) -> Result<DocumentId> {
    let name_cuts = |entry: &Entry| cuts(blake3::hash(entry.name.as_bytes()).as_bytes());
    let mut children = Vec::new();
    for page in pages(entries, name_cuts) {
        let last = page.last().map(|entry| entry.name.clone()).unwrap_or_default();
        children.push((last, writer.put_document(DocumentKind::Node, &leaf(page))?));
    }
    while children.len() > 1 {
        let mut above = Vec::new();
        for page in pages(&children, |(_, id)| cuts(&id.0)) {
            // A branch of one child would be another tree of the same entries.
            let [one] = page else {
                let last = page.last().map(|(last, _)| last.clone()).unwrap_or_default();
                above.push((last, writer.put_document(DocumentKind::Node, &branch(page))?));
                continue;
            };
            above.push(one.clone());
        }
        children = above;
    }
    match children.pop() {
        Some((_, id)) => Ok(id),
        None => Ok(writer.put_document(DocumentKind::Node, &[VERSION, 0, 0])?),
    }
}

fn cuts(hash: &[u8; 32]) -> bool {
    u32::from(hash[31]).trailing_zeros() >= CUT_BITS
}

fn pages<T>(all: &[T], cuts: impl Fn(&T) -> bool) -> Vec<&[T]> {
    let (mut pages, mut start) = (Vec::new(), 0);
    for (i, one) in all.iter().enumerate() {
        let len = i + 1 - start;
        if len >= PAGE_MAX || (len >= PAGE_MIN && cuts(one)) {
            pages.push(&all[start..=i]);
            start = i + 1;
        }
    }
    if start < all.len() {
        pages.push(&all[start..]);
    }
    pages
}

/// Returns the entries of a directory, sorted by name. Memory: all of them.
pub(super) fn read(store: &Store, id: &DocumentId) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    each_leaf(store, id, &mut |_| true, DEPTH_MAX, &mut |leaf| {
        entries.extend(leaf);
        Ok(())
    })?;
    Ok(entries)
}

/// Returns the entry of that name in a directory. O(log entries).
pub(super) fn find(store: &Store, id: &DocumentId, name: &OsStr) -> Result<Option<Entry>> {
    let mut id = *id;
    for _ in 0..DEPTH_MAX {
        match page(store, &id)? {
            Page::Leaf(entries) => return Ok(entries.into_iter().find(|entry| entry.name == name)),
            Page::Branch(children) => match children.into_iter().find(|(last, _)| name <= last) {
                Some((_, child)) => id = child,
                None => return Ok(None),
            },
        }
    }
    Err(HistoryError::Form { what: "a directory", document: id })
}

/// Calls `visit` with the leaves of a directory in order. Skips pages that `wanted` rejects, with everything
/// below.
pub(super) fn each_leaf(
    store: &Store,
    id: &DocumentId,
    wanted: &mut dyn FnMut(&DocumentId) -> bool,
    depth: usize,
    visit: &mut dyn FnMut(Vec<Entry>) -> Result<()>,
) -> Result<()> {
    if !wanted(id) {
        return Ok(());
    }
    match page(store, id)? {
        Page::Leaf(entries) => visit(entries),
        Page::Branch(_) if depth == 0 => Err(HistoryError::Form { what: "a directory", document: *id }),
        Page::Branch(children) => children
            .iter()
            .try_for_each(|(_, child)| each_leaf(store, child, &mut *wanted, depth - 1, &mut *visit)),
    }
}

/// Depth limit of a tree of pages.
pub(super) const PAGES_DEPTH_MAX: usize = DEPTH_MAX;
