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
//! Bytes in common are a lower bound: what lies in chunks that differ anywhere does not count (section 2.3).
//! Templates are chunks that the user has marked; they do not count, and files need not be chunked again for it.
//!
//! As a [`Method`] it compares two files without the rest of the graph: there no chunk is ubiquitous.

mod analysis;
mod chunks;
mod clusters;
mod collection;
mod error;
mod graph;
mod identical;
mod partition;
mod sorter;
mod tables;
mod templates;
#[cfg(test)]
mod tests;

pub use analysis::{Analysis, AnalysisOptions, FileNode, Link, Work};
pub use chunks::{Chunk, ChunkBuilder, ChunkList, common_bytes};
pub use clusters::{Cluster, Shape};
pub use collection::{Collection, CollectionWriter};
pub use error::GraphError;
pub use identical::IdenticalSet;
pub use tables::{write_clusters, write_identical, write_pairs};
pub use templates::Templates;

use super::{Damaged, Likeness, Method};
use crate::chunk::tttd::Tttd;
use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The length of chunks that is aimed at unless said otherwise, in bytes. The paper starts at 1,000 for a first look
/// and goes on with 100.
pub const TARGET_DEFAULT: u32 = 256;

/// The method.
#[derive(Clone, Debug)]
pub struct ChunkGraph {
    tttd: Tttd,
    templates: Arc<Templates>,
}

impl ChunkGraph {
    /// Files cut by `tttd`; chunks among `templates` do not count.
    pub fn new(tttd: Tttd, templates: Templates) -> ChunkGraph {
        ChunkGraph { tttd, templates: Arc::new(templates) }
    }
}

impl Default for ChunkGraph {
    fn default() -> Self {
        let tttd = Tttd::with_target(TARGET_DEFAULT).expect("the default is in range");
        ChunkGraph::new(tttd, Templates::default())
    }
}

impl Method for ChunkGraph {
    type Sketch = ChunkList;
    type Builder = ChunkBuilder;
    const NAME: &'static str = "chunk-graph";

    fn parameters(&self) -> String {
        format!("TTTD, chunks of about {} bytes", self.tttd.target())
    }

    fn builder(&self, _name: Option<&OsStr>) -> ChunkBuilder {
        ChunkBuilder::new(self.tttd)
    }

    fn encode(&self, sketch: &ChunkList) -> Vec<u8> {
        sketch.encode()
    }

    fn decode(&self, bytes: &[u8]) -> Result<ChunkList, Damaged> {
        ChunkList::decode(bytes).map_err(|expected| Damaged { method: Self::NAME, expected })
    }

    fn keys(&self, sketch: &ChunkList) -> Vec<u64> {
        let mut hashes: Vec<u64> = sketch.chunks().iter().map(|chunk| chunk.hash).collect();
        hashes.dedup();
        hashes
    }

    fn look_up(&self, sketch: &ChunkList) -> Vec<RangeInclusive<u64>> {
        let keys = self.keys(sketch).into_iter().filter(|&hash| !self.templates.has(hash));
        keys.map(|hash| hash..=hash).collect()
    }

    fn compare(&self, a: &ChunkList, b: &ChunkList) -> Likeness {
        let (a, b) = (a.payload(&self.templates), b.payload(&self.templates));
        let bytes = |chunks: &[Chunk]| chunks.iter().map(|chunk| u64::from(chunk.len)).sum::<u64>();
        let (common, a_bytes, b_bytes) = (common_bytes(&a, &b) as f64, bytes(&a) as f64, bytes(&b) as f64);
        if a_bytes == 0.0 || b_bytes == 0.0 {
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
