//! The parts of two trees that matter for the steps between them, so that a plan for one changed file of a million costs little
//! more than the comparison.
//!
//! Kept are:
//!
//! - entries that differ, in both trees;
//! - all names of their idents: the number of names decides what a hard link is;
//! - everything below a directory that differs: its entries are in another directory, even if their paths are the same;
//! - the directories above all of these;
//! - names in the root under which files wait for their place.

use super::super::tree::{Entry, Tree, TreePath, split};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};

/// Prefix of names in the root under which a file waits for its place.
pub(super) const WAITING: &[u8] = b".dedupfs-moving-";

/// Calls `visit` with the entries of both trees at each path, in the order of the paths.
fn both<'a>(
    from: &'a Tree,
    to: &'a Tree,
    mut visit: impl FnMut(&'a TreePath, Option<&'a Entry>, Option<&'a Entry>),
) {
    let (mut left, mut right) = (from.entries.iter().peekable(), to.entries.iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (Some((a, _)), Some((b, _))) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        let was = if order.is_le() { left.next() } else { None };
        let is = if order.is_ge() { right.next() } else { None };
        let path = was.or(is).expect("one of both has an entry").0;
        visit(path, was.map(|(_, entry)| entry), is.map(|(_, entry)| entry));
    }
}

/// Returns the parts of both trees; `None` if they are more than one in `share` of all entries.
pub(super) fn narrow(from: &Tree, to: &Tree, share: usize) -> Option<(Tree, Tree)> {
    let (mut paths, mut idents) = (BTreeSet::new(), HashSet::new());
    let is_dir = |entry: Option<&Entry>| entry.is_some_and(|entry| entry.kind.is_dir());
    // Directories above this path are compared already: entries follow their directory, although not at once.
    let mut differing: BTreeSet<&[u8]> = BTreeSet::new();
    both(from, to, |path, was, is| {
        let below = !differing.is_empty() && above(path).any(|dir| differing.contains(dir));
        if below || was != is || path.starts_with(WAITING) {
            idents.extend([was, is].into_iter().flatten().map(|entry| entry.ident));
            paths.insert(path);
        }
        if was != is && (is_dir(was) || is_dir(is)) {
            differing.insert(path);
        }
    });
    // Names of these idents bring no further ones, so that once is enough.
    for tree in [from, to] {
        let named = |entry: &Entry| idents.contains(&entry.ident);
        paths.extend(tree.entries.iter().filter(|(_, entry)| named(entry)).map(|(path, _)| path));
    }
    if paths.len() * 2 * share > from.entries.len() + to.entries.len() {
        return None;
    }
    let dirs: BTreeSet<&[u8]> = paths.iter().flat_map(|path| above(path)).collect();
    let part = |tree: &Tree| {
        let all = paths.iter().map(|path| &path[..]).chain(dirs.iter().copied());
        let rows = all.filter_map(|path| Some((path.to_vec(), tree.entries.get(path)?.clone())));
        Tree { entries: rows.collect() }
    };
    Some((part(from), part(to)))
}

/// Returns the directories above a path, from the bottom.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = path;
    std::iter::from_fn(move || {
        at = split(at).0;
        (!at.is_empty()).then_some(at)
    })
}
