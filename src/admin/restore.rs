//! Restoring a version of a file, in place or elsewhere.
//!
//! In place: the current content becomes a version first -> a new file with the old content, durable, in the
//! same directory -> renamed over it. So one of the two is there at any time. The rename goes through the
//! mount if there is one, so that the kernel knows of it.

use super::text::{self, shown};
use super::tree::Tree;
use super::{AdminError, Context, Progress, Report, catch_up};
use crate::backing::types::Kind;
use crate::contents::OverlayError;
use crate::history::HistoryError;
use crate::id::RecipeId;
use crate::overlay::{Committed, Held, Meta, write_file};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The version to restore, and the target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RestoreRequest {
    /// The file below the root, which may be removed.
    #[serde(with = "text")]
    pub path: PathBuf,
    /// The version; by default the last.
    pub n: Option<u64>,
    /// An absolute path to write to, instead of the file's own.
    pub to: Option<To>,
}

/// An absolute path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct To(#[serde(with = "text")] pub PathBuf);

/// The restored version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// The file, below the root.
    pub path: String,
    /// Its number.
    pub n: u64,
    /// Its present path.
    pub to: String,
    /// Its length in bytes.
    pub bytes: u64,
}

pub(super) fn restore(
    context: Context<'_>,
    request: &RestoreRequest,
    report: Report<'_>,
) -> Result<RestoreReport, AdminError> {
    let repo = context.repo;
    catch_up(repo, report)?;
    let history = repo.history();
    let n = match request.n {
        Some(n) => n,
        None => {
            let versions = history.versions(&request.path)?;
            let last = versions.iter().rev().find(|listed| listed.version.kept);
            last.map(|listed| listed.n).ok_or(HistoryError::NoVersion { path: request.path.clone(), n: 1 })?
        }
    };
    let version = history.version(&request.path, n)?.version;
    let to = match &request.to {
        Some(To(to)) => {
            let (tree, at) = Tree::around(to)?;
            write_out(context, &tree, &at, version.recipe, &version.meta)?;
            shown(to)
        }
        None => {
            report(Progress::files("restoring", 0, 1));
            if !repo
                .overlay()
                .settle(&mut |pending| report(Progress::files("settling", 0, pending as u64)))?
            {
                return Err(AdminError::Interrupted);
            }
            put_back(context, &request.path, version.recipe, &version.meta)?;
            history.flush()?;
            shown(&request.path)
        }
    };
    Ok(RestoreReport { path: shown(&request.path), n, to, bytes: version.size })
}

/// Writes a content to a new file `at` in `tree`.
pub(super) fn write_out(
    context: Context<'_>,
    tree: &Tree,
    at: &Path,
    recipe: RecipeId,
    meta: &Meta,
) -> Result<(), AdminError> {
    let store = context.repo.overlay().store();
    let recipe = store.recipe(&recipe)?;
    let file = tree.create(at).map_err(|e| match e {
        Errno::EXIST => exists(&tree.shown(at)),
        e => tree.error("create", at, e).into(),
    })?;
    if let Err(e) = write_file(store, &file, &recipe, meta) {
        let _ = tree.remove(at, false);
        return Err(e.into());
    }
    Ok(tree.sync_dir_of(at).map_err(|e| tree.error("fsync the directory of", at, e))?)
}

/// Returns the error for a target that exists: nothing may be replaced.
pub(super) fn exists(path: &Path) -> AdminError {
    AdminError::refused(
        format!("{} exists", path.display()),
        "name a path that does not exist, or remove that one".to_owned(),
    )
}

/// Puts a content in the place of `path` below the root; the current content becomes a version. Earlier
/// closed files must be settled.
pub(super) fn put_back(
    context: Context<'_>,
    path: &Path,
    recipe: RecipeId,
    meta: &Meta,
) -> Result<(), AdminError> {
    let overlay = context.repo.overlay();
    if overlay.read_only() {
        return Err(OverlayError::ReadOnly.into());
    }
    let target = |reason: &str| HistoryError::Target { path: path.to_owned(), reason: reason.to_owned() };
    // Its chunks must not be collected until it is there.
    let _pin = overlay.store().pin();
    let size = overlay.store().recipe(&recipe)?.size();
    keep_present(context, path)?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let tree = Tree::of(context)?;
    tree.make_dirs(dir)?;
    let installed = overlay.install(dir, path, recipe, meta)?;
    if let Err(e) = tree.replace(&installed, path) {
        overlay.remove_installed(&installed);
        return Err(target(&format!("it could not be put in its place: {e}")).into());
    }
    if let Some(file) = overlay.file_at(path)? {
        let meta = meta.clone();
        context.repo.history().add_version(Committed {
            paths: vec![path.to_owned()],
            file,
            recipe,
            size,
            meta,
        });
    }
    Ok(())
}

/// Makes the content of `path` a version, if it is a file without one.
pub(super) fn keep_present(context: Context<'_>, path: &Path) -> Result<(), AdminError> {
    let (overlay, history) = (context.repo.overlay(), context.repo.history());
    let target = |reason: &str| HistoryError::Target { path: path.to_owned(), reason: reason.to_owned() };
    let Some(met) = overlay.snapshot_at(path)? else { return Ok(()) };
    if met.kind != Kind::File {
        return Err(target("a directory or another thing that is no regular file is in its place").into());
    }
    let (recipe, size) = match met.held {
        Held::Empty => return Ok(()),
        Held::Stored { recipe, size } => (recipe, size),
        Held::Plain => match overlay.store_plain(path)? {
            Some(stored) => stored,
            None => return Err(target("it is being written to").into()),
        },
        Held::Open { .. } => return Err(target("a program has it open for writing").into()),
        Held::Unknown(reason) => return Err(target(&reason).into()),
    };
    let last = history.versions(path)?.pop();
    if last.is_none_or(|last| last.version.recipe != recipe || !last.version.kept) {
        history.add_version(Committed {
            paths: vec![path.to_owned()],
            file: met.file,
            recipe,
            size,
            meta: met.meta,
        });
        // Before it is replaced.
        history.flush()?;
    }
    Ok(())
}
