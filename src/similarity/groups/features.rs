//! Features with the contents that have them, from features with chunks.
//!
//! The contents of a chunk are looked up in memory: those of all chunks if they fit. Otherwise features are taken in batches
//! whose chunks fit, and the table of containments is read once for each batch.

use super::input::Input;
use super::progress::{Phase, Progress, STEP};
use super::ranges::{entry, place};
use super::ranked::Ranked;
use crate::similarity::SimilarityError;

type Result<T> = std::result::Result<T, SimilarityError>;

const BATCH_ROW_BYTES: usize = 16;

pub(super) struct Features<'a> {
    input: &'a dyn Input,
    contents: &'a Ranked,
    memory: usize,
}

/// The places that have each of some chunks.
struct Containing {
    chunks: Ranked,
    starts: Vec<u32>,
    entries: Vec<u32>,
}

impl Containing {
    /// Reads the contents of the `wanted` chunks; `None` if they take more than `most` entries.
    fn read(
        input: &dyn Input,
        contents: &Ranked,
        wanted: Option<Ranked>,
        most: usize,
    ) -> Result<Option<Containing>> {
        let chunks = match wanted {
            Some(chunks) => chunks,
            None => {
                let (mut chunks, mut count) = (Ranked::default(), 0);
                input.contained(&mut |chunk, content, _| {
                    if contents.contains(content) {
                        chunks.insert(chunk);
                        count += 1;
                    }
                    count < most
                })?;
                chunks.finish();
                if count >= most || chunks.len() >= most {
                    return Ok(None);
                }
                chunks
            }
        };
        let mut starts = Vec::with_capacity(chunks.len() + 1);
        let (mut entries, mut last) = (Vec::new(), None);
        input.contained(&mut |chunk, content, level| {
            // A row may show twice if the table changes meanwhile.
            if last.is_some_and(|last| (chunk, content) <= last) {
                return true;
            }
            last = Some((chunk, content));
            if let (Some(rank), Some(place)) = (chunks.rank(chunk), contents.rank(content)) {
                starts.resize(rank as usize + 1, entries.len() as u32);
                entries.push(entry(place, level));
            }
            entries.len() < u32::MAX as usize
        })?;
        starts.resize(chunks.len() + 1, entries.len() as u32);
        Ok(Some(Containing { chunks, starts, entries }))
    }

    fn of(&self, chunk: u32) -> &[u32] {
        let Some(rank) = self.chunks.rank(chunk).map(|rank| rank as usize) else { return &[] };
        &self.entries[self.starts[rank] as usize..self.starts[rank + 1] as usize]
    }
}

/// Collects the places of one feature after another.
struct Collector<'a> {
    visit: &'a mut dyn FnMut(&[u32]) -> Result<()>,
    feature: Option<u64>,
    places: Vec<u32>,
}

impl Collector<'_> {
    fn row(&mut self, feature: u64, containing: &[u32]) -> Result<()> {
        if self.feature != Some(feature) {
            self.end()?;
            self.feature = Some(feature);
        }
        self.places.extend_from_slice(containing);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        if self.places.len() > 1 {
            // The finest level, if a place has the feature at several.
            self.places.sort_unstable();
            self.places.dedup_by_key(|entry| place(*entry));
            if self.places.len() > 1 {
                (self.visit)(&self.places)?;
            }
        }
        self.places.clear();
        Ok(())
    }
}

impl<'a> Features<'a> {
    pub(super) fn new(input: &'a dyn Input, contents: &'a Ranked, memory: usize) -> Features<'a> {
        Features { input, contents, memory }
    }

    /// Calls `visit` with the entries of each feature that two contents or more have, by place.
    pub(super) fn each(
        &self,
        progress: Progress<'_>,
        visit: &mut dyn FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        let all = Containing::read(self.input, self.contents, None, self.memory / 8)?;
        let mut collector = Collector { visit, feature: None, places: Vec::new() };
        let batch_rows = self.memory / BATCH_ROW_BYTES;
        let mut batch: Vec<(u64, u32)> = Vec::new();
        let (mut rows, mut last, mut failed) = (0u64, None, None);
        self.input.features(&mut |feature, chunk| {
            // Rows may show again if the table changes meanwhile.
            if last.is_some_and(|last| (feature, chunk) <= last) {
                return true;
            }
            last = Some((feature, chunk));
            rows += 1;
            let mut step = || -> Result<()> {
                if rows.is_multiple_of(STEP) && !progress(Phase::Reading, rows, 0) {
                    return Err(SimilarityError::Interrupted);
                }
                match &all {
                    Some(all) => collector.row(feature, all.of(chunk)),
                    None => {
                        batch.push((feature, chunk));
                        if batch.len() < batch_rows { Ok(()) } else { self.flush(&mut batch, &mut collector) }
                    }
                }
            };
            failed = step().err();
            failed.is_none()
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        self.flush(&mut batch, &mut collector)?;
        collector.end()?;
        self.each_bare(progress, visit)
    }

    /// The same for bare chunks: only their ids are known. A bare chunk is in common as a whole, so `visit` is called for
    /// each feature that it would have. Memory: 4 bytes for each content that has one chunk.
    fn each_bare(&self, progress: Progress<'_>, visit: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        let (mut of, mut places, mut rows, mut failed) = (None, Vec::new(), 0u64, None);
        let mut end = |of: Option<(u32, u32)>, places: &mut Vec<u32>| -> Result<()> {
            places.sort_unstable();
            places.dedup_by_key(|entry| place(*entry));
            if let Some((_, features)) = of.filter(|_| places.len() > 1) {
                (0..features).try_for_each(|_| visit(places))?;
            }
            places.clear();
            Ok(())
        };
        self.input.bare(&mut |chunk, content, level, features| {
            rows += 1;
            let mut step = || -> Result<()> {
                if rows.is_multiple_of(STEP) && !progress(Phase::Reading, rows, 0) {
                    return Err(SimilarityError::Interrupted);
                }
                if of.is_none_or(|(before, _)| before != chunk) {
                    end(of.replace((chunk, features)), &mut places)?;
                }
                places.extend(self.contents.rank(content).map(|place| entry(place, level)));
                Ok(())
            };
            failed = step().err();
            failed.is_none()
        })?;
        failed.map_or_else(|| end(of, &mut places), Err)
    }

    fn flush(&self, batch: &mut Vec<(u64, u32)>, collector: &mut Collector<'_>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut wanted = Ranked::default();
        batch.iter().for_each(|&(_, chunk)| wanted.insert(chunk));
        wanted.finish();
        if let Some(containing) = Containing::read(self.input, self.contents, Some(wanted), usize::MAX)? {
            for (feature, chunk) in batch.drain(..) {
                collector.row(feature, containing.of(chunk))?;
            }
        }
        batch.clear();
        Ok(())
    }
}
