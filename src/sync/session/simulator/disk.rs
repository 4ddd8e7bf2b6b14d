//! A device of the simulator: a tree, and the memory of its syncs, in memory. It stops at any step, and users
//! interfere.

use super::*;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    Dir,
    File(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) ino: u64,
    pub(super) what: What,
    pub(super) mode: u16,
    pub(super) mtime: i64,
}

/// The disk of a device, which survives every stop.
pub(super) struct Disk {
    pub(super) device: Device,
    pub(super) files: BTreeMap<TreePath, Node>,
    pub(super) next_ino: u64,
    pub(super) seq: u64,
    pub(super) dag: Dag,
    pub(super) head: Option<SnapshotId>,
    pub(super) trees: BTreeMap<SnapshotId, Tree>,
    pub(super) inodes: BTreeMap<TreePath, Inode>,
    pub(super) heads: BTreeMap<Device, SnapshotId>,
    pub(super) staged: BTreeMap<ContentId, String>,
    /// All contents that it ever scanned.
    pub(super) past: BTreeMap<ContentId, String>,
    pub(super) journal: Option<Snapshot>,
    pub(super) current: Vec<u8>,
    pub(super) begun: Option<ContentId>,
    /// Steps until the machine stops.
    pub(super) stops: Rc<Cell<u32>>,
    /// Steps until a user interferes.
    pub(super) interferes: Option<u32>,
    /// Steps until one is refused, as if a program had the file open.
    pub(super) refuses: Option<u32>,
    /// Whether it refuses a file if a step before changed another name of it: the times of the inode differ then.
    pub(super) strict: bool,
    /// Contents that it cannot send this time: one in this many.
    pub(super) withholds: Option<u8>,
    /// Contents that do not arrive.
    pub(super) absent: BTreeMap<ContentId, String>,
    pub(super) selection: Selection,
    /// Whether it may have only a part of its tree.
    pub(super) partial: bool,
    /// Whether its disk lacks a part of what it should have.
    pub(super) lacking: bool,
    /// The inodes before the last sync.
    pub(super) inodes_before: BTreeMap<TreePath, Inode>,
    /// The contents at the paths of `inodes`.
    pub(super) contents: BTreeMap<TreePath, Option<ContentId>>,
    /// Paths of `inodes` that are not as in the last tree.
    pub(super) stale: BTreeSet<TreePath>,
    /// Contents at paths that were left out.
    pub(super) aside: BTreeMap<TreePath, Option<ContentId>>,
    /// Contents that stay since they may be nowhere else.
    pub(super) kept: BTreeSet<ContentId>,
    pub(super) here: Option<Tree>,
    pub(super) will_lack: bool,
}

impl Disk {
    pub(super) fn new(name: &str) -> Disk {
        Disk {
            device: Device::named(name),
            files: BTreeMap::new(),
            next_ino: 1,
            seq: 0,
            dag: Dag::default(),
            head: None,
            trees: BTreeMap::new(),
            inodes: BTreeMap::new(),
            heads: BTreeMap::new(),
            staged: BTreeMap::new(),
            past: BTreeMap::new(),
            journal: None,
            current: Vec::new(),
            begun: None,
            stops: Rc::new(Cell::new(u32::MAX)),
            interferes: None,
            refuses: None,
            strict: false,
            withholds: None,
            absent: BTreeMap::new(),
            selection: Selection::default(),
            partial: false,
            lacking: false,
            inodes_before: BTreeMap::new(),
            contents: BTreeMap::new(),
            stale: BTreeSet::new(),
            aside: BTreeMap::new(),
            kept: BTreeSet::new(),
            here: None,
            will_lack: false,
        }
    }

    pub(super) fn ino(&mut self) -> u64 {
        self.next_ino += 1;
        self.next_ino
    }

    pub(super) fn tick(&mut self) -> Result<(), SyncError> {
        self.stops.set(self.stops.get().saturating_sub(1));
        if self.stops.get() == 0 { Err(SyncError::Cut) } else { Ok(()) }
    }

    pub(super) fn seen(&self) -> BTreeMap<TreePath, Seen> {
        let row = |(path, node): (&TreePath, &Node)| {
            let kind = match &node.what {
                What::Dir => Kind::Dir,
                What::File(text) => {
                    Kind::File { content: ContentId::of(text.as_bytes()), size: text.len() as u64 }
                }
            };
            let mtime = if kind.is_dir() { (0, 0) } else { (node.mtime, 0) };
            (
                path.clone(),
                Seen { inode: (1, node.ino), kind, mode: node.mode, mtime, xattrs: Default::default() },
            )
        };
        self.files.iter().map(row).collect()
    }

    pub(super) fn last(&self) -> Tree {
        self.head.and_then(|head| self.trees.get(&head)).cloned().unwrap_or_default()
    }

    /// Does what begins every sync: completes an interrupted one, then scans.
    pub(super) fn prepare(&mut self) -> Result<(), SyncError> {
        let mut taken = None;
        if let Some(snapshot) = self.journal.clone() {
            let (before, agreed) = (self.last(), self.trees[&snapshot.id()].clone());
            let done = adopt::resume(self, &before, &agreed);
            tell(format!("{} continued the interrupted sync: {done:?}", self.device));
            match done {
                Ok(skipped) if skipped.is_empty() => {
                    // Conflicts of a sync that was cut: no outcome named them.
                    let is_copy = |path: &&TreePath| parse_conflict_name(split(path).1).is_some();
                    let new = agreed.entries.keys().filter(|path| !before.entries.contains_key(*path));
                    KEPT_TWICE.with_borrow_mut(|all| all.extend(new.filter(is_copy).cloned()));
                    self.commit(&snapshot)?;
                }
                // The finished steps count as changes of this device.
                Ok(_) | Err(SyncError::Changed(_)) => {
                    self.journal = None;
                    taken = Some(agreed);
                }
                Err(e) => return Err(e),
            }
        }
        self.look(taken.as_ref())
    }

    fn look(&mut self, taken: Option<&Tree>) -> Result<(), SyncError> {
        let texts = self.texts();
        self.past.extend(texts.into_iter().map(|text| (ContentId::of(text.as_bytes()), text)));
        let last = self.last();
        let tree = self.tree_of_disk(&last, taken);
        tree.check().unwrap();
        if self.head.is_none() || tree != last {
            self.seq += 1;
            let snapshot = Snapshot::of(tree.root(), self.head, self.device.clone(), self.seq);
            let id = self.dag.add(snapshot)?;
            self.trees.insert(id, tree.clone());
            self.head = Some(id);
        }
        self.note_disk(&tree);
        Ok(())
    }

    /// Returns the tree of the device. Sets the tree of its disk.
    pub(super) fn tree_of_disk(&mut self, last: &Tree, taken: Option<&Tree>) -> Tree {
        let (mut seen, seq) = (self.seen(), self.seq + 1);
        self.partial |= !self.selection.is_all();
        if !self.partial {
            self.here = None;
            return Groups::default().look(&mut seen, last, self.inodes.clone(), taken, &self.device, seq);
        }
        let paths: BTreeSet<TreePath> =
            self.selection.paths(&self.raw_tree(), &Groups::default()).into_iter().cloned().collect();
        seen.retain(|path, _| paths.contains(path));
        let mut here = self.inodes.clone();
        here.retain(|path, _| !self.stale.contains(path));
        let mut older = self.aside.clone();
        older.extend(self.stale.iter().filter_map(|path| Some((path.clone(), *self.contents.get(path)?))));
        let before = presence::Before { last, here: &here, older: &older };
        let (selection, groups) = (&self.selection, Groups::default());
        let look = presence::look(selection, &groups, &mut seen, &before, taken, &self.device, seq);
        look.here.check().unwrap();
        tell(format!("{} has {:?}; {:?}", self.device, look.here.entries, look.copies));
        self.here = Some(look.here);
        look.tree
    }

    /// Returns the paths of its disk as a tree, to find groups.
    fn raw_tree(&self) -> Tree {
        let row = |(path, seen): (TreePath, Seen)| {
            let Seen { kind, mode, mtime, xattrs, .. } = seen;
            let ident = super::super::super::tree::Ident::derive(&[&path]);
            let author = self.device.clone();
            (path, super::super::super::tree::Entry { ident, author, kind, mode, mtime, xattrs })
        };
        Tree { entries: self.seen().into_iter().map(row).collect() }
    }

    /// Remembers which files are on the disk, after an examination.
    fn note_disk(&mut self, tree: &Tree) {
        let old: Vec<_> = self.contents.clone().into_iter().collect();
        let now: BTreeMap<TreePath, Seen> = self.seen();
        let is_seen = |path: &TreePath| {
            self.here.as_ref().is_none_or(|here| here.entries.contains_key(path)) && now.contains_key(path)
        };
        self.inodes = now
            .iter()
            .filter(|(path, _)| is_seen(path))
            .map(|(path, seen)| (path.clone(), seen.inode))
            .collect();
        self.contents = self.inodes.keys().map(|path| (path.clone(), now[path].kind.content())).collect();
        let Some(here) = &self.here else { return };
        let included: BTreeSet<&TreePath> =
            self.selection.paths(tree, &Groups::default()).into_iter().collect();
        let is_out = |path: &TreePath| tree.entries.contains_key(path) && !included.contains(path);
        self.aside.extend(old);
        self.aside.retain(|path, _| is_out(path));
        let is_stale = |path: &&TreePath| here.entries.get(*path) != tree.entries.get(*path);
        self.stale = here.entries.keys().filter(is_stale).cloned().collect();
        let part = self.selection.part(tree, &Groups::default());
        self.lacking = !Groups::default().plan(here, &part).is_empty();
        let whole = tree.entries.keys().all(|path| here.entries.contains_key(path)) && self.stale.is_empty();
        self.partial = !self.selection.is_all() || !whole;
    }

    pub(super) fn commit(&mut self, snapshot: &Snapshot) -> Result<(), SyncError> {
        self.tick()?;
        let before = self.last();
        self.head = Some(snapshot.id());
        self.journal = None;
        self.staged.clear();
        let tree = self.last();
        let ident = |tree: &Tree, path: &TreePath| tree.entries.get(path).map(|entry| entry.ident);
        let is_same =
            |path: &TreePath| ident(&tree, path).is_some() && ident(&tree, path) == ident(&before, path);
        // Files that a user has removed meanwhile are not files that have not arrived.
        let removed = |path: &TreePath| {
            self.partial && !self.files.contains_key(path) && !self.stale.contains(path) && is_same(path)
        };
        let removed: Vec<(TreePath, Inode)> = self
            .inodes
            .iter()
            .filter(|(path, _)| removed(path))
            .map(|(path, at)| (path.clone(), *at))
            .collect();
        let seen = self.seen();
        let included: BTreeSet<&TreePath> =
            self.selection.paths(&tree, &Groups::default()).into_iter().collect();
        let at = |(path, now): (&TreePath, &Seen)| {
            let entry = tree.entries.get(path).filter(|_| included.contains(path))?;
            Some((path.clone(), now.clone(), entry.clone()))
        };
        let rows: Vec<_> = seen.iter().filter_map(at).collect();
        self.inodes_before = std::mem::take(&mut self.inodes);
        self.inodes = rows.iter().map(|(path, now, _)| (path.clone(), now.inode)).collect();
        let old = self.inodes_before.iter().filter_map(|(path, at)| Some((*at, *self.contents.get(path)?)));
        let old: BTreeMap<Inode, Option<ContentId>> = old.collect();
        // Not what a user has written since it was examined.
        let content = |(path, now, entry): &(TreePath, Seen, super::super::super::tree::Entry)| {
            let known = (now.kind == entry.kind).then(|| entry.kind.content());
            Some((path.clone(), known.or_else(|| old.get(&now.inode).copied())?))
        };
        self.contents = rows.iter().filter_map(content).collect();
        let stale = rows.iter().filter(|(_, now, entry)| now.kind != entry.kind);
        self.stale = stale.map(|(path, ..)| path.clone()).collect();
        self.inodes.extend(removed);
        self.partial |= self.will_lack;
        Ok(())
    }

    pub(super) fn text(&self, content: ContentId) -> Option<String> {
        let in_tree = self.files.values().find_map(|node| match &node.what {
            What::File(text) if ContentId::of(text.as_bytes()) == content => Some(text.clone()),
            _ => None,
        });
        in_tree.or_else(|| self.staged.get(&content).cloned())
    }

    pub(super) fn text_at(&self, path: &TreePath) -> Option<String> {
        match &self.files.get(path)?.what {
            What::File(text) => Some(text.clone()),
            What::Dir => None,
        }
    }

    pub(super) fn texts(&self) -> BTreeSet<String> {
        let text = |node: &Node| match &node.what {
            What::File(text) => Some(text.clone()),
            What::Dir => None,
        };
        self.files.values().filter_map(text).collect()
    }

    /// Returns the texts of files that it leaves out.
    pub(super) fn left_out_texts(&self) -> BTreeSet<String> {
        let tree = self.raw_tree();
        let part: BTreeSet<&TreePath> = self.selection.paths(&tree, &Groups::default()).into_iter().collect();
        let out = self.files.keys().filter(|path| !part.contains(path));
        out.filter_map(|path| self.text_at(path)).collect()
    }

    pub(super) fn matches(&self, path: &TreePath, was: &super::super::super::tree::Entry) -> bool {
        self.files.get(path).is_some_and(|node| match (&node.what, &was.kind) {
            (What::Dir, Kind::Dir) => true,
            (What::File(text), Kind::File { content, .. }) => ContentId::of(text.as_bytes()) == *content,
            _ => false,
        })
    }

    /// Returns the paths and texts in a directory.
    pub(super) fn state(&self, dir: &[u8]) -> String {
        let below = join(dir, b"");
        let rows = self.files.iter().filter(|(path, _)| path.starts_with(&below));
        rows.map(|(path, node)| format!("{} {:?}\n", String::from_utf8_lossy(&path[dir.len()..]), node.what))
            .collect()
    }

    pub(super) fn note_states(&self) {
        let dirs = self.files.iter().filter(|(_, node)| node.what == What::Dir);
        let states = dirs.map(|(path, _)| self.state(path));
        STATES.with_borrow_mut(|all| all.extend(states));
    }

    /// Checks that a group left by a sync is one that a user has made.
    pub(super) fn check_groups(&self) {
        for (path, node) in &self.files {
            let name = split(path).1;
            let name = parse_conflict_name(name).map_or_else(|| name.to_vec(), |(name, _)| name);
            if node.what == What::Dir && name == b".git" {
                let state = self.state(path);
                let known = STATES.with_borrow(|all| all.contains(&state));
                assert!(
                    known,
                    "{} has a mixture at {}:\n{state}",
                    self.device,
                    String::from_utf8_lossy(path)
                );
            }
        }
    }

    pub(super) fn remove_below(&mut self, path: &[u8]) {
        let below = join(path, b"");
        self.files.retain(|other, _| other != path && !other.starts_with(&below));
    }

    pub(super) fn write(&mut self, path: &str, text: &str) {
        let ino = self.ino();
        let what = What::File(text.to_owned());
        self.files.insert(path.as_bytes().to_vec(), Node { ino, what, mode: 0o644, mtime: 1 });
    }

    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) {
        let below = join(from, b"");
        let moved: Vec<_> =
            self.files.keys().filter(|path| *path == from || path.starts_with(&below)).cloned().collect();
        for path in moved {
            let node = self.files.remove(&path).unwrap();
            self.files.insert([to, &path[from.len()..]].concat(), node);
        }
    }
}

fn file(text: &str) -> Result<File, SyncError> {
    let mut file = super::super::super::content::nameless()?;
    file.write_all(text.as_bytes()).and_then(|()| file.rewind()).unwrap();
    Ok(file)
}

impl Source for Disk {
    fn open(&mut self, content: ContentId) -> Result<File, SyncError> {
        let text =
            self.text(content).filter(|_| !self.withholds.is_some_and(|n| content.0[3].is_multiple_of(n)));
        file(&text.ok_or_else(|| SyncError::Changed("gone".to_owned()))?)
    }

    fn holds(&mut self, content: ContentId) -> Result<bool, SyncError> {
        Ok(self.past.contains_key(&content))
    }

    fn gone(&mut self) -> Vec<ContentId> {
        let here = self.texts();
        self.past.iter().filter(|(_, text)| !here.contains(*text)).map(|(content, _)| *content).collect()
    }

    /// Sometimes fails, as if the content were gone.
    fn past(&mut self, content: ContentId) -> Result<Option<File>, SyncError> {
        self.past.get(&content).filter(|_| !content.0[1].is_multiple_of(8)).map(|text| file(text)).transpose()
    }
}

impl Sink for Disk {
    fn begin(&mut self, content: ContentId) -> Result<(), SyncError> {
        self.begun = Some(content);
        self.current.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        self.current.extend_from_slice(bytes);
        Ok(())
    }

    fn chunk(&mut self, _: Tag) -> Result<Vec<u8>, SyncError> {
        unreachable!("this replica says that it has none")
    }

    /// Sometimes returns another content.
    fn own(&mut self, content: ContentId) -> Result<Option<File>, SyncError> {
        let text =
            self.text(content).map(|text| if content.0[2].is_multiple_of(8) { text + "!" } else { text });
        text.map(|text| file(&text)).transpose()
    }

    fn finish(&mut self, content: ContentId) -> Result<(), SyncError> {
        let text = String::from_utf8(std::mem::take(&mut self.current)).unwrap();
        self.begun.take().unwrap();
        self.staged.insert(content, text);
        Ok(())
    }
}

impl Replica for Disk {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn store(&self) -> String {
        String::new()
    }

    fn dag(&self) -> &Dag {
        &self.dag
    }

    fn head(&self) -> SnapshotId {
        self.head.unwrap()
    }

    fn trees(&self) -> Vec<SnapshotId> {
        self.trees.keys().copied().collect()
    }

    fn tree(&self, id: SnapshotId) -> Result<Option<Tree>, SyncError> {
        Ok(self.trees.get(&id).cloned())
    }

    fn heads(&self) -> BTreeMap<Device, SnapshotId> {
        self.heads.clone()
    }

    fn stage(&mut self, content: ContentId) -> Result<bool, SyncError> {
        if let Some(text) = self.text(content) {
            self.staged.insert(content, text);
        }
        Ok(self.staged.contains_key(&content))
    }

    fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Returns true for most of them.
    fn held(&mut self, contents: &[ContentId]) -> Result<Vec<bool>, SyncError> {
        Ok(contents.iter().map(|content| content.0[0] % 4 > 0 && self.past.contains_key(content)).collect())
    }

    fn have(&mut self, _: ContentId, _: &TreePath, _: usize) -> Result<Vec<Tag>, SyncError> {
        Ok(Vec::new())
    }

    fn selection(&self) -> Selection {
        self.selection.clone()
    }

    fn is_partial(&self) -> bool {
        self.partial
    }

    fn lacks(&self) -> bool {
        self.partial && self.lacking
    }

    fn here(&self) -> Option<Tree> {
        self.here.clone()
    }

    fn is_used(&self, path: &[u8]) -> bool {
        self.files.contains_key(path)
    }

    fn is_staged(&self, content: ContentId) -> bool {
        self.staged.contains_key(&content)
    }

    fn take_part(&mut self, lacks: bool, kept: BTreeSet<ContentId>) {
        (self.will_lack, self.kept) = (lacks, kept);
    }

    fn adopt(&mut self, snapshot: &Snapshot, target: &Tree, ops: &[Op]) -> Result<Done, SyncError> {
        self.trees.insert(snapshot.id(), target.clone());
        self.partial |= self.will_lack;
        self.journal = Some(snapshot.clone());
        let before = self.last();
        let skipped = adopt::adopt(self, &before, target, ops)?;
        match skipped.iter().any(|step| step.again) {
            _ if skipped.is_empty() => self.commit(snapshot)?,
            true => {}
            false => {
                self.tick()?;
                self.journal = None;
                self.look(Some(target))?;
            }
        }
        Ok(Done { skipped: skipped.into_iter().map(|step| (step.path, step.why)).collect() })
    }

    fn do_without(&mut self, contents: BTreeMap<ContentId, String>) {
        self.absent = contents;
    }

    fn meet(&mut self, theirs: (&Snapshot, &Tree), both: &Snapshot) -> Result<(), SyncError> {
        let own = self.last();
        let met = self.dag.add(theirs.0.clone())?;
        let head = self.dag.add(both.clone())?;
        self.trees.extend([(met, theirs.1.clone()), (head, own)]);
        self.heads.insert(theirs.0.seen.clone().unwrap().0, met);
        self.head = Some(head);
        Ok(())
    }

    fn learn(
        &mut self,
        dag: Dag,
        heads: BTreeMap<Device, SnapshotId>,
        trees: &[(SnapshotId, &Tree)],
    ) -> Result<(), SyncError> {
        self.trees.extend(trees.iter().map(|(id, tree)| (*id, (*tree).clone())));
        self.dag = dag;
        self.heads = heads;
        let mut ends: BTreeSet<SnapshotId> = self.heads.values().copied().collect();
        ends.insert(self.head());
        self.dag.forget_before(&ends);
        let dag = &self.dag;
        self.trees.retain(|id, _| dag.get(*id).is_some());
        Ok(())
    }
}
