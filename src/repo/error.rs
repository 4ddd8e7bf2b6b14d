use crate::env::Refusal;
use std::io;
use std::path::{Path, PathBuf};

/// Text for "found" if there is nothing.
pub(super) const MISSING: &str = "nothing of that name";

/// Why a store could not be created or opened. Each error names the object, the expectation and the finding.
#[derive(Debug, thiserror::Error)]
pub enum RepoError {
    /// The directory cannot be overlaid.
    #[error("{path}: expected {expected}, found {found}")]
    Unsuitable {
        /// The path.
        path: PathBuf,
        /// The requirement.
        expected: &'static str,
        /// The finding.
        found: String,
    },
    /// A store in this directory would include other users' data.
    #[error("{path}: no store is made here: {reason}")]
    Guarded {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The directory has no store yet.
    #[error("{path}: no dedupfs store here (there is no .dedupfs)")]
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// The directory already has a store.
    #[error("{path}: there is a store already, in {state}")]
    Exists {
        /// The directory.
        path: PathBuf,
        /// Directory of its store.
        state: PathBuf,
    },
    /// The directory is inside an overlay or a store.
    #[error("{path}: lies inside the overlay or the store {outer}, and overlays cannot be nested")]
    Nested {
        /// The directory.
        path: PathBuf,
        /// Root of the surrounding overlay, or the store.
        outer: PathBuf,
    },
    /// The given store is not the one of this directory.
    #[error("{path}: expected the store {expected}, found {found}")]
    OtherStore {
        /// The directory.
        path: PathBuf,
        /// The requested store.
        expected: PathBuf,
        /// The directory's store.
        found: PathBuf,
    },
    /// A store's directory lacks an essential file.
    #[error("{path}: missing, although there is a store here: {found}")]
    Incomplete {
        /// The missing file.
        path: PathBuf,
        /// Content that an interrupted `init` would not leave.
        found: String,
    },
    /// A store was made elsewhere for the directory, and the pointer to it is gone.
    #[error(
        "{path}: missing: a store was made for this directory, but it is not here, and nothing says where it is"
    )]
    PointerMissing {
        /// The missing file.
        path: PathBuf,
        /// The directory.
        root: PathBuf,
    },
    /// The directory's store elsewhere is not there.
    #[error("{path}: expected a store in {store}, found none")]
    StoreAway {
        /// The file that names it.
        path: PathBuf,
        /// The expected directory.
        store: PathBuf,
    },
    /// The store is being removed, and must not be used.
    #[error("{root}: its store is being removed; all its files are plain")]
    Removing {
        /// The directory.
        root: PathBuf,
    },
    /// Another process has it open.
    #[error("{path}: the store is in use by {holder}")]
    Locked {
        /// Directory of the store.
        path: PathBuf,
        /// `process N`, or `another process`.
        holder: String,
    },
    /// A newer program wrote the store.
    #[error("{path}: store format {found} is newer than {known}, the newest that this program knows")]
    NewerFormat {
        /// The file with the version.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// This program's version.
        known: u64,
    },
    /// A file of the store has an unexpected form.
    #[error("{path}: {reason}")]
    Form {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The operating system returned an error.
    #[error("{operation} {path}: {source}")]
    Io {
        /// The operation.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The store's filesystem has no space for the changes that opening makes.
    #[error("{path}: the disk is full, so the store can only be read")]
    NoRoom {
        /// Directory of the store.
        path: PathBuf,
    },
    /// A part of the store could not be opened.
    #[error("{path}: {part} could not be opened: {reason}")]
    Part {
        /// Directory of the store.
        path: PathBuf,
        /// `the packs`, `the index` and so on.
        part: &'static str,
        /// Its message.
        reason: String,
    },
}

impl RepoError {
    /// Creates the error for a failed `operation` on `path`.
    pub(crate) fn io(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> RepoError {
        RepoError::Io { operation, path: path.to_owned(), source: source.into() }
    }

    pub(super) fn form(path: &Path, reason: impl Into<String>) -> RepoError {
        RepoError::Form { path: path.to_owned(), reason: reason.into() }
    }

    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            RepoError::Unsuitable { path, found, .. } if found == MISSING => {
                format!("make it with `mkdir {}`", path.display())
            }
            RepoError::Unsuitable { .. } => return None,
            RepoError::NoStore { path } => {
                format!("make one with `dedupctl init {0}`, or mount it with `dedupfs {0}`", path.display())
            }
            RepoError::Exists { path, .. } => format!("mount it with `dedupfs {}`", path.display()),
            RepoError::Nested { outer, .. } => {
                format!("use a directory outside {}", outer.display())
            }
            RepoError::OtherStore { .. } => "leave out --store, or give the store that was found".to_owned(),
            RepoError::Removing { root } => {
                format!("finish it with `dedupctl export --remove-store {}`", root.display())
            }
            RepoError::Locked { .. } => {
                "if it is mounted, `dedupctl status` shows where and `dedupctl unmount` ends it; after `umount -l` it ends \
                 when programs have closed their files; otherwise wait for the other command to end"
                    .to_owned()
            }
            RepoError::NewerFormat { .. } => "use a newer dedupfs; nothing was changed".to_owned(),
            RepoError::Form { path, .. } if path.ends_with("config.toml") => {
                "correct the file, or delete it for the defaults".to_owned()
            }
            RepoError::Incomplete { .. } => {
                "bring the file back from a backup of the store, or write it again: docs/format.md says how"
                    .to_owned()
            }
            RepoError::PointerMissing { path, root } => format!(
                "give the store with --store STORE; `dedupctl init {0} --store STORE` writes the file again. If there \
                 never was one, remove the empty directory {1}",
                root.display(),
                path.parent().unwrap_or(path).display()
            ),
            RepoError::Guarded { .. } => {
                "name a directory of your own files; --force-root makes the store here all the same"
                    .to_owned()
            }
            RepoError::StoreAway { store, .. } => {
                format!(
                    "make {} available (is its filesystem mounted?), or correct the path",
                    store.display()
                )
            }
            RepoError::Form { .. } => "bring the file back from a backup of the store".to_owned(),
            RepoError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "run this as the owner of the store, or as root".to_owned()
            }
            RepoError::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                "mount it with `-o ro`, or make the filesystem below writable".to_owned()
            }
            RepoError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "give a path that exists".to_owned()
            }
            RepoError::Io { source, .. } => return Refusal::of(source).map(|refusal| refusal.remedy().to_owned()),
            RepoError::NoRoom { .. } => {
                "run `dedupctl gc`, which needs no free space, or remove something on that filesystem outside the overlay (1 MiB \
                 is enough), and try again"
                    .to_owned()
            }
            RepoError::Part { .. } => {
                "`dedupctl check --rebuild` makes a new index from the packs".to_owned()
            }
        };
        Some(hint)
    }
}
