//! The index of an SQLite log (`-shm`): memory that programs share while they have the database open, and
//! rebuild from the log if no program has. It changes without its time changing, so it is not synced.

use crate::beneath::Root;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Suffix of the names.
pub const SUFFIX: &[u8] = b"-shm";
/// The version in the first four bytes, in the byte order of the machine ("The WAL-Index File Format", iVersion).
const VERSION: u32 = 3_007_000;
/// Its blocks have this many bytes.
const BLOCK_BYTES: u64 = 32 << 10;

/// Returns whether the file at `path`, with the given `stat`, is such an index.
pub fn is_wal_index(root: &Root, path: &[u8], stat: &Stat) -> bool {
    let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let size = stat.st_size as u64;
    file && path.ends_with(SUFFIX)
        && is_size(size)
        && root
            .open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            .is_ok_and(|fd| is_one(path, size, &File::from(fd)))
}

/// Returns whether `file`, of `size` bytes, is one by its name and first bytes.
pub fn is_one(path: &[u8], size: u64, file: &File) -> bool {
    let mut version = [0; 4];
    path.ends_with(SUFFIX)
        && is_size(size)
        && file.read_exact_at(&mut version, 0).is_ok()
        && [u32::from_le_bytes(version), u32::from_be_bytes(version)].contains(&VERSION)
}

fn is_size(size: u64) -> bool {
    size > 0 && size.is_multiple_of(BLOCK_BYTES)
}
