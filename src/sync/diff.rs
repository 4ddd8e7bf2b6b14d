//! Encoding of a tree as its changes since another tree that the peer has: renamed directories, and removed, new and
//! changed entries.

mod rows;

use super::device::Device;
use super::error::SyncError;
use super::tree::{ContentId, Ident, Tree, TreeError, TreePath};
use rows::Rows;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// Maximum bytes of an encoded tree.
pub const TREE_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of renamed directories; further ones are encoded as removed and new entries.
const MOVES_MAX: usize = 4096;
/// zstd's levels for short encodings, and for those longer than [`LONG`] bytes.
const LEVELS: (i32, i32) = (19, 9);
const LONG: usize = 4 << 20;

#[derive(Serialize, Deserialize)]
struct Diff {
    /// Renamed directories, in the order of the renames.
    moves: Vec<(TreePath, TreePath)>,
    /// Rows removed after the renames: the number of rows that stay before each of them, since the last removed one.
    removed: Vec<u32>,
    /// Rows of new and changed entries, without the directories above them.
    set: Rows,
}

/// Renames a directory with all entries below it. Returns false if it does not exist.
fn rename(entries: &mut BTreeMap<TreePath, super::tree::Entry>, from: &[u8], to: &[u8]) -> bool {
    let Some(dir) = entries.remove(from) else { return false };
    let below = [from, b"/"].concat();
    let moved: Vec<TreePath> = entries
        .range(below.clone()..)
        .map(|(path, _)| path)
        .take_while(|path| path.starts_with(&below))
        .cloned()
        .collect();
    for path in moved {
        let entry = entries.remove(&path).expect("it was just there");
        entries.insert([to, &path[from.len()..]].concat(), entry);
    }
    entries.insert(to.to_vec(), dir);
    true
}

/// Encodes `tree` against `base`, compressed. Idents that the snapshot `look` (device and number) gave are derived,
/// not sent. The hashes of `untold` are left out.
pub fn encode(
    base: &Tree,
    tree: &Tree,
    look: Option<&(Device, u64)>,
    untold: &BTreeSet<ContentId>,
) -> Result<Vec<u8>, SyncError> {
    let now: BTreeMap<Ident, &TreePath> = tree
        .entries
        .iter()
        .filter(|(_, entry)| entry.kind.is_dir())
        .map(|(path, entry)| (entry.ident, path))
        .collect();
    let mut old = base.clone();
    let mut moves = Vec::new();
    // From the top, so that entries that moved with their directory are left out.
    for (was, entry) in base.entries.iter().filter(|(_, entry)| entry.kind.is_dir()) {
        let Some(to) = now.get(&entry.ident) else { continue };
        let at = moves.iter().fold(was.clone(), |at, (from, to): &(TreePath, TreePath)| {
            match at.strip_prefix(&from[..]) {
                Some(rest) if rest.is_empty() || rest[0] == b'/' => [to, rest].concat(),
                _ => at,
            }
        });
        let free = at != **to && !old.entries.contains_key(*to) && !to.starts_with(&[&at[..], b"/"].concat());
        if free && moves.len() < MOVES_MAX {
            rename(&mut old.entries, &at, to);
            moves.push((at, (*to).clone()));
        }
    }
    let (mut removed, mut stay) = (Vec::new(), 0);
    for path in old.entries.keys() {
        match tree.entries.contains_key(path) {
            true => stay += 1,
            false => removed.push(std::mem::take(&mut stay)),
        }
    }
    let set = Rows::of(&old, tree, look, untold);
    let bytes = postcard::to_allocvec(&Diff { moves, removed, set }).expect("a difference can be encoded");
    let level = if bytes.len() > LONG { LEVELS.1 } else { LEVELS.0 };
    zstd::bulk::compress(&bytes, level).map_err(SyncError::codec)
}

/// Decodes `bytes` against `base`. Contents whose hashes were left out are [`ContentId::untold`].
pub fn decode(base: &Tree, bytes: &[u8]) -> Result<Tree, SyncError> {
    let wrong = || SyncError::from(TreeError::Encoding);
    let mut text = Vec::new();
    let mut stream = zstd::stream::read::Decoder::new(bytes).map_err(|_| wrong())?;
    stream.window_log_max(24).map_err(|_| wrong())?;
    stream.take(TREE_BYTES_MAX + 1).read_to_end(&mut text).map_err(|_| wrong())?;
    if text.len() as u64 > TREE_BYTES_MAX {
        return Err(SyncError::peer("sent a tree that is longer than 1 GiB"));
    }
    parse(base, &text)
}

/// The same for decompressed bytes.
pub(crate) fn parse(base: &Tree, text: &[u8]) -> Result<Tree, SyncError> {
    let wrong = || SyncError::from(TreeError::Encoding);
    let (diff, rest) = postcard::take_from_bytes::<Diff>(text).map_err(|_| wrong())?;
    if !rest.is_empty() || diff.moves.len() > MOVES_MAX {
        return Err(wrong());
    }
    let mut tree = base.clone();
    for (from, to) in &diff.moves {
        let inside = to.starts_with(&[&from[..], b"/"].concat());
        if inside || tree.entries.contains_key(to) || !rename(&mut tree.entries, from, to) {
            return Err(wrong());
        }
    }
    let set = diff.set.read(&tree, text.len())?;
    let mut rows = tree.entries.keys();
    let mut removed = Vec::new();
    for stay in &diff.removed {
        removed.push(rows.nth(*stay as usize).ok_or_else(wrong)?.clone());
    }
    for path in &removed {
        tree.entries.remove(path);
    }
    tree.entries.extend(set);
    tree.check()?;
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::super::merge::tests::{any_tree, dir, file, tree};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_tree_comes_back(base in any_tree("l"), tree in any_tree("r")) {
            for look in [None, Some((Device::named("r"), 7))] {
                let bytes = encode(&base, &tree, look.as_ref(), &BTreeSet::new()).unwrap();
                prop_assert_eq!(&decode(&base, &bytes).unwrap(), &tree);
            }
        }
    }

    #[test]
    fn a_renamed_directory_takes_few_bytes() {
        let rows = |dir_name: &str| {
            let mut all = tree(&[(dir_name, dir(1))]);
            for n in 0..5000u64 {
                let path = format!("{dir_name}/{n}").into_bytes();
                all.entries.insert(path, file(n + 2, "a", &n.to_string()));
            }
            all
        };
        let bytes = encode(&rows("old"), &rows("new"), None, &BTreeSet::new()).unwrap();
        assert!(bytes.len() < 60, "{}", bytes.len());
    }

    #[test]
    fn what_is_edited_takes_few_bytes_and_left_out_hashes_come_back() {
        let rows = |text: &str| {
            let row = |n: u64| (format!("{n:03}").into_bytes(), file(n + 2, "a", &format!("{n} {text}")));
            Tree { entries: (0..400).map(row).collect() }
        };
        let (old, new) = (rows("old"), rows("new"));
        let untold = new.entries.values().filter_map(|entry| entry.kind.content()).collect();
        let bytes = encode(&old, &new, None, &untold).unwrap();
        assert!(bytes.len() < 100, "{}", bytes.len());
        let mut tree = decode(&old, &bytes).unwrap();
        for (n, (entry, (_, right))) in tree.entries.values_mut().zip(&new.entries).enumerate() {
            assert_eq!(entry.kind.content(), Some(ContentId::untold(n as u32)));
            entry.kind = right.kind.clone();
        }
        assert_eq!(tree, new);
    }

    /// A row of the old tree with much in it, named again and again.
    #[test]
    fn rows_that_grow_without_end_are_refused() {
        let mut fat = file(1, "a", "x");
        fat.xattrs.insert(b"user.x".to_vec(), vec![7; 1 << 20]);
        let old = tree(&[("fat", fat.clone())]);
        let many = (0..400).map(|n| (format!("{n:03}").into_bytes(), fat.clone())).collect();
        let bytes = encode(&old, &Tree { entries: many }, None, &BTreeSet::new()).unwrap();
        assert!(matches!(decode(&old, &bytes), Err(SyncError::Tree(TreeError::Encoding))));
    }

    #[test]
    fn a_bomb_is_refused() {
        let zeros = zstd::bulk::compress(&vec![0; 8 << 20], 1).unwrap();
        assert!(decode(&Tree::default(), &zeros).is_err());
    }
}
