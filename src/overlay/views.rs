//! The index of views: contents independent of their format, in addition to their bytes.
//!
//! It is a second similarity index in its own tables, with the same content ids. A content is indexed through
//! the one view that suits it, when it is committed or met by a scan, if the settings include that view. All
//! views share one index, so that a web page, a document and a text with the same content are found together.
//!
//! Invariants: a view is only a hint, like all of similarity. If a view fails, for any decoder and any bytes,
//! that is a log message, and stops no commit.

use super::Overlay;
use super::file::read_full;
use super::inode::Inode;
use super::similar::{Match, Matches, Query};
use crate::chunk::ChunkParams;
use crate::contents::collection::{Asked, Budget, CANDIDATES_MAX, SWEPT_MAX, Stored};
use crate::contents::error::{OverlayError, Result};
use crate::contents::forgetting::Forgetting;
use crate::contents::{Look, Shares, SimilarOptions};
use crate::db::{Db, Shadow};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::{ChunkRef, Recipe};
use crate::similarity::exact::{Patterns, Source};
use crate::similarity::{Similarity, SimilarityError, SimilarityOptions, Sketch};
use crate::view::{HEAD_BYTES, Seen, View};
use rustix::fs::Stat;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The index of views.
pub struct Views {
    index: Similarity,
    wanted: Vec<View>,
}

impl Views {
    /// Opens the index of views in `db`. No views are added yet.
    pub fn open(db: Arc<dyn Db>, buffer_bytes: usize) -> std::result::Result<Views, SimilarityError> {
        let options = SimilarityOptions { buffer_bytes, ..SimilarityOptions::default() };
        Ok(Views { index: Similarity::open(Arc::new(Shadow::new(db)), options)?, wanted: Vec::new() })
    }

    /// Adds these views from now on. If the list is empty, the index is cleared.
    pub fn wanting(self, wanted: Vec<View>) -> std::result::Result<Views, SimilarityError> {
        if wanted.is_empty() && !self.is_empty() {
            self.index.clear()?;
        }
        Ok(Views { wanted, ..self })
    }

    /// Views that are indexed.
    pub fn wanted(&self) -> &[View] {
        &self.wanted
    }

    pub(super) fn index(&self) -> &Similarity {
        &self.index
    }

    /// Contents that are indexed through a view.
    pub fn len(&self) -> u64 {
        self.index.stats().contents
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn suits(&self, view: View) -> bool {
        self.wanted.contains(&view)
    }

    /// Indexes the content `id`, which the catalog has a file with and which `source` reads, through `view`. One pass, some
    /// MiB of memory.
    fn add(
        &self,
        id: RecipeId,
        view: View,
        source: &dyn Source,
        params: ChunkParams,
        forgetting: &Forgetting,
    ) -> Result<()> {
        let is_known = || {
            let _adding = forgetting.adding();
            self.index.has_content(&id)
        };
        if is_known()? {
            return Ok(());
        }
        let mut swept = 0;
        loop {
            let mut cutting =
                Cutting { index: &self.index, params, bytes: Vec::new(), chunks: Vec::new(), failed: None };
            see(view, source, &mut |bytes| cutting.put(bytes))?;
            let recipe = cutting.finish()?;
            let _adding = forgetting.adding();
            match self.index.add_content(id, &recipe) {
                // A sweep removed the chunk after it was found known: try once more.
                Err(SimilarityError::UnknownChunk(_)) if swept < SWEPT_MAX => swept += 1,
                other => return Ok(other?),
            }
        }
    }
}

/// A view on its way into the index, cut as files are.
struct Cutting<'a> {
    index: &'a Similarity,
    params: ChunkParams,
    bytes: Vec<u8>,
    chunks: Vec<ChunkRef>,
    failed: Option<SimilarityError>,
}

impl Cutting<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= 8 * self.params.max as usize {
            self.cut(false);
        }
    }

    fn cut(&mut self, last: bool) {
        let mut start = 0;
        for len in self.params.cut(&self.bytes, last) {
            let bytes = &self.bytes[start..start + len as usize];
            start += len as usize;
            let id = ChunkId::of(bytes);
            let known = self.index.knows_chunk(&id);
            let added = known.and_then(|known| match known {
                true => Ok(()),
                false => self.index.add_chunk(id, Sketch::of_chunk(bytes)),
            });
            if let Err(e) = added {
                self.failed.get_or_insert(e);
            }
            self.chunks.push(ChunkRef { id, len });
        }
        self.bytes.drain(..start);
    }

    fn finish(mut self) -> std::result::Result<Recipe, SimilarityError> {
        self.cut(true);
        self.failed.map_or(Ok(Recipe::new(self.chunks)), Err)
    }
}

/// A source as a stream with a position.
struct Reading<'a> {
    source: &'a dyn Source,
    at: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read_at(self.at, buffer)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Reading<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.source.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Passes the view of a source to `emit`. A file whose decoder panics counts as unreadable.
fn see(view: View, source: &dyn Source, emit: &mut dyn FnMut(&[u8])) -> Result<Seen> {
    let look = AssertUnwindSafe(|| view.through(&mut Reading { source, at: 0 }, emit));
    let seen = catch_unwind(look).unwrap_or_else(|_| Err(io::Error::other("its decoder panicked")));
    seen.map_err(|e| OverlayError::io("look at", format!("a file as {}", view.name()), e))
}

/// All of a view, at most [`crate::view::OUTPUT_BYTES_MAX`].
fn seen(view: View, source: &dyn Source) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    see(view, source, &mut |piece| bytes.extend_from_slice(piece))?;
    Ok(bytes)
}

fn head(source: &dyn Source) -> io::Result<Vec<u8>> {
    let mut head = vec![0; HEAD_BYTES.min(source.len() as usize)];
    let len = source.read_at(0, &mut head)?;
    head.truncate(len);
    Ok(head)
}

/// A file that a committer has open.
struct Shared(Arc<File>, u64);

impl Source for Shared {
    fn len(&self) -> u64 {
        self.1
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        read_full(&self.0, buffer, offset).map_err(io::Error::other)
    }
}

/// A view in memory.
struct Held(Vec<u8>);

impl Source for Held {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Source::read_at(&&self.0[..], offset, buffer)
    }
}

/// Returns the better of two answers for each file, ranked.
fn better_of(mut a: Matches, b: Matches, options: &SimilarOptions) -> Matches {
    let mut best: HashMap<PathBuf, Match> = HashMap::new();
    for found in std::mem::take(&mut a.matches).into_iter().chain(b.matches) {
        match best.entry(found.path.clone()) {
            Entry::Vacant(place) => drop(place.insert(found)),
            Entry::Occupied(mut known) => {
                if options.by.better(&found.shares, &known.get().shares).is_lt() {
                    known.insert(found);
                }
            }
        }
    }
    let mut matches: Vec<_> = best.into_values().collect();
    // Files that are the same come first.
    matches.sort_by(|a, b| {
        let same = b.shares.identical.cmp(&a.shares.identical);
        same.then(options.by.better(&a.shares, &b.shares)).then_with(|| a.path.cmp(&b.path))
    });
    matches.truncate(options.limit);
    Matches { matches, suppressed_features: a.suppressed_features + b.suppressed_features, ..a }
}

impl Overlay {
    /// Indexes views from now on.
    pub fn with_views(self, views: Views) -> Overlay {
        Overlay { views: Some(views), ..self }
    }

    /// The index of views.
    pub fn views(&self) -> Option<&Views> {
        self.views.as_ref()
    }

    pub(super) fn forget_view(&self, recipe: &RecipeId) -> Result<()> {
        self.views.as_ref().map_or(Ok(()), |views| Ok(views.index.remove_content(recipe)?))
    }

    pub(super) fn flush_views(&self) -> Result<()> {
        self.views.as_ref().map_or(Ok(()), |views| Ok(views.index.flush()?))
    }

    /// Returns the view through which a plain file will be indexed. Reads its first bytes, which will be read anyway.
    pub(super) fn view_wanted(&self, inode: &Inode, file: &File) -> Option<View> {
        let views = self.views.as_ref().filter(|views| !views.wanted.is_empty())?;
        let mut head = vec![0; HEAD_BYTES];
        let len = read_full(file, &mut head, 0).ok()?;
        // Names only distinguish views of text.
        let by_name = views.wanted.iter().any(|view| !view.hides_bytes());
        let path = by_name.then(|| self.path_of(inode)).flatten();
        let view = View::of(&head[..len], path.as_deref().and_then(Path::file_name));
        views.suits(view).then_some(view)
    }

    /// Indexes a content that the catalog has a file of through a view.
    pub(super) fn index_view(&self, inode: &Inode, view: View, id: RecipeId, source: &dyn Source) {
        let Some(views) = &self.views else { return };
        if let Err(e) = views.add(id, view, source, self.contents.ingest.params(), &self.forgetting) {
            tracing::warn!("{}: not indexed as {}: {e}", self.name_of(inode), view.name());
        }
    }

    /// Opens a content that was just committed: from the store if it is there, else from the file.
    pub(super) fn content_of(
        &self,
        stored: Option<&Recipe>,
        file: &Arc<File>,
        stat: &Stat,
    ) -> Box<dyn Source> {
        match stored {
            Some(recipe) => Box::new(Stored::of(&self.contents.store, Arc::new(recipe.clone()))),
            None => Box::new(Shared(file.clone(), stat.st_size as u64)),
        }
    }

    /// Indexes the view of a content that the index of bytes has, or is about to have. With `any_name` its first bytes
    /// are read in any case; else only if its name promises a view that is wanted, so that a scan of known files reads
    /// none of them. Returns whether there was something to do.
    pub(super) fn catch_up_view(
        &self,
        inode: &Inode,
        id: RecipeId,
        any_name: bool,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
    ) -> Result<bool> {
        let Some(views) = self.views.as_ref().filter(|views| !views.wanted.is_empty()) else {
            return Ok(false);
        };
        let path = self.path_of(inode);
        let name = path.as_deref().and_then(Path::file_name);
        let promised = name.and_then(View::promised).is_some_and(|view| views.suits(view));
        let is_known = || {
            let _adding = self.forgetting.adding();
            views.index.has_content(&id)
        };
        if !(promised || any_name) || is_known()? {
            return Ok(false);
        }
        let source = open()?;
        let head = head(&*source).map_err(|e| OverlayError::io("read", self.name_of(inode), e))?;
        let view = View::of(&head, name);
        let wanted = views.suits(view);
        if wanted {
            self.index_view(inode, view, id, &*source);
        }
        Ok(wanted)
    }

    /// Returns files of this overlay that resemble the queried one, read as `options` say.
    pub(super) fn similar_seen(&self, query: &Query<'_>, options: &SimilarOptions) -> Result<Matches> {
        let head = head(query.source).map_err(|e| OverlayError::io("read", query.name, e))?;
        let own = View::of(&head, query.name.file_name());
        match options.look {
            Look::Through(View::Raw) => self.similar(query, options),
            Look::Through(view) => self.similar_through(view, query, options),
            Look::Auto if own == View::Raw => self.similar(query, options),
            Look::Auto => self.similar_through(own, query, options),
            Look::Both => {
                let bytes = self.similar(query, options)?;
                if self.views.as_ref().is_none_or(Views::is_empty) {
                    return Ok(bytes);
                }
                // Bytes are also searched inside archives.
                let view = if own.hides_bytes() { own } else { View::Raw };
                match self.similar_through(view, query, options) {
                    Ok(inside) => Ok(better_of(bytes, inside, options)),
                    Err(e) => {
                        tracing::warn!("{}: only its bytes are compared: {e}", query.name.display());
                        Ok(bytes)
                    }
                }
            }
        }
    }

    /// Returns files of this overlay whose views resemble that of the queried one through `view`. Templates apply to
    /// bytes, and do not count here.
    ///
    /// One pass over the query, one look-up for each feature of its view, and one pass over each candidate content, unless
    /// only estimates are wanted. Holds two views in memory.
    fn similar_through(&self, view: View, query: &Query<'_>, options: &SimilarOptions) -> Result<Matches> {
        let mut found = Matches::default();
        let Some(views) = &self.views else { return Ok(found) };
        let rules = options.filter.rules(query.name, query.source.len())?;
        let seen_query = seen(view, query.source)?;
        let seen_query = &seen_query[..];
        let patterns = if options.templates { Patterns::padding() } else { Patterns::none() };
        let asked = Asked::new(&seen_query, patterns)?;
        let sketched = self.contents.sketch(&seen_query);
        let (sketch, _) = sketched.map_err(|e| OverlayError::io("read", "the query", e))?;
        let wanted = options.limit.max(CANDIDATES_MAX);
        let answer = views.index.query(&sketch, options.min, wanted)?;
        found.suppressed_features = answer.suppressed_features;
        let mut finder = self.catalog.finder(&self.backing);
        let mut budget = Budget::default();
        for candidate in &answer.candidates {
            let paths = self.paths_of(&candidate.recipe, query, &rules, &mut finder)?;
            let Some(name) = paths.first().and_then(|path| path.file_name()).map(ToOwned::to_owned) else {
                continue;
            };
            let Some(estimate) = budget.spend(options, &seen_query, candidate) else { break };
            let compared = self.source_of(&candidate.recipe, &mut finder).and_then(|source| {
                let head = head(&*source).map_err(|e| OverlayError::io("read", "a candidate", e))?;
                let (view, size) = (View::of(&head, Some(&name)), source.len());
                let open = || Ok(Box::new(Held(seen(view, &*source)?)) as Box<dyn Source>);
                let shares = self.contents.shares(&asked, candidate, estimate, open)?;
                // Equal views do not make the files identical.
                Ok((view, size, Shares { identical: false, ..shares }))
            });
            match compared {
                Ok((_, size, _)) if !rules.allow_size(size) => {}
                Ok((found_view, size, shares)) if shares.reach(options) => {
                    let found_at = |path| Match {
                        query_view: view,
                        view: found_view,
                        ..Match::of_bytes(path, size, shares)
                    };
                    found.matches.extend(paths.into_iter().map(found_at));
                }
                Ok(_) => {}
                Err(e) => tracing::warn!("recipe {}: not compared: {e}", candidate.recipe),
            }
        }
        found.matches.sort_by(|a, b| options.by.better(&a.shares, &b.shares));
        found.matches.truncate(options.limit);
        Ok(found)
    }
}
