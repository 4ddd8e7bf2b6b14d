//! Location of a store: from a directory to its state directory and back.
//!
//! The state directory is `DIR/.dedupfs`, unless that holds `store.toml`, which points elsewhere. A store
//! elsewhere holds `backing.toml`, which points back. Nothing here changes anything.

use super::error::RepoError;
use super::trust;
use crate::backing::{NOTE, STATE_DIR};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

pub(super) const FORMAT: &str = "format.toml";
pub(super) const KEY: &str = "key";
pub(super) const CONFIG: &str = "config.toml";
pub(super) const LOCK: &str = "lock";
pub(super) const INDEX: &str = "index";
pub(super) const PACKS: &str = "packs";
pub(super) const EXTENTS: &str = "extents";
/// In `DIR/.dedupfs`: points to a store elsewhere.
pub(super) const POINTER: &str = "store.toml";
/// In a store elsewhere: points back to its directory.
pub(super) const BACKING: &str = "backing.toml";
/// In `DIR/.dedupfs`: the store is being removed.
pub(super) const REMOVING: &str = "removing.toml";
/// In the state directory during a mount: how to reach the daemon.
pub const DAEMON: &str = "daemon.json";
/// In the state directory: log of a background daemon.
pub const LOG: &str = "dedupfs.log";

/// The two directories of an overlay. Both paths are absolute and free of symlinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The backing directory.
    pub root: PathBuf,
    /// The directory that holds the store's files.
    pub state: PathBuf,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Pointer {
    pub store: PathBuf,
}

#[derive(Serialize, Deserialize)]
pub(super) struct BackPointer {
    pub root: PathBuf,
}

impl Layout {
    /// Returns the store of directory `dir`; `None` if it has none, or only leftovers of an interrupted
    /// `init`. Errors: [`RepoError::Incomplete`], [`RepoError::PointerMissing`] and [`RepoError::StoreAway`]
    /// if there was a store, [`RepoError::Removing`] if it is being removed.
    pub fn of(dir: &Path) -> Result<Option<Layout>, RepoError> {
        let root = dir.canonicalize().map_err(|e| RepoError::io("find", dir, e))?;
        let state = root.join(STATE_DIR);
        super::removal::check_stays(&root)?;
        if exists(&state.join(FORMAT))? {
            return Ok(Some(Layout { root, state }));
        }
        let pointer = state.join(POINTER);
        let Some(Pointer { store }) = read_toml(&pointer)? else {
            check_never_whole(&state)?;
            // `init` writes the note next to a store's directories, or once the store elsewhere is complete.
            if exists(&root.join(NOTE))? && exists(&state)? && !exists(&state.join(PACKS))? {
                return Err(RepoError::PointerMissing { path: pointer, root });
            }
            return Ok(None);
        };
        if !exists(&store.join(FORMAT))? {
            check_never_whole(&store)?;
            return Err(RepoError::StoreAway { path: pointer, store });
        }
        Ok(Some(Layout { root, state: store }))
    }

    /// Returns the store that the pointer in `inside` names; `inside` is a `.dedupfs` by any path. `None`
    /// without a pointer.
    pub fn store_elsewhere(inside: &Path) -> Result<Option<PathBuf>, RepoError> {
        Ok(read_toml(&inside.join(POINTER))?.map(|Pointer { store }| store))
    }

    /// Returns the store whose overlay contains `path`, which may be a file or the overlay's root. Skips
    /// other users' stores in shared directories (`trust.rs`).
    pub fn around(path: &Path) -> Result<Option<Layout>, RepoError> {
        let path = path.canonicalize().map_err(|e| RepoError::io("find", path, e))?;
        for dir in path.ancestors() {
            // A path inside the state directory belongs to the overlay too.
            if trust::counts(dir, &dir.join(STATE_DIR))?
                && let Some(layout) = Layout::of(dir)?
            {
                return Ok(Some(layout));
            }
        }
        Ok(None)
    }

    /// Returns the store that a user named: the state directory itself, or a directory that has one.
    pub fn named(store: &Path) -> Result<Option<Layout>, RepoError> {
        let state = store.canonicalize().map_err(|e| RepoError::io("find", store, e))?;
        let inside = state.file_name().is_some_and(|name| name == STATE_DIR);
        if !exists(&state.join(FORMAT))? {
            if inside || exists(&state.join(BACKING))? {
                check_never_whole(&state)?;
            }
            return Layout::of(&state);
        }
        if let Some(BackPointer { root }) = read_toml(&state.join(BACKING))? {
            return Ok(Some(Layout { root, state }));
        }
        match state.parent() {
            Some(root) if inside => Ok(Some(Layout { root: root.to_owned(), state: state.clone() })),
            _ => {
                Err(RepoError::form(&state.join(BACKING), "missing, so it is not known whose store this is"))
            }
        }
    }

    /// Returns the path of a file in the state directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }
}

/// Lists names in a state directory without [`FORMAT`] that an interrupted `init` would not leave. Empty if
/// there is no directory.
pub(super) fn beyond_init(state: &Path) -> Result<Vec<OsString>, RepoError> {
    let entries = match state.read_dir() {
        Ok(entries) => entries,
        Err(e) if is_absence(&e) => return Ok(Vec::new()),
        Err(e) => return Err(RepoError::io("read directory", state, e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| RepoError::io("read directory", state, e))?.file_name();
        let of_init = [KEY, CONFIG, INDEX, PACKS, BACKING].iter().any(|ours| name == *ours);
        if !of_init && !name.as_encoded_bytes().ends_with(b".new") {
            names.push(name);
        }
    }
    if state.join(PACKS).read_dir().is_ok_and(|mut packs| packs.next().is_some()) {
        names.push(PACKS.into());
    }
    names.sort();
    Ok(names)
}

/// Fails if a state directory without [`FORMAT`] holds files that only a complete store has.
pub(super) fn check_never_whole(state: &Path) -> Result<(), RepoError> {
    let names = beyond_init(state)?;
    if names.is_empty() {
        return Ok(());
    }
    let mut found: Vec<_> = names.iter().take(4).map(|name| name.display().to_string()).collect();
    if names.len() > found.len() {
        found.push(format!("{} more", names.len() - found.len()));
    }
    Err(RepoError::Incomplete { path: state.join(FORMAT), found: found.join(", ") })
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub(super) fn exists(path: &Path) -> Result<bool, RepoError> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if is_absence(&e) => Ok(false),
        Err(e) => Err(RepoError::io("look at", path, e)),
    }
}

pub(super) fn read_text(path: &Path) -> Result<Option<String>, RepoError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if is_absence(&e) => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            Err(RepoError::form(path, "expected text, found bytes that are not UTF-8"))
        }
        Err(e) => Err(RepoError::io("read", path, e)),
    }
}

pub(super) fn read_toml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, RepoError> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    let value = toml::from_str(&text).map_err(|e| RepoError::form(path, e.to_string().trim_end()))?;
    Ok(Some(value))
}
