//! Snapshots: create, list, show, compare, restore, remove.
//!
//! Restoring in place: each differing file is replaced as by `restore`, so its content becomes a version.
//! Files that the snapshot lacks stay, unless `delete` is set; then their content becomes a version too.

use super::log::time_text;
use super::restore::{To, exists, keep_present, put_back, write_out};
use super::text::{self, shown};
use super::tree::Tree;
use super::{AdminError, Context, Progress, Report, catch_up};
use crate::backing::types::Kind;
use crate::contents::OverlayError;
use crate::history::{Difference, Entry, HistoryError, How, Node, Snapshot, short_id};
use crate::id::DocumentId;
use crate::maintain::{install_name, set_attributes};
use crate::tree::Meta;
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A request about snapshots.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "snapshot", rename_all = "kebab-case")]
pub enum SnapshotRequest {
    /// Create one.
    Create {
        /// A name that keeps it, or empty.
        name: String,
        /// Walk all metadata, whatever changes are known.
        walk: bool,
    },
    /// List them.
    List,
    /// List a directory of one.
    Show {
        /// Its name, or the first digits of its id.
        id: String,
        /// Below the root.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Compare two, or one with the present tree.
    Diff {
        /// The first.
        a: String,
        /// The second; by default a snapshot that is taken now and removed again.
        b: Option<String>,
    },
    /// Restore from one.
    Restore {
        /// Its name or id.
        id: String,
        /// File or directory below the root; everything if empty.
        #[serde(with = "text")]
        path: PathBuf,
        /// An absolute path that does not exist, to write to instead.
        to: Option<To>,
        /// In place: remove files that the snapshot lacks.
        delete: bool,
    },
    /// Remove one.
    Remove {
        /// Its name or id.
        id: String,
    },
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// The affected snapshots, the oldest first.
    pub snapshots: Vec<SnapshotRow>,
    /// For `show`: the entries of the directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<EntryRow>,
    /// For `diff`: the differences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differences: Option<Vec<DifferenceRow>>,
    /// For `create`: whether all metadata were examined, rather than known changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walked: Option<bool>,
    /// For `create`: files and directories examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<u64>,
    /// For `restore`: the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRow {
    /// The first digits of its id.
    pub id: String,
    /// Its name; if empty, the rules decide how long it is kept.
    pub name: String,
    /// When it was taken (RFC 3339).
    pub time: String,
    /// Whether the daemon took it on schedule; then the schedule decides how long it is kept.
    #[serde(default)]
    pub scheduled: bool,
    /// The machine.
    pub machine: String,
    /// Files in it.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Files that were being written to.
    pub open: u64,
    /// The hash of its root directory.
    pub root: String,
}

/// An entry in a directory of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRow {
    /// Its name.
    pub name: String,
    /// Kind: file, directory, symlink, fifo, socket, char-device or block-device.
    pub kind: String,
    /// Permission bits, octal.
    pub mode: String,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of its content (RFC 3339).
    pub mtime: String,
    /// Length in bytes, of a file.
    pub size: u64,
    /// Content, of a file that is not empty.
    pub recipe: Option<String>,
}

/// A differing path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferenceRow {
    /// Below the root.
    pub path: String,
    /// added, removed, changed or attributes.
    pub how: String,
    /// Length in bytes in the first, if it is a file there.
    pub a_size: Option<u64>,
    /// Length in bytes in the second, if it is a file there.
    pub b_size: Option<u64>,
}

/// Result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The target.
    pub to: String,
    /// Files written.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Files that were already identical.
    pub unchanged: u64,
    /// Files and directories removed.
    pub removed: u64,
    /// Failures, with reasons.
    pub errors: Vec<String>,
}

/// Limit of reported failures.
const ERRORS_MAX: usize = 100;

pub(super) fn snapshot(
    context: Context<'_>,
    request: &SnapshotRequest,
    report: Report<'_>,
) -> Result<SnapshotReport, AdminError> {
    let history = context.repo.history();
    match request {
        SnapshotRequest::Create { name, walk } => create(context, name, *walk, report),
        SnapshotRequest::List => {
            let snapshots = history.snapshots().iter().map(|(id, snapshot)| row(id, snapshot)).collect();
            Ok(SnapshotReport { snapshots, ..SnapshotReport::default() })
        }
        SnapshotRequest::Show { id, path } => {
            let (id, snapshot) = history.find_snapshot(id)?;
            let entry = history.entry_in(&id, &snapshot, path)?;
            let entries = match &entry.node {
                Node::Directory(node) => history.entries_of(node)?,
                _ => vec![entry],
            };
            let entries = entries.iter().map(entry_row).collect();
            Ok(SnapshotReport { snapshots: vec![row(&id, &snapshot)], entries, ..SnapshotReport::default() })
        }
        SnapshotRequest::Diff { a, b } => diff(context, a, b.as_deref(), report),
        SnapshotRequest::Restore { id, path, to, delete } => {
            restore(context, id, path, to.as_ref(), *delete, report)
        }
        SnapshotRequest::Remove { id } => {
            let (id, snapshot) = history.find_snapshot(id)?;
            history.remove_snapshot(&id)?;
            Ok(SnapshotReport { snapshots: vec![row(&id, &snapshot)], ..SnapshotReport::default() })
        }
    }
}

fn create(
    context: Context<'_>,
    name: &str,
    walk: bool,
    report: Report<'_>,
) -> Result<SnapshotReport, AdminError> {
    catch_up(context.repo, report)?;
    let alone = is_alone(context) && !walk;
    let replica = context.repo.id();
    let taken = context
        .repo
        .history()
        .snapshot(name, replica, alone, &mut |done| report(Progress::files("looking at files", done, 0)))?;
    Ok(SnapshotReport {
        snapshots: vec![row(&taken.id, &taken.snapshot)],
        walked: Some(taken.walked),
        looked_at: Some(taken.looked_at),
        ..SnapshotReport::default()
    })
}

/// Whether no other program reaches the bare directory: the overlay is mounted over it.
pub(super) fn is_alone(context: Context<'_>) -> bool {
    context.mountpoint.is_some_and(|mounted| mounted == context.repo.layout().root)
}

fn diff(
    context: Context<'_>,
    a: &str,
    b: Option<&str>,
    report: Report<'_>,
) -> Result<SnapshotReport, AdminError> {
    let history = context.repo.history();
    let (a_id, a) = history.find_snapshot(a)?;
    let (b_id, b, passing) = match b {
        Some(b) => {
            let (id, snapshot) = history.find_snapshot(b)?;
            (id, snapshot, false)
        }
        None => {
            let now = create(context, "", false, report)?;
            let (id, snapshot) = history.find_snapshot(&now.snapshots[0].id)?;
            (id, snapshot, true)
        }
    };
    let mut rows = Vec::new();
    let compared = history.differences(&a.root_node(), &b.root_node(), &mut |found| {
        rows.push(difference_row(&found));
        true
    });
    if passing {
        history.remove_snapshot(&b_id)?;
    }
    compared?;
    let snapshots = vec![row(&a_id, &a), row(&b_id, &b)];
    Ok(SnapshotReport { snapshots, differences: Some(rows), ..SnapshotReport::default() })
}

fn row(id: &DocumentId, snapshot: &Snapshot) -> SnapshotRow {
    SnapshotRow {
        id: short_id(id),
        name: snapshot.name.clone(),
        time: time_text(snapshot.time),
        scheduled: snapshot.is_scheduled(),
        machine: snapshot.machine.clone(),
        files: snapshot.files,
        bytes: snapshot.bytes,
        open: snapshot.open,
        root: snapshot.root_node().to_string(),
    }
}

fn entry_row(entry: &Entry) -> EntryRow {
    let (kind, size, recipe) = match &entry.node {
        Node::File { size, recipe, .. } => ("file", *size, recipe.map(|recipe| recipe.to_string())),
        Node::Directory(_) => ("directory", 0, None),
        Node::Symlink(_) => ("symlink", 0, None),
        Node::Fifo => ("fifo", 0, None),
        Node::Socket => ("socket", 0, None),
        Node::CharDevice(_) => ("char-device", 0, None),
        Node::BlockDevice(_) => ("block-device", 0, None),
    };
    EntryRow {
        name: shown(Path::new(&entry.name)),
        kind: kind.to_owned(),
        mode: format!("{:04o}", entry.meta.mode),
        uid: entry.meta.uid,
        gid: entry.meta.gid,
        mtime: time_text(entry.meta.mtime),
        size,
        recipe,
    }
}

fn difference_row(found: &Difference) -> DifferenceRow {
    let size = |entry: &Option<Entry>| match entry.as_ref().map(|entry| &entry.node) {
        Some(Node::File { size, .. }) => Some(*size),
        _ => None,
    };
    let how = match found.how {
        How::Added => "added",
        How::Removed => "removed",
        How::Changed => "changed",
        How::Attributes => "attributes",
    };
    DifferenceRow {
        path: shown(&found.path),
        how: how.to_owned(),
        a_size: size(&found.old),
        b_size: size(&found.new),
    }
}

fn restore(
    context: Context<'_>,
    id: &str,
    path: &Path,
    to: Option<&To>,
    delete: bool,
    report: Report<'_>,
) -> Result<SnapshotReport, AdminError> {
    let (repo, history) = (context.repo, context.repo.history());
    catch_up(repo, report)?;
    let (id, snapshot) = history.find_snapshot(id)?;
    let entry = history.entry_in(&id, &snapshot, path)?;
    // Its chunks must not be collected meanwhile, even if it is removed.
    let _pin = repo.overlay().store().pin();
    let (tree, base) = match to {
        Some(To(to)) => Tree::around(to)?,
        None => (Tree::of(context)?, path.to_owned()),
    };
    if to.is_none() {
        if repo.overlay().maintenance.read_only() {
            return Err(OverlayError::ReadOnly.into());
        }
        if !repo.overlay().maintenance.settle(&mut |_| report(Progress::files("settling", 0, 0)))? {
            return Err(AdminError::Interrupted);
        }
        if let Some(parent) = base.parent() {
            tree.make_dirs(parent)?;
        }
    } else if tree.stat(&base)?.is_some() {
        return Err(exists(&tree.shown(&base)));
    }
    let mut restorer = Restorer {
        context,
        in_place: to.is_none(),
        delete,
        links: HashMap::new(),
        done: Restored { to: shown(&tree.shown(&base)), ..Restored::default() },
        tree,
        report,
    };
    restorer.entry(&entry, path, &base)?;
    let done = restorer.done;
    history.flush()?;
    Ok(SnapshotReport {
        snapshots: vec![row(&id, &snapshot)],
        restored: Some(done),
        ..SnapshotReport::default()
    })
}

struct Restorer<'a> {
    context: Context<'a>,
    /// The target tree.
    tree: Tree,
    in_place: bool,
    delete: bool,
    /// Files with several names, and the first restored name of each.
    links: HashMap<u64, PathBuf>,
    done: Restored,
    report: Report<'a>,
}

impl Restorer<'_> {
    /// Restores an entry to `base` in the tree, which is `path` below the root if it is in place. Reports
    /// failures and continues.
    fn entry(&mut self, entry: &Entry, path: &Path, base: &Path) -> Result<(), AdminError> {
        if !(self.report)(Progress::files("restoring", self.done.files, 0)) {
            return Err(AdminError::Interrupted);
        }
        let done = match &entry.node {
            Node::Directory(id) => self.directory(id, &entry.meta, path, base),
            Node::File { size, link, .. } => self.file(entry, *size, *link, path, base),
            other => self.special(other, &entry.meta, base),
        };
        match done {
            Err(AdminError::Interrupted) => Err(AdminError::Interrupted),
            Err(e) => {
                if self.done.errors.len() < ERRORS_MAX {
                    self.done.errors.push(e.to_string());
                }
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn directory(
        &mut self,
        id: &DocumentId,
        meta: &Meta,
        path: &Path,
        base: &Path,
    ) -> Result<(), AdminError> {
        match self.tree.kind(base)? {
            Some(FileType::Directory) => {}
            Some(_) => {
                self.clear(path, base)?;
                self.tree.make_dir(base)?;
            }
            None => self.tree.make_dir(base)?,
        }
        let entries = self.context.repo.history().entries_of(id)?;
        if self.in_place && self.delete {
            for name in self.tree.names(base)? {
                let hidden = path.as_os_str().is_empty() && crate::backing::is_hidden(&name);
                let known = entries.binary_search_by(|entry| entry.name.cmp(&name)).is_ok();
                let left_out = !self.context.repo.overlay().tree.keeps_history(&path.join(&name));
                if !known && !hidden && !left_out {
                    self.remove(&path.join(&name), &base.join(&name))?;
                }
            }
        }
        for entry in &entries {
            self.entry(entry, &path.join(&entry.name), &base.join(&entry.name))?;
        }
        // Last: new entries change its times.
        self.furnish(base, meta)
    }

    fn file(
        &mut self,
        entry: &Entry,
        size: u64,
        link: u64,
        path: &Path,
        base: &Path,
    ) -> Result<(), AdminError> {
        let overlay = self.context.repo.overlay();
        let Node::File { recipe, .. } = &entry.node else { return Ok(()) };
        if let Some(first) = self.links.get(&link).filter(|_| link != 0)
            && (!self.in_place || self.tree.stat(base)?.is_none())
        {
            self.tree.link(first, base)?;
            self.done.files += 1;
            return Ok(());
        }
        if link != 0 {
            self.links.insert(link, base.to_owned());
        }
        if self.in_place
            && let Some(met) = overlay.maintenance.snapshot_at(path)?
        {
            if met.kind != Kind::File {
                self.clear(path, base)?;
            } else if met.meta == entry.meta && self.has(path, *recipe)? {
                self.done.unchanged += 1;
                return Ok(());
            }
        }
        match recipe {
            Some(recipe) if self.in_place => put_back(self.context, path, *recipe, &entry.meta)?,
            Some(recipe) => write_out(self.context, &self.tree, base, *recipe, &entry.meta)?,
            None => {
                if self.in_place {
                    keep_present(self.context, path)?;
                }
                self.make_empty(base, &entry.meta)?;
            }
        }
        self.done.files += 1;
        self.done.bytes += size;
        Ok(())
    }

    /// Creates an empty file, in the place of the present one.
    fn make_empty(&self, base: &Path, meta: &Meta) -> Result<(), AdminError> {
        let placed = base.with_file_name(install_name()?);
        self.tree.create(&placed).map_err(|e| self.tree.error("create", base, e))?;
        let made = self.furnish(&placed, meta).and_then(|()| {
            Ok(self.tree.replace(&placed, base).map_err(|e| self.tree.error("rename", base, e))?)
        });
        if made.is_err() {
            let _ = self.tree.remove(&placed, false);
        }
        made
    }

    /// Whether the file at a path has this content.
    fn has(&self, path: &Path, recipe: Option<crate::id::RecipeId>) -> Result<bool, AdminError> {
        use crate::maintain::Held;
        let overlay = self.context.repo.overlay();
        Ok(match overlay.maintenance.snapshot_at(path)?.map(|met| met.held) {
            Some(Held::Empty) => recipe.is_none(),
            Some(Held::Stored { recipe: there, .. }) => recipe == Some(there),
            Some(Held::Plain) => overlay.maintenance.store_plain(path)?.map(|(there, _)| there) == recipe,
            _ => false,
        })
    }

    fn special(&mut self, node: &Node, meta: &Meta, base: &Path) -> Result<(), AdminError> {
        if let Some(there) = self.tree.kind(base)? {
            if let Node::Symlink(target) = node
                && there == FileType::Symlink
                && self.tree.read_link(base)? == *target
            {
                self.done.unchanged += 1;
                return Ok(());
            }
            if matches!(there, FileType::Directory | FileType::RegularFile) {
                let reason = std::io::Error::other("a file or directory is in its place; move it away first");
                return Err(OverlayError::io("create", self.tree.shown(base), reason).into());
            }
            self.tree.remove(base, false)?;
        }
        let make = |kind, number| self.tree.make_node(base, kind, number);
        match node {
            Node::Symlink(target) => self.tree.symlink(target, base)?,
            Node::Fifo => make(FileType::Fifo, 0)?,
            Node::Socket => make(FileType::Socket, 0)?,
            Node::CharDevice(number) => make(FileType::CharacterDevice, *number)?,
            Node::BlockDevice(number) => make(FileType::BlockDevice, *number)?,
            Node::File { .. } | Node::Directory(_) => {}
        }
        self.done.files += 1;
        self.furnish(base, meta)
    }

    /// Applies owner, mode, xattrs and times.
    fn furnish(&self, base: &Path, meta: &Meta) -> Result<(), AdminError> {
        Ok(set_attributes(&self.tree.open_path(base)?, &self.tree.shown(base), meta)?)
    }

    /// Removes an entry of another kind that is in the way. Only on request: it may be large.
    fn clear(&mut self, path: &Path, base: &Path) -> Result<(), AdminError> {
        if !self.delete {
            return Err(HistoryError::Target {
                path: path.to_owned(),
                reason: "something of another kind is in its place: move it away, or use --delete".to_owned(),
            }
            .into());
        }
        self.remove(path, base)
    }

    /// Removes an entry; contents of files become versions first.
    fn remove(&mut self, path: &Path, base: &Path) -> Result<(), AdminError> {
        let there = self.tree.kind(base)?;
        let is_dir = there == Some(FileType::Directory);
        if is_dir {
            for name in self.tree.names(base)? {
                self.remove(&path.join(&name), &base.join(&name))?;
            }
        } else if there == Some(FileType::RegularFile) {
            keep_present(self.context, path)?;
        }
        self.tree.remove(base, is_dir)?;
        self.done.removed += 1;
        Ok(())
    }
}
