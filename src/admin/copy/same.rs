//! Comparison of a copy in a directory with its source, read back from the disk.

use super::{Content, Item, Result, Sink, Step};
use crate::backing::{open_path, proc_path};
use crate::contents::OverlayError;
use rustix::fs::{Advice, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const WINDOW_BYTES: u64 = 1 << 20;

/// Compares files with those of a directory. Skips missing ones: they were reported when they could not be
/// copied.
pub struct SameSink {
    root: OwnedFd,
    shown: PathBuf,
    /// Identical files.
    pub files: u64,
}

impl SameSink {
    /// Creates a comparison with the files in `root`.
    pub fn new(root: &Path) -> Result<SameSink> {
        let fd = open_path(CWD, root.as_os_str()).map_err(|e| OverlayError::io("open directory", root, e))?;
        Ok(SameSink { root: fd, shown: root.to_owned(), files: 0 })
    }
}

/// The copy of one file.
struct Twin {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
}

impl Twin {
    fn read(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        self.buffer.resize(len, 0);
        let read = self.file.read_exact_at(&mut self.buffer, at);
        read.map_err(|e| OverlayError::io("read", &self.path, e))?;
        Ok(&self.buffer)
    }

    fn must_be(&self, same: bool, at: u64) -> Result<()> {
        if same {
            return Ok(());
        }
        let reason = format!("read back, it differs from its source, from byte {at} on");
        Err(OverlayError::Unreadable { path: self.path.clone(), reason })
    }

    fn must_be_zeros(&mut self, mut at: u64, end: u64) -> Result<()> {
        while at < end {
            let len = (end - at).min(WINDOW_BYTES);
            let zeros = self.read(at, len as usize)?.iter().all(|&byte| byte == 0);
            self.must_be(zeros, at)?;
            at += len;
        }
        Ok(())
    }
}

impl Sink for SameSink {
    fn enter(&mut self, _: &Item<'_>) -> Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: &Item<'_>) -> Result<()> {
        Ok(())
    }

    fn file(&mut self, item: &Item<'_>, content: &Content<'_>, step: Step<'_>) -> Result<()> {
        let path = self.shown.join(item.path);
        let error = |e: Errno| OverlayError::io("read", &path, e);
        let fd = match open_path(&self.root, item.path.as_os_str()) {
            Err(Errno::NOENT) => return Ok(()),
            fd => fd.map_err(error)?,
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(CWD, proc_path(&fd), flags, Mode::empty()).map_err(error)?);
        // Otherwise the page cache would answer, not the disk.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        let len = rustix::fs::fstat(&file).map_err(error)?.st_size as u64;
        let mut twin = Twin { file, path, buffer: Vec::new() };
        twin.must_be(len == content.size(), len.min(content.size()))?;
        let mut done = 0;
        content.read(&mut |at, bytes| {
            twin.must_be_zeros(done, at)?;
            let same = twin.read(at, bytes.len())? == bytes;
            twin.must_be(same, at)?;
            done = at + bytes.len() as u64;
            if step(bytes.len() as u64) { Ok(()) } else { Err(Errno::CANCELED.into()) }
        })?;
        twin.must_be_zeros(done, content.size())?;
        self.files += 1;
        Ok(())
    }

    fn link(&mut self, _: &Item<'_>, _: &Path) -> Result<()> {
        Ok(())
    }

    fn special(&mut self, _: &Item<'_>) -> Result<()> {
        Ok(())
    }
}
