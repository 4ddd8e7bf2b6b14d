//! Exact truth, by other means than the index and `exact`: every substring of 32 and of 64 bytes of every content is looked
//! up among those of the queries, and a byte of a query is covered if one that is found holds it. Padding, byte by byte as
//! `docs/similarity.md` defines it, counts neither as covered nor in the size; what is left of a match beside it is there
//! if it has 32 bytes. A second truth leaves out templates too: bytes in substrings of 32 bytes that more than 500 contents
//! have, which is what all pairs do not follow. A query of which less than a tenth is left has no pairs in it.
//!
//! Substrings are told apart by polynomials modulo 2^61 - 1: of all that a run compares, one in some thousands of runs is
//! taken for another.

use crate::corpus::File;
use std::collections::HashMap;

/// Bytes of queries that are looked for at a time.
const BATCH_BYTES: usize = 8 << 20;
/// Stretches of so many bytes that repeat every `PERIOD` are padding.
const PADDING: usize = 64;
const PERIOD: usize = 16;
/// What is left of a match.
const LEFT_MIN: usize = 32;
/// A substring that more contents have is of a template.
const TEMPLATE_CONTENTS: u32 = 500;
const PRIME: u64 = (1 << 61) - 1;
const BASE: u64 = 0x0f1e_2d3c_4b5a_6978;
/// Bits of the filter before the map.
const FILTER_BITS: u32 = 27;

/// What a content has of a query, as shares of the query's bytes.
#[derive(Clone, Copy, Default)]
pub struct Share {
    /// In substrings of 32 bytes or more.
    pub of_32: f64,
    /// In substrings of 64 bytes or more.
    pub of_64: f64,
    /// The same with padding, in both and in the size.
    pub raw: f64,
    /// The same as `of_64` without templates, in both and in the size.
    pub own: f64,
}

/// Of each query, by its place among the queries, the contents that have any of it.
pub type Truth = Vec<HashMap<usize, Share>>;

pub fn described(truth: &Truth) -> String {
    let count = |reach: &dyn Fn(&Share) -> f64, min| {
        truth.iter().flat_map(HashMap::values).filter(|share| reach(share) >= min).count()
    };
    let row = |reach: &dyn Fn(&Share) -> f64| [0.25, 0.5, 0.8].map(|min| count(reach, min));
    format!(
        "true pairs at 25, 50, 80%: {:?} in pieces of 64 bytes and more, {:?} if padding counts, {:?} without templates, {:?} of 32 and more",
        row(&|share| share.of_64),
        row(&|share| share.raw),
        row(&|share| share.own),
        row(&|share| share.of_32)
    )
}

pub fn truth(files: &[File], queries: &[usize]) -> Truth {
    let mut truth = vec![HashMap::new(); queries.len()];
    let mut from = 0;
    while from < queries.len() {
        let (mut to, mut bytes) = (from, 0);
        while to < queries.len() && (to == from || bytes < BATCH_BYTES) {
            bytes += files[queries[to]].bytes.len();
            to += 1;
        }
        let mut templates = Vec::new();
        for gram in [32, 64] {
            let batch = Batch::of(files, &queries[from..to], gram);
            let mut covered = Cover::of(&batch);
            if gram == 32 {
                templates.clone_from(&batch.padding);
            }
            for (content, file) in files.iter().enumerate() {
                covered.look(&batch, &file.bytes);
                for (query, share) in covered.take(&batch, &templates) {
                    if queries[from + query] != content {
                        let entry: &mut Share = truth[from + query].entry(content).or_default();
                        match gram {
                            32 => entry.of_32 = share.of_64,
                            _ => *entry = Share { of_32: entry.of_32, ..share },
                        }
                    }
                }
            }
            if gram == 32 {
                templates = covered.templates(&batch);
            }
        }
        from = to;
    }
    truth
}

/// Which bytes are padding.
pub fn padding(bytes: &[u8]) -> Vec<bool> {
    let mut is_padding = vec![false; bytes.len()];
    let mut run = 0;
    for at in PERIOD..bytes.len() {
        run = if bytes[at] == bytes[at - PERIOD] { run + 1 } else { 0 };
        if run + PERIOD >= PADDING {
            is_padding[at + 1 - PADDING..=at].fill(true);
        }
    }
    is_padding
}

/// The grams of some queries, each with the places at which it starts.
struct Batch {
    gram: usize,
    /// Where each query starts: at multiples of 64, so that none shares a word of the cover with another.
    starts: Vec<usize>,
    padding: Vec<Vec<bool>>,
    bits: usize,
    ids: HashMap<u64, u32>,
    /// Places of gram `id`: `places[bounds[id]..bounds[id + 1]]`.
    bounds: Vec<u32>,
    places: Vec<u32>,
    filter: Vec<u64>,
}

impl Batch {
    fn of(files: &[File], queries: &[usize], gram: usize) -> Batch {
        let (mut all, mut starts, mut paddings, mut bits) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for &query in queries {
            let bytes = &files[query].bytes;
            grams(bytes, gram, |at, hash| all.push((hash, (bits + at) as u32)));
            starts.push(bits);
            paddings.push(padding(bytes));
            bits += bytes.len().next_multiple_of(64);
        }
        all.sort_unstable();
        let (mut ids, mut bounds, mut places) = (HashMap::new(), vec![0], Vec::with_capacity(all.len()));
        let mut filter = vec![0u64; 1 << (FILTER_BITS - 6)];
        for same in all.chunk_by(|x, y| x.0 == y.0) {
            ids.insert(same[0].0, ids.len() as u32);
            places.extend(same.iter().map(|(_, place)| place));
            bounds.push(places.len() as u32);
            let (word, bit) = filter_place(same[0].0);
            filter[word] |= bit;
        }
        Batch { gram, starts, padding: paddings, bits, ids, bounds, places, filter }
    }

    fn id(&self, hash: u64) -> Option<usize> {
        let (word, bit) = filter_place(hash);
        if self.filter[word] & bit == 0 {
            return None;
        }
        self.ids.get(&hash).map(|&id| id as usize)
    }
}

fn filter_place(hash: u64) -> (usize, u64) {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - FILTER_BITS);
    (mixed as usize / 64, 1 << (mixed % 64))
}

/// Where grams of one content start in the queries.
struct Cover {
    starts: Vec<u64>,
    seen: Vec<bool>,
    /// How many contents have each gram.
    contents: Vec<u32>,
}

impl Cover {
    fn of(batch: &Batch) -> Cover {
        Cover {
            starts: vec![0; batch.bits / 64],
            seen: vec![false; batch.ids.len()],
            contents: vec![0; batch.ids.len()],
        }
    }

    fn look(&mut self, batch: &Batch, bytes: &[u8]) {
        let mut found = Vec::new();
        grams(bytes, batch.gram, |_, hash| {
            if let Some(id) = batch.id(hash)
                && !std::mem::replace(&mut self.seen[id], true)
            {
                found.push(id);
            }
        });
        for id in found {
            self.seen[id] = false;
            self.contents[id] += 1;
            for &place in &batch.places[batch.bounds[id] as usize..batch.bounds[id + 1] as usize] {
                self.starts[place as usize / 64] |= 1 << (place % 64);
            }
        }
    }

    /// Of each query which bytes are padding or of a template, by what was looked at.
    fn templates(&self, batch: &Batch) -> Vec<Vec<bool>> {
        let mut templates = batch.padding.clone();
        for (id, _) in self.contents.iter().enumerate().filter(|(_, count)| **count > TEMPLATE_CONTENTS) {
            for &place in &batch.places[batch.bounds[id] as usize..batch.bounds[id + 1] as usize] {
                let query = batch.starts.partition_point(|&start| start <= place as usize) - 1;
                let at = place as usize - batch.starts[query];
                templates[query][at..at + batch.gram].fill(true);
            }
        }
        templates
    }

    /// The shares of each query that are covered, where any is, as `Share` has them of one gram; and starts anew.
    fn take(&mut self, batch: &Batch, templates: &[Vec<bool>]) -> Vec<(usize, Share)> {
        let mut shares = Vec::new();
        for (query, (&start, padding)) in batch.starts.iter().zip(&batch.padding).enumerate() {
            let words = &mut self.starts[start / 64..(start + padding.len()).div_ceil(64)];
            if words.iter().all(|word| *word == 0) {
                continue;
            }
            let of_64 = share_beside(words, batch.gram, padding, 1);
            let own = share_beside(words, batch.gram, &templates[query], padding.len() / 10);
            let raw = share_beside(words, batch.gram, &vec![false; padding.len()], 1);
            words.fill(0);
            shares.push((query, Share { of_32: 0.0, of_64, raw, own }));
        }
        shares
    }
}

/// The share of a query's bytes that is covered by grams of which `starts` has the places, without those that are `left_out`;
/// nothing if fewer than `min` are not.
fn share_beside(starts: &[u64], gram: usize, left_out: &[bool], min: usize) -> f64 {
    let (mut left, mut run, mut end) = (0, 0, 0);
    for (at, is_left_out) in left_out.iter().enumerate() {
        if starts[at / 64] >> (at % 64) & 1 == 1 {
            end = at + gram;
        }
        run = if at < end && !is_left_out { run + 1 } else { 0 };
        left += match run {
            LEFT_MIN => LEFT_MIN,
            more if more > LEFT_MIN => 1,
            _ => 0,
        };
    }
    let counted = left_out.iter().filter(|is_left_out| !**is_left_out).count();
    if counted < min { 0.0 } else { left as f64 / counted.max(1) as f64 }
}

fn times(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let folded = (product as u64 & PRIME) + (product >> 61) as u64;
    if folded >= PRIME { folded - PRIME } else { folded }
}

/// Calls `see` with the place and the hash of each gram.
fn grams(bytes: &[u8], gram: usize, mut see: impl FnMut(usize, u64)) {
    if bytes.len() < gram {
        return;
    }
    let power = (0..gram).fold(1, |power, _| times(power, BASE));
    let leaving: [u64; 256] = std::array::from_fn(|byte| PRIME - times(power, byte as u64 + 1));
    let step = |hash: u64, byte: u8| times(hash, BASE) + u64::from(byte) + 1;
    let mut hash = bytes[..gram].iter().fold(0, |hash, &byte| step(hash, byte) % PRIME);
    see(0, hash);
    for (at, pair) in bytes[gram..].iter().zip(bytes).enumerate() {
        hash = (step(hash, *pair.0) + leaving[usize::from(*pair.1)]) % PRIME;
        see(at + 1, hash);
    }
}
