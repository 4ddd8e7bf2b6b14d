//! How much two contents have in common, and the order of matches.

use crate::similarity::{Candidate, exact};
use std::cmp::Ordering;

/// How much two contents have in common.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Shares {
    /// Share of the queried content that is in the other, 0 to 1.
    pub containment: f64,
    /// Share of the other that is in the queried content, 0 to 1.
    pub contained_in: f64,
    /// Bytes in common over bytes in either, 0 to 1.
    pub resemblance: f64,
    /// Bytes of the queried content that are in the other.
    pub bytes_common: u64,
    /// Bytes in common that are padding or in templates: the other figures do not count them.
    #[serde(rename = "suppressed_bytes")]
    pub bytes_suppressed: u64,
    /// Whether both are identical.
    pub identical: bool,
    /// Whether the figures were computed from the bytes, or estimated from sketches.
    pub verified: bool,
}

impl Shares {
    /// Computes the shares of two contents of those sizes. Suppressed bytes (templates, padding) are left out, both of the
    /// common bytes and of the sizes.
    pub(crate) fn of(common: &exact::Common, size: u64, other_size: u64, bytes_suppressed: u64) -> Shares {
        let share = |part: u64, whole: u64| {
            if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
        };
        let both = common.a_bytes.min(common.b_bytes);
        Shares {
            containment: share(common.a_bytes, size),
            contained_in: share(common.b_bytes, other_size),
            resemblance: share(both, size + other_size - both),
            bytes_common: common.a_bytes,
            bytes_suppressed,
            identical: common.identical,
            verified: true,
        }
    }

    /// Returns the shares of two identical files of `size` bytes.
    pub(crate) fn identical(size: u64) -> Shares {
        Shares {
            containment: 1.0,
            contained_in: 1.0,
            resemblance: 1.0,
            bytes_common: size,
            bytes_suppressed: 0,
            identical: true,
            verified: true,
        }
    }
}

/// The measure that ranks matches. The minimum applies to the resemblance if that ranks, otherwise to the larger of both
/// containments. The mean ranks a file that is contained in nearly everything below one that is nearly identical.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Ranking {
    /// The larger of both containments.
    Containment,
    /// Common bytes divided by the bytes in either.
    Resemblance,
    /// Common bytes.
    Bytes,
    /// The geometric mean of both containments.
    Mean,
}

impl Ranking {
    /// Returns the key of the ranking: the larger, the better.
    pub(crate) fn key(self, containment: f64, contained_in: f64, resemblance: f64, bytes: u64) -> f64 {
        match self {
            Ranking::Mean => (containment * contained_in).sqrt(),
            Ranking::Containment => containment.max(contained_in),
            Ranking::Resemblance => resemblance,
            Ranking::Bytes => bytes as f64,
        }
    }

    /// Orders the better match first.
    pub fn better(self, a: &Shares, b: &Shares) -> Ordering {
        let key = |shares: &Shares| {
            self.key(shares.containment, shares.contained_in, shares.resemblance, shares.bytes_common)
        };
        b.identical
            .cmp(&a.identical)
            .then_with(|| key(b).total_cmp(&key(a)))
            .then_with(|| b.resemblance.total_cmp(&a.resemblance))
            .then_with(|| b.bytes_common.cmp(&a.bytes_common))
    }

    /// Orders by the estimates.
    pub(crate) fn likelier(self, a: &Candidate, b: &Candidate) -> Ordering {
        let key = |candidate: &Candidate| {
            let &Candidate { containment, contained_in, resemblance, bytes_common, .. } = candidate;
            self.key(containment, contained_in, resemblance, bytes_common)
        };
        key(b).total_cmp(&key(a)).then_with(|| b.resemblance.total_cmp(&a.resemblance))
    }
}
