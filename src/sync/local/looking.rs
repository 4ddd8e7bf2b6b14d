//! Examination of a directory: by a walk, or by the changes that the daemon of its mount saw since the last sync.

use super::super::error::SyncError;
use super::super::guard;
use super::super::old_contents::{Changes, Known, OldContents};
use super::super::presence::{self, Before};
use super::super::print::Print;
use super::super::scan::{self, Below, Chosen, Examine, Scan, scan, scan_changed};
use super::super::seen::Seen;
use super::super::since::{Since, rules};
use super::super::tree::{Entry, Tree, TreePath, is_reserved, shown};
use super::super::version::{Snapshot, SnapshotId};
use super::super::{unfit, unseen, waiting};
use super::Local;
use crate::id::RecipeId;
use rustix::fs::FileType;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of files whose versions are looked up, and the minimum size of one.
const VERSIONS_ASKED_MAX: usize = 64;
const VERSIONS_BYTES_MIN: u64 = 4 << 10;

/// Entries that may have changed since the head.
enum Changed {
    /// Everything.
    All,
    /// These paths; and whether everything below them may have, too.
    Paths(Vec<(TreePath, bool)>),
}

impl Local<'_> {
    /// Examines the directory, and makes the result the snapshot of this device.
    pub(super) fn snapshot(&mut self, agreed: Option<&Tree>, force: bool) -> Result<(), SyncError> {
        let text = scan::pattern_text(&self.root)?;
        // The moment comes first: the next sync examines changes during this examination again.
        let since = self.memory.since.clone().filter(|since| {
            let is_head = |head: &SnapshotId| *head == since.head && self.memory.has_tree(*head);
            let same_rules = since.rules == rules(&text, &self.rules);
            agreed.is_none()
                && self.memory.unfit.is_empty()
                && !self.can_set_what_waits()
                && self.memory.head.as_ref().is_some_and(is_head)
                && same_rules
        });
        let (moment, changed) = self.changes(since.as_ref());
        if let (Changed::Paths(changed), Some(since)) = (&changed, &since)
            && self.is_as_before(changed, since)?
        {
            self.notes.extend(since.unsupported.iter().map(|path| scan::unsupported(path)));
            self.omitted = since.left_out;
            (self.patterns, self.unread) = (text, true);
            return Ok(());
        }
        self.memory.load();
        let last = self.last()?;
        let scan = self.scan(&last, &text, changed)?;
        let rules = rules(&scan.patterns, &self.rules);
        let (complete, unsupported) = (scan.is_complete(), scan.unsupported.clone());
        // Changes since the last sync may be those that it made itself.
        let same_tree =
            agreed.is_none() && !self.is_part() && scan.examined.is_some() && self.is_same(&scan, &last);
        let part = self.is_part().then(|| self.part_of(&last));
        let tree = self.take_scan(scan, &last, agreed, same_tree)?;
        let (before, now) = (part.as_ref().unwrap_or(&last), self.here.as_ref().unwrap_or(&tree));
        if let Some(suspicion) = guard::suspicion(before, now).filter(|_| !force) {
            return Err(SyncError::Guard(suspicion));
        }
        tree.check()?;
        let known = self.memory.head.is_some_and(|head| self.memory.has_tree(head));
        if !known || tree != last {
            let seq = self.memory.seq + 1;
            let snapshot = Snapshot::of(tree.root(), self.memory.head, self.memory.device.clone(), seq);
            let id = self.memory.dag.add(snapshot)?;
            self.memory.put_tree(id, &tree)?;
            self.memory.seq = seq;
            self.memory.head = Some(id);
        }
        self.note_part(&tree)?;
        self.memory.save_changed_cache()?;
        self.memory.save_part()?;
        self.memory.set_saw(self.rules.owners.sees)?;
        self.memory.save()?;
        let complete = complete && self.memory.unfit.is_empty() && !self.lacking;
        let since = moment.zip(self.memory.head).filter(|_| complete);
        let left_out = self.omitted;
        let since = since.map(|(moment, head)| Since { moment, head, rules, unsupported, left_out });
        self.memory.save_since(since)?;
        self.tree = tree;
        Ok(())
    }

    /// Asks the daemon for the moment now, and for the changes.
    fn changes(&mut self, since: Option<&Since>) -> (Option<String>, Changed) {
        let asked = since.map(|since| &*since.moment);
        let Some(Changes { moment, changed }) = self.past.as_mut().and_then(|past| past.changes(asked))
        else {
            return (None, Changed::All);
        };
        let changed = match changed.zip(since) {
            Some((changed, _)) => Changed::Paths(changed),
            None => Changed::All,
        };
        (Some(moment), changed)
    }

    /// After a sync that has taken a tree: if no other program changed anything meanwhile, the next one need not examine what this one
    /// did. The stored moment must have been asked for by this process.
    pub(super) fn pass_over_own_changes(&mut self) -> Result<(), SyncError> {
        let (Some(past), Some(since)) = (&mut self.past, self.memory.since.clone()) else { return Ok(()) };
        let Some(Changes { moment, changed: Some(changed) }) = past.changes_by_others(&since.moment) else {
            return Ok(());
        };
        let is_apart = |path: &TreePath| path.split(|byte| *byte == b'/').next().is_some_and(is_reserved);
        if changed.iter().all(|(path, _)| is_apart(path)) {
            tracing::debug!("no other program changed anything during the sync");
            self.memory.save_since(Some(Since { moment, ..since }))?;
        }
        Ok(())
    }

    /// Returns whether nothing has changed that is synced.
    fn is_as_before(&self, changed: &[(TreePath, bool)], since: &Since) -> Result<bool, SyncError> {
        let is_unsupported = |path: &TreePath| {
            let kind = self.root.stat(path).ok().flatten().map(|stat| FileType::from_raw_mode(stat.st_mode));
            matches!(kind, Some(FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice))
        };
        let patterns = scan::parse_patterns(&scan::pattern_text(&self.root)?)?;
        let chosen = Chosen::new(&self.root, &self.rules);
        let changed = changed.iter().filter(|(path, _)| !scan::is_apart(&patterns, &chosen, path));
        Ok(changed.count() == 0 && since.unsupported.iter().all(is_unsupported))
    }

    fn scan(&mut self, last: &Tree, text: &str, changed: Changed) -> Result<Scan, SyncError> {
        let part = self.is_part().then(|| (self.part_of(last), self.states()));
        let (last, known) = part.as_ref().map_or((last, &self.memory.cache), |(last, known)| (last, known));
        let past = RefCell::new(&mut self.past);
        let mut at_barrier = |path: &TreePath, beside: &[&[u8]], since| {
            past.borrow_mut().as_mut()?.at_barrier(path, beside, since)
        };
        let mut contents = |recipes: &[RecipeId]| match &mut **past.borrow_mut() {
            Some(past) => past.contents(recipes),
            None => Vec::new(),
        };
        let below = self.staging.direct.as_deref().map(|direct| Below::new(direct, &mut contents));
        let below = below.as_ref().map(|below| below as &dyn Examine);
        let (root, rules) = (&self.root, &self.rules);
        if let Changed::Paths(mut changed) = changed {
            let unsupported = self.memory.since.iter().flat_map(|since| &since.unsupported);
            changed.extend(unsupported.map(|path| (path.clone(), false)));
            tracing::debug!("{} paths have changed since the last sync", changed.len());
            let report = &mut self.report;
            let done = scan_changed(root, last, known, text, changed, rules, &mut at_barrier, below, report)?;
            if let Some(scan) = done {
                return Ok(scan);
            }
        }
        scan(root, last, known, rules, &mut at_barrier, below, &mut self.report)
    }

    /// Returns whether a scan by the rules of the last one found the last tree.
    fn is_same(&self, scan: &Scan, last: &Tree) -> bool {
        let is_same = |((path, now), (known, was)): ((&TreePath, &Seen), (&TreePath, &Entry))| {
            path == known
                && self.memory.cache.get(path).is_some_and(|print| (0, print.ino) == now.inode)
                && (&now.kind, now.mtime) == (&was.kind, was.mtime)
                && (now.mode == was.mode || now.mode == self.rules.owners.mode(was))
                && self.rules.owners.are_same_values(&now.xattrs, &was.xattrs)
        };
        scan.seen.len() == last.entries.len() && scan.seen.iter().zip(&last.entries).all(is_same)
    }

    /// Examines the whole directory. `agreed` is a tree that it was on the way to.
    pub(super) fn look(&mut self, last: &Tree, agreed: Option<&Tree>) -> Result<Tree, SyncError> {
        let scan = self.scan(last, "", Changed::All)?;
        self.take_scan(scan, last, agreed, false)
    }

    /// Makes a scan a tree; `same`: the last one.
    fn take_scan(
        &mut self,
        mut scan: Scan,
        last: &Tree,
        agreed: Option<&Tree>,
        same: bool,
    ) -> Result<Tree, SyncError> {
        self.notes.extend(scan.notes);
        self.troubles.extend(scan.troubles);
        unfit::complete(&mut scan.seen, last, &mut self.memory.unfit);
        self.memory.save_unfit()?;
        let mut waits = self.memory.waiting.clone();
        waiting::complete(&mut scan.seen, last, &mut waits);
        if self.rules.owners.sees.owner && self.memory.saw.owner {
            unseen::forget_given(&mut scan.seen, &scan.prints, &self.memory.cache, last);
        }
        self.kept = scan.kept;
        self.patterns = scan.patterns;
        let (device, seq) = (&self.memory.device, self.memory.seq + 1);
        let (groups, basis) = (&self.rules.groups, self.is_part().then(|| self.basis()));
        self.here = None;
        let mut tree = match basis {
            _ if same => last.clone(),
            None => groups.look(&mut scan.seen, last, self.memory.inodes(), agreed, device, seq),
            Some(basis) => {
                let before = Before { last, here: &basis.here, older: &basis.older };
                let selection = &self.rules.selection;
                let look = presence::look(selection, groups, &mut scan.seen, &before, agreed, device, seq);
                for (path, copy) in look.copies {
                    let why = format!(
                        "is another file than the one that other devices have there, which was not on this device: that one is \
                         {} now",
                        shown(&copy)
                    );
                    self.troubles.insert(path, why);
                }
                self.here = Some(look.here);
                self.basis = Some(basis);
                look.tree
            }
        };
        if !same {
            let (owners, saw) = (&self.rules.owners, self.memory.saw);
            waits.extend(unseen::keep(&mut tree, &scan.seen, (last, agreed), owners, saw));
            if let Some(here) = &mut self.here {
                unseen::keep(here, &scan.seen, (last, agreed), owners, saw);
            }
        }
        self.memory.set_waiting(waits)?;
        let mut prints = scan.prints;
        self.note_recipes(&mut prints, scan.examined.as_ref());
        self.put_aside(&prints, last);
        self.memory.set_cache(prints);
        self.set_contents(self.here.clone().as_ref().unwrap_or(&tree));
        Ok(tree)
    }

    fn set_contents(&mut self, tree: &Tree) {
        let content = |(path, entry): (&TreePath, &Entry)| Some((entry.kind.content()?, path.clone()));
        self.contents = tree.entries.iter().filter_map(content).collect();
    }

    /// Reads the tree, after an examination that did not need it.
    pub(super) fn load_tree(&mut self) -> Result<(), SyncError> {
        if std::mem::take(&mut self.unread) {
            self.memory.load();
            let tree = self.last()?;
            self.here = self.is_part().then(|| self.part_of(&tree));
            self.set_contents(self.here.clone().as_ref().unwrap_or(&tree));
            self.tree = tree;
        }
        Ok(())
    }

    /// Remembers the recipes of contents: present ones, for the time when they are replaced, and those that were just
    /// replaced. Looks for unknown ones among the `examined` files, or all.
    pub(super) fn note_recipes(
        &mut self,
        prints: &mut BTreeMap<TreePath, Print>,
        examined: Option<&BTreeSet<TreePath>>,
    ) {
        let Some(past) = &mut self.past else { return };
        let (mut present, mut asked) = (prints.iter_mut().peekable(), 0);
        for (path, before) in &self.memory.cache {
            while present.next_if(|(now, _)| *now < path).is_some() {}
            let now = present.next_if(|(now, _)| *now == path).map(|(_, now)| now);
            match (now, before.content) {
                (Some(now), content) if now.content == content => now.recipe = now.recipe.or(before.recipe),
                (now, Some(content)) => {
                    let is_here = now.is_some();
                    let last = match past.recipe(path) {
                        Some(Known::Before(RecipeId(recipe))) => Some(recipe),
                        _ => None,
                    };
                    let mut version = || {
                        let asks = is_here && before.size >= VERSIONS_BYTES_MIN && asked < VERSIONS_ASKED_MAX;
                        asked += usize::from(asks);
                        asks.then(|| version_of(&mut **past, path, before)).flatten()
                    };
                    if let Some(recipe) = before.recipe.or(last).or_else(&mut version) {
                        self.memory.past.insert(content, recipe);
                    }
                }
                _ => {}
            }
        }
        let unknown = |print: &Print| print.content.is_some() && print.size > 0 && print.recipe.is_none();
        let examined = |path: &TreePath| examined.is_none_or(|examined| examined.contains(path));
        for (path, print) in prints.iter_mut().filter(|(path, print)| unknown(print) && examined(path)) {
            if let Some(Known::Now(RecipeId(recipe))) = past.recipe(path) {
                print.recipe = Some(recipe);
            }
        }
    }
}

/// Returns the recipe of the version of a file that had this state: an editor replaces the file, and nothing on the new one tells.
fn version_of(past: &mut dyn OldContents, path: &TreePath, before: &Print) -> Option<[u8; 16]> {
    let versions = past.versions(path).into_iter();
    let mut same = versions.filter(|version| (version.size, version.mtime) == (before.size, before.mtime));
    same.next_back().map(|version| version.recipe.0)
}
