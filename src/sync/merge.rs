//! Merge of two trees against their common base.
//!
//! - Pure, and symmetric: exchanging left and right gives the same result.
//! - Each file (ident) is merged separately: its content with its type, mode, time, each xattr and its location. For
//!   each of these, the side that changed it wins. The same change on both sides is no conflict.
//! - If both changed the content differently, both contents are kept. One keeps the name, by a rule that is the same
//!   on all devices. The other is stored next to it as `name.conflict-<device>-<8 hex>.ext`.
//! - A changed file beats its deletion, and brings back the directories that it needs.
//! - A file's location is a directory and a name. So an entry created in a directory that the other side renamed ends
//!   up in the renamed one.
//! - A content belongs to the file, whatever names lead to it: an edit through one name is an edit of all of them. A
//!   name that one side turned into a separate file without a change still follows the other side's changes.
//! - Memory: one more copy of the three trees, by ident.

use super::attributes::{self, Values, same_xattrs};
use super::device::Device;
use super::tree::{Entry, Ident, Kind, NAME_BYTES_MAX, Time, Tree, TreePath, join, split};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A content that both sides changed differently, and the paths of both versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The name that both files had.
    pub path: TreePath,
    /// The author of the version that has the name now.
    pub winner: Device,
    /// The path of the other version.
    pub copy: TreePath,
    /// The author of the other version.
    pub loser: Device,
}

/// The result of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The tree.
    pub tree: Tree,
    /// Files that are there in two versions now.
    pub conflicts: Vec<Conflict>,
    /// Files that one side deleted and the other changed: they are kept.
    pub kept: Vec<TreePath>,
}

/// A directory and a name in it.
type Place = (Ident, Vec<u8>);

/// A file without its location.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    author: Device,
    kind: Kind,
    mode: u16,
    mtime: Time,
    xattrs: Values,
}

#[derive(Clone, Debug)]
struct Node {
    item: Item,
    places: BTreeSet<Place>,
}

type Side = BTreeMap<Ident, Node>;

/// Returns whether `a` keeps the name: directories first, then by the author's name, then by content. Clocks do not
/// count.
fn outranks(a: &Item, b: &Item) -> bool {
    (a.kind.is_dir(), &a.author, &a.kind) > (b.kind.is_dir(), &b.author, &b.kind)
}

/// Merges one property: the side that changed it wins. If both changed it, `both` decides, which must be symmetric.
fn three<T: PartialEq + Clone>(base: Option<&T>, left: &T, right: &T, both: impl FnOnce(&T, &T) -> T) -> T {
    match base {
        _ if left == right => left.clone(),
        Some(base) if base == left => right.clone(),
        Some(base) if base == right => left.clone(),
        _ => both(left, right),
    }
}

/// Merges one file that both sides have. Returns the result, and the content that lost its name.
fn decide(base: Option<&Item>, left: &Item, right: &Item) -> (Item, Option<Item>) {
    let changed = |item: &Item| base.is_none_or(|base| base.kind != item.kind);
    let (content, loser) = match (changed(left), changed(right)) {
        _ if left.kind == right.kind => (if left.author <= right.author { left } else { right }, None),
        (true, false) => (left, None),
        (false, true) => (right, None),
        _ if outranks(left, right) => (left, Some(right.clone())),
        _ => (right, Some(left.clone())),
    };
    let mtime = match left.kind == right.kind {
        true => three(base.map(|base| &base.mtime), &left.mtime, &right.mtime, |a, b| *a.max(b)),
        false => content.mtime,
    };
    let item = Item {
        author: content.author.clone(),
        kind: content.kind.clone(),
        // Never more rights than either side allows.
        mode: three(base.map(|base| &base.mode), &left.mode, &right.mode, |a, b| a & b),
        mtime,
        xattrs: decide_xattrs(base, left, right),
    };
    (item, loser)
}

fn decide_xattrs(base: Option<&Item>, left: &Item, right: &Item) -> Values {
    if left.xattrs == right.xattrs {
        return left.xattrs.clone();
    }
    let names: BTreeSet<&Vec<u8>> = left.xattrs.keys().chain(right.xattrs.keys()).collect();
    let of = |item: &Item, name: &[u8]| item.xattrs.get(name).cloned();
    let value = |name: &Vec<u8>| {
        let base = base.map(|base| of(base, name));
        three(base.as_ref(), &of(left, name), &of(right, name), |a, b| match attributes::is_reserved(name) {
            true => attributes::merge(name, base.as_ref().and_then(Option::as_ref), a.as_ref(), b.as_ref()),
            // A value beats none, and the greater value beats the other.
            false => a.clone().max(b.clone()),
        })
    };
    names.into_iter().filter_map(|name| Some((name.clone(), value(name)?))).collect()
}

/// Returns whether the side that still has a file changed it so that a deletion by the other side must not remove it.
fn beats_deletion(base: &Node, now: &Node) -> bool {
    // An owner or ACL is no reason to keep a file.
    let content = base.item.kind != now.item.kind || !same_xattrs(&base.item.xattrs, &now.item.xattrs);
    // Removing a name is a deletion too.
    let moved = !now.places.is_subset(&base.places);
    content || (!now.item.kind.is_dir() && (base.item.mode != now.item.mode || moved))
}

/// Returns the file that a new file was a name of before. The new one has the same content, so a user turned the name
/// into a separate file.
fn parted_from(now: &Node, base: &Side, in_base: &BTreeMap<&Place, Ident>) -> Option<Ident> {
    let mut owners = now.places.iter().filter_map(|place| in_base.get(place).copied());
    let whole = owners.next().filter(|whole| owners.all(|other| other == *whole))?;
    let was = &base[&whole];
    (was.places.len() > 1 && was.item.kind == now.item.kind).then_some(whole)
}

/// Merges a name that one side turned into a separate file: it follows the other side's changes of the original file.
fn follow(now: &Node, was: &Node, other: Option<&Node>) -> Option<Node> {
    let changed = now.item.mode != was.item.mode || !same_xattrs(&now.item.xattrs, &was.item.xattrs);
    let left = |place: &&Place| {
        let stays = other.is_some_and(|other| other.places.contains(*place));
        changed || stays || !was.places.contains(*place)
    };
    let places: BTreeSet<Place> = now.places.iter().filter(left).cloned().collect();
    let item =
        other.map_or_else(|| now.item.clone(), |other| decide(Some(&was.item), &now.item, &other.item).0);
    (!places.is_empty()).then_some(Node { item, places })
}

/// The location of a file that both sides have.
enum Places {
    Are(BTreeSet<Place>),
    /// One of the sides gave each of its names to another file; the content is unchanged.
    Nowhere,
    /// The same, but the content was changed.
    Torn,
}

/// `given` returns whether another file has a name now.
fn places(base: Option<&Node>, left: &Node, right: &Node, given: impl Fn(&Place) -> bool) -> Places {
    let single = |node: &Node| node.places.len() == 1;
    let none = BTreeSet::new();
    let of_base = base.map_or(&none, |base| &base.places);
    if single(left) && single(right) && base.is_none_or(single) {
        let one = three(base.map(|base| &base.places), &left.places, &right.places, |a, b| a.max(b).clone());
        return Places::Are(one);
    }
    // Hard links: each name by itself.
    let all = left.places.union(&right.places);
    let kept = |place: &&Place| {
        let (l, r) = (left.places.contains(*place), right.places.contains(*place));
        (l && r) || !of_base.contains(*place)
    };
    let merged: BTreeSet<Place> = all.filter(kept).cloned().collect();
    if !merged.is_empty() {
        return Places::Are(merged);
    }
    // Each side removed the names that the other kept. A side that kept a name meant to keep the file.
    let left_over = left.places.union(&right.places);
    let free: BTreeSet<Place> = left_over.filter(|place| !given(place)).cloned().collect();
    let changed = base.is_none_or(|base| [left, right].iter().any(|side| side.item.kind != base.item.kind));
    match (free.is_empty(), changed) {
        (false, _) => Places::Are(free),
        (true, false) => Places::Nowhere,
        (true, true) => Places::Torn,
    }
}

/// Returns the file in each place.
fn owners(side: &Side) -> BTreeMap<&Place, Ident> {
    side.iter().flat_map(|(ident, node)| node.places.iter().map(|place| (place, *ident))).collect()
}

/// Returns the files by ident. Names of one ident with different contents count as separate files; no scan produces
/// them.
fn side(tree: &Tree, same: &BTreeMap<Ident, Ident>) -> Side {
    let known = |ident: Ident| *same.get(&ident).unwrap_or(&ident);
    let mut side = Side::new();
    for (path, entry) in &tree.entries {
        let (dir, name) = split(path);
        let parent = tree.entries.get(dir).map_or(Ident::ROOT, |dir| known(dir.ident));
        let Entry { author, kind, mode, mtime, xattrs, .. } = entry.clone();
        let item = Item { author, kind, mode, mtime, xattrs };
        let mut ident = known(entry.ident);
        if side.get(&ident).is_some_and(|other| other.item.kind != item.kind) {
            ident = Ident::derive(&[b"apart", &ident.0.to_le_bytes(), path]);
        }
        let node = side.entry(ident).or_insert_with(|| Node { item, places: BTreeSet::new() });
        node.places.insert((parent, name.to_vec()));
    }
    side
}

/// Returns idents that mean one file: created on both sides, with the same path and content. Maps the greater to the
/// smaller.
fn same(base: &Tree, left: &Tree, right: &Tree) -> BTreeMap<Ident, Ident> {
    let idents = |tree: &Tree| tree.entries.values().map(|entry| entry.ident).collect::<BTreeSet<_>>();
    let (in_base, in_left, in_right) = (idents(base), idents(left), idents(right));
    let mut same = BTreeMap::new();
    let mut used = BTreeSet::new();
    for (path, l) in &left.entries {
        let Some(r) = right.entries.get(path) else { continue };
        let new = !in_base.contains(&l.ident) && !in_base.contains(&r.ident);
        let apart = !in_right.contains(&l.ident) && !in_left.contains(&r.ident);
        if l.ident != r.ident
            && new
            && apart
            && l.kind == r.kind
            && !used.contains(&l.ident)
            && !used.contains(&r.ident)
        {
            used.extend([l.ident, r.ident]);
            same.insert(l.ident.max(r.ident), l.ident.min(r.ident));
        }
    }
    same
}

/// Merges `left` and `right`, which both descend from `base`. Without a base nothing counts as deleted.
pub fn merge(base: &Tree, left: &Tree, right: &Tree) -> Merged {
    if left == right || base == right {
        return Merged { tree: left.clone(), ..Merged::default() };
    }
    if base == left {
        return Merged { tree: right.clone(), ..Merged::default() };
    }
    let same = same(base, left, right);
    let (base, left, right) = (side(base, &same), side(left, &same), side(right, &same));
    let mut work = Work { was: base.clone(), ..Work::default() };
    let idents: BTreeSet<Ident> = left.keys().chain(right.keys()).copied().collect();
    let (in_base, in_left, in_right) = (owners(&base), owners(&left), owners(&right));
    for ident in idents {
        let was = base.get(&ident);
        match (left.get(&ident), right.get(&ident)) {
            (Some(l), Some(r)) => {
                let born = || born_as(ident, l, r, [&in_base, &in_left, &in_right]);
                let (item, loser) = decide(was.map(|was| &was.item).or_else(born), &l.item, &r.item);
                let given = |place: &Place| {
                    [&in_left, &in_right]
                        .iter()
                        .any(|owners| owners.get(place).is_some_and(|owner| *owner != ident))
                };
                let places = match places(was, l, r, given) {
                    Places::Are(places) => places,
                    Places::Nowhere => continue,
                    Places::Torn => {
                        work.tear(ident, item, loser, l, r);
                        continue;
                    }
                };
                if let (Some(loser), Some((parent, name))) = (loser, places.first()) {
                    let copy = copy_of(ident, &loser);
                    work.copies.insert(copy);
                    work.losers.entry(*parent).or_default().push((name.clone(), copy, loser));
                }
                work.nodes.insert(ident, Node { item, places });
            }
            (Some(now), None) | (None, Some(now)) if was.is_none() => {
                let other = if left.contains_key(&ident) { &right } else { &left };
                let node = match parted_from(now, &base, &in_base) {
                    Some(whole) => follow(now, &base[&whole], other.get(&whole)),
                    None => Some(now.clone()),
                };
                work.nodes.extend(node.map(|node| (ident, node)));
            }
            (Some(now), None) | (None, Some(now)) => match was {
                Some(was) if !beats_deletion(was, now) => {}
                _ => {
                    work.kept.extend(was.map(|_| ident));
                    work.nodes.insert(ident, now.clone());
                }
            },
            (None, None) => {}
        }
    }
    work.complete(&base, &left, &right);
    work.lay_out()
}

/// Children of a directory by name.
type Children = BTreeMap<Vec<u8>, Vec<Ident>>;

#[derive(Default)]
struct Work {
    was: Side,
    nodes: Side,
    /// By directory: the name, the ident that the loser gets, and its content.
    losers: BTreeMap<Ident, Vec<(Vec<u8>, Ident, Item)>>,
    /// Files created by a conflict within one file.
    copies: BTreeSet<Ident>,
    kept: BTreeSet<Ident>,
}

/// Returns the ident of a content that lost its name. Every device that meets the conflict derives the same ident,
/// whatever name the file has there.
fn copy_of(ident: Ident, loser: &Item) -> Ident {
    Ident::derive(&[b"conflict", &ident.0.to_le_bytes(), &digest(&loser.kind)])
}

/// Returns the content that a conflict copy was created with, if one of the two sides still has it. In this case both
/// sides met the conflict separately, and one of them has edited the copy since. The lookup of the original file uses
/// the copy's name, and does not search all files.
fn born_as<'a>(
    ident: Ident,
    left: &'a Node,
    right: &'a Node,
    trees: [&BTreeMap<&Place, Ident>; 3],
) -> Option<&'a Item> {
    if left.item.kind == right.item.kind {
        return None;
    }
    left.places.union(&right.places).find_map(|(dir, name)| {
        let was = (*dir, parse_conflict_name(name)?.0);
        let files = trees.into_iter().filter_map(|owners| owners.get(&was));
        files
            .flat_map(|file| [(file, &left.item), (file, &right.item)])
            .find(|(file, item)| copy_of(**file, item) == ident)
            .map(|(_, item)| item)
    })
}

impl Work {
    /// Keeps each side's version under that side's names, if each side has the file under names that the other gave to
    /// other files.
    fn tear(&mut self, ident: Ident, item: Item, loser: Option<Item>, left: &Node, right: &Node) {
        let of = |kind: &Kind| {
            let sides = [left, right].into_iter().filter(|side| side.item.kind == *kind);
            sides.flat_map(|side| side.places.iter().cloned()).collect()
        };
        if let Some(loser) = loser {
            self.nodes.insert(copy_of(ident, &loser), Node { places: of(&loser.kind), item: loser });
        }
        self.nodes.insert(ident, Node { places: of(&item.kind), item });
    }

    /// Makes sure that every file is in a directory that leads to the root.
    fn complete(&mut self, base: &Side, left: &Side, right: &Side) {
        let mut moved_back = BTreeSet::new();
        loop {
            self.revive_directories(base, left, right);
            let Some(ident) = self.in_a_circle() else { return };
            // Each side moved a directory into one that the other moved into it: back to its former place, or to the
            // root.
            let name = self.nodes[&ident].places.first().map(|place| place.1.clone()).unwrap_or_default();
            let back = match base.get(&ident) {
                Some(was) if moved_back.insert(ident) => was.places.clone(),
                _ => BTreeSet::from([(Ident::ROOT, name)]),
            };
            self.nodes.entry(ident).and_modify(|node| node.places = back);
        }
    }

    fn revive_directories(&mut self, base: &Side, left: &Side, right: &Side) {
        let parents = |node: &Node| node.places.iter().map(|place| place.0).collect::<Vec<_>>();
        let mut next: Vec<Ident> =
            self.nodes.values().flat_map(parents).chain(self.losers.keys().copied()).collect();
        while let Some(ident) = next.pop() {
            if ident != Ident::ROOT && !self.nodes.contains_key(&ident) {
                let node = [left, right, base].into_iter().find_map(|side| side.get(&ident));
                let node = node.expect("a directory that a file is in is in the same tree").clone();
                next.extend(parents(&node));
                self.nodes.insert(ident, node);
            }
        }
    }

    /// Returns the greatest directory of a cycle, if there is one.
    fn in_a_circle(&self) -> Option<Ident> {
        let up = |ident: Ident| self.nodes[&ident].places.first().map_or(Ident::ROOT, |place| place.0);
        let mut good = BTreeSet::from([Ident::ROOT]);
        for (ident, _) in self.nodes.iter().filter(|(_, node)| node.item.kind.is_dir()) {
            let mut way = Vec::new();
            let mut at = *ident;
            while !good.contains(&at) {
                if let Some(start) = way.iter().position(|seen| *seen == at) {
                    return way[start..].iter().max().copied();
                }
                way.push(at);
                at = up(at);
            }
            good.extend(way);
        }
        None
    }

    /// Gives every file its path, from the root down.
    fn lay_out(mut self) -> Merged {
        let mut children: BTreeMap<Ident, Children> = BTreeMap::new();
        for (ident, node) in &self.nodes {
            for (parent, name) in &node.places {
                children.entry(*parent).or_default().entry(name.clone()).or_default().push(*ident);
            }
        }
        let was: BTreeMap<Place, (Ident, Kind)> = self
            .was
            .iter()
            .flat_map(|(ident, node)| {
                node.places.iter().map(|place| (place.clone(), (*ident, node.item.kind.clone())))
            })
            .collect();
        let mut merged = Merged::default();
        let mut dirs = VecDeque::from([(Ident::ROOT, TreePath::new())]);
        while let Some((dir, path)) = dirs.pop_front() {
            let names = children.remove(&dir).unwrap_or_default();
            let mut losers = self.losers.remove(&dir).unwrap_or_default();
            let mut taken: BTreeMap<Vec<u8>, Kind> = BTreeMap::new();
            for (name, mut idents) in names {
                // Another inode with the former content of this name, for example if hard links were created or
                // separated: the other side replaced that content.
                let before = was.get(&(dir, name.clone()));
                let stale = |ident: &Ident| {
                    let kind = &self.nodes[ident].item.kind;
                    before.is_some_and(|(owner, before)| owner != ident && before == kind) && !kind.is_dir()
                };
                if !idents.iter().all(stale) {
                    idents.retain(|ident| !stale(ident));
                }
                let winner = self.winner(&idents);
                let item = self.nodes[&winner].item.clone();
                for other in idents.into_iter().filter(|other| *other != winner) {
                    let loser = &self.nodes[&other].item;
                    if loser.kind.is_dir() {
                        // Two directories with one name become one.
                        for (name, idents) in children.remove(&other).unwrap_or_default() {
                            children.entry(winner).or_default().entry(name).or_default().extend(idents);
                        }
                        let more = self.losers.remove(&other).unwrap_or_default();
                        self.losers.entry(winner).or_default().extend(more);
                    } else if loser.kind != item.kind {
                        losers.push((name.clone(), other, loser.clone()));
                    }
                }
                let at = join(&path, &name);
                if item.kind.is_dir() {
                    dirs.push_back((winner, at.clone()));
                }
                if self.kept.contains(&winner) {
                    merged.kept.push(at.clone());
                }
                taken.insert(name, item.kind.clone());
                merged.tree.entries.insert(at, item.entry(winner));
            }
            losers.sort_by(|a, b| {
                (&a.0, &a.2.author, &a.2.kind, a.1).cmp(&(&b.0, &b.2.author, &b.2.kind, b.1))
            });
            for (name, ident, loser) in losers {
                let mut ident = ident;
                if let Some(copy) = self.nodes.get(&ident).filter(|_| self.copies.contains(&ident)) {
                    // The conflict was met before, and the copy exists.
                    if copy.item.kind == loser.kind {
                        continue;
                    }
                    ident = Ident::derive(&[b"again", &ident.0.to_le_bytes(), &digest(&loser.kind)]);
                }
                merged.keep_beside(&path, &name, ident, loser, &mut taken);
            }
        }
        merged.conflicts.sort();
        merged
    }

    /// Returns the file that keeps the name, if several have it.
    fn winner(&self, idents: &[Ident]) -> Ident {
        let rank = |a: &Ident, b: &Ident| {
            let (x, y) = (&self.nodes[a].item, &self.nodes[b].item);
            match (outranks(x, y), outranks(y, x)) {
                _ if x.kind == y.kind => b.cmp(a),
                (true, _) => std::cmp::Ordering::Greater,
                _ => std::cmp::Ordering::Less,
            }
        };
        idents.iter().copied().max_by(rank).expect("a name is somebody's")
    }
}

impl Item {
    fn entry(self, ident: Ident) -> Entry {
        let Item { author, kind, mode, mtime, xattrs } = self;
        Entry { ident, author, kind, mode, mtime, xattrs }
    }
}

impl Merged {
    /// Adds a content that lost its name under a conflict name, unless it is there already.
    fn keep_beside(
        &mut self,
        dir: &[u8],
        name: &[u8],
        ident: Ident,
        loser: Item,
        taken: &mut BTreeMap<Vec<u8>, Kind>,
    ) {
        let hash = digest(&loser.kind);
        for n in 0.. {
            let copy = conflict_name(name, &loser.author, &hash, n);
            match taken.get(&copy) {
                Some(kind) if *kind == loser.kind => return,
                Some(_) => continue,
                None => {}
            }
            let winner = self.tree.entries.get(&join(dir, name));
            let winner = winner.map_or_else(|| loser.author.clone(), |entry| entry.author.clone());
            let at = join(dir, &copy);
            self.conflicts.push(Conflict {
                path: join(dir, name),
                winner,
                copy: at.clone(),
                loser: loser.author.clone(),
            });
            taken.insert(copy, loser.kind.clone());
            self.tree.entries.insert(at, loser.entry(ident));
            return;
        }
    }
}

/// Returns bytes that identify a content: for a file, its hash.
fn digest(kind: &Kind) -> [u8; 32] {
    let encoded = || postcard::to_allocvec(kind).expect("a kind can be encoded");
    kind.content().map_or_else(|| *blake3::hash(&encoded()).as_bytes(), |content| content.0)
}

/// Bytes of the suffix `-journal`.
const BESIDE_BYTES: usize = 8;
/// The infix of conflict names.
const INFIX: &str = ".conflict-";

/// Returns `name.conflict-<device>-<8 hex>.ext`; if `n` is not 0, it follows the digits. Long names are shortened
/// before the infix.
pub(super) fn conflict_name(name: &[u8], device: &Device, hash: &[u8; 32], n: u32) -> Vec<u8> {
    let dot = name.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0 && name.len() - at <= 20);
    let (stem, extension) = name.split_at(dot.unwrap_or(name.len()));
    let digits: String = hash[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let number = if n == 0 { String::new() } else { format!("-{n}") };
    let infix = format!("{INFIX}{device}-{digits}{number}");
    // Leaves room for the suffixes of a database's files.
    let most = NAME_BYTES_MAX - BESIDE_BYTES;
    let mut room = stem.len().min(most - infix.len() - extension.len());
    // Does not cut within a character of UTF-8.
    while room < stem.len() && stem[room] & 0xc0 == 0x80 && room > 0 {
        room -= 1;
    }
    [&stem[..room], infix.as_bytes(), extension].concat()
}

/// Parses a conflict name: the original name, and the author of the content. Returns `None` for other names.
pub fn parse_conflict_name(name: &[u8]) -> Option<(Vec<u8>, Device)> {
    let at = name.windows(INFIX.len()).rposition(|window| window == INFIX.as_bytes())?;
    let rest = std::str::from_utf8(&name[at + INFIX.len()..]).ok()?;
    let (tag, extension) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
    let mut parts = tag.rsplitn(2, '-');
    let mut last = parts.next()?;
    let mut device = parts.next()?;
    if last.len() < 8 {
        // A number after the digits.
        (device, last) = device.rsplit_once('-')?;
    }
    let digits = last.len() == 8 && last.bytes().all(|b| b.is_ascii_hexdigit());
    let device = Device::try_from(device.to_owned()).ok().filter(|_| digits && at > 0)?;
    Some(([&name[..at], extension.as_bytes()].concat(), device))
}

#[cfg(test)]
pub(super) mod tests;
