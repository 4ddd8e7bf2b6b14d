//! Errors of the machine: the system did not execute a call, which says nothing about the bytes on disk.

use super::DiskFile;
use rustix::io::Errno;
use std::fmt::{self, Display};
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

/// An error of the machine or of permissions. The same call can work later, or as another user: nothing is
/// damaged.
///
/// EIO is not one: a disk reports lost bytes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(Errno);

impl Refusal {
    /// The filesystem is full.
    pub const NO_SPACE: Refusal = Refusal(Errno::NOSPC);

    /// Returns `error` as a refusal; `None` if it can mean damage.
    pub fn of(error: &io::Error) -> Option<Refusal> {
        let by_kind = || match error.kind() {
            io::ErrorKind::OutOfMemory => Some(Errno::NOMEM),
            io::ErrorKind::StorageFull => Some(Errno::NOSPC),
            io::ErrorKind::QuotaExceeded => Some(Errno::DQUOT),
            io::ErrorKind::Interrupted => Some(Errno::INTR),
            io::ErrorKind::PermissionDenied => Some(Errno::ACCESS),
            _ => None,
        };
        Errno::from_io_error(error).or_else(by_kind).and_then(Refusal::of_errno)
    }

    /// Returns `errno` as a refusal; `None` if it can mean damage.
    pub fn of_errno(errno: Errno) -> Option<Refusal> {
        let refusals = [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::INTR,
            Errno::ACCESS,
            Errno::PERM,
            Errno::ROFS,
            // The file was removed or replaced meanwhile, or its handle could not be looked up.
            Errno::STALE,
        ];
        refusals.contains(&errno).then_some(Refusal(errno))
    }

    /// Returns advice.
    pub fn remedy(self) -> &'static str {
        match self.0 {
            Errno::MFILE => "raise the limit of open files: `ulimit -n` in a shell, LimitNOFILE= in a unit",
            Errno::NFILE => "raise the system's limit of open files: `sysctl fs.file-max`",
            Errno::NOMEM => "free memory, or raise the memory limit of this process",
            Errno::NOSPC | Errno::DQUOT => "make room on that filesystem",
            Errno::ACCESS | Errno::PERM => "run this as a user who may read it, or as root",
            Errno::ROFS => "make that filesystem writable",
            _ => "run this again",
        }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        refusal.0.into()
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from(self.0).fmt(f)
    }
}

/// A file that remembers whether the system refused a read, for readers that only report bad bytes.
pub struct Watched<'a> {
    file: &'a dyn DiskFile,
    /// The number of the first refusal; 0 if there was none.
    refused: AtomicI32,
}

impl<'a> Watched<'a> {
    /// Watches reads of `file` from now on.
    pub fn new(file: &'a dyn DiskFile) -> Watched<'a> {
        Watched { file, refused: AtomicI32::new(0) }
    }

    /// Returns the first refusal of a read, if there was one.
    pub fn refusal(&self) -> Option<Refusal> {
        match self.refused.load(Ordering::Relaxed) {
            0 => None,
            errno => Some(Refusal(Errno::from_raw_os_error(errno))),
        }
    }
}

impl DiskFile for Watched<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset).inspect_err(|e| {
            // An interrupted read is tried again.
            if let Some(refusal) = Refusal::of(e).filter(|refusal| refusal.0 != Errno::INTR) {
                let errno = refusal.0.raw_os_error();
                let _ = self.refused.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
            }
        })
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_machine_is_no_damage_and_an_error_of_the_disk_is() {
        let refused = |errno: i32| Refusal::of(&io::Error::from_raw_os_error(errno));
        for (errno, word) in [
            (libc::EMFILE, "ulimit -n"),
            (libc::ENFILE, "fs.file-max"),
            (libc::ENOMEM, "memory"),
            (libc::ENOSPC, "room"),
            (libc::EDQUOT, "room"),
            (libc::EINTR, "again"),
            (libc::EACCES, "user"),
            (libc::EPERM, "user"),
            (libc::EROFS, "writable"),
            (libc::ESTALE, "again"),
        ] {
            let remedy = refused(errno).unwrap().remedy();
            assert!(remedy.contains(word) && !remedy.contains("repair"), "{errno}: {remedy}");
        }
        for errno in [libc::EIO, libc::ENOENT, libc::EISDIR, libc::ELOOP, libc::EINVAL, libc::EUCLEAN] {
            assert_eq!(refused(errno), None, "{errno}");
        }
        assert_eq!(Refusal::of(&io::ErrorKind::UnexpectedEof.into()), None);
        assert_eq!(Refusal::of(&io::ErrorKind::StorageFull.into()), Some(Refusal::NO_SPACE));
        assert!(refused(libc::EMFILE).unwrap().to_string().contains("Too many open files"));
    }
}
