//! Lists of places on disk, cut by place.
//!
//! A range consists of consecutive places. For each of its places in a list, the list's tail from there on is needed. So the
//! file of a range has, for each list with a place in it, the tail from its first such place on. A list is written once for
//! each range that it has places in: mostly once, since files that resemble each other are mostly added together.

use super::facts::Facts;
use crate::similarity::SimilarityError;
use crate::similarity::gram::LEVEL_MAX;
use crate::similarity::scratch;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::ops::Range;
use std::path::Path;

type Result<T> = std::result::Result<T, SimilarityError>;

/// Places have 28 bits in a list.
pub(super) const PLACES_MAX: usize = 1 << 28;
/// The last entry of a list in a file has this bit.
const END: u32 = 1 << 31;
/// Files open at the same time, each with a buffer.
const RANGES_MAX: usize = 256;
const BUFFER_BYTES: usize = 64 << 10;
/// In memory an entry of a list takes 4 bytes, and its row 4 more; the rest is for lists that are in several ranges.
const ENTRY_BYTES: usize = 12;

/// A place and the level at which the feature is selected there.
pub(super) fn entry(place: u32, level: u8) -> u32 {
    debug_assert!((place as usize) < PLACES_MAX);
    place << 3 | u32::from(level.min(LEVEL_MAX))
}

pub(super) fn place(entry: u32) -> u32 {
    entry >> 3
}

pub(super) fn level(entry: u32) -> u8 {
    (entry & 7) as u8
}

/// Ranges to which lists are being added.
pub(super) struct Ranges {
    /// The first place of each range, and the end of the last.
    bounds: Vec<u32>,
    files: Vec<BufWriter<File>>,
}

/// The lists of a range.
pub(super) struct RangeFile {
    pub(super) places: Range<u32>,
    file: File,
}

pub(in crate::similarity) fn failed(operation: &'static str) -> impl Fn(io::Error) -> SimilarityError {
    move |source| SimilarityError::Scratch { operation, source }
}

/// Makes a file without a name: it vanishes with the process.
pub(in crate::similarity) fn nameless(dir: &Path) -> Result<File> {
    scratch::nameless(dir).map_err(failed("make a file of work"))
}

impl Ranges {
    /// Makes as many ranges as are needed to read one of them in about `memory` bytes.
    pub(super) fn create(dir: &Path, facts: &Facts, memory: usize) -> Result<Ranges> {
        let places = facts.len() as u32;
        let all: u64 = (0..places).map(|place| u64::from(facts.features(place))).sum();
        let ranges = (all * ENTRY_BYTES as u64).div_ceil(memory as u64).clamp(1, RANGES_MAX as u64);
        let (mut bounds, mut sum) = (vec![0], 0);
        for place in 0..places {
            if sum * ranges >= all * bounds.len() as u64 && sum > 0 && bounds.len() < ranges as usize {
                bounds.push(place);
            }
            sum += u64::from(facts.features(place));
        }
        bounds.push(places);
        let buffer = BUFFER_BYTES.min(memory / bounds.len()).max(512);
        let files = (1..bounds.len()).map(|_| Ok(BufWriter::with_capacity(buffer, nameless(dir)?)));
        Ok(Ranges { files: files.collect::<Result<_>>()?, bounds })
    }

    /// Adds a list: entries sorted by place, each once.
    pub(super) fn add(&mut self, mut list: &[u32]) -> Result<()> {
        // The last place has no tail.
        while let [first, _, ..] = list {
            let range = self.bounds.partition_point(|&bound| bound <= place(*first)) - 1;
            let file = &mut self.files[range];
            let (&last, rest) = list.split_last().expect("the list has two entries or more");
            let mut write = || -> io::Result<()> {
                rest.iter().try_for_each(|entry| file.write_all(&entry.to_le_bytes()))?;
                file.write_all(&(last | END).to_le_bytes())
            };
            write().map_err(failed("write a file of work"))?;
            let end = self.bounds[range + 1];
            list = &list[list.partition_point(|&entry| place(entry) < end)..];
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Vec<RangeFile>> {
        let bounds = self.bounds.windows(2).map(|pair| pair[0]..pair[1]);
        let finish = |(file, places): (BufWriter<File>, _)| {
            let file = file.into_inner().map_err(|e| failed("write a file of work")(e.into_error()))?;
            Ok(RangeFile { places, file })
        };
        self.files.into_iter().zip(bounds).map(finish).collect()
    }
}

impl RangeFile {
    /// Calls `visit` with each list, until it returns false.
    pub(super) fn lists(&self, visit: &mut dyn FnMut(&[u32]) -> bool) -> Result<()> {
        let mut file = &self.file;
        let mut read = || -> io::Result<()> {
            file.rewind()?;
            let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
            let (mut list, mut bytes) = (Vec::new(), [0; 4]);
            loop {
                match file.read_exact(&mut bytes) {
                    Ok(()) => {}
                    Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                    Err(e) => return Err(e),
                }
                let entry = u32::from_le_bytes(bytes);
                list.push(entry & !END);
                if entry & END != 0 {
                    if !visit(&list) {
                        return Ok(());
                    }
                    list.clear();
                }
            }
        };
        read().map_err(failed("read a file of work"))
    }
}
