//! TTTD: two thresholds, two divisors (Eshghi and Tang, "A framework for analyzing and improving
//! content-based chunking algorithms", HP Laboratories TR 2005-30). As with the sliding window of LBFS, a
//! chunk ends where the hash of the last bytes hits the main divisor. No chunk is shorter than one threshold
//! or longer than the other. At the upper threshold the chunk ends at the last hit of the backup divisor,
//! which hits twice as often, so that content also decides most forced cuts.
//!
//! Invariants: a cut depends only on the bytes since the previous cut, at most `max` of them. The window is
//! never longer than the shortest chunk, so only the bytes before a position decide whether it is a hit.
//!
//! The paper requires `hash mod D = D - 1`; here the hash must be in the lowest D-th of its values. That is
//! as likely, needs no division, and makes every main hit a backup hit. The hash is a cyclic polynomial
//! (Cohen 1997).

/// Target chunk lengths in bytes, from Forman, Eshghi and Chiocchetti 2005 (section 3.1).
pub const TARGETS: [u32; 4] = [100, 256, 1000, 5000];
const TARGET_MIN: u32 = 64;
const TARGET_MAX: u32 = 1 << 20;
/// Bytes that decide on a cut.
const WINDOW_BYTES: u32 = 48;

/// Thresholds and divisors; other ones give other chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tttd {
    target: u32,
    min: u32,
    max: u32,
    window: u32,
    /// The hash of a main hit is at most this.
    main: u64,
    /// The hash of a backup hit is at most this.
    backup: u64,
}

/// An unusable target length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chunk length {target}: expected from {TARGET_MIN} to {TARGET_MAX} bytes")]
pub struct TttdError {
    target: u32,
}

impl Tttd {
    /// The paper's parameters for chunks of about 1,000 bytes (thresholds 460 and 2,800, divisors 540 and 270),
    /// scaled to `target` bytes.
    pub fn with_target(target: u32) -> Result<Tttd, TttdError> {
        if !(TARGET_MIN..=TARGET_MAX).contains(&target) {
            return Err(TttdError { target });
        }
        let scaled = |of_1000: u64| (u64::from(target) * of_1000 / 1000) as u32;
        let min = scaled(460);
        Ok(Tttd {
            target,
            min,
            max: scaled(2800),
            window: WINDOW_BYTES.min(min),
            main: u64::MAX / u64::from(scaled(540)),
            backup: u64::MAX / u64::from(scaled(270)),
        })
    }

    /// Returns the target length, in bytes.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Returns the minimum length, except for a file's last chunk.
    pub fn min(&self) -> u32 {
        self.min
    }

    /// Returns the maximum length.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Returns the lengths of the chunks of `bytes`, in order.
    ///
    /// With `last` the bytes end the file, and the chunks cover all of them. Without it, only cuts that
    /// further bytes cannot move are made, so up to `max - 1` bytes at the end stay uncovered: pass those
    /// again before the next bytes.
    pub fn cut(&self, bytes: &[u8], last: bool) -> Vec<u32> {
        let mut lens = Vec::with_capacity(bytes.len() / self.target as usize + 1);
        let mut rest = bytes;
        while !rest.is_empty() && (last || rest.len() >= self.max as usize) {
            let len = self.first(rest);
            lens.push(len as u32);
            rest = &rest[len..];
        }
        lens
    }

    /// Returns the length of the first chunk of `bytes`, which end the file if there are fewer than `max`.
    fn first(&self, bytes: &[u8]) -> usize {
        let (min, max, window) = (self.min as usize, self.max as usize, self.window as usize);
        if bytes.len() <= min {
            return bytes.len();
        }
        let bytes = &bytes[..bytes.len().min(max)];
        let start = min - window;
        let mut hash =
            bytes[start..min].iter().fold(0, |hash: u64, &byte| hash.rotate_left(1) ^ entering(byte));
        let (mut len, mut fallback) = (min, None);
        let entering_bytes = bytes[min..].iter().zip(&bytes[start..]);
        for (&new, &old) in entering_bytes {
            let value = hash.wrapping_mul(SPREAD);
            if value <= self.backup {
                if value <= self.main {
                    return len;
                }
                fallback = Some(len);
            }
            hash = hash.rotate_left(1) ^ entering(old).rotate_left(self.window) ^ entering(new);
            len += 1;
        }
        if len < max || hash.wrapping_mul(SPREAD) <= self.backup { len } else { fallback.unwrap_or(len) }
    }
}

const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
static ENTERING: [u64; 256] = table();

fn entering(byte: u8) -> u64 {
    ENTERING[usize::from(byte)]
}

/// Pseudo-random numbers: the outputs of SplitMix64.
const fn table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut seed = 0x7474_7464_0000_0000u64;
    let mut i = 0;
    while i < 256 {
        seed = seed.wrapping_add(SPREAD);
        let mut x = seed;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[i] = x ^ (x >> 31);
        i += 1;
    }
    table
}

/// Seen to fail with: the backup divisor ignored, the window reaching back to the chunk's start, cuts made before `max`
/// bytes are there.
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn mean(lens: &[u32]) -> f64 {
        f64::from(lens.iter().sum::<u32>()) / lens.len() as f64
    }

    proptest! {
        /// Chunking in steps finds the same cuts as chunking at once.
        #[test]
        fn steps_do_not_move_cuts(seed: u64, len in 0usize..60_000, step in 1usize..9_000, target in 64u32..3000) {
            let bytes = noise(len, seed);
            let tttd = Tttd::with_target(target).unwrap();
            let whole = tttd.cut(&bytes, true);
            let (mut steps, mut done, mut seen) = (Vec::new(), 0, 0);
            while seen < len {
                seen = (seen + step).min(len);
                let lens = tttd.cut(&bytes[done..seen], false);
                done += lens.iter().sum::<u32>() as usize;
                steps.extend(lens);
            }
            steps.extend(tttd.cut(&bytes[done..], true));
            prop_assert_eq!(&steps, &whole);
            prop_assert_eq!(whole.iter().sum::<u32>() as usize, len);
            let but_last = &whole[..whole.len().saturating_sub(1)];
            prop_assert!(but_last.iter().all(|&l| (tttd.min()..=tttd.max()).contains(&l)));
        }

        /// What follows an edit is cut as before it, from the first common cut on: one cut in each 2.8 targets, and
        /// they meet soon.
        #[test]
        fn cuts_meet_again_after_an_edit(seed: u64, target in prop::sample::select(&TARGETS[..])) {
            let bytes = noise(60 * target as usize, seed);
            let mut edited = bytes.clone();
            edited.splice(100..130, *b"something else, of other length");
            let tttd = Tttd::with_target(target).unwrap();
            let ends = |bytes: &[u8]| {
                let cuts = tttd.cut(bytes, true).into_iter().scan(0, |at, len| { *at += len as usize; Some(*at) });
                cuts.map(|at| bytes.len() - at).collect::<Vec<_>>()
            };
            let (a, b) = (ends(&bytes), ends(&edited));
            let same = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
            prop_assert!(same * 2 > a.len(), "{} of {} cuts, seed {seed}", same, a.len());
        }
    }

    #[test]
    fn chunks_are_as_long_as_asked_for() {
        for target in TARGETS {
            let lens = Tttd::with_target(target).unwrap().cut(&noise(800 * target as usize, 7), true);
            let ratio = mean(&lens) / f64::from(target);
            assert!((0.9..1.1).contains(&ratio), "{target}: {} on average", mean(&lens));
        }
    }

    /// The second divisor: of the chunks that the main one does not end, content ends most.
    #[test]
    fn few_chunks_are_cut_at_the_upper_threshold() {
        let tttd = Tttd::with_target(1000).unwrap();
        let only_main = Tttd { backup: tttd.main, ..tttd };
        let bytes = noise(4 << 20, 8);
        let forced = |tttd: &Tttd| tttd.cut(&bytes, true).iter().filter(|&&len| len == tttd.max()).count();
        let (with, without) = (forced(&tttd), forced(&only_main));
        assert!(without > 30 && with * 10 < without, "{with} against {without}");
    }

    /// A main hit ends the chunk; a backup hit only if nothing better comes: the rule, said slowly.
    #[test]
    fn cuts_follow_the_rule() {
        let tttd = Tttd::with_target(100).unwrap();
        let bytes = noise(200_000, 9);
        let hash = |end: usize| {
            let window = &bytes[end - tttd.window as usize..end];
            window.iter().fold(0, |h: u64, &b| h.rotate_left(1) ^ entering(b)).wrapping_mul(SPREAD)
        };
        let mut start = 0;
        for len in tttd.cut(&bytes, true) {
            let most = (bytes.len() - start).min(tttd.max() as usize);
            let mut places = tttd.min() as usize..=most;
            let main = places.clone().find(|len| hash(start + len) <= tttd.main);
            let mut backup = || places.rfind(|len| hash(start + len) <= tttd.backup);
            let at_threshold = most == tttd.max() as usize;
            let expected = main.or_else(|| backup().filter(|_| at_threshold)).unwrap_or(most);
            assert_eq!(len as usize, expected, "at {start}");
            start += expected;
        }
    }

    #[test]
    fn one_byte_over_and_over_is_cut_at_a_threshold() {
        let tttd = Tttd::with_target(100).unwrap();
        let lens = tttd.cut(&[b' '; 10_000], true);
        assert!(lens.len() >= 35 && lens[..lens.len() - 1].iter().all(|len| *len == lens[0]), "{lens:?}");
    }

    #[test]
    fn targets_out_of_range_are_refused() {
        for target in [0, 1, 63, (1 << 20) + 1, u32::MAX] {
            let error = Tttd::with_target(target).unwrap_err();
            assert!(error.to_string().contains("expected from 64 to 1048576"), "{error}");
        }
    }
}
