//! What every process of the program knows about every file, in memory that they share.
//!
//! A word of a file says of which file, of which version and at which place it is. A writer notes the version
//! *begun* before it writes to a block, and *done* when its call has returned. So whoever reads a block must
//! find nothing older than what was done before the read began, and nothing newer than what was begun before it
//! ended. Where nothing was being written meanwhile (`turn` is even and the same), the content is known exactly.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

pub const FILES: usize = 64;
/// The last ones are so large that they become plain files for a while when they are read again and again.
pub const LARGE: std::ops::Range<usize> = FILES - 4..FILES;
pub const BLOCK: usize = 4096;
pub const BLOCKS: usize = 264;
pub const BYTES_MAX: usize = BLOCK * BLOCKS;
/// Of a file that is not large.
pub const SMALL_BYTES_MAX: usize = BLOCK * 32;
const LARGE_BYTES_MIN: usize = 1 << 20;

/// How a file is changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Always of the same length; some of its blocks are written anew.
    InPlace,
    /// A new file is renamed over it.
    Replaced,
    /// Emptied and written from its start.
    Rewritten,
    /// Appended to, and emptied when it is long.
    Appended,
}

pub fn kind(file: usize) -> Kind {
    [Kind::InPlace, Kind::InPlace, Kind::Replaced, Kind::Rewritten, Kind::Appended, Kind::Replaced][file % 6]
}

/// Length of a file that is always whole, of that version.
pub fn len_of(file: usize, version: u64) -> usize {
    let mixed =
        (file as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    match kind(file) {
        Kind::InPlace if LARGE.contains(&file) => BYTES_MAX,
        Kind::InPlace => BLOCK * (1 + file % (SMALL_BYTES_MAX / BLOCK)),
        _ if LARGE.contains(&file) => {
            LARGE_BYTES_MIN + 8 * ((mixed >> 20) as usize % ((BYTES_MAX - LARGE_BYTES_MIN) / 8))
        }
        _ => 8 * (1 + (mixed >> 20) as usize % (SMALL_BYTES_MAX / 8)),
    }
}

pub fn word(file: usize, version: u64, index: usize) -> u64 {
    (file as u64 + 1) << 52 | version << 28 | index as u64
}

/// The version in a word, if it belongs there.
pub fn version_in(word: u64, file: usize, index: usize) -> Option<u64> {
    let fits = word >> 52 == file as u64 + 1 && word & ((1 << 28) - 1) == index as u64;
    fits.then_some(word >> 28 & ((1 << 24) - 1))
}

/// The bytes of a range of a file, all of one version.
pub fn bytes(file: usize, version: u64, words: std::ops::Range<usize>) -> Vec<u8> {
    words.flat_map(|index| word(file, version, index).to_ne_bytes()).collect()
}

#[repr(C)]
#[derive(Default)]
pub struct Block {
    pub begun: AtomicU64,
    pub done: AtomicU64,
}

#[repr(C)]
pub struct State {
    /// Not 0 while somebody writes.
    lock: AtomicU32,
    pub version: AtomicU64,
    /// Odd while somebody writes.
    pub turn: AtomicU64,
    /// While nobody writes.
    pub len: AtomicU64,
    /// The oldest version that an appended file may show.
    pub oldest: AtomicU64,
    pub blocks: [Block; BLOCKS],
}

#[repr(C)]
pub struct Table {
    pub files: [State; FILES],
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub words: AtomicU64,
}

impl Table {
    /// Maps the table at `path`, which is all zeros at first. It stays mapped until the process ends.
    pub fn open(path: &Path) -> &'static Table {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(size_of::<Table>() as u64).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of that length, never unmapped; every field is an atomic, for which any bytes do.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                size_of::<Table>(),
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            &*at.cast::<Table>()
        }
    }
}

/// The right to write to a file, with the number of its next version.
pub struct Turn {
    pub state: &'static State,
    pub version: u64,
}

impl State {
    /// Whether nobody writes, and if so which turn it is.
    pub fn quiet(&self) -> Option<u64> {
        let turn = self.turn.load(SeqCst);
        turn.is_multiple_of(2).then_some(turn)
    }

    /// None if somebody else writes.
    pub fn begin(&'static self) -> Option<Turn> {
        self.lock.compare_exchange(0, 1, SeqCst, SeqCst).ok()?;
        self.turn.fetch_add(1, SeqCst);
        Some(Turn { state: self, version: self.version.fetch_add(1, SeqCst) + 1 })
    }
}

impl Turn {
    pub fn begun(&self, blocks: std::ops::Range<usize>) {
        blocks.for_each(|block| self.state.blocks[block].begun.store(self.version, SeqCst));
    }

    pub fn done(&self, blocks: std::ops::Range<usize>) {
        blocks.for_each(|block| self.state.blocks[block].done.store(self.version, SeqCst));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.state.turn.fetch_add(1, SeqCst);
        self.state.lock.store(0, SeqCst);
    }
}
