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

pub use anchors::{Anchors, learn};
pub use collate::{CollateOptions, File, Saved, SharedBy};
pub use fingers::FINGER_BYTES;

use super::{Builder, Damaged, Likeness, Method};
use crate::recipe::{put_varint, take_varint};
use fingers::Fingers;
use std::ffi::OsStr;

/// One-against-all lists files from this share on, unless told otherwise (section 3).
pub const SHARE_DEFAULT: f64 = 0.5;
/// Of a fingerprint 30 to so many bits are kept (section 2).
pub const BITS_MAX: u32 = 32;

/// How fingerprints are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// Those whose `low_zeros` last bits are 0: one in `2^low_zeros`.
    Hashed {
        /// k in the paper.
        low_zeros: u32,
    },
    /// Those of the substrings that start with an anchor.
    Anchored(Anchors),
}

/// The method and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Sif {
    /// Which fingerprints are kept.
    pub selection: Selection,
    /// Bits of a fingerprint: the modulus is `2^bits`. More for very many files; 30 to [`BITS_MAX`].
    pub bits: u32,
}

impl Default for Sif {
    fn default() -> Self {
        Sif { selection: Selection::Hashed { low_zeros: 8 }, bits: 30 }
    }
}

impl Sif {
    /// Bits of each fingerprint that are 0 and so not stored.
    fn zeros(&self) -> u32 {
        match self.selection {
            Selection::Hashed { low_zeros } => low_zeros,
            Selection::Anchored(_) => 0,
        }
    }
}

/// The fingerprints of a file, and what tells equal files.
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

    /// Whether checksum and size say that the files are the same.
    pub fn equals(&self, other: &SifSketch) -> bool {
        (self.bytes, self.checksum) == (other.bytes, other.checksum)
    }
}

impl Method for Sif {
    type Sketch = SifSketch;
    type Builder = SifBuilder;

    const NAME: &'static str = "sif";

    fn parameters(&self) -> String {
        match &self.selection {
            Selection::Hashed { low_zeros } => format!("one in {} of {} bits", 1u64 << low_zeros, self.bits),
            Selection::Anchored(anchors) => format!("{anchors}, {} bits", self.bits),
        }
    }

    fn builder(&self, _name: Option<&OsStr>) -> SifBuilder {
        SifBuilder { bytes: 0, crc: crc32fast::Hasher::new(), fingers: Fingers::new(self.clone()) }
    }

    fn encode(&self, sketch: &SifSketch) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + 3 * sketch.fingers.len());
        put_varint(&mut out, sketch.bytes);
        out.extend_from_slice(&sketch.checksum.to_le_bytes());
        put_varint(&mut out, sketch.fingers.len() as u64);
        let mut last = 0;
        for &(finger, count) in &sketch.fingers {
            let finger = finger >> self.zeros();
            put_varint(&mut out, u64::from(finger - last) << 1 | u64::from(count > 1));
            if count > 1 {
                put_varint(&mut out, u64::from(count));
            }
            last = finger;
        }
        out
    }

    fn decode(&self, bytes: &[u8]) -> Result<SifSketch, Damaged> {
        decode(bytes, self.zeros())
            .ok_or(Damaged { method: Self::NAME, expected: "size, checksum and ascending fingerprints" })
    }

    fn keys(&self, sketch: &SifSketch) -> Vec<u64> {
        sketch.fingers.iter().map(|&(finger, _)| u64::from(finger >> self.zeros())).collect()
    }

    /// Section 3: how many fingerprints of b are among a's, by how many a has. Where one occurs more often in b that
    /// is more than all of them.
    fn compare(&self, a: &SifSketch, b: &SifSketch) -> Likeness {
        if a.equals(b) {
            return Likeness { containment: Some(1.0), contained_in: Some(1.0), ..Likeness::default() };
        }
        let (mut in_a, mut in_b) = (0u64, 0u64);
        let mut rest = b.fingers.iter().peekable();
        for &(finger, count) in &a.fingers {
            while rest.next_if(|(other, _)| *other < finger).is_some() {}
            if let Some((_, other)) = rest.next_if(|(other, _)| *other == finger) {
                in_a += u64::from(count);
                in_b += u64::from(*other);
            }
        }
        let share = |common: u64, all: u64| (all > 0).then(|| common as f64 / all as f64);
        let (a_count, b_count) = (a.count(), b.count());
        if a_count == 0 || b_count == 0 {
            return Likeness::default();
        }
        Likeness {
            containment: share(in_b, a_count),
            contained_in: share(in_a, b_count),
            ..Likeness::default()
        }
    }
}

fn decode(mut bytes: &[u8], zeros: u32) -> Option<SifSketch> {
    let len = take_varint(&mut bytes)?;
    let (checksum, mut rest) = bytes.split_first_chunk()?;
    let count = take_varint(&mut rest)?;
    // A fingerprint takes a byte or more.
    let mut fingers = Vec::with_capacity(usize::try_from(count).ok().filter(|count| *count <= rest.len())?);
    let mut last = 0u32;
    for at in 0..count {
        let gap = take_varint(&mut rest)?;
        let finger = last.checked_add(u32::try_from(gap >> 1).ok()?)?;
        if at > 0 && finger == last || u64::from(finger) << zeros > u64::from(u32::MAX) {
            return None;
        }
        let count = match gap & 1 {
            0 => 1,
            _ => u32::try_from(take_varint(&mut rest)?).ok().filter(|count| *count > 1)?,
        };
        fingers.push((finger << zeros, count));
        last = finger;
    }
    rest.is_empty().then_some(SifSketch { bytes: len, checksum: u32::from_le_bytes(*checksum), fingers })
}

/// Takes the bytes of one file.
pub struct SifBuilder {
    bytes: u64,
    crc: crc32fast::Hasher,
    fingers: Fingers,
}

impl Builder for SifBuilder {
    type Sketch = SifSketch;

    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc.update(bytes);
        self.fingers.add(bytes);
    }

    fn finish(self) -> SifSketch {
        SifSketch { bytes: self.bytes, checksum: self.crc.finalize(), fingers: self.fingers.finish() }
    }
}

#[cfg(test)]
mod tests;
