//! The published methods of finding similar files, each complete behind one trait, in addition to the default.
//!
//! ```text
//! bytes -> Builder -> Sketch            one pass, in pieces of any size
//! Sketch -> head, entries               facts of the whole file; keys that an index files it under, with a value each
//! heads, entries met -> Likeness        the paper's measures, and no others
//! ```
//!
//! A method knows neither files nor databases nor the other methods. [`AnyMethod`] is the same without types, over
//! encoded heads, so that code that lets the user choose (the index, the commands) names no method. Two files are compared
//! by the keys that both have, counted. So an index needs only the head and the entries of a file, and all against all is
//! one count over keys in order ([`Index::pairs`]).
//!
//! Invariants, which `laws` tests for each method:
//! - The same bytes and name give the same sketch, however they are split, and the same entries if those are drained on the way.
//! - Decoding an encoded head returns the same head. Damaged encodings are errors.
//! - Comparing the other way round gives the same likeness, with both shares exchanged.
//! - A file that has keys is wholly like itself. Two sketches that share a key find each other.

mod chosen;
pub mod chunk_graph;
mod counting;
mod heads;
mod index;
#[cfg(test)]
pub(crate) mod laws;
mod postings;
pub mod sif;
pub mod simhash;
mod sorter;
mod streamed;
pub mod winnow;

pub use chosen::{BadMethod, Chosen, Options, Parametric, names};
pub use heads::HEAD_BYTES_MAX;
#[cfg(any(test, feature = "testing"))]
pub(crate) use heads::{HEAD_ROW_BYTES, Heads};
pub use index::{Found, FoundPair, Index, IndexOptions, IndexStats, PairsAsked};
pub use postings::unpack_keys;
#[cfg(any(test, feature = "testing"))]
pub(crate) use postings::{POSTING_BYTES, Postings};
pub use streamed::{AnySketch, Sketcher};

use super::SimilarityError;
use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;

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

    /// Encodes a head, in at most [`HEAD_BYTES_MAX`] bytes. One head has one encoding.
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

/// How two files, a and b, compare. A measure that the method does not have is `None`; all are if the files do not compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Likeness {
    /// Share of a that is in b. With methods that count repeats it may exceed 1.
    pub containment: Option<f64>,
    /// Share of b that is in a.
    pub contained_in: Option<f64>,
    /// Bytes in both over bytes in either, or the method's equivalent.
    pub resemblance: Option<f64>,
    /// How far apart they are, on the method's own scale; 0 if it sees no difference.
    pub distance: Option<f64>,
}

impl Likeness {
    /// Returns one figure to order by: the larger share, else the resemblance, else a figure that falls from 1 as the
    /// distance grows; 0 if they do not compare.
    pub fn score(&self) -> f64 {
        let shares = [self.containment, self.contained_in].into_iter().flatten().reduce(f64::max);
        let from_distance = || self.distance.map(|distance| 1.0 / (1.0 + distance));
        shares.or(self.resemblance).or_else(from_distance).unwrap_or(0.0)
    }

    /// Returns how b compares with a.
    pub fn swapped(self) -> Likeness {
        Likeness { containment: self.contained_in, contained_in: self.containment, ..self }
    }
}

/// A stored sketch does not have the form that its method writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sketch of method {method} is damaged: expected {expected}; rebuild the index of that method")]
pub struct Damaged {
    /// [`Method::NAME`].
    pub method: &'static str,
    /// The form expected there.
    pub expected: &'static str,
}

/// A method without its types: heads are encoded.
pub trait AnyMethod: Send + Sync {
    /// [`Method::NAME`].
    fn name(&self) -> &'static str;
    /// [`Method::parameters`].
    fn settings(&self) -> String;
    /// [`Method::described`].
    fn description(&self) -> String;
    /// [`Method::builder`].
    fn start(&self, name: Option<&OsStr>) -> Box<dyn AnyBuilder>;
    /// [`Method::BY_NAME`].
    fn by_name(&self) -> bool;
    /// [`Method::BY_RANGE`].
    fn by_range(&self) -> bool;
    /// [`Method::called`].
    fn called_by(&self, head: &[u8], name: &OsStr) -> Result<Vec<u8>, Damaged>;
    /// [`Method::joined`].
    fn join(&self, one: u64, other: u64) -> u64;
    /// [`Method::near`].
    fn near_to(&self, head: &[u8]) -> Result<Vec<RangeInclusive<u64>>, Damaged>;
    /// [`Method::meet`].
    fn met(&self, sums: &mut Sums, a: u64, b: u64);
    /// Prepares one file to be compared with many.
    fn comparer<'a>(&'a self, head: &[u8], keys: u64) -> Result<Box<dyn Comparer + 'a>, Damaged>;
}

/// [`Builder`] for any method.
pub trait AnyBuilder: Send {
    /// [`Builder::add`].
    fn add_bytes(&mut self, bytes: &[u8]);
    /// [`Builder::drain`].
    fn give(&mut self, take: &mut dyn FnMut(Entry));
    /// [`Builder::close`], then [`Method::encode`].
    fn end(self: Box<Self>, take: &mut dyn FnMut(Entry)) -> Vec<u8>;
}

/// One file, to be compared with others.
pub trait Comparer {
    /// [`Method::likeness`] with this as the second.
    fn with(&self, head: &[u8], keys: u64, sums: &Sums) -> Result<Likeness, Damaged>;
}

impl<M: Method> AnyMethod for M {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn settings(&self) -> String {
        self.parameters()
    }

    fn description(&self) -> String {
        self.described()
    }

    fn start(&self, name: Option<&OsStr>) -> Box<dyn AnyBuilder> {
        Box::new(Building { method: self.clone(), builder: self.builder(name) })
    }

    fn by_name(&self) -> bool {
        M::BY_NAME
    }

    fn by_range(&self) -> bool {
        M::BY_RANGE
    }

    fn called_by(&self, head: &[u8], name: &OsStr) -> Result<Vec<u8>, Damaged> {
        Ok(self.encode(&self.called(self.decode(head)?, name)))
    }

    fn join(&self, one: u64, other: u64) -> u64 {
        self.joined(one, other)
    }

    fn near_to(&self, head: &[u8]) -> Result<Vec<RangeInclusive<u64>>, Damaged> {
        Ok(self.near(&self.decode(head)?))
    }

    fn met(&self, sums: &mut Sums, a: u64, b: u64) {
        self.meet(sums, a, b);
    }

    fn comparer<'a>(&'a self, head: &[u8], keys: u64) -> Result<Box<dyn Comparer + 'a>, Damaged> {
        Ok(Box::new(Comparing { method: self, whole: Whole { head: self.decode(head)?, keys } }))
    }
}

struct Building<M: Method> {
    method: M,
    builder: M::Builder,
}

impl<M: Method> AnyBuilder for Building<M> {
    fn add_bytes(&mut self, bytes: &[u8]) {
        self.builder.add(bytes);
    }

    fn give(&mut self, take: &mut dyn FnMut(Entry)) {
        self.builder.drain(take);
    }

    fn end(self: Box<Self>, take: &mut dyn FnMut(Entry)) -> Vec<u8> {
        let Building { method, builder } = *self;
        method.encode(&builder.close(take))
    }
}

struct Comparing<'a, M: Method> {
    method: &'a M,
    whole: Whole<M::Head>,
}

impl<M: Method> Comparer for Comparing<'_, M> {
    fn with(&self, head: &[u8], keys: u64, sums: &Sums) -> Result<Likeness, Damaged> {
        let other = Whole { head: self.method.decode(head)?, keys };
        Ok(self.method.likeness(&self.whole, &other, sums))
    }
}

/// Returns the sketch of bytes in memory.
pub fn sketch_of<M: Method>(method: &M, name: Option<&OsStr>, bytes: &[u8]) -> M::Sketch {
    let mut builder = method.builder(name);
    builder.add(bytes);
    builder.finish()
}

/// Every method, with its default parameters.
pub fn all() -> Vec<Arc<dyn AnyMethod>> {
    vec![
        Arc::new(sif::Sif::default()),
        Arc::new(winnow::Winnow::default()),
        Arc::new(chunk_graph::ChunkGraph::default()),
        Arc::new(simhash::SimHash::default()),
    ]
}

/// The method that users call by this name, with its default parameters.
pub fn named(name: &str) -> Option<Arc<dyn AnyMethod>> {
    all().into_iter().find(|method| method.name() == name)
}

#[cfg(test)]
mod tests;
