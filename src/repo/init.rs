//! Creation of a store.
//!
//! Order: every file is durable before a rename puts `format.toml` in place; without it the store does not
//! exist. The next attempt takes over leftovers of an interrupted one. Leftovers differ from a store that
//! lost a file: they hold only the names of [`layout::beyond_init`] and no pack, and the note in the root
//! exists only next to them, or once the store elsewhere is complete.

use super::error::{MISSING, RepoError};
use super::format::Format;
use super::key::KeyCheck;
use super::layout::{
    self, BACKING, BackPointer, CONFIG, FORMAT, INDEX, KEY, Layout, PACKS, POINTER, Pointer,
};
use super::{CLEAN, INDEX_CACHE_BYTES, guard, trust};
use crate::backing::stub::GuardKey;
use crate::backing::{NOTE, STATE_DIR};
use crate::chunk::ChunkParams;
use crate::config::Config;
use crate::db::{Db, IndexDb, Table};
use crate::id::StoreId;
use rustix::rand::GetRandomFlags;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const NOTE_TEXT: &str = "\
This directory is managed by dedupfs, a deduplicating overlay filesystem.

Files here that are empty (0 bytes) but should not be are kept in the store: the directory .dedupfs next
to this note, or the place that .dedupfs/store.toml names. To see them with their content:

    dedupfs DIR              mounts the overlay over this directory itself
    dedupfs DIR MOUNTPOINT   mounts it somewhere else
    dedupctl export DIR      turns them back into plain files, here

Copy or back up the files from the mounted overlay. A copy of the bare directory must include .dedupfs
and all extended attributes (user.dedupfs): use `cp -a`, `rsync -aX` or `tar --xattrs`.
Do not delete .dedupfs: it holds the only copy of those files.
";

/// Options of a new store.
#[derive(Clone, Debug, Default)]
pub struct InitOptions {
    /// Chunk sizes.
    pub chunk: ChunkParams,
    /// Initial settings.
    pub config: Config,
    /// Creates it even in a guarded directory: a system directory, another user's home, one with mounts
    /// below.
    pub force_root: bool,
    /// The user's `HOME`: a store there gives a warning.
    pub home: Option<PathBuf>,
}

/// Creates the store of `dir`, in `store` or in `dir` itself.
pub(super) fn init(dir: &Path, store: Option<&Path>, options: &InitOptions) -> Result<Layout, RepoError> {
    let root = check_directory(dir, options)?;
    match Layout::of(&root) {
        Ok(Some(Layout { state, .. })) => return Err(RepoError::Exists { path: root, state }),
        Ok(None) => {}
        // Only the pointer to the store was lost; it is written again below.
        Err(RepoError::PointerMissing { .. }) if store.is_some_and(|store| is_store_of(store, &root)) => {}
        Err(e) => return Err(e),
    }
    check_not_nested(&root)?;
    let inside = root.join(STATE_DIR);
    let state = match store {
        Some(store) => prepare_elsewhere(&root, store)?,
        None => inside.clone(),
    };
    guard::warn_of_home(&root, options);
    make_dir(&inside)?;
    let note = || write_durable(&root.join(NOTE), NOTE_TEXT.as_bytes(), 0o644);
    if !layout::exists(&state.join(FORMAT))? {
        if state != inside {
            make_dir(&state)?;
            write_durable(
                &state.join(BACKING),
                to_toml(&BackPointer { root: root.clone() }, &state)?.as_bytes(),
                0o600,
            )?;
        }
        let format = fill(&state, options)?;
        if state == inside {
            note()?;
        }
        write_durable(&state.join(FORMAT), format.to_text().as_bytes(), 0o600)?;
    }
    if state != inside {
        note()?;
        write_durable(
            &inside.join(POINTER),
            to_toml(&Pointer { store: state.clone() }, &inside)?.as_bytes(),
            0o600,
        )?;
    }
    sync_dir(&root)?;
    Ok(Layout { root, state })
}

/// Whether this is the complete store of `root`, elsewhere.
fn is_store_of(store: &Path, root: &Path) -> bool {
    Layout::named(store).is_ok_and(|layout| layout.is_some_and(|layout| layout.root == root))
}

/// Creates all files of a store except `format.toml`.
fn fill(state: &Path, options: &InitOptions) -> Result<Format, RepoError> {
    make_dir(&state.join(PACKS))?;
    let key = GuardKey(random()?);
    write_durable(&state.join(KEY), &key.0, 0o600)?;
    write_durable(&state.join(CONFIG), options.config.to_text().as_bytes(), 0o600)?;
    // The index begins clean: so a missing index later means a lost one.
    let index = state.join(INDEX);
    let part = |e: crate::db::DbError| RepoError::Part {
        path: state.to_owned(),
        part: "the index",
        reason: e.to_string(),
    };
    let db = IndexDb::open(&index, INDEX_CACHE_BYTES).map_err(part)?;
    db.put(Table::Meta, CLEAN, &[1]).map_err(part)?;
    // With an empty history.
    crate::history::begin(&db).map_err(part)?;
    db.flush().map_err(part)?;
    drop(db);
    let key_check = Some(KeyCheck::of(&key));
    Ok(Format { id: StoreId(random()?), key_check, chunk: options.chunk })
}

/// Returns the canonical path of `dir` if it can be overlaid.
pub(super) fn check_directory(dir: &Path, options: &InitOptions) -> Result<PathBuf, RepoError> {
    let unsuitable =
        |expected, found: String| RepoError::Unsuitable { path: dir.to_owned(), expected, found };
    let root = dir.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => unsuitable("a directory", MISSING.to_owned()),
        _ => RepoError::io("find", dir, e),
    })?;
    let stat = root.metadata().map_err(|e| RepoError::io("look at", dir, e))?;
    if !stat.is_dir() {
        return Err(unsuitable("a directory", "a file".to_owned()));
    }
    root.read_dir().map_err(|e| RepoError::io("read directory", dir, e))?;
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(&root, access).map_err(|e| RepoError::io("write to directory", dir, e))?;
    if root.parent().is_none() {
        return Err(unsuitable("a directory below /", "the root of the whole system".to_owned()));
    }
    guard::check(&root, options)?;
    Ok(root)
}

/// Fails for a path inside an overlay or a store.
fn check_not_nested(path: &Path) -> Result<(), RepoError> {
    for dir in path.ancestors() {
        let format = dir.join(FORMAT);
        let store_itself =
            layout::exists(&format)? && layout::exists(&dir.join(PACKS))? && trust::counts(dir, &format)?;
        let around = dir != path && trust::counts(dir, &dir.join(STATE_DIR))? && Layout::of(dir)?.is_some();
        if store_itself || around {
            return Err(RepoError::Nested { path: path.to_owned(), outer: dir.to_owned() });
        }
    }
    Ok(())
}

/// Checks the place of a store outside its directory, and returns its canonical path.
fn prepare_elsewhere(root: &Path, store: &Path) -> Result<PathBuf, RepoError> {
    let parent = match store.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let state = match store.canonicalize() {
        Ok(state) => state,
        Err(_) => {
            let parent = parent.canonicalize().map_err(|e| RepoError::io("find", parent, e))?;
            parent.join(store.file_name().unwrap_or(STATE_DIR.as_ref()))
        }
    };
    let unsuitable = |expected, found: String| RepoError::Unsuitable { path: state.clone(), expected, found };
    if state.starts_with(root) || root.starts_with(&state) {
        return Err(unsuitable(
            "a store outside the directory it is for",
            format!("{} and it overlap", root.display()),
        ));
    }
    if layout::exists(&state.join(FORMAT))? {
        let owner: Option<BackPointer> = layout::read_toml(&state.join(BACKING))?;
        if owner.is_none_or(|owner| owner.root != root) {
            return Err(unsuitable("an empty or new directory", "the store of another directory".to_owned()));
        }
        return Ok(state);
    }
    check_not_nested(&state)?;
    // A store that lost its format.toml is reported as such; anything else is in the way.
    if layout::exists(&state.join(BACKING))? {
        layout::check_never_whole(&state)?;
    }
    if let Some(name) = layout::beyond_init(&state)?.first() {
        return Err(unsuitable("an empty or new directory", format!("{name:?} in it")));
    }
    Ok(state)
}

fn make_dir(path: &Path) -> Result<(), RepoError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(e) => return Err(RepoError::io("make directory", path, e)),
    }
    let stat = path.metadata().map_err(|e| RepoError::io("look at", path, e))?;
    if stat.uid() != rustix::process::geteuid().as_raw() && !rustix::process::geteuid().is_root() {
        let found = format!("one of user {}", stat.uid());
        return Err(RepoError::Unsuitable { path: path.to_owned(), expected: "a directory of ours", found });
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
        .map_err(|e| RepoError::io("chmod", path, e))
}

fn random<const N: usize>() -> Result<[u8; N], RepoError> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty());
    match filled {
        Ok(len) if len == N => Ok(bytes),
        Ok(_) => Err(RepoError::io(
            "read",
            Path::new("random numbers"),
            io::Error::from(io::ErrorKind::UnexpectedEof),
        )),
        Err(e) => Err(RepoError::io("read", Path::new("random numbers"), e)),
    }
}

fn to_toml(value: &impl serde::Serialize, path: &Path) -> Result<String, RepoError> {
    toml::to_string(value).map_err(|e| RepoError::form(path, format!("its path cannot be written down: {e}")))
}

/// Writes a file atomically and durably.
pub(super) fn write_durable(path: &Path, bytes: &[u8], mode: u32) -> Result<(), RepoError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let temporary = Path::new(&name);
    let write = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(temporary)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(temporary, path)
    };
    write().map_err(|e| RepoError::io("write", path, e))?;
    path.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(path: &Path) -> Result<(), RepoError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(|e| RepoError::io("fsync directory", path, e))
}
