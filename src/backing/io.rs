//! Reads and writes that go on after the system did only a part.

use crate::contents::error::Result;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Writes all of `data`, or as much as there is room for; an error only if that is nothing.
pub(crate) fn write_full(file: &File, data: &[u8], offset: u64) -> Result<usize> {
    let mut len = 0;
    while len < data.len() {
        match file.write_at(&data[len..], offset + len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) if len > 0 => break,
            Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO).into()),
        }
    }
    Ok(len)
}

/// Reads until `buffer` is full or the file ends: a short read in the middle is not the end.
pub(crate) fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], offset + len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO).into()),
        }
    }
    Ok(len)
}
