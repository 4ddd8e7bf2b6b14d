//! Rows of new and changed entries of a tree, in columns: each row contains only differences from its older
//! row, so that similar values are adjacent and nothing is repeated from the older tree or the last row.

use super::super::device::Device;
use super::super::tree::{ContentId, Entry, Ident, Kind, PATH_BYTES_MAX, Time, Tree, TreeError, TreePath};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};

/// Limit of the decoded rows' bytes: a multiple of the encoded bytes, in addition to the bytes of the older tree.
const ROWS_FACTOR: usize = 256;

const AUTHOR: u8 = 1;
const KIND: u8 = 2;
const MODE: u8 = 4;
const TIME: u8 = 8;
const XATTRS: u8 = 16;
const IDENT: u8 = 32;

/// Codes of a kind. [`KNOWN`] and greater: a content that came before, or that the older tree has.
const UNTOLD: u32 = 0;
const TOLD: u32 = 1;
const SYMLINK: u32 = 2;
const FIFO: u32 = 3;
const DIR: u32 = 4;
const KNOWN: u32 = 5;

/// Codes of an ident. [`ROW`] and greater: the ident of a row of the older tree.
const DERIVED: u32 = 0;
const AS_IS: u32 = 1;
const ROW: u32 = 2;

/// The rows in columns (see the module). A column holds a number for each row that needs one.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Rows {
    authors: Vec<Device>,
    /// Number of the snapshot that idents are derived from; its device is the first of the authors.
    look: u64,
    /// 0: the path is new. Otherwise 1 plus the number of rows of the older tree between this row and the last such
    /// row.
    at: Vec<u32>,
    /// Bytes that a new path shares with the path of the last row; and the other bytes, each path ended by NUL.
    shared: Vec<u32>,
    names: Vec<u8>,
    /// Which fields differ from the older row; for a new row, from the last row.
    other: Vec<u8>,
    ident: Vec<u32>,
    idents: Vec<[u8; 8]>,
    author: Vec<u32>,
    kind: Vec<u32>,
    /// Difference to the size in the older row.
    size: Vec<i64>,
    hashes: Vec<ContentId>,
    targets: Vec<Vec<u8>>,
    mode: Vec<u16>,
    /// Difference to the last time.
    seconds: Vec<i64>,
    nanos: Vec<u32>,
    xattrs: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
}

/// The older tree that rows are encoded against.
struct Old<'a> {
    rows: Vec<(&'a TreePath, &'a Entry)>,
    known: Vec<(ContentId, u64)>,
    ranks: HashMap<(ContentId, u64), u32>,
}

impl<'a> Old<'a> {
    fn of(tree: &'a Tree) -> Old<'a> {
        let mut old = Old { rows: tree.entries.iter().collect(), known: Vec::new(), ranks: HashMap::new() };
        for entry in tree.entries.values() {
            old.learn(&entry.kind);
        }
        old
    }

    fn learn(&mut self, kind: &Kind) {
        if let Kind::File { content, size } = kind {
            let next = self.known.len() as u32;
            if *self.ranks.entry((*content, *size)).or_insert(next) == next {
                self.known.push((*content, *size));
            }
        }
    }
}

/// The last row; new rows are encoded against it.
struct Last {
    path: TreePath,
    author: u32,
    /// Modes of the last entry that is no directory, and of the last directory.
    modes: [u16; 2],
    time: Time,
}

impl Default for Last {
    fn default() -> Last {
        Last { path: TreePath::new(), author: 0, modes: [0o644, 0o755], time: (0, 0) }
    }
}

impl Rows {
    /// Returns the rows of `tree` that `old` does not have. Idents that the snapshot `look` gave are derived, not
    /// sent. The hashes of `untold` are left out.
    pub fn of(old: &Tree, tree: &Tree, look: Option<&(Device, u64)>, untold: &BTreeSet<ContentId>) -> Rows {
        let mut rows = Rows::default();
        let set: Vec<(&TreePath, &Entry)> =
            tree.entries.iter().filter(|(path, entry)| old.entries.get(*path) != Some(entry)).collect();
        let mut numbers: HashMap<&Device, u32> = HashMap::new();
        if let Some((device, seq)) = look.filter(|_| !set.is_empty()) {
            rows.look = *seq;
            rows.authors.push(device.clone());
            numbers.insert(device, 0);
        }
        let places: HashMap<&TreePath, u32> = old.entries.keys().zip(0..).collect();
        let mut idents: HashMap<Ident, u32> = HashMap::new();
        for (entry, place) in old.entries.values().zip(0..) {
            idents.entry(entry.ident).or_insert(place);
        }
        let mut old = Old::of(old);
        let (mut last, mut next) = (Last::default(), 0);
        for (path, entry) in set {
            let place = places.get(path).copied();
            match place {
                Some(place) => {
                    rows.at.push(1 + place - next);
                    next = place + 1;
                }
                None => {
                    rows.at.push(0);
                    let shared = path.iter().zip(&last.path).take_while(|(a, b)| a == b).count();
                    rows.shared.push(shared as u32);
                    rows.names.extend_from_slice(&path[shared..]);
                    rows.names.push(0);
                }
            }
            let mut was = place.map(|place| old.rows[place as usize].1);
            let mut other = 0;
            if was.is_none_or(|was| was.ident != entry.ident) {
                other |= IDENT;
                let derived = rows.authors.first().map(|device| Ident::made(device, rows.look, path));
                let told = match idents.get(&entry.ident) {
                    Some(row) => {
                        was = Some(old.rows[*row as usize].1);
                        ROW + row
                    }
                    None if derived == Some(entry.ident) => DERIVED,
                    None => {
                        rows.idents.push(entry.ident.0.to_le_bytes());
                        AS_IS
                    }
                };
                rows.ident.push(told);
            }
            let by_last = || rows.authors.get(last.author as usize);
            if was.map(|was| &was.author).or_else(by_last) != Some(&entry.author) {
                other |= AUTHOR;
                last.author = *numbers.entry(&entry.author).or_insert_with(|| {
                    rows.authors.push(entry.author.clone());
                    rows.authors.len() as u32 - 1
                });
                rows.author.push(last.author);
            }
            if was.is_none_or(|was| was.kind != entry.kind) {
                other |= KIND;
                rows.put_kind(&entry.kind, was, &mut old, untold);
            }
            let mode = &mut last.modes[usize::from(entry.kind.is_dir())];
            if was.map_or(*mode, |was| was.mode) != entry.mode {
                other |= MODE;
                rows.mode.push(entry.mode);
                *mode = entry.mode;
            }
            let time = if entry.kind.is_dir() { (0, 0) } else { last.time };
            if was.map_or(time, |was| was.mtime) != entry.mtime {
                other |= TIME;
                rows.seconds.push(entry.mtime.0.wrapping_sub(last.time.0));
                rows.nanos.push(entry.mtime.1);
                last.time = entry.mtime;
            }
            if was.map_or(!entry.xattrs.is_empty(), |was| was.xattrs != entry.xattrs) {
                other |= XATTRS;
                rows.xattrs.push(entry.xattrs.clone().into_iter().collect());
            }
            rows.other.push(other);
            last.path.clone_from(path);
        }
        rows
    }

    fn put_kind(
        &mut self,
        kind: &Kind,
        was: Option<&Entry>,
        old: &mut Old<'_>,
        untold: &BTreeSet<ContentId>,
    ) {
        let told = match kind {
            Kind::Symlink(target) => {
                self.targets.push(target.clone());
                SYMLINK
            }
            Kind::Fifo => FIFO,
            Kind::Dir => DIR,
            Kind::File { content, size } => match old.ranks.get(&(*content, *size)) {
                Some(rank) => KNOWN + rank,
                None => {
                    old.learn(kind);
                    self.size.push(size.wrapping_sub(was.map_or(0, |was| was.kind.size())) as i64);
                    match untold.contains(content) {
                        true => UNTOLD,
                        false => {
                            self.hashes.push(*content);
                            TOLD
                        }
                    }
                }
            },
        };
        self.kind.push(told);
    }

    /// Returns the rows, in order; a content without its hash is [`ContentId::untold`]. `told` is the number of
    /// encoded bytes.
    pub fn read(self, old: &Tree, told: usize) -> Result<Vec<(TreePath, Entry)>, TreeError> {
        let Rows { authors, look, at, other, .. } = self;
        let mut columns = Columns {
            shared: self.shared.into_iter(),
            names: self.names,
            named: 0,
            ident: self.ident.into_iter(),
            idents: self.idents.into_iter(),
            kind: self.kind.into_iter(),
            size: self.size.into_iter(),
            hashes: self.hashes.into_iter(),
            targets: self.targets.into_iter(),
            untold: 0,
        };
        let (mut author, mut mode) = (self.author.into_iter(), self.mode.into_iter());
        let (mut seconds, mut nanos) = (self.seconds.into_iter(), self.nanos.into_iter());
        let mut xattrs = self.xattrs.into_iter();
        let wrong = || TreeError::Encoding;
        let mut room = ROWS_FACTOR * told + PATH_BYTES_MAX;
        room += old.entries.iter().map(|(path, entry)| bytes_of(path, entry)).sum::<usize>();
        let mut old = Old::of(old);
        let (mut last, mut next) = (Last::default(), 0usize);
        if at.len() != other.len() {
            return Err(wrong());
        }
        let mut rows = Vec::with_capacity(at.len());
        for (at, other) in at.iter().zip(&other) {
            let (path, mut was) = match at.checked_sub(1) {
                Some(skipped) => {
                    let (path, was) = *old.rows.get(next + skipped as usize).ok_or_else(wrong)?;
                    next += skipped as usize + 1;
                    (path.clone(), Some(was))
                }
                None => (columns.path(&last.path, &mut room)?, None),
            };
            let ident = match other & IDENT != 0 {
                false => was.ok_or_else(wrong)?.ident,
                true => match columns.ident.next().ok_or_else(wrong)? {
                    DERIVED => Ident::made(authors.first().ok_or_else(wrong)?, look, &path),
                    AS_IS => Ident(u64::from_le_bytes(columns.idents.next().ok_or_else(wrong)?)),
                    row => {
                        let row = old.rows.get((row - ROW) as usize).ok_or_else(wrong)?.1;
                        was = Some(row);
                        row.ident
                    }
                },
            };
            if other & AUTHOR != 0 {
                last.author = author.next().ok_or_else(wrong)?;
            }
            let author = match was.filter(|_| other & AUTHOR == 0) {
                Some(was) => was.author.clone(),
                None => authors.get(last.author as usize).ok_or_else(wrong)?.clone(),
            };
            let kind = match other & KIND != 0 {
                true => columns.kind(was, &mut old)?,
                false => was.ok_or_else(wrong)?.kind.clone(),
            };
            let known = &mut last.modes[usize::from(kind.is_dir())];
            let mode = match other & MODE != 0 {
                true => {
                    *known = mode.next().ok_or_else(wrong)?;
                    *known
                }
                false => was.map_or(*known, |was| was.mode),
            };
            let mtime = match other & TIME != 0 {
                true => {
                    let since = seconds.next().ok_or_else(wrong)?;
                    last.time = (last.time.0.wrapping_add(since), nanos.next().ok_or_else(wrong)?);
                    last.time
                }
                false if was.is_none() && kind.is_dir() => (0, 0),
                false => was.map_or(last.time, |was| was.mtime),
            };
            let xattrs = match other & XATTRS != 0 {
                true => xattrs.next().ok_or_else(wrong)?.into_iter().collect(),
                false => was.map(|was| was.xattrs.clone()).unwrap_or_default(),
            };
            let entry = Entry { ident, author, kind, mode, mtime, xattrs };
            room = room.checked_sub(bytes_of(&path, &entry)).ok_or_else(wrong)?;
            last.path.clone_from(&path);
            rows.push((path, entry));
        }
        Ok(rows)
    }
}

/// Returns the bytes that a row takes in addition to its fixed size.
fn bytes_of(path: &[u8], entry: &Entry) -> usize {
    let target = if let Kind::Symlink(target) = &entry.kind { target.len() } else { 0 };
    path.len() + target + entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

/// Columns that are read from the front.
struct Columns {
    shared: std::vec::IntoIter<u32>,
    names: Vec<u8>,
    named: usize,
    ident: std::vec::IntoIter<u32>,
    idents: std::vec::IntoIter<[u8; 8]>,
    kind: std::vec::IntoIter<u32>,
    size: std::vec::IntoIter<i64>,
    hashes: std::vec::IntoIter<ContentId>,
    targets: std::vec::IntoIter<Vec<u8>>,
    untold: u32,
}

impl Columns {
    fn path(&mut self, last: &[u8], room: &mut usize) -> Result<TreePath, TreeError> {
        let shared = self.shared.next().and_then(|shared| last.get(..shared as usize));
        let shared = shared.ok_or(TreeError::Encoding)?;
        let rest = &self.names[self.named..];
        let len = rest.iter().position(|byte| *byte == 0).ok_or(TreeError::Encoding)?;
        self.named += len + 1;
        match shared.len() + len > PATH_BYTES_MAX.min(*room) {
            true => Err(TreeError::Encoding),
            false => Ok([shared, &rest[..len]].concat()),
        }
    }

    fn kind(&mut self, was: Option<&Entry>, old: &mut Old<'_>) -> Result<Kind, TreeError> {
        let wrong = || TreeError::Encoding;
        let kind = match self.kind.next().ok_or_else(wrong)? {
            SYMLINK => Kind::Symlink(self.targets.next().ok_or_else(wrong)?),
            FIFO => Kind::Fifo,
            DIR => Kind::Dir,
            told @ (UNTOLD | TOLD) => {
                let more = self.size.next().ok_or_else(wrong)?;
                let size = was.map_or(0, |was| was.kind.size()).wrapping_add(more as u64);
                let content = match told {
                    TOLD => self.hashes.next().ok_or_else(wrong)?,
                    _ => {
                        self.untold += 1;
                        ContentId::untold(self.untold - 1)
                    }
                };
                Kind::File { content, size }
            }
            known => {
                let (content, size) = *old.known.get((known - KNOWN) as usize).ok_or_else(wrong)?;
                Kind::File { content, size }
            }
        };
        old.learn(&kind);
        Ok(kind)
    }
}
