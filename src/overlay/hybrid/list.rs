//! The extent list on disk: changes of a hybrid file since it was a stub, in the order they happened.
//!
//! ```text
//! header (64)                                 record (24)
//!  0  7  "extents"                             0  1  kind: 1 local, 2 zero, 3 size, 4 synced,
//!  7  1  version: 1                                  5 unsettled
//!  8  8  number, as in the file's record       1  3  0
//! 16  8  inode number of the file              4  8  start of the range; the size
//! 24  8  length of the base in bytes          12  8  end of the range; 0
//! 32 16  recipe of the base                   20  4  CRC-32 of the check before it and bytes 0..20
//! 48 16  guard: as that of records, of bytes 0..48
//! ```
//! Numbers are big-endian. The check before the first record is the CRC-32 of the header.
//!
//! Invariants:
//! - A record is valid only if all before it are. Each check covers the one before, so bytes that a crash left
//!   after a torn record never become valid again.
//! - A list changes only by appending, or when a shorter list with the same meaning replaces it.

use super::extents::Change;
use crate::backing::stub::{GuardKey, guard};
use crate::id::RecipeId;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"extents\x01";
const HEADER_LEN: usize = 64;
const RECORD_LEN: usize = 24;

/// The file that a list belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its number: random, and the name of its file.
    pub number: u64,
    /// Inode number of the hybrid file.
    pub inode: u64,
    /// Length in bytes of the base.
    pub base_size: u64,
    /// The recipe of all unchanged bytes.
    pub base: RecipeId,
}

impl Header {
    fn encode(&self, key: &GuardKey) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..16].copy_from_slice(&self.number.to_be_bytes());
        out[16..24].copy_from_slice(&self.inode.to_be_bytes());
        out[24..32].copy_from_slice(&self.base_size.to_be_bytes());
        out[32..48].copy_from_slice(&self.base.0);
        let guard = guard(key, &out[..48]);
        out[48..].copy_from_slice(&guard);
        out
    }

    /// Fails with the reason why `bytes` do not begin with this header.
    fn check(&self, bytes: &[u8], key: &GuardKey) -> Result<(), &'static str> {
        let expected = self.encode(key);
        let Some(found) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err("its extent list is cut short");
        };
        if *found == expected {
            return Ok(());
        }
        if found[..7] == MAGIC[..7] && found[7] > MAGIC[7] {
            return Err("its extent list was written by a newer version of dedupfs");
        }
        if guard(key, &found[..48]) == found[48..] && found[16..24] != expected[16..24] {
            return Err("its extent list belongs to another inode: it was copied below the mount");
        }
        Err("the header of its extent list is damaged")
    }
}

/// An extent list, open only while it is being changed.
pub struct List {
    dir: PathBuf,
    header: [u8; HEADER_LEN],
    number: u64,
    file: Option<File>,
    /// Length of the valid part.
    len: u64,
    check: u32,
    /// A sync of it failed: appended records may be lost although reads still return them.
    doubtful: bool,
}

impl List {
    /// Makes an empty list in `dir`, durably.
    pub fn create(dir: &Path, header: &Header, key: &GuardKey) -> io::Result<List> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => sync_dir(dir.parent().unwrap_or(dir))?,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        let bytes = header.encode(key);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path(dir, header.number))?;
        file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()).and_then(|()| sync_dir(dir))?;
        Ok(List::new(dir, header.number, bytes, Some(file)))
    }

    /// Reads a list, and calls `take` with each change. The inner error is the reason why the list is not valid at all.
    pub fn read(
        dir: &Path,
        header: &Header,
        key: &GuardKey,
        mut take: impl FnMut(&Change),
    ) -> io::Result<Result<List, &'static str>> {
        let bytes = match std::fs::read(path(dir, header.number)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Err("its extent list is missing")),
            Err(e) => return Err(e),
        };
        if let Err(reason) = header.check(&bytes, key) {
            return Ok(Err(reason));
        }
        let mut list = List::new(dir, header.number, header.encode(key), None);
        for record in bytes[HEADER_LEN..].as_chunks::<RECORD_LEN>().0 {
            let check = check(list.check, record);
            let Some(change) = decode(record).filter(|_| record[20..] == check.to_be_bytes()) else { break };
            take(&change);
            list.len += RECORD_LEN as u64;
            list.check = check;
        }
        Ok(Ok(list))
    }

    fn new(dir: &Path, number: u64, header: [u8; HEADER_LEN], file: Option<File>) -> List {
        let (len, check) = (HEADER_LEN as u64, crc32fast::hash(&header));
        List { dir: dir.to_owned(), header, number, file, len, check, doubtful: false }
    }

    /// Returns its path, for messages.
    pub fn path(&self) -> PathBuf {
        path(&self.dir, self.number)
    }

    /// Returns the number of its records.
    pub fn records(&self) -> u64 {
        (self.len - HEADER_LEN as u64) / RECORD_LEN as u64
    }

    /// Closes the file until it is next needed.
    pub fn close(&mut self) {
        self.file = None;
    }

    fn open(&mut self) -> io::Result<&File> {
        if self.file.is_none() {
            let file = OpenOptions::new().read(true).write(true).open(self.path())?;
            // Cut off a torn record that a crash left.
            if file.metadata()?.len() > self.len {
                file.set_len(self.len)?;
            }
            self.file = Some(file);
        }
        Ok(self.file.as_ref().expect("it was just opened"))
    }

    /// Appends a change. It is durable after [`List::sync`], and survives a kill of the process at once.
    pub fn append(&mut self, change: &Change) -> io::Result<()> {
        let (len, before) = (self.len, self.check);
        let record = encode(change, before);
        self.open()?.write_all_at(&record, len)?;
        self.len += RECORD_LEN as u64;
        self.check = check(before, &record);
        Ok(())
    }

    /// Makes appended records durable. `changes` returns the meaning of the whole list: the list is rewritten after a failure,
    /// because the kernel reports lost pages only once.
    pub fn sync(&mut self, changes: impl FnOnce() -> Vec<Change>) -> io::Result<()> {
        if self.doubtful {
            return self.rewrite(&changes());
        }
        let synced = self.open()?.sync_data();
        self.doubtful = synced.is_err();
        synced
    }

    /// Replaces the list by one with just these changes, durably.
    pub fn rewrite(&mut self, changes: &[Change]) -> io::Result<()> {
        let mut bytes = self.header.to_vec();
        let mut last = crc32fast::hash(&self.header);
        for change in changes {
            let record = encode(change, last);
            last = check(last, &record);
            bytes.extend(record);
        }
        let new = self.path().with_extension("new");
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        std::fs::rename(&new, self.path())?;
        sync_dir(&self.dir)?;
        (self.file, self.len, self.check) = (Some(file), bytes.len() as u64, last);
        self.doubtful = false;
        Ok(())
    }
}

/// Returns the path of the list with a number.
fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}"))
}

/// Removes a list; a missing one is no error.
pub fn remove(dir: &Path, number: u64) -> io::Result<()> {
    // A replacement that was not finished.
    let _ = std::fs::remove_file(path(dir, number).with_extension("new"));
    match std::fs::remove_file(path(dir, number)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Returns the numbers of all lists in `dir`.
pub fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match dir.read_dir() {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let digits = name.to_str().and_then(|name| name.get(..16));
        numbers.extend(digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()));
    }
    Ok(numbers)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn check(before: u32, record: &[u8; RECORD_LEN]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_be_bytes());
    hasher.update(&record[..20]);
    hasher.finalize()
}

fn encode(change: &Change, before: u32) -> [u8; RECORD_LEN] {
    let (kind, start, end) = match *change {
        Change::Local(Range { start, end }) => (1, start, end),
        Change::Zero(Range { start, end }) => (2, start, end),
        Change::Size(size) => (3, size, 0),
        Change::Synced => (4, 0, 0),
        Change::Unsettled => (5, 0, 0),
    };
    let mut record = [0; RECORD_LEN];
    record[0] = kind;
    record[4..12].copy_from_slice(&u64::to_be_bytes(start));
    record[12..20].copy_from_slice(&u64::to_be_bytes(end));
    let check = check(before, &record);
    record[20..].copy_from_slice(&check.to_be_bytes());
    record
}

fn decode(record: &[u8; RECORD_LEN]) -> Option<Change> {
    let number = |at: usize| record[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let (start, end) = (number(4)?, number(12)?);
    // No file is longer: the kernel counts bytes as signed numbers.
    let range = (start < end && end < 1 << 63).then_some(start..end);
    match record[0] {
        1 => range.map(Change::Local),
        2 => range.map(Change::Zero),
        3 => (start < 1 << 63).then_some(Change::Size(start)),
        4 => Some(Change::Synced),
        5 => Some(Change::Unsettled),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: GuardKey = GuardKey([5; 32]);
    const HEADER: Header = Header { number: 0xabc, inode: 7, base_size: 1 << 20, base: RecipeId([9; 16]) };

    fn read(dir: &Path, header: &Header) -> Result<(List, Vec<Change>), &'static str> {
        let mut found = Vec::new();
        let list = List::read(dir, header, &KEY, |change| found.push(change.clone())).unwrap()?;
        Ok((list, found))
    }

    fn some_changes() -> Vec<Change> {
        vec![Change::Local(0..4096), Change::Zero(8192..12_288), Change::Synced, Change::Size(77)]
    }

    fn made(dir: &Path) -> PathBuf {
        let mut list = List::create(dir, &HEADER, &KEY).unwrap();
        some_changes().iter().for_each(|change| list.append(change).unwrap());
        list.path()
    }

    #[test]
    fn what_is_torn_is_cut_off_and_never_comes_back() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("extents");
        let at = made(&dir);
        let whole = std::fs::read(&at).unwrap();
        for record in 0..4 {
            for byte in 0..RECORD_LEN {
                let mut bytes = whole.clone();
                bytes[HEADER_LEN + record * RECORD_LEN + byte] ^= 4;
                std::fs::write(&at, &bytes).unwrap();
                let (mut list, found) = read(&dir, &HEADER).unwrap();
                assert_eq!(found, some_changes()[..record], "byte {byte} of record {record}");
                // Another record of the same length must not make those behind it valid again, nor may they stay.
                list.append(&Change::Size(5)).unwrap();
                let (_, again) = read(&dir, &HEADER).unwrap();
                assert_eq!(again.len(), record + 1);
                bytes[HEADER_LEN + record * RECORD_LEN..][..RECORD_LEN]
                    .copy_from_slice(&std::fs::read(&at).unwrap()[HEADER_LEN + record * RECORD_LEN..]);
                std::fs::write(&at, &bytes).unwrap();
                assert_eq!(read(&dir, &HEADER).unwrap().1, again, "as if the cut had not come to the disk");
            }
        }
        for len in HEADER_LEN..whole.len() {
            std::fs::write(&at, &whole[..len]).unwrap();
            assert_eq!(read(&dir, &HEADER).unwrap().1, some_changes()[..(len - HEADER_LEN) / RECORD_LEN]);
        }
    }

    #[test]
    fn a_header_that_does_not_fit_is_refused() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("extents");
        let at = made(&dir);
        let whole = std::fs::read(&at).unwrap();
        let refused = |header: &Header| read(&dir, header).map(drop).unwrap_err();
        assert!(refused(&Header { inode: 8, ..HEADER }).contains("another inode"));
        assert!(refused(&Header { base: RecipeId([1; 16]), ..HEADER }).contains("damaged"));
        assert!(refused(&Header { number: 1, ..HEADER }).contains("missing"));
        for byte in 0..HEADER_LEN {
            let mut bytes = whole.clone();
            bytes[byte] ^= 2;
            std::fs::write(&at, &bytes).unwrap();
            let reason = refused(&HEADER);
            assert!(reason.contains(if byte == 7 { "newer" } else { "damaged" }), "byte {byte}: {reason}");
        }
        std::fs::write(&at, &whole[..HEADER_LEN - 1]).unwrap();
        assert!(refused(&HEADER).contains("cut short"));
    }

    #[test]
    fn a_shorter_list_takes_its_place() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("extents");
        made(&dir);
        let (mut list, _) = read(&dir, &HEADER).unwrap();
        list.rewrite(&[Change::Size(3)]).unwrap();
        list.append(&Change::Synced).unwrap();
        assert_eq!(read(&dir, &HEADER).unwrap().1, [Change::Size(3), Change::Synced]);
        assert_eq!(list.records(), 2);
        assert_eq!(numbers(&dir).unwrap(), [HEADER.number]);
        remove(&dir, HEADER.number).unwrap();
        assert_eq!(numbers(&dir).unwrap(), [0u64; 0]);
    }
}
