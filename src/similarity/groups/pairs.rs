//! The file of pairs: the contents compared, and the estimated shares of each two of them.
//!
//! A header of [`HEADER_BYTES`]: magic, key, numbers of contents and of pairs, features suppressed, the place of the first
//! new content, the frequency cap, CRC-32 of all of that and of the rest. Then 28 bytes for each content: number,
//! recipe id, size. Then 12 bytes for each pair: places of both, and the share of the first in the second and of the
//! second in the first, in 65,535ths; sorted. Numbers are little-endian.
//!
//! Invariants: a file under its own name is whole, and answers for exactly the contents whose hash is its key. It is only
//! a cache: it is made again if there is any doubt.

use super::ranges::failed;
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Result<T> = std::result::Result<T, SimilarityError>;

const NAME: &str = "pairs";
const MAGIC: &[u8; 8] = b"dfspair1";
const HEADER_BYTES: usize = 8 + 32 + 5 * 8 + 4;
const CONTENT_BYTES: usize = 4 + 16 + 8;
const PAIR_BYTES: usize = 12;
const BUFFER_BYTES: usize = 256 << 10;
/// If more contents than this share were removed since, suppressed features may have become rarer, so everything is compared
/// again. If more than this share was added, comparing everything costs little more.
const CHANGED_SHARE_MAX: f64 = 0.25;

/// Returns |A∩B| / |A∪B| from |A∩B|/|A| and |A∩B|/|B|.
pub fn resemblance(a: f64, b: f64) -> f64 {
    if a <= 0.0 || b <= 0.0 { 0.0 } else { (1.0 / (1.0 / a + 1.0 / b - 1.0)).clamp(0.0, 1.0) }
}

/// A content by its place in a file of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its number in the index.
    pub number: u32,
    /// Which content.
    pub recipe: RecipeId,
    /// Its length in bytes.
    pub size: u64,
}

/// Shares of two contents, estimated from their features; 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Place of the one with the lower number.
    pub a: u32,
    /// Place of the other.
    pub b: u32,
    /// Share of the first that is in the second.
    pub a_in_b: f64,
    /// Share of the second that is in the first.
    pub b_in_a: f64,
}

impl Pair {
    /// Returns features in both by features in either.
    pub fn resemblance(&self) -> f64 {
        resemblance(self.a_in_b, self.b_in_a)
    }

    fn to_bytes(self) -> [u8; PAIR_BYTES] {
        let share = |share: f64| ((share.clamp(0.0, 1.0) * f64::from(u16::MAX)).round() as u16).to_le_bytes();
        let mut bytes = [0; PAIR_BYTES];
        bytes[..4].copy_from_slice(&self.a.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.b.to_le_bytes());
        bytes[8..10].copy_from_slice(&share(self.a_in_b));
        bytes[10..].copy_from_slice(&share(self.b_in_a));
        bytes
    }

    fn of_bytes(bytes: [u8; PAIR_BYTES]) -> Pair {
        let share = |at| f64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])) / f64::from(u16::MAX);
        Pair { a: u32_at(&bytes, 0), b: u32_at(&bytes, 4), a_in_b: share(8), b_in_a: share(10) }
    }
}

impl Content {
    fn to_bytes(self) -> [u8; CONTENT_BYTES] {
        let mut bytes = [0; CONTENT_BYTES];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..20].copy_from_slice(&self.recipe.0);
        bytes[20..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: [u8; CONTENT_BYTES]) -> Content {
        let mut recipe = [0; 16];
        recipe.copy_from_slice(&bytes[4..20]);
        Content { number: u32_at(&bytes, 0), recipe: RecipeId(recipe), size: u64_at(&bytes, 20) }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[derive(Clone, Copy, Debug, Default)]
struct Header {
    key: [u8; 32],
    contents: u64,
    pairs: u64,
    suppressed: u64,
    new_from: u64,
    cap: u64,
}

impl Header {
    fn to_bytes(self, mut crc: crc32fast::Hasher) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &self.key].concat();
        for number in [self.contents, self.pairs, self.suppressed, self.new_from, self.cap] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        crc.update(&bytes);
        bytes.extend_from_slice(&crc.finalize().to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let mut key = [0; 32];
        key.copy_from_slice(&bytes[8..40]);
        let at = |i: usize| u64_at(bytes, 40 + 8 * i);
        let (contents, pairs, suppressed, new_from, cap) = (at(0), at(1), at(2), at(3), at(4));
        let header = Header { key, contents, pairs, suppressed, new_from, cap };
        bytes.starts_with(MAGIC).then_some(header)
    }

    fn file_bytes(&self) -> Option<u64> {
        let contents = self.contents.checked_mul(CONTENT_BYTES as u64)?;
        contents.checked_add(self.pairs.checked_mul(PAIR_BYTES as u64)?)?.checked_add(HEADER_BYTES as u64)
    }
}

/// A part of a file.
struct Section {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = (self.end - self.at).min(buffer.len() as u64) as usize;
        let len = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// Records of `N` bytes, one after another.
struct Records<const N: usize>(BufReader<Section>);

impl<const N: usize> Records<N> {
    fn of(file: &Arc<File>, from: u64, count: u64) -> Records<N> {
        let section = Section { file: file.clone(), at: from, end: from + count * N as u64 };
        Records(BufReader::with_capacity(BUFFER_BYTES, section))
    }
}

impl<const N: usize> Iterator for Records<N> {
    type Item = Result<[u8; N]>;

    fn next(&mut self) -> Option<Result<[u8; N]>> {
        let mut record = [0; N];
        let section = self.0.get_ref();
        if self.0.buffer().is_empty() && section.at == section.end {
            return None;
        }
        Some(self.0.read_exact(&mut record).map(|()| record).map_err(failed("read the file of pairs")))
    }
}

/// The pairs of an index: a whole file.
pub struct Pairs {
    file: Arc<File>,
    header: Header,
}

impl Pairs {
    /// Opens the file in `dir`, if there is one that is whole and has the same frequency cap.
    pub(super) fn open(dir: &Path, cap: u32) -> Option<Pairs> {
        let file = Arc::new(File::open(dir.join(NAME)).ok()?);
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let header = Header::of_bytes(&bytes)?;
        let end = header.file_bytes()?;
        if file.metadata().ok()?.len() != end || header.cap != u64::from(cap) {
            return None;
        }
        let mut crc = crc32fast::Hasher::new();
        let mut rest = Section { file: file.clone(), at: HEADER_BYTES as u64, end };
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match rest.read(&mut buffer).ok()? {
                0 => break,
                len => crc.update(&buffer[..len]),
            }
        }
        (header.to_bytes(crc) == bytes).then_some(Pairs { file, header })
    }

    pub(super) fn key(&self) -> [u8; 32] {
        self.header.key
    }

    /// How many contents were compared.
    pub fn contents_len(&self) -> usize {
        self.header.contents as usize
    }

    /// How many pairs there are.
    pub fn len(&self) -> u64 {
        self.header.pairs
    }

    /// Returns whether no contents resemble each other.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many features were not followed because too many contents have them.
    pub fn suppressed_features(&self) -> u64 {
        self.header.suppressed
    }

    /// Returns how many contents an older file answered for when this one was made.
    pub fn reused(&self) -> u64 {
        self.header.new_from
    }

    /// Every content, by place.
    pub fn contents(&self) -> impl Iterator<Item = Result<Content>> + use<> {
        let records = Records::<CONTENT_BYTES>::of(&self.file, HEADER_BYTES as u64, self.header.contents);
        records.map(|bytes| Ok(Content::of_bytes(bytes?)))
    }

    /// One content.
    pub fn content(&self, place: u32) -> Result<Content> {
        let mut bytes = [0; CONTENT_BYTES];
        let at = HEADER_BYTES as u64 + u64::from(place) * CONTENT_BYTES as u64;
        self.file.read_exact_at(&mut bytes, at).map_err(failed("read the file of pairs"))?;
        Ok(Content::of_bytes(bytes))
    }

    /// Every pair, sorted.
    pub fn iter(&self) -> impl Iterator<Item = Result<Pair>> + use<> {
        let from = HEADER_BYTES as u64 + self.header.contents * CONTENT_BYTES as u64;
        let places = self.header.contents;
        Records::<PAIR_BYTES>::of(&self.file, from, self.header.pairs).map(move |bytes| {
            let pair = Pair::of_bytes(bytes?);
            let known = pair.a < pair.b && u64::from(pair.b) < places;
            known.then_some(pair).ok_or(SimilarityError::Format)
        })
    }
}

/// An older file of pairs; most of its contents still exist.
pub(super) struct Old {
    pairs: Pairs,
    /// The present place of each old place; `u32::MAX` if its content was removed.
    places: Vec<u32>,
    new_from: u32,
}

impl Old {
    /// Returns an older file whose pairs still hold for the present contents, if it is one: new numbers follow the old ones, and
    /// not too much has changed.
    pub(super) fn usable(old: Pairs, now: impl Iterator<Item = Result<Content>>) -> Result<Option<Old>> {
        let mut places = Vec::with_capacity(old.contents_len());
        let mut now = now.enumerate().peekable();
        for before in old.contents() {
            let before = before?;
            let place = match now.peek() {
                Some((place, Ok(content))) if content.number == before.number => {
                    if content.recipe != before.recipe {
                        return Ok(None);
                    }
                    *place as u32
                }
                // A number between the old ones: it is not known which contents it was compared with.
                Some((_, Ok(content))) if content.number < before.number => return Ok(None),
                _ => u32::MAX,
            };
            places.push(place);
            if place != u32::MAX {
                now.next();
            }
        }
        let (kept, come) = (places.iter().filter(|&&place| place != u32::MAX).count(), now.count());
        let most = (old.contents_len() as f64 * CHANGED_SHARE_MAX) as usize;
        let usable = places.len() - kept <= most && come <= most;
        Ok(usable.then_some(Old { pairs: old, places, new_from: kept as u32 }))
    }

    /// Returns the place of the first content that the older file lacks.
    pub(super) fn new_from(&self) -> u32 {
        self.new_from
    }

    fn iter(self) -> impl Iterator<Item = Result<Pair>> {
        let Old { pairs, places, .. } = self;
        pairs.iter().filter_map(move |pair| match pair {
            Ok(pair) => {
                let (a, b) = (places[pair.a as usize], places[pair.b as usize]);
                (a != u32::MAX && b != u32::MAX).then_some(Ok(Pair { a, b, ..pair }))
            }
            Err(e) => Some(Err(e)),
        })
    }
}

/// A file of pairs that is being written: contents first.
pub(super) struct PairsWriter {
    path: PathBuf,
    target: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    crc: crc32fast::Hasher,
    header: Header,
}

impl Drop for PairsWriter {
    fn drop(&mut self) {
        // Missing if it was finished: it was renamed.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl PairsWriter {
    pub(super) fn create(dir: &Path, cap: u32) -> Result<PairsWriter> {
        std::fs::create_dir_all(dir).map_err(failed("make the directory of pairs"))?;
        let (path, target) = (dir.join(format!("{NAME}.new")), dir.join(NAME));
        let open = || {
            let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
            file.write_all(&[0; HEADER_BYTES])?;
            Ok(file)
        };
        let file = BufWriter::with_capacity(BUFFER_BYTES, open().map_err(failed("make the file of pairs"))?);
        let mut hasher = blake3::Hasher::new();
        hasher.update(MAGIC).update(&cap.to_le_bytes());
        let crc = crc32fast::Hasher::new();
        let header = Header { cap: cap.into(), ..Header::default() };
        Ok(PairsWriter { path, target, file, hasher, crc, header })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.crc.update(bytes);
        self.file.write_all(bytes).map_err(failed("write the file of pairs"))
    }

    pub(super) fn content(&mut self, content: &Content) -> Result<()> {
        let bytes = content.to_bytes();
        self.hasher.update(&bytes);
        self.header.contents += 1;
        self.write(&bytes)
    }

    pub(super) fn key(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }

    /// Returns the contents written so far.
    pub(super) fn contents(&mut self) -> Result<impl Iterator<Item = Result<Content>> + use<>> {
        let mut reopen = || {
            self.file.flush()?;
            Ok(Arc::new(self.file.get_ref().try_clone()?))
        };
        let file = reopen().map_err(failed("write the file of pairs"))?;
        let records = Records::<CONTENT_BYTES>::of(&file, HEADER_BYTES as u64, self.header.contents);
        Ok(records.map(|bytes| Ok(Content::of_bytes(bytes?))))
    }

    /// Ends the contents; pairs come next, those of an older file among them.
    pub(super) fn pairs(mut self, old: Option<Old>, suppressed: u64) -> Result<PairSink> {
        self.header.key = self.key();
        self.header.suppressed = suppressed;
        self.header.new_from = old.as_ref().map_or(0, |old| old.new_from.into());
        let old = old.map(|old| Box::new(old.iter()) as Box<dyn Iterator<Item = Result<Pair>>>);
        let mut old = old.unwrap_or_else(|| Box::new(std::iter::empty()));
        let next = old.next().transpose()?;
        Ok(PairSink { writer: self, old, next })
    }
}

/// Takes new pairs, sorted, and merges the old ones with them.
pub(super) struct PairSink {
    writer: PairsWriter,
    old: Box<dyn Iterator<Item = Result<Pair>>>,
    next: Option<Pair>,
}

impl PairSink {
    pub(super) fn put(&mut self, pair: Pair) -> Result<()> {
        while let Some(old) = self.next.filter(|old| (old.a, old.b) < (pair.a, pair.b)) {
            self.write(old)?;
            self.next = self.old.next().transpose()?;
        }
        self.write(pair)
    }

    fn write(&mut self, pair: Pair) -> Result<()> {
        self.writer.header.pairs += 1;
        self.writer.write(&pair.to_bytes())
    }

    /// Renames the file to its final name.
    pub(super) fn finish(mut self) -> Result<Pairs> {
        while let Some(old) = self.next {
            self.write(old)?;
            self.next = self.old.next().transpose()?;
        }
        let PairsWriter { path, target, file, crc, header, .. } = &mut self.writer;
        let mut name = || {
            file.flush()?;
            file.get_ref().write_all_at(&header.to_bytes(crc.clone()), 0)?;
            std::fs::rename(&*path, &*target)?;
            file.get_ref().try_clone()
        };
        let file = Arc::new(name().map_err(failed("write the file of pairs"))?);
        Ok(Pairs { file, header: *header })
    }
}
