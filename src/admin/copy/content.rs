//! The bytes of one file from any source, without its holes.

use super::source::{Result, Tree};
use crate::backing::proc_path;
use crate::contents::OverlayError;
use crate::tree::StoredContent;
use rustix::fs::{CWD, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BLOCK: usize = 4096;
const WINDOW_BYTES: usize = 1 << 20;

/// The content of a regular file.
pub struct Content<'a> {
    from: From<'a>,
    size: u64,
    room_bytes: u64,
    /// It takes fewer blocks than its length: blocks of zeros are holes unless a source lists them.
    sparse: bool,
}

enum From<'a> {
    File(File, PathBuf),
    Store(StoredContent<'a>),
}

impl<'a> Content<'a> {
    pub(super) fn of(tree: &Tree<'a>, fd: OwnedFd, stat: &Stat, path: &Path) -> Result<Content<'a>> {
        let open = || {
            let open =
                |flags| rustix::fs::openat(CWD, proc_path(&fd), flags | OFlags::CLOEXEC, Mode::empty());
            match open(OFlags::RDONLY | OFlags::NOATIME) {
                Err(Errno::PERM) => open(OFlags::RDONLY),
                other => other,
            }
        };
        if let Some(overlay) = tree.overlay
            && let Some(stored) = overlay.tree.stored_content(&tree.below_root.join(path))?
        {
            let (size, sparse, room_bytes) = (stored.size(), stored.is_sparse(), stored.room_bytes());
            return Ok(Content { from: From::Store(stored), size, room_bytes, sparse });
        }
        let file = File::from(open()?);
        let size = stat.st_size as u64;
        let room_bytes = stat.st_blocks as u64 * 512;
        Ok(Content { from: From::File(file, path.to_owned()), size, room_bytes, sparse: room_bytes < size })
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns its approximate bytes on a disk.
    pub fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// Whether there may be holes.
    pub fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// Passes everything except holes to `take`, in order, each piece with its offset. Fails if the file is
    /// shorter than before.
    pub fn read(&self, take: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        match &self.from {
            From::Store(stored) if self.sparse => {
                stored.read(&mut |at, bytes| without_zeros(at, bytes, take))
            }
            From::Store(stored) => stored.read(take),
            From::File(file, path) => self.read_file(file, path, take),
        }
    }

    fn read_file(
        &self,
        file: &File,
        path: &Path,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = vec![0; WINDOW_BYTES.min(self.size as usize)];
        let mut at = 0;
        while at < self.size {
            let (from, to) = if self.sparse { self.next_data(file, at)? } else { (at, self.size) };
            // A mount does not know the holes of stored files.
            let look = self.sparse && (from, to) == (0, self.size);
            at = from;
            while at < to {
                let part = &mut buffer[..(to - at).min(WINDOW_BYTES as u64) as usize];
                file.read_exact_at(part, at).map_err(|e| OverlayError::io("read", path, e))?;
                match look {
                    true => without_zeros(at, part, take)?,
                    false => take(at, part)?,
                }
                at += part.len() as u64;
            }
        }
        Ok(())
    }

    /// Returns the range of the next data; at the end of the file if there is none.
    fn next_data(&self, file: &File, at: u64) -> Result<(u64, u64)> {
        let from = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(from) => from.min(self.size),
            Err(Errno::NXIO) => return Ok((self.size, self.size)),
            Err(Errno::INVAL) => return Ok((at, self.size)),
            Err(e) => return Err(e.into()),
        };
        let to = rustix::fs::seek(file, SeekFrom::Hole(from)).unwrap_or(self.size);
        Ok((from, to.min(self.size)))
    }
}

/// Passes everything except blocks of zeros, in pieces as long as possible.
fn without_zeros(at: u64, bytes: &[u8], take: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let first = (at.next_multiple_of(BLOCK as u64) - at).min(bytes.len() as u64) as usize;
    let (head, rest) = bytes.split_at(first);
    let mut begin = None;
    let mut offset = 0;
    for block in std::iter::once(head).chain(rest.chunks(BLOCK)) {
        let data = block.iter().any(|&byte| byte != 0);
        match (data, begin) {
            (true, None) => begin = Some(offset),
            (false, Some(from)) => {
                take(at + from as u64, &bytes[from..offset])?;
                begin = None;
            }
            _ => {}
        }
        offset += block.len();
    }
    match begin {
        Some(from) => take(at + from as u64, &bytes[from..]),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_left_out_is_zeros(at in 0u64..10_000, runs in prop::collection::vec((any::<bool>(), 1usize..9_000), 0..8)) {
            let bytes: Vec<u8> = runs.iter().flat_map(|&(data, len)| vec![u8::from(data); len]).collect();
            let mut found = vec![0; bytes.len()];
            let mut end = 0;
            without_zeros(at, &bytes, &mut |from, piece| {
                let from = (from - at) as usize;
                assert!(from >= end && !piece.is_empty());
                end = from + piece.len();
                found[from..end].copy_from_slice(piece);
                Ok(())
            }).unwrap();
            prop_assert_eq!(found, bytes);
        }
    }
}
