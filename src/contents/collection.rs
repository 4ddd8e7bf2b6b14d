//! Contents without names: bytes in, a recipe's id out, and similarity search.
//!
//! Another filesystem embeds this to deduplicate: it keeps its own names, and for each file the 16 bytes of a
//! [`RecipeId`]. The overlay uses it too.

use crate::chunk::ChunkParams;
use crate::contents::error::{OverlayError, Result};
use crate::contents::forgetting::Forgetting;
use crate::contents::ingest::{Ingest, is_small, sketch_of};
use crate::contents::{Indexing, Shares, SimilarOptions};
use crate::db::Db;
use crate::id::{ChunkId, RecipeId};
use crate::recipe::{ChunkRef, Recipe, RecipeHasher};
use crate::similarity::exact::{self, Patterns, Ranges, Source};
use crate::similarity::{Answer, Boilerplate, Candidate, QuerySketch, Similarity, SimilarityError};
use crate::store::{GcDone, Pin, Store, StoreError};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// Bytes of memory for one comparison.
pub(crate) const COMPARE_MEMORY: usize = 256 << 20;
/// Candidates compared for each match wanted: estimates may rank some too high.
const CANDIDATES_PER_MATCH: usize = 2;
const CANDIDATES_MIN: usize = 32;
/// Candidates taken from the index. Estimates hardly distinguish small files, so more of those are compared, as long as
/// they have few bytes.
pub(crate) const CANDIDATES_MAX: usize = 1024;
/// The index ranks this many contents by their share of the query for each candidate that is taken.
const RANKED_PER_CANDIDATE: usize = 4;
const EXTRA_BYTES_MAX: u64 = 2 << 20;
/// Bytes of both sides that are compared for one query, at some 30 to 250 MB/s; the remaining, less promising
/// candidates are estimated. The first is compared in any case, unless both together exceed a GiB: the time grows with the
/// product of the parts that do not fit into memory.
const COMPARED_BYTES_MAX: u64 = 128 << 20;
const FIRST_BYTES_MAX: u64 = 1 << 30;
const WINDOW_BYTES: usize = 4 << 20;
/// Sweeps that may each take sketches of a content while it is being added.
pub(crate) const SWEPT_MAX: usize = 8;

/// A deduplicated set of contents. All methods may be called from many threads.
pub struct Contents {
    pub(crate) store: Arc<Store>,
    pub(crate) similarity: Arc<Similarity>,
    pub(crate) ingest: Ingest,
    db: Arc<dyn Db>,
    /// Held while a directory of our own is open.
    _lock: Option<File>,
}

impl Contents {
    /// Combines parts that the caller has opened. Starts `threads` workers.
    pub fn new(
        store: Arc<Store>,
        similarity: Arc<Similarity>,
        db: Arc<dyn Db>,
        params: ChunkParams,
        threads: usize,
    ) -> Contents {
        let ingest = Ingest::start(&store, &similarity, params, threads);
        Contents { store, similarity, ingest, db, _lock: None }
    }

    /// Keeps the lock of the directory until the contents are closed.
    pub(crate) fn locked(self, lock: File) -> Contents {
        Contents { _lock: Some(lock), ..self }
    }

    /// Protects contents that are put from [`Contents::gc`] as long as the pin is held: until the caller has written the
    /// ids that [`Contents::put`] returned to where its next collection will look.
    pub fn pin(&self) -> Pin {
        self.store.pin()
    }

    /// Removes all contents except those of `needed` and those put under a [`Contents::pin`] that is held or younger than
    /// this call. Calls `needed` only after all older pins are gone. If that fails, or a content cannot be read,
    /// everything stays as it is. Other threads may read and put meanwhile.
    pub fn gc<I>(&self, needed: impl FnOnce() -> Result<I>) -> Result<GcDone>
    where
        I: IntoIterator<Item = RecipeId>,
    {
        let gone = || StoreError::Missing { object: crate::store::Object::Recipe(RecipeId([0; 16])) };
        let collection = self.store.collect(&mut |_, _| true)?.ok_or_else(gone)?;
        for recipe in needed()? {
            collection.keep(&recipe)?;
        }
        let plan = collection.plan(&mut |_, _| true)?.ok_or_else(gone)?;
        Ok(collection.apply(&plan, &mut |_, _| true)?)
    }

    /// Stores all of `bytes`: chunks it, stores each new chunk once, and sketches it. The content can be read at once;
    /// it is durable after [`Contents::sync`].
    pub fn put(&self, mut bytes: impl Read) -> Result<RecipeId> {
        let mut round = self.ingest.round(true);
        round
            .add(true, |buffer| bytes.read(buffer))
            .map_err(|e| OverlayError::io("read", "the content", e))?;
        let recipe = Recipe::new(round.finish()?);
        let mut writer = self.store.writer();
        let id = writer.put_recipe(&recipe)?;
        writer.flush()?;
        let stored = Arc::new(recipe.clone());
        self.index(id, &recipe, Indexing::Full, None, || Ok(Box::new(Stored::of(&self.store, stored))))?;
        Ok(id)
    }

    /// Adds a content to the index whose chunks were all sketched at some time. A sweep may have removed sketches that no
    /// content used for a while; those are made again from the bytes that `open` gives. Fails with
    /// [`SimilarityError::UnknownChunk`] if these bytes have changed.
    pub(crate) fn index(
        &self,
        id: RecipeId,
        recipe: &Recipe,
        indexing: Indexing,
        forgetting: Option<&Forgetting>,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
    ) -> Result<()> {
        let add = || {
            let _adding = forgetting.map(Forgetting::adding);
            self.similarity.add_content(id, recipe)
        };
        let mut added = add();
        if let Err(SimilarityError::UnknownChunk(_)) = added {
            let source = open()?;
            // Each further sweep can only remove sketches that were still there: fewer each time.
            for _ in 0..SWEPT_MAX {
                self.sketch_unknown(id, recipe, indexing, &*source)?;
                added = add();
                if !matches!(added, Err(SimilarityError::UnknownChunk(_))) {
                    break;
                }
            }
        }
        Ok(added?)
    }

    /// Sketches the chunks of a content that the index does not know, each once; skips those that `source` no longer has.
    fn sketch_unknown(
        &self,
        id: RecipeId,
        recipe: &Recipe,
        indexing: Indexing,
        source: &dyn Source,
    ) -> Result<()> {
        let (mut seen, mut offset, mut bytes) = (HashSet::new(), 0, Vec::new());
        let (mut writer, small) = (self.store.writer(), is_small(recipe.size()));
        for chunk in recipe.chunks() {
            let start = offset;
            offset += u64::from(chunk.len);
            if !seen.insert(chunk.id) {
                continue;
            }
            if self.similarity.knows_chunk(&chunk.id)? {
                continue;
            }
            bytes.resize(chunk.len as usize, 0);
            let mut filled = 0;
            while filled < bytes.len() {
                let read = source.read_at(start + filled as u64, &mut bytes[filled..]);
                match read.map_err(|e| OverlayError::io("read", format!("content {id}"), e))? {
                    0 => break,
                    len => filled += len,
                }
            }
            if filled == bytes.len() && ChunkId::of(&bytes) == chunk.id {
                let sketch = sketch_of(&mut writer, indexing, small, &chunk.id, &bytes)?;
                self.similarity.add_chunk(chunk.id, sketch)?;
            }
        }
        Ok(())
    }

    /// Makes everything put before durable, and the index with it.
    pub fn sync(&self) -> Result<()> {
        self.store.sync()?;
        self.similarity.flush()?;
        self.store.persist()?;
        Ok(self.db.flush()?)
    }

    /// Length in bytes of a content.
    pub fn size(&self, id: &RecipeId) -> Result<u64> {
        Ok(self.store.recipe(id)?.size())
    }

    /// Reads a content at `offset`: the whole buffer, unless the content ends before.
    pub fn read_at(&self, id: &RecipeId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.store.read_at(&*self.store.recipe(id)?, offset, buffer)?)
    }

    /// Adds a content of the store to the similarity index if that does not have it: after the index was lost.
    pub fn reindex(&self, id: &RecipeId) -> Result<()> {
        let recipe = self.store.recipe(id)?;
        let stored = recipe.clone();
        self.index(*id, &recipe, Indexing::Full, None, || Ok(Box::new(Stored::of(&self.store, stored))))
    }

    /// Lets similarity forget a content that no file has any more. Its bytes stay in the store.
    pub fn forget(&self, id: &RecipeId) -> Result<()> {
        Ok(self.similarity.remove_content(id)?)
    }

    /// The contents that resemble content `id`, best first, without itself.
    pub fn similar(&self, id: &RecipeId, options: &SimilarOptions) -> Result<Vec<(RecipeId, Shares)>> {
        let query = Stored::new(self, id)?;
        let boilerplate = Boilerplate::default();
        let (_, answer) = self.query(&query, &boilerplate, options, false)?;
        let asked = Asked::new(&query, options.patterns(&boilerplate))?;
        let rules = options.filter.rules(Path::new(""), query.len())?;
        let mut found = Vec::new();
        let mut budget = Budget::default();
        for candidate in answer.candidates.iter().filter(|candidate| candidate.recipe != *id) {
            if !rules.allow_size(candidate.size) {
                continue;
            }
            let open = || Ok(Box::new(Stored::new(self, &candidate.recipe)?) as Box<dyn Source>);
            let Some(estimate) = budget.spend(options, &query, candidate) else { break };
            let shares = self.shares(&asked, candidate, estimate, open)?;
            if shares.reach(options) {
                found.push((candidate.recipe, shares));
            }
        }
        found.sort_by(|a, b| options.by.better(&a.1, &b.1));
        found.truncate(options.limit);
        Ok(found)
    }

    /// Queries the index for the likeliest first, or with `everything` for all that it has; also returns the recipe that the
    /// query itself would have.
    pub(crate) fn query(
        &self,
        query: &dyn Source,
        boilerplate: &Boilerplate,
        options: &SimilarOptions,
        everything: bool,
    ) -> Result<(RecipeId, Answer)> {
        let (sketch, recipe) = self.sketch(query).map_err(|e| OverlayError::io("read", "the query", e))?;
        let wanted = match everything {
            true => usize::MAX,
            false => options.limit.saturating_mul(CANDIDATES_PER_MATCH).max(CANDIDATES_MAX),
        };
        let ranked = wanted.saturating_mul(RANKED_PER_CANDIDATE);
        let mut answer = self.similarity.query_excluding(&sketch, boilerplate, options.min, ranked)?;
        answer.candidates.sort_by(|a, b| options.by.likelier(a, b));
        answer.candidates.truncate(wanted);
        Ok((recipe, answer))
    }

    /// Returns how much the query and a candidate have in common: from their bytes, or estimated.
    pub(crate) fn shares(
        &self,
        asked: &Asked<'_>,
        candidate: &Candidate,
        estimate: bool,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
    ) -> Result<Shares> {
        if estimate {
            let &Candidate { containment, contained_in, resemblance, bytes_common, .. } = candidate;
            let (bytes_suppressed, identical, verified) = (0, false, false);
            return Ok(Shares {
                containment,
                contained_in,
                resemblance,
                bytes_common,
                bytes_suppressed,
                identical,
                verified,
            });
        }
        let (query, other) = (asked.source, open()?);
        let found = exact::compare_excluding(query, &asked.covered, &*other, &asked.patterns, COMPARE_MEMORY)
            .map_err(|e| OverlayError::io("read", "a candidate", e))?;
        if found.common.identical {
            return Ok(Shares::identical(query.len()));
        }
        let (size, other_size) = (query.len() - found.a_patterns, other.len() - found.b_patterns);
        Ok(Shares::of(&found.common, size, other_size, found.suppressed))
    }

    /// The sketch of some content, and the recipe that it would have. One pass, some MiB of memory, and 40 bytes for
    /// each chunk that is not as the one before.
    pub(crate) fn sketch(&self, source: &dyn Source) -> io::Result<(QuerySketch, RecipeId)> {
        let mut sketch = QuerySketch::new();
        let mut recipe = RecipeHasher::default();
        self.each_run(source, &mut |bytes, times| {
            let id = ChunkId::of(bytes);
            sketch.add_named(&id, bytes, times);
            recipe.add(ChunkRef { id, len: bytes.len() as u32 }, times);
        })?;
        Ok((sketch, recipe.finish()))
    }

    /// Calls `visit` with the bytes of each chunk that some content would have, in order.
    pub(crate) fn each_chunk(&self, source: &dyn Source, visit: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.each_run(source, &mut |bytes, times| (0..times).for_each(|_| visit(bytes)))
    }

    /// Calls `visit` with the bytes of each chunk that some content would have, and how often it is there in a row.
    /// Holes are not read.
    fn each_run(&self, source: &dyn Source, visit: &mut dyn FnMut(&[u8], u64)) -> io::Result<()> {
        let params = self.ingest.params();
        let most = WINDOW_BYTES.max(4 * params.max as usize) as u64;
        let mut window = vec![0; most.min(source.len() + 1) as usize];
        let (mut filled, mut offset) = (0, 0);
        loop {
            // A cut depends only on the bytes since the last cut, and on no more than the longest chunk.
            let cut = offset - filled as u64;
            let zeros = source.data_from(cut) - cut;
            if let Some(more) = zeros.checked_sub(params.max.into()) {
                let chunk = vec![0; params.max as usize];
                let chunk = &chunk[..params.cut(&chunk, true)[0] as usize];
                let times = more / chunk.len() as u64 + 1;
                visit(chunk, times);
                (filled, offset) = (0, cut + times * chunk.len() as u64);
            }
            let len = source.read_at(offset, &mut window[filled..])?;
            filled += len;
            offset += len as u64;
            let last = offset >= source.len() || len == 0;
            let mut start = 0;
            for len in params.cut(&window[..filled], last) {
                visit(&window[start..start + len as usize], 1);
                start += len as usize;
            }
            window.copy_within(start..filled, 0);
            filled -= start;
            if last {
                return Ok(());
            }
        }
    }
}

/// The queried content, prepared for many comparisons.
pub(crate) struct Asked<'a> {
    source: &'a dyn Source,
    patterns: Patterns<'a>,
    /// Ranges of it that the patterns cover.
    pub(crate) covered: Ranges,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(source: &'a dyn Source, patterns: Patterns<'a>) -> Result<Asked<'a>> {
        // A content that is too long is never compared.
        let covered = match source.len() > FIRST_BYTES_MAX {
            true => Ok(Ranges::default()),
            false => patterns.covered(source, COMPARE_MEMORY),
        };
        let covered = covered.map_err(|e| OverlayError::io("read", "the query", e))?;
        Ok(Asked { source, patterns, covered })
    }
}

/// Budget that is left for comparisons of one query.
#[derive(Default)]
pub(crate) struct Budget {
    candidates: usize,
    spent: u64,
}

impl Budget {
    /// Whether the next candidate is only to be estimated; `None` if it is not worth that.
    pub(crate) fn spend(
        &mut self,
        options: &SimilarOptions,
        query: &dyn Source,
        candidate: &Candidate,
    ) -> Option<bool> {
        let promising =
            self.candidates < options.limit.saturating_mul(CANDIDATES_PER_MATCH).max(CANDIDATES_MIN);
        if !promising && self.spent > EXTRA_BYTES_MAX {
            return None;
        }
        let both = query.len().saturating_add(candidate.size);
        let estimate = options.estimate || self.spent > COMPARED_BYTES_MAX || both > FIRST_BYTES_MAX;
        self.candidates += 1;
        self.spent = self.spent.saturating_add(both);
        Some(estimate)
    }
}

/// A content in the store, to be compared.
pub(crate) struct Stored {
    store: Arc<Store>,
    recipe: Arc<Recipe>,
}

impl Stored {
    fn new(contents: &Contents, id: &RecipeId) -> Result<Stored> {
        Ok(Stored::of(&contents.store, contents.store.recipe(id)?))
    }

    pub(crate) fn of(store: &Arc<Store>, recipe: Arc<Recipe>) -> Stored {
        Stored { store: store.clone(), recipe }
    }
}

impl Source for Stored {
    fn len(&self) -> u64 {
        self.recipe.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.store.read_at(&self.recipe, offset, buffer).map_err(io::Error::other)
    }
}
