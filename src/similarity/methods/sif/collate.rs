//! All against all: which contents share how many fingerprints (section 4, figures 1 and 2).
//!
//! The index has its fingerprints sorted. For each that two contents or more have, the set of contents is kept and the
//! fingerprint is dropped. The sets are sorted, and equal ones become one with a counter. The result is saved: any
//! threshold and any rules are applied to it afterwards, and no file is read again.

use super::{Sif, SifHead};
use crate::recipe::{put_varint, take_varint};
use crate::similarity::SimilarityError;
use crate::similarity::methods::sorter::Sorter;
use crate::similarity::methods::{Damaged, EachKey, Index, Method};
use std::collections::HashMap;
use std::path::Path;

type Result<T> = std::result::Result<T, SimilarityError>;

const MAGIC: &[u8; 8] = b"dfssif1\n";
const HASH_BYTES: usize = 16;
/// Hash of a set and a fingerprint that it has.
const RECORD_BYTES: usize = HASH_BYTES + 8;

/// Options of collating.
#[derive(Clone, Copy, Debug)]
pub struct CollateOptions {
    /// Memory for sorting sets.
    pub memory_bytes: usize,
    /// A fingerprint that more contents than this have is left out and counted: a header or a licence.
    pub contents_max: usize,
}

impl Default for CollateOptions {
    fn default() -> Self {
        CollateOptions { memory_bytes: 64 << 20, contents_max: 2000 }
    }
}

/// A content and its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The names of all files whose content it is, sorted; as paths in bytes.
    pub names: Vec<Vec<u8>>,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 of it.
    pub checksum: u32,
    /// Number of different fingerprints, without those that too many contents have.
    pub fingers: u64,
}

impl File {
    /// Describes a content of an index, with `fingers` keys. Fails if the head is damaged.
    pub fn of(
        sif: &Sif,
        mut names: Vec<Vec<u8>>,
        fingers: u64,
        head: &[u8],
    ) -> std::result::Result<File, Damaged> {
        let SifHead { bytes, checksum, .. } = sif.decode(head)?;
        names.sort();
        Ok(File { names, bytes, checksum, fingers })
    }
}

/// A set of files with the number of fingerprints that are in all of them and in no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBy {
    /// Places in [`Saved::files`], ascending.
    pub files: Vec<u32>,
    /// Number of those fingerprints.
    pub count: u64,
}

/// Result of fingerprinting and sorting. Everything after that is quick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// By their first name.
    pub files: Vec<File>,
    /// Sorted, each once.
    pub sets: Vec<SharedBy>,
    /// Fingerprints left out because too many contents have them.
    pub left_out: u64,
}

impl Saved {
    /// Collates an index of sif. `names` returns the names of a content; a content without names is left out. Temporary files
    /// are in `dir`.
    ///
    /// Fails with [`SimilarityError::Sketch`] if the index is of another method or damaged.
    pub fn collate(
        index: &Index,
        sif: &Sif,
        names: &mut dyn FnMut(&crate::id::RecipeId) -> Vec<Vec<u8>>,
        options: &CollateOptions,
        dir: &Path,
    ) -> Result<Saved> {
        let (mut files, mut failed) = (Vec::new(), Ok(()));
        index.contents(0, &mut |number, id, fingers, head| {
            let names = names(&id);
            failed = File::of(sif, names, fingers, head).map(|file| files.push((number, file)));
            failed.is_ok()
        })?;
        failed?;
        Saved::of(files, &mut |visit| index.keys(0, visit), options, dir)
    }

    /// Collates files with their numbers, and leaves out files without names. `each_key` gives each fingerprint with
    /// the numbers of the files that have it; it is called twice.
    pub fn of(
        mut files: Vec<(u32, File)>,
        each_key: EachKey<'_>,
        options: &CollateOptions,
        dir: &Path,
    ) -> Result<Saved> {
        files.retain(|(_, file)| !file.names.is_empty());
        files.sort_by(|(_, a), (_, b)| a.names.cmp(&b.names));
        let places: HashMap<u32, u32> =
            files.iter().enumerate().map(|(place, (number, _))| (*number, place as u32)).collect();
        let mut files: Vec<File> = files.into_iter().map(|(_, file)| file).collect();
        // A hash identifies a set, so that records of one length are sorted for each fingerprint.
        let mut sorter = Sorter::<RECORD_BYTES>::new(dir, options.memory_bytes);
        let set_of = |contents: &[(u32, u64)]| {
            let mut set: Vec<u32> =
                contents.iter().filter_map(|(number, _)| places.get(number)).copied().collect();
            set.sort_unstable();
            set
        };
        let (mut left_out, mut failed) = (0, Ok(()));
        each_key(&mut |key, contents| {
            let set = set_of(contents);
            if set.len() > options.contents_max {
                left_out += 1;
                set.iter().for_each(|&place| files[place as usize].fingers -= 1);
            } else if set.len() > 1 {
                let mut hash = blake3::Hasher::new();
                for place in &set {
                    hash.update(&place.to_le_bytes());
                }
                let mut record = [0; RECORD_BYTES];
                record[..HASH_BYTES].copy_from_slice(&hash.finalize().as_bytes()[..HASH_BYTES]);
                record[HASH_BYTES..].copy_from_slice(&key.to_be_bytes());
                failed = sorter.add(record);
            }
            failed.is_ok()
        })?;
        failed?;
        // For each set the number of fingerprints, and the first one, which identifies the files.
        let mut counts: HashMap<u64, u64> = HashMap::new();
        let sorted = sorter.finish()?;
        let (mut merge, mut last): (_, Option<([u8; HASH_BYTES], u64)>) = (sorted.all()?, None);
        while let Some(record) = merge.next()? {
            let (hash, key) = record.split_at(HASH_BYTES);
            let first = match last {
                Some((of, first)) if of[..] == *hash => first,
                _ => key.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)),
            };
            last = hash.first_chunk::<HASH_BYTES>().map(|hash| (*hash, first));
            *counts.entry(first).or_default() += 1;
        }
        drop(merge);
        drop(sorted);
        let mut sets: Vec<SharedBy> = Vec::new();
        each_key(&mut |key, contents| {
            if let Some(count) = counts.remove(&key) {
                sets.push(SharedBy { files: set_of(contents), count });
            }
            !counts.is_empty()
        })?;
        sets.sort_unstable_by(|a, b| a.files.cmp(&b.files));
        Ok(Saved { files, sets, left_out })
    }

    /// Encodes the result for a file. Smaller than the names alone in text.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_varint(&mut out, self.left_out);
        put_varint(&mut out, self.files.len() as u64);
        for file in &self.files {
            put_varint(&mut out, file.names.len() as u64);
            for name in &file.names {
                put_varint(&mut out, name.len() as u64);
                out.extend_from_slice(name);
            }
            put_varint(&mut out, file.bytes);
            put_varint(&mut out, u64::from(file.checksum));
            put_varint(&mut out, file.fingers);
        }
        put_varint(&mut out, self.sets.len() as u64);
        for set in &self.sets {
            put_varint(&mut out, set.count);
            put_varint(&mut out, set.files.len() as u64);
            let mut last = 0;
            for &place in &set.files {
                put_varint(&mut out, u64::from(place - last));
                last = place;
            }
        }
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a result; `None` if the bytes are not those of [`Saved::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Saved> {
        let (body, crc) = bytes.split_last_chunk()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut rest = body.strip_prefix(MAGIC)?;
        let rest = &mut rest;
        let left_out = take_varint(rest)?;
        let mut saved = Saved { left_out, ..Saved::default() };
        for _ in 0..take_varint(rest)? {
            let mut names = Vec::new();
            for _ in 0..take_varint(rest)? {
                let len = usize::try_from(take_varint(rest)?).ok()?;
                let (name, after) = rest.split_at_checked(len)?;
                names.push(name.to_vec());
                *rest = after;
            }
            let (bytes, checksum, fingers) = (take_varint(rest)?, take_varint(rest)?, take_varint(rest)?);
            if names.is_empty() {
                return None;
            }
            saved.files.push(File { names, bytes, checksum: u32::try_from(checksum).ok()?, fingers });
        }
        // A fingerprint is in one set, and has 32 bits.
        let mut fingers_left = 1u64 << 32;
        for _ in 0..take_varint(rest)? {
            let (count, mut set) = (take_varint(rest)?, SharedBy { files: Vec::new(), count: 0 });
            fingers_left = fingers_left.checked_sub(count)?;
            set.count = count;
            let mut place = 0u64;
            for at in 0..take_varint(rest)? {
                let gap = take_varint(rest)?;
                place = place.checked_add(gap).filter(|place| *place < saved.files.len() as u64)?;
                if at > 0 && gap == 0 {
                    return None;
                }
                set.files.push(place as u32);
            }
            saved.sets.push(set);
        }
        rest.is_empty().then_some(saved)
    }

    /// Returns for each file the sets that it is in.
    pub(super) fn sets_of_files(&self) -> Vec<Vec<u32>> {
        let mut sets = vec![Vec::new(); self.files.len()];
        for (at, set) in self.sets.iter().enumerate() {
            set.files.iter().for_each(|&place| sets[place as usize].push(at as u32));
        }
        sets
    }
}
