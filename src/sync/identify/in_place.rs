//! The common case of identification: every entry is where it was, new, or gone.

use crate::sync::device::Device;
use crate::sync::seen::{Inode, Seen};
use crate::sync::tree::{Entry, Ident, Tree, TreePath};
use std::collections::{BTreeMap, HashSet};

/// Does what [`super::identify`] does without a tree that was being taken. Returns `None` if an entry may have another name
/// now, or if files have several names that do not agree. Costs one pass, and a change of the tree for each difference.
pub(super) fn in_place(
    seen: &BTreeMap<TreePath, Seen>,
    last: &Tree,
    inodes: &BTreeMap<TreePath, Inode>,
    device: &Device,
    seq: u64,
) -> Option<Tree> {
    let (mut known, mut numbers) = (last.entries.iter().peekable(), inodes.iter().peekable());
    let mut rows: Vec<(Inode, Ident, Option<&Entry>)> = Vec::with_capacity(seen.len());
    let (mut gone, mut strangers, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    for (path, now) in seen {
        while let Some((before, _)) = known.next_if(|(before, _)| *before < path) {
            gone.push(before);
        }
        while numbers.next_if(|(before, _)| *before < path).is_some() {}
        let was = known.next_if(|(before, _)| *before == path).map(|(_, was)| was);
        let inode = numbers.next_if(|(before, _)| *before == path).map(|(_, inode)| *inode);
        let stayed = was.is_some() && inode == Some(now.inode);
        if was.is_some_and(|was| was.kind.is_dir() != now.kind.is_dir() || was.kind.is_dir() && !stayed) {
            return None;
        }
        if !stayed {
            strangers.push(now.inode);
        }
        let ident = was.map_or_else(|| Ident::made(device, seq, path), |was| was.ident);
        rows.push((now.inode, ident, was));
        let is_same = |was: &Entry| {
            (&was.kind, was.mode, was.mtime) == (&now.kind, now.mode, now.mtime) && was.xattrs == now.xattrs
        };
        if !was.is_some_and(is_same) {
            let author = was.filter(|was| was.kind == now.kind).map_or(device, |was| &was.author).clone();
            let Seen { kind, mode, mtime, xattrs, .. } = now.clone();
            changed.push((path.clone(), Entry { ident, author, kind, mode, mtime, xattrs }));
        }
    }
    gone.extend(known.map(|(before, _)| before));
    let gone_inodes: HashSet<Inode> = gone.iter().filter_map(|path| inodes.get(*path).copied()).collect();
    let may_be_renamed = |inode: &Inode| gone_inodes.contains(inode);
    if !gone_inodes.is_empty() && seen.values().any(|now| may_be_renamed(&now.inode)) {
        return None;
    }
    if !strangers.is_empty() {
        let before: HashSet<Inode> = inodes.values().copied().collect();
        if strangers.iter().any(|inode| before.contains(inode)) {
            return None;
        }
    }
    // Each inode has one ident, and each ident one inode; the names of a file agree.
    rows.sort_unstable_by_key(|(inode, ident, _)| (*inode, *ident));
    let agree = |a: &Entry, b: &Entry| (&a.kind, &a.author) == (&b.kind, &b.author);
    let is_one_file = |pair: &[(Inode, Ident, Option<&Entry>)]| {
        pair[0].1 == pair[1].1 && pair[0].2.zip(pair[1].2).is_some_and(|(a, b)| agree(a, b))
    };
    if rows.windows(2).any(|pair| pair[0].0 == pair[1].0 && !is_one_file(pair)) {
        return None;
    }
    rows.dedup_by_key(|(inode, ..)| *inode);
    rows.sort_unstable_by_key(|(_, ident, _)| *ident);
    if rows.windows(2).any(|pair| pair[0].1 == pair[1].1) {
        return None;
    }
    let gone: Vec<TreePath> = gone.into_iter().cloned().collect();
    let mut tree = last.clone();
    if !gone.is_empty() || !changed.is_empty() {
        let entries = &mut *tree.entries;
        gone.iter().for_each(|path| drop(entries.remove(path)));
        entries.extend(changed);
    }
    Some(tree)
}
