//! Contents sent as deltas: the layer between a session and [`super::delta`].
//!
//! Both sides have exchanged their trees, and the former contents that they can still read
//! ([`super::replica::Replica::held`]). So the sender knows the possible bases of a content: everything in the
//! receiver's tree that this side can read. The rank among the contents of the receiver's tree identifies a base. The
//! first choice is the older content of the same path or file, which the receiver names in its request.
//!
//! Contents with a base go in batches, each of them one stream of deltas; others go as chunks ([`super::content`]). If
//! the receiver cannot decode a content (for example, because a base changed meanwhile), it requests it once more, and
//! gets it as chunks.
//!
//! Invariants:
//! - The receiver trusts nothing: each content must have the size in the agreed tree and its own hash. If the tree
//!   came without hashes, all contents together must give the root of the tree. No content is visible before that.
//! - Memory: that of the coder; a stream is stored in a file without a name until it is complete.

use super::content::Withheld;
use super::content::{CHANGED, Sink, Source, TOGETHER_MAX, Want};
use super::delta::{
    BASES_MAX, BaseId, Bases, DeltaError, Encoder, Limits, Options, ReadAt, Receiver, Resemblance, choose,
    decode,
};
use super::error::SyncError;
use super::removed_contents::RemovedContents;
use super::tree::{ContentId, Tree};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::time::{Duration, Instant};

/// Maximum number of contents in a batch.
const TARGETS_MAX: usize = 400;
/// Size of a batch in bytes: a batch that has reached it takes no more contents.
const TARGET_BYTES: u64 = 256 << 20;
/// Bytes of a stream in one frame.
pub const PART_BYTES_MAX: usize = 256 << 10;
/// Minimum size of a content for which the sender searches for similar bases, which takes 10 ms: if there is no older content, and
/// if it cannot read that, for example of a file that is edited more often than it is stored.
const SEARCHED_BYTES_MIN: u64 = 512;
const SEARCHED_EDITED_BYTES_MIN: u64 = 16 << 10;
/// Limits of the search for similar bases: contents without an older one, and time.
const SEARCHES_MAX: usize = 512;
const SEARCH_TIME: Duration = Duration::from_secs(10);

/// The contents of a tree by rank: each once, in the order of their paths.
#[derive(Default)]
pub struct Ranks {
    contents: Vec<ContentId>,
    ranks: HashMap<ContentId, u32>,
}

impl Ranks {
    /// Returns the ranks of the contents of `tree`.
    pub fn of(tree: &Tree) -> Ranks {
        let mut ranks = Ranks::default();
        for content in tree.entries.values().filter_map(|entry| entry.kind.content()) {
            let next = ranks.contents.len() as u32;
            if *ranks.ranks.entry(content).or_insert(next) == next {
                ranks.contents.push(content);
            }
        }
        ranks
    }

    /// Returns the content of a rank.
    pub fn content(&self, rank: u64) -> Option<ContentId> {
        self.contents.get(usize::try_from(rank).ok()?).copied()
    }

    /// Returns the rank of a content.
    pub fn rank(&self, content: ContentId) -> Option<u32> {
        self.ranks.get(&content).copied()
    }

    /// Returns all contents, by rank.
    pub fn contents(&self) -> &[ContentId] {
        &self.contents
    }
}

/// Returns the limits for a stream with `targets` bytes of targets: bytes of the stream, and bytes that its targets
/// may inflate to.
fn bytes_max(targets: u64) -> (u64, u64) {
    (targets + targets / 16 + (1 << 20), targets.saturating_mul(32).saturating_add(64 << 20))
}

/// A content to be sent as a delta, and its bases.
struct Target {
    number: u32,
    content: ContentId,
    size: u64,
    hint: Option<BaseId>,
    bases: Vec<BaseId>,
}

/// Opened bases.
struct Opened(HashMap<BaseId, File>);

impl Bases for Opened {
    fn open(&self, base: BaseId) -> io::Result<Option<Box<dyn ReadAt + '_>>> {
        Ok(self.0.get(&base).map(|file| Box::new(file) as Box<dyn ReadAt + '_>))
    }
}

/// The next message of a sender.
pub enum Told {
    /// Begins a batch, with the numbers of its wants as runs.
    Begin(Vec<(u32, u32)>),
    /// The next bytes of its stream.
    Part {
        /// The bytes.
        bytes: Vec<u8>,
        /// Whether the stream ends with them.
        last: bool,
    },
}

/// The sender's end.
#[derive(Default)]
pub struct Teller {
    batches: VecDeque<Vec<Target>>,
    stream: Option<(BufReader<File>, u64)>,
    ranks: Ranks,
    withheld: Vec<Withheld>,
}

/// Number of attempts to encode a batch if a file of it changes meanwhile. After them the files that still change are
/// withheld.
const ATTEMPTS: u32 = 3;

impl Teller {
    /// Plans deltas for those of `wants` that have a base in the receiver's tree, `theirs`. Returns the other wants
    /// too.
    pub fn new(
        wants: Vec<Want>,
        theirs: &Tree,
        source: &mut dyn Source,
    ) -> Result<(Teller, Vec<(u32, Want)>), SyncError> {
        let ranks = Ranks::of(theirs);
        let (mut targets, mut others) = (Vec::new(), Vec::new());
        let (mut searches, began) = (0, Instant::now());
        let mut gone = None;
        for (number, want) in (0..).zip(wants) {
            let hint = want
                .base
                .filter(|base| ranks.content(u64::from(*base)).is_some())
                .map(|base| BaseId(base.into()));
            let old = hint.and_then(|base| ranks.content(base.0));
            // Chunks of a part: the rest of it is as much as is missing.
            let readable = want.have.is_empty() && want.size > 0;
            let held = match old {
                Some(old) if readable => source.holds(old)?,
                _ => false,
            };
            let mut similar = Vec::new();
            let searched_min = if hint.is_some() { SEARCHED_EDITED_BYTES_MIN } else { SEARCHED_BYTES_MIN };
            if readable
                && !held
                && want.size >= searched_min
                && ranks.content(0).is_some()
                && searches < SEARCHES_MAX
                && began.elapsed() < SEARCH_TIME
            {
                searches += 1;
                let mut found = source.resembling(want.content)?;
                found.extend(resembling_gone(&mut gone, want.content, &ranks, source)?);
                similar = found
                    .into_iter()
                    .filter_map(|(content, share)| {
                        Some(Resemblance { base: BaseId(ranks.rank(content)?.into()), share })
                    })
                    .collect();
            }
            let mut bases = choose(hint.filter(|_| held), &similar);
            bases.truncate(BASES_MAX);
            match bases.is_empty() {
                true => others.push((number, want)),
                false => targets.push(Target { number, content: want.content, size: want.size, hint, bases }),
            }
        }
        let mut batches: VecDeque<Vec<Target>> = VecDeque::new();
        let mut bytes = 0;
        for target in targets {
            let begins =
                batches.back().is_none_or(|batch| batch.len() == TARGETS_MAX || bytes >= TARGET_BYTES);
            if begins {
                batches.push_back(Vec::new());
                bytes = 0;
            }
            bytes += target.size;
            batches.back_mut().expect("begun before").push(target);
        }
        Ok((Teller { batches, stream: None, ranks, withheld: Vec::new() }, others))
    }

    /// Bytes of contents whose batch was not begun.
    pub fn left_bytes(&self) -> u64 {
        self.batches.iter().flatten().map(|target| target.size).sum()
    }

    /// Returns the contents that will be sent.
    pub fn contents(&self) -> BTreeSet<ContentId> {
        self.batches.iter().flatten().map(|target| target.content).collect()
    }

    /// Returns the next message; `None` after the last one.
    pub fn next(&mut self, source: &mut dyn Source) -> Result<Option<Told>, SyncError> {
        if let Some((stream, left)) = &mut self.stream {
            let mut bytes = vec![0; (*left).min(PART_BYTES_MAX as u64) as usize];
            stream.read_exact(&mut bytes).map_err(|e| SyncError::io("read", "a delta", e))?;
            *left -= bytes.len() as u64;
            let last = *left == 0;
            if last {
                self.stream = None;
            }
            return Ok(Some(Told::Part { bytes, last }));
        }
        loop {
            let Some(mut batch) = self.batches.pop_front() else { return Ok(None) };
            for attempt in 1.. {
                match self.encode(&batch, attempt < ATTEMPTS, source)? {
                    Encoded::Stream(stream, len) => {
                        self.stream = Some((BufReader::new(stream), len));
                        let numbers = batch.iter().map(|target| target.number);
                        return Ok(Some(Told::Begin(runs(numbers))));
                    }
                    Encoded::Anew => {}
                    Encoded::Without(number, reason) => {
                        let lost = batch.extract_if(.., |target| target.number == number);
                        let withheld = lost.map(|Target { number, content, .. }| Withheld {
                            number,
                            content,
                            reason: reason.clone(),
                        });
                        self.withheld.extend(withheld);
                    }
                }
                if batch.is_empty() {
                    break;
                }
            }
        }
    }

    /// Returns the contents that could not be sent so far, and forgets them.
    pub fn take_withheld(&mut self) -> Vec<Withheld> {
        std::mem::take(&mut self.withheld)
    }

    /// Encodes a batch as a stream. Waits for a file that was changed meanwhile, or leaves it out.
    fn encode(&self, batch: &[Target], wait: bool, source: &mut dyn Source) -> Result<Encoded, SyncError> {
        let mut opened = Opened(HashMap::new());
        let bases = batch.iter().flat_map(|target| &target.bases);
        let bases: BTreeSet<ContentId> = bases.filter_map(|base| self.ranks.content(base.0)).collect();
        let bases: Vec<ContentId> = bases.into_iter().take(TOGETHER_MAX).collect();
        source.past_together(&bases)?;
        for base in batch.iter().flat_map(|target| &target.bases) {
            if !opened.0.contains_key(base)
                && let Some(content) = self.ranks.content(base.0)
                && let Some(file) = source.past(content)?
            {
                opened.0.insert(*base, file);
            }
        }
        let all = batch.iter().map(|target| target.size).sum();
        for archives in [true, false] {
            let mut spool = source.spool()?;
            let options = Options { archives, ..Options::default() };
            let mut encoder = Encoder::new(&opened, options, BufWriter::new(&spool)).map_err(encoding)?;
            for (n, target) in batch.iter().enumerate() {
                source.ahead(&mut batch[n..].iter().map(|next| (next.content, next.size)))?;
                let bases: Vec<BaseId> =
                    target.bases.iter().copied().filter(|base| opened.0.contains_key(base)).collect();
                let told = source.open(target.content).and_then(|file| {
                    encoder.add(&file, target.hint, &bases).map_err(encoding)?;
                    source.is_still(target.content)
                });
                match told {
                    Ok(true) => {}
                    Ok(false) if wait => return Ok(Encoded::Anew),
                    Ok(false) => return Ok(Encoded::Without(target.number, CHANGED.to_owned())),
                    Err(e) => {
                        let reason = e.of_one_file().filter(|_| !e.is_full()).ok_or(e)?;
                        return Ok(Encoded::Without(target.number, reason));
                    }
                }
            }
            let (encoded, out) = encoder.finish().map_err(encoding)?;
            drop(out);
            let (_, inflated_max) = bytes_max(all);
            // The receiver would refuse this stream, since it looks like a decompression bomb.
            if archives && encoded.copied_bytes + encoded.literal_bytes > inflated_max {
                continue;
            }
            spool.rewind().map_err(|e| SyncError::io("read", "a delta", e))?;
            return Ok(Encoded::Stream(spool, encoded.stream_bytes));
        }
        unreachable!("without a look into archives nothing inflates")
    }
}

/// The result of encoding a batch.
enum Encoded {
    /// The stream, and its length.
    Stream(File, u64),
    /// A file was changed meanwhile: the batch must be encoded again.
    Anew,
    /// The content with this number cannot be sent, and the reason.
    Without(u32, String),
}

/// Encodes ascending numbers as runs: how many numbers to skip, and how many the run has.
fn runs(numbers: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let (mut runs, mut next): (Vec<(u32, u32)>, _) = (Vec::new(), 0);
    for number in numbers {
        match runs.last_mut().filter(|_| number == next) {
            Some((_, len)) => *len += 1,
            None => runs.push((number - next, 1)),
        }
        next = number + 1;
    }
    runs
}

/// Returns contents that resemble `content`, that the receiver's tree has, and that this side's tree has no more. The
/// first call reads such removed contents.
fn resembling_gone(
    gone: &mut Option<RemovedContents>,
    content: ContentId,
    ranks: &Ranks,
    source: &mut dyn Source,
) -> Result<Vec<(ContentId, f64)>, SyncError> {
    let gone = match gone {
        Some(gone) => gone,
        None => {
            let mut known = source.gone();
            known.retain(|content| ranks.rank(*content).is_some());
            gone.insert(RemovedContents::of(&known, source)?)
        }
    };
    match gone.is_empty() {
        true => Ok(Vec::new()),
        false => match source.open(content) {
            Ok(mut file) => gone.resembling(&mut file),
            // A content that cannot be read is withheld when its turn comes.
            Err(e) if e.of_one_file().is_some() => Ok(Vec::new()),
            Err(e) => Err(e),
        },
    }
}

fn encoding(e: DeltaError) -> SyncError {
    match e {
        DeltaError::Write(e) => SyncError::io("write", "a delta", e),
        e => SyncError::Changed(format!("was changed while it was sent ({e}); run the sync again")),
    }
}

/// The receiver's end: a batch on its way.
pub struct Arriving {
    targets: Vec<Expected>,
    stream: BufWriter<File>,
    len: u64,
    /// There was no room for the stream: this side requests its contents one by one.
    full: bool,
}

struct Expected {
    number: u32,
    content: ContentId,
    size: u64,
    hint: Option<BaseId>,
}

impl Arriving {
    /// Begins a batch of the `wants` with these numbers. Each number may come only once: it is taken out of `left`.
    pub fn new(
        runs: &[(u32, u32)],
        wants: &[Want],
        left: &mut BTreeSet<u32>,
        sink: &mut dyn Sink,
    ) -> Result<Arriving, SyncError> {
        let mut targets = Vec::new();
        let mut next = 0u64;
        for (skipped, len) in runs {
            let first = next + u64::from(*skipped);
            next = first + u64::from(*len);
            for number in first..next {
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                let Some(want) = wants.get(number as usize).filter(|_| left.remove(&number)) else {
                    return Err(SyncError::peer("sent a delta of a content that was not asked for"));
                };
                let hint = want.base.map(|base| BaseId(base.into()));
                targets.push(Expected { number, content: want.content, size: want.size, hint });
            }
        }
        if targets.is_empty() {
            return Err(SyncError::peer("began an empty batch of deltas"));
        }
        Ok(Arriving { targets, stream: BufWriter::new(sink.room()?), len: 0, full: false })
    }

    /// Takes the next bytes of the stream.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        self.len += bytes.len() as u64;
        if bytes.is_empty() || self.len > bytes_max(self.bytes()).0 {
            return Err(SyncError::peer("sent a stream that is longer than its contents allow"));
        }
        if self.full {
            return Ok(());
        }
        match self.stream.write_all(bytes).map_err(|e| SyncError::io("write", "a delta", e)) {
            Err(e) if e.is_full() => {
                self.full = true;
                let _ = self.stream.get_ref().set_len(0);
                Ok(())
            }
            done => done,
        }
    }

    /// Bytes of its contents.
    pub fn bytes(&self) -> u64 {
        self.targets.iter().map(|target| target.size).sum()
    }

    /// Decodes the complete stream. Returns the staged contents: the number of each want, and its content. `mine` is
    /// this side's tree.
    pub fn finish(self, mine: &Tree, sink: &mut dyn Sink) -> Result<Vec<(u32, ContentId)>, SyncError> {
        if self.full {
            return Ok(Vec::new());
        }
        let mut stream = match self.stream.into_inner() {
            Ok(stream) => stream,
            Err(e) => {
                let e = SyncError::io("write", "a delta", e.into_error());
                return if e.is_full() { Ok(Vec::new()) } else { Err(e) };
            }
        };
        stream.rewind().map_err(|e| SyncError::io("read", "a delta", e))?;
        let limits = Limits {
            targets_max: self.targets.len() as u64,
            bytes_max: bytes_max(self.targets.iter().map(|target| target.size).sum()).1,
        };
        let sink = RefCell::new(sink);
        let home = Home { sink: &sink, ranks: Ranks::of(mine), opened: RefCell::default() };
        let mut landing =
            Landing { sink: &sink, targets: &self.targets, left: 0, done: Vec::new(), fatal: None };
        let decoded = decode(&home, &mut BufReader::new(stream), limits, &mut landing);
        match (landing.fatal.take(), decoded) {
            // There may be room for others: this side requests them one by one.
            (Some(e), _) if e.is_full() => {
                sink.borrow_mut().discard()?;
                Ok(landing.done)
            }
            (Some(e), _) => Err(e),
            (None, Ok(_)) => Ok(landing.done),
            (None, Err(e)) => {
                tracing::debug!(
                    "a delta could not be decoded, so the rest of it is asked for as chunks: {e}"
                );
                Ok(landing.done)
            }
        }
    }
}

/// Bases out of the receiver's tree.
struct Home<'a, 'b> {
    sink: &'a RefCell<&'b mut dyn Sink>,
    ranks: Ranks,
    opened: RefCell<BTreeMap<BaseId, File>>,
}

/// Number of bases that stay open.
const OPEN_MAX: usize = 64;

impl Bases for Home<'_, '_> {
    fn open(&self, base: BaseId) -> io::Result<Option<Box<dyn ReadAt + '_>>> {
        let mut opened = self.opened.borrow_mut();
        if !opened.contains_key(&base) {
            let Some(content) = self.ranks.content(base.0) else { return Ok(None) };
            let file = self.sink.borrow_mut().own(content).map_err(io::Error::other)?;
            let Some(file) = file else { return Ok(None) };
            if opened.len() >= OPEN_MAX {
                opened.pop_first();
            }
            opened.insert(base, file);
        }
        Ok(Some(Box::new(opened[&base].try_clone()?)))
    }
}

/// Writes decoded contents to the sink, and verifies that each is the agreed one.
struct Landing<'a, 'b> {
    sink: &'a RefCell<&'b mut dyn Sink>,
    targets: &'a [Expected],
    left: u64,
    done: Vec<(u32, ContentId)>,
    /// An error of this side, as opposed to one in the stream.
    fatal: Option<SyncError>,
}

impl Landing<'_, '_> {
    fn sink(&mut self, call: impl FnOnce(&mut dyn Sink) -> Result<(), SyncError>) -> io::Result<()> {
        let done = call(&mut **self.sink.borrow_mut());
        done.map_err(|e| {
            self.fatal = Some(e);
            io::Error::other("this side cannot take it")
        })
    }

    fn expected(&self, target: u64) -> io::Result<&Expected> {
        let target = usize::try_from(target).ok().and_then(|target| self.targets.get(target));
        target.ok_or_else(|| io::Error::other("more contents than were announced"))
    }
}

impl Receiver for Landing<'_, '_> {
    fn hint(&mut self, target: u64) -> Option<BaseId> {
        self.expected(target).ok().and_then(|target| target.hint)
    }

    fn begin(&mut self, target: u64, size: u64) -> io::Result<()> {
        let Expected { content, size: expected, .. } = *self.expected(target)?;
        if size != expected {
            return Err(io::Error::other("a content has another size"));
        }
        self.left = size;
        self.sink(|sink| sink.begin(content))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| io::Error::other("a content is longer than announced"))?;
        self.sink(|sink| sink.write(bytes))
    }

    fn end(&mut self, target: u64, hash: [u8; 32]) -> io::Result<()> {
        let Expected { number, content, .. } = *self.expected(target)?;
        let found = ContentId(hash);
        // If the hash was not sent, the root of the tree shows later whether the content is right.
        if content != found && !content.is_untold() {
            return Err(io::Error::other("a content has another hash"));
        }
        self.sink(|sink| sink.finish(found))?;
        self.done.push((number, found));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
