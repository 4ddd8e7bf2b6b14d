//! Groups: directories and databases that belong together, and never mix two states.
//!
//! - Groups are: a directory called `.git`; one that looks like a bare repository (`HEAD`, `objects/`, `refs/`); one
//!   that a glob of the setting `groups` in `[sync]` matches; and an SQLite database, which is a file with a `-wal`,
//!   `-shm` or `-journal` next to it.
//! - Before merging and planning, each group is folded into one file, whose content is the hash of everything in it.
//!   Afterwards it is unfolded. So the rules for files hold for a group: it is changed, renamed, deleted and in
//!   conflict as a whole.
//! - Entries moved into a group or out of it count as created and deleted.
//! - Pure: no I/O.

use super::attributes::{self, RESERVED, is_reserved};
use super::device::Device;
use super::halfway;
use super::identify;
use super::merge::{self, Conflict, Merged, conflict_name, parse_conflict_name};
use super::plan::{self, Op};
use super::seen::{Inode, Seen};
use super::tree::{ContentId, Entry, Ident, Kind, Tree, TreePath, join, split};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

mod rows;

pub use rows::{ITSELF, Rows, stays};

/// Suffixes of the files that SQLite keeps next to a database.
pub const BESIDE: [&[u8]; 3] = [b"-journal", b"-shm", b"-wal"];
/// Prefix of a feature in a hello: a glob of the sending side.
const FEATURE: &str = "group ";
/// The size of a folded group.
const FOLDED: u64 = u64::MAX;

/// Distinguishes devices of inodes inside groups from those outside.
const APART: u64 = 1 << 63;

/// The rules that decide which directories and files are groups.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    globs: BTreeSet<String>,
    set: GlobSet,
}

impl Groups {
    /// Returns the built-in rules plus globs. A glob with a slash matches a directory's path, any other its name.
    pub fn of(globs: impl IntoIterator<Item = String>) -> Result<Groups, globset::Error> {
        let globs: BTreeSet<String> = globs.into_iter().collect();
        let mut set = GlobSetBuilder::new();
        for glob in &globs {
            let path = glob.trim_matches('/');
            let anywhere = !glob.trim_end_matches('/').contains('/');
            let path = if anywhere { format!("**/{path}") } else { path.to_owned() };
            set.add(GlobBuilder::new(&path).literal_separator(true).build()?);
        }
        Ok(Groups { globs, set: set.build()? })
    }

    /// Returns the globs as features for the hello.
    pub fn features(&self) -> Vec<String> {
        self.globs.iter().map(|glob| format!("{FEATURE}{glob}")).collect()
    }

    /// Adds the globs in the peer's features; ignores invalid ones.
    pub fn with(&self, features: &[String]) -> Groups {
        let told = features.iter().filter_map(|feature| feature.strip_prefix(FEATURE)).map(str::to_owned);
        let told = told.filter(|glob| Groups::of([glob.clone()]).is_ok()).take(256);
        Groups::of(self.globs.iter().cloned().chain(told)).unwrap_or_else(|_| self.clone())
    }

    /// Returns whether the directory at `path` is a group; `kind` returns the kind of the entry at a path.
    pub(super) fn is_directory<'a>(&self, path: &[u8], kind: &dyn Fn(&[u8]) -> Option<&'a Kind>) -> bool {
        let (dir, name) = split(path);
        // A conflict copy of a group is a group too.
        let name = parse_conflict_name(name).map_or_else(|| name.to_vec(), |(name, _)| name);
        let is_dir = |name: &[u8]| kind(&join(path, name)).is_some_and(Kind::is_dir);
        let is_file = |name: &[u8]| kind(&join(path, name)).is_some_and(|kind| kind.content().is_some());
        name == b".git"
            || (is_file(b"HEAD") && is_dir(b"objects") && is_dir(b"refs"))
            || self.set.is_match(Path::new(OsStr::from_bytes(&join(dir, &name))))
    }

    /// Returns the groups among `paths` that are in no other group, in the same order, each with the suffixes of its
    /// members. The directories in `too` count as groups.
    pub fn find<'a>(
        &self,
        all: &[(&'a TreePath, &'a Kind)],
        too: &dyn Fn(&[u8]) -> bool,
    ) -> BTreeMap<TreePath, Vec<Vec<u8>>> {
        let at = |path: &[u8]| all.binary_search_by(|(other, _)| other[..].cmp(path));
        let kind = |path: &[u8]| at(path).ok().map(|n| all[n].1);
        let mut found: BTreeMap<TreePath, Vec<Vec<u8>>> = BTreeMap::new();
        let mut dirs: BTreeSet<&[u8]> = BTreeSet::new();
        let inside = |dirs: &BTreeSet<&[u8]>, path: &[u8]| {
            let mut above = split(path).0;
            while !above.is_empty() && !dirs.contains(above) {
                above = split(above).0;
            }
            !above.is_empty()
        };
        for (path, is) in all {
            if is.is_dir() && !inside(&dirs, path) && (self.is_directory(path, &kind) || too(path)) {
                dirs.insert(path);
                let below = join(path, b"");
                let first = at(&below).unwrap_or_else(|n| n);
                let members = all[first..].iter().take_while(|(other, _)| other.starts_with(&below));
                let members = members.map(|(other, _)| other[path.len()..].to_vec());
                found.insert((*path).clone(), [ITSELF.to_vec()].into_iter().chain(members).collect());
            }
        }
        let mut members: BTreeSet<TreePath> = BTreeSet::new();
        for (path, is) in all.iter().filter(|(_, is)| is.content().is_some()) {
            let Some(stem) = BESIDE.iter().find_map(|suffix| path.strip_suffix(*suffix)) else { continue };
            let is_file = kind(stem).is_some_and(|kind| kind.content().is_some()) && is.content().is_some();
            if is_file && !split(path).1.is_empty() && !inside(&dirs, path) && !members.contains(stem) {
                members.insert((*path).clone());
                let database = found.entry(stem.to_vec()).or_insert_with(|| vec![ITSELF.to_vec()]);
                database.push(path[stem.len()..].to_vec());
            }
        }
        found
    }

    /// Identifies entries as [`identify::identify`] does. A hard link from a group to the outside counts as a separate
    /// file.
    pub fn look(
        &self,
        seen: &mut BTreeMap<TreePath, Seen>,
        last: &Tree,
        mut inodes: BTreeMap<TreePath, Inode>,
        agreed: Option<&Tree>,
        device: &Device,
        seq: u64,
    ) -> Tree {
        let now: Vec<(&TreePath, &Kind)> = seen.iter().map(|(path, seen)| (path, &seen.kind)).collect();
        let found = self.find(&now, &|_| false);
        let is_dir = |path: &TreePath| seen[path].kind.is_dir();
        let apart = apart(&found, &is_dir, &|| seen.iter().map(|(path, seen)| (path, seen.inode)).collect());
        for (path, inode) in apart {
            seen.entry(path).and_modify(|seen| seen.inode = inode);
        }
        agree_on_links(seen);
        let is_dir = |path: &TreePath| last.entries[path].kind.is_dir();
        let found = self.find(&kinds(last), &|_| false);
        let apart =
            self::apart(&found, &is_dir, &|| inodes.iter().map(|(path, inode)| (path, *inode)).collect());
        inodes.extend(apart);
        identify::identify(seen, last, &inodes, agreed, device, seq)
    }

    /// Merges as [`merge::merge`] does, but each group as a whole.
    pub fn merge(&self, base: &Tree, left: &Tree, right: &Tree) -> Merged {
        let mut folds = Folds::new(self, &[base, left, right]);
        let folded = [base, left, right].map(|tree| folds.fold(self, tree, false));
        match folds.rows.is_empty() {
            true => merge::merge(base, left, right),
            false => folds.unfold(merge::merge(&folded[0], &folded[1], &folded[2])),
        }
    }

    /// The same for a directory that holds `now`, on its way from `before` to `agreed`. Steps replace the files of a
    /// database, and the names of a file, one after the other: those that are half-way count as before.
    pub fn merge_on_the_way(&self, before: &Tree, now: &Tree, agreed: &Tree) -> Merged {
        let mut folds = Folds::new(self, &[before, now, agreed]);
        let [from, is, goal] = [before, now, agreed].map(|tree| folds.fold(self, tree, false));
        let mut is = halfway::without_half_taken(&from, &is, &goal);
        if folds.rows.is_empty() {
            return merge::merge(&from, &is, &goal);
        }
        let by_ident = |tree: &Tree| -> BTreeMap<Ident, Kind> {
            tree.entries.values().map(|entry| (entry.ident, entry.kind.clone())).collect()
        };
        let (was, to) = (by_ident(&from), by_ident(&goal));
        let first = |kind: &Kind| folds.rows.get(&kind.content()?).map(|all| all[0].1.clone());
        for entry in is.entries.values_mut() {
            let (Some(was), Some(to)) = (was.get(&entry.ident), to.get(&entry.ident)) else { continue };
            if first(was).is_none() && first(to).is_none() || entry.kind == *to || entry.kind == *was {
                continue;
            }
            let rows = |kind: &Kind| {
                first(kind).unwrap_or_else(|| {
                    Rows::from([(ITSELF.to_vec(), Entry { kind: kind.clone(), ..entry.clone() })])
                })
            };
            let (now, was_rows, to_rows) = (rows(&entry.kind), rows(was), rows(to));
            let from_either = |(suffix, row): (&Vec<u8>, &Entry)| {
                [&was_rows, &to_rows]
                    .iter()
                    .any(|rows| rows.get(suffix).is_some_and(|other| other.kind == row.kind))
            };
            if now.iter().all(from_either) {
                entry.kind = was.clone();
            }
        }
        folds.unfold(merge::merge(&from, &is, &goal))
    }

    /// Plans as [`plan::plan`] does, with one step for each group.
    pub fn plan(&self, from: &Tree, to: &Tree) -> Vec<Op> {
        let mut folds = Folds::new(self, &[from, to]);
        let folded = [from, to].map(|tree| folds.fold(self, tree, true));
        if folds.rows.is_empty() {
            return plan::plan(from, to);
        }
        let ops = plan::plan(&folded[0], &folded[1]);
        folds.unfold_steps(&folded[0], to, ops)
    }
}

/// Returns other inode numbers for members of groups, so that they differ from the same inodes outside. This concerns
/// entries in directories, and files of a database that have names elsewhere.
fn apart<'a>(
    groups: &BTreeMap<TreePath, Vec<Vec<u8>>>,
    is_dir: &dyn Fn(&TreePath) -> bool,
    inodes: &dyn Fn() -> HashMap<&'a TreePath, Inode>,
) -> BTreeMap<TreePath, Inode> {
    let mut apart = BTreeMap::new();
    if groups.is_empty() {
        return apart;
    }
    let inodes = inodes();
    let mut names: HashMap<Inode, usize> = HashMap::new();
    inodes.values().for_each(|inode| *names.entry(*inode).or_default() += 1);
    for (path, members) in groups {
        let Some((_, number)) = inodes.get(path) else { continue };
        let dir = is_dir(path);
        for suffix in &members[usize::from(dir)..] {
            let member = [&path[..], suffix].concat();
            if let Some(inode) = inodes.get(&member).filter(|inode| dir || names[*inode] > 1) {
                apart.insert(member, (number | APART, inode.1));
            }
        }
    }
    apart
}

/// Makes all names of an inode agree on its latest state. They may differ if the file was written while the scan
/// examined one name after the other.
fn agree_on_links(seen: &mut BTreeMap<TreePath, Seen>) {
    let mut inodes: Vec<Inode> =
        seen.values().filter(|now| !now.kind.is_dir()).map(|now| now.inode).collect();
    inodes.sort_unstable();
    let several = inodes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    let several: HashSet<Inode> = several.collect();
    if several.is_empty() {
        return;
    }
    let mut latest: HashMap<Inode, Seen> = HashMap::new();
    for now in seen.values().filter(|now| !now.kind.is_dir() && several.contains(&now.inode)) {
        let last = latest.entry(now.inode).or_insert_with(|| now.clone());
        if (now.mtime, &now.kind) > (last.mtime, &last.kind) {
            last.clone_from(now);
        }
    }
    for now in seen.values_mut() {
        if let Some(last) = latest.get(&now.inode) {
            now.clone_from(last);
        }
    }
}

/// The groups of some trees, by the content that each was folded into: the number of the tree, and the rows.
struct Folds {
    /// A directory that is a group in one of the trees is one in all.
    dirs: BTreeSet<Ident>,
    rows: BTreeMap<ContentId, Vec<(usize, Rows)>>,
    /// The groups of each tree, by ident.
    trees: Vec<BTreeMap<Ident, Rows>>,
}

fn kinds(tree: &Tree) -> Vec<(&TreePath, &Kind)> {
    tree.entries.iter().map(|(path, entry)| (path, &entry.kind)).collect()
}

/// Returns whether a row is an index of git, which git rewrites even if a program only reads the repository.
fn is_git_index(rows: &Rows, suffix: &[u8]) -> bool {
    let beside = |dir: &[u8]| [dir, b"/HEAD"].concat();
    suffix.strip_suffix(b"/index").is_some_and(|dir| rows.contains_key(&beside(dir)))
}

/// Returns a hash that identifies the state of a group. The group's own mode and xattrs are left out, since they are
/// merged separately. Without `exact`, times and git's index are left out too, since they make no difference, and owners and
/// ACLs, which are merged file by file.
fn digest(rows: &Rows, exact: bool) -> ContentId {
    let told: Vec<_> = rows
        .iter()
        .filter(|(suffix, _)| exact || !is_git_index(rows, suffix))
        .map(|(suffix, row)| {
            let apart = suffix[..] == *ITSELF;
            let counts = |(name, _): &(&Vec<u8>, &Vec<u8>)| exact || !is_reserved(name);
            let xattrs: BTreeMap<&Vec<u8>, &Vec<u8>> = row.xattrs.iter().filter(counts).collect();
            let meta = (!apart).then_some((row.mode, xattrs));
            (suffix, &row.kind, meta, exact.then_some(row.mtime))
        })
        .collect();
    let bytes = postcard::to_allocvec(&told).expect("rows can be encoded");
    ContentId(*blake3::Hasher::new_derive_key("dedupfs sync group").update(&bytes).finalize().as_bytes())
}

impl Folds {
    fn new(groups: &Groups, trees: &[&Tree]) -> Folds {
        let mut dirs = BTreeSet::new();
        for tree in trees {
            for path in groups.find(&kinds(tree), &|_| false).into_keys() {
                let entry = &tree.entries[&path];
                dirs.extend(entry.kind.is_dir().then_some(entry.ident));
            }
        }
        Folds { dirs, rows: BTreeMap::new(), trees: Vec::new() }
    }

    /// Returns `tree` with each group folded into one file.
    fn fold(&mut self, groups: &Groups, tree: &Tree, exact: bool) -> Tree {
        let (mut folded, mut by_ident) = (tree.clone(), BTreeMap::new());
        let is_one =
            |path: &[u8]| tree.entries.get(path).is_some_and(|entry| self.dirs.contains(&entry.ident));
        for (path, members) in groups.find(&kinds(tree), &is_one) {
            let mut rows = Rows::new();
            for suffix in members {
                let member = [&path[..], &suffix].concat();
                folded.entries.remove(&member);
                rows.insert(suffix, tree.entries[&member].clone());
            }
            let itself = rows[ITSELF].clone();
            let before = self.trees.first().and_then(|first| first.get(&itself.ident));
            // The author of the new entries in the group, if there are any.
            let new = |(suffix, row): &(&Vec<u8>, &Entry)| {
                before.is_none_or(|rows| rows.get(*suffix) != Some(*row))
            };
            let authors = || rows.iter().filter(|(_, row)| !row.kind.is_dir());
            let author = authors().filter(new).map(|(_, row)| &row.author).max();
            let author =
                author.or_else(|| authors().map(|(_, row)| &row.author).max()).unwrap_or(&itself.author);
            let content = digest(&rows, exact);
            let kind = Kind::File { content, size: FOLDED };
            folded
                .entries
                .insert(path, Entry { author: author.clone(), kind, mtime: (0, 0), ..itself.clone() });
            by_ident.insert(itself.ident, rows.clone());
            self.rows.entry(content).or_default().push((self.trees.len(), rows));
        }
        self.trees.push(by_ident);
        folded
    }

    /// Returns the rows of the folded group that now has `ident`. Prefers those of a side that differ from the first
    /// tree, even if only in times or git's index.
    fn choose(&self, content: &ContentId, ident: Ident) -> Option<&Rows> {
        let all = self.rows.get(content)?;
        let own = all.iter().filter(|(_, rows)| rows[ITSELF].ident == ident).collect::<Vec<_>>();
        let among = if own.is_empty() { all.iter().collect() } else { own };
        let first = among.iter().find(|(tree, _)| *tree == 0).map(|(_, rows)| rows);
        let newer =
            among.iter().filter(|(tree, rows)| *tree > 0 && Some(rows) != first).map(|(_, rows)| rows);
        let encoded = |rows: &&Rows| postcard::to_allocvec(rows).expect("rows can be encoded");
        newer.max_by_key(encoded).or(first).or_else(|| among.first().map(|(_, rows)| rows))
    }

    fn folded(&self, entry: &Entry) -> Option<&Rows> {
        match entry.kind {
            Kind::File { content, size: FOLDED } => self.choose(&content, entry.ident),
            _ => None,
        }
    }

    /// Returns the tree with its groups unfolded.
    fn unfold(&self, mut merged: Merged) -> Merged {
        let folded = merged
            .tree
            .entries
            .iter()
            .filter_map(|(path, entry)| Some((path.clone(), entry.clone(), self.folded(entry)?)));
        let folded: Vec<(TreePath, Entry, &Rows)> = folded.collect();
        folded.iter().for_each(|(path, ..)| drop(merged.tree.entries.remove(path)));
        let outside = merged.tree.entries.values().map(|entry| entry.ident);
        let mut used: BTreeSet<Ident> =
            outside.chain(folded.iter().map(|(_, entry, _)| entry.ident)).collect();
        for (path, itself, rows) in folded {
            let copy = rows[ITSELF].ident != itself.ident;
            let mut renamed: BTreeMap<Ident, Ident> = BTreeMap::new();
            for (suffix, row) in rows {
                let mut entry = row.clone();
                if suffix[..] == *ITSELF {
                    entry = Entry {
                        ident: itself.ident,
                        mode: itself.mode,
                        xattrs: itself.xattrs.clone(),
                        ..entry
                    };
                } else {
                    let taken = copy || used.contains(&row.ident);
                    let again = || {
                        Ident::derive(&[
                            b"in a group",
                            &itself.ident.0.to_le_bytes(),
                            &row.ident.0.to_le_bytes(),
                        ])
                    };
                    let known = renamed.get(&row.ident).copied();
                    entry.ident = known.unwrap_or_else(|| if taken { again() } else { row.ident });
                    renamed.insert(row.ident, entry.ident);
                    self.merge_owners(itself.ident, suffix, &mut entry);
                }
                let at = [&path[..], suffix].concat();
                self.make_room(&mut merged, &at);
                merged.tree.entries.insert(at, entry);
            }
            used.extend(renamed.into_values());
        }
        merged.conflicts.sort();
        merged
    }

    /// Merges owner and ACLs of a file in the group `ident` that both sides have.
    fn merge_owners(&self, ident: Ident, suffix: &[u8], entry: &mut Entry) {
        let row = |tree: usize| self.trees.get(tree)?.get(&ident)?.get(suffix);
        let (Some(left), Some(right)) = (row(1), row(2)) else { return };
        for name in RESERVED {
            let of = |row: &Entry| row.xattrs.get(name).cloned();
            let (base, left, right) = (row(0).and_then(of), of(left), of(right));
            let merged = match () {
                () if left == right || base == right => left,
                () if base == left => right,
                () => attributes::merge(name, base.as_ref(), left.as_ref(), right.as_ref()),
            };
            match merged {
                Some(value) => drop(entry.xattrs.insert(name.to_vec(), value)),
                None => drop(entry.xattrs.remove(name)),
            }
        }
    }

    /// Moves an entry that the other side created under the name of a database's file to a conflict name.
    fn make_room(&self, merged: &mut Merged, at: &TreePath) {
        let Some(there) = merged.tree.entries.get(at).cloned() else { return };
        let (dir, name) = split(at);
        let hash = blake3::hash(&postcard::to_allocvec(&there.kind).expect("a kind can be encoded"));
        let copies = (0..).map(|n| join(dir, &conflict_name(name, &there.author, hash.as_bytes(), n)));
        let copy = copies
            .into_iter()
            .find(|copy| !merged.tree.entries.contains_key(copy))
            .expect("names do not end");
        let below = join(at, b"");
        let moved: Vec<TreePath> = merged
            .tree
            .entries
            .keys()
            .filter(|path| *path == at || path.starts_with(&below))
            .cloned()
            .collect();
        for path in moved {
            let entry = merged.tree.entries.remove(&path).expect("it was there");
            merged.tree.entries.insert([&copy[..], &path[at.len()..]].concat(), entry);
        }
        let loser = there.author.clone();
        merged.conflicts.push(Conflict { path: at.clone(), winner: there.author, copy, loser });
    }

    /// Translates steps on folded files to steps on groups.
    fn unfold_steps(&self, from: &Tree, to: &Tree, ops: Vec<Op>) -> Vec<Op> {
        let mut at = from.entries.clone();
        let rows = |entry: &Entry| {
            self.folded(entry).cloned().unwrap_or_else(|| Rows::from([(ITSELF.to_vec(), entry.clone())]))
        };
        // As the tree has it, with the agreed mode.
        let wanted = |path: &TreePath, entry: &Entry| -> Rows {
            let row = |suffix: &Vec<u8>| {
                Some((suffix.clone(), to.entries.get(&[&path[..], suffix].concat())?.clone()))
            };
            rows(entry).keys().filter_map(row).collect()
        };
        let real = |entry: &Entry| match self.folded(entry) {
            Some(rows) => {
                Entry { kind: rows[ITSELF].kind.clone(), mtime: rows[ITSELF].mtime, ..entry.clone() }
            }
            None => entry.clone(),
        };
        let is_group = |entry: &Entry| self.folded(entry).is_some();
        let mut steps = Vec::new();
        for op in ops {
            match op {
                Op::Create { path, entry, .. } if is_group(&entry) => {
                    let is = wanted(&path, &entry);
                    at.insert(path.clone(), entry);
                    steps.push(Op::Group { path, was: Rows::new(), is });
                }
                Op::Replace { path, was, entry, .. } if is_group(&was) || is_group(&entry) => {
                    let (was, is) = (rows(&was), wanted(&path, &entry));
                    at.insert(path.clone(), entry);
                    steps.push(Op::Group { path, was, is });
                }
                Op::Remove { path, was } if is_group(&was) => {
                    at.remove(&path);
                    steps.push(Op::Group { path, was: rows(&was), is: Rows::new() });
                }
                Op::Meta { path, was, entry } => {
                    steps.push(Op::Meta { path, was: real(&was), entry: real(&entry) });
                }
                Op::Move { from, to } => {
                    let below = join(&from, b"");
                    let moved: Vec<TreePath> = at
                        .keys()
                        .filter(|path| **path == from || path.starts_with(&below))
                        .cloned()
                        .collect();
                    // A directory takes its entries along, a database does not.
                    let database = at.get(&from).and_then(|entry| self.folded(entry));
                    let database = database.filter(|rows| !rows[ITSELF].kind.is_dir());
                    for suffix in database.into_iter().flat_map(|rows| rows.keys().rev()) {
                        let (from, to) = ([&from[..], suffix].concat(), [&to[..], suffix].concat());
                        steps.push(Op::Move { from, to });
                    }
                    for path in moved {
                        let entry = at.remove(&path).expect("it was there");
                        at.insert([&to[..], &path[from.len()..]].concat(), entry);
                    }
                    if database.is_none() {
                        steps.push(Op::Move { from, to });
                    }
                }
                op => {
                    if let Op::Create { path, entry, .. }
                    | Op::Replace { path, entry, .. }
                    | Op::MakeDir { path, entry } = &op
                    {
                        at.insert(path.clone(), entry.clone());
                    }
                    steps.push(op);
                }
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests;
