//! Plan from one tree to another: a list of steps, each one visible system call. Pure; the simulator and the real
//! directory execute the same list.
//!
//! Order: directories are created and files moved as soon as there is room for them, then contents are put in
//! place, then leftovers are removed, then metadata set. Every file stays in the tree: when files exchange
//! places, one waits under a name in the root. So the steps can end after any of them, and the difference
//! between the present tree and the target is exactly the remaining steps.

mod narrow;

use super::group::{Rows, stays};
use super::tree::{ContentId, Entry, Ident, Tree, TreePath, join, split};
use narrow::{WAITING, narrow};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates a directory at a free path.
    MakeDir {
        /// Its path.
        path: TreePath,
        /// Its final state.
        entry: Entry,
    },
    /// Renames to a free path.
    Move {
        /// The old path.
        from: TreePath,
        /// The new path.
        to: TreePath,
    },
    /// Creates an entry at a free path.
    Create {
        /// Its path.
        path: TreePath,
        /// The entry.
        entry: Entry,
        /// The path that it is a hard link to.
        link: Option<TreePath>,
    },
    /// Replaces an entry that is no directory.
    Replace {
        /// Its path.
        path: TreePath,
        /// The present entry.
        was: Entry,
        /// The new entry.
        entry: Entry,
        /// The path that it is a hard link to.
        link: Option<TreePath>,
    },
    /// Removes a file or an empty directory.
    Remove {
        /// Its path.
        path: TreePath,
        /// The present entry.
        was: Entry,
    },
    /// Replaces a whole group, creates it, or removes it.
    Group {
        /// Its path.
        path: TreePath,
        /// The present entries.
        was: Rows,
        /// The new entries.
        is: Rows,
    },
    /// Sets mode, time and xattrs.
    Meta {
        /// The path of the entry.
        path: TreePath,
        /// The present entry.
        was: Entry,
        /// The new entry.
        entry: Entry,
    },
}

impl Op {
    /// Returns the staged regular files that the step uses: the path of each, the new entry, and the present one.
    pub fn staged(&self) -> Vec<(TreePath, &Entry, Option<&Entry>)> {
        let rows = match self {
            Op::Create { path, entry, link: None } => vec![(path.clone(), entry, None)],
            Op::Replace { path, entry, link: None, was } => vec![(path.clone(), entry, Some(was))],
            Op::Group { path, was, is } => {
                let new = is.iter().map(|(suffix, row)| ([&path[..], suffix].concat(), row, was.get(suffix)));
                new.filter(|(_, row, was)| was.is_none_or(|was| !stays(was, row))).collect()
            }
            _ => Vec::new(),
        };
        rows.into_iter().filter(|(_, entry, _)| entry.kind.content().is_some()).collect()
    }
}

impl Op {
    /// Returns the contents that the step removes from their paths.
    pub fn takes_away(&self) -> Vec<ContentId> {
        match self {
            Op::Replace { was, .. } | Op::Remove { was, .. } => was.kind.content().into_iter().collect(),
            Op::Group { was, .. } => was.values().filter_map(|row| row.kind.content()).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the path that the step concerns.
    pub fn path(&self) -> &TreePath {
        match self {
            Op::MakeDir { path, .. }
            | Op::Move { from: path, .. }
            | Op::Create { path, .. }
            | Op::Replace { path, .. }
            | Op::Remove { path, .. }
            | Op::Group { path, .. }
            | Op::Meta { path, .. } => path,
        }
    }

    /// Returns the contents that the step puts in place.
    pub fn puts(&self) -> Vec<ContentId> {
        match self {
            Op::Create { entry, .. } | Op::Replace { entry, .. } => {
                entry.kind.content().into_iter().collect()
            }
            Op::Group { is, .. } => is.values().filter_map(|row| row.kind.content()).collect(),
            _ => Vec::new(),
        }
    }
}

/// Numbers of paths that steps concern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// New paths.
    pub created: u64,
    /// Paths with another content or other metadata.
    pub updated: u64,
    /// Removed paths.
    pub deleted: u64,
    /// Renamed paths; a directory counts once.
    pub renamed: u64,
}

/// Counts the steps.
pub fn summary(ops: &[Op]) -> Summary {
    let mut sum = Summary::default();
    for op in ops {
        match op {
            Op::MakeDir { .. } | Op::Create { .. } => sum.created += 1,
            Op::Replace { .. } | Op::Meta { .. } => sum.updated += 1,
            Op::Remove { .. } => sum.deleted += 1,
            Op::Group { was, .. } if was.is_empty() => sum.created += 1,
            Op::Group { is, .. } if is.is_empty() => sum.deleted += 1,
            Op::Group { .. } => sum.updated += 1,
            // A file that waits is counted when it arrives.
            Op::Move { to, .. } => sum.renamed += u64::from(!to.starts_with(WAITING)),
        }
    }
    sum
}

type Place = (Ident, Vec<u8>);

/// Returns the steps from `from` to `to`.
pub fn plan(from: &Tree, to: &Tree) -> Vec<Op> {
    match narrow(from, to, SHARE) {
        Some((from, to)) => plan_all(&from, &to),
        None => plan_all(from, to),
    }
}

/// A plan is made from parts of the trees if these are at most one in this many of all entries.
const SHARE: usize = 4;

fn plan_all(from: &Tree, to: &Tree) -> Vec<Op> {
    let mut work = Work::new(from, to);
    work.arrange();
    work.put_files();
    work.clear();
    work.set_metadata();
    work.ops
}

struct Work<'a> {
    to: &'a Tree,
    /// The file at each place now.
    slots: BTreeMap<Place, Ident>,
    /// Entries now, by ident of `to`, one for each name.
    now: BTreeMap<Place, Entry>,
    /// The place of each directory now.
    dirs: BTreeMap<Ident, Place>,
    /// The places of each ident that is no directory.
    files: BTreeMap<Ident, BTreeSet<Place>>,
    /// The target entry of each place.
    wanted: BTreeMap<Place, (&'a TreePath, &'a Entry)>,
    /// Paths whose metadata their step has set already.
    fresh: BTreeSet<TreePath>,
    ops: Vec<Op>,
}

fn places<'a>(tree: &'a Tree, known: impl Fn(Ident) -> Ident) -> BTreeMap<Place, (&'a TreePath, &'a Entry)> {
    let place = |path: &'a TreePath| {
        let (dir, name) = split(path);
        let parent = tree.entries.get(dir).map_or(Ident::ROOT, |dir| known(dir.ident));
        (parent, name.to_vec())
    };
    tree.entries.iter().map(|(path, entry)| (place(path), (path, entry))).collect()
}

impl<'a> Work<'a> {
    fn new(from: &Tree, to: &'a Tree) -> Work<'a> {
        // Entries of the same kind at one path, each with an ident that the other tree does not know, count as one
        // file.
        let (old, new) = (from.by_ident(), to.by_ident());
        let mut same = BTreeMap::new();
        let mut used = BTreeSet::new();
        for (path, was) in &from.entries {
            let Some(is) = to.entries.get(path).filter(|is| is.kind.is_dir() == was.kind.is_dir()) else {
                continue;
            };
            let apart = !new.contains_key(&was.ident) && !old.contains_key(&is.ident);
            if apart && !same.contains_key(&was.ident) && used.insert(is.ident) {
                same.insert(was.ident, is.ident);
            }
        }
        // A change of type makes another file.
        let dirs_now = |ident| old.get(&ident).is_some_and(|paths| from.entries[paths[0]].kind.is_dir());
        let dirs_then = |paths: &Vec<&TreePath>| to.entries[paths[0]].kind.is_dir();
        for (ident, paths) in new.iter().filter(|(ident, _)| old.contains_key(ident)) {
            if dirs_then(paths) != dirs_now(*ident) {
                same.insert(*ident, Ident::derive(&[b"of\x20another\x20type", &ident.0.to_le_bytes()]));
            }
        }
        let known = |ident: Ident| *same.get(&ident).unwrap_or(&ident);
        let mut work = Work {
            to,
            slots: BTreeMap::new(),
            now: BTreeMap::new(),
            dirs: BTreeMap::new(),
            files: BTreeMap::new(),
            wanted: places(to, |ident| ident),
            fresh: BTreeSet::new(),
            ops: Vec::new(),
        };
        for (place, (_, entry)) in places(from, known) {
            let ident = known(entry.ident);
            work.set(place, Entry { ident, ..entry.clone() });
        }
        work
    }

    fn path(&self, place: &Place) -> TreePath {
        let mut path = place.1.clone();
        let mut dir = place.0;
        while let Some((parent, name)) = self.dirs.get(&dir) {
            path = join(name, &path);
            dir = *parent;
        }
        path
    }

    fn is_below(&self, mut dir: Ident, above: Ident) -> bool {
        while dir != above {
            match self.dirs.get(&dir) {
                Some((parent, _)) => dir = *parent,
                None => return false,
            }
        }
        true
    }

    /// Creates directories, and moves files to their new places.
    fn arrange(&mut self) {
        let mut names: BTreeMap<Ident, (u32, u32)> = BTreeMap::new();
        for ident in self.slots.values() {
            names.entry(*ident).or_default().0 += 1;
        }
        for (_, entry) in self.wanted.values() {
            names.entry(entry.ident).or_default().1 += 1;
        }
        // In the order of paths: directories before their entries.
        let mut pending: BTreeMap<TreePath, (Place, Ident)> = BTreeMap::new();
        for (place, (path, entry)) in &self.wanted {
            let here = self.slots.get(place) == Some(&entry.ident);
            let moved = names[&entry.ident] == (1, 1);
            if !here && (moved || entry.kind.is_dir()) {
                pending.insert((*path).clone(), (place.clone(), entry.ident));
            }
        }
        let mut waiting = BTreeSet::new();
        while !pending.is_empty() {
            let still: BTreeSet<Ident> = pending.values().map(|(_, ident)| *ident).collect();
            let mut left = BTreeMap::new();
            let before = self.ops.len();
            let mut moving = still;
            for (path, (place, ident)) in std::mem::take(&mut pending) {
                match self.settle(&place, ident, &moving) {
                    true => drop(moving.remove(&ident)),
                    false => drop(left.insert(path, (place, ident))),
                }
            }
            pending = left;
            if self.ops.len() == before && !pending.is_empty() {
                // These files wait for each other.
                let one = pending
                    .values()
                    .map(|(_, ident)| *ident)
                    .find(|ident| self.place_of(*ident).is_some() && !waiting.contains(ident));
                let ident = one.expect("one of the files that wait for each other can be moved");
                waiting.insert(ident);
                let mut name = [WAITING, format!("{:016x}", ident.0).as_bytes()].concat();
                while self.slots.contains_key(&(Ident::ROOT, name.clone()))
                    || self.wanted.contains_key(&(Ident::ROOT, name.clone()))
                {
                    name.push(b'x');
                }
                self.rename(ident, (Ident::ROOT, name));
            }
        }
    }

    fn place_of(&self, ident: Ident) -> Option<Place> {
        self.dirs.get(&ident).or_else(|| self.files.get(&ident)?.first()).cloned()
    }

    /// Brings a file to its place if that is possible now.
    fn settle(&mut self, place: &Place, ident: Ident, moving: &BTreeSet<Ident>) -> bool {
        let parent = place.0;
        let ready = parent == Ident::ROOT || self.dirs.contains_key(&parent);
        if !ready || self.is_below(parent, ident) {
            return false;
        }
        if self.slots.contains_key(place) && !self.make_room(place, moving) {
            return false;
        }
        match self.place_of(ident) {
            Some(_) => self.rename(ident, place.clone()),
            None => {
                let (_, entry) = self.wanted[place];
                let path = self.path(place);
                self.fresh.insert(path.clone());
                self.ops.push(Op::MakeDir { path, entry: entry.clone() });
                self.set(place.clone(), entry.clone());
            }
        }
        true
    }

    /// Removes an entry that the target tree does not have, unless entries in it have still to be moved.
    fn make_room(&mut self, place: &Place, moving: &BTreeSet<Ident>) -> bool {
        let ident = self.slots[place];
        let mut all = vec![place.clone()];
        let mut next = vec![ident];
        while let Some(dir) = next.pop() {
            if moving.contains(&dir) {
                return false;
            }
            if self.dirs.contains_key(&dir) {
                for (place, child) in
                    self.slots.range((dir, Vec::new())..).take_while(|(place, _)| place.0 == dir)
                {
                    // An entry that stays, below a directory that goes, is moved with that directory.
                    if self.wanted.get(place).is_some_and(|(_, entry)| entry.ident == *child) {
                        return false;
                    }
                    all.push(place.clone());
                    next.push(*child);
                }
            }
        }
        all.into_iter().rev().for_each(|place| self.remove(&place));
        true
    }

    fn remove(&mut self, place: &Place) {
        let path = self.path(place);
        if let Some(was) = self.unset(place) {
            self.ops.push(Op::Remove { path, was });
        }
    }

    /// Frees a place. Returns its entry.
    fn unset(&mut self, place: &Place) -> Option<Entry> {
        let ident = self.slots.remove(place)?;
        let was = self.now.remove(place).expect("a used place has an entry");
        match was.kind.is_dir() {
            true => drop(self.dirs.remove(&ident)),
            false => drop(self.files.get_mut(&ident).map(|places| places.remove(place))),
        }
        Some(was)
    }

    fn rename(&mut self, ident: Ident, to: Place) {
        let from = self.place_of(ident).expect("a moved file has a place");
        self.ops.push(Op::Move { from: self.path(&from), to: self.path(&to) });
        let entry = self.unset(&from).expect("a moved file has a place");
        self.set(to, entry);
    }

    fn set(&mut self, place: Place, entry: Entry) {
        self.unset(&place);
        match entry.kind.is_dir() {
            true => drop(self.dirs.insert(entry.ident, place.clone())),
            false => drop(self.files.entry(entry.ident).or_default().insert(place.clone())),
        }
        self.slots.insert(place.clone(), entry.ident);
        self.now.insert(place, entry);
    }

    /// Puts contents in place.
    fn put_files(&mut self) {
        let mut files: Vec<(Place, TreePath, Entry)> = self
            .wanted
            .iter()
            .filter(|(_, (_, entry))| !entry.kind.is_dir())
            .map(|(place, (path, entry))| (place.clone(), (*path).clone(), (*entry).clone()))
            .collect();
        // Free places first: a content that one step replaces may be one that another step stores as a copy, and the
        // machine may stop in between.
        files.sort_by_key(|(place, ..)| self.now.contains_key(place));
        let mut names: BTreeMap<Ident, u32> = BTreeMap::new();
        let mut names_now: BTreeMap<Ident, u32> = BTreeMap::new();
        files.iter().for_each(|(_, _, entry)| *names.entry(entry.ident).or_default() += 1);
        self.slots.values().for_each(|ident| *names_now.entry(*ident).or_default() += 1);
        let stays = |now: Option<&Entry>, entry: &Entry| {
            let linked = |now: &Entry| names[&entry.ident] > 1 || names_now[&now.ident] > 1;
            now.is_some_and(|now| now.kind == entry.kind && (now.ident == entry.ident || !linked(now)))
        };
        // A file that stays under another ident has no other names.
        for (place, _, entry) in &files {
            if let Some(now) = self.now.get(place).filter(|now| stays(Some(now), entry)).cloned() {
                self.set(place.clone(), Entry { ident: entry.ident, ..now });
            }
        }
        for (place, path, entry) in files {
            if stays(self.now.get(&place), &entry) {
                continue;
            }
            if self.now.get(&place).is_some_and(|now| now.kind.is_dir()) {
                let done = self.make_room(&place, &BTreeSet::new());
                assert!(done, "all that stays was moved out of the directory before");
            }
            // If the file has another name with that content already, this path becomes a hard link to it.
            let named = self.files.get(&entry.ident).into_iter().flatten();
            let named = named.map(|place| (place, &self.now[place])).find(|(_, now)| now.kind == entry.kind);
            let (link, entry) = match named {
                Some((place, now)) => (Some(self.path(place)), now.clone()),
                None => {
                    self.fresh.insert(path.clone());
                    (None, entry)
                }
            };
            match self.now.get(&place) {
                Some(was) => {
                    self.ops.push(Op::Replace { path, was: was.clone(), entry: entry.clone(), link });
                }
                None => self.ops.push(Op::Create { path, entry: entry.clone(), link }),
            }
            self.set(place, entry);
        }
    }

    /// Removes the remaining entries that the target tree does not have.
    fn clear(&mut self) {
        let over = self.slots.keys().filter(|place| !self.wanted.contains_key(*place));
        let mut over: Vec<(TreePath, Place)> = over.map(|place| (self.path(place), place.clone())).collect();
        over.sort();
        over.into_iter().rev().for_each(|(_, place)| self.remove(&place));
    }

    fn set_metadata(&mut self) {
        // Setting it through one name sets it for all names.
        let mut set: BTreeSet<Ident> = BTreeSet::new();
        for (place, now) in &self.now {
            let (path, entry) = self.wanted[place];
            if set.contains(&now.ident) {
                continue;
            }
            let unwritable = entry.kind.is_dir() && entry.mode & 0o700 != 0o700;
            let differs = now.mode != entry.mode || now.mtime != entry.mtime || now.xattrs != entry.xattrs;
            let fresh = self.fresh.contains(path);
            if (differs && !fresh) || (fresh && unwritable) {
                set.insert(now.ident);
                self.ops.push(Op::Meta { path: path.clone(), was: now.clone(), entry: entry.clone() });
            }
        }
        debug_assert_eq!(self.now.len(), self.to.entries.len());
    }
}

/// Applies a step to a tree.
#[cfg(test)]
pub(super) fn apply(tree: &mut Tree, op: &Op) {
    match op {
        Op::MakeDir { path, entry } => drop(tree.entries.insert(path.clone(), entry.clone())),
        Op::Create { path, entry, link } | Op::Replace { path, entry, link, .. } => {
            // A link is the file that it leads to; any other entry is a new file, even if it has a known ident.
            tree.entries.remove(path);
            let known = |ident| tree.entries.values().any(|entry| entry.ident == ident);
            let entry = match link.as_ref().and_then(|link| tree.entries.get(link)) {
                Some(link) => link.clone(),
                None if known(entry.ident) => {
                    let ident = Ident::derive(&[b"another", &entry.ident.0.to_le_bytes(), path]);
                    Entry { ident, ..entry.clone() }
                }
                None => entry.clone(),
            };
            tree.entries.insert(path.clone(), entry);
        }
        Op::Remove { path, .. } => drop(tree.entries.remove(path)),
        Op::Group { path, was, is } => {
            was.keys().for_each(|suffix| drop(tree.entries.remove(&[&path[..], suffix].concat())));
            is.iter().for_each(|(suffix, row)| {
                drop(tree.entries.insert([&path[..], suffix].concat(), row.clone()));
            });
        }
        Op::Meta { path, entry, .. } => {
            let ident = tree.entries.get(path).map(|now| now.ident);
            for now in tree.entries.values_mut().filter(|now| Some(now.ident) == ident) {
                let (author, kind) = (now.author.clone(), now.kind.clone());
                *now = Entry { ident: now.ident, author, kind, ..entry.clone() };
            }
        }
        Op::Move { from, to } => {
            let below = [&from[..], b"/"].concat();
            let moved: Vec<TreePath> = tree
                .entries
                .keys()
                .filter(|path| *path == from || path.starts_with(&below))
                .cloned()
                .collect();
            for path in moved {
                let entry = tree.entries.remove(&path).expect("it was just there");
                tree.entries.insert([&to[..], &path[from.len()..]].concat(), entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge::tests::any_tree;
    use super::*;
    use proptest::prelude::*;

    /// What counts of a tree beside idents: paths, contents, metadata, and what is linked to what.
    fn shape(tree: &Tree) -> Vec<(TreePath, Entry, Vec<TreePath>)> {
        let groups = tree.by_ident();
        let row = |(path, entry): (&TreePath, &Entry)| {
            let linked = groups[&entry.ident].iter().map(|path| (*path).clone()).collect();
            let author = super::super::device::Device::named("x");
            (path.clone(), Entry { ident: Ident(1), author, ..entry.clone() }, linked)
        };
        tree.entries.iter().map(row).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// The steps lead there; each is possible when it is its turn; and cut after any of them, the rest leads there.
        #[test]
        fn steps_lead_from_any_tree_to_any_other(from in any_tree("l"), to in any_tree("r"), cut in 0usize..20) {
            let mut tree = from.clone();
            for (n, op) in plan(&from, &to).iter().enumerate() {
                if n == cut {
                    let mut rest = tree.clone();
                    plan(&tree, &to).iter().for_each(|op| apply(&mut rest, op));
                    prop_assert_eq!(shape(&rest), shape(&to));
                }
                let has = |path: &TreePath| tree.entries.contains_key(path);
                match op {
                    Op::Group { .. } => unreachable!("there are no groups in these trees"),
                    Op::MakeDir { path, .. } => prop_assert!(!has(path), "{:?}", op),
                    Op::Create { path, link, .. } => prop_assert!(!has(path) && link.as_ref().is_none_or(has)),
                    Op::Replace { path, link, .. } => {
                        prop_assert!(!tree.entries[path].kind.is_dir() && link.as_ref().is_none_or(has));
                    }
                    Op::Move { from, to } => prop_assert!(has(from) && !has(to), "{:?}", op),
                    Op::Remove { path, .. } | Op::Meta { path, .. } => prop_assert!(has(path)),
                }
                apply(&mut tree, op);
                // Orphans show that a directory was removed that was not empty. What waits is in the tree too.
                prop_assert!(!matches!(tree.check(), Err(super::super::tree::TreeError::Orphan(_))), "{:?}", op);
            }
            prop_assert_eq!(shape(&tree), shape(&to));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Both trees have the same entries elsewhere, some of them other names of their files.
        #[test]
        fn entries_that_stay_change_no_step(from in any_tree("l"), to in any_tree("r"), rest in any_tree("l")) {
            let [from, to] = [from, to].map(|mut tree| {
                let named: BTreeMap<Ident, Entry> =
                    tree.entries.values().map(|entry| (entry.ident, entry.clone())).collect();
                for (path, entry) in &rest.entries {
                    let entry = match entry.kind.is_dir() {
                        true => Entry { ident: Ident(entry.ident.0 + 1000), ..entry.clone() },
                        false => named.get(&entry.ident).unwrap_or(entry).clone(),
                    };
                    tree.entries.insert([b"rest-", &path[..]].concat(), entry);
                }
                tree
            });
            let (short_from, short_to) = narrow(&from, &to, 0).unwrap();
            prop_assert_eq!(plan_all(&short_from, &short_to), plan_all(&from, &to));
        }

        /// A tree, and the same with some entries of another.
        #[test]
        fn some_changes_give_the_same_steps(from in any_tree("l"), other in any_tree("l"), picked in any::<u64>()) {
            let mut to = from.clone();
            for (n, path) in from.entries.keys().chain(other.entries.keys()).enumerate() {
                if picked >> (n % 64) & 1 == 0 {
                    match other.entries.get(path) {
                        Some(entry) => drop(to.entries.insert(path.clone(), entry.clone())),
                        None => drop(to.entries.remove(path)),
                    }
                }
            }
            if to.check().is_err() {
                return Ok(());
            }
            let (short_from, short_to) = narrow(&from, &to, 0).unwrap();
            prop_assert_eq!(plan_all(&short_from, &short_to), plan_all(&from, &to));
        }
    }

    #[test]
    fn a_plan_for_one_change_looks_at_little() {
        use super::super::merge::tests::{dir, file, tree};
        let mut from = tree(&[("d", dir(1)), ("e", dir(2)), ("d/link", file(9, "a", "x"))]);
        for n in 0..100 {
            from.entries.insert(format!("d/{n}").into_bytes(), file(n + 100, "a", "x"));
        }
        let mut to = from.clone();
        to.entries.insert(b"e/link".to_vec(), file(9, "a", "x"));
        let (short, _) = narrow(&from, &to, 4).unwrap();
        assert_eq!(short.entries.keys().collect::<Vec<_>>(), [&b"d"[..], b"d/link", b"e"]);
        assert_eq!(plan(&from, &to), plan_all(&from, &to));
        assert!(narrow(&from, &Tree::default(), 4).is_none());
    }

    #[test]
    fn a_renamed_directory_is_one_step_and_two_can_change_places() {
        use super::super::merge::tests::{dir, file, tree};
        let from =
            tree(&[("a", dir(1)), ("a/f", file(2, "a", "x")), ("b", dir(3)), ("b/g", file(4, "a", "y"))]);
        let to =
            tree(&[("a", dir(1)), ("a/f", file(2, "a", "x")), ("c", dir(3)), ("c/g", file(4, "a", "y"))]);
        assert_eq!(plan(&from, &to), [Op::Move { from: b"b".to_vec(), to: b"c".to_vec() }]);
        let to =
            tree(&[("b", dir(1)), ("b/f", file(2, "a", "x")), ("a", dir(3)), ("a/g", file(4, "a", "y"))]);
        let ops = plan(&from, &to);
        assert_eq!((ops.len(), summary(&ops).renamed), (3, 2), "{ops:?}");
    }
}
