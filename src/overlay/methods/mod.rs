//! The published methods at work on a directory tree: any, in an overlay or not. One pass over its files, an index in
//! memory that is gone afterwards, and names instead of content ids.

pub mod base;
pub mod chunk_graph;
pub mod regions;
mod saved;
pub mod sif;

use super::error::{OverlayError, Result};
use crate::db::MemDb;
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use crate::similarity::methods::{AnyMethod, Index, IndexOptions, Likeness};
use ignore::WalkBuilder;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BUFFER_BYTES: usize = 256 << 10;

/// A content with its names in the tree and its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Sorted; below the tree's root.
    pub paths: Vec<PathBuf>,
    /// Its length in bytes.
    pub size: u64,
}

/// The regular files below a directory, as a method sees them.
pub struct Tree {
    root: PathBuf,
    index: Index,
    named: BTreeMap<RecipeId, Named>,
    unreadable: Vec<(PathBuf, String)>,
}

/// A file that was found, and how it compares.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedMatch {
    /// Below the tree's root.
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// Whether it is the same to the byte.
    pub identical: bool,
    /// How the file asked about, as a, compares with it, as b.
    pub likeness: Likeness,
}

/// A file and those that are like it.
#[derive(Clone, Debug, PartialEq)]
pub struct LikeGroup {
    /// With which the others are compared.
    pub reference: Named,
    /// The others, the best first: how the reference, as a, compares with each.
    pub members: Vec<(Likeness, Named)>,
}

impl Tree {
    /// Reads every regular file below `root`, or `root` itself; see [`walk`]. A file that cannot be read is told by
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
        let (id, sketch, size) = sketch(self.index.method(), path)?;
        let itself = path.canonicalize().ok();
        let mut matches = Vec::new();
        if let Some(named) = self.named.get(&id) {
            let likeness = self.index.method().comparer(&sketch).and_then(|comparer| comparer.with(&sketch));
            let likeness = likeness.map_err(SimilarityError::from)?;
            matches.extend(named.paths.iter().map(|path| NamedMatch {
                path: path.clone(),
                size,
                identical: true,
                likeness,
            }));
        }
        for found in self.index.query(&sketch, score_min, usize::MAX)? {
            if let Some(named) = self.named.get(&found.id).filter(|_| found.id != id) {
                let likeness = found.likeness;
                matches.extend(named.paths.iter().map(|path| NamedMatch {
                    path: path.clone(),
                    size: named.size,
                    identical: false,
                    likeness,
                }));
            }
            if matches.len() > limit {
                break;
            }
        }
        matches.retain(|found| itself.is_none() || self.root.join(&found.path).canonicalize().ok() != itself);
        matches.truncate(limit);
        Ok(matches)
    }

    /// Files with those that are like them, by name of the first; a set of files is given once. Contents with several names
    /// are groups too.
    pub fn groups(&self, score_min: f64) -> Result<Vec<LikeGroup>> {
        let mut like: BTreeMap<RecipeId, Vec<(Likeness, RecipeId)>> = BTreeMap::new();
        self.index.pairs(score_min, &mut |pair| {
            like.entry(pair.a).or_default().push((pair.likeness, pair.b));
            like.entry(pair.b).or_default().push((pair.likeness.swapped(), pair.a));
            Ok(true)
        })?;
        let mut by_name: Vec<(&RecipeId, &Named)> = self.named.iter().collect();
        by_name.sort_by(|a, b| a.1.paths.cmp(&b.1.paths));
        let (mut groups, mut given) = (Vec::new(), HashSet::new());
        for (id, reference) in by_name {
            let mut members = like.remove(id).unwrap_or_default();
            // As many as there are are like the other; those are listed where enough of this one is in them.
            members.retain(|(likeness, _)| of_reference(likeness) >= score_min);
            members.sort_by(|a, b| of_reference(&b.0).total_cmp(&of_reference(&a.0)).then(a.1.cmp(&b.1)));
            if members.is_empty() && reference.paths.len() < 2 {
                continue;
            }
            let mut set: Vec<RecipeId> = members.iter().map(|(_, member)| *member).chain([*id]).collect();
            set.sort_unstable();
            if given.insert(set) {
                let named = |(likeness, id)| Some((likeness, self.named.get(&id)?.clone()));
                let members = members.into_iter().filter_map(named).collect();
                groups.push(LikeGroup { reference: reference.clone(), members });
            }
        }
        Ok(groups)
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

/// The share of the reference that is in the other, or what the method measures instead.
pub fn of_reference(likeness: &Likeness) -> f64 {
    likeness.containment.unwrap_or_else(|| likeness.score())
}

/// What a file is called by its bytes, its encoded sketch and its length. One pass.
fn sketch(method: &dyn AnyMethod, path: &Path) -> Result<(RecipeId, Vec<u8>, u64)> {
    let (mut builder, mut hasher) = (method.start(path.file_name()), blake3::Hasher::new());
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
