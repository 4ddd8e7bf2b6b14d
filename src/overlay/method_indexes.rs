//! Saved indexes of published methods (`methods` in `config.toml`), updated with the files like the default
//! index.
//!
//! A content is sketched when it is committed or met by a scan, in one pass for all methods that do not know
//! it, and removed when its last file is gone.
//!
//! Invariants: an index is a hint, and can be rebuilt from the files. A sketch that fails is a log message,
//! and stops no commit. However long a file is, its sketches stay within their memory: larger ones are sorted
//! on disk. Removing a content holds the `forgetting` lock exclusively, so that none can be added meanwhile,
//! and a commit adds its file to the catalog before the content.

use super::Overlay;
use super::inode::Inode;
use super::methods::{LikeGroup, MatchWithPaths, PairWithPaths};
use super::similar::Plain;
use super::with_paths::{self, Asked, WithPaths};
use crate::backing;
use crate::catalog::FileRow;
use crate::contents::collection::Stored;
use crate::contents::error::{OverlayError, Result};
use crate::db::Db;
use crate::id::{ChunkId, RecipeId};
use crate::recipe::{ChunkRef, Recipe, RecipeHasher};
use crate::similarity::SimilarityError;
use crate::similarity::exact::Source;
use crate::similarity::methods::winnow::{Base, PairOptions, Query, Winnow};
use crate::similarity::methods::{
    AnyMethod, AnySketch, Builder, Chosen, Index, IndexOptions, Method, PairsAsked, Sketcher, names,
};
use rustix::fs::Stat;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

const WINDOW_BYTES: usize = 256 << 10;
/// Longer contents are sketched one at a time.
const TOGETHER_BYTES_MAX: u64 = 1 << 20;
/// Contents that one call looks up in an index.
const ASKED_MAX: usize = 1 << 14;

/// Limits of the method indexes.
#[derive(Clone, Debug)]
pub struct MethodIndexOptions {
    /// About how many bytes of memory additions may take before they are merged, in all indexes together.
    pub buffer_bytes: usize,
    /// About how many bytes of memory the sketches of one content may take.
    pub sketch_bytes: usize,
    /// Directory for temporary files.
    pub work_dir: PathBuf,
}

/// The method indexes.
pub struct MethodIndexes {
    indexes: Vec<Index>,
    /// How each was chosen.
    chosen: Vec<Chosen>,
    sketch_bytes: usize,
    work_dir: PathBuf,
    is_new: bool,
    forgetting: RwLock<()>,
    /// Held while a long content is sketched, so that only one at a time takes that memory.
    sketching: Mutex<()>,
}

impl MethodIndexes {
    /// Opens the indexes of the `wanted` methods in `db`, and removes those of others. Rebuilds an index that another version
    /// or other parameters made. With `read_only` it changes nothing, and opens only indexes that exist.
    pub fn open(
        db: &Arc<dyn Db>,
        wanted: &[Chosen],
        options: MethodIndexOptions,
        read_only: bool,
    ) -> std::result::Result<MethodIndexes, SimilarityError> {
        let (mut indexes, mut chosen, mut is_new) = (Vec::new(), Vec::new(), false);
        if !read_only {
            Index::remove_outdated(&**db)?;
        }
        let buffer_bytes = options.buffer_bytes / wanted.len().max(1);
        for name in names() {
            let wanted = wanted.iter().find(|wanted| wanted.name() == name);
            let method = wanted.map(Chosen::any);
            let is_there = method.as_ref().map_or(Ok(false), |method| Index::is_there(&**db, &**method))?;
            if !read_only && !is_there {
                Index::remove(&**db, name)?;
                is_new |= wanted.is_some();
            }
            if let Some((method, wanted)) = method.zip(wanted).filter(|_| is_there || !read_only) {
                let options = IndexOptions { buffer_bytes, ..IndexOptions::default() };
                indexes.push(Index::open(db.clone(), method, options)?);
                chosen.push(wanted.clone());
            }
        }
        let MethodIndexOptions { sketch_bytes, work_dir, .. } = options;
        Ok(MethodIndexes {
            indexes,
            chosen,
            sketch_bytes,
            work_dir,
            is_new,
            forgetting: RwLock::default(),
            sketching: Mutex::default(),
        })
    }

    /// Returns whether an index was made just now, so that a scan has to fill it.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The indexes.
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }

    /// Returns how the method of that name was chosen, if it has an index.
    pub fn chosen(&self, name: &str) -> Option<&Chosen> {
        self.chosen.iter().find(|chosen| chosen.name() == name)
    }

    /// Returns the parameters of winnowing, if it has an index.
    fn winnow(&self) -> Option<Winnow> {
        self.chosen.iter().find_map(Chosen::of)
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

/// Passes all bytes of a content to `take`, some at a time.
fn read_all(source: &dyn Source, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let failed = |e| OverlayError::io("read", "a content", e);
    let (mut window, mut offset) = (vec![0; WINDOW_BYTES], 0);
    while offset < source.len() {
        let len = source.read_at(offset, &mut window).map_err(failed)?;
        if len == 0 {
            let short = io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter meanwhile");
            return Err(failed(short));
        }
        take(&window[..len])?;
        offset += len as u64;
    }
    Ok(())
}

impl MethodIndexes {
    /// Returns a sketch without a name for each method, in one pass. `read` gets the bytes of each step.
    fn sketches(
        &self,
        methods: &[Arc<dyn AnyMethod>],
        source: &dyn Source,
        read: &mut dyn FnMut(u64),
    ) -> Result<Vec<AnySketch>> {
        let memory = self.sketch_bytes / methods.len().max(1);
        let start = |method: &Arc<dyn AnyMethod>| Sketcher::new(method.clone(), None, &self.work_dir, memory);
        let mut sketchers: Vec<Sketcher> = methods.iter().map(start).collect();
        read_all(source, &mut |bytes| {
            for sketcher in &mut sketchers {
                sketcher.add(bytes)?;
            }
            read(bytes.len() as u64);
            Ok(())
        })?;
        sketchers.into_iter().map(|sketcher| Ok(sketcher.finish()?)).collect()
    }
}

/// A content in a method index.
#[derive(Clone, Debug)]
pub struct IndexedContent {
    /// Its number in the index.
    pub number: u32,
    /// Its content.
    pub id: RecipeId,
    /// How many keys it has.
    pub keys: u64,
    /// Encoded.
    pub head: Vec<u8>,
    /// Its names and length.
    pub named: WithPaths,
}

/// A file or directory that a request names.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileRef {
    /// Below the root, or with `outside` an absolute path.
    #[serde(with = "super::text")]
    pub path: PathBuf,
    /// Whether it is outside the overlay.
    pub outside: bool,
}

impl Overlay {
    /// The same overlay, with these indexes.
    pub fn with_method_indexes(self, indexes: MethodIndexes) -> Overlay {
        Overlay { method_indexes: Some(indexes), ..self }
    }

    /// Returns the indexes of published methods.
    pub fn method_indexes(&self) -> Option<&MethodIndexes> {
        self.method_indexes.as_ref()
    }

    pub(super) fn flush_method_indexes(&self) -> Result<()> {
        Ok(self.method_indexes.iter().flat_map(MethodIndexes::indexes).try_for_each(Index::flush)?)
    }

    /// Forgets contents that have no file any more.
    pub(super) fn forget_kept(&self, orphans: &[RecipeId]) -> Result<()> {
        let Some(kept) = self.method_indexes.as_ref().filter(|kept| !kept.indexes.is_empty()) else {
            return Ok(());
        };
        let _alone = kept.forgetting.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        for orphan in orphans {
            if self.catalog.holders(orphan)?.is_empty() {
                gone.push(*orphan);
            }
        }
        Ok(kept.indexes.iter().try_for_each(|index| index.forget_all(&gone))?)
    }

    /// Sketches a content that was just committed and recorded: from the store if it is there, else from the file. If the
    /// file has changed meanwhile, the next commit sketches it.
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

    /// Sketches a stub's content for indexes that lack it; returns whether there was one.
    pub(super) fn keep_stored(&self, id: RecipeId) -> Result<bool> {
        let open = || {
            let recipe = self.contents.store.recipe(&id)?;
            Ok(Box::new(Stored::of(&self.contents.store, recipe)) as Box<dyn Source>)
        };
        self.keep(id, open, &|| true, &mut |bytes| self.throttle.spend(bytes))
    }

    /// The same for a plain file that the catalog knows as `row`.
    pub(super) fn keep_plain(&self, inode: &Inode, row: &FileRow) -> Result<bool> {
        let as_known = || {
            let stat = inode.path_fd().and_then(rustix::fs::fstat);
            stat.is_ok_and(|stat| stat.st_size as u64 == row.size && backing::mtime(&stat) == row.mtime)
        };
        self.keep(row.recipe, || self.plain_source(inode), &as_known, &mut |bytes| self.throttle.spend(bytes))
    }

    /// Adds a content to each index that lacks it, if `is_it` still returns true after the bytes were read.
    fn keep(
        &self,
        id: RecipeId,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
        is_it: &dyn Fn() -> bool,
        read: &mut dyn FnMut(u64),
    ) -> Result<bool> {
        let Some(kept) = &self.method_indexes else { return Ok(false) };
        let without = kept.without(&id)?;
        if without.is_empty() {
            return Ok(false);
        }
        let source = open()?;
        let is_long = source.len() > TOGETHER_BYTES_MAX;
        let alone = is_long.then(|| kept.sketching.lock().unwrap_or_else(PoisonError::into_inner));
        let methods: Vec<_> = without.iter().map(|index| index.method().clone()).collect();
        let made = kept.sketches(&methods, &*source, read).map_err(|e| match e {
            OverlayError::Io { source, .. } => OverlayError::io("read", format!("content {id}"), source),
            e => e,
        })?;
        if !is_it() {
            return Ok(false);
        }
        let _adding = kept.forgetting.read().unwrap_or_else(PoisonError::into_inner);
        for (index, sketch) in without.into_iter().zip(made) {
            index.add(id, &sketch)?;
        }
        drop(alone);
        Ok(true)
    }

    /// Returns the index of a method. If the user chose parameters, the index must have been made with those.
    fn method_index(&self, method: &Chosen) -> Result<Option<(&MethodIndexes, Index)>> {
        let Some(kept) = &self.method_indexes else { return Ok(None) };
        let index = kept.indexes.iter().find(|index| index.method().name() == method.name());
        let Some(index) = index else { return Ok(None) };
        let asked = if method.is_bare() { index.method().clone() } else { method.any() };
        Ok(Some((kept, index.asked_by(asked)?)))
    }

    /// Returns the description of a method as its index is asked; `None` if it has no index.
    pub fn method_description(&self, method: &Chosen) -> Result<Option<String>> {
        Ok(self.method_index(method)?.map(|(_, index)| index.method().description()))
    }

    /// Returns files of this overlay that are like the queried one, by a method index; `None` if `method` has none.
    /// Leaves out the file itself. `query` sets a query for the index of winnowing; then the sketch of the file is held in
    /// memory.
    pub fn method_similar(
        &self,
        method: &Chosen,
        asked: &FileRef,
        query: Option<&Query>,
        score_min: f64,
        limit: usize,
    ) -> Result<Option<Vec<MatchWithPaths>>> {
        let Some((kept, index)) = self.method_index(method)? else { return Ok(None) };
        let FileRef { path, outside } = asked;
        let source = self.source_at(asked)?;
        let failed = |e| OverlayError::io("read", path, e);
        let mut sketches = kept.sketches(&[index.method().clone()], &*source, &mut |_| {})?;
        let Some(sketch) = sketches.pop() else { return Ok(None) };
        let mut recipe = RecipeHasher::default();
        let mut add =
            |bytes: &[u8]| recipe.add(ChunkRef { id: ChunkId::of(bytes), len: bytes.len() as u32 }, 1);
        self.contents.each_chunk(&*source, &mut add).map_err(failed)?;
        let likely = match query {
            None => index.query(&sketch, score_min, usize::MAX)?,
            Some(query) => {
                let mut builder = query.winnow().builder(None);
                read_all(&*source, &mut |bytes| {
                    builder.add(bytes);
                    Ok(())
                })?;
                query.ask(&index, &builder.finish(), score_min)?
            }
        };
        let asked = Asked { name: path.file_name(), id: recipe.finish(), sketch };
        let mut finder = self.catalog.finder(&self.backing);
        let mut names = |id: &RecipeId| self.named(id, Path::new(""), &mut finder);
        let found = with_paths::matches(&index, asked, likely, &mut names, score_min, limit)?;
        let is_itself = |found: &Path| !outside && found == path;
        Ok(Some(with_paths::without(found, is_itself, limit)))
    }

    /// Returns the parameters of the winnowing index, and the fingerprints of the base files with these parameters; `None` if
    /// there is no such index.
    pub fn winnow_base(&self, files: &[FileRef]) -> Result<Option<(Winnow, Base)>> {
        let Some(winnow) = self.method_indexes.as_ref().and_then(MethodIndexes::winnow) else {
            return Ok(None);
        };
        let mut base = Base::default();
        for file in files {
            let mut builder = winnow.builder(None);
            read_all(&*self.source_at(file)?, &mut |bytes| {
                builder.add(bytes);
                Ok(())
            })?;
            base.add(&builder.finish());
        }
        Ok(Some((winnow, base)))
    }

    fn source_at(&self, file: &FileRef) -> Result<Box<dyn Source>> {
        match file.outside {
            true => Ok(Box::new(Plain::open(&file.path)?)),
            false => Ok(self.source(&file.path)?.0),
        }
    }

    /// Returns files at or below `below` with those there that are like them, by a method index; `None` if `method` has
    /// none. Passages in `base` count nothing. Holds all their paths, and all pairs that are alike.
    pub fn method_groups(
        &self,
        method: &Chosen,
        below: &Path,
        base: &Base,
        score_min: f64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Vec<LikeGroup>>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        let asked = PairsAsked { score_min, without: base.hashes().clone(), ..PairsAsked::default() };
        with_paths::groups(&index, &self.all_named(below)?, &asked, progress).map(Some)
    }

    /// Returns pairs of files at or below `below` by the winnowing index, those with most fingerprints in common first;
    /// `None` if there is no such index.
    pub fn method_pairs(
        &self,
        method: &Chosen,
        below: &Path,
        base: &Base,
        options: &PairOptions,
    ) -> Result<Option<Vec<PairWithPaths>>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        with_paths::pairs(&index, &self.all_named(below)?, base, options).map(Some)
    }

    /// Returns contents in a method index that have a file at or below `below`, from a number on, until they have `most`
    /// names or more, and the number for the next call; `None` if the method has no index.
    pub fn method_contents(
        &self,
        method: &Chosen,
        below: &Path,
        from: u32,
        most: usize,
    ) -> Result<Option<(Vec<IndexedContent>, Option<u32>)>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        let mut finder = self.catalog.finder(&self.backing);
        let (mut found, mut names, mut next, mut failed) = (Vec::new(), 0, None, Ok(()));
        index.contents(from, &mut |number, id, keys, head| {
            if names >= most {
                next = Some(number);
                return false;
            }
            names += 1;
            failed = self.named(&id, below, &mut finder).map(|named| {
                found.extend(named.map(|named| {
                    names += named.paths.len();
                    IndexedContent { number, id, keys, head: head.to_vec(), named }
                }));
            });
            failed.is_ok()
        })?;
        failed?;
        Ok(Some((found, next)))
    }

    /// Returns the keys of a method index from one on, packed ([`Index::packed_keys`]), and the key for the next call; `None`
    /// if the method has no index.
    pub fn method_keys(
        &self,
        method: &Chosen,
        from: u64,
        most: usize,
    ) -> Result<Option<(Vec<u8>, Option<u64>)>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        Ok(Some(index.packed_keys(from, most)?))
    }

    /// Returns every content that has a file at or below `below`.
    fn all_named(&self, below: &Path) -> Result<BTreeMap<RecipeId, WithPaths>> {
        let mut finder = self.catalog.finder(&self.backing);
        let (mut named, mut failed) = (BTreeMap::new(), Ok(()));
        self.catalog.each_content(&mut |id, _| {
            failed = self.named(id, below, &mut finder).map(|found| {
                found.into_iter().for_each(|found| drop(named.insert(*id, found)));
            });
            failed.is_ok()
        })?;
        failed?;
        Ok(named)
    }

    /// Returns how many files the index of a method lacks; `None` if it has no index. Reads the list of all contents.
    pub fn not_kept(&self, method: &Chosen) -> Result<Option<u64>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        let mut not = 0;
        let mut asked: (Vec<RecipeId>, Vec<u64>) = Default::default();
        let mut look = |(ids, files): &mut (Vec<RecipeId>, Vec<u64>)| -> Result<()> {
            index.each_missing(ids, &mut |at| not += files[at])?;
            ids.clear();
            files.clear();
            Ok(())
        };
        let mut failed = Ok(());
        self.catalog.each_content(&mut |id, files| {
            asked.0.push(*id);
            asked.1.push(files.len() as u64);
            if asked.0.len() >= ASKED_MAX {
                failed = look(&mut asked);
            }
            failed.is_ok()
        })?;
        failed?;
        look(&mut asked)?;
        not += self.pending() as u64;
        Ok(Some(not))
    }

    /// Returns the paths of the files with a content, those at or below `below`; `None` if there are none.
    fn named(
        &self,
        id: &RecipeId,
        below: &Path,
        finder: &mut crate::catalog::Finder<'_>,
    ) -> Result<Option<WithPaths>> {
        let mut named = WithPaths::default();
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
