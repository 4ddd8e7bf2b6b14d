//! Boilerplate: passages that say nothing about a file's content, such as licences and navigation.
//!
//! Invariants: boilerplate is only ignored. No chunk, sketch or row depends on it, so it can change at any
//! time and applies from the next query on.

use super::exact::Patterns;
use super::gram;
use super::sketch::SketchParams;

/// Passages that do not count.
#[derive(Clone, Debug, Default)]
pub struct Boilerplate {
    /// One after the other.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Features of all grams that a sketch could have of them; sorted.
    features: Vec<u64>,
}

impl Boilerplate {
    /// Makes boilerplate of these passages. O(bytes), 3 bytes of memory for each.
    pub fn new<'a>(passages: impl IntoIterator<Item = &'a [u8]>) -> Boilerplate {
        let mut all = Boilerplate::default();
        passages.into_iter().for_each(|passage| all.add(passage));
        all.features.sort_unstable();
        all.features.dedup();
        all
    }

    fn add(&mut self, passage: &[u8]) {
        let mut grams = Vec::new();
        gram::select(passage, SketchParams::default().level_min, &mut grams);
        self.features.extend(grams.iter().map(|gram| gram.feature()));
        self.bytes.extend_from_slice(passage);
        if !passage.is_empty() {
            self.ends.push(self.bytes.len());
        }
    }

    /// Whether there are no passages.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the passages, to leave them out of comparisons. O(bytes).
    pub fn patterns(&self) -> Patterns<'_> {
        Patterns::new(&self.bytes, &self.ends)
    }

    /// Whether a gram of a passage has this feature.
    pub(super) fn has(&self, feature: u64) -> bool {
        self.features.binary_search(&feature).is_ok()
    }
}

/// Extends the place of a gram, in files that all have it, to the passage around it that at least `files_min` of them have.
/// Each step adds the byte that most of the files agree on that have agreed so far. `None` if they are too few.
///
/// Returns the passage, and how many of the files have all of it.
pub(super) fn passage(files: &[(&[u8], usize)], files_min: usize) -> Option<(Vec<u8>, usize)> {
    let mut agree: Vec<&(&[u8], usize)> = files.iter().collect();
    let (mut before, mut after) = (0, 0);
    for forward in [true, false] {
        loop {
            let byte_of = |(bytes, at): &(&[u8], usize)| match forward {
                true => bytes.get(at + after).copied(),
                false => at.checked_sub(before + 1).map(|at| bytes[at]),
            };
            let mut counts = [0usize; 256];
            agree.iter().filter_map(|file| byte_of(file)).for_each(|byte| counts[usize::from(byte)] += 1);
            let (byte, &count) = counts.iter().enumerate().max_by_key(|(_, count)| **count)?;
            if count < files_min.max(2) {
                break;
            }
            agree.retain(|file| byte_of(file) == Some(byte as u8));
            match forward {
                true => after += 1,
                false => before += 1,
            }
        }
    }
    let (bytes, at) = agree.first()?;
    Some((bytes[at - before..at + after].to_vec(), agree.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_ends_where_too_few_agree() {
        let header = b"/* A header that all of the files have, and long enough for it */";
        let file = |before: &str, after: &str| [before.as_bytes(), header, after.as_bytes()].concat();
        let files =
            [file("x", "common tail, one"), file("yy", "common tail, two"), file("", "else"), file("z", "")];
        let places = [1, 2, 0, 1].map(|start| start + 20);
        let files: Vec<_> = files.iter().map(Vec::as_slice).zip(places).collect();
        assert_eq!(passage(&files, 4).unwrap(), (header.to_vec(), 4));
        let longer = [header.as_slice(), b"common tail, "].concat();
        assert_eq!(passage(&files, 2).unwrap(), (longer, 2));
        assert!(passage(&files[..1], 1).is_none_or(|(passage, _)| passage.is_empty()));
    }
}
