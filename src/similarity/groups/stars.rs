//! Stars: some contents represent others. No content is in a star by way of a third one.
//!
//! The gain of a content is the bytes that it would save if it represented all that resemble it. Contents are taken by gain,
//! largest first; one that does not resemble a representative becomes one. So no two representatives resemble each
//! other, and each content that resembles any other resembles a representative. It goes to the one that it resembles
//! most. The pairs are read in order, several times unless they fit in memory.
//!
//! Invariants: the stars depend only on the pairs, the threshold and the choice of contents.

use super::pairs::{Pair, Pairs};
use super::progress::{Phase, Progress};
use super::ranked::Ranked;
use crate::similarity::SimilarityError;
use std::cmp::{Ordering, Reverse};

type Result<T> = std::result::Result<T, SimilarityError>;

const NONE: u32 = u32::MAX;

/// A representative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Star {
    /// Its place.
    pub representative: u32,
    /// Number of contents that it represents, without itself.
    pub members: u32,
    /// Bytes of all of them and of itself.
    pub bytes: u64,
    /// Bytes of the others that it has, as estimated.
    pub savable_bytes: u64,
}

/// A content that another represents. Shares are estimates, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Its place.
    pub content: u32,
    /// Share of it that is in the representative.
    pub containment: f64,
    /// Share of the representative that is in it.
    pub contained_in: f64,
}

/// All stars at one threshold.
pub struct Stars {
    /// Largest possible saving first.
    pub stars: Vec<Star>,
    best: Vec<Best>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Best {
    representative: u32,
    containment: u16,
    contained_in: u16,
}

impl Best {
    const NONE: Best = Best { representative: NONE, containment: 0, contained_in: 0 };

    fn shares(&self) -> (f64, f64) {
        let share = |share: u16| f64::from(share) / f64::from(u16::MAX);
        (share(self.containment), share(self.contained_in))
    }

    fn better_than(&self, other: &Best) -> bool {
        if other.representative == NONE {
            return true;
        }
        let key = |best: &Best| {
            let (containment, contained_in) = best.shares();
            (super::resemblance(containment, contained_in), containment)
        };
        let ((a, a_part), (b, b_part)) = (key(self), key(other));
        // Pairs come in order, so the first of several equals has the lower place.
        a.total_cmp(&b).then(a_part.total_cmp(&b_part)) == Ordering::Greater
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Representative,
    Covered,
}

/// Some of the contents, by place.
pub struct Choice(Ranked);

impl Choice {
    /// Takes places in any order.
    pub fn of(places: impl Iterator<Item = u32>) -> Choice {
        let mut chosen = Ranked::default();
        places.for_each(|place| chosen.insert(place));
        chosen.finish();
        Choice(chosen)
    }

    fn has(&self, place: u32) -> bool {
        self.0.contains(place)
    }
}

/// A pass over the pairs that count.
struct Matching<'a> {
    pairs: &'a Pairs,
    min: f64,
    choice: Option<&'a Choice>,
}

impl Matching<'_> {
    fn each(&self, progress: Progress<'_>, mut visit: impl FnMut(Pair)) -> Result<()> {
        for (done, pair) in self.pairs.iter().enumerate() {
            let pair = pair?;
            let chosen = |place| self.choice.is_none_or(|choice| choice.has(place));
            if pair.a_in_b.max(pair.b_in_a) >= self.min && chosen(pair.a) && chosen(pair.b) {
                visit(pair);
            }
            let done = done as u64;
            if done.is_multiple_of(super::STEP) && !progress(Phase::Comparing, done, self.pairs.len()) {
                return Err(SimilarityError::Interrupted);
            }
        }
        Ok(())
    }
}

impl Stars {
    /// Returns the stars of the pairs in which one side has `min` or more of the other, among the contents chosen. Reads only
    /// the file of pairs. Needs some 25 bytes of memory a content beyond `memory`.
    pub fn of(
        pairs: &Pairs,
        min: f64,
        choice: Option<&Choice>,
        memory: usize,
        progress: Progress<'_>,
    ) -> Result<Stars> {
        let matching = Matching { pairs, min, choice };
        let sizes = pairs.contents().map(|content| Ok(content?.size)).collect::<Result<Vec<u64>>>()?;
        let mut gains = vec![0u64; sizes.len()];
        matching.each(progress, |pair| {
            let (a, b) = (pair.a as usize, pair.b as usize);
            gains[a] += part(pair.b_in_a, sizes[b]);
            gains[b] += part(pair.a_in_b, sizes[a]);
        })?;
        let states = represent(&matching, &gains, &sizes, memory, progress)?;
        drop(gains);
        let mut best = vec![Best::NONE; sizes.len()];
        matching.each(progress, |pair| {
            let of = |place: u32| states[place as usize];
            let (representative, member, containment, contained_in) = match (of(pair.a), of(pair.b)) {
                (State::Representative, _) => (pair.a, pair.b, pair.b_in_a, pair.a_in_b),
                (_, State::Representative) => (pair.b, pair.a, pair.a_in_b, pair.b_in_a),
                _ => return,
            };
            let share = |share: f64| (share * f64::from(u16::MAX)).round() as u16;
            let this =
                Best { representative, containment: share(containment), contained_in: share(contained_in) };
            if this.better_than(&best[member as usize]) {
                best[member as usize] = this;
            }
        })?;
        let mut stars = heads(&best, &sizes, &states);
        stars.sort_unstable_by_key(|star| (Reverse(star.savable_bytes), star.representative));
        Ok(Stars { stars, best })
    }

    /// Returns the members of some stars, those of each star in order of place. One pass.
    pub fn members(&self, stars: &[Star]) -> Vec<Vec<Member>> {
        let mut order: Vec<_> = stars.iter().enumerate().map(|(i, star)| (star.representative, i)).collect();
        order.sort_unstable();
        let mut members = vec![Vec::new(); stars.len()];
        for (content, best) in self.best.iter().enumerate() {
            if let Ok(at) = order.binary_search_by_key(&best.representative, |(place, _)| *place) {
                let (containment, contained_in) = best.shares();
                members[order[at].1].push(Member { content: content as u32, containment, contained_in });
            }
        }
        members
    }
}

fn part(share: f64, size: u64) -> u64 {
    (share * size as f64) as u64
}

fn heads(best: &[Best], sizes: &[u64], states: &[State]) -> Vec<Star> {
    let mut rank = Ranked::default();
    best.iter().filter(|best| best.representative != NONE).for_each(|best| rank.insert(best.representative));
    rank.finish();
    let places = (0..states.len() as u32).filter(|&place| rank.contains(place));
    let head = |place: u32| {
        let bytes = sizes[place as usize];
        Star { representative: place, members: 0, bytes, savable_bytes: 0 }
    };
    let mut stars: Vec<Star> = places.map(head).collect();
    for (content, best) in best.iter().enumerate() {
        if let Some(rank) = rank.rank(best.representative) {
            let star = &mut stars[rank as usize];
            star.members += 1;
            star.bytes += sizes[content];
            star.savable_bytes += part(best.shares().0, sizes[content]);
        }
    }
    stars
}

/// Returns which contents are representatives. Contents are taken by gain, then size, then place; one that resembles no
/// representative becomes one.
///
/// While the pairs of undecided contents do not fit in memory: a content that comes before all undecided ones that it
/// resembles would be next in their order too, so all such contents are taken in one pass.
fn represent(
    matching: &Matching<'_>,
    gains: &[u64],
    sizes: &[u64],
    memory: usize,
    progress: Progress<'_>,
) -> Result<Vec<State>> {
    let rank = |place: u32| (gains[place as usize], sizes[place as usize], Reverse(place));
    let mut states = vec![State::Open; sizes.len()];
    // Each pair is in memory three times while they are sorted.
    let most = memory / 32;
    loop {
        let mut open: Vec<(u32, u32)> = Vec::new();
        let mut beaten: Vec<bool> = vec![false; sizes.len()];
        let mut count = 0usize;
        matching.each(progress, |pair| {
            let both = [pair.a, pair.b].iter().all(|&place| states[place as usize] == State::Open);
            if !both {
                return;
            }
            count += 1;
            if count <= most {
                open.push((pair.a, pair.b));
            }
            let loser = if rank(pair.a) < rank(pair.b) { pair.a } else { pair.b };
            beaten[loser as usize] = true;
        })?;
        if count <= most {
            decide(&open, &rank, &mut states);
            // An open content that resembles only covered ones is not covered itself.
            states.iter_mut().filter(|state| **state == State::Open).for_each(|s| *s = State::Representative);
            return Ok(states);
        }
        for (state, beaten) in states.iter_mut().zip(&beaten) {
            if *state == State::Open && !beaten {
                *state = State::Representative;
            }
        }
        matching.each(progress, |pair| {
            for (one, other) in [(pair.a, pair.b), (pair.b, pair.a)] {
                if states[one as usize] == State::Representative && states[other as usize] == State::Open {
                    states[other as usize] = State::Covered;
                }
            }
        })?;
    }
}

/// The same in memory, in order.
fn decide<K: Ord>(open: &[(u32, u32)], rank: &impl Fn(u32) -> K, states: &mut [State]) {
    let mut edges: Vec<(u32, u32)> = open.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect();
    edges.sort_unstable();
    let mut order: Vec<u32> = edges.chunk_by(|x, y| x.0 == y.0).map(|edges| edges[0].0).collect();
    order.sort_unstable_by_key(|&place| Reverse(rank(place)));
    for place in order {
        if states[place as usize] != State::Open {
            continue;
        }
        states[place as usize] = State::Representative;
        let from = edges.partition_point(|edge| edge.0 < place);
        for &(_, other) in edges[from..].iter().take_while(|edge| edge.0 == place) {
            states[other as usize] = State::Covered;
        }
    }
}
