//! Fingerprints: hashes of selected substrings of a file (section 2).
//!
//! The fingerprint of t1 .. t50 is t1 p^49 + t2 p^48 + .. + t50 mod M, where p is a prime and M a power of 2. A step to the
//! next multiplies it, adds the byte that enters, and subtracts the term of the byte that leaves.
//! Text that was kept is skipped, so a run of one character gives few fingerprints and not one at each place.

use super::{FINGER_BYTES, Selection, Sif};
use crate::view::postscript;

/// p: the largest prime below 2^30.
const PRIME: u32 = (1 << 30) - 35;
/// Term of a byte when it leaves: t p^50, since it is subtracted after the multiplication.
static LEAVE: [u32; 256] = leave();

const fn leave() -> [u32; 256] {
    let (mut power, mut i) = (1u32, 0);
    while i < FINGER_BYTES {
        power = power.wrapping_mul(PRIME);
        i += 1;
    }
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        table[byte] = power.wrapping_mul(byte as u32);
        byte += 1;
    }
    table
}

/// Returns the fingerprint before it is cut to its number of bits. 2^32 is a multiple of every modulus.
fn whole(text: &[u8]) -> u32 {
    text.iter().fold(0, |hash, &byte| hash.wrapping_mul(PRIME).wrapping_add(u32::from(byte)))
}

/// Collects the fingerprints of a file.
pub(super) struct Fingers {
    sif: Sif,
    found: Vec<u32>,
    /// Bytes that have to be examined again with the next ones.
    pending: Vec<u8>,
    /// Whether `pending` is still the head of a PostScript file, without its end.
    in_head: bool,
}

impl Fingers {
    pub(super) fn new(sif: Sif) -> Fingers {
        Fingers { sif, found: Vec::new(), pending: Vec::new(), in_head: true }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        if self.in_head {
            let may_be_header = self.pending.starts_with(b"%!") || self.pending.len() < 2;
            if may_be_header && self.pending.len() < postscript::PROLOG_BYTES_MAX as usize {
                return;
            }
            self.leave_head();
        }
        self.look();
    }

    /// Drops the headers of PostScript files, which "are large, similar, and ubiquitous".
    fn leave_head(&mut self) {
        self.in_head = false;
        if self.pending.starts_with(b"%!") {
            let head = self.pending.len().min(postscript::PROLOG_BYTES_MAX as usize);
            self.pending.drain(..postscript::header_bytes(&self.pending[..head]));
        }
    }

    /// Ends the file.
    pub(super) fn end(&mut self) {
        if self.in_head {
            self.leave_head();
            self.look();
        }
    }

    /// Takes the fingerprints found since the last call, in order of their places.
    pub(super) fn take(&mut self) -> std::vec::Drain<'_, u32> {
        self.found.drain(..)
    }

    /// Returns all fingerprints, ascending, with their numbers of occurrences.
    pub(super) fn finish(mut self) -> Vec<(u32, u32)> {
        self.end();
        self.found.sort_unstable();
        self.found.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect()
    }

    fn look(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let looked_at = match &self.sif.selection {
            Selection::Hashed { low_zeros } => self.hashed(&pending, *low_zeros),
            Selection::Anchored(anchors) => {
                let anchors = anchors.clone();
                anchors.each(&pending, |at| self.keep(whole(&pending[at..at + FINGER_BYTES])))
            }
        };
        self.pending = pending;
        self.pending.drain(..looked_at);
    }

    fn keep(&mut self, hash: u32) {
        self.found.push((u64::from(hash) & ((1 << self.sif.bits) - 1)) as u32);
    }

    /// Keeps fingerprints of `text`; returns the start of the text that has to be examined again.
    fn hashed(&mut self, text: &[u8], low_zeros: u32) -> usize {
        let mask = ((1u64 << low_zeros) - 1) as u32;
        let mut start = 0;
        'kept: while let Some(first) = text.get(start..start + FINGER_BYTES) {
            let mut hash = whole(first);
            let entering = &text[start + FINGER_BYTES..];
            if hash & mask == 0 {
                self.keep(hash);
                start += FINGER_BYTES;
                continue;
            }
            for (at, (&enters, &leaves)) in entering.iter().zip(&text[start..]).enumerate() {
                hash = hash.wrapping_mul(PRIME).wrapping_add(u32::from(enters));
                hash = hash.wrapping_sub(LEAVE[usize::from(leaves)]);
                if hash & mask == 0 {
                    self.keep(hash);
                    start += at + 1 + FINGER_BYTES;
                    continue 'kept;
                }
            }
            return text.len() - (FINGER_BYTES - 1);
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::similarity::methods::laws;

    /// Against every fingerprint worked out for itself, by the paper's sum.
    #[test]
    fn rolling_is_the_sum_of_the_paper() {
        for (text, bits) in [(laws::noise(5000, 1), 30), (laws::text(2000, 2), 32), (vec![b'_'; 300], 31)] {
            let modulus = 1u64 << bits;
            let (mut at, mut expected) = (0, Vec::new());
            while let Some(piece) = text.get(at..at + FINGER_BYTES) {
                let (mut sum, mut power) = (0u64, 1u64);
                for &byte in piece.iter().rev() {
                    sum = (sum + u64::from(byte) * power) % modulus;
                    power = power * u64::from(PRIME) % modulus;
                }
                if sum % 16 == 0 {
                    expected.push(sum as u32);
                    at += FINGER_BYTES;
                } else {
                    at += 1;
                }
            }
            let mut fingers = Fingers::new(Sif { selection: Selection::Hashed { low_zeros: 4 }, bits });
            fingers.add(&text);
            assert_eq!(fingers.found, expected);
        }
    }

    /// "If 50 underline symbols form a fingerprint, and the text contains 70, we will not generate 21."
    #[test]
    fn what_was_kept_is_passed_over() {
        let mut fingers = Fingers::new(Sif { selection: Selection::Hashed { low_zeros: 0 }, bits: 30 });
        fingers.add(&[b'_'; 70]);
        assert_eq!(fingers.finish().iter().map(|(_, count)| count).sum::<u32>(), 1);
    }
}
