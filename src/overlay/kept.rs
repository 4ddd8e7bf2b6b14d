//! Indexes of the published methods that are kept: what a user wants of them (`methods` in `config.toml`) follows the files
//! as the default does.
//!
//! A content is sketched when it is committed or met by a scan, in one pass for all methods that do not know it, and
//! forgotten when its last file is gone. What must always be true: an index is a hint, made anew from the files; a
//! sketch that cannot be made is a line in the log, and stops no commit.
//!
//! Who forgets a content asks for its files while nobody adds any, and who adds one has put its file into the catalog
//! before: so no content that is wanted again just then is lost.

use super::contents::Stored;
use super::error::{OverlayError, Result};
use super::inode::Inode;
use super::methods::{LikeGroup, NamedMatch};
use super::named::{self, Asked, Named};
use super::similar::Plain;
use super::{FileRow, Overlay, backing};
use crate::db::Db;
use crate::id::{ChunkId, FileId, RecipeId};
use crate::recipe::{ChunkRef, Recipe, RecipeHasher};
use crate::similarity::SimilarityError;
use crate::similarity::exact::Source;
use crate::similarity::methods::{AnyMethod, Index, IndexOptions, all};
use rustix::fs::Stat;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

const WINDOW_BYTES: usize = 256 << 10;
/// Longer contents are sketched one at a time.
const TOGETHER_BYTES_MAX: u64 = 1 << 20;
/// Contents whose presence in an index is asked for at a time.
const ASKED_MAX: usize = 1 << 14;

/// What kept indexes may take.
#[derive(Clone, Copy, Debug)]
pub struct KeptOptions {
    /// About how many bytes of memory additions may take before they are merged, in all indexes together.
    pub buffer_bytes: usize,
    /// Longer contents are left out: a sketch grows with its file, and is made in memory.
    pub content_bytes_max: u64,
}

/// The indexes that are kept.
pub struct Kept {
    indexes: Vec<Index>,
    content_bytes_max: u64,
    is_new: bool,
    forgetting: RwLock<()>,
    /// Held while a long content is sketched: one at a time takes memory for that.
    sketching: Mutex<()>,
}

/// What a kept index has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotKept {
    /// Files that it does not know yet.
    pub files: u64,
    /// Files that are too long for it.
    pub long_files: u64,
}

impl Kept {
    /// Opens the indexes of the `wanted` methods in `db`, and removes those of others. One that another version or other
    /// parameters made is made anew. With `read_only` nothing is changed, and only what is there is opened.
    pub fn open(
        db: &Arc<dyn Db>,
        wanted: &[&str],
        options: KeptOptions,
        read_only: bool,
    ) -> std::result::Result<Kept, SimilarityError> {
        let (mut indexes, mut is_new) = (Vec::new(), false);
        let buffer_bytes = options.buffer_bytes / wanted.len().max(1);
        for method in all() {
            let is_wanted = wanted.contains(&method.name());
            let is_there = Index::is_there(&**db, &*method)?;
            if !read_only && (!is_wanted || !is_there) {
                Index::remove(&**db, method.name())?;
                is_new |= is_wanted;
            }
            if is_wanted && (is_there || !read_only) {
                let options = IndexOptions { buffer_bytes, ..IndexOptions::default() };
                indexes.push(Index::open(db.clone(), method, options)?);
            }
        }
        let content_bytes_max = options.content_bytes_max;
        Ok(Kept {
            indexes,
            content_bytes_max,
            is_new,
            forgetting: RwLock::default(),
            sketching: Mutex::default(),
        })
    }

    /// Whether one was made just now, so that a scan has to fill it.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The indexes.
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }

    /// Contents of more bytes are left out.
    pub fn content_bytes_max(&self) -> u64 {
        self.content_bytes_max
    }

    fn without(&self, id: &RecipeId) -> Result<Vec<&Index>> {
        let _adding = self.forgetting.read().unwrap_or_else(PoisonError::into_inner);
        let mut without = Vec::new();
        for index in &self.indexes {
            if !index.has(id)? {
                without.push(index);
            }
        }
        Ok(without)
    }
}

/// A sketch without a name for each method, in one pass. `read` is told the bytes of each step.
fn sketches(
    methods: &[&dyn AnyMethod],
    source: &dyn Source,
    read: &mut dyn FnMut(u64),
) -> io::Result<Vec<Vec<u8>>> {
    let mut builders: Vec<_> = methods.iter().map(|method| method.start(None)).collect();
    let (mut window, mut offset) = (vec![0; WINDOW_BYTES], 0);
    while offset < source.len() {
        let len = source.read_at(offset, &mut window)?;
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter meanwhile"));
        }
        builders.iter_mut().for_each(|builder| builder.add_bytes(&window[..len]));
        offset += len as u64;
        read(len as u64);
    }
    Ok(builders.into_iter().map(|builder| builder.encoded()).collect())
}

impl Overlay {
    /// Keeps these indexes from now on.
    pub fn with_kept(self, kept: Kept) -> Overlay {
        Overlay { kept: Some(kept), ..self }
    }

    /// The indexes of published methods that are kept.
    pub fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    pub(super) fn flush_kept(&self) -> Result<()> {
        Ok(self.kept.iter().flat_map(Kept::indexes).try_for_each(Index::flush)?)
    }

    /// Forgets contents that have no file any more.
    pub(super) fn forget_kept(&self, orphans: &[RecipeId]) -> Result<()> {
        let Some(kept) = self.kept.as_ref().filter(|kept| !kept.indexes.is_empty()) else { return Ok(()) };
        let _alone = kept.forgetting.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        for orphan in orphans {
            if self.catalog.holders(orphan)?.is_empty() {
                gone.push(*orphan);
            }
        }
        Ok(kept.indexes.iter().try_for_each(|index| index.forget_all(&gone))?)
    }

    /// Sketches a content that was just committed and recorded: from the store if it is there, else from the file, which is
    /// still as it was or the next commit does it.
    pub(super) fn keep_committed(
        &self,
        inode: &Inode,
        id: RecipeId,
        stored: Option<&Recipe>,
        file: &Arc<std::fs::File>,
        before: &Stat,
    ) {
        let as_before = || stored.is_some() || rustix::fs::fstat(&**file).is_ok_and(|now| same(&now, before));
        let open = || Ok(self.content_of(stored, file, before));
        if let Err(e) = self.keep(id, open, &as_before, &mut |_| {}) {
            tracing::warn!("{}: not sketched: {e}", self.name_of(inode));
        }
    }

    /// Sketches a stub's content that some index does not know; says whether there was one.
    pub(super) fn keep_stored(&self, id: RecipeId) -> Result<bool> {
        let open = || {
            let recipe = self.contents.store.recipe(&id)?;
            Ok(Box::new(Stored::of(&self.contents.store, recipe)) as Box<dyn Source>)
        };
        self.keep(id, open, &|| true, &mut |bytes| self.pace.spend(bytes))
    }

    /// The same of a plain file that the catalog knows as `row`.
    pub(super) fn keep_plain(&self, inode: &Inode, row: &FileRow) -> Result<bool> {
        let as_known = || {
            let stat = inode.path_fd().and_then(rustix::fs::fstat);
            stat.is_ok_and(|stat| stat.st_size as u64 == row.size && backing::mtime(&stat) == row.mtime)
        };
        self.keep(row.recipe, || self.plain_source(inode), &as_known, &mut |bytes| self.pace.spend(bytes))
    }

    /// Puts a content into each index that does not know it, if `is_it` still says so of what was read.
    fn keep(
        &self,
        id: RecipeId,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
        is_it: &dyn Fn() -> bool,
        read: &mut dyn FnMut(u64),
    ) -> Result<bool> {
        let Some(kept) = &self.kept else { return Ok(false) };
        let without = kept.without(&id)?;
        if without.is_empty() {
            return Ok(false);
        }
        let source = open()?;
        if source.len() > kept.content_bytes_max {
            return Ok(false);
        }
        let is_long = source.len() > TOGETHER_BYTES_MAX;
        let alone = is_long.then(|| kept.sketching.lock().unwrap_or_else(PoisonError::into_inner));
        let methods: Vec<_> = without.iter().map(|index| index.method()).collect();
        let made = sketches(&methods, &*source, read);
        let made = made.map_err(|e| OverlayError::io("read", format!("content {id}"), e))?;
        if !is_it() {
            return Ok(false);
        }
        let _adding = kept.forgetting.read().unwrap_or_else(PoisonError::into_inner);
        for (index, sketch) in without.into_iter().zip(made) {
            index.add(id, sketch)?;
        }
        drop(alone);
        Ok(true)
    }

    /// The kept index of a method.
    fn kept_index(&self, method: &str) -> Option<&Index> {
        self.kept.as_ref()?.indexes.iter().find(|index| index.method().name() == method)
    }

    /// Files of this overlay that are like the one at `path`, which is below its root or, with `outside`, anywhere, by an
    /// index that is kept; `None` if that of `method` is not. The file itself is left out.
    pub fn kept_similar(
        &self,
        method: &str,
        path: &Path,
        outside: bool,
        score_min: f64,
        limit: usize,
    ) -> Result<Option<Vec<NamedMatch>>> {
        let Some(index) = self.kept_index(method) else { return Ok(None) };
        let (source, itself) = match outside {
            true => (Box::new(Plain::open(path)?) as Box<dyn Source>, None),
            false => self.source(path).map(|(source, id)| (source, Some(id)))?,
        };
        let failed = |e| OverlayError::io("read", path, e);
        let mut sketch = sketches(&[index.method()], &*source, &mut |_| {}).map_err(failed)?;
        let mut recipe = RecipeHasher::default();
        let mut add =
            |bytes: &[u8]| recipe.add(ChunkRef { id: ChunkId::of(bytes), len: bytes.len() as u32 }, 1);
        self.contents.each_chunk(&*source, &mut add).map_err(failed)?;
        let sketch = sketch.pop().unwrap_or_default();
        let asked = Asked { name: path.file_name(), id: recipe.finish(), sketch };
        let mut finder = self.catalog.finder(&self.backing);
        let mut names = |id: &RecipeId| self.named(id, Path::new(""), &mut finder);
        let found = named::matches(index, &asked, &mut names, score_min, limit)?;
        let is_itself = |found: &Path| itself.is_some() && found == path;
        Ok(Some(named::without(found, is_itself, limit)))
    }

    /// Files at or below `below` with those there that are like them, by an index that is kept; `None` if that of
    /// `method` is not. Holds all their paths, and all pairs that are alike.
    pub fn kept_groups(
        &self,
        method: &str,
        below: &Path,
        score_min: f64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Vec<LikeGroup>>> {
        let Some(index) = self.kept_index(method) else { return Ok(None) };
        let mut finder = self.catalog.finder(&self.backing);
        let (mut named, mut failed) = (BTreeMap::new(), Ok(()));
        self.catalog.each_content(&mut |id, _| {
            failed = self.named(id, below, &mut finder).map(|found| {
                found.into_iter().for_each(|found| drop(named.insert(*id, found)));
            });
            failed.is_ok()
        })?;
        failed?;
        named::groups(index, &named, score_min, progress).map(Some)
    }

    /// What the kept index of a method has not; `None` if it is not kept. Reads the list of all contents.
    pub fn not_kept(&self, method: &str) -> Result<Option<NotKept>> {
        let Some((kept, index)) = self.kept.as_ref().zip(self.kept_index(method)) else { return Ok(None) };
        let mut not = NotKept::default();
        let mut asked: (Vec<RecipeId>, Vec<(FileId, u64)>) = Default::default();
        let mut look = |(ids, files): &mut (Vec<RecipeId>, Vec<(FileId, u64)>)| -> Result<()> {
            let mut missing = Vec::new();
            index.each_missing(ids, &mut |at| missing.push(files[at]))?;
            for (file, count) in missing {
                let size = self.catalog.file(file)?.map_or(0, |row| row.size);
                let long = size > kept.content_bytes_max;
                *(if long { &mut not.long_files } else { &mut not.files }) += count;
            }
            ids.clear();
            files.clear();
            Ok(())
        };
        let mut failed = Ok(());
        self.catalog.each_content(&mut |id, files| {
            asked.0.push(*id);
            asked.1.push((files[0], files.len() as u64));
            if asked.0.len() >= ASKED_MAX {
                failed = look(&mut asked);
            }
            failed.is_ok()
        })?;
        failed?;
        look(&mut asked)?;
        not.files += self.pending() as u64;
        Ok(Some(not))
    }

    /// Where the files are that have a content, those at or below `below`; `None` if there are none.
    fn named(&self, id: &RecipeId, below: &Path, finder: &mut super::Finder<'_>) -> Result<Option<Named>> {
        let mut named = Named::default();
        for file in self.catalog.holders(id)? {
            named.size = self.catalog.file(file)?.map_or(named.size, |row| row.size);
            finder.paths_of(file, &mut named.paths)?;
        }
        named.paths.retain(|path| path.starts_with(below));
        named.paths.sort();
        Ok((!named.paths.is_empty()).then_some(named))
    }
}

fn same(now: &Stat, before: &Stat) -> bool {
    now.st_size == before.st_size && backing::mtime(now) == backing::mtime(before)
}
