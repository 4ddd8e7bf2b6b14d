//! Reasons why a step is not done.

use crate::sync::error::{self, SyncError};
use rustix::io::Errno;

/// The reason why a step was not done.
pub(super) enum Skip {
    /// The step found another entry than was examined.
    Changed,
    /// The step is impossible, and the reason for the user.
    Because(String),
    /// The sync cannot continue.
    Fatal(SyncError),
}

impl From<SyncError> for Skip {
    fn from(e: SyncError) -> Skip {
        Skip::Fatal(e)
    }
}

pub(super) type Step = Result<(), Skip>;

pub(super) fn changed() -> Skip {
    Skip::Changed
}

/// Classifies an error on one path: it concerns that path only, except a full or broken disk, which concerns all.
pub(super) fn refused(path: &[u8], operation: &'static str) -> impl FnOnce(Errno) -> Skip {
    let path = path.to_vec();
    move |e| match e {
        Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS => Skip::Fatal(error::on(operation, &path, e)),
        Errno::NOENT | Errno::EXIST | Errno::NOTDIR | Errno::LOOP | Errno::NOTEMPTY => changed(),
        e => Skip::Because(format!("{operation}: {e}; {}", remedy(e))),
    }
}

/// Returns a remedy for the user if the system refuses one path.
fn remedy(e: Errno) -> &'static str {
    match e {
        Errno::NAMETOOLONG => "give it a shorter name, or add it to .dedupfsignore",
        Errno::ILSEQ | Errno::INVAL => {
            "its filesystem cannot hold this name: rename it, or add it to .dedupfsignore"
        }
        Errno::ACCESS | Errno::PERM => "give this user the right to change it",
        Errno::FBIG => "its filesystem cannot hold a file of this size",
        _ => "run the sync again",
    }
}
