//! The version of a file before both edits of a conflict, so that a tool can merge three ways.
//!
//! Only the sync that meets a conflict has the common ancestor of both trees. So it saves the ancestor's content, if the store
//! still has it, in `.dedupfs/sync/bases/`, until the conflict is resolved. A version from the history would not do: it may be
//! newer than the one that the other device had, and the merge would drop lines.

use super::merge::{Conflict, Merged};
use super::tree::{ContentId, Entry, Ident, Tree, TreePath};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Limit of a saved version. Tools merge texts.
const BYTES_MAX: u64 = 64 << 20;
/// Limits of all that one sync saves: their number and their bytes.
const COUNT_MAX: usize = 1000;
const ALL_BYTES_MAX: u64 = 256 << 20;

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
/// One pass over each tree.
pub fn common(base: &Tree, mine: &Tree, theirs: &Tree, merged: &Merged) -> Vec<Base> {
    if base.entries.is_empty() || merged.conflicts.is_empty() {
        return Vec::new();
    }
    let entries = &*merged.tree.entries;
    let idents: HashSet<Ident> =
        merged.conflicts.iter().filter_map(|one| Some(entries.get(&one.path)?.ident)).collect();
    let [before, mine, theirs] = [base, mine, theirs].map(|tree| files_of(tree, &idents));
    let common = |conflict: &Conflict| {
        let Conflict { path, copy, .. } = conflict;
        let named = entries.get(path)?;
        let versions = [named.kind.content()?, entries.get(copy)?.kind.content()?];
        let file_in = |files: &Files<'_>| {
            let (path, entry) = files.get(&named.ident)?;
            Some(((*path).clone(), entry.kind.content()?, entry.kind.size()))
        };
        let ((path, left, _), (_, right, _)) = (file_in(&mine)?, file_in(&theirs)?);
        let (_, content, size) = file_in(&before)?;
        // Two files that got one name have no version in common.
        let is_both = versions == [left, right] || versions == [right, left];
        (is_both && !versions.contains(&content)).then(|| Base { copy: copy.clone(), path, content, size })
    };
    let small = merged.conflicts.iter().filter_map(common).filter(|base| base.size <= BYTES_MAX);
    let mut bytes = 0;
    let fits = |base: &Base| {
        bytes += base.size;
        bytes <= ALL_BYTES_MAX
    };
    small.take(COUNT_MAX).take_while(fits).collect()
}

type Files<'a> = HashMap<Ident, (&'a TreePath, &'a Entry)>;

/// Returns the entries with these idents. A file with several names counts by its first.
fn files_of<'a>(tree: &'a Tree, idents: &HashSet<Ident>) -> Files<'a> {
    let mut files = Files::new();
    for (path, entry) in tree.entries.iter().filter(|(_, entry)| idents.contains(&entry.ident)) {
        files.entry(entry.ident).or_insert((path, entry));
    }
    files
}

/// The saved versions.
pub struct Bases {
    dir: PathBuf,
    names: BTreeSet<String>,
}

impl Bases {
    /// Returns those of the memory in `state`.
    pub fn of(state: &Path) -> Bases {
        let dir = state.join("bases");
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        Bases { dir, names }
    }

    /// Returns the beginning of the name for a conflict's copy. The rest is the hash of the content.
    fn begin(copy: &TreePath) -> String {
        format!("{}-", &blake3::hash(copy).to_hex()[..32])
    }

    fn name(&self, copy: &TreePath) -> Option<&str> {
        let begin = Bases::begin(copy);
        let name = self.names.range(begin.clone()..).next()?;
        name.starts_with(&begin).then_some(name)
    }

    /// Saves the content of `file` for a conflict.
    pub(super) fn keep(&mut self, Base { copy, content, .. }: &Base, file: &mut File) -> io::Result<()> {
        if file.metadata()?.len() > BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        file.rewind()?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let name = Bases::begin(copy) + &content.to_string();
        let new = self.dir.join("new");
        let written = File::create(&new).and_then(|mut to| io::copy(file, &mut to));
        let placed = written.and_then(|_| std::fs::rename(&new, self.dir.join(&name)));
        placed.inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        self.names.insert(name);
        Ok(())
    }

    /// Returns whether a version is saved for a conflict's copy.
    pub fn has(&self, copy: &TreePath) -> bool {
        self.name(copy).is_some()
    }

    /// Returns the saved version for a conflict's copy; `None` if there is none, or if it is damaged.
    pub fn read(&self, copy: &TreePath) -> Option<Vec<u8>> {
        let name = self.name(copy)?;
        let mut bytes = Vec::new();
        File::open(self.dir.join(name)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        name.ends_with(&ContentId::of(&bytes).to_string()).then_some(bytes)
    }

    /// Removes all versions but those of the conflicts with these copies.
    pub(super) fn forget_others<'a>(&mut self, copies: impl Iterator<Item = &'a TreePath>) {
        if self.names.is_empty() {
            return;
        }
        let begins: HashSet<String> = copies.map(Bases::begin).collect();
        let is_kept =
            |name: &str| name.split_inclusive('-').next().is_some_and(|begin| begins.contains(begin));
        let names = std::mem::take(&mut self.names).into_iter();
        let (kept, gone): (BTreeSet<_>, BTreeSet<_>) = names.partition(|name| is_kept(name));
        self.names = kept;
        for name in gone {
            let _ = std::fs::remove_file(self.dir.join(name));
        }
        // Only if it is empty.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge::merge;
    use super::super::merge::tests::{file, tree};
    use super::super::tree::Kind;
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

    /// A first conflict of thousands of files must not fill the disk, nor take a request to the store for each.
    #[test]
    fn only_so_much_is_kept() {
        let rows = |text: &str, size: u64| {
            let entry = |n: u64| {
                let mut entry = file(n, "a", &format!("{text} {n}"));
                if let Kind::File { size: bytes, .. } = &mut entry.kind {
                    *bytes = size;
                }
                (format!("{n:06}"), entry)
            };
            let rows: Vec<(String, Entry)> = (1..=5000).map(entry).collect();
            tree(&rows.iter().map(|(path, entry)| (path.as_str(), entry.clone())).collect::<Vec<_>>())
        };
        for (size, kept) in [(10, COUNT_MAX), (1 << 20, 256), (BYTES_MAX + 1, 0)] {
            let (base, mine, theirs) = (rows("before", size), rows("mine", 1), rows("theirs", 2));
            let merged = merge(&base, &mine, &theirs);
            assert_eq!(merged.conflicts.len(), 5000);
            assert_eq!(common(&base, &mine, &theirs, &merged).len(), kept, "{size} bytes");
        }
    }

    #[test]
    fn a_version_is_kept_until_its_conflict_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let mut bases = Bases::of(dir.path());
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
        assert_eq!(Bases::of(dir.path()).read(&a), Some(b"before a".to_vec()));
        std::fs::write(bases.dir.join(bases.name(&a).unwrap()), "torn").unwrap();
        assert_eq!((bases.has(&a), bases.read(&a)), (true, None));
        bases.forget_others([].into_iter());
        assert!(!bases.dir.exists());
    }
}
