//! The store's interface to the outside world: a disk. One real, one simulated for crash tests.
//!
//! Invariants: the store accesses pack files only through this interface, so that a test can cut short, tear
//! and reorder every step of its I/O (`sim`). Errors are the operating system's.

mod heap;
mod real;
mod refusal;
mod reserve;
#[cfg(test)]
pub mod sim;

pub use heap::Heap;
#[cfg(feature = "cli")]
pub use heap::trim_heap;
pub use real::RealDisk;
pub use refusal::{Refusal, Watched};
pub(crate) use reserve::{Reservation, Reserve};

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Access mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    Write,
    /// A new file, to read and write; an error if the name is taken.
    New,
}

/// A filesystem. Calls may come from many threads.
pub trait Disk: Send + Sync {
    /// Creates a directory and its parents; no error if it exists. Durable after [`Disk::sync_dir`] of each.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Returns the names in a directory, unsorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;

    /// Opens a regular file; anything else is [`io::ErrorKind::IsADirectory`].
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>>;

    /// Removes a name. Open files stay readable.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Renames a file within the filesystem.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Reads some bytes at `offset`; none only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes at `offset`. On an error some of them may have been written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Shortens or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns its length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether it is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Makes its bytes and its length durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Fills the buffer from `offset`, or fails with [`io::ErrorKind::UnexpectedEof`].
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    buffer = &mut buffer[len..];
                    offset += len as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
