//! Files with holes.

use crate::backing;
use crate::contents::ingest::Input;
use crate::recipe::ChunkRef;
use rustix::fs::Stat;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a recipe for each chunk.
const RECIPE_BYTES: u64 = 36;
/// Smaller files are stored whatever holes they have.
const BYTES_MIN: u64 = 1 << 30;

/// Returns whether a file is so large and so empty that its recipe would take more than half of its space. Such a file is
/// neither converted nor indexed. `zeros` is the chunk into which holes are cut.
pub(crate) fn is_mostly_holes(stat: &Stat, zeros: ChunkRef) -> bool {
    let (size, blocks) = (stat.st_size as u64, stat.st_blocks as u64 * 512);
    let recipe = size.saturating_sub(blocks) / u64::from(zeros.len) * RECIPE_BYTES;
    size >= BYTES_MIN && recipe > blocks / 2
}

/// The bytes of a file from `offset` on, up to the length that it had at first.
pub(crate) struct FileBytes<'a> {
    file: &'a File,
    offset: u64,
    size: u64,
    has_holes: bool,
}

impl FileBytes<'_> {
    /// Reads `file`, with the attributes `stat`, from `offset` on.
    pub(crate) fn new<'a>(file: &'a File, stat: &Stat, offset: u64) -> FileBytes<'a> {
        let size = stat.st_size as u64;
        FileBytes { file, offset, size, has_holes: (stat.st_blocks as u64 * 512) < size }
    }

    /// Returns whether all bytes were read that the file had at first. The reader compares its length with that in the end.
    pub(crate) fn at_end(&self) -> bool {
        self.offset >= self.size
    }
}

impl Input for FileBytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at_end() {
            return Ok(0);
        }
        let len = self.file.read_at(buffer, self.offset)?;
        self.offset += len as u64;
        Ok(len)
    }

    fn hole(&mut self) -> io::Result<u64> {
        if !self.has_holes || self.at_end() {
            return Ok(0);
        }
        let data = backing::next_data(self.file, self.offset)?.unwrap_or(self.size);
        Ok(data.min(self.size).saturating_sub(self.offset))
    }

    fn skip(&mut self, len: u64) {
        self.offset += len;
    }

    fn start(&self) -> u64 {
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use crate::id::ChunkId;
    use crate::tree::sparse::*;

    #[test]
    fn only_large_files_of_little_are_mostly_holes() {
        let zeros = ChunkRef { id: ChunkId::of(b""), len: 128 << 10 };
        let stat = |size: u64, allocated: u64| {
            let mut stat = rustix::fs::stat("/").unwrap();
            (stat.st_size, stat.st_blocks) = (size as i64, (allocated / 512) as i64);
            stat
        };
        assert!(is_mostly_holes(&stat(1 << 40, 1 << 20), zeros));
        assert!(is_mostly_holes(&stat(1 << 40, 100 << 20), zeros));
        assert!(!is_mostly_holes(&stat(1 << 40, 1 << 30), zeros));
        assert!(!is_mostly_holes(&stat(20 << 30, 3 << 30), zeros));
        assert!(!is_mostly_holes(&stat(100 << 20, 0), zeros));
        assert!(!is_mostly_holes(&stat(2 << 30, 2 << 30), zeros));
    }
}
