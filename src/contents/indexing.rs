//! How much the similarity index has of a content.

/// How much of a file the similarity index has. A larger value includes the smaller ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Indexing {
    /// Nothing: only identical files are found.
    Off,
    /// The ids of its chunks: files that share whole chunks find it.
    Chunks,
    /// All of it: grams of its chunks, or ids of those that do not compress, and its view.
    #[default]
    Full,
}
