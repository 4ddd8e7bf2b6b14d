//! Keys: a file's sum table as one number (section 4.1 of the paper), so that like files are near each other in an
//! order.
//!
//! A key is a linear combination of the sums, and so about proportional to the size of the file. With the extension in
//! front, files of different extensions are far apart. The paper multiplies a hash of the extension between 0 and 1 by the
//! largest 32-bit integer and adds the key, so keys of large files reach into other extensions. Here the hash is the upper
//! 16 of 64 bits, and they do not.

use super::tags::TAG_COUNT;
use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::Path;

/// Bits below the extension.
const SUM_BITS: u32 = 48;
const SUM_MAX: u64 = (1 << SUM_BITS) - 1;

/// The first three characters of a file's extension, in lower case, padded with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extension(pub [u8; 3]);

impl Extension {
    /// Takes an extension without its dot.
    pub fn of(extension: &OsStr) -> Extension {
        let mut first = [0; 3];
        first
            .iter_mut()
            .zip(extension.as_encoded_bytes())
            .for_each(|(to, byte)| *to = byte.to_ascii_lowercase());
        Extension(first)
    }

    /// Takes the extension of a file's name.
    pub fn of_name(name: &OsStr) -> Extension {
        Path::new(name).extension().map_or(Extension::default(), Extension::of)
    }

    /// Returns a hash in 16 bits.
    fn hash(self) -> u64 {
        let [a, b, c] = self.0.map(u32::from);
        u64::from((a << 16 | b << 8 | c).wrapping_mul(0x9e37_79b1) >> 16)
    }
}

impl std::fmt::Display for Extension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        write!(f, "{}", self.0[..end].escape_ascii())
    }
}

/// How sums become a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyKind {
    /// Its name for users.
    pub name: &'static str,
    /// The weight of each tag.
    pub weights: [u8; TAG_COUNT],
    /// Whether the extension comes first in the key.
    pub extension: bool,
}

impl KeyKind {
    /// All tags have the same weight.
    pub const UNIFORM: KeyKind = KeyKind { name: "uniform", weights: [1; TAG_COUNT], extension: false };
    /// Four tags count, unevenly, the zero byte most. The paper gives no weights; these have the sum of the uniform
    /// ones, so that on random bytes both keys are alike.
    pub const SKEW: KeyKind =
        KeyKind { name: "skew", weights: [8, 4, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], extension: false };
    /// [`KeyKind::UNIFORM`] behind the extension.
    pub const UNIFORM_EXTENSION: KeyKind =
        KeyKind { name: "uniform+extension", extension: true, ..KeyKind::UNIFORM };
    /// [`KeyKind::SKEW`] behind the extension.
    pub const SKEW_EXTENSION: KeyKind = KeyKind { name: "skew+extension", extension: true, ..KeyKind::SKEW };
    /// All of them.
    pub const ALL: [KeyKind; 4] =
        [KeyKind::UNIFORM, KeyKind::SKEW, KeyKind::UNIFORM_EXTENSION, KeyKind::SKEW_EXTENSION];

    /// Returns the key of a file.
    pub fn key(&self, extension: Extension, sums: &[u64; TAG_COUNT]) -> u64 {
        let weighted = sums.iter().zip(self.weights).map(|(&sum, weight)| sum.saturating_mul(weight.into()));
        self.front(extension) | weighted.fold(0, u64::saturating_add).min(SUM_MAX)
    }

    /// Returns keys at most `tolerance` from one; never of another extension.
    pub fn near(&self, extension: Extension, key: u64, tolerance: u64) -> RangeInclusive<u64> {
        let front = self.front(extension);
        key.saturating_sub(tolerance).max(front)..=key.saturating_add(tolerance).min(front | SUM_MAX)
    }

    fn front(&self, extension: Extension) -> u64 {
        if self.extension { extension.hash() << SUM_BITS } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_is_three_characters_of_the_name() {
        let of = |name: &str| Extension::of_name(OsStr::new(name)).0;
        assert_eq!(of("a.html"), *b"htm");
        assert_eq!(of("a.HTM"), *b"htm");
        assert_eq!(of("a.tar.c"), *b"c\0\0");
        assert_eq!([of("a"), of(".c"), of("a."), of("")], [[0; 3]; 4]);
    }

    #[test]
    fn keys_of_different_extensions_are_never_near() {
        let kind = KeyKind::SKEW_EXTENSION;
        let [c, h, none] = [*b"c\0\0", *b"h\0\0", [0; 3]].map(Extension);
        for sums in [[0; TAG_COUNT], [9; TAG_COUNT], [u64::MAX; TAG_COUNT]] {
            for (a, b) in [(c, h), (h, none), (none, c)] {
                let near = kind.near(a, kind.key(a, &sums), u64::MAX);
                assert!(near.contains(&kind.key(a, &sums)) && !near.contains(&kind.key(b, &sums)));
            }
        }
        let plain = KeyKind::SKEW;
        assert_eq!(plain.key(c, &[9; TAG_COUNT]), plain.key(h, &[9; TAG_COUNT]));
    }

    #[test]
    fn near_reaches_as_far_both_ways() {
        let (kind, c) = (KeyKind::UNIFORM_EXTENSION, Extension(*b"c\0\0"));
        let key = kind.key(c, &[100; TAG_COUNT]);
        assert_eq!(kind.near(c, key, 7), key - 7..=key + 7);
        assert_eq!(key & SUM_MAX, 1600);
        assert_eq!(kind.near(c, key, 2000), key - 1600..=key + 2000, "not into what is below the extension");
    }

    #[test]
    fn skew_counts_four_tags_and_the_zero_byte_most() {
        let weights = KeyKind::SKEW.weights;
        assert_eq!(weights.iter().filter(|weight| **weight > 0).count(), 4);
        assert!(weights[1..].iter().all(|weight| *weight < weights[0]));
    }
}
