//! Padding: long stretches that repeat themselves within a few bytes, such as zeros between sections, tables of one
//! value, lines of dashes.
//!
//! Invariant: whether a byte is padding depends only on the bytes around it, never on the other side of a comparison.
//! So padding can be left out on both sides before a comparison.

use super::ranges::Ranges;
use super::source::{STEP_BYTES, Source, read_exact_at};
use std::io;

/// Shorter stretches are not padding.
pub const PADDING_BYTES_MIN: u64 = 64;
/// A byte of padding equals the one this many bytes before it: the pattern repeats every 1, 2, 4, 8 or 16 bytes.
pub const PADDING_PERIOD: u64 = 16;
const PERIOD: usize = PADDING_PERIOD as usize;

/// Returns the bytes of `source` in stretches of [`PADDING_BYTES_MIN`] or more that repeat every [`PADDING_PERIOD`] bytes.
/// One pass that does not read holes; 128 KiB of memory in addition to the result.
pub fn padding(source: &dyn Source) -> io::Result<Ranges> {
    let len = source.len();
    let mut scan = Scan::default();
    let mut buffer = vec![0; STEP_BYTES.min(len) as usize];
    let mut at = 0;
    while at < len {
        // Blocks stay at the same offsets as if all was read.
        let hole = (source.data_from(at) - at) / PADDING_PERIOD * PADDING_PERIOD;
        if hole > STEP_BYTES {
            scan.zeros(hole);
            at += hole;
            continue;
        }
        let step = buffer.len().min((len - at) as usize);
        read_exact_at(source, at, &mut buffer[..step])?;
        let (blocks, rest) = buffer[..step].as_chunks::<PERIOD>();
        blocks.iter().for_each(|block| scan.block(u128::from_le_bytes(*block)));
        // Only the last step has a rest: steps consist of whole blocks.
        scan.rest(rest);
        at += step as u64;
    }
    scan.end();
    Ok(scan.found)
}

/// State of the scan. In each block that differs from the one before, the equal bytes at its start end a run of repeating
/// bytes, and those at its end begin one. A run between them is shorter than a block, and no padding.
#[derive(Default)]
struct Scan {
    found: Ranges,
    /// Bytes seen.
    at: u64,
    before: Option<u128>,
    /// Number of bytes up to here that each equal the one a period before.
    run: u64,
}

impl Scan {
    fn block(&mut self, block: u128) {
        let differs = self.before.map_or(u128::MAX, |before| before ^ block);
        if differs == 0 {
            self.run += PADDING_PERIOD;
            self.at += PADDING_PERIOD;
        } else {
            let equal = u64::from(differs.trailing_zeros() / 8);
            (self.run, self.at) = (self.run + equal, self.at + equal);
            self.end();
            self.run = u64::from(differs.leading_zeros() / 8);
            self.at += PADDING_PERIOD - equal;
        }
        self.before = Some(block);
    }

    /// Skips `bytes` zeros: one or more whole blocks.
    fn zeros(&mut self, bytes: u64) {
        self.block(0);
        self.run += bytes - PADDING_PERIOD;
        self.at += bytes - PADDING_PERIOD;
    }

    /// Takes the last bytes, fewer than a block.
    fn rest(&mut self, bytes: &[u8]) {
        let Some(before) = self.before else { return };
        let equal = bytes.iter().zip(before.to_le_bytes()).take_while(|(byte, before)| **byte == *before);
        let equal = equal.count() as u64;
        (self.run, self.at) = (self.run + equal, self.at + equal);
    }

    /// Ends a run. It began a period before its first byte that repeats.
    fn end(&mut self) {
        if self.run > 0 && self.run + PADDING_PERIOD >= PADDING_BYTES_MIN {
            self.found.push(self.at - self.run - PADDING_PERIOD..self.at);
        }
        self.run = 0;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By the definition.
    pub(in super::super) fn reference(bytes: &[u8]) -> Vec<bool> {
        let mut padding = vec![false; bytes.len()];
        for (at, window) in bytes.windows(PADDING_BYTES_MIN as usize).enumerate() {
            if window[PERIOD..] == window[..window.len() - PERIOD] {
                padding[at..at + window.len()].fill(true);
            }
        }
        padding
    }

    /// A file with a hole.
    struct Sparse(Vec<u8>, std::ops::Range<usize>);

    impl Source for Sparse {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn data_from(&self, offset: u64) -> u64 {
            if self.1.contains(&(offset as usize)) { self.1.end as u64 } else { offset }
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            (&self.0[..]).read_at(offset, buffer)
        }
    }

    proptest! {
        #[test]
        fn is_what_the_definition_says(
            parts in prop::collection::vec((1usize..20, 0usize..200, any::<bool>()), 0..12), letters in 1u8..4,
        ) {
            let mut bytes = Vec::new();
            for (period, len, noise) in parts {
                bytes.extend((0..len).map(|i| match noise {
                    true => (i * i * 31 + period) as u8,
                    false => ((i % period) * period) as u8 % letters,
                }));
            }
            let found = padding(&&bytes[..]).unwrap();
            let map: Vec<_> = (0..bytes.len() as u64).map(|at| found.iter().any(|r| r.contains(&at))).collect();
            prop_assert_eq!(map, reference(&bytes));
        }
    }

    #[test]
    fn holes_are_padding_without_being_read() {
        for (start, end, edge) in
            [(0, 500_000, 0), (1_003, 700_001, 0), (77, 900_000, 9), (300_000, 900_000, 0)]
        {
            let mut bytes: Vec<u8> = (0..900_000u64).map(|i| ((i * i) >> 7) as u8 | 1).collect();
            bytes[start..end].fill(0);
            // Zeros that are written go before and after the hole.
            let hole = start + edge..end - edge;
            let whole = padding(&&bytes[..]).unwrap();
            assert_eq!(padding(&Sparse(bytes, hole)).unwrap(), whole);
            assert_eq!(whole.bytes(), (end - start) as u64);
        }
    }
}
