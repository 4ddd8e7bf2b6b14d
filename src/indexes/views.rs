//! The index of views: contents independent of their format, in addition to their bytes.
//!
//! It is a second similarity index in its own tables, with the same content ids. A content is indexed through
//! the one view that suits it, when it is committed or met by a scan, if the settings include that view. All
//! views share one index, so that a web page, a document and a text with the same content are found together.
//!
//! Invariants: a view is only a hint, like all of similarity. If a view fails, for any decoder and any bytes,
//! that is a log message, and stops no commit.

use crate::backing::io::read_full;
use crate::chunk::ChunkParams;
use crate::contents::collection::SWEPT_MAX;
use crate::contents::error::{OverlayError, Result};
use crate::contents::forgetting::Forgetting;
use crate::db::{Db, Shadow};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::{ChunkRef, Recipe};
use crate::similarity::exact::Source;
use crate::similarity::{Similarity, SimilarityError, SimilarityOptions, Sketch};
use crate::view::{Seen, View};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The index of views.
pub struct Views {
    pub(crate) index: Similarity,
    pub(crate) wanted: Vec<View>,
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

    pub(crate) fn index(&self) -> &Similarity {
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

    pub(crate) fn suits(&self, view: View) -> bool {
        self.wanted.contains(&view)
    }

    /// Indexes the content `id`, which the catalog has a file with and which `source` reads, through `view`. One pass, some
    /// MiB of memory.
    pub(crate) fn add(
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
pub(crate) fn seen(view: View, source: &dyn Source) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    see(view, source, &mut |piece| bytes.extend_from_slice(piece))?;
    Ok(bytes)
}

/// Returns the view for a content under a name.
pub(crate) fn view_of(source: &dyn Source, name: Option<&OsStr>) -> io::Result<View> {
    View::of_file(source.len(), name, &mut |at, buffer| source.read_at(at, buffer))
}

/// A file that a committer has open.
pub(crate) struct Shared(pub(crate) Arc<File>, pub(crate) u64);

impl Source for Shared {
    fn len(&self) -> u64 {
        self.1
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        read_full(&self.0, buffer, offset).map_err(io::Error::other)
    }
}
