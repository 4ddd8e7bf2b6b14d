use crate::contents::OverlayError;
use crate::convert::snapshots_fill_disk;
use crate::db::DbError;
use crate::history::HistoryError;
use crate::repo::{Repo, RepoError};
use crate::store::StoreError;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Why an action failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The overlay.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The history.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A file of the state directory.
    #[error(transparent)]
    Repo(#[from] RepoError),
    /// The request is impossible.
    #[error("{message}")]
    Refused {
        /// The problem.
        message: String,
        /// Advice.
        hint: String,
    },
    /// Only a daemon can do this.
    #[error("{0}: nothing is mounted, so there is nothing to unmount")]
    NotMounted(PathBuf),
    /// The caller no longer waits.
    #[error("interrupted")]
    Interrupted,
}

impl AdminError {
    pub(super) fn refused(message: String, hint: String) -> AdminError {
        AdminError::Refused { message, hint }
    }

    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            AdminError::Refused { hint, .. } => return Some(hint.clone()),
            AdminError::Repo(error) => return error.hint(),
            _ if self.is_full() => return Some(ROOM_HINT.to_owned()),
            _ => {}
        }
        let error = match self {
            AdminError::Overlay(error) | AdminError::History(HistoryError::Overlay(error)) => error,
            AdminError::History(error) => return history_hint(error).map(str::to_owned),
            AdminError::Store(error) => return error.refusal().map(|refusal| refusal.remedy().to_owned()),
            _ => return None,
        };
        if let OverlayError::Unsure { .. } = error {
            let hint = "`dedupctl check` lists the damage; restore or remove that file (or snapshot; versions: see [history] in \
                 config.toml), then run gc again";
            return Some(hint.to_owned());
        }
        let kind = match error {
            OverlayError::Io { source, .. } => source.kind(),
            OverlayError::Os(errno) => errno.kind(),
            _ => return error.refusal().map(|refusal| refusal.remedy().to_owned()),
        };
        match kind {
            ErrorKind::PermissionDenied => Some(
                "the user of the store has to be allowed to read it: see `ls -l`, or use root".to_owned(),
            ),
            ErrorKind::NotFound => Some("give a path that exists".to_owned()),
            _ => error.refusal().map(|refusal| refusal.remedy().to_owned()),
        }
    }
}

/// Returns advice on an error of an action on `repo`: like [`AdminError::hint`]; for a full disk also the
/// reason.
pub fn hint(repo: &Repo, error: &AdminError) -> Option<String> {
    let bytes = repo.overlay().converter.bytes_of_filling_snapshots().filter(|_| error.is_full());
    bytes.map_or_else(|| error.hint(), |bytes| Some(snapshots_fill_disk(&format!("{bytes} bytes"))))
}

/// Advice for a full disk. Stubs take no space there.
const ROOM_HINT: &str = "make room on that filesystem, outside the mount or by removing files that are not stored yet, and run \
                         it again; `dedupctl status` says what snapshots with a name take, which `dedupctl snapshot remove` \
                         and then `dedupctl gc` give back. Without a mount `dedupctl gc` needs no free space";

impl AdminError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        let overlay = match self {
            AdminError::Overlay(error) | AdminError::History(HistoryError::Overlay(error)) => Some(error),
            _ => None,
        };
        let store = match (self, overlay) {
            (AdminError::Store(error) | AdminError::History(HistoryError::Store(error)), _)
            | (_, Some(OverlayError::Store(error))) => Some(error),
            _ => None,
        };
        let db = match (self, overlay, store) {
            (AdminError::History(HistoryError::Db(error)), ..)
            | (_, Some(OverlayError::Db(error)), _)
            | (.., Some(StoreError::Db(error))) => Some(error),
            _ => None,
        };
        matches!(store, Some(StoreError::Full { .. })) || matches!(db, Some(DbError::Full { .. }))
    }
}

fn history_hint(error: &HistoryError) -> Option<&'static str> {
    match error {
        HistoryError::NoVersion { .. } | HistoryError::GivenUp { .. } => {
            Some("`dedupctl log FILE` lists the versions that there are")
        }
        HistoryError::NoSnapshot(_) | HistoryError::Ambiguous(_) | HistoryError::NotInSnapshot { .. } => {
            Some(
                "`dedupctl snapshot list` shows the snapshots, and `snapshot show ID [PATH]` the files in one",
            )
        }
        HistoryError::Name { .. } => {
            Some("give it another name, or none: then the rules say how long it is kept")
        }
        HistoryError::Form { .. } => Some("use the version of dedupfs that wrote it, or a later one"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_the_disk_full_is_told_what_to_do() {
        let path = || PathBuf::from("/data");
        let store = || OverlayError::Store(StoreError::Full { path: path() });
        let db = || StoreError::Db(DbError::Full { path: path() });
        let full = [
            AdminError::Store(db()),
            AdminError::Overlay(store()),
            AdminError::Overlay(OverlayError::Store(db())),
            AdminError::History(HistoryError::Overlay(store())),
            AdminError::History(HistoryError::Db(DbError::Full { path: path() })),
        ];
        for error in full {
            assert!(error.hint().unwrap().starts_with("make room"), "{error:?}");
        }
        assert_eq!(AdminError::Overlay(OverlayError::Store(StoreError::Failed)).hint(), None);
    }
}
