//! Tables of the index.

/// A family of keys. The byte is on disk (the first of each key): never reuse one for another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Single values by name: format version, positions, the clean-shutdown mark.
    Meta = b'm',
    /// The store: chunk and recipe ids to pack addresses, as [`super::Tiers`].
    Chunks = b'c',
    /// Similarity: features to the chunks that have them, as [`super::Tiers`].
    Features = b'f',
    /// Similarity: sketched chunk ids to their short numbers, as [`super::Tiers`].
    Sketched = b's',
    /// Similarity: chunk numbers to the contents (recipes) that contain them, as [`super::Runs`].
    Contained = b'r',
    /// Similarity: content (recipe) numbers to facts about the content.
    Contents = b't',
    /// Similarity: recipe ids to content numbers, as [`super::Tiers`].
    Numbered = b'u',
    /// Similarity: chunk numbers to filters of the chunks, as [`super::Runs`].
    Filters = b'g',
    /// Like [`Table::Features`], for views.
    ViewFeatures = b'F',
    /// Like [`Table::Sketched`], for views.
    ViewSketched = b'S',
    /// Like [`Table::Contained`], for views.
    ViewContained = b'R',
    /// Like [`Table::Contents`], for views.
    ViewContents = b'T',
    /// Like [`Table::Numbered`], for views.
    ViewNumbered = b'U',
    /// Like [`Table::Filters`], for views.
    ViewFilters = b'G',
    /// Similarity by other methods: keys of sketches to the contents that have them, as [`super::Runs`].
    MethodKeys = b'k',
    /// Similarity by other methods: content numbers to content ids and sketches.
    MethodSketches = b'x',
    /// Similarity by other methods: content ids to content numbers, as [`super::Runs`].
    MethodNumbered = b'y',
    /// Overlay: file id to size, times and recipe as last indexed.
    Files = b'i',
    /// Overlay: recipe ids to the files with that content, as [`super::Runs`].
    Holders = b'h',
    /// Overlay: inode to the directories that contain it, as [`super::Runs`].
    Parents = b'n',
    /// Overlay: files closed but not yet committed when the program stopped.
    Pending = b'p',
    /// History: batches of events to the documents that hold them, as [`super::Runs`].
    Batches = b'b',
    /// History: hashes of paths to the events that name them, as [`super::Runs`].
    PathEvents = b'v',
    /// History: file ids to the events of their versions, as [`super::Runs`].
    FileEvents = b'w',
    /// History: snapshots by number to their documents, as [`super::Runs`].
    Snapshots = b'z',
    /// History: state of plain files when a snapshot read them, as [`super::Runs`].
    Plain = b'q',
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 26] = [
        Table::Meta,
        Table::Chunks,
        Table::Features,
        Table::Sketched,
        Table::Contained,
        Table::Contents,
        Table::Numbered,
        Table::Filters,
        Table::ViewFeatures,
        Table::ViewSketched,
        Table::ViewContained,
        Table::ViewContents,
        Table::ViewNumbered,
        Table::ViewFilters,
        Table::MethodKeys,
        Table::MethodSketches,
        Table::MethodNumbered,
        Table::Files,
        Table::Holders,
        Table::Parents,
        Table::Pending,
        Table::Batches,
        Table::PathEvents,
        Table::FileEvents,
        Table::Snapshots,
        Table::Plain,
    ];
}
