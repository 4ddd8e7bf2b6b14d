use super::error::RepoError;
use super::layout::LOCK;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The right to use a store, held until dropped. The kernel releases it when the process ends.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the store in `dir`; messages show that directory as `shown`.
    pub(super) fn take(dir: &Path, shown: &Path) -> Result<Lock, RepoError> {
        let path = dir.join(LOCK);
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).mode(0o600);
        let error = |operation, e: std::io::Error| RepoError::io(operation, &shown.join(LOCK), e);
        let (mut file, writable) = match open.open(&path) {
            Ok(file) => (file, true),
            // On a read-only filesystem the lock still keeps other local processes out.
            Err(e) if e.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
                let file = File::open(&path).or_else(|_| File::open(dir)).map_err(|e| error("open", e))?;
                (file, false)
            }
            Err(e) => return Err(error("open", e)),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                let holder = match text.trim().parse::<u32>() {
                    Ok(pid) => format!("process {pid}"),
                    Err(_) => "another process".to_owned(),
                };
                return Err(RepoError::Locked { path: shown.to_owned(), holder });
            }
            Err(e) => return Err(error("lock", e.into())),
        }
        if writable {
            // Only for the message above: the kernel knows the holder.
            let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        }
        Ok(Lock { _file: file })
    }
}
