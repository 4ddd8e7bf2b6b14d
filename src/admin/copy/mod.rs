//! A tree as plain files elsewhere: another directory, or a tar archive. The source is only read.
//!
//! The tree is that of a mount, where all files look plain, or a bare directory, whose stubs the overlay
//! reads. Each entry goes to a [`Sink`] with everything that a filesystem keeps of it: mode, owner, times,
//! xattrs, ACLs (which are xattrs to the kernel), links, holes. Other filesystems mounted in it are not
//! entered.
//!
//! Invariants: a file whose content cannot be read completely is reported, and is not in the copy.
//!
//! Memory: names of the directories on the current path, the path of each file with several names, one piece
//! of content.

mod archive;
mod content;
mod directory;
mod same;
mod sink;
mod source;
mod walk;

pub use archive::TarSink;
pub use content::Content;
pub use directory::DirectorySink;
pub use same::SameSink;
pub use sink::{Failed, Item, Sink, Step, Walked};
pub use source::{Result, Tree};
