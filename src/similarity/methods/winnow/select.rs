//! The choice of k-grams: rolling hashes, and the least of each window (sections 2.2, 3 and 5.1).

use std::collections::VecDeque;

/// Bits of a hash that are kept. The paper found 32 too few for two thousand million hashes and took 64. This index keeps
/// only one in fifty of those; with 2^30 kept hashes one look-up in a thousand finds an unrelated one.
pub const HASH_BITS: u32 = 40;
/// b: odd, so that no bits are lost, and without a pattern in its bits.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hash that was kept, and the start of its k-gram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    /// The hash, of [`HASH_BITS`].
    pub hash: u64,
    /// Bytes before the k-gram.
    pub at: u64,
}

/// The hashes of all k-grams, by the second form of section 2.2: the added byte is multiplied too, so that the last
/// byte changes all bits.
#[derive(Clone, Debug)]
pub(super) struct Grams {
    /// The last k bytes.
    window: VecDeque<u8>,
    k: usize,
    hash: u64,
    /// b^k.
    power: u64,
}

impl Grams {
    pub(super) fn new(k: u32) -> Grams {
        let power = (0..k).fold(1u64, |power, _| power.wrapping_mul(BASE));
        Grams { window: VecDeque::with_capacity(k as usize), k: k as usize, hash: 0, power }
    }

    /// Calls `see` with the hash of each k-gram that ends in `bytes`.
    pub(super) fn roll(&mut self, bytes: &[u8], mut see: impl FnMut(u64)) {
        // K-grams that start before these bytes.
        let from_before = bytes.len().min(self.k);
        for &byte in &bytes[..from_before] {
            let leaves = if self.window.len() == self.k { self.window.pop_front() } else { None };
            self.window.push_back(byte);
            self.step(byte, leaves.unwrap_or(0));
            if self.window.len() == self.k {
                see(self.hash >> (64 - HASH_BITS));
            }
        }
        for (&enters, &leaves) in bytes[from_before..].iter().zip(bytes) {
            self.step(enters, leaves);
            see(self.hash >> (64 - HASH_BITS));
        }
        if bytes.len() > self.k {
            self.window.clear();
            self.window.extend(&bytes[bytes.len() - self.k..]);
        }
    }

    #[inline(always)]
    fn step(&mut self, enters: u8, leaves: u8) {
        let kept = self.hash.wrapping_sub(self.power.wrapping_mul(u64::from(leaves)));
        self.hash = kept.wrapping_add(u64::from(enters)).wrapping_mul(BASE);
    }
}

/// Calls `see` with the hash of each k-gram of `bytes`: to measure the selection.
pub fn each_hash(k: u32, bytes: &[u8], see: impl FnMut(u64)) {
    Grams::new(k).roll(bytes, see);
}

/// Keeps the least hash of each window of w.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    robust: bool,
    /// The last w hashes, in a ring.
    ring: Vec<u64>,
    /// Hashes seen.
    seen: u64,
    /// The hash that the last window selected.
    least: Fingerprint,
    kept: Vec<Fingerprint>,
}

impl Windows {
    pub(super) fn new(w: u32, robust: bool) -> Windows {
        let least = Fingerprint { hash: u64::MAX, at: 0 };
        Windows { robust, ring: vec![0; w as usize], seen: 0, least, kept: Vec::new() }
    }

    /// Takes the next hash.
    #[inline(always)]
    pub(super) fn put(&mut self, hash: u64) {
        let (at, w) = (self.seen, self.ring.len() as u64);
        self.ring[(at % w) as usize] = hash;
        self.seen += 1;
        if self.seen < w {
            // The first window is not complete; it takes the rightmost.
            if hash <= self.least.hash {
                self.least = Fingerprint { hash, at };
            }
            return;
        }
        let first = self.seen - w;
        let before = self.least;
        if self.seen == w {
            if hash <= before.hash {
                self.least = Fingerprint { hash, at };
            }
            self.kept.push(self.least);
        } else if before.at < first {
            // The least hash left the window: searches from right to left, to take the rightmost of the least.
            self.least = Fingerprint { hash, at };
            for at in (first..at).rev() {
                let hash = self.ring[(at % w) as usize];
                if hash < self.least.hash {
                    self.least = Fingerprint { hash, at };
                }
            }
            self.kept.push(self.least);
        } else if hash < before.hash || (hash == before.hash && !self.robust) {
            self.least = Fingerprint { hash, at };
            self.kept.push(self.least);
        }
    }

    /// Takes the fingerprints kept since the last call.
    pub(super) fn take(&mut self) -> std::vec::Drain<'_, Fingerprint> {
        self.kept.drain(..)
    }

    /// Returns how many hashes there were, and those kept. If there were too few for a window, the least of them is kept.
    pub(super) fn finish(mut self) -> (u64, Vec<Fingerprint>) {
        if self.seen > 0 && self.seen < self.ring.len() as u64 {
            self.kept.push(self.least);
        }
        (self.seen, self.kept)
    }
}

/// Returns the fingerprints, out of those kept with some w of `grams` hashes, that a larger w keeps: "F_w' is a subset of
/// F_w" (section 3.2).
///
/// A fingerprint is kept if some window holds it, nothing less, and nothing as small to its right. Other hashes need not be
/// examined: in any such window a smaller hash is itself a fingerprint.
pub(super) fn thinned(kept: &[Fingerprint], grams: u64, w: u64) -> Vec<Fingerprint> {
    if grams < w {
        let least = kept.iter().copied().min_by_key(|print| (print.hash, u64::MAX - print.at));
        return least.into_iter().collect();
    }
    // For each the place after the last smaller one before it; a stack of candidates for that.
    let mut from = vec![0; kept.len()];
    let mut to = vec![grams; kept.len()];
    let mut open: Vec<usize> = Vec::new();
    for (i, print) in kept.iter().enumerate() {
        while let Some(&last) = open.last().filter(|last| kept[**last].hash >= print.hash) {
            to[last] = print.at;
            open.pop();
        }
        from[i] = open.last().map_or(0, |last| kept[*last].at + 1);
        open.push(i);
    }
    let fits = |i: &usize| to[*i] - from[*i] >= w;
    (0..kept.len()).filter(fits).map(|i| kept[i]).collect()
}
