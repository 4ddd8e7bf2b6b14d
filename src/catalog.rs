//! The catalog: the content of each file, and the directory of each file, as last indexed.
//!
//! It answers "which files have this recipe" and "where is inode N". All of it can be rebuilt by walking the
//! tree, and no answer is trusted: a path is looked up in the backing directory before it is returned. It
//! stores no names: the catalog knows an inode's directory, and the directory itself has the name. So a
//! rename within a directory costs nothing, and one across directories changes one row.
//!
//! Changes gather in memory and are merged in bulk; after a crash the last ones are missing until the next
//! scan.

mod placed;

use self::placed::PlacedDirs;
use crate::backing::Backing;
use crate::backing::stub::Time;
use crate::contents::error::Result;
use crate::db::{Db, Layout, Runs, Table};
use crate::id::{FileId, RecipeId};
use rustix::fs::{Mode, OFlags, RawDir};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Row of a file since it was last indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRow {
    /// Its content.
    pub recipe: RecipeId,
    /// Its length in bytes.
    pub size: u64,
    /// Its mtime.
    pub mtime: Time,
}

const FILE_LEN: usize = 8 + 16 + 8 + 12;
const HOLDER_LEN: usize = 16 + 8;
const PARENT_LEN: usize = 8 + 8;
/// Changes are merged into the database when this many have gathered,
const PENDING_MIN: usize = 8192;
/// or, once there are many files, this many for each block that a merge writes. The rows of contents' files have hashes as
/// keys, so that a merge writes all their blocks: with a fixed number the cost of a file would grow with the files.
const PENDING_PER_BLOCK: usize = 16;
/// About 13 MB. Enough for a million files.
const PENDING_MAX: usize = 1 << 17;
/// Deeper directories than this are taken for a loop of stale rows.
const DEPTH_MAX: usize = 4096;

/// Directories whose names are remembered while their files are visited.
pub(crate) const NAMED_DIRS_MAX: usize = 64;

const FILES: Runs = Runs::new(Layout { table: Table::Files, row_len: FILE_LEN, key_len: 8 });
const HOLDERS: Runs = Runs::new(Layout { table: Table::Holders, row_len: HOLDER_LEN, key_len: HOLDER_LEN });
const PARENTS: Runs = Runs::new(Layout { table: Table::Parents, row_len: PARENT_LEN, key_len: PARENT_LEN });

/// The catalog of one overlay.
pub struct Catalog {
    db: Arc<dyn Db>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    /// Changes of the next merge, if that is more than [`PENDING_MIN`].
    wanted: usize,
    /// Counts changes of `files`.
    changes: u64,
    files: BTreeMap<FileId, Option<FileRow>>,
    /// Rows by their bytes, and whether the merge adds or removes them.
    holders: BTreeMap<[u8; HOLDER_LEN], bool>,
    parents: BTreeMap<[u8; PARENT_LEN], bool>,
    /// Contents that lost a file and may have none left.
    orphaned: HashSet<RecipeId>,
    dirs: PlacedDirs,
}

impl Catalog {
    /// The catalog kept in `db`.
    pub fn new(db: Arc<dyn Db>) -> Catalog {
        Catalog { db, pending: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the row of `file`.
    pub fn file(&self, file: FileId) -> Result<Option<FileRow>> {
        self.file_in(&self.lock(), file)
    }

    fn file_in(&self, pending: &Pending, file: FileId) -> Result<Option<FileRow>> {
        match pending.files.get(&file) {
            Some(row) => Ok(*row),
            None => Ok(FILES.find(&*self.db, &file.0.to_be_bytes())?.map(|row| decode_file(&row))),
        }
    }

    /// Records the present row of `file`. Returns the former one.
    pub fn set_file(&self, file: FileId, row: FileRow) -> Result<Option<FileRow>> {
        let mut pending = self.lock();
        let old = self.file_in(&pending, file)?;
        if old != Some(row) {
            pending.set_file(file, Some(row));
        }
        if old.map(|old| old.recipe) != Some(row.recipe) {
            pending.drop_holder(old, file);
            pending.holders.insert(holder(row.recipe, file), true);
        }
        self.merge_if_full(pending)?;
        Ok(old)
    }

    /// Forgets `file`: it is gone, or has become empty.
    pub fn remove_file(&self, file: FileId) -> Result<()> {
        let mut pending = self.lock();
        if let Some(old) = self.file_in(&pending, file)? {
            pending.drop_holder(Some(old), file);
            pending.set_file(file, None);
        }
        self.merge_if_full(pending)
    }

    /// Forgets `file` if it is still known as `row`.
    pub fn remove_row(&self, file: FileId, row: FileRow) -> Result<()> {
        let mut pending = self.lock();
        if self.file_in(&pending, file)? == Some(row) {
            pending.drop_holder(Some(row), file);
            pending.set_file(file, None);
        }
        self.merge_if_full(pending)
    }

    /// The files whose content is `recipe`.
    pub fn holders(&self, recipe: &RecipeId) -> Result<Vec<FileId>> {
        let pending = self.lock();
        let mut files = Vec::new();
        HOLDERS.scan(&*self.db, &recipe.0, |row| {
            if pending.holders.get(row) != Some(&false) {
                files.push(file_at(row, 16));
            }
            true
        })?;
        let (from, to) = (holder(*recipe, FileId(0)), holder(*recipe, FileId(u64::MAX)));
        files.extend(
            pending.holders.range(from..=to).filter(|(_, add)| **add).map(|(row, _)| file_at(row, 16)),
        );
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// Records that inode `child` has a name in directory `parent`.
    pub fn add_parent(&self, child: FileId, parent: FileId) -> Result<()> {
        let mut pending = self.lock();
        pending.parents.insert(pair(child, parent), true);
        self.merge_if_full(pending)
    }

    /// Records that inode `child` has no name in directory `parent` any more.
    pub fn remove_parent(&self, child: FileId, parent: FileId) -> Result<()> {
        let mut pending = self.lock();
        pending.parents.insert(pair(child, parent), false);
        // A directory that moved takes the remembered path with it.
        pending.dirs.clear();
        self.merge_if_full(pending)
    }

    /// Records the directory of the file at `path` (below the root), and the directories above it.
    pub fn place(&self, backing: &Backing, file: FileId, path: &Path) -> Result<()> {
        let dir = path.parent().unwrap_or(Path::new(""));
        let dir_id = self.place_dir(backing, dir)?;
        self.add_parent(file, dir_id)
    }

    /// Records the parent of the directory at `dir` (below the root), and the directories above it.
    pub fn place_dir(&self, backing: &Backing, dir: &Path) -> Result<FileId> {
        let (mut missing, mut at) = (Vec::new(), dir);
        let mut parent = loop {
            if at.as_os_str().is_empty() {
                break FileId(backing.identity().ino);
            }
            if let Some(id) = self.lock().dirs.get(at) {
                break id;
            }
            missing.push(at);
            at = at.parent().unwrap_or(Path::new(""));
        };
        for dir in missing.into_iter().rev() {
            let id = FileId(backing.stat(dir)?.st_ino);
            self.add_parent(id, parent)?;
            self.lock().dirs.insert(dir, id);
            parent = id;
        }
        Ok(parent)
    }

    /// Whether inode `child` was last seen with a name in directory `parent`.
    pub fn is_in(&self, child: FileId, parent: FileId) -> Result<bool> {
        Ok(self.parents(child)?.contains(&parent))
    }

    /// Finds paths, remembering the directories that it has read.
    pub fn finder<'a>(&'a self, backing: &'a Backing) -> Finder<'a> {
        Finder { catalog: self, backing, dirs: HashMap::new() }
    }

    fn parents(&self, inode: FileId) -> Result<Vec<FileId>> {
        let pending = self.lock();
        let mut parents = Vec::new();
        PARENTS.scan(&*self.db, &inode.0.to_be_bytes(), |row| {
            if pending.parents.get(row) != Some(&false) {
                parents.push(file_at(row, 8));
            }
            true
        })?;
        let (from, to) = (pair(inode, FileId(0)), pair(inode, FileId(u64::MAX)));
        parents.extend(
            pending.parents.range(from..=to).filter(|(_, add)| **add).map(|(row, _)| file_at(row, 8)),
        );
        parents.sort();
        parents.dedup();
        Ok(parents)
    }

    /// Merges gathered changes into the database. They are durable after the database's flush.
    pub fn flush(&self) -> Result<()> {
        self.merge(&mut self.lock())
    }

    /// Returns the contents that lost their last file since the last call.
    pub fn take_orphans(&self) -> Result<Vec<RecipeId>> {
        let orphaned = std::mem::take(&mut self.lock().orphaned);
        let mut orphans = Vec::new();
        for recipe in orphaned {
            if self.holders(&recipe)?.is_empty() {
                orphans.push(recipe);
            }
        }
        Ok(orphans)
    }

    /// Visits every file, until `visit` returns false. O(files).
    pub fn for_each(&self, visit: impl FnMut(FileId, FileRow) -> bool) -> Result<()> {
        self.for_each_from(FileId(0), visit)
    }

    /// The same from a file on, by id.
    pub fn for_each_from(&self, from: FileId, mut visit: impl FnMut(FileId, FileRow) -> bool) -> Result<()> {
        self.flush()?;
        let from = from.0.to_be_bytes();
        Ok(FILES.scan_from(&*self.db, &[], &from, |row| visit(file_at(row, 0), decode_file(row)))?)
    }

    /// Visits every content that files have, with those files sorted, until `visit` returns false. O(files).
    pub fn each_content(&self, visit: &mut dyn FnMut(&RecipeId, &[FileId]) -> bool) -> Result<()> {
        self.flush()?;
        let (mut of, mut files, mut more) = (RecipeId([0; 16]), Vec::new(), true);
        HOLDERS.scan(&*self.db, &[], |row| {
            if row[..16] != of.0 {
                more = files.is_empty() || visit(&of, &files);
                files.clear();
                of.0.copy_from_slice(&row[..16]);
            }
            files.push(file_at(row, 16));
            more
        })?;
        if more && !files.is_empty() {
            visit(&of, &files);
        }
        Ok(())
    }

    /// Returns a number that changes with each change of a file's row.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    fn merge_if_full(&self, mut pending: MutexGuard<'_, Pending>) -> Result<()> {
        if pending.files.len() + pending.holders.len() + pending.parents.len()
            < pending.wanted.max(PENDING_MIN)
        {
            return Ok(());
        }
        self.merge(&mut pending)
    }

    fn merge(&self, pending: &mut Pending) -> Result<()> {
        let (mut puts, mut removes) = (Vec::new(), Vec::new());
        for (file, row) in &pending.files {
            match row {
                Some(row) => puts.extend(encode_file(*file, row)),
                None => removes.extend(file.0.to_be_bytes()),
            }
        }
        let of_files = FILES.merge_counted(&*self.db, puts, removes)?;
        let (puts, removes) = split(&pending.holders);
        let of_holders = HOLDERS.merge_counted(&*self.db, puts, removes)?;
        let (puts, removes) = split(&pending.parents);
        let blocks = of_files + of_holders + PARENTS.merge_counted(&*self.db, puts, removes)?;
        // A merge that came early wrote fewer blocks than the table has.
        pending.wanted = pending.wanted.max(blocks * PENDING_PER_BLOCK).min(PENDING_MAX);
        pending.files.clear();
        pending.holders.clear();
        pending.parents.clear();
        Ok(())
    }
}

impl Pending {
    fn set_file(&mut self, file: FileId, row: Option<FileRow>) {
        self.changes += 1;
        self.files.insert(file, row);
    }

    fn drop_holder(&mut self, old: Option<FileRow>, file: FileId) {
        if let Some(old) = old {
            self.holders.insert(holder(old.recipe, file), false);
            self.orphaned.insert(old.recipe);
        }
    }
}

fn split<const N: usize>(rows: &BTreeMap<[u8; N], bool>) -> (Vec<u8>, Vec<u8>) {
    let (mut puts, mut removes) = (Vec::new(), Vec::new());
    for (row, add) in rows {
        if *add { &mut puts } else { &mut removes }.extend(row);
    }
    (puts, removes)
}

fn holder(recipe: RecipeId, file: FileId) -> [u8; HOLDER_LEN] {
    let mut row = [0; HOLDER_LEN];
    row[..16].copy_from_slice(&recipe.0);
    row[16..].copy_from_slice(&file.0.to_be_bytes());
    row
}

fn pair(child: FileId, parent: FileId) -> [u8; PARENT_LEN] {
    let mut row = [0; PARENT_LEN];
    row[..8].copy_from_slice(&child.0.to_be_bytes());
    row[8..].copy_from_slice(&parent.0.to_be_bytes());
    row
}

fn number_at(row: &[u8], at: usize) -> u64 {
    row[at..at + 8].iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn file_at(row: &[u8], at: usize) -> FileId {
    FileId(number_at(row, at))
}

fn encode_file(file: FileId, row: &FileRow) -> [u8; FILE_LEN] {
    let mut out = [0; FILE_LEN];
    out[..8].copy_from_slice(&file.0.to_be_bytes());
    out[8..24].copy_from_slice(&row.recipe.0);
    out[24..32].copy_from_slice(&row.size.to_be_bytes());
    out[32..40].copy_from_slice(&row.mtime.sec.to_be_bytes());
    out[40..44].copy_from_slice(&row.mtime.nsec.to_be_bytes());
    out
}

fn decode_file(row: &[u8]) -> FileRow {
    let mut recipe = [0; 16];
    recipe.copy_from_slice(&row[8..24]);
    let nsec = row[40..44].iter().fold(0, |value, &byte| value << 8 | u32::from(byte));
    let mtime = Time { sec: number_at(row, 32) as i64, nsec };
    FileRow { recipe: RecipeId(recipe), size: number_at(row, 24), mtime }
}

/// Finds the paths of inodes: reads each directory once, so it serves one question and is then dropped.
pub struct Finder<'a> {
    catalog: &'a Catalog,
    backing: &'a Backing,
    /// Path of each directory met, and names in it by inode; `None` if it cannot be found.
    dirs: HashMap<FileId, Option<Arc<Dir>>>,
}

struct Dir {
    path: PathBuf,
    names: HashMap<FileId, OsString>,
    /// Names beyond the first of an inode.
    others: Vec<(FileId, OsString)>,
}

impl Finder<'_> {
    /// Forgets all directories read if there are more than `dirs_max`.
    pub fn shed(&mut self, dirs_max: usize) {
        if self.dirs.len() > dirs_max {
            self.dirs.clear();
        }
    }

    /// A path below the root at which `inode` is now, or `None` if the rows lead nowhere.
    ///
    /// Reads each directory on the way that was not read before: O(their entries).
    pub fn path_of(&mut self, inode: FileId) -> Result<Option<PathBuf>> {
        for parent in self.catalog.parents(inode)? {
            if let Some(dir) = self.dir(parent, DEPTH_MAX)?
                && let Some(name) = dir.names.get(&inode)
            {
                return Ok(Some(dir.path.join(name)));
            }
        }
        Ok(None)
    }

    /// Adds all paths of `inode` in the directories in which the rows have it to `paths`. As [`Finder::path_of`]
    /// otherwise.
    pub fn paths_of(&mut self, inode: FileId, paths: &mut Vec<PathBuf>) -> Result<()> {
        for parent in self.catalog.parents(inode)? {
            if let Some(dir) = self.dir(parent, DEPTH_MAX)? {
                let others = dir.others.iter().filter(|(other, _)| *other == inode).map(|(_, name)| name);
                paths.extend(dir.names.get(&inode).into_iter().chain(others).map(|name| dir.path.join(name)));
            }
        }
        Ok(())
    }

    fn dir(&mut self, inode: FileId, depth: usize) -> Result<Option<Arc<Dir>>> {
        if let Some(known) = self.dirs.get(&inode) {
            return Ok(known.clone());
        }
        let found = self.find_dir(inode, depth)?;
        self.dirs.insert(inode, found.clone());
        Ok(found)
    }

    fn find_dir(&mut self, inode: FileId, depth: usize) -> Result<Option<Arc<Dir>>> {
        if inode.0 == self.backing.identity().ino {
            return Ok(names_in(self.backing, PathBuf::new()));
        }
        if depth == 0 {
            return Ok(None);
        }
        for parent in self.catalog.parents(inode)? {
            if let Some(above) = self.dir(parent, depth - 1)?
                && let Some(name) = above.names.get(&inode)
            {
                return Ok(names_in(self.backing, above.path.join(name)));
            }
        }
        Ok(None)
    }
}

fn names_in(backing: &Backing, path: PathBuf) -> Option<Arc<Dir>> {
    let dir = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(backing.root(), dir, flags, Mode::empty()).ok()?;
    let (mut names, mut others) = (HashMap::new(), Vec::new());
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let (inode, name) = (FileId(entry.ino()), OsString::from_vec(name.to_vec()));
            if let Some(other) = names.insert(inode, name) {
                others.push((inode, other));
            }
        }
    }
    Some(Arc::new(Dir { path, names, others }))
}

#[cfg(test)]
mod tests {
    use crate::catalog::*;
    use crate::db::MemDb;

    fn row(n: u8) -> FileRow {
        FileRow { recipe: RecipeId([n; 16]), size: n.into(), mtime: Time { sec: -5, nsec: 7 } }
    }

    /// With merges of 8,192 changes each, the last 10,000 files would cost more blocks than files.
    #[test]
    fn the_cost_of_a_file_does_not_grow_with_the_files() {
        let catalog = Catalog::new(Arc::new(MemDb::new()));
        let mut blocks = Vec::new();
        for n in 0..400_000u64 {
            let mut recipe = [0; 16];
            recipe.copy_from_slice(&blake3::hash(&n.to_le_bytes()).as_bytes()[..16]);
            let row = FileRow { recipe: RecipeId(recipe), size: n, mtime: Time::default() };
            let (gathered, file) = (catalog.lock().holders.len(), FileId(n));
            catalog.set_file(file, row).unwrap();
            catalog.add_parent(file, FileId(n / 64)).unwrap();
            if catalog.lock().holders.len() < gathered {
                blocks.push(gathered);
            }
        }
        // Each merge writes the blocks of all holders, of two thirds of 4 KiB at least.
        let cost = |merges: &[usize], files: usize| {
            let mut there = files - merges.iter().sum::<usize>();
            let written: usize = merges
                .iter()
                .map(|gathered| {
                    there += gathered;
                    there * HOLDER_LEN / 2730
                })
                .sum();
            written as f64 / merges.iter().sum::<usize>() as f64
        };
        let all: usize = blocks.iter().sum();
        let last = cost(&blocks[blocks.len() - 4..], all);
        assert!(last < 0.3, "{last:.2} blocks a file, in merges of {blocks:?}");
        assert!(blocks.iter().all(|files| *files < PENDING_MAX), "{blocks:?}");
    }

    #[test]
    fn holders_follow_changes_before_and_after_a_merge() {
        let catalog = Catalog::new(Arc::new(MemDb::new()));
        for merge in [false, true] {
            catalog.set_file(FileId(1), row(1)).unwrap();
            catalog.set_file(FileId(2), row(1)).unwrap();
            let step = || {
                if merge {
                    catalog.flush().unwrap()
                }
            };
            step();
            assert_eq!(catalog.holders(&row(1).recipe).unwrap(), [FileId(1), FileId(2)]);
            assert_eq!(catalog.set_file(FileId(2), row(2)).unwrap(), Some(row(1)));
            step();
            assert_eq!(catalog.holders(&row(1).recipe).unwrap(), [FileId(1)]);
            catalog.remove_file(FileId(1)).unwrap();
            step();
            assert_eq!(catalog.holders(&row(1).recipe).unwrap(), []);
            assert_eq!(catalog.file(FileId(1)).unwrap(), None);
            assert_eq!(catalog.take_orphans().unwrap(), [row(1).recipe]);
            catalog.remove_file(FileId(2)).unwrap();
            catalog.take_orphans().unwrap();
        }
    }

    #[test]
    fn a_directory_that_was_replaced_is_recorded_again() {
        let dir = tempfile::tempdir().unwrap();
        let backing = Backing::open(dir.path()).unwrap();
        let catalog = Catalog::new(Arc::new(MemDb::new()));
        let id = |path: &str| FileId(backing.stat(Path::new(path)).unwrap().st_ino);
        let root = FileId(backing.identity().ino);
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let (a, b) = (id("a"), id("a/b"));
        assert_eq!(catalog.place_dir(&backing, Path::new("a/b")).unwrap(), b);
        assert_eq!((catalog.parents(b).unwrap(), catalog.parents(a).unwrap()), (vec![a], vec![root]));
        std::fs::rename(dir.path().join("a"), dir.path().join("old")).unwrap();
        catalog.remove_parent(a, root).unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        assert_eq!(catalog.place_dir(&backing, Path::new("a/b")).unwrap(), id("a/b"));
        assert_ne!(id("a/b"), b);
        assert_eq!(catalog.parents(id("a")).unwrap(), [root]);
    }

    #[test]
    fn paths_follow_renames() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/f"), "x").unwrap();
        let backing = Backing::open(dir.path()).unwrap();
        let catalog = Catalog::new(Arc::new(MemDb::new()));
        let id = |path: &str| FileId(backing.stat(Path::new(path)).unwrap().st_ino);
        let file = id("a/b/f");
        catalog.place(&backing, file, Path::new("a/b/f")).unwrap();
        catalog.flush().unwrap();
        assert_eq!(catalog.finder(&backing).path_of(file).unwrap(), Some("a/b/f".into()));
        std::fs::rename(dir.path().join("a/b/f"), dir.path().join("a/b/g")).unwrap();
        assert_eq!(catalog.finder(&backing).path_of(file).unwrap(), Some("a/b/g".into()));
        let (a, b) = (id("a"), id("a/b"));
        std::fs::rename(dir.path().join("a/b"), dir.path().join("c")).unwrap();
        assert_eq!(catalog.finder(&backing).path_of(file).unwrap(), None, "not known yet, and not made up");
        catalog.remove_parent(b, a).unwrap();
        catalog.add_parent(b, FileId(backing.identity().ino)).unwrap();
        assert_eq!(catalog.finder(&backing).path_of(file).unwrap(), Some("c/g".into()));
    }
}
