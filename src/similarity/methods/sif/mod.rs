//! sif: fingerprints of some substrings of 50 bytes (Manber, "Finding similar files in a large file system", TR 93-33
//! of the University of Arizona, 1993; 1994 Winter USENIX).
//!
//! ```text
//! bytes -> fingers     which substrings, by their hash or by anchors, and their fingerprints
//! index -> collate     all against all: which contents share how many fingerprints, saved
//! saved -> report      groups at any threshold, by rules; as the text of Figure 3
//! saved -> interesting sets whose members all share enough
//! saved -> directories which directories have how much in common
//! ```

mod anchors;
mod collate;
pub mod directories;
mod fingers;
pub mod interesting;
pub mod report;
mod settings;

pub use anchors::{Anchors, FINGER_BYTES, learn};
pub use collate::{CollateOptions, File, Saved, SharedBy};
pub use settings::{BITS_MAX, Selection, Sif};

use super::{Builder, Damaged, Entry, Likeness, Method, Options, Parametric, Sums, Whole};
use crate::recipe::{put_varint, take_varint};
use fingers::Fingers;
use std::ffi::OsStr;

/// One-against-all lists files from this share on by default (section 3).
pub const SHARE_DEFAULT: f64 = 0.5;

/// With more zeros, files of 64 KiB have no fingerprints.
const ZEROS_MAX: u32 = 16;

/// Facts that identify equal files, and the number of fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SifHead {
    /// Length of the file.
    pub bytes: u64,
    /// CRC-32 of the file.
    pub checksum: u32,
    /// Fingerprints, repeats included.
    pub count: u64,
}

/// The fingerprints of a file, and facts that identify equal files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SifSketch {
    /// Length of the file.
    pub bytes: u64,
    /// CRC-32 of the file.
    pub checksum: u32,
    /// Fingerprints with the number of times that each occurs, ascending.
    pub fingers: Vec<(u32, u32)>,
}

impl SifSketch {
    /// How many fingerprints the file has, repeats included.
    pub fn count(&self) -> u64 {
        self.fingers.iter().map(|&(_, count)| u64::from(count)).sum()
    }
}

impl Method for Sif {
    type Sketch = SifSketch;
    type Head = SifHead;
    type Builder = SifBuilder;

    const NAME: &'static str = "sif";

    fn parameters(&self) -> String {
        match &self.selection {
            Selection::Hashed { low_zeros } => format!("one in {} of {} bits", 1u64 << low_zeros, self.bits),
            Selection::Anchored(anchors) => format!("{anchors}, {} bits", self.bits),
        }
    }

    fn builder(&self, _name: Option<&OsStr>) -> SifBuilder {
        let fingers = Fingers::new(self.clone());
        SifBuilder { bytes: 0, crc: crc32fast::Hasher::new(), zeros: self.zeros(), given: 0, fingers }
    }

    fn head(&self, sketch: &SifSketch) -> SifHead {
        SifHead { bytes: sketch.bytes, checksum: sketch.checksum, count: sketch.count() }
    }

    /// Returns the entries; the value is the number of occurrences.
    fn entries(&self, sketch: &SifSketch) -> Vec<Entry> {
        let entry = |&(finger, count): &(u32, u32)| Entry {
            key: (finger >> self.zeros()).into(),
            value: count.into(),
        };
        sketch.fingers.iter().map(entry).collect()
    }

    fn encode(&self, head: &SifHead) -> Vec<u8> {
        let mut out = head.checksum.to_le_bytes().to_vec();
        put_varint(&mut out, head.bytes);
        put_varint(&mut out, head.count);
        out
    }

    fn decode(&self, bytes: &[u8]) -> Result<SifHead, Damaged> {
        let decode = || {
            let (checksum, mut rest) = bytes.split_first_chunk()?;
            let (bytes, count) = (take_varint(&mut rest)?, take_varint(&mut rest)?);
            let head = SifHead { bytes, checksum: u32::from_le_bytes(*checksum), count };
            rest.is_empty().then_some(head)
        };
        decode().ok_or(Damaged { method: Self::NAME, expected: "checksum, size and number of fingerprints" })
    }

    fn joined(&self, one: u64, other: u64) -> u64 {
        one.saturating_add(other)
    }

    fn meet(&self, sums: &mut Sums, a: u64, b: u64) {
        sums.shared += 1;
        (sums.a, sums.b) = (sums.a.saturating_add(a), sums.b.saturating_add(b));
    }

    /// Section 3: how many fingerprints of b are among a's, by how many a has. If one occurs more often in b, the share
    /// exceeds 1. Files of the same checksum and size are the same.
    fn likeness(&self, a: &Whole<SifHead>, b: &Whole<SifHead>, sums: &Sums) -> Likeness {
        let (a, b) = (&a.head, &b.head);
        if (a.bytes, a.checksum) == (b.bytes, b.checksum) {
            return Likeness { containment: Some(1.0), contained_in: Some(1.0), ..Likeness::default() };
        }
        if a.count == 0 || b.count == 0 {
            return Likeness::default();
        }
        Likeness {
            containment: Some(sums.b as f64 / a.count as f64),
            contained_in: Some(sums.a as f64 / b.count as f64),
            ..Likeness::default()
        }
    }
}

impl Parametric for Sif {
    const KEYS: &'static str = "zeros=8 keeps one substring in 2^8, bits=30 to 32 are kept of each";

    const EXAMPLE: &'static str = "zeros=8,bits=30";

    fn with(options: &mut Options) -> Result<Sif, String> {
        let low_zeros = options.parse("zeros", "a number")?.unwrap_or(8);
        let bits = options.parse("bits", "a number")?.unwrap_or(30);
        if low_zeros > ZEROS_MAX {
            return Err(format!("zeros={low_zeros}: expected 0 to {ZEROS_MAX}"));
        }
        if !(30..=BITS_MAX).contains(&bits) {
            return Err(format!("bits={bits}: expected 30 to {BITS_MAX}"));
        }
        Ok(Sif { selection: Selection::Hashed { low_zeros }, bits })
    }
}

/// Takes the bytes of one file.
pub struct SifBuilder {
    bytes: u64,
    crc: crc32fast::Hasher,
    zeros: u32,
    /// Fingerprints passed on so far.
    given: u64,
    fingers: Fingers,
}

impl SifBuilder {
    fn give(&mut self, take: &mut dyn FnMut(Entry)) {
        for finger in self.fingers.take() {
            self.given += 1;
            take(Entry { key: u64::from(finger >> self.zeros), value: 1 });
        }
    }
}

impl Builder for SifBuilder {
    type Sketch = SifSketch;
    type Head = SifHead;

    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc.update(bytes);
        self.fingers.add(bytes);
    }

    fn drain(&mut self, take: &mut dyn FnMut(Entry)) {
        self.give(take);
    }

    fn close(mut self, take: &mut dyn FnMut(Entry)) -> SifHead {
        self.fingers.end();
        self.give(take);
        SifHead { bytes: self.bytes, checksum: self.crc.finalize(), count: self.given }
    }

    fn finish(self) -> SifSketch {
        SifSketch { bytes: self.bytes, checksum: self.crc.finalize(), fingers: self.fingers.finish() }
    }
}

#[cfg(test)]
mod tests;
