//! The version of a file before both edits of a conflict, so that a tool can merge three ways.
//!
//! Only the sync that meets a conflict has the common ancestor of both trees. So it saves the ancestor's content, if the store
//! still has it, in `.dedupfs/sync/bases/`, until the conflict is resolved. A version from the history would not do: it may be
//! newer than the one that the other device had, and the merge would drop lines.

use super::merge::{Conflict, Merged};
use super::tree::{ContentId, Entry, Tree, TreePath};
use std::collections::HashSet;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Limit of a saved version. Tools merge texts.
const BYTES_MAX: u64 = 64 << 20;

/// The version before both edits of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The conflict's copy.
    pub copy: TreePath,
    /// Its path on this side.
    pub path: TreePath,
    /// Its content.
    pub content: ContentId,
    /// Bytes.
    pub size: u64,
}

/// Returns the contents of `base` from which both versions of each conflict in `merged` were made. `mine` is this side's tree.
pub fn common(base: &Tree, mine: &Tree, theirs: &Tree, merged: &Merged) -> Vec<Base> {
    let common = |conflict: &Conflict| {
        let Conflict { path, copy, .. } = conflict;
        let named = merged.tree.entries.get(path)?;
        let versions = [named.kind.content()?, merged.tree.entries.get(copy)?.kind.content()?];
        let file_in = |tree: &Tree| {
            let is_it = |(_, entry): &(&TreePath, &Entry)| entry.ident == named.ident;
            let (path, entry) = tree.entries.iter().find(is_it)?;
            Some((path.clone(), entry.kind.content()?, entry.kind.size()))
        };
        let ((path, left, _), (_, right, _)) = (file_in(mine)?, file_in(theirs)?);
        let (_, content, size) = file_in(base)?;
        // Two files that got one name have no version in common.
        let is_both = versions == [left, right] || versions == [right, left];
        (is_both && !versions.contains(&content)).then(|| Base { copy: copy.clone(), path, content, size })
    };
    merged.conflicts.iter().filter_map(common).collect()
}

/// The saved versions.
pub struct Bases(PathBuf);

impl Bases {
    /// Returns those of the memory in `state`.
    pub fn of(state: &Path) -> Bases {
        Bases(state.join("bases"))
    }

    fn begin(copy: &TreePath) -> String {
        format!("{}-", &blake3::hash(copy).to_hex()[..32])
    }

    /// Saves the content of `file` for a conflict.
    pub(super) fn keep(&self, Base { copy, content, .. }: &Base, file: &mut File) -> io::Result<()> {
        if file.metadata()?.len() > BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        file.rewind()?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let (path, new) = (self.0.join(Bases::begin(copy) + &content.to_string()), self.0.join("new"));
        let written = File::create(&new).and_then(|mut to| io::copy(file, &mut to));
        let placed = written.and_then(|_| std::fs::rename(&new, path));
        placed.inspect_err(|_| drop(std::fs::remove_file(&new)))
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Returns whether a version is saved for a conflict's copy.
    pub fn has(&self, copy: &TreePath) -> bool {
        let begin = Bases::begin(copy);
        self.names().iter().any(|name| name.starts_with(&begin))
    }

    /// Returns the saved version for a conflict's copy; `None` if there is none, or if it is damaged.
    pub fn read(&self, copy: &TreePath) -> Option<Vec<u8>> {
        let begin = Bases::begin(copy);
        let name = self.names().into_iter().find(|name| name.starts_with(&begin))?;
        let mut bytes = Vec::new();
        File::open(self.0.join(&name)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        (ContentId::of(&bytes).to_string() == name[begin.len()..]).then_some(bytes)
    }

    /// Removes all versions but those of the conflicts with these copies.
    pub(super) fn forget_others<'a>(&self, copies: impl Iterator<Item = &'a TreePath>) {
        let names = self.names();
        if names.is_empty() {
            return;
        }
        let kept: HashSet<String> = copies.map(Bases::begin).collect();
        let is_kept = |name: &str| name.split_inclusive('-').next().is_some_and(|begin| kept.contains(begin));
        for name in names.iter().filter(|name| !is_kept(name)) {
            let _ = std::fs::remove_file(self.0.join(name));
        }
        // Only if it is empty.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge::merge;
    use super::super::merge::tests::{file, tree};
    use super::*;
    use std::io::Write;

    #[test]
    fn only_versions_of_one_file_have_a_base() {
        let base = tree(&[("edited", file(1, "a", "before")), ("other", file(2, "a", "other"))]);
        let mine = tree(&[("edited", file(1, "a", "mine")), ("new", file(3, "a", "my new"))]);
        let theirs = tree(&[("edited", file(1, "b", "theirs")), ("new", file(4, "b", "their new"))]);
        let merged = merge(&base, &mine, &theirs);
        assert_eq!(merged.conflicts.len(), 2, "{merged:?}");
        for (mine, theirs) in [(&mine, &theirs), (&theirs, &mine)] {
            let found = common(&base, mine, theirs, &merged);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].copy.starts_with(b"edited.conflict-"), "{found:?}");
            assert_eq!((&found[0].path[..], found[0].content), (&b"edited"[..], ContentId::of(b"before")));
        }
        assert!(common(&Tree::default(), &mine, &theirs, &merged).is_empty());
    }

    #[test]
    fn a_version_is_kept_until_its_conflict_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let bases = Bases::of(dir.path());
        let (a, b) = (b"a.conflict-x".to_vec(), b"b.conflict-x".to_vec());
        bases.forget_others([&a].into_iter());
        assert_eq!(bases.read(&a), None);
        for (copy, text) in [(&a, "before a"), (&b, "before b"), (&b, "")] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let (copy, content) = (copy.clone(), ContentId::of(text.as_bytes()));
            bases.keep(&Base { path: copy.clone(), copy, content, size: 0 }, &mut file).unwrap();
        }
        assert_eq!(bases.read(&a), Some(b"before a".to_vec()));
        bases.forget_others([&a].into_iter());
        assert_eq!((bases.read(&a).is_some(), bases.read(&b)), (true, None));
        let path = bases.0.join(&bases.names()[0]);
        std::fs::write(path, "torn").unwrap();
        assert_eq!(bases.read(&a), None);
        bases.forget_others([].into_iter());
        assert!(!bases.0.exists());
    }
}
