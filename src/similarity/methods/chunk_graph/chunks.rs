//! The chunks of one file: hashes and lengths.
//!
//! A chunk is known by 64 bits of its BLAKE3 hash. The paper uses MD5 and says that 64 bits are enough for 4 billion
//! chunks, since a collision only adds to an estimate (section 2.3). Whether two files are identical is a fact, so it is
//! decided by 128 bits of the hash over all whole chunk hashes.

use crate::chunk::tttd::Tttd;
use crate::recipe::{put_varint, take_varint};
use crate::similarity::methods::{Builder, Entry};
use std::cmp::Ordering;

/// A chunk of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// The first 8 bytes of its BLAKE3 hash.
    pub hash: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// The chunks of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkList {
    content: [u8; 16],
    chunks: Vec<Chunk>,
}

impl ChunkList {
    /// Takes chunks in any order; files with equal `content` are identical.
    pub fn new(content: [u8; 16], mut chunks: Vec<Chunk>) -> ChunkList {
        chunks.sort_unstable();
        ChunkList { content, chunks }
    }

    /// Returns a hash that is equal only for files with equal bytes.
    pub fn content(&self) -> [u8; 16] {
        self.content
    }

    /// Returns the chunks, sorted; a chunk that the file has twice is there twice (footnote 1 of the paper).
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.len)).sum()
    }

    /// Encodes the list: content, number of chunks, then hash and length of each.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.content.to_vec();
        put_varint(&mut out, self.chunks.len() as u64);
        for chunk in &self.chunks {
            out.extend_from_slice(&chunk.hash.to_be_bytes());
            put_varint(&mut out, chunk.len.into());
        }
        out
    }

    /// Fails with a description of the expected bytes.
    pub fn decode(mut bytes: &[u8]) -> Result<ChunkList, &'static str> {
        let (content, rest) = bytes.split_first_chunk().ok_or("16 bytes of content hash")?;
        bytes = rest;
        // A chunk takes 9 bytes or more, so a forged count takes no memory.
        let count = take_varint(&mut bytes).filter(|&count| count <= bytes.len() as u64 / 9);
        let count = count.ok_or("as many chunks as counted")?;
        let mut chunks = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let (hash, rest) = bytes.split_first_chunk().ok_or("as many chunks as counted")?;
            bytes = rest;
            let len = take_varint(&mut bytes).and_then(|len| u32::try_from(len).ok()).filter(|len| *len > 0);
            chunks.push(Chunk { hash: u64::from_be_bytes(*hash), len: len.ok_or("a chunk length")? });
        }
        if !bytes.is_empty() {
            return Err("nothing after the last chunk");
        }
        if !chunks.is_sorted() {
            return Err("chunks in order");
        }
        Ok(ChunkList { content: *content, chunks })
    }
}

/// Returns the bytes of the chunks that two sorted lists have in common; a repeated chunk counts as often as both have it.
/// Merges the lists instead of looking chunks up: 2.5 times as fast, by footnote 2 of the paper.
pub fn common_bytes(mut a: &[Chunk], mut b: &[Chunk]) -> u64 {
    let mut bytes = 0;
    while let ([first_a, rest_a @ ..], [first_b, rest_b @ ..]) = (a, b) {
        match first_a.cmp(first_b) {
            Ordering::Less => a = rest_a,
            Ordering::Greater => b = rest_b,
            Ordering::Equal => {
                bytes += u64::from(first_a.len);
                (a, b) = (rest_a, rest_b);
            }
        }
    }
    bytes
}

/// Cuts and hashes the bytes of one file. Takes memory for one chunk, the bytes of one call, and the chunks' hashes.
#[derive(Debug)]
pub struct ChunkBuilder {
    tttd: Tttd,
    /// Bytes after the last cut.
    uncut: Vec<u8>,
    content: blake3::Hasher,
    chunks: Vec<Chunk>,
    /// Bytes of all chunks so far.
    size: u64,
}

impl ChunkBuilder {
    /// Starts a file.
    pub fn new(tttd: Tttd) -> ChunkBuilder {
        ChunkBuilder { tttd, uncut: Vec::new(), content: blake3::Hasher::new(), chunks: Vec::new(), size: 0 }
    }

    fn cut(&mut self, last: bool) {
        let mut start = 0;
        for len in self.tttd.cut(&self.uncut, last) {
            let end = start + len as usize;
            let hash = blake3::hash(&self.uncut[start..end]);
            self.content.update(hash.as_bytes());
            let head = hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
            self.size += u64::from(len);
            self.chunks.push(Chunk { hash: u64::from_be_bytes(*head), len });
            start = end;
        }
        self.uncut.drain(..start);
    }
}

impl Builder for ChunkBuilder {
    type Sketch = ChunkList;
    type Head = u64;

    fn add(&mut self, bytes: &[u8]) {
        // In pieces, so that a large buffer is not copied at once.
        for piece in bytes.chunks((self.tttd.max() as usize).max(64 << 10)) {
            self.uncut.extend_from_slice(piece);
            if self.uncut.len() >= 2 * self.tttd.max() as usize {
                self.cut(false);
            }
        }
    }

    fn drain(&mut self, take: &mut dyn FnMut(Entry)) {
        self.chunks.drain(..).for_each(|chunk| take(chunk.into()));
    }

    fn close(mut self, take: &mut dyn FnMut(Entry)) -> u64 {
        self.cut(true);
        self.drain(take);
        self.size
    }

    fn finish(mut self) -> ChunkList {
        self.cut(true);
        self.chunks.sort_unstable();
        let mut content = [0; 16];
        content.copy_from_slice(&self.content.finalize().as_bytes()[..16]);
        ChunkList { content, chunks: self.chunks }
    }
}
