//! Contents to read from: targets and bases.

use std::fmt;
use std::io;

/// The number of a base that both sides use, such as its rank in the last common snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseId(pub u64);

impl fmt::Display for BaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A content with random access.
pub trait ReadAt {
    /// Returns its length in bytes.
    fn size(&self) -> u64;

    /// Reads bytes from `offset` into `buf`. Returns how many; 0 only at the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

/// The contents that both sides have.
pub trait Bases {
    /// Opens a base; `None` if no base has that number.
    fn open(&self, base: BaseId) -> io::Result<Option<Box<dyn ReadAt + '_>>>;
}

impl ReadAt for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let len = buf.len().min(self.len() - from);
        buf[..len].copy_from_slice(&self[from..from + len]);
        Ok(len)
    }
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.as_slice().read_at(offset, buf)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buf)
    }
}

/// A file. Its size is read on each call; 0 if that fails.
impl ReadAt for std::fs::File {
    fn size(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buf, offset)
    }
}

/// Bases in memory, numbered by position.
impl<T: AsRef<[u8]>> Bases for &[T] {
    fn open(&self, base: BaseId) -> io::Result<Option<Box<dyn ReadAt + '_>>> {
        let found = usize::try_from(base.0).ok().and_then(|base| self.get(base));
        Ok(found.map(|bytes| Box::new(bytes.as_ref()) as Box<dyn ReadAt + '_>))
    }
}

/// Fills `buf` from `offset` as far as the content goes. Returns how many bytes it read.
pub(super) fn read_full(content: &dyn ReadAt, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match content.read_at(offset + done as u64, &mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n.min(buf.len() - done),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
