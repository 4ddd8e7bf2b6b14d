//! Bytes in, chunks out: reads files into segments and has workers hash, store and sketch their chunks.
//!
//! One thread reads and cuts (some GB/s), the workers hash, compress and sketch. Segments of about a
//! mebibyte travel through a bounded channel, many small files to a segment, so memory is bounded by
//! `segments in flight * segment size` whatever the files are, and a chunk is never handed over alone.
//!
//! When [`Round::finish`] returns, every chunk is appended to a pack and visible, but only durable after
//! [`Store::sync`].

use crate::chunk::ChunkParams;
use crate::contents::Indexing;
use crate::contents::error::{OverlayError, Result};
use crate::contents::throttle::Priority;
use crate::id::ChunkId;
use crate::recipe::ChunkRef;
use crate::similarity::{Similarity, Sketch};
use crate::store::{Store, StoreError, Writer};
use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

const SEGMENT_BYTES: usize = 1 << 20;
/// Chunks of a shorter content have their grams in the similarity index even if they do not compress: after an edit, few
/// chunks stay as they were.
const SMALL_BYTES: u64 = 128 << 10;

/// The worker threads and their store and index.
pub struct Ingest {
    params: ChunkParams,
    zeros: ChunkRef,
    segments: Option<Sender<Segment>>,
    workers: Vec<JoinHandle<()>>,
}

/// Some bytes and where to cut them.
struct Segment {
    bytes: Vec<u8>,
    cuts: Vec<Cut>,
    /// Whether chunks are stored, or only hashed and sketched.
    keep: bool,
    /// Whether no caller waits for it.
    background: bool,
    first_slot: usize,
    done: Sender<Done>,
}

/// One chunk of a segment.
#[derive(Clone, Copy)]
struct Cut {
    len: u32,
    /// How much of its content the index gets.
    indexing: Indexing,
    /// Whether its content is short.
    small: bool,
}

struct Done {
    first_slot: usize,
    chunks: Result<Vec<ChunkRef>>,
    /// The segment's buffer, to be filled again.
    bytes: Vec<u8>,
}

impl Ingest {
    /// Starts `threads` workers that store into `store` and sketch into `similarity`.
    pub fn start(
        store: &Arc<Store>,
        similarity: &Arc<Similarity>,
        params: ChunkParams,
        threads: usize,
    ) -> Ingest {
        let (sender, receiver) = bounded::<Segment>(2 * threads);
        let workers = (0..threads.max(1))
            .map(|i| {
                let (store, similarity, receiver) = (store.clone(), similarity.clone(), receiver.clone());
                std::thread::Builder::new()
                    .name(format!("ingest-{i}"))
                    .spawn(move || work(&store, &similarity, &receiver))
                    .expect("a thread can be started")
            })
            .collect();
        let zeros = vec![0; 2 * params.max as usize];
        let len = params.cut(&zeros, false)[0];
        let zeros = ChunkRef { id: ChunkId::of(&zeros[..len as usize]), len };
        Ingest { params, zeros, segments: Some(sender), workers }
    }

    /// Returns the chunk into which long runs of zeros are cut.
    pub fn zeros(&self) -> ChunkRef {
        self.zeros
    }

    /// Returns how files are cut.
    pub fn params(&self) -> ChunkParams {
        self.params
    }

    /// Begins a round: a group of files; the caller waits for all their chunks together.
    pub fn round(&self, keep: bool) -> Round<'_> {
        let (done, results) = unbounded();
        Round {
            ingest: self,
            keep,
            indexing: Indexing::Full,
            background: false,
            segment_bytes: SEGMENT_BYTES.max(4 * self.params.max as usize),
            chunks: Vec::new(),
            outstanding: 0,
            bytes: Vec::new(),
            filled: 0,
            cuts: Vec::new(),
            cut: 0,
            spare: Vec::new(),
            done,
            results,
            failed: None,
        }
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.segments = None;
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

fn work(store: &Arc<Store>, similarity: &Similarity, segments: &Receiver<Segment>) {
    let mut writer = store.writer();
    let mut priority = Priority::default();
    for segment in segments {
        priority.set_low(segment.background);
        if !answer(segment, |segment| ingest_segment(&mut writer, similarity, segment)) {
            writer = store.writer();
        }
    }
}

/// Answers a segment, also if `work` panics, because the round waits for each answer. Returns false after a panic.
fn answer(segment: Segment, work: impl FnOnce(&Segment) -> Result<Vec<ChunkRef>>) -> bool {
    let chunks = catch_unwind(AssertUnwindSafe(|| work(&segment)));
    let worked = chunks.is_ok();
    let chunks = chunks.unwrap_or(Err(OverlayError::WorkerGone));
    let Segment { first_slot, bytes, done, .. } = segment;
    // A round that was given up does not receive any more.
    let _ = done.send(Done { first_slot, chunks, bytes });
    worked
}

fn ingest_segment(writer: &mut Writer, similarity: &Similarity, segment: &Segment) -> Result<Vec<ChunkRef>> {
    let mut chunks = Vec::with_capacity(segment.cuts.len());
    let mut rest = &segment.bytes[..];
    for &Cut { len, indexing, small } in &segment.cuts {
        let (bytes, tail) = rest.split_at(len as usize);
        rest = tail;
        let id = ChunkId::of(bytes);
        if segment.keep {
            writer.put(id, bytes)?;
        }
        if indexing != Indexing::Off && !similarity.knows_chunk(&id)? {
            similarity.add_chunk(id, sketch_of(writer, indexing, small, &id, bytes)?)?;
        }
        chunks.push(ChunkRef { id, len });
    }
    writer.flush()?;
    Ok(chunks)
}

/// Returns whether a content of `bytes` is so short that all its chunks have their grams in the similarity index.
pub(crate) fn is_small(bytes: u64) -> bool {
    bytes < SMALL_BYTES
}

/// Returns the sketch of a chunk: bare if only its id is wanted, or if it does not compress, unless its content is small.
pub(crate) fn sketch_of(
    writer: &mut Writer,
    indexing: Indexing,
    small: bool,
    id: &ChunkId,
    bytes: &[u8],
) -> std::result::Result<Sketch, StoreError> {
    let has_grams = indexing == Indexing::Full && (small || writer.compresses(id, bytes)?);
    match has_grams {
        true => Ok(Sketch::of_chunk(bytes)),
        false => Ok(Sketch::bare(bytes.len())),
    }
}

/// Input of a round.
pub trait Input {
    /// Reads as `Read::read` does: 0 bytes mean the end.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns how many zeros follow that need not be read, as far as that is known without reading them.
    fn hole(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    /// Skips the first `len` bytes of such a hole.
    fn skip(&mut self, _len: u64) {}

    /// Returns the offset in the content of the next byte to be read.
    fn start(&self) -> u64 {
        0
    }
}

/// An input without known holes.
struct Plain<F>(F);

impl<F: FnMut(&mut [u8]) -> io::Result<usize>> Input for Plain<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (self.0)(buffer)
    }
}

/// A group of files on their way through the workers.
pub struct Round<'a> {
    ingest: &'a Ingest,
    keep: bool,
    indexing: Indexing,
    background: bool,
    segment_bytes: usize,
    /// One slot for each chunk of the round, filled as workers answer.
    chunks: Vec<Option<ChunkRef>>,
    outstanding: usize,
    /// The segment being filled: always of full length, `filled` of it in use, `cut` of that cut into
    /// `cuts`.
    bytes: Vec<u8>,
    filled: usize,
    cuts: Vec<Cut>,
    cut: usize,
    spare: Vec<Vec<u8>>,
    done: Sender<Done>,
    results: Receiver<Done>,
    failed: Option<OverlayError>,
}

impl Round<'_> {
    /// Sets whether the workers let other work go first from here on.
    pub fn set_background(&mut self, background: bool) {
        self.background = background;
    }

    /// Sets how much the index gets of bytes added from here on. Default: all.
    pub fn set_indexing(&mut self, indexing: Indexing) {
        self.indexing = indexing;
    }

    /// Adds the bytes that `read` delivers (as `Read::read` does) until it delivers none, as [`Round::add_from`].
    pub fn add(
        &mut self,
        last: bool,
        read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Range<usize>> {
        self.add_from(last, &mut Plain(read))
    }

    /// Adds the bytes of `input`, to its end. Does not read its holes, and cuts them as zeros.
    ///
    /// With `last` the bytes end a file and all are covered. Without it, the tail that more bytes could still
    /// cut differently is left out. Returns the place of the chunks in the result of [`Round::finish`].
    pub fn add_from(&mut self, last: bool, input: &mut impl Input) -> io::Result<Range<usize>> {
        let first = self.slots();
        self.bytes.resize(self.segment_bytes, 0);
        let before = input.start();
        let is_small = |round: &Round<'_>| {
            round.slots() == first && is_small(before + (round.filled - round.cut) as u64)
        };
        loop {
            if self.filled == self.segment_bytes && is_small(self) {
                // A segment is larger: there are chunks before this content, and it is cut when its length is known.
                self.dispatch();
            }
            if self.filled == self.segment_bytes {
                self.cut_bytes(false, false);
                self.skip_hole(input)?;
                self.dispatch();
            }
            match input.read(&mut self.bytes[self.filled..]) {
                Ok(0) => break,
                Ok(len) => self.filled += len,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.filled = self.cut;
                    return Err(e);
                }
            }
        }
        self.cut_bytes(last, last && is_small(self));
        self.filled = self.cut;
        if self.filled >= self.segment_bytes / 2 {
            self.dispatch();
        }
        Ok(first..self.slots())
    }

    /// Adds the chunks of zeros of a hole that follows, if all bytes since the last cut are zeros. The last `max` bytes are
    /// read: the bytes after them may move a cut.
    fn skip_hole(&mut self, input: &mut impl Input) -> io::Result<()> {
        let tail = &self.bytes[self.cut..self.filled];
        if tail.iter().any(|&byte| byte != 0) {
            return Ok(());
        }
        let (tail, ChunkRef { len, .. }) = (tail.len() as u64, self.ingest.zeros);
        let hole = match input.hole() {
            Ok(hole) => hole,
            Err(e) => {
                self.filled = self.cut;
                return Err(e);
            }
        };
        let times = (tail + hole).saturating_sub(self.ingest.params.max.into()) / u64::from(len);
        if times < 2 || times * u64::from(len) <= tail {
            return Ok(());
        }
        input.skip(times * u64::from(len) - tail);
        self.filled = self.cut;
        // The store must have this chunk.
        self.add_chunk(&vec![0; len as usize]);
        self.dispatch();
        self.chunks.extend(std::iter::repeat_n(Some(self.ingest.zeros), times as usize - 1));
        Ok(())
    }

    /// Adds one chunk, cut by the caller. Returns its place in the result of [`Round::finish`].
    pub fn add_chunk(&mut self, bytes: &[u8]) -> usize {
        debug_assert_eq!(self.filled, self.cut);
        self.bytes.resize(self.segment_bytes, 0);
        if self.filled + bytes.len() > self.segment_bytes {
            self.dispatch();
        }
        self.bytes[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        self.cut = self.filled;
        self.cuts.push(Cut { len: bytes.len() as u32, indexing: self.indexing, small: false });
        self.slots() - 1
    }

    /// Waits for all chunks of the round; they are in the order in which they were added.
    pub fn finish(mut self) -> Result<Vec<ChunkRef>> {
        self.dispatch();
        while self.outstanding > 0 {
            let done = self.results.recv().map_err(|_| OverlayError::WorkerGone)?;
            self.accept(done);
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.chunks.into_iter().collect::<Option<_>>().ok_or(OverlayError::WorkerGone)
    }

    fn slots(&self) -> usize {
        self.chunks.len() + self.cuts.len()
    }

    fn cut_bytes(&mut self, last: bool, small: bool) {
        let lens = self.ingest.params.cut(&self.bytes[self.cut..self.filled], last);
        self.cut += lens.iter().map(|&len| len as usize).sum::<usize>();
        let indexing = self.indexing;
        self.cuts.extend(lens.into_iter().map(|len| Cut { len, indexing, small }));
    }

    fn dispatch(&mut self) {
        while let Ok(done) = self.results.try_recv() {
            self.accept(done);
        }
        let cuts = std::mem::take(&mut self.cuts);
        if cuts.is_empty() {
            return;
        }
        let mut next = self.spare.pop().unwrap_or_default();
        next.resize(self.segment_bytes, 0);
        let tail = self.filled - self.cut;
        next[..tail].copy_from_slice(&self.bytes[self.cut..self.filled]);
        let bytes = std::mem::replace(&mut self.bytes, next);
        (self.filled, self.cut) = (tail, 0);
        let first_slot = self.chunks.len();
        self.chunks.resize(first_slot + cuts.len(), None);
        let (keep, background) = (self.keep, self.background);
        let segment = Segment { bytes, cuts, keep, background, first_slot, done: self.done.clone() };
        let sender = self.ingest.segments.as_ref().expect("workers live as long as the ingest");
        match sender.send(segment) {
            Ok(()) => self.outstanding += 1,
            Err(_) => self.failed = Some(OverlayError::WorkerGone),
        }
    }

    fn accept(&mut self, done: Done) {
        self.outstanding -= 1;
        self.spare.push(done.bytes);
        match done.chunks {
            Ok(chunks) => {
                for (slot, chunk) in self.chunks[done.first_slot..].iter_mut().zip(chunks) {
                    *slot = Some(chunk);
                }
            }
            Err(e) => self.failed = Some(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::contents::Contents;
    use crate::contents::ingest::*;
    use std::time::Duration;

    /// Runs of bytes and of zeros, the zeros being holes.
    struct Sparse {
        runs: Vec<(u64, bool)>,
        holes: bool,
        read: u64,
    }

    impl Input for Sparse {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some((left, hole)) = self.runs.first_mut() else { return Ok(0) };
            let len = (buffer.len() as u64).min(*left).min(50_000);
            for (at, byte) in (*left..).zip(&mut buffer[..len as usize]) {
                *byte = if *hole { 0 } else { (at * at / 251) as u8 };
            }
            self.skip(len);
            self.read += len;
            Ok(len as usize)
        }

        fn hole(&mut self) -> io::Result<u64> {
            Ok(self.runs.first().filter(|(_, hole)| *hole && self.holes).map_or(0, |(left, _)| *left))
        }

        fn skip(&mut self, len: u64) {
            self.runs[0].0 -= len;
            self.runs.retain(|(left, _)| *left > 0);
        }
    }

    #[test]
    fn holes_are_cut_as_the_zeros_would_be_and_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let contents = Contents::open(dir.path(), ChunkParams::with_average(4096).unwrap()).unwrap();
        let ingest = &contents.ingest;
        let runs = [(3_000_000, false), (40_000_000, true), (70_000, false), (9_000_001, true), (1, false)];
        let cut = |runs: &[(u64, bool)], holes| {
            let mut input = Sparse { runs: runs.to_vec(), holes, read: 0 };
            let mut round = ingest.round(true);
            round.add_from(true, &mut input).unwrap();
            (round.finish().unwrap(), input.read)
        };
        for runs in [&runs[..], &runs[1..], &runs[1..2], &runs[..2]] {
            let (expected, all) = cut(runs, false);
            let (found, read) = cut(runs, true);
            assert!(found == expected, "{runs:?}");
            assert!(read < all / 2, "{read} of {all} bytes were read of {runs:?}");
        }
    }

    #[test]
    fn a_panic_over_a_segment_is_an_error_of_its_round() {
        let (done, results) = unbounded();
        let segment = |first_slot| Segment {
            bytes: vec![1; 10],
            cuts: vec![Cut { len: 10, indexing: Indexing::Full, small: true }],
            keep: false,
            background: false,
            first_slot,
            done: done.clone(),
        };
        assert!(!answer(segment(0), |_| panic!("as a bug would")));
        assert!(answer(segment(1), |_| Ok(Vec::new())));
        let next = || {
            results.recv_timeout(Duration::from_secs(10)).map(|done| (done.first_slot, done.chunks.is_ok()))
        };
        assert_eq!([next(), next()], [Ok((0, false)), Ok((1, true))]);
    }
}
