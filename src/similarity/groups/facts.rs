//! The facts about each content that turn common features into shares, in about ten bytes each.

use super::input::Fact;
use crate::recipe::{put_varint, take_varint};
use crate::similarity::gram::{LEVEL_MAX, LEVELS};
use crate::similarity::rows::Counts;

/// Most bytes that the facts of one content take.
const LEVELS_BYTES: usize = 1 + 5 * LEVELS;
/// A content is left out if this share of its features is suppressed: the others say too little.
pub(super) const LEFT_OUT_SHARE: f64 = 0.9;

/// Feature counts of contents, by place.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The level of each content, then its counts from there on.
    packed: Vec<u8>,
    starts: Vec<u32>,
    /// Number of suppressed features of each content, in its sample at the coarsest level.
    suppressed: Vec<f32>,
}

impl Facts {
    pub(super) fn push(&mut self, fact: &Fact) {
        self.starts.push(self.packed.len() as u32);
        self.packed.push(fact.level.min(LEVEL_MAX));
        fact.counts[usize::from(fact.level.min(LEVEL_MAX))..]
            .iter()
            .for_each(|&n| put_varint(&mut self.packed, n.into()));
        self.suppressed.push(0.0);
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether another content still fits.
    pub(super) fn has_room(&self) -> bool {
        self.packed.len() + LEVELS_BYTES < u32::MAX as usize
    }

    /// How many features a content has.
    pub(super) fn features(&self, place: u32) -> u32 {
        let counts = self.counts(place);
        counts.at[usize::from(counts.level)]
    }

    /// Records that a feature of `place`, selected at `level`, is in too many contents.
    pub(super) fn suppress(&mut self, place: u32, level: u8) {
        self.suppressed[place as usize] += 1.0 / f32::from(1u16 << (LEVEL_MAX - level.min(LEVEL_MAX)));
    }

    /// Whether nearly all features of a content are suppressed, so that it is compared by those.
    pub(super) fn is_left_out(&self, place: u32) -> bool {
        let suppressed = f64::from(self.suppressed[place as usize]);
        suppressed > 0.0 && would_leave_out(&self.counts(place), suppressed)
    }

    /// Returns how many features a content has at each level: those that are not suppressed, if there are some.
    pub(super) fn weights(&self, place: u32) -> [f64; LEVELS] {
        let (counts, suppressed) = (self.counts(place), f64::from(self.suppressed[place as usize]));
        let suppressed = if would_leave_out(&counts, suppressed) { 0.0 } else { suppressed };
        std::array::from_fn(|level| {
            let finer = usize::from(counts.level).saturating_sub(level);
            let all = f64::from(counts.at[level.max(usize::from(counts.level))]) * f64::from(1u32 << finer);
            let gone = suppressed * f64::from(1u32 << (usize::from(LEVEL_MAX) - level));
            (all - gone).max(1.0)
        })
    }

    fn counts(&self, place: u32) -> Counts {
        let mut packed = &self.packed[self.starts[place as usize] as usize..];
        let level = packed[0];
        packed = &packed[1..];
        let mut at = [0; LEVELS];
        for n in &mut at[usize::from(level)..] {
            *n = take_varint(&mut packed).unwrap_or(0) as u32;
        }
        Counts { level, at }
    }
}

fn would_leave_out(counts: &Counts, suppressed: f64) -> bool {
    let all = f64::from(counts.at[usize::from(counts.level)]);
    suppressed * f64::from(1u32 << (LEVEL_MAX - counts.level)) >= LEFT_OUT_SHARE * all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RecipeId;

    #[test]
    fn what_is_suppressed_does_not_count() {
        let mut facts = Facts::default();
        for level in [7, 2] {
            let mut counts = [0; LEVELS];
            (usize::from(level)..LEVELS).for_each(|at| counts[at] = 640 >> at);
            facts.push(&Fact { number: 0, recipe: RecipeId([0; 16]), size: 1, level, counts });
        }
        assert_eq!((facts.len(), facts.features(0), facts.features(1)), (2, 5, 160));
        assert_eq!(facts.weights(0)[7], 5.0);
        assert_eq!(facts.weights(0)[6], 10.0);
        assert_eq!(facts.weights(1)[3], 80.0);
        (0..80).for_each(|_| facts.suppress(1, 2));
        assert_eq!(facts.weights(1)[2], 80.0);
        assert_eq!(facts.weights(1)[3], 40.0);
        assert!(!facts.is_left_out(1) && !facts.is_left_out(0));
        (0..70).for_each(|_| facts.suppress(1, 2));
        assert!(facts.is_left_out(1), "what is left of it says nothing");
        assert_eq!(facts.weights(1)[3], 80.0);
    }
}
