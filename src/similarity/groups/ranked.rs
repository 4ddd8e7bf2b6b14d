/// A set of numbers out of a dense range; each has a rank, its position in the set.
#[derive(Debug, Default)]
pub(super) struct Ranked {
    words: Vec<u64>,
    /// Number of elements of the set before each word.
    before: Vec<u32>,
    len: usize,
}

impl Ranked {
    pub(super) fn insert(&mut self, number: u32) {
        let word = number as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (number % 64);
    }

    /// Counts; to be called after the last insertion and before the first query.
    pub(super) fn finish(&mut self) {
        self.len = 0;
        self.before.clear();
        self.before.reserve_exact(self.words.len());
        for word in &self.words {
            self.before.push(self.len as u32);
            self.len += word.count_ones() as usize;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn rank(&self, number: u32) -> Option<u32> {
        if !self.contains(number) {
            return None;
        }
        let (word, bit) = (number as usize / 64, number % 64);
        Some(self.before[word] + (self.words[word] & ((1 << bit) - 1)).count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_positions() {
        let mut set = Ranked::default();
        let numbers = [0, 1, 63, 64, 65, 1000, 4095];
        numbers.iter().rev().for_each(|&number| set.insert(number));
        set.finish();
        assert_eq!(set.len(), numbers.len());
        for (rank, number) in numbers.into_iter().enumerate() {
            assert_eq!(set.rank(number), Some(rank as u32));
        }
        assert_eq!([2, 62, 999, 4096, u32::MAX].map(|number| set.rank(number)), [None; 5]);
    }
}
