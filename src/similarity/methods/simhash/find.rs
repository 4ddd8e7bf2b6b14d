//! SimFind (section 4.2 of the paper): keys near enough, then sizes, then sum tables; bytes decide if the tables are the
//! same.

use super::{SimHash, SimSketch};
use std::io;

/// Returns whether two files have the same bytes.
pub type SameBytes<'a> = &'a mut dyn FnMut(u32, u32) -> io::Result<bool>;

/// Files in the order of their keys.
#[derive(Debug)]
pub struct SimFind<'a> {
    method: &'a SimHash,
    files: &'a [SimSketch],
    /// Key and place in `files`, sorted.
    keys: Vec<(u64, u32)>,
}

/// A file that is similar to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The place of the queried file; in pairs the lower one.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// Distance of their sum tables.
    pub distance: u64,
    /// Whether they are identical.
    pub identical: bool,
}

/// How many files passed each filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys near enough.
    pub key_hits: u64,
    /// And sizes near enough.
    pub size_hits: u64,
    /// And sum tables near enough.
    pub sum_hits: u64,
}

impl<'a> SimFind<'a> {
    /// Sorts the keys of `files`; empty ones have none.
    pub fn new(method: &'a SimHash, files: &'a [SimSketch]) -> SimFind<'a> {
        let with_bytes = files.iter().enumerate().filter(|(_, sketch)| sketch.size > 0);
        let mut keys: Vec<_> = with_bytes.map(|(at, sketch)| (method.key_of(sketch), at as u32)).collect();
        keys.sort_unstable();
        SimFind { method, files, keys }
    }

    /// Returns the files similar to one file, by distance. Two look-ups in the sorted keys, then a step for each key that is
    /// near enough.
    pub fn similar(&self, file: u32, same: SameBytes<'_>, counts: &mut Counts) -> io::Result<Vec<Match>> {
        let a = &self.files[file as usize];
        let mut found = Vec::new();
        if a.size == 0 {
            return Ok(found);
        }
        let near = self.method.around(a);
        let from = self.keys.partition_point(|(key, _)| key < near.start());
        let to = self.keys.partition_point(|(key, _)| key <= near.end());
        for &(_, other) in self.keys[from..to].iter().filter(|(_, other)| *other != file) {
            counts.key_hits += 1;
            let b = &self.files[other as usize];
            if !self.method.sizes_fit(a, b) {
                continue;
            }
            counts.size_hits += 1;
            let Some(distance) = self.method.fitting_distance(a, b) else { continue };
            counts.sum_hits += 1;
            let identical = distance == 0 && a.size == b.size && same(file, other)?;
            found.push(Match { a: file, b: other, distance, identical });
        }
        found.sort_unstable_by_key(|found| (found.distance, !found.identical, found.b));
        Ok(found)
    }

    /// Returns all pairs of similar files, each once; found from either side.
    pub fn pairs(&self, same: SameBytes<'_>, counts: &mut Counts) -> io::Result<Vec<Match>> {
        let mut pairs = Vec::new();
        // A pair is mostly found from both sides; its bytes are compared once.
        let mut known = std::collections::HashMap::new();
        for file in 0..self.files.len() as u32 {
            let mut once = |a: u32, b: u32| match known.get(&(b, a)) {
                Some(&identical) => Ok(identical),
                None => {
                    let identical = same(a, b)?;
                    known.insert((a, b), identical);
                    Ok(identical)
                }
            };
            pairs.extend(self.similar(file, &mut once, counts)?);
        }
        pairs.iter_mut().for_each(|found| (found.a, found.b) = (found.a.min(found.b), found.a.max(found.b)));
        pairs.sort_unstable_by_key(|found| (found.a, found.b));
        pairs.dedup();
        Ok(pairs)
    }
}
