//! Content-defined chunking: bytes in, cut points out. Pure: no I/O, and no state except its parameters.
//!
//! FastCDC 2020 (Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication Based
//! Storage Systems", IEEE TPDS 31(9), 2020) through the `fastcdc` crate. A cut depends only on the bytes
//! since the previous cut, at most `max` of them; so chunking can stop at any cut and continue from there.
//!
//! [`tttd`] cuts for one similarity method only; the store does not use it.

pub mod tttd;

use fastcdc::v2020::FastCDC;
use serde::{Deserialize, Serialize};

/// Chunk sizes in bytes, fixed when a store is created: other sizes give other chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkParams {
    /// Minimum length, except for a file's last chunk.
    pub min: u32,
    /// Target length.
    pub avg: u32,
    /// Maximum length.
    pub max: u32,
}

/// An unusable average chunk size.
#[derive(Debug, thiserror::Error)]
#[error("chunk size {avg}: expected a power of two from 1024 to 1048576 bytes")]
pub struct ChunkParamsError {
    avg: u64,
}

impl Default for ChunkParams {
    /// Uses 16 KiB on average.
    fn default() -> Self {
        ChunkParams { min: 4 << 10, avg: 16 << 10, max: 64 << 10 }
    }
}

impl ChunkParams {
    /// Derives sizes from an average: a quarter of it as minimum, four times it as maximum.
    pub fn with_average(avg: u64) -> Result<ChunkParams, ChunkParamsError> {
        if !avg.is_power_of_two() || !(1 << 10..=1 << 20).contains(&avg) {
            return Err(ChunkParamsError { avg });
        }
        let avg = avg as u32;
        Ok(ChunkParams { min: avg / 4, avg, max: avg * 4 })
    }

    /// Returns the lengths of the chunks of `bytes`, in order.
    ///
    /// With `last` the bytes end the file, and the chunks cover all of them. Without it, only cuts that
    /// further bytes cannot move are made, so up to `max - 1` bytes at the end stay uncovered: pass those
    /// again before the next bytes.
    pub fn cut(&self, bytes: &[u8], last: bool) -> Vec<u32> {
        let mut lens = Vec::with_capacity(bytes.len() / self.avg as usize + 1);
        let cdc = FastCDC::new(bytes, self.min as usize, self.avg as usize, self.max as usize);
        let mut start = 0;
        while start < bytes.len() {
            let remaining = bytes.len() - start;
            if !last && remaining < self.max as usize {
                break;
            }
            let (_, end) = cdc.cut(start, remaining);
            lens.push((end - start) as u32);
            start = end;
        }
        lens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Chunking in steps finds the same cuts as chunking at once: what growing files rely on.
        #[test]
        fn steps_do_not_move_cuts(seed: u64, len in 0usize..300_000, step in 1usize..200_000) {
            let mut x = seed | 1;
            let bytes: Vec<u8> = (0..len).map(|_| { x ^= x << 13; x ^= x >> 7; x ^= x << 17; x as u8 }).collect();
            let params = ChunkParams::with_average(4096).unwrap();
            let whole = params.cut(&bytes, true);
            let (mut steps, mut done, mut seen) = (Vec::new(), 0, 0);
            while seen < len {
                seen = (seen + step).min(len);
                let lens = params.cut(&bytes[done..seen], false);
                done += lens.iter().sum::<u32>() as usize;
                steps.extend(lens);
            }
            steps.extend(params.cut(&bytes[done..], true));
            prop_assert_eq!(&steps, &whole);
            prop_assert_eq!(whole.iter().sum::<u32>() as usize, len);
            let (_, but_last) = whole.split_last().map(|(l, r)| (Some(l), r)).unwrap_or((None, &[]));
            prop_assert!(but_last.iter().all(|&l| (params.min..=params.max).contains(&l)));
        }
    }

    #[test]
    fn averages_out_of_range_are_refused() {
        for avg in [0, 1, 1000, 512, 2 << 20, 1 << 40] {
            assert!(ChunkParams::with_average(avg).is_err(), "{avg}");
        }
    }
}
