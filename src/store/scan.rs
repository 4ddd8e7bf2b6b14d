//! Walks the frames of a pack in order, and resynchronizes after damage. Reads, never writes.
//!
//! Invariants: every byte of the range is covered by exactly one item. An item is [`Item::Frame`] only if
//! header, location and payload verify, and for a delta its root too. Groups without names are decoded and
//! hashed. Memory is bounded by the two largest frames, decoded, and some dictionaries.

use super::dictionary::Dictionaries;
use super::entry::Entry;
use super::frame::{HEADER_BYTES, Header, Kind, MAGIC};
use super::group::{self, Base, Group};
use super::group_table::{self, Table};
use super::pack::Packs;
use crate::env::DiskFile;
use std::io;

const WINDOW_BYTES: u64 = 1 << 20;
const NO_ROOT: &str = "the group that it needs is damaged or missing";

/// An item of a pack's range.
pub(super) enum Item {
    /// A frame that verifies.
    Frame { offset: u32, header: Header },
    /// Bytes up to `end` that are no intact frame; with a header, only the payload is bad.
    Bad { offset: u32, end: u64, header: Option<Header>, reason: String },
}

/// A position in the walk over one pack.
pub(super) struct Scanner<'a> {
    packs: &'a Packs,
    pack: u32,
    file: &'a dyn DiskFile,
    at: u64,
    end: u64,
    window: Vec<u8>,
    window_at: u64,
    /// Offset and id of the last intact group, the root of the deltas that follow; with the group if it was
    /// decoded.
    root: Option<(u32, [u8; 32], Option<Group>)>,
    dictionaries: Dictionaries,
    /// The table of the last frame, if it is a group.
    table: Option<Table>,
}

impl<'a> Scanner<'a> {
    /// Walks the bytes `at..end` of a pack.
    pub(super) fn new(packs: &'a Packs, pack: u32, file: &'a dyn DiskFile, at: u64, end: u64) -> Scanner<'a> {
        Scanner {
            packs,
            pack,
            file,
            at,
            // Offsets have 32 bits. dedupfs never writes a larger pack.
            end: end.min(u64::from(u32::MAX)),
            window: Vec::new(),
            window_at: 0,
            root: None,
            dictionaries: Dictionaries::new(),
            table: None,
        }
    }

    /// Returns the current offset, in bytes from the start of the pack.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next item, or `None` at the end. An unreadable range is a bad item.
    pub(super) fn next(&mut self) -> Option<Item> {
        self.next_with(|_, _| Ok(()))
    }

    /// Like [`Scanner::next`]; also passes each frame that verifies to `check`, with its payload.
    pub(super) fn next_with(
        &mut self,
        check: impl FnOnce(&Header, &[u8]) -> Result<(), &'static str>,
    ) -> Option<Item> {
        if self.at >= self.end {
            return None;
        }
        let offset = self.at as u32;
        let header = match self.header_at(self.at) {
            Ok(Ok(header)) => header,
            Ok(Err(reason)) => return Some(self.resync(reason.to_owned())),
            Err(e) => return Some(self.resync(format!("it cannot be read: {e}"))),
        };
        let end = self.at + header.frame_len();
        if let Err(e) = self.bytes(self.at + HEADER_BYTES as u64, u64::from(header.stored_len)) {
            return Some(self.resync(format!("a payload cannot be read: {e}")));
        }
        self.table = None;
        let mut decoded = None;
        let whole = match header.check(self.payload(&header)) {
            Ok(()) if header.is_group() => self.look_into(&header, offset).map(|group| decoded = group),
            other => other,
        };
        let sound = whole.and_then(|()| check(&header, self.payload(&header)));
        if header.kind == Kind::Group as u8 {
            self.root = sound.is_ok().then_some((offset, header.id, decoded));
        }
        self.at = end;
        Some(match sound {
            Ok(()) => Item::Frame { offset, header },
            Err(reason) => Item::Bad { offset, end, header: Some(header), reason: reason.to_owned() },
        })
    }

    /// Reads the table of a group with a valid checksum, and checks that its base is intact. Returns the
    /// group if it was decoded.
    fn look_into(&mut self, header: &Header, offset: u32) -> Result<Option<Group>, &'static str> {
        let table = Table::parse(header, self.payload(header))?;
        let (root, copies) = (table.root(offset)?, table.dictionary(offset)?);
        let is_named = table.is_named();
        if is_named {
            self.table = Some(table.clone());
        }
        let dictionary = copies.map(|copies| {
            let found = self.dictionaries.get(self.packs, self.file, self.pack, &copies);
            found.map_err(|_| "the dictionary that it needs is damaged or missing")
        });
        let dictionary = dictionary.transpose()?;
        if is_named {
            return self.check_root(root).map(|()| None);
        }
        let read;
        let base = match (&dictionary, root, &self.root) {
            (Some(dictionary), ..) => Base::Dictionary(dictionary),
            (None, None, _) => Base::Nothing,
            (None, Some((at, _)), Some((last, _, Some(group)))) if *last == at => Base::Root(group),
            // The walk may have begun between the two, or the root has the names.
            (None, Some((at, _)), _) => {
                read = Group::read_root(self.packs, self.file, self.pack, at, &self.dictionaries)
                    .map_err(|_| NO_ROOT)?;
                Base::Root(&read)
            }
        };
        let group = Group::decode_with(header, self.payload(header), table.clone(), base)?;
        self.table = Some(table.named_by(|at| group.id_of(at)));
        Ok(Some(group))
    }

    /// Returns the table of the last frame, if it is a group with an intact payload. It has names if its base
    /// is intact too.
    pub(super) fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// Returns the footer entries of the last frame.
    pub(super) fn entries(&self, header: &Header, offset: u32) -> Vec<Entry> {
        Entry::all_of(header, self.table().into_iter().flat_map(Table::named), self.pack, offset)
    }

    /// Checks that the root of a delta is there and intact.
    fn check_root(&self, root: Option<(u32, [u8; 8])>) -> Result<(), &'static str> {
        let Some((at, begins)) = root else { return Ok(()) };
        let is_last =
            |(offset, id, _): &(u32, [u8; 32], _)| *offset == at && group_table::is_root(id, &begins);
        // The walk may have begun between the two.
        let stands = || group::stands(self.packs, self.file, self.pack, at, &begins);
        (self.root.as_ref().is_some_and(is_last) || stands()).then_some(()).ok_or(NO_ROOT)
    }

    /// Returns the payload of the current frame, which is in the window.
    fn payload(&self, header: &Header) -> &[u8] {
        let start = (self.at + HEADER_BYTES as u64 - self.window_at) as usize;
        &self.window[start..start + header.stored_len as usize]
    }

    /// Returns a header that verifies and whose frame ends within the range.
    fn header_at(&mut self, at: u64) -> io::Result<Result<Header, &'static str>> {
        let place = self.packs.place(self.pack, at as u32);
        let end = self.end;
        let bytes = self.bytes(at, (HEADER_BYTES as u64).min(end - at))?;
        Ok(Header::parse(bytes, place).and_then(|header| {
            let fits = at + header.frame_len() <= end;
            fits.then_some(header).ok_or("a frame is cut short")
        }))
    }

    /// Advances to the next header that verifies.
    fn resync(&mut self, reason: String) -> Item {
        let start = self.at;
        let mut at = start + 1;
        'search: while at < self.end {
            let len = self.ahead(at);
            let found = match self.bytes(at, len) {
                Ok(bytes) => bytes.windows(MAGIC.len()).position(|window| window == MAGIC),
                Err(_) => {
                    // Unreadable: continue with the next disk block.
                    at = (at | 4095) + 1;
                    continue 'search;
                }
            };
            match found {
                Some(skip) => {
                    at += skip as u64;
                    if matches!(self.header_at(at), Ok(Ok(_))) {
                        break;
                    }
                    at += 1;
                }
                // The last bytes of the window may be the start of a magic number.
                None if at + len < self.end => at += len - (MAGIC.len() as u64 - 1),
                None => at = self.end,
            }
        }
        self.at = at.min(self.end);
        Item::Bad { offset: start as u32, end: self.at, header: None, reason }
    }

    /// Returns how many bytes at `at` to search: the rest of the window, so that each byte is read once, or a
    /// new window.
    fn ahead(&self, at: u64) -> u64 {
        let held_end = self.window_at + self.window.len() as u64;
        let held = if at < self.window_at { 0 } else { held_end.saturating_sub(at) };
        if held >= MAGIC.len() as u64 { held } else { WINDOW_BYTES.min(self.end - at) }
    }

    /// Returns `len` bytes at `at` within the range, through the window.
    fn bytes(&mut self, at: u64, len: u64) -> io::Result<&[u8]> {
        let inside = at >= self.window_at && at + len <= self.window_at + self.window.len() as u64;
        if !inside {
            let want = len.max(WINDOW_BYTES).min(self.end - at);
            self.window_at = at;
            self.window.resize(want as usize, 0);
            let read = self.file.read_exact_at(&mut self.window, at).or_else(|e| {
                // One bad block must not hide its neighbours: read only the requested bytes.
                self.window.truncate(len as usize);
                match want == len {
                    true => Err(e),
                    false => self.file.read_exact_at(&mut self.window, at),
                }
            });
            if let Err(e) = read {
                self.window.clear();
                return Err(e);
            }
        }
        let start = (at - self.window_at) as usize;
        Ok(&self.window[start..start + len as usize])
    }
}
