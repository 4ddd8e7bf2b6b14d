//! The trait of a method, and the terms of its answers.

use super::{Damaged, Likeness};
use crate::similarity::SimilarityError;
use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::ops::RangeInclusive;

/// A key that an index files a sketch under, with a value: how often or how long it occurs, as the method defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Two files that have the same key have something in common.
    pub key: u64,
    /// The value for this file.
    pub value: u64,
}

/// A sketch without its entries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whole<H> {
    /// Facts of the whole file.
    pub head: H,
    /// How many different keys there are.
    pub keys: u64,
}

/// Sums over the keys that two files, a and b, have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Keys that both have.
    pub shared: u64,
    /// The method's sum of a's values at those keys.
    pub a: u64,
    /// The same sum of b's values.
    pub b: u64,
}

/// Calls the visitor with each key, the numbers of the files that have it and the values, ascending, until it returns false.
pub type EachKey<'a> = &'a mut dyn FnMut(KeyVisitor<'_>) -> Result<(), SimilarityError>;
/// Gets a key with its files; false ends the visit.
pub type KeyVisitor<'a> = &'a mut dyn FnMut(u64, &[(u32, u64)]) -> bool;

/// A method to find similar files. It only holds its parameters, so it is cheap to clone.
pub trait Method: Clone + Send + Sync + 'static {
    /// The sketch of a file.
    type Sketch: Clone + PartialEq + Debug + Send + Sync;
    /// The sketch without its entries: some bytes, however long the file.
    type Head: Clone + PartialEq + Debug + Send + Sync;
    /// Makes sketches.
    type Builder: Builder<Sketch = Self::Sketch, Head = Self::Head>;

    /// Its name for users.
    const NAME: &'static str;

    /// Whether a file's name counts, and [`Method::called`] does something.
    const BY_NAME: bool = false;

    /// Whether like files have keys near each other ([`Method::near`]) and not the same ones. Then heads alone are compared.
    const BY_RANGE: bool = false;

    /// Returns everything that sketches depend on, for people to read. Only sketches with equal parameters are comparable.
    fn parameters(&self) -> String;

    /// Returns a description for people: [`Method::parameters`], and other properties that matter for answers.
    fn described(&self) -> String {
        self.parameters()
    }

    /// Starts a sketch. `name` is the file's name without its directory, if it has one.
    fn builder(&self, name: Option<&OsStr>) -> Self::Builder;

    /// The head of a sketch.
    fn head(&self, sketch: &Self::Sketch) -> Self::Head;

    /// The entries of a sketch: by key, each key once.
    fn entries(&self, sketch: &Self::Sketch) -> Vec<Entry>;

    /// Encodes a head, in at most [`super::HEAD_BYTES_MAX`] bytes. One head has one encoding.
    fn encode(&self, head: &Self::Head) -> Vec<u8>;

    /// Decodes a head. Fails with [`Damaged`] on anything that [`Method::encode`] does not make.
    fn decode(&self, bytes: &[u8]) -> Result<Self::Head, Damaged>;

    /// Returns the value of a key that a file has twice, from both values; their order does not matter.
    fn joined(&self, one: u64, other: u64) -> u64 {
        one.max(other)
    }

    /// With [`Method::BY_RANGE`]: returns the keys of other files that are worth comparing: sorted, not overlapping.
    fn near(&self, _head: &Self::Head) -> Vec<RangeInclusive<u64>> {
        Vec::new()
    }

    /// Counts a key that both have, with the values of a and of b.
    fn meet(&self, sums: &mut Sums, _a: u64, _b: u64) {
        sums.shared += 1;
    }

    /// Returns the head of a file as if it did not have some of its keys. `sums` are of the file's entries at those keys,
    /// with themselves.
    fn without(&self, head: Self::Head, _sums: &Sums) -> Self::Head {
        head
    }

    /// Returns the measure of the paper.
    fn likeness(&self, a: &Whole<Self::Head>, b: &Whole<Self::Head>, sums: &Sums) -> Likeness;

    /// Returns the head under a name, made from one without a name. A name lowers the likeness and never raises it. So an
    /// index can keep heads without names, and use names when it answers.
    fn called(&self, head: Self::Head, _name: &OsStr) -> Self::Head {
        head
    }

    /// Compares two sketches in memory.
    fn compare(&self, a: &Self::Sketch, b: &Self::Sketch) -> Likeness {
        let (of_a, of_b) = (self.entries(a), self.entries(b));
        let mut sums = Sums::default();
        let (mut rest_a, mut rest_b) = (&of_a[..], &of_b[..]);
        while let ([first_a, after_a @ ..], [first_b, after_b @ ..]) = (rest_a, rest_b) {
            match first_a.key.cmp(&first_b.key) {
                Ordering::Less => rest_a = after_a,
                Ordering::Greater => rest_b = after_b,
                Ordering::Equal => {
                    self.meet(&mut sums, first_a.value, first_b.value);
                    (rest_a, rest_b) = (after_a, after_b);
                }
            }
        }
        let whole = |sketch, entries: &[Entry]| Whole { head: self.head(sketch), keys: entries.len() as u64 };
        self.likeness(&whole(a, &of_a), &whole(b, &of_b), &sums)
    }
}

/// Takes the bytes of one file, in order.
pub trait Builder: Send {
    /// The sketch.
    type Sketch;
    /// The sketch without its entries.
    type Head;

    /// Takes the next bytes, however many.
    fn add(&mut self, bytes: &[u8]);

    /// Passes on the entries found since the last call, in any order, each key as often as it was found. So a long file takes
    /// no more memory than a short one. A caller that drains ends with [`Builder::close`].
    fn drain(&mut self, take: &mut dyn FnMut(Entry));

    /// Ends the file: passes on the last entries, and returns the head.
    fn close(self, take: &mut dyn FnMut(Entry)) -> Self::Head;

    /// Ends the file.
    fn finish(self) -> Self::Sketch;
}

/// Returns the sketch of bytes in memory.
pub fn sketch_of<M: Method>(method: &M, name: Option<&OsStr>, bytes: &[u8]) -> M::Sketch {
    let mut builder = method.builder(name);
    builder.add(bytes);
    builder.finish()
}
