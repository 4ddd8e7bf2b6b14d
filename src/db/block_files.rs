//! Files of blocks next to the database: one for each run of a table.
//!
//! A run is written once, from its first block to its last, and deleted as a whole. In sled each block is written two
//! or three times, with the tree nodes around it, and again whenever sled cleans up; in a file of its own it is written
//! once. As in WiscKey (Lu et al., FAST 2016, section 3.2) the tree keeps the keys, and of each value where it is.
//!
//! Invariants:
//! - A block is found by its [`Address`] only, which has its checksum.
//! - A file grows at its end and nowhere else, and is removed as a whole.

use super::{DbError, DbResult, Value};
use crate::env::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files that are kept open; a block of another costs an `open` more.
const OPEN_MAX: usize = 64;

/// The file of a run: the table's byte and the run's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileName {
    pub(super) table: u8,
    pub(super) number: u32,
}

impl FileName {
    fn parse(name: &str) -> Option<FileName> {
        let (table, number) = name.split_once('-')?;
        let table = u8::from_str_radix(table, 16).ok()?;
        let parsed = FileName { table, number: number.parse().ok()? };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl std::fmt::Display for FileName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x}-{}", self.table, self.number)
    }
}

/// The place of a block in the file of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    offset: u64,
    len: u32,
    crc: u32,
}

impl Address {
    const BYTES: usize = 16;

    pub(super) fn to_bytes(self) -> [u8; Address::BYTES] {
        let mut bytes = [0; Address::BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Address> {
        let bytes: &[u8; Address::BYTES] = bytes.try_into().ok()?;
        let (offset, rest) = bytes.split_first_chunk()?;
        let (len, crc) = rest.split_first_chunk()?;
        Some(Address {
            offset: u64::from_le_bytes(*offset),
            len: u32::from_le_bytes(*len),
            crc: u32::from_le_bytes(crc.try_into().ok()?),
        })
    }
}

/// All files of blocks of a database.
pub(super) struct BlockFiles {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<FileName, Arc<Appended>>,
    /// Files with bytes that may not survive a power cut.
    unsynced: BTreeMap<FileName, Arc<Appended>>,
    /// Whether a file was made since the directory was last synced.
    made: bool,
}

struct Appended {
    file: File,
    /// Whether it may be written through.
    writable: bool,
    /// The offset of the next block.
    end: Mutex<u64>,
}

impl BlockFiles {
    /// Opens the directory of the files, and makes it if it is missing.
    pub(super) fn open(dir: &Path) -> DbResult<BlockFiles> {
        let files = BlockFiles { dir: dir.to_owned(), state: Mutex::default() };
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(failed(dir, e)),
            _ => Ok(files),
        }
    }

    /// Appends blocks to the file `name`.
    pub(super) fn append(&self, name: FileName, blocks: &[impl AsRef<[u8]>]) -> DbResult<Vec<Address>> {
        let appended = self.file(name, true)?;
        let mut end = lock(&appended.end);
        let mut offset = *end;
        let (mut addresses, mut bytes) = (Vec::with_capacity(blocks.len()), Vec::new());
        for block in blocks.iter().map(AsRef::as_ref) {
            let (len, crc) = (block.len() as u32, crc32fast::hash(block));
            addresses.push(Address { offset, len, crc });
            bytes.extend_from_slice(block);
            offset += u64::from(len);
        }
        // After an error the next call overwrites these bytes.
        let written = appended.file.write_all_at(&bytes, *end);
        written.map_err(|e| failed(&self.path(name), e))?;
        *end = offset;
        drop(end);
        self.lock().unsynced.insert(name, appended);
        Ok(addresses)
    }

    /// Reads a block; `None` if it is missing or damaged.
    pub(super) fn read(&self, name: FileName, address: Address) -> DbResult<Option<Value>> {
        let appended = match self.file(name, false) {
            Ok(appended) => appended,
            Err(DbError::Broken { .. }) if !self.path(name).exists() => return Ok(None),
            Err(e) => return Err(e),
        };
        // An address that is damaged may ask for any length.
        if address.offset.saturating_add(address.len.into()) > *lock(&appended.end) {
            return Ok(None);
        }
        let mut block = vec![0; address.len as usize];
        match appended.file.read_exact_at(&mut block, address.offset) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(failed(&self.path(name), e)),
            Ok(()) => Ok((crc32fast::hash(&block) == address.crc).then(|| block.into())),
        }
    }

    /// Makes all blocks durable.
    pub(super) fn sync(&self) -> DbResult<()> {
        let (unsynced, made) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.unsynced), std::mem::take(&mut state.made))
        };
        let mut synced = unsynced.iter().try_for_each(|(name, appended)| {
            appended.file.sync_data().map_err(|e| failed(&self.path(*name), e))
        });
        if made && synced.is_ok() {
            let dir = File::open(&self.dir).and_then(|dir| dir.sync_all());
            synced = dir.map_err(|e| failed(&self.dir, e));
        }
        if synced.is_err() {
            let mut state = self.lock();
            state.unsynced.extend(unsynced);
            state.made |= made;
        }
        synced
    }

    /// Removes a file; a missing one is no error.
    pub(super) fn remove(&self, name: FileName) -> DbResult<()> {
        {
            let mut state = self.lock();
            state.open.remove(&name);
            state.unsynced.remove(&name);
        }
        match std::fs::remove_file(self.path(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(&self.path(name), e)),
            _ => Ok(()),
        }
    }

    /// Returns the names of all files.
    pub(super) fn names(&self) -> DbResult<BTreeSet<FileName>> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(&self.dir).map_err(|e| failed(&self.dir, e))? {
            let entry = entry.map_err(|e| failed(&self.dir, e))?;
            names.extend(entry.file_name().to_str().and_then(FileName::parse));
        }
        Ok(names)
    }

    /// Returns the bytes of all files on disk.
    pub(super) fn bytes(&self) -> u64 {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
    }

    fn file(&self, name: FileName, make: bool) -> DbResult<Arc<Appended>> {
        let mut state = self.lock();
        let known = state.open.get(&name).or_else(|| state.unsynced.get(&name));
        if let Some(appended) = known.filter(|known| known.writable || !make) {
            return Ok(appended.clone());
        }
        let path = self.path(name);
        let mut options = File::options();
        options.read(true).write(make).create(make).mode(0o600);
        let file = options.open(&path).map_err(|e| failed(&path, e))?;
        let end = file.metadata().map_err(|e| failed(&path, e))?.len();
        let appended = Arc::new(Appended { file, writable: make, end: Mutex::new(end) });
        state.made |= make;
        while state.open.len() >= OPEN_MAX {
            state.open.pop_first();
        }
        state.open.insert(name, appended.clone());
        Ok(appended)
    }

    fn path(&self, name: FileName) -> PathBuf {
        self.dir.join(name.to_string())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Returns the error of the database for one of the file at `path`.
pub(super) fn failed(path: &Path, source: io::Error) -> DbError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DbError::Full { path },
        _ if Refusal::of(&source).is_some() => DbError::Refused { path, source },
        _ => DbError::Broken { path, reason: source.to_string() },
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: FileName = FileName { table: b'f', number: 7 };

    #[test]
    fn blocks_come_back_also_from_a_file_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = BlockFiles::open(&dir.path().join("runs")).unwrap();
        let first = files.append(NAME, &["one", "", "three"]).unwrap();
        files.sync().unwrap();
        let files = BlockFiles::open(&dir.path().join("runs")).unwrap();
        assert_eq!(files.read(NAME, first[0]).unwrap().as_deref(), Some(&b"one"[..]));
        let more = files.append(NAME, &["four"]).unwrap();
        let read = |address| files.read(NAME, address).unwrap().unwrap().to_vec();
        assert_eq!([read(first[0]), read(first[1])], [b"one".to_vec(), vec![]]);
        assert_eq!([read(first[2]), read(more[0])], [b"three".to_vec(), b"four".to_vec()]);
        assert_eq!((files.bytes(), files.names().unwrap().len()), (12, 1));
        assert_eq!(Address::of_bytes(&more[0].to_bytes()), Some(more[0]));
        files.remove(NAME).unwrap();
        files.remove(NAME).unwrap();
        assert_eq!(files.read(NAME, more[0]).unwrap(), None);
        assert!(files.names().unwrap().is_empty());
    }

    #[test]
    fn a_damaged_block_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs");
        let files = BlockFiles::open(&path).unwrap();
        let at = files.append(NAME, &["before", "the block"]).unwrap()[1];
        let broken = |address| files.read(NAME, address).unwrap().is_none();
        assert!(!broken(at));
        assert!(broken(Address { len: u32::MAX, ..at }) && broken(Address { offset: u64::MAX, ..at }));
        assert!(broken(Address { offset: 0, ..at }), "another block");
        let file = path.join(NAME.to_string());
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[8] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert!(broken(at));
        let files = BlockFiles::open(&path).unwrap();
        std::fs::write(&file, "short").unwrap();
        assert_eq!(files.read(NAME, at).unwrap(), None);
    }

    #[test]
    fn few_files_stay_open() {
        let dir = tempfile::tempdir().unwrap();
        let files = BlockFiles::open(dir.path()).unwrap();
        let name = |number| FileName { table: b'c', number };
        let at: Vec<_> = (0..200).map(|n| files.append(name(n), &[n.to_le_bytes()]).unwrap()[0]).collect();
        files.sync().unwrap();
        assert!(files.lock().open.len() <= OPEN_MAX);
        for (n, at) in (0..200u32).zip(at) {
            assert_eq!(files.read(name(n), at).unwrap().unwrap()[..], n.to_le_bytes());
        }
        assert!(files.lock().open.len() <= OPEN_MAX);
    }

    #[test]
    fn names_are_read_back_and_others_are_not_theirs() {
        assert_eq!(FileName::parse("66-7"), Some(NAME));
        for other in ["66-07", "66-", "reserve", "g6-7", "066-7", "66-4294967296", "66--7"] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }
}
