//! Prefix codes: short words for symbols that are frequent in a block.
//!
//! Huffman's code (Huffman 1952, "A method for the construction of minimum-redundancy codes") in its canonical form, so that
//! the lengths of the words determine the words. Lengths come before the block. Words have at most [`LEN_MAX`] bits, so that
//! one look-up in a table of 256 entries reads a word.
//!
//! Invariant: lengths that are read give words that are no prefixes of each other, or they are rejected.

use super::bits::{BitReader, BitWriter};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of symbols.
pub(super) const SYMBOLS: usize = 34;
/// Bits of the longest word.
const LEN_MAX: u32 = 8;
/// Bits for a length, 0 (not used) to [`LEN_MAX`], and for the number of lengths.
const LEN_BITS: u32 = 4;
const COUNT_BITS: u32 = SYMBOLS.ilog2() + 1;

/// Length of the word of each symbol; 0 if it has none.
pub(super) struct PrefixCode {
    lens: [u8; SYMBOLS],
    words: [u8; SYMBOLS],
}

impl PrefixCode {
    /// Makes the code for symbols with these frequencies.
    pub(super) fn of(mut counts: [u64; SYMBOLS]) -> PrefixCode {
        loop {
            let lens = huffman(&counts);
            if lens.iter().all(|&len| u32::from(len) <= LEN_MAX) {
                return PrefixCode { lens, words: words(&lens) };
            }
            // Makes the frequencies more equal until no word is too long.
            counts.iter_mut().for_each(|count| *count = count.div_ceil(4));
        }
    }

    pub(super) fn put(&self, symbol: usize, bits: &mut BitWriter) {
        debug_assert!(self.lens[symbol] > 0);
        bits.put(self.words[symbol].into(), self.lens[symbol].into());
    }

    pub(super) fn put_lens(&self, bits: &mut BitWriter) {
        let used = SYMBOLS - self.lens.iter().rev().take_while(|&&len| len == 0).count();
        bits.put(used as u64, COUNT_BITS);
        self.lens[..used].iter().for_each(|&len| bits.put(len.into(), LEN_BITS));
    }
}

/// Reads words: for each possible value of the next bits, the symbol and the length of its word.
pub(super) struct PrefixReader([(u8, u8); 1 << LEN_MAX]);

impl PrefixReader {
    /// Reads the lengths written by [`PrefixCode::put_lens`].
    pub(super) fn take(bits: &mut BitReader<'_>) -> Option<PrefixReader> {
        let used = bits.take(COUNT_BITS).filter(|&used| used <= SYMBOLS as u64)?;
        let mut lens = [0; SYMBOLS];
        for len in &mut lens[..used as usize] {
            *len = bits.take(LEN_BITS).filter(|&len| len <= LEN_MAX.into())? as u8;
        }
        let entries = |len: u8| if len == 0 { 0 } else { 1usize << (LEN_MAX - u32::from(len)) };
        if lens.iter().map(|&len| entries(len)).sum::<usize>() > 1 << LEN_MAX {
            return None;
        }
        // Bits that begin no word take none.
        let (mut table, mut at) = ([(u8::MAX, 0); 1 << LEN_MAX], 0);
        for (symbol, len) in canonical(&lens) {
            table[at..at + entries(len)].fill((symbol as u8, len));
            at += entries(len);
        }
        Some(PrefixReader(table))
    }

    /// Returns the next symbol.
    #[inline]
    pub(super) fn symbol(&self, bits: &mut BitReader<'_>) -> Option<usize> {
        let (symbol, len) = self.0[bits.peek(LEN_MAX) as usize];
        if len == 0 {
            return None;
        }
        bits.take(len.into())?;
        Some(symbol.into())
    }
}

/// Returns the symbols that have a word, in the order of the words.
fn canonical(lens: &[u8; SYMBOLS]) -> impl Iterator<Item = (usize, u8)> + '_ {
    (1..=LEN_MAX as u8).flat_map(move |len| {
        lens.iter().enumerate().filter(move |(_, other)| **other == len).map(move |(symbol, _)| (symbol, len))
    })
}

fn words(lens: &[u8; SYMBOLS]) -> [u8; SYMBOLS] {
    let (mut words, mut next) = ([0; SYMBOLS], 0u32);
    for (symbol, len) in canonical(lens) {
        words[symbol] = (next >> (LEN_MAX - u32::from(len))) as u8;
        next += 1 << (LEN_MAX - u32::from(len));
    }
    words
}

/// Returns the lengths of Huffman's words. A single symbol has a word of one bit.
fn huffman(counts: &[u64; SYMBOLS]) -> [u8; SYMBOLS] {
    let mut lens = [0; SYMBOLS];
    // The second field of a tree is the set of its symbols, as bits.
    let used = (0..SYMBOLS).filter(|&symbol| counts[symbol] > 0);
    let mut trees: BinaryHeap<_> = used.map(|symbol| Reverse((counts[symbol], 1u64 << symbol))).collect();
    if let (1, Some(Reverse((_, symbol)))) = (trees.len(), trees.peek()) {
        lens[symbol.trailing_zeros() as usize] = 1;
    }
    while let (Some(Reverse((a, symbols))), Some(Reverse((b, others)))) = (trees.pop(), trees.pop()) {
        let both = symbols | others;
        (0..SYMBOLS).filter(|symbol| both >> symbol & 1 == 1).for_each(|symbol| lens[symbol] += 1);
        trees.push(Reverse((a + b, both)));
    }
    lens
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn coded(symbols: &[usize]) -> Vec<u8> {
        let mut counts = [0; SYMBOLS];
        symbols.iter().for_each(|&symbol| counts[symbol] += 1);
        let code = PrefixCode::of(counts);
        let mut bits = BitWriter::new(Vec::new());
        code.put_lens(&mut bits);
        symbols.iter().for_each(|&symbol| code.put(symbol, &mut bits));
        bits.finish()
    }

    fn decoded(bytes: &[u8], count: usize) -> Option<Vec<usize>> {
        let mut bits = BitReader::new(bytes);
        let reader = PrefixReader::take(&mut bits)?;
        (0..count).map(|_| reader.symbol(&mut bits)).collect()
    }

    #[test]
    fn frequent_symbols_take_few_bits() {
        let symbols: Vec<_> =
            (0..8000usize).map(|i| if i % 16 == 0 { i / 16 % SYMBOLS } else { 7 }).collect();
        let bits = coded(&symbols).len() * 8;
        // 15 of 16 are one, the others one of 34: 0.34 + 5.1 / 16 bits, which words of whole bits have in 1.4.
        assert!(bits < 8000 * 3 / 2, "{bits}");
    }

    #[test]
    fn words_that_begin_each_other_are_refused() {
        let mut bits = BitWriter::new(Vec::new());
        bits.put(3, COUNT_BITS);
        (0..3).for_each(|_| bits.put(1, LEN_BITS));
        assert!(decoded(&bits.finish(), 0).is_none());
    }

    proptest! {
        #[test]
        fn round_trips(symbols in prop::collection::vec((0..SYMBOLS, 0u32..14), 0..60)) {
            // Some of them thousands of times as often as others.
            let symbols: Vec<_> = symbols.iter().flat_map(|&(symbol, log)| vec![symbol; 1 << log]).collect();
            prop_assert_eq!(decoded(&coded(&symbols), symbols.len()), Some(symbols));
        }

        #[test]
        fn damage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            decoded(&bytes, 100);
        }
    }
}
