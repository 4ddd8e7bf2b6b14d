//! The chunk graph (Forman, Eshghi and Chiocchetti 2005, "Finding similar files in large document repositories"):
//! files that share chunks share at least the bytes of those.
//!
//! ```text
//! bytes      -> chunks      cut by TTTD, each a hash and a length                     (`chunks`)
//! chunks     -> collection  those of many files, saved; everything below reads that   (`collection`)
//! collection -> graph       which files have a chunk; parts that fit in memory        (`partition`, `graph`)
//! graph      -> links       pairs of files by bytes in common                         (`analysis`)
//! links      -> clusters    files that links connect; and identical files apart       (`clusters`, `identical`)
//!            -> tables      for a spreadsheet                                         (`tables`)
//! ```
//!
//! Bytes in common are a lower bound: chunks that differ anywhere do not count (section 2.3).
//! Templates are chunks that the user has marked; they do not count, and marking reads no file again.
//!
//! As a [`Method`] it compares two files without the rest of the graph: there no chunk is ubiquitous, and none is a template.

mod analysis;
mod chunks;
mod clusters;
mod collection;
mod error;
mod gather;
mod graph;
mod identical;
mod large;
mod link;
mod partition;
mod tables;
mod templates;
#[cfg(test)]
mod tests;
mod ubiquitous;
mod work;

pub use analysis::{Analysis, AnalysisOptions};
pub use chunks::{Chunk, ChunkBuilder, ChunkList, common_bytes};
pub use clusters::{Cluster, Shape};
pub use collection::{Collection, CollectionWriter};
pub use error::GraphError;
pub use gather::{Gathered, gather};
pub use identical::IdenticalSet;
pub use link::{FileNode, Link};
pub use tables::{write_chunks, write_clusters, write_identical, write_pairs};
pub use templates::Templates;
pub use work::Work;

use super::{Damaged, Entry, Likeness, Method, Options, Parametric, Sums, Whole};
use crate::chunk::tttd::Tttd;
use crate::recipe::{put_varint, take_varint};
use std::ffi::OsStr;

/// Default target length of chunks, in bytes. The paper starts with 1,000 for a first analysis and continues with 100.
pub const TARGET_DEFAULT: u32 = 256;

/// The method.
#[derive(Clone, Copy, Debug)]
pub struct ChunkGraph {
    tttd: Tttd,
}

impl ChunkGraph {
    /// Files cut by `tttd`.
    pub fn new(tttd: Tttd) -> ChunkGraph {
        ChunkGraph { tttd }
    }

    /// How files are cut.
    pub fn tttd(&self) -> Tttd {
        self.tttd
    }
}

/// A chunk as an entry of an index: its hash, and its length with its number of repetitions in the file.
impl From<Chunk> for Entry {
    fn from(chunk: Chunk) -> Entry {
        Entry { key: chunk.hash, value: chunk.len.into() }
    }
}

/// Returns the bytes that two files have in common by a chunk, counted as often as both have it; 0 if two chunks only have
/// the same hash.
fn common_of(a: u64, b: u64) -> u64 {
    let ((a_len, a), (b_len, b)) = (len_and_count(a), len_and_count(b));
    if a_len == b_len { a.min(b) * u64::from(a_len) } else { 0 }
}

/// Returns the length of a chunk and how often a file has it, from the value of an entry.
pub(crate) fn len_and_count(value: u64) -> (u32, u64) {
    (value as u32, (value >> 32) + 1)
}

impl Default for ChunkGraph {
    fn default() -> Self {
        let tttd = Tttd::with_target(TARGET_DEFAULT).expect("the default is in range");
        ChunkGraph::new(tttd)
    }
}

impl Parametric for ChunkGraph {
    const KEYS: &'static str = "target=256 is the length of chunks that is aimed at, in bytes: 64 to 1048576; the paper has 100, 1000 and 5000";

    const EXAMPLE: &'static str = "target=256";

    fn with(options: &mut Options) -> Result<ChunkGraph, String> {
        let target = options.parse("target", "a number")?.unwrap_or(TARGET_DEFAULT);
        Tttd::with_target(target).map(ChunkGraph::new).map_err(|e| e.to_string())
    }
}

impl Method for ChunkGraph {
    type Sketch = ChunkList;
    /// Bytes of the file.
    type Head = u64;
    type Builder = ChunkBuilder;
    const NAME: &'static str = "chunk-graph";

    fn parameters(&self) -> String {
        format!("TTTD, chunks of about {} bytes", self.tttd.target())
    }

    fn builder(&self, _name: Option<&OsStr>) -> ChunkBuilder {
        ChunkBuilder::new(self.tttd)
    }

    fn head(&self, sketch: &ChunkList) -> u64 {
        sketch.size()
    }

    fn entries(&self, sketch: &ChunkList) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::with_capacity(sketch.chunks().len());
        for entry in sketch.chunks().iter().map(|&chunk| Entry::from(chunk)) {
            match entries.last_mut().filter(|last| last.key == entry.key) {
                Some(last) => last.value = self.joined(last.value, entry.value),
                None => entries.push(entry),
            }
        }
        entries
    }

    fn encode(&self, size: &u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, *size);
        out
    }

    fn decode(&self, mut bytes: &[u8]) -> Result<u64, Damaged> {
        let size = take_varint(&mut bytes).filter(|_| bytes.is_empty());
        size.ok_or(Damaged { method: Self::NAME, expected: "a size" })
    }

    fn joined(&self, one: u64, other: u64) -> u64 {
        let ((one_len, one), (other_len, other)) = (len_and_count(one), len_and_count(other));
        // The shorter of two chunks with one hash, so that the bytes in common are never overstated.
        (one + other - 1).min(u32::MAX.into()) << 32 | u64::from(one_len.min(other_len))
    }

    fn meet(&self, sums: &mut Sums, a: u64, b: u64) {
        let bytes = common_of(a, b);
        sums.shared += u64::from(bytes > 0);
        sums.a = sums.a.saturating_add(bytes);
    }

    fn likeness(&self, a: &Whole<u64>, b: &Whole<u64>, sums: &Sums) -> Likeness {
        let (common, a_bytes, b_bytes) = (sums.a as f64, a.head as f64, b.head as f64);
        if a.head == 0 || b.head == 0 {
            return Likeness::default();
        }
        Likeness {
            containment: Some(common / a_bytes),
            contained_in: Some(common / b_bytes),
            resemblance: Some(common / (a_bytes + b_bytes - common)),
            distance: None,
        }
    }
}
