//! A tree told as what changed since another that the peer has: renamed directories, what is gone, what is new or other.

use super::error::SyncError;
use super::tree::{Ident, Tree, TreeError, TreePath};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;

/// The longest encoding of a tree, in bytes.
pub const TREE_BYTES_MAX: u64 = 1 << 30;
/// Most renamed directories; more are told as what is gone and new.
const MOVES_MAX: usize = 4096;
const LEVEL: i32 = 9;

#[derive(Serialize, Deserialize)]
struct Diff {
    /// Directories, in the order in which they are renamed.
    moves: Vec<(TreePath, TreePath)>,
    /// Paths after that.
    removed: Vec<TreePath>,
    /// A tree's encoding of what is new or other; the directories above are not among it.
    set: Vec<u8>,
}

/// Renames a directory with all that is in it. False if it is not there.
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

/// `tree` against `base`, compressed.
pub fn encode(base: &Tree, tree: &Tree) -> Result<Vec<u8>, SyncError> {
    let now: BTreeMap<Ident, &TreePath> = tree
        .entries
        .iter()
        .filter(|(_, entry)| entry.kind.is_dir())
        .map(|(path, entry)| (entry.ident, path))
        .collect();
    let mut old = base.clone();
    let mut moves = Vec::new();
    // From the top, so that what went with its directory is not told.
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
    let removed = old.entries.keys().filter(|path| !tree.entries.contains_key(*path)).cloned().collect();
    let other = tree.entries.iter().filter(|(path, entry)| old.entries.get(*path) != Some(entry));
    let set = Tree { entries: other.map(|(path, entry)| (path.clone(), entry.clone())).collect() }.encode();
    let bytes = postcard::to_allocvec(&Diff { moves, removed, set }).expect("a difference can be encoded");
    zstd::bulk::compress(&bytes, LEVEL).map_err(SyncError::codec)
}

/// The tree that `bytes` tell against `base`.
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

/// The same of what was decompressed.
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
    for path in &diff.removed {
        tree.entries.remove(path);
    }
    tree.entries.extend(Tree::decode_rows(&diff.set)?.entries);
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
            prop_assert_eq!(decode(&base, &encode(&base, &tree).unwrap()).unwrap(), tree);
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
        let bytes = encode(&rows("old"), &rows("new")).unwrap();
        assert!(bytes.len() < 60, "{}", bytes.len());
    }

    #[test]
    fn a_bomb_is_refused() {
        let zeros = zstd::bulk::compress(&vec![0; 8 << 20], 1).unwrap();
        assert!(decode(&Tree::default(), &zeros).is_err());
    }
}
