//! A directory as a replica: a mounted overlay. It is accessed through its mount point like by any program, so its
//! files may be plain or stubs, and the daemon manages the store.

use super::adopt;
use super::bases::Base;
use super::content::{Sink, Tag};
use super::device::Device;
use super::error::SyncError;
use super::error::{self, open_root};
use super::group::Groups;
use super::inodes;
use super::memory::Memory;
use super::merge::parse_conflict_name;
use super::old_contents::OldContents;
use super::plan::Op;
use super::proto::Done;
use super::recipes::{CONTENTS_FEW, Recipes};
use super::replica::Replica;
use super::rules::Rules;
use super::scan::Report;
use super::selection::Selection;
use super::since::Since;
use super::staging::{self, Expected, Staging};
use super::tree::{ContentId, Entry, Time, Tree, TreePath, shown, split};
use super::unfit::{self, Lacking, Xattrs};
use super::version::{Dag, Snapshot, SnapshotId};
use crate::beneath::Root;
use crate::id::RecipeId;
use ahead::Ahead;
use basis::Basis;
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// See the module.
pub struct Local<'a> {
    root: Root,
    store: String,
    memory: Memory,
    staging: Staging,
    /// The path of each content of the tree.
    contents: HashMap<ContentId, TreePath>,
    /// Contents of groups that change all the time, as the scan found them.
    kept: BTreeMap<ContentId, File>,
    tree: Tree,
    /// The included entries on the disk, if the tree may have others.
    here: Option<Tree>,
    /// The disk as of the head.
    basis: Option<Basis>,
    /// Whether the disk lacks entries that it should have.
    lacking: bool,
    /// Whether the next tree has contents that do not arrive.
    will_lack: bool,
    /// Number of entries that the selection leaves out.
    omitted: u64,
    /// Whether nothing has changed since the last sync, so that the tree was not read yet.
    unread: bool,
    past: Option<Box<dyn OldContents + 'a>>,
    /// Former contents that this side announced to the peer.
    held: BTreeSet<ContentId>,
    report: Box<Report<'a>>,
    /// Contents that the peer cannot send, and the reasons.
    absent: BTreeMap<ContentId, String>,
    /// Files that could not be read, or not be stored completely, and the reasons.
    troubles: BTreeMap<TreePath, String>,
    /// Messages for the user.
    pub notes: Vec<String>,
    rules: Rules,
    /// The text of `.dedupfsignore`, and of the one in the tree that is to be taken.
    patterns: String,
    left_out: Option<String>,
    /// Times of directories that the peer sent, and directories in which steps changed names.
    their_times: BTreeMap<TreePath, Time>,
    touched: BTreeSet<TreePath>,
    /// Contents that were read before they are sent, and former ones that were read before they are compared.
    ahead: Ahead,
    past_ahead: Ahead,
    /// Recipes of arriving contents.
    recipes: Option<Recipes>,
    /// Contents that are sent from a copy, since their files have changed.
    copied: BTreeSet<ContentId>,
    /// Features of this side for the peer: [`Replica::features`].
    pub features: Vec<String>,
}

impl<'a> Local<'a> {
    /// Opens the directory at `path` with the store `store`; `state` has the memory of its syncs. Ends an interrupted
    /// sync, and scans the directory by `rules`. The guards apply unless `force` is set. With `past`, changed files can
    /// be sent as deltas.
    pub fn open(
        path: &Path,
        state: &Path,
        store: &str,
        rules: &Rules,
        force: bool,
        past: Option<Box<dyn OldContents + 'a>>,
        report: Box<Report<'a>>,
    ) -> Result<Local<'a>, SyncError> {
        let mut local = Local::new(open_root(path)?, Memory::open(state)?, store, past, report);
        local.rules = rules.clone();
        local.staging.direct = local.past.as_ref().and_then(|past| past.below_mount()).map(Arc::new);
        local.recipes = local.past.as_ref().and_then(|past| past.chunk_params()).map(Recipes::new);
        local.staging.recover(&local.root)?;
        local.rescue()?;
        unfit::retry(&local.root, &mut local.memory.unfit);
        let agreed = local.end_what_was_begun()?;
        local.snapshot(agreed.as_ref(), force)?;
        local.set_what_waited()?;
        Ok(local)
    }

    /// Opens the directory for comparison only: changes neither the directory nor the memory. The memory may be
    /// missing.
    pub fn look_at(
        path: &Path,
        state: &Path,
        store: &str,
        rules: &Rules,
        force: bool,
        past: Option<Box<dyn OldContents + 'a>>,
        report: Box<Report<'a>>,
    ) -> Result<Local<'a>, SyncError> {
        let mut local = Local::new(open_root(path)?, Memory::look(state)?, store, past, report);
        local.rules = rules.clone();
        let agreed = match local.memory.taking.take() {
            Some(snapshot) => local.memory.tree(snapshot.id())?,
            None => None,
        };
        local.snapshot(agreed.as_ref(), force)?;
        Ok(local)
    }

    fn new(
        root: Root,
        memory: Memory,
        store: &str,
        past: Option<Box<dyn OldContents + 'a>>,
        report: Box<Report<'a>>,
    ) -> Local<'a> {
        Local {
            root,
            store: store.to_owned(),
            memory,
            staging: Staging::default(),
            contents: HashMap::new(),
            kept: BTreeMap::new(),
            tree: Tree::default(),
            here: None,
            basis: None,
            lacking: false,
            will_lack: false,
            omitted: 0,
            unread: false,
            past,
            held: BTreeSet::new(),
            report,
            absent: BTreeMap::new(),
            troubles: BTreeMap::new(),
            notes: Vec::new(),
            rules: Rules::default(),
            patterns: String::new(),
            left_out: None,
            their_times: BTreeMap::new(),
            touched: BTreeSet::new(),
            ahead: Ahead::default(),
            past_ahead: Ahead::default(),
            recipes: None,
            copied: BTreeSet::new(),
            features: Vec::new(),
        }
    }

    fn last(&self) -> Result<Tree, SyncError> {
        match self.memory.head {
            // If that tree is lost or damaged, the next sync has no base.
            Some(head) => Ok(self.memory.tree(head).ok().flatten().unwrap_or_default()),
            None => Ok(Tree::default()),
        }
    }

    /// Rescues entries that an interrupted sync took out of the tree, or did not put into it yet. An agreed content is
    /// staged again; a content of the last tree is not needed. Any other may be a user's only copy, and is kept.
    fn rescue(&mut self) -> Result<(), SyncError> {
        let swaps = staging::swaps(&self.root)?;
        if swaps.is_empty() {
            return Ok(());
        }
        let agreed = match &self.memory.taking {
            Some(snapshot) => self.memory.tree(snapshot.id())?.unwrap_or_default(),
            None => Tree::default(),
        };
        let (last, has) = (self.last()?, |tree: &Tree, content| {
            tree.entries.values().any(|entry| entry.kind.content() == Some(content))
        });
        for swap in swaps {
            if self.root.list(&swap).is_ok() {
                self.rescue_group(&swap, &|content| has(&agreed, content), &|content| has(&last, content))?;
                continue;
            }
            let Some(content) = staging::hash(&self.root, &swap)? else { continue };
            let (to, flags) = match (has(&agreed, content), has(&last, content)) {
                (true, _) => {
                    self.staging.take_back(&self.root, content, &swap)?;
                    continue;
                }
                (_, true) => continue,
                _ => {
                    let name = format!("recovered-{}", &content.to_string()[..8]);
                    self.notes.push(format!(
                        "{name}: was written while a sync was stopped, and is kept under this name"
                    ));
                    (name.into_bytes(), RenameFlags::NOREPLACE)
                }
            };
            self.root.rename(&swap, &to, flags).map_err(|e| error::on("rename", &swap, e))?;
        }
        Ok(())
    }

    /// Rescues a group that was on its way, in either direction. Keeps it as a whole if it contains a file that
    /// neither tree has.
    fn rescue_group(
        &mut self,
        swap: &TreePath,
        agreed: &dyn Fn(ContentId) -> bool,
        last: &dyn Fn(ContentId) -> bool,
    ) -> Result<(), SyncError> {
        let failed = |e| error::on("rename", swap, e);
        let mut contents = Vec::new();
        for path in staging::files_below(&self.root, swap)? {
            contents.extend(staging::hash(&self.root, &path)?.map(|content| (path, content)));
        }
        if let Some((_, unseen)) = contents.iter().find(|(_, content)| !agreed(*content) && !last(*content)) {
            let name = format!("recovered-{}", &unseen.to_string()[..8]);
            self.notes
                .push(format!("{name}: was written while a sync was stopped, and is kept under this name"));
            return self.root.rename(swap, name.as_bytes(), RenameFlags::NOREPLACE).map_err(failed);
        }
        for (path, content) in contents.iter().filter(|(_, content)| agreed(*content)) {
            // A file with another name is in the tree.
            if self.root.stat(path).map_err(failed)?.is_some_and(|stat| stat.st_nlink == 1) {
                self.staging.take_back(&self.root, *content, path)?;
            }
        }
        self.root.remove_all(swap).map_err(failed)
    }

    /// Completes an interrupted sync. Returns its tree if that is not possible.
    fn end_what_was_begun(&mut self) -> Result<Option<Tree>, SyncError> {
        let Some(snapshot) = self.memory.taking.clone() else { return Ok(None) };
        self.memory.load();
        self.basis = Some(self.basis_of_memory());
        let before = self.last()?;
        let agreed = self.memory.tree(snapshot.id())?;
        let done = match &agreed {
            Some(agreed) => adopt::resume(self, &before, agreed),
            None => Err(SyncError::Changed(String::new())),
        };
        match done {
            Ok(skipped) if skipped.is_empty() => self.commit(&snapshot).map(|()| None),
            // The finished steps count as changes made here.
            Ok(_) | Err(SyncError::Changed(_)) => {
                self.memory.taking = None;
                self.memory.save().map(|()| agreed)
            }
            Err(e) => Err(e),
        }
    }

    fn commit(&mut self, snapshot: &Snapshot) -> Result<(), SyncError> {
        self.note_part_taken(snapshot)?;
        self.recipes.iter().for_each(|recipes| recipes.note(&mut self.memory.cache));
        let head = self.memory.dag.add(snapshot.clone())?;
        let since = self.memory.since.clone();
        self.memory.head = Some(head);
        self.memory.taking = None;
        self.memory.save_cache()?;
        self.memory.save_part()?;
        self.memory.save()?;
        // The steps of this sync are among the changes since then.
        let left_out = self.omitted;
        self.memory.save_since(since.map(|since| Since { head, left_out, ..since }))?;
        self.memory.forget()?;
        self.staging.clear(&self.root)
    }
}

impl Local<'_> {
    /// Remembers xattrs that inodes have no room for; forgets inodes that have all of theirs.
    fn note_unfit(&mut self, unfit: BTreeMap<u64, Option<(Xattrs, Errno)>>) -> Result<(), SyncError> {
        let known = |ino: &u64| self.memory.unfit.contains_key(ino);
        if !unfit.iter().any(|(ino, lacking)| lacking.is_some() || known(ino)) {
            return Ok(());
        }
        let paths: BTreeMap<u64, &TreePath> =
            self.memory.cache.iter().map(|(path, print)| (print.ino, path)).collect();
        for (ino, lacking) in unfit {
            match (lacking, paths.get(&ino)) {
                (Some((xattrs, e)), Some(path)) => {
                    self.troubles.insert((*path).clone(), unfit::reason(&xattrs, Some(e)));
                    self.memory.unfit.insert(ino, Lacking { path: (*path).clone(), xattrs });
                }
                _ => drop(self.memory.unfit.remove(&ino)),
            }
        }
        self.memory.save_unfit()
    }

    /// Waits, after a sync that changed files, until the store has them: so that their next changes can be sent as deltas, even if they
    /// come at once. Without `all`, waits only if few contents arrived, and few files wait.
    pub fn settle(&mut self, all: bool) -> Result<(), SyncError> {
        let few = self.recipes.as_ref().is_none_or(Recipes::are_few);
        let Some(past) = self.past.as_mut().filter(|_| all || few) else { return Ok(()) };
        past.settle((!all).then_some(CONTENTS_FEW))?;
        let mut prints = self.memory.cache.clone();
        self.note_recipes(&mut prints, None);
        self.memory.set_cache(prints);
        self.memory.save_changed_cache()
    }
}

impl Sink for Local<'_> {
    fn begin(&mut self, content: ContentId) -> Result<(), SyncError> {
        self.recipes.iter_mut().for_each(Recipes::begin);
        self.staging.begin(content);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        self.recipes.iter_mut().for_each(|recipes| recipes.write(bytes));
        self.staging.write(&self.root, bytes)
    }

    fn chunk(&mut self, tag: Tag) -> Result<Vec<u8>, SyncError> {
        self.staging.chunk(&self.root, tag)
    }

    fn discard(&mut self) -> Result<(), SyncError> {
        self.staging.discard(&self.root)
    }

    fn finish(&mut self, content: ContentId) -> Result<(), SyncError> {
        self.recipes.iter_mut().for_each(|recipes| recipes.finish(content));
        self.staging.finish(&self.root, content)
    }

    fn own(&mut self, content: ContentId) -> Result<Option<File>, SyncError> {
        if let Some(kept) = self.kept(content)? {
            return Ok(Some(kept));
        }
        let Some(path) = self.contents.get(&content) else { return Ok(None) };
        Ok(self.root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).ok().map(File::from))
    }

    fn room(&mut self) -> Result<File, SyncError> {
        self.memory.spool()
    }
}

impl Replica for Local<'_> {
    fn device(&self) -> Device {
        self.memory.device.clone()
    }

    fn store(&self) -> String {
        self.store.clone()
    }

    fn groups(&self) -> Groups {
        self.rules.groups.clone()
    }

    fn selection(&self) -> Selection {
        self.rules.selection.clone()
    }

    fn is_partial(&self) -> bool {
        self.is_part()
    }

    fn lacks(&self) -> bool {
        self.lacking
    }

    fn left_out(&self) -> Option<u64> {
        (!self.rules.selection.is_all()).then_some(self.omitted)
    }

    fn here(&self) -> Option<Tree> {
        self.here.clone()
    }

    fn is_used(&self, path: &[u8]) -> bool {
        !matches!(self.root.stat(path), Ok(None))
    }

    fn is_staged(&self, content: ContentId) -> bool {
        staging::has(self.staging.place(&self.root), content).unwrap_or(false)
    }

    fn take_part(&mut self, lacks: bool, kept: BTreeSet<ContentId>) {
        self.will_lack = lacks;
        self.memory.part.kept = kept;
    }

    fn patterns(&self) -> String {
        self.patterns.clone()
    }

    fn load(&mut self) -> Result<(), SyncError> {
        self.load_tree()
    }

    fn leave_out(&mut self, patterns: &str) {
        self.left_out = Some(patterns.to_owned());
    }

    fn agree_on(&mut self, groups: Groups) {
        self.rules.groups = groups;
    }

    fn features(&self) -> Vec<String> {
        self.features.clone()
    }

    fn dag(&self) -> &Dag {
        &self.memory.dag
    }

    fn head(&self) -> SnapshotId {
        self.memory.head.expect("set when it was opened")
    }

    fn trees(&self) -> Vec<SnapshotId> {
        self.memory.trees()
    }

    fn tree(&self, id: SnapshotId) -> Result<Option<Tree>, SyncError> {
        self.memory.tree(id)
    }

    fn heads(&self) -> BTreeMap<Device, SnapshotId> {
        self.memory.heads.clone()
    }

    fn stage(&mut self, content: ContentId) -> Result<bool, SyncError> {
        if staging::has(self.staging.place(&self.root), content)? {
            return Ok(true);
        }
        match self.contents.get(&content) {
            Some(path) => self.staging.copy(&self.root, content, &path.clone()),
            None => Ok(false),
        }
    }

    fn held(&mut self, contents: &[ContentId]) -> Result<Vec<bool>, SyncError> {
        let Some(past) = &mut self.past else { return Ok(vec![false; contents.len()]) };
        let known: Vec<(ContentId, RecipeId)> = contents
            .iter()
            .filter_map(|content| Some((*content, RecipeId(*self.memory.past.get(content)?))))
            .collect();
        let recipes: Vec<RecipeId> = known.iter().map(|(_, recipe)| *recipe).collect();
        let there = past.has(&recipes)?;
        self.held =
            known.iter().zip(there).filter(|(_, there)| *there).map(|((content, _), _)| *content).collect();
        Ok(contents.iter().map(|content| self.held.contains(content)).collect())
    }

    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(self.root.fd()).ok()?;
        // Some filesystems do not report it.
        (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn free_inodes(&self) -> Option<u64> {
        inodes::free(&self.root)
    }

    fn do_without(&mut self, contents: BTreeMap<ContentId, String>) {
        self.absent = contents;
    }

    fn take_troubles(&mut self, end: bool) -> Vec<(TreePath, String)> {
        let mut troubles = std::mem::take(&mut self.troubles);
        if end && !self.memory.unfit.is_empty() {
            // Files that this sync has removed do not count.
            let there: BTreeSet<u64> = self.memory.cache.values().map(|print| print.ino).collect();
            for (_, Lacking { path, xattrs }) in
                self.memory.unfit.iter().filter(|(ino, _)| there.contains(ino))
            {
                troubles.entry(path.clone()).or_insert_with(|| unfit::reason(xattrs, None));
            }
        }
        let waiting = if end { self.reasons_to_wait() } else { Vec::new() };
        troubles.into_iter().chain(waiting).collect()
    }

    fn has_staged(&self) -> bool {
        // An error shows later, when the staging is needed.
        staging::has_any(self.staging.place(&self.root)).unwrap_or(true)
    }

    fn has_part(&self, content: ContentId) -> Result<bool, SyncError> {
        staging::has_part(self.staging.place(&self.root), content)
    }

    fn expect(&mut self, entries: HashMap<ContentId, Entry>) {
        // An unreadable file could not be opened again.
        let plain = entries.into_iter().filter(|(_, entry)| self.rules.owners.mode(entry) & 0o400 != 0);
        let expected = |(content, entry): (ContentId, Entry)| {
            let (owner, mode_here) =
                (self.rules.owners.only_owner(&entry.xattrs)?, self.rules.owners.mode(&entry));
            let Entry { mode, mtime, xattrs, .. } = entry;
            Some((content, Expected { mode, mtime, owner, xattrs, mode_here }))
        };
        self.staging.expected = plain.filter_map(expected).collect();
    }

    fn have(&mut self, content: ContentId, path: &TreePath, most: usize) -> Result<Vec<Tag>, SyncError> {
        if !self.on_disk().entries.contains_key(path) && !self.staging.has_part_of(content) {
            return Ok(Vec::new());
        }
        self.staging.chunks_of(&self.root, content, path, most)
    }

    fn directory_time(&self, path: &TreePath) -> Option<Time> {
        self.memory.cache.get(path).map(|print| print.mtime)
    }

    fn set_directory_times(&mut self, times: BTreeMap<TreePath, Time>) {
        self.their_times = times;
    }

    fn keep_bases(&mut self, bases: &[Base]) {
        let Some(mut saved) = self.memory.bases() else { return };
        for base in bases {
            let kept = match self.base(base) {
                Ok(Some(mut file)) => saved.keep(base, &mut file).map_err(|e| e.to_string()),
                Ok(None) => Err("the store does not have it".to_owned()),
                Err(e) => Err(e.to_string()),
            };
            // A tool then merges without it.
            if let Err(why) = kept {
                tracing::debug!("{}: the version before both edits is not kept: {why}", shown(&base.path));
            }
        }
    }

    fn adopt(&mut self, snapshot: &Snapshot, target: &Tree, ops: &[Op]) -> Result<Done, SyncError> {
        let id = snapshot.id();
        if let Some(mut saved) = self.memory.bases() {
            let is_copy = |path: &&TreePath| parse_conflict_name(split(path).1).is_some();
            saved.forget_others(target.entries.keys().filter(is_copy));
        }
        let before = self.tree.clone();
        if self.will_lack || self.is_part() {
            self.basis = Some(self.basis());
        }
        self.make_contents_durable(ops)?;
        self.memory.put_tree(id, target)?;
        self.memory.taking = Some(snapshot.clone());
        // Before a step is done: from here on a program of an earlier version must not continue.
        self.memory.partial |= self.will_lack;
        self.memory.save_part()?;
        self.memory.save()?;
        let times = self.times_to_set(&before, target);
        let skipped = adopt::adopt(self, &before, target, ops)?;
        self.set_times(&times)?;
        match skipped.iter().any(|step| step.again) {
            _ if skipped.is_empty() => {
                self.commit(snapshot)?;
                self.pass_over_own_changes()?;
            }
            // The next sync continues with the skipped steps.
            true => {}
            // Retrying is useless now: the entries that were taken are the state of this replica.
            false => {
                self.memory.taking = None;
                self.snapshot(Some(target), true)?;
                self.staging.clear_if_empty(&self.root)?;
            }
        }
        Ok(Done { skipped: skipped.into_iter().map(|step| (step.path, step.why)).collect() })
    }

    fn meet(&mut self, theirs: (&Snapshot, &Tree), both: &Snapshot) -> Result<(), SyncError> {
        let (snapshot, tree) = theirs;
        let (device, _) = snapshot.seen.clone().expect("a state that a device saw");
        let met = self.memory.dag.add(snapshot.clone())?;
        let head = self.memory.dag.add(both.clone())?;
        let own = self.memory.head.map(|head| self.memory.tree(head)).transpose()?.flatten();
        let Some(own) = own else { return Ok(()) };
        self.memory.put_tree(met, tree)?;
        self.memory.put_tree(head, &own)?;
        self.memory.heads.insert(device, met);
        self.memory.head = Some(head);
        self.memory.save()
    }

    fn learn(
        &mut self,
        dag: Dag,
        heads: BTreeMap<Device, SnapshotId>,
        trees: &[(SnapshotId, &Tree)],
    ) -> Result<(), SyncError> {
        self.memory.dag = dag;
        self.memory.heads = heads;
        for (id, tree) in trees {
            self.memory.put_tree(*id, tree)?;
        }
        self.memory.save()
    }
}

mod ahead;
mod basis;
mod looking;
mod part;
mod source;
mod steps;
mod times;
mod waiting;

#[cfg(test)]
mod tests;
