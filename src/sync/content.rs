//! Transfer of contents to a peer, as chunks.
//!
//! The receiver requests contents, and names the former content of each. If the sender can read that too, it
//! sends changes against it ([`super::batch`]). Otherwise the receiver lists the chunks that it can read
//! locally: those of an older file at the same path, and those left by an interrupted attempt. The sender
//! chunks each content by the same rule and sends one zstd stream: a reference for every chunk that the
//! receiver has, and the bytes of all others.
//!
//! ```text
//! stream = { number of the want (u32, LE), then until its announced size is reached:
//!              0x01 tag (16)                 a chunk that the receiver has
//!              0x02 length (u32, LE) bytes   at most CHUNK_BYTES_MAX }
//! ```
//!
//! The receiver trusts nothing: it hashes every local chunk again, no content grows beyond its size in the
//! agreed tree, and the content's hash decides. Memory: at most 32 MiB of tags, about 100 MiB while they are
//! read, a window of 8 MiB, one block.

use super::error::SyncError;
use super::tree::ContentId;
use crate::chunk::ChunkParams;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{Read, Take};
use zstd::stream::raw::{
    CParameter, DParameter, Decoder as RawDecoder, Encoder as RawEncoder, InBuffer, Operation, OutBuffer,
};

/// How contents are cut; a part of the protocol.
pub const CHUNKS: ChunkParams = ChunkParams { min: 4 << 10, avg: 16 << 10, max: 64 << 10 };
/// Bytes before compression in one block, and so the most that one expands to.
pub const BLOCK_BYTES_MAX: usize = 512 << 10;
/// Most tags in all wants together.
pub const TAGS_MAX: usize = 2 << 20;
const WINDOW_LOG_MAX: u32 = 23;
const LEVEL: i32 = 6;

const REF: u8 = 1;
const BYTES: u8 = 2;

/// The first 16 bytes of a chunk's BLAKE3 hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tag(pub [u8; 16]);

impl Tag {
    /// Returns the tag of a chunk.
    pub fn of(bytes: &[u8]) -> Tag {
        let mut tag = [0; 16];
        tag.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
        Tag(tag)
    }
}

/// A content that the receiver wants, and chunks that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The content.
    pub content: ContentId,
    /// Its size in bytes.
    pub size: u64,
    /// The former content of the file, as its rank in the receiver's tree ([`super::batch::Ranks`]).
    pub base: Option<u32>,
    /// Tags of the chunks that the receiver has.
    pub have: Vec<Tag>,
}

/// A part of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Bytes that it expands to, at most [`BLOCK_BYTES_MAX`].
    pub raw: u32,
    /// The compressed bytes.
    pub bytes: Vec<u8>,
}

/// A content that a side cannot send: its file was changed or removed after the scan, or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// The number of the want.
    pub number: u32,
    /// The content, possibly without its hash.
    pub content: ContentId,
    /// The reason, and a remedy.
    pub reason: String,
}

/// Cuts a stream into chunks, one after the other. Memory: a few of the longest chunks.
pub struct Cutter<R> {
    from: R,
    buffer: Vec<u8>,
    lens: VecDeque<u32>,
    at: usize,
    ended: bool,
    /// The expected number of bytes, so that a small file takes one read.
    expected: u64,
}

impl<R: Read> Cutter<R> {
    /// Chunks of `from`, which has about `expected` bytes.
    pub fn new(from: R, expected: u64) -> Cutter<R> {
        Cutter { from, buffer: Vec::new(), lens: VecDeque::new(), at: 0, ended: false, expected }
    }

    /// The next chunk; empty at the end.
    pub fn next_chunk(&mut self) -> std::io::Result<&[u8]> {
        while self.lens.is_empty() && !(self.ended && self.at == self.buffer.len()) {
            self.buffer.drain(..self.at);
            self.at = 0;
            let before = self.buffer.len();
            let room = 4 * u64::from(CHUNKS.max);
            self.buffer.reserve(room.min(self.expected) as usize);
            self.ended |= (&mut self.from).take(room).read_to_end(&mut self.buffer)? == 0;
            debug_assert!(self.ended || self.buffer.len() > before);
            self.lens.extend(CHUNKS.cut(&self.buffer, self.ended));
        }
        let len = self.lens.pop_front().unwrap_or(0) as usize;
        self.at += len;
        Ok(&self.buffer[self.at - len..self.at])
    }
}

/// Maximum number of former contents that are read together.
pub const TOGETHER_MAX: usize = 500;

/// Contents that a sender can read.
pub trait Source {
    /// Opens a content of this side's tree. An error that is [`SyncError::of_one_file`] withholds only this content.
    fn open(&mut self, content: ContentId) -> Result<File, SyncError>;

    /// Announces the contents that will be opened next, with their sizes in bytes, so that they can be read together.
    fn ahead(&mut self, _next: &mut dyn Iterator<Item = (ContentId, u64)>) -> Result<(), SyncError> {
        Ok(())
    }

    /// Returns whether the file that was opened last is unchanged.
    fn is_still(&mut self, _content: ContentId) -> Result<bool, SyncError> {
        Ok(true)
    }

    /// Returns whether this side can read a content: its tree has it, or [`super::replica::Replica::held`] returned
    /// true for it.
    fn holds(&mut self, _content: ContentId) -> Result<bool, SyncError> {
        Ok(false)
    }

    /// Announces the contents, at most [`TOGETHER_MAX`], that [`Source::past`] opens next, so that they can be read together.
    fn past_together(&mut self, _contents: &[ContentId]) -> Result<(), SyncError> {
        Ok(())
    }

    /// Opens a content that [`Source::holds`], by its expected hash; `None` if it is gone.
    fn past(&mut self, _content: ContentId) -> Result<Option<File>, SyncError> {
        Ok(None)
    }

    /// Returns contents that [`Source::holds`] and that this side's tree does not have.
    fn gone(&mut self) -> Vec<ContentId> {
        Vec::new()
    }

    /// Returns contents of this side's tree that resemble `content`, each with the share of `content` that it has too.
    fn resembling(&mut self, _content: ContentId) -> Result<Vec<(ContentId, f64)>, SyncError> {
        Ok(Vec::new())
    }

    /// Returns an empty file without a name.
    fn spool(&mut self) -> Result<File, SyncError> {
        nameless()
    }
}

/// Returns an empty file without a name, in memory.
pub fn nameless() -> Result<File, SyncError> {
    let fd = rustix::fs::memfd_create("sync", rustix::fs::MemfdFlags::CLOEXEC);
    Ok(File::from(fd.map_err(|e| SyncError::io("make", "a file in memory", e))?))
}

/// A content that was sent in part.
struct Leaving {
    number: u32,
    content: ContentId,
    cutter: Cutter<Take<File>>,
    have: BTreeSet<Tag>,
    left: u64,
    hasher: blake3::Hasher,
    /// The reason why the sent bytes are not the content. The rest is filled with other bytes, and the content is
    /// withheld.
    failed: Option<String>,
}

/// The reason for a withheld content if its file has another content by now.
pub const CHANGED: &str = "was changed while it was sent; run the sync again";

/// The sender's end.
pub struct Sender {
    /// The wants with their numbers.
    wants: VecDeque<(u32, Want)>,
    current: Option<Leaving>,
    withheld: Vec<Withheld>,
    zstd: RawEncoder<'static>,
}

impl Sender {
    /// Returns a sender of `wants`, each with its number.
    pub fn new(wants: Vec<(u32, Want)>) -> Result<Sender, SyncError> {
        let mut zstd = RawEncoder::new(LEVEL).map_err(SyncError::codec)?;
        zstd.set_parameter(CParameter::WindowLog(WINDOW_LOG_MAX)).map_err(SyncError::codec)?;
        Ok(Sender { wants: wants.into(), current: None, withheld: Vec::new(), zstd })
    }

    /// Returns the next block; `None` after the last one.
    pub fn next_block(&mut self, source: &mut dyn Source) -> Result<Option<Block>, SyncError> {
        let mut raw = Vec::new();
        let room = BLOCK_BYTES_MAX - CHUNKS.max as usize - 64;
        while raw.len() < room {
            let Some(leaving) = &mut self.current else {
                let Some((number, want)) = self.wants.pop_front() else { break };
                let Want { content, size, have, .. } = want;
                let next = self.wants.iter().map(|(_, want)| (want.content, want.size));
                source.ahead(&mut std::iter::once((content, size)).chain(next))?;
                let file = match source.open(content) {
                    Ok(file) => file,
                    Err(e) => {
                        let reason = e.of_one_file().ok_or(e)?;
                        self.withheld.push(Withheld { number, content, reason });
                        continue;
                    }
                };
                raw.extend_from_slice(&number.to_le_bytes());
                self.current = Some(Leaving {
                    number,
                    content,
                    // Bytes appended since then belong to another content.
                    cutter: Cutter::new(file.take(size), size),
                    have: have.into_iter().collect(),
                    left: size,
                    hasher: blake3::Hasher::new(),
                    failed: None,
                });
                continue;
            };
            let Leaving { cutter, have, left, hasher, failed, .. } = leaving;
            if let (Some(_), 1..) = (&failed, *left) {
                let len = (*left).min(CHUNKS.max.into()) as usize;
                raw.push(BYTES);
                raw.extend_from_slice(&(len as u32).to_le_bytes());
                raw.resize(raw.len() + len, 0);
                *left -= len as u64;
                continue;
            }
            let chunk = match (&failed, cutter.next_chunk()) {
                (None, Ok(chunk)) => chunk,
                (None, Err(e)) => {
                    let e = SyncError::io("read", "a content", e);
                    *failed = Some(e.of_one_file().ok_or(e)?);
                    continue;
                }
                _ => &[],
            };
            if chunk.is_empty() && *left > 0 {
                *failed = Some(CHANGED.to_owned());
                continue;
            }
            if chunk.is_empty() {
                if failed.is_none() && *hasher.finalize().as_bytes() != leaving.content.0 {
                    *failed = Some(CHANGED.to_owned());
                }
                let reason = failed.take();
                let (number, content) = (leaving.number, leaving.content);
                self.withheld.extend(reason.map(|reason| Withheld { number, content, reason }));
                self.current = None;
                continue;
            }
            *left -= chunk.len() as u64;
            hasher.update(chunk);
            let tag = Tag::of(chunk);
            match have.contains(&tag) {
                true => {
                    raw.push(REF);
                    raw.extend_from_slice(&tag.0);
                }
                false => {
                    raw.push(BYTES);
                    raw.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
                    raw.extend_from_slice(chunk);
                }
            }
        }
        if raw.is_empty() {
            return Ok(None);
        }
        Ok(Some(Block { raw: raw.len() as u32, bytes: self.compress(&raw)? }))
    }

    /// Returns the contents that could not be sent so far, and forgets them.
    pub fn take_withheld(&mut self) -> Vec<Withheld> {
        std::mem::take(&mut self.withheld)
    }

    /// Returns how many bytes of contents are still to be sent.
    pub fn left_bytes(&self) -> u64 {
        let left = self.current.as_ref().map_or(0, |leaving| leaving.left);
        left + self.wants.iter().map(|(_, want)| want.size).sum::<u64>()
    }

    /// Returns the wants that were not begun.
    pub fn wants(&self) -> impl Iterator<Item = &Want> {
        self.wants.iter().map(|(_, want)| want)
    }

    fn compress(&mut self, raw: &[u8]) -> Result<Vec<u8>, SyncError> {
        let mut bytes = Vec::new();
        let mut block = vec![0; 128 << 10];
        let mut input = InBuffer::around(raw);
        while input.pos() < raw.len() {
            let mut output = OutBuffer::around(&mut block[..]);
            self.zstd.run(&mut input, &mut output).map_err(SyncError::codec)?;
            bytes.extend_from_slice(output.as_slice());
        }
        loop {
            let mut output = OutBuffer::around(&mut block[..]);
            let left = self.zstd.flush(&mut output).map_err(SyncError::codec)?;
            bytes.extend_from_slice(output.as_slice());
            if left == 0 {
                return Ok(bytes);
            }
        }
    }
}

/// A receiver's storage for arriving contents.
pub trait Sink {
    /// Begins a content.
    fn begin(&mut self, content: ContentId) -> Result<(), SyncError>;
    /// Appends bytes to it.
    fn write(&mut self, bytes: &[u8]) -> Result<(), SyncError>;
    /// Reads a chunk that this side announced for the current content. Fails with [`SyncError::Stale`] if the chunk
    /// has changed.
    fn chunk(&mut self, tag: Tag) -> Result<Vec<u8>, SyncError>;
    /// Ends the content, whose hash is right, and makes it durable.
    fn finish(&mut self, content: ContentId) -> Result<(), SyncError>;

    /// Gives up the current content and frees its space.
    fn discard(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    /// Opens a content of this side's tree, without verifying it; `None` if it is gone.
    fn own(&mut self, _content: ContentId) -> Result<Option<File>, SyncError> {
        Ok(None)
    }

    /// Returns an empty file without a name, for bytes that arrive.
    fn room(&mut self) -> Result<File, SyncError> {
        nameless()
    }
}

/// The receiver's end.
pub struct Receiver {
    wanted: BTreeMap<u32, (ContentId, u64, BTreeSet<Tag>)>,
    /// Decompressed bytes that were not used yet.
    raw: Vec<u8>,
    current: Option<Arriving>,
    /// Numbers of wants whose bytes arrived with a wrong hash.
    wrong: BTreeSet<u32>,
    /// Contents that this side cannot store, and the reasons.
    refused: Vec<(u32, String)>,
    zstd: RawDecoder<'static>,
}

struct Arriving {
    number: u32,
    /// The reason why this side refuses it; then its bytes are only counted.
    refused: Option<String>,
    content: ContentId,
    left: u64,
    have: BTreeSet<Tag>,
    hasher: blake3::Hasher,
}

impl Receiver {
    /// Returns a receiver that accepts `wants` and nothing else.
    pub fn new(wants: &[Want]) -> Result<Receiver, SyncError> {
        let mut zstd = RawDecoder::new().map_err(SyncError::codec)?;
        zstd.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(SyncError::codec)?;
        let row = |(number, want): (u32, &Want)| {
            (number, (want.content, want.size, want.have.iter().copied().collect()))
        };
        let (wanted, wrong) = ((0..).zip(wants).map(row).collect(), BTreeSet::new());
        Ok(Receiver { wanted, raw: Vec::new(), current: None, wrong, refused: Vec::new(), zstd })
    }

    /// Returns the numbers of the wants that have not arrived.
    pub fn missing(&self) -> Vec<u32> {
        self.wanted.keys().copied().collect()
    }

    /// Returns whether no content has arrived in part.
    pub fn is_at_rest(&self) -> bool {
        self.current.is_none() && self.raw.is_empty()
    }

    /// Removes a want: its content came in another way, or does not come.
    pub fn forget(&mut self, number: u32) {
        self.wanted.remove(&number);
        self.wrong.remove(&number);
    }

    /// Returns the contents that arrived but that this side could not store, and the reasons. Fails if a content
    /// arrived with a wrong hash, and the sender did not report it.
    pub fn take_refused(&mut self) -> Result<Vec<(u32, String)>, SyncError> {
        match self.wrong.is_empty() {
            true => Ok(std::mem::take(&mut self.refused)),
            false => Err(SyncError::peer("sent bytes that do not have the hash of the content")),
        }
    }

    /// Takes a block. Returns how many bytes of contents it contained.
    pub fn take(&mut self, block: &Block, sink: &mut dyn Sink) -> Result<u64, SyncError> {
        let len = block.raw as usize;
        if len > BLOCK_BYTES_MAX || len == 0 {
            return Err(SyncError::peer("announced a block of a length that is not allowed"));
        }
        let start = self.raw.len();
        // One byte more than announced, to detect a longer block.
        self.raw.resize(start + len + 1, 0);
        let mut output = OutBuffer::around(&mut self.raw[start..]);
        let mut input = InBuffer::around(&block.bytes);
        loop {
            let before = (input.pos(), output.pos());
            self.zstd
                .run(&mut input, &mut output)
                .map_err(|_| SyncError::peer("sent bytes that are no zstd stream"))?;
            if before == (input.pos(), output.pos()) {
                break;
            }
        }
        let (read, made) = (input.pos(), output.pos());
        if made != len || read != block.bytes.len() {
            return Err(SyncError::peer("announced a wrong length"));
        }
        self.raw.truncate(start + len);
        self.parse(sink)
    }

    /// Takes bytes of the stream as if a block had expanded to them.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn take_raw(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<u64, SyncError> {
        self.raw.extend_from_slice(bytes);
        self.parse(sink)
    }

    fn parse(&mut self, sink: &mut dyn Sink) -> Result<u64, SyncError> {
        let mut done = 0;
        let mut at = 0;
        loop {
            let rest = &self.raw[at..];
            let Some(arriving) = &mut self.current else {
                let Some(number) = rest.first_chunk::<4>() else { break };
                at += 4;
                let number = u32::from_le_bytes(*number);
                let wanted = self.wanted.remove(&number);
                // A content without a hash comes only as a delta, so that no part of it needs to be recognized later.
                let Some((content, left, have)) = wanted.filter(|(content, ..)| !content.is_untold()) else {
                    return Err(SyncError::peer("sent a content that was not asked for"));
                };
                let hasher = blake3::Hasher::new();
                let mut arriving = Arriving { number, refused: None, content, left, have, hasher };
                arriving.put(sink, |sink| sink.begin(content))?;
                self.current = Some(arriving);
                self.end_if_whole(sink)?;
                continue;
            };
            let bytes = match rest.first() {
                None => break,
                Some(&REF) => {
                    let Some(tag) = rest.get(1..17) else { break };
                    let tag = Tag(tag.try_into().expect("16 bytes"));
                    if !arriving.have.contains(&tag) {
                        return Err(SyncError::peer("referred to a chunk that this side does not have"));
                    }
                    at += 17;
                    match sink.chunk(tag) {
                        Ok(bytes) => bytes,
                        Err(SyncError::Stale(len)) => {
                            arriving
                                .refuse("was changed on this side meanwhile; run the sync again", sink)?;
                            vec![0; len as usize]
                        }
                        Err(e) => return Err(e),
                    }
                }
                Some(&BYTES) => {
                    let Some(len) = rest.get(1..5) else { break };
                    let len = u32::from_le_bytes(len.try_into().expect("4 bytes"));
                    if len == 0 || len > CHUNKS.max {
                        return Err(SyncError::peer("announced a chunk of a length that is not allowed"));
                    }
                    let Some(bytes) = rest.get(5..5 + len as usize) else { break };
                    at += 5 + len as usize;
                    bytes.to_vec()
                }
                Some(_) => return Err(SyncError::peer("sent a stream of an unknown form")),
            };
            if bytes.len() as u64 > arriving.left {
                return Err(SyncError::peer("sent more than a content has"));
            }
            arriving.left -= bytes.len() as u64;
            arriving.hasher.update(&bytes);
            arriving.put(sink, |sink| sink.write(&bytes))?;
            done += bytes.len() as u64;
            self.end_if_whole(sink)?;
        }
        self.raw.drain(..at);
        Ok(done)
    }

    fn end_if_whole(&mut self, sink: &mut dyn Sink) -> Result<(), SyncError> {
        if let Some(mut arriving) = self.current.take_if(|arriving| arriving.left == 0) {
            let (number, content) = (arriving.number, arriving.content);
            let right = *arriving.hasher.finalize().as_bytes() == content.0;
            match right {
                true => arriving.put(sink, |sink| sink.finish(content))?,
                // If its file was changed, the sender reports that after it has sent all contents.
                false if arriving.refused.is_none() => {
                    self.wrong.insert(number);
                    sink.discard()?;
                }
                false => {}
            }
            self.refused.extend(arriving.refused.map(|why| (number, why)));
        }
        Ok(())
    }
}

impl Arriving {
    /// Runs `put` for the arriving content unless it is refused. A full disk refuses this content only.
    fn put(
        &mut self,
        sink: &mut dyn Sink,
        call: impl FnOnce(&mut dyn Sink) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        if self.refused.is_some() {
            return Ok(());
        }
        match call(sink) {
            Err(e) if e.is_full() => {
                self.refuse(&format!("there is no room for it ({e}); make room and run the sync again"), sink)
            }
            done => done,
        }
    }

    fn refuse(&mut self, why: &str, sink: &mut dyn Sink) -> Result<(), SyncError> {
        if self.refused.is_none() {
            self.refused = Some(why.to_owned());
            sink.discard()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
