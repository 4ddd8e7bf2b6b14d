/// Amount of work of an analysis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Chunks of distinct files, repeats included.
    pub edges: u64,
    /// Distinct chunks.
    pub chunks: u64,
    /// Chunks that two files or more have.
    pub shared_chunks: u64,
    /// Chunks that too many files have.
    pub ubiquitous_chunks: u64,
    /// Sets of files that no chain of chunks connects; 0 if it was not partitioned.
    pub components: u64,
    /// Parts that were compared one after the other.
    pub parts: u64,
    /// Graphs that were in memory, one after another, and passes over parts that did not fit.
    pub blocks: u64,
    /// Pairs of files that share a chunk.
    pub comparisons: u64,
    /// Whether sorting needed the disk.
    pub spilled: bool,
}
