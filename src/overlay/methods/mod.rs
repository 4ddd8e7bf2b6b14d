//! The published methods at work on a directory tree: any, in an overlay or not. One pass over its files, an index in
//! memory that is gone afterwards, and names instead of content ids.

pub mod base;
pub mod chunk_graph;
pub mod regions;
mod saved;
pub mod sif;

use super::error::{OverlayError, Result};
use super::named::{self, Asked};
use crate::db::MemDb;
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use crate::similarity::methods::{AnyMethod, Index, IndexOptions};
use ignore::WalkBuilder;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use super::named::{LikeGroup, Named, NamedMatch, of_reference};

const BUFFER_BYTES: usize = 256 << 10;

/// The regular files below a directory, as a method sees them.
pub struct Tree {
    root: PathBuf,
    index: Index,
    named: BTreeMap<RecipeId, Named>,
    unreadable: Vec<(PathBuf, String)>,
}

impl Tree {
    /// Reads every regular file below `root`, or `root` itself. A file that cannot be read is told by
    /// [`Tree::unreadable`].
    ///
    /// `progress` is told the files and bytes read so far; false asks to stop.
    pub fn read(
        root: &Path,
        method: Arc<dyn AnyMethod>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Tree> {
        Tree::read_all(&[(root, Path::new(""))], method, progress)
    }

    /// As [`Tree::read`] for several directories, each with what goes before the names of its files.
    pub fn read_all(
        roots: &[(&Path, &Path)],
        method: Arc<dyn AnyMethod>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Tree> {
        let index = Index::open(Arc::new(MemDb::new()), method, IndexOptions::default())?;
        let root = roots.first().map(|(root, _)| root.to_path_buf()).unwrap_or_default();
        let mut tree = Tree { root, index, named: BTreeMap::new(), unreadable: Vec::new() };
        let (mut files, mut bytes) = (0, 0);
        let mut unreadable = Vec::new();
        for (root, front) in roots {
            walk(root, &mut unreadable, &mut |path, below| {
                bytes += tree.add(path, &front.join(below))?;
                files += 1;
                if progress(files, bytes) { Ok(()) } else { Err(SimilarityError::Interrupted.into()) }
            })?;
        }
        tree.unreadable = unreadable;
        tree.index.flush()?;
        Ok(tree)
    }

    fn add(&mut self, path: &Path, below: &Path) -> Result<u64> {
        let (id, sketch, size) = sketch(self.index.method(), path)?;
        if size == 0 {
            // What has no content is like nothing.
            return Ok(0);
        }
        self.index.add(id, sketch)?;
        let named = self.named.entry(id).or_default();
        named.size = size;
        named.paths.push(below.to_owned());
        Ok(size)
    }

    /// Files that could not be read, with why.
    pub fn unreadable(&self) -> &[(PathBuf, String)] {
        &self.unreadable
    }

    /// Number of different contents.
    pub fn contents(&self) -> usize {
        self.named.len()
    }

    /// The index, and what contents are called.
    pub fn index(&self) -> (&Index, &BTreeMap<RecipeId, Named>) {
        (&self.index, &self.named)
    }

    /// Files like the one at `path`, in the tree or not, whose likeness scores at least `score_min`; the same first, then
    /// the best. The file itself is left out.
    pub fn similar(&self, path: &Path, score_min: f64, limit: usize) -> Result<Vec<NamedMatch>> {
        let (id, sketch, _) = sketch(self.index.method(), path)?;
        let asked = Asked { name: path.file_name(), id, sketch };
        let names = &mut |id: &RecipeId| Ok(self.named.get(id).cloned());
        let found = named::matches(&self.index, &asked, names, score_min, limit)?;
        let itself = path.canonicalize().ok();
        let is_itself = |path: &Path| itself.is_some() && self.root.join(path).canonicalize().ok() == itself;
        Ok(named::without(found, is_itself, limit))
    }

    /// Files with those that are like them, by name of the first; a set of files is given once. Contents with several names
    /// are groups too.
    pub fn groups(&self, score_min: f64) -> Result<Vec<LikeGroup>> {
        named::groups(&self.index, &self.named, score_min, &mut |_| true)
    }
}

/// Gives `visit` every regular file below `root`, sorted, or `root` itself, with its path below that. Links are not followed,
/// hidden files are seen, and what belongs to a store is not. What cannot be read, to `visit` either, goes to `unreadable`.
pub(super) fn walk(
    root: &Path,
    unreadable: &mut Vec<(PathBuf, String)>,
    visit: &mut dyn FnMut(&Path, &Path) -> Result<()>,
) -> Result<()> {
    root.metadata().map_err(|e| OverlayError::io("open", root, e))?;
    let walk = WalkBuilder::new(root)
        .standard_filters(false)
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .filter_entry(|entry| !super::backing::is_hidden(entry.file_name()))
        .build();
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                unreadable.push((root.to_owned(), e.to_string()));
                continue;
            }
        };
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let below = entry.path().strip_prefix(root).ok().filter(|path| !path.as_os_str().is_empty());
        match visit(entry.path(), below.unwrap_or(entry.path())) {
            Err(OverlayError::Io { source, .. }) => {
                unreadable.push((entry.path().to_owned(), source.to_string()));
            }
            other => other?,
        }
    }
    Ok(())
}

/// What a file is called by its bytes, its encoded sketch without its name and its length. One pass.
fn sketch(method: &dyn AnyMethod, path: &Path) -> Result<(RecipeId, Vec<u8>, u64)> {
    let (mut builder, mut hasher) = (method.start(None), blake3::Hasher::new());
    let size = read_pieces(path, &mut |bytes| {
        hasher.update(bytes);
        builder.add_bytes(bytes);
    })?;
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    Ok((RecipeId(id), builder.encoded(), size))
}

/// Gives `take` the bytes of a regular file, and tells its length.
fn read_pieces(path: &Path, take: &mut dyn FnMut(&[u8])) -> Result<u64> {
    let mut file = open_regular(path)?;
    let (mut buffer, mut size) = (vec![0; BUFFER_BYTES], 0);
    loop {
        let len = file.read(&mut buffer).map_err(|e| OverlayError::io("read", path, e))?;
        if len == 0 {
            return Ok(size);
        }
        take(&buffer[..len]);
        size += len as u64;
    }
}

fn open_regular(path: &Path) -> Result<File> {
    let failed = |e| OverlayError::io("open", path, e);
    let file = File::open(path).map_err(failed)?;
    match file.metadata().map_err(failed)?.is_file() {
        true => Ok(file),
        false => Err(failed(std::io::Error::other("expected a regular file"))),
    }
}
