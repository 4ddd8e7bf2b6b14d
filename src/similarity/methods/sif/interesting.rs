//! Interesting sets: files that all have enough fingerprints in common, and are part of no larger such set (section 4).
//!
//! The paper says that finding them is NP-complete and that it has a heuristic, without giving it. This is one (Burdick,
//! Calimlim and Gehrke, "MAFIA", ICDE 2001, sections 3.1 and 3.2): files are added to a set one after the other, which can
//! only shrink the fingerprints in common. A file that has all of those is added at once, so a hundred near-copies are one
//! step, and not 2^100. If all possible additions fit together, all are made at once. The search ends after a limited
//! number of steps, and reports that.

use super::Saved;
use std::collections::HashMap;

/// Limits that make a set interesting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InterestOptions {
    /// Smallest share of the fingerprints of each file that must be common to all, 0 to 1.
    pub share_min: f64,
    /// Fewest fingerprints common to all.
    pub common_min: u64,
    /// Give up after this many steps; a step examines the sets that are common to the files at hand.
    pub steps_max: u64,
}

impl Default for InterestOptions {
    fn default() -> Self {
        InterestOptions { share_min: 0.25, common_min: 5, steps_max: 1_000_000 }
    }
}

/// Files with many fingerprints in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interesting {
    /// Places in [`Saved::files`], ascending; two or more.
    pub files: Vec<u32>,
    /// Fingerprints that all of them have.
    pub common: u64,
}

/// Result of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterestingSets {
    /// No set is part of another. The most fingerprints first, in each and in all of its files together.
    pub sets: Vec<Interesting>,
    /// Whether the limit ended the search: then sets may be missing, and some of these may not be the largest.
    pub cut: bool,
}

struct Search<'a> {
    saved: &'a Saved,
    options: &'a InterestOptions,
    steps: u64,
    found: Vec<Interesting>,
    /// The sets found so far that each file is in.
    found_with: HashMap<u32, Vec<usize>>,
}

impl Saved {
    /// Returns the interesting sets.
    pub fn interesting(&self, options: &InterestOptions) -> InterestingSets {
        let mut search =
            Search { saved: self, options, steps: 0, found: Vec::new(), found_with: HashMap::new() };
        let mut cut = false;
        for (place, sets) in self.sets_of_files().into_iter().enumerate() {
            let place = place as u32;
            if self.files[place as usize].fingers >= search.need(&[place])
                && !search.grow(vec![place], &sets, place)
            {
                cut = true;
                break;
            }
        }
        let mut sets = search.found;
        sets.sort_by_key(|set| (u64::MAX - set.common * set.files.len() as u64, set.files.clone()));
        InterestingSets { sets, cut }
    }
}

impl Search<'_> {
    /// Returns how many fingerprints the files must have in common.
    fn need(&self, files: &[u32]) -> u64 {
        let of = |&place: &u32| {
            (self.options.share_min * self.saved.files[place as usize].fingers as f64).ceil() as u64
        };
        files.iter().map(of).max().unwrap_or(0).max(self.options.common_min).max(1)
    }

    fn count(&self, sets: &[u32]) -> u64 {
        sets.iter().map(|&set| self.saved.sets[set as usize].count).sum()
    }

    /// Returns those of `sets` that `file` is in.
    fn with(&self, sets: &[u32], file: u32) -> Vec<u32> {
        let has = |set: &&u32| self.saved.sets[**set as usize].files.binary_search(&file).is_ok();
        sets.iter().filter(has).copied().collect()
    }

    /// Extends `files`, which have `sets` in common, by files after `after`. Returns false once the limit is reached.
    fn grow(&mut self, mut files: Vec<u32>, sets: &[u32], after: u32) -> bool {
        self.steps += 1 + sets.len() as u64;
        if self.steps > self.options.steps_max {
            return false;
        }
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for &set in sets {
            let set = &self.saved.sets[set as usize];
            set.files.iter().for_each(|&file| *counts.entry(file).or_default() += set.count);
            self.steps += set.files.len() as u64;
        }
        let (common, need) = (self.count(sets), self.need(&files));
        let mut more = Vec::new();
        for (file, count) in counts {
            if files.contains(&file) || count < need.max(self.need(&[file])) {
                continue;
            }
            let belongs = count == common && self.need(&[file]) <= need;
            match file > after {
                // Every larger set could include this file too: it was found together with it.
                false if belongs => return true,
                false => {}
                true if belongs => files.push(file),
                true => more.push(file),
            }
        }
        more.sort_unstable();
        let all: Vec<u32> = files.iter().chain(&more).copied().collect();
        let common_to_all = more.iter().fold(sets.to_vec(), |sets, &file| self.with(&sets, file));
        if self.count(&common_to_all) >= self.need(&all) {
            self.keep(all, &common_to_all);
            return true;
        }
        for file in more {
            let with: Vec<u32> = files.iter().copied().chain([file]).collect();
            let sets = self.with(sets, file);
            if !self.grow(with, &sets, file) {
                return false;
            }
        }
        true
    }

    /// Keeps a set that no later file can extend, unless it is part of one that was found.
    fn keep(&mut self, mut files: Vec<u32>, sets: &[u32]) {
        files.sort_unstable();
        let known = files.first().and_then(|file| self.found_with.get(file));
        let is_part = |at: &usize| files.iter().all(|file| self.found[*at].files.binary_search(file).is_ok());
        if files.len() < 2 || known.is_some_and(|known| known.iter().any(is_part)) {
            return;
        }
        for &file in &files {
            self.found_with.entry(file).or_default().push(self.found.len());
        }
        let common = self.count(sets);
        self.found.push(Interesting { files, common });
    }
}
