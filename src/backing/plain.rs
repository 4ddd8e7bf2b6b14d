//! A regular file as a source of bytes to compare.

use super::io::read_full;
use crate::contents::error::{OverlayError, Result};
use crate::similarity::exact::Source;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;

/// A plain file, to be compared.
pub(crate) struct Plain(pub(crate) File, pub(crate) u64);

impl Plain {
    /// Opens a regular file anywhere.
    pub(crate) fn open(path: &Path) -> Result<Plain> {
        let open = || {
            let file = File::open(path)?;
            let stat = file.metadata()?;
            match stat.is_file() {
                true => Ok(Plain(file, stat.len())),
                false => Err(io::Error::other("not a regular file")),
            }
        };
        open().map_err(|e| OverlayError::io("open", path, e))
    }
}

impl Source for Plain {
    fn len(&self) -> u64 {
        self.1
    }

    fn data_from(&self, offset: u64) -> u64 {
        match rustix::fs::seek(&self.0, SeekFrom::Data(offset)) {
            Ok(data) => data.min(self.1),
            // There is no data from here to the end.
            Err(Errno::NXIO) => self.1,
            Err(_) => offset,
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        read_full(&self.0, buffer, offset).map_err(io::Error::other)
    }
}
