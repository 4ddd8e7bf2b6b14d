//! Bit strings, most significant bit first, with Rice codes for gaps.
//!
//! Rice coding (Rice and Plaunt 1971): a number is its quotient by `2^k` in unary and the rest in `k` bits.
//! It comes within half a bit of the entropy of gaps between evenly spread features. A quotient of
//! [`UNARY_MAX`] or more is an escape: the number follows in 48 bits.
//! Numbers without a known spread are written as their length in bits and the bits after their leading one.

/// Longest unary part.
const UNARY_MAX: u64 = 20;
const ESCAPED_BITS: u32 = 48;

/// Returns how many bits the code for `value` takes.
pub(super) fn rice_bits(value: u64, k: u32) -> u64 {
    match value >> k {
        UNARY_MAX.. => UNARY_MAX + u64::from(ESCAPED_BITS),
        quotient => quotient + 1 + u64::from(k),
    }
}

pub(super) struct BitWriter {
    out: Vec<u8>,
    held: u64,
    count: u32,
}

impl BitWriter {
    /// Appends to `out`.
    pub(super) fn new(out: Vec<u8>) -> BitWriter {
        BitWriter { out, held: 0, count: 0 }
    }

    /// Writes the low `width` (0 to 48) bits of `value`, whose other bits are zero.
    pub(super) fn put(&mut self, value: u64, width: u32) {
        debug_assert!(width <= 48 && value >> width == 0);
        self.held = self.held << width | value;
        self.count += width;
        while self.count >= 8 {
            self.count -= 8;
            self.out.push((self.held >> self.count) as u8);
        }
    }

    pub(super) fn put_rice(&mut self, value: u64, k: u32) {
        let quotient = value >> k;
        if quotient >= UNARY_MAX {
            self.put((1 << UNARY_MAX) - 1, UNARY_MAX as u32);
            self.put(value, ESCAPED_BITS);
        } else {
            self.put(((1 << quotient) - 1) << 1, quotient as u32 + 1);
            self.put(value & ((1 << k) - 1), k);
        }
    }

    /// Writes any number, with its length in `len_bits` bits before it.
    pub(super) fn put_number(&mut self, value: u64, len_bits: u32) {
        let len = 64 - value.leading_zeros();
        self.put(len.into(), len_bits);
        let low = len.saturating_sub(1);
        let rest = value & ((1 << low) - 1);
        self.put(rest >> low.min(32), low.saturating_sub(32));
        self.put(rest & u64::from(u32::MAX), low.min(32));
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
        self.out
    }
}

pub(super) struct BitReader<'a> {
    rest: &'a [u8],
    /// The next `count` bits, at the top.
    held: u64,
    count: u32,
}

impl BitReader<'_> {
    pub(super) fn new(rest: &[u8]) -> BitReader<'_> {
        BitReader { rest, held: 0, count: 0 }
    }

    #[inline]
    fn fill(&mut self) {
        if let Some((word, _)) = self.rest.split_first_chunk::<8>() {
            let bytes = (63 - self.count) / 8;
            // Bits past `count` are correct already; the next fill writes the same bits again.
            self.held |= u64::from_be_bytes(*word) >> self.count;
            self.count += 8 * bytes;
            self.rest = &self.rest[bytes as usize..];
        } else {
            while let (true, Some((&byte, rest))) = (self.count <= 56, self.rest.split_first()) {
                self.held |= u64::from(byte) << (56 - self.count);
                self.count += 8;
                self.rest = rest;
            }
        }
    }

    /// Returns the next `width` (0 to 48) bits, or `None` at the end.
    #[inline]
    pub(super) fn take(&mut self, width: u32) -> Option<u64> {
        if self.count < width {
            self.fill();
            if self.count < width {
                return None;
            }
        }
        let value = self.held >> 1 >> (63 - width);
        self.held <<= width;
        self.count -= width;
        Some(value)
    }

    /// Returns the next `width` (1 to 16) bits without taking them; zeros follow the end.
    #[inline]
    pub(super) fn peek(&mut self, width: u32) -> u64 {
        if self.count < width {
            self.fill();
        }
        self.held >> (64 - width)
    }

    #[inline]
    pub(super) fn take_rice(&mut self, k: u32) -> Option<u64> {
        if self.count <= UNARY_MAX as u32 {
            self.fill();
        }
        let quotient = u64::from(self.held.leading_ones()).min(UNARY_MAX);
        if quotient == UNARY_MAX {
            self.take(UNARY_MAX as u32)?;
            return self.take(ESCAPED_BITS);
        }
        self.take(quotient as u32 + 1)?;
        Some(quotient << k | self.take(k)?)
    }

    #[inline]
    pub(super) fn take_number(&mut self, len_bits: u32) -> Option<u64> {
        let len = self.take(len_bits)? as u32;
        if len == 0 {
            return Some(0);
        }
        let low = (len <= 64).then(|| len - 1)?;
        let high = self.take(low.saturating_sub(32))?;
        Some(1 << low | high << 32 | self.take(low.min(32))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips(values in prop::collection::vec((any::<u64>(), 0u32..64, 0u32..=48, 0u8..3), 0..200)) {
            let mut writer = BitWriter::new(vec![7]);
            let fit = |value: u64, width: u32| value & ((1u64 << width) - 1);
            for &(value, shrink, k, form) in &values {
                let value = value >> shrink;
                match form {
                    0 => writer.put(fit(value, k), k),
                    1 => writer.put_rice(fit(value, 48), k),
                    _ => writer.put_number(value, 7),
                }
            }
            let bytes = writer.finish();
            let mut reader = BitReader::new(&bytes[1..]);
            for &(value, shrink, k, form) in &values {
                let value = value >> shrink;
                let (read, expected) = match form {
                    0 => (reader.take(k), fit(value, k)),
                    1 => (reader.take_rice(k), fit(value, 48)),
                    _ => (reader.take_number(7), value),
                };
                prop_assert_eq!(read, Some(expected));
            }
            prop_assert!(reader.take(8).is_none());
        }
    }
}
