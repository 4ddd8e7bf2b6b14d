//! The chunks of a file that is still open for writing.

use crate::recipe::ChunkRef;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The chunks taken from a file so far. They are only a claim: the file may have been overwritten since, so a
/// commit hashes the bytes again before it uses them ([`Growing::still_true`]).
#[derive(Clone, Default)]
pub struct Growing {
    /// Chunks from the file's start on.
    pub chunks: Vec<ChunkRef>,
    /// Bytes that they cover.
    pub bytes: u64,
}

impl Growing {
    /// Whether the file still begins with these chunks. Reads and hashes them: about the speed of memory,
    /// several times faster than compressing them again.
    pub fn still_true(&self, file: &File) -> bool {
        let mut buffer = Vec::new();
        let mut offset = 0;
        self.chunks.iter().all(|chunk| {
            buffer.resize(chunk.len as usize, 0);
            let read = file.read_exact_at(&mut buffer, offset);
            offset += u64::from(chunk.len);
            read.is_ok() && crate::id::ChunkId::of(&buffer) == chunk.id
        })
    }
}
