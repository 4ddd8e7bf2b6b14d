//! A regular file as a source of bytes to compare.

use super::io::read_full;
use super::stub;
use crate::contents::error::{OverlayError, Result};
use crate::similarity::exact::Source;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A plain file, to be compared.
pub(crate) struct Plain(pub(crate) File, pub(crate) u64);

impl Plain {
    /// Opens a regular file anywhere, as [`open_regular`] does.
    pub(crate) fn open(path: &Path) -> Result<Plain> {
        let file = open_regular(path)?;
        let len = file.metadata().map_err(|e| OverlayError::io("open", path, e))?.len();
        Ok(Plain(file, len))
    }
}

/// Opens a regular file anywhere. Never waits for the other end of a pipe, and opens no device.
///
/// Fails with [`OverlayError::Unreadable`] if the file's bytes are in the store of an overlay: then the file itself is empty.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let failed = |e| OverlayError::io("open", path, e);
    let expected = || failed(io::Error::other("expected a regular file"));
    // Opening a device may already do something.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(expected());
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(expected());
    }
    let mut record = [0; stub::RECORD_LEN];
    match rustix::fs::fgetxattr(&file, stub::XATTR, &mut record[..]) {
        Ok(len) if !stub::says_plain(&record[..len]) => {
            let reason = "is a stub: its bytes are in the store of an overlay that is not mounted; mount the overlay \
                and name the file below the mount point";
            Err(OverlayError::Unreadable { path: path.to_owned(), reason: reason.to_owned() })
        }
        _ => Ok(file),
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
