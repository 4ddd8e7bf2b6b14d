//! Locks between tests that make mount namespaces and tests that unmount.
//!
//! A mount namespace begins with a copy of every mount, those of other tests too. While it lives, `dedupctl unmount` of
//! such a mount rightly says that another namespace holds it. The lock is that of the directory for temporary files, because
//! a test runs in several processes, as several users.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;

/// A line for a shell in a new namespace: detaches the copies of other tests' mounts.
pub const FORGET_OTHERS: &str = "umount -a -l -i -t fuse.dedupfs 2> /dev/null || true";

/// Waits for unmounts under way. Until the result is dropped, this test may have a namespace with copies of mounts.
pub fn making() -> File {
    lock(FlockOperation::LockShared)
}

/// Waits for all namespaces. Until the result is dropped, no test makes one.
pub fn none() -> File {
    lock(FlockOperation::LockExclusive)
}

fn lock(operation: FlockOperation) -> File {
    let dir = File::open(std::env::temp_dir()).unwrap();
    flock(&dir, operation).unwrap();
    dir
}
