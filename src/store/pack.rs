//! Pack files: names, headers, footers, and the open files for reading.
//!
//! ```text
//! pack   = header frame* [footer frame]
//! header = magic (8) | format version u32 | pack number u32 | store id (16) | 0 u32 | CRC-32 of the 36 bytes
//! footer = a frame of kind 3; payload = entry* | offset of the footer frame u32 | end magic (4)
//!          of version 4 the entries are compressed ([`super::compact`]); its id is the hash of the payload as it stands
//! entry  = id (32) | kind u8 | offset u32 | stored length u32 | raw length u32, sorted by id and kind
//!          a chunk in a group: where the group's frame stands and how long it is stored, the chunk's raw length
//! ```
//!
//! Invariants: a pack that ends in a footer is sealed and never changes again. The header has the same layout
//! in every format version, so that an older program can name a version that it cannot read.

use super::error::StoreError;
use super::frame::{Place, u32_at};
use crate::env::{Access, Disk, DiskFile};
use crate::id::{PackId, StoreId};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of a pack file before its first frame.
pub(super) const PACK_HEADER_BYTES: u32 = 40;
/// The newest format version that this program reads.
pub(super) const FORMAT: u32 = GROUPED;
/// The version of packs without groups: programs that do not know groups can read them.
pub(super) const PLAIN: u32 = 1;
/// From this version on footers are compressed. Earlier programs wrote version 2 and 3 (groups with names; 3
/// may have inflated ones), 4 (groups with a base also have names), and 5 (without LZMA).
pub(super) const COMPACT: u32 = 4;
/// The version of packs that may have groups. Their footers have no group ids, because nothing looks up
/// groups.
pub(super) const GROUPED: u32 = 6;
const PACK_MAGIC: [u8; 8] = *b"dedupfs\x1a";
/// Pack files kept open for reading.
const OPEN_FILES: usize = 256;

/// The header of a pack file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackHeader {
    Whole { version: u32, store: StoreId, pack: u32 },
    Damaged,
}

pub(super) fn encode_header(store: StoreId, pack: u32, version: u32) -> [u8; PACK_HEADER_BYTES as usize] {
    let mut out = [0; PACK_HEADER_BYTES as usize];
    out[..8].copy_from_slice(&PACK_MAGIC);
    out[8..12].copy_from_slice(&version.to_le_bytes());
    out[12..16].copy_from_slice(&pack.to_le_bytes());
    out[16..32].copy_from_slice(&store.0);
    let crc = crc32fast::hash(&out[..36]);
    out[36..].copy_from_slice(&crc.to_le_bytes());
    out
}

pub(super) fn read_header(file: &dyn DiskFile) -> io::Result<PackHeader> {
    let mut bytes = [0; PACK_HEADER_BYTES as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(PackHeader::Damaged),
        Err(e) => return Err(e),
    }
    if bytes[..8] != PACK_MAGIC || u32_at(&bytes, 36) != crc32fast::hash(&bytes[..36]) {
        return Ok(PackHeader::Damaged);
    }
    let mut store = [0; 16];
    store.copy_from_slice(&bytes[16..32]);
    Ok(PackHeader::Whole { version: u32_at(&bytes, 8), store: StoreId(store), pack: u32_at(&bytes, 12) })
}

/// The directory of packs, and a bounded number of open pack files.
pub(super) struct Packs {
    pub(super) dir: PathBuf,
    pub(super) store: StoreId,
    pub(super) disk: Arc<dyn Disk>,
    open: quick_cache::sync::Cache<u32, Arc<dyn DiskFile>>,
    present: RwLock<Present>,
}

/// The existing packs.
#[derive(Default)]
struct Present {
    packs: HashSet<u32>,
    /// Removed on purpose: their absence is not damage.
    retired: HashSet<u32>,
}

impl Packs {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, store: StoreId) -> Packs {
        Packs {
            dir,
            store,
            disk,
            open: quick_cache::sync::Cache::new(OPEN_FILES),
            present: RwLock::default(),
        }
    }

    pub(super) fn path(&self, pack: u32) -> PathBuf {
        self.dir.join(format!("{}.pack", PackId(pack)))
    }

    pub(super) fn place(&self, pack: u32, offset: u32) -> Place {
        Place { store: self.store, pack, offset }
    }

    fn present(&self) -> RwLockReadGuard<'_, Present> {
        self.present.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn present_mut(&self) -> RwLockWriteGuard<'_, Present> {
        self.present.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this pack exists; rows that point to other packs are worthless.
    pub(super) fn has(&self, pack: u32) -> bool {
        self.present().packs.contains(&pack)
    }

    pub(super) fn count(&self) -> u64 {
        self.present().packs.len() as u64
    }

    pub(super) fn add(&self, pack: u32) {
        self.present_mut().packs.insert(pack);
    }

    /// Stops look-ups from finding this pack, and marks its future absence as intended.
    pub(super) fn retire(&self, pack: u32) {
        let mut present = self.present_mut();
        present.packs.remove(&pack);
        present.retired.insert(pack);
    }

    pub(super) fn retired(&self) -> Vec<u32> {
        self.present().retired.iter().copied().collect()
    }

    pub(super) fn is_retired(&self, pack: u32) -> bool {
        self.present().retired.contains(&pack)
    }

    /// Closes a removed pack, so that the disk space is freed.
    pub(super) fn close(&self, pack: u32) {
        self.open.remove(&pack);
    }

    /// Returns a pack for reading, and keeps it open.
    pub(super) fn file(&self, pack: u32) -> io::Result<Arc<dyn DiskFile>> {
        self.open.get_or_insert_with(&pack, || self.open(pack, Access::Read))
    }

    pub(super) fn open(&self, pack: u32, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.path(pack), access)
    }

    /// Makes the names of packs durable.
    pub(super) fn sync_names(&self) -> Result<(), StoreError> {
        self.disk.sync_dir(&self.dir).map_err(|e| StoreError::io("fsync", &self.dir, e))
    }

    /// Returns the numbers of all pack files, ascending. Ignores other names.
    pub(super) fn list(&self) -> Result<Vec<u32>, StoreError> {
        let failed = |e| StoreError::io("list", &self.dir, e);
        let mut packs = Vec::new();
        for name in self.disk.list(&self.dir).map_err(failed)? {
            let digits = name.to_str().and_then(|name| name.strip_suffix(".pack"));
            packs.extend(digits.and_then(pack_number));
        }
        packs.sort_unstable();
        Ok(packs)
    }
}

fn pack_number(digits: &str) -> Option<u32> {
    let number = u32::from_str_radix(digits, 16).ok()?;
    (PackId(number).to_string() == digits).then_some(number)
}
