//! The parameters of sif.

use super::Anchors;

/// Largest number of bits of a fingerprint that are kept; the smallest is 30 (section 2).
pub const BITS_MAX: u32 = 32;

/// How fingerprints are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// Fingerprints whose `low_zeros` last bits are 0: one in `2^low_zeros`.
    Hashed {
        /// k in the paper.
        low_zeros: u32,
    },
    /// Fingerprints of the substrings that start with an anchor.
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
    /// Bits of each fingerprint that are 0 and so are not stored.
    pub(super) fn zeros(&self) -> u32 {
        match self.selection {
            Selection::Hashed { low_zeros } => low_zeros,
            Selection::Anchored(_) => 0,
        }
    }
}
