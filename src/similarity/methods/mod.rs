//! The published methods of finding similar files, each complete behind one trait, beside the default.
//!
//! ```text
//! bytes -> Builder -> Sketch            one pass, whatever pieces the bytes come in
//! Sketch -> head, entries               what is known of the whole; keys that an index files it under, with a value each
//! heads, entries met -> Likeness        what the paper measures, and nothing that it does not
//! ```
//!
//! A method knows neither files nor databases nor the other methods. [`AnyMethod`] is the same without types, over
//! encoded heads: whoever lets the user choose (the index, the commands) names no method. Two files are compared by
//! what they have under the same keys, counted: so an index needs nothing of a file but its head and its entries, and all
//! against all is one count over keys in order ([`Index::pairs`]).
//!
//! Invariants, and is tested for each method by `laws`: the same bytes and name give the same sketch,
//! however they are split, and the same entries if those are given away on the way; a head that was encoded is decoded to
//! the same; damaged encodings are errors; what is compared the other way round gives the same with both shares
//! exchanged; a file that has keys is wholly like itself; and two sketches that share a key find each other.

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

/// What an index files a sketch under, and what goes with it: how often or how long it is, as the method says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Two files that have the same key have something in common.
    pub key: u64,
    /// Of this file's.
    pub value: u64,
}

/// A sketch but for its entries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whole<H> {
    /// What the method knows of the whole file.
    pub head: H,
    /// How many different keys there are.
    pub keys: u64,
}

/// What two files, a and b, have under the same keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Keys that both have.
    pub shared: u64,
    /// A sum of a's values at those, as the method makes it.
    pub a: u64,
    /// Of b's.
    pub b: u64,
}

/// Gives each key with the numbers of the files that have it and the values, ascending, until it is told to end.
pub type EachKey<'a> = &'a mut dyn FnMut(KeyVisitor<'_>) -> Result<(), SimilarityError>;
/// Is given a key with its files; false ends.
pub type KeyVisitor<'a> = &'a mut dyn FnMut(u64, &[(u32, u64)]) -> bool;

/// A way to tell which files are similar: its parameters, so it costs next to nothing to clone.
pub trait Method: Clone + Send + Sync + 'static {
    /// What it makes of a file.
    type Sketch: Clone + PartialEq + Debug + Send + Sync;
    /// What of that is no entry: some bytes, however long the file.
    type Head: Clone + PartialEq + Debug + Send + Sync;
    /// Makes them.
    type Builder: Builder<Sketch = Self::Sketch, Head = Self::Head>;

    /// What users call it.
    const NAME: &'static str;

    /// Whether a file's name counts, and [`Method::called`] does something.
    const BY_NAME: bool = false;

    /// Whether like files have keys near each other ([`Method::near`]) and not the same ones. Then heads alone are compared.
    const BY_RANGE: bool = false;

    /// Everything that sketches depend on, for people to read. Sketches are comparable only if made with the same.
    fn parameters(&self) -> String;

    /// For people to read: [`Method::parameters`], and what else answers depend on or can be told of them.
    fn described(&self) -> String {
        self.parameters()
    }

    /// Starts a sketch. `name` is the file's name without its directory, if it has one.
    fn builder(&self, name: Option<&OsStr>) -> Self::Builder;

    /// The head of a sketch.
    fn head(&self, sketch: &Self::Sketch) -> Self::Head;

    /// The entries of a sketch: by key, each key once.
    fn entries(&self, sketch: &Self::Sketch) -> Vec<Entry>;

    /// For storing, in at most [`HEAD_BYTES_MAX`] bytes. One head has one encoding.
    fn encode(&self, head: &Self::Head) -> Vec<u8>;

    /// Fails with [`Damaged`] on anything that [`Method::encode`] does not make.
    fn decode(&self, bytes: &[u8]) -> Result<Self::Head, Damaged>;

    /// The value of a key that a file has twice, of both values; in any order the same.
    fn joined(&self, one: u64, other: u64) -> u64 {
        one.max(other)
    }

    /// With [`Method::BY_RANGE`] the keys of others that are worth comparing with: sorted, not overlapping.
    fn near(&self, _head: &Self::Head) -> Vec<RangeInclusive<u64>> {
        Vec::new()
    }

    /// Counts a key that both have, with the value of a and that of b.
    fn meet(&self, sums: &mut Sums, _a: u64, _b: u64) {
        sums.shared += 1;
    }

    /// The measure of the paper.
    fn likeness(&self, a: &Whole<Self::Head>, b: &Whole<Self::Head>, sums: &Sums) -> Likeness;

    /// The head of the same bytes under a name, of one that was made without. A name takes likeness away and never adds
    /// any: so an index can keep what has no name, and look at names when it answers.
    fn called(&self, head: Self::Head, _name: &OsStr) -> Self::Head {
        head
    }

    /// Compares two sketches that are at hand.
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
    /// What comes of it.
    type Sketch;
    /// And what of that is no entry.
    type Head;

    /// Takes the next bytes, however many.
    fn add(&mut self, bytes: &[u8]);

    /// Gives away the entries that were found since it last did, in no order, a key as often as it was found: so a long
    /// file takes no more memory than a short one. Who does so ends with [`Builder::close`].
    fn drain(&mut self, take: &mut dyn FnMut(Entry));

    /// There are no more bytes: gives away the last entries, and tells the head.
    fn close(self, take: &mut dyn FnMut(Entry)) -> Self::Head;

    /// There are no more bytes.
    fn finish(self) -> Self::Sketch;
}

/// How two files, a and b, compare. What a method does not measure is `None`; nothing at all if they do not compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Likeness {
    /// Share of a that is in b. With methods that count repeats it may exceed 1.
    pub containment: Option<f64>,
    /// Share of b that is in a.
    pub contained_in: Option<f64>,
    /// Share of what is in either that is in both.
    pub resemblance: Option<f64>,
    /// How far apart they are, on the method's own scale; 0 if it sees no difference.
    pub distance: Option<f64>,
}

impl Likeness {
    /// One figure to order by: the larger share, else the resemblance, else what falls from 1 as the distance grows;
    /// 0 if they do not compare.
    pub fn score(&self) -> f64 {
        let shares = [self.containment, self.contained_in].into_iter().flatten().reduce(f64::max);
        let from_distance = || self.distance.map(|distance| 1.0 / (1.0 + distance));
        shares.or(self.resemblance).or_else(from_distance).unwrap_or(0.0)
    }

    /// As b compares with a.
    pub fn swapped(self) -> Likeness {
        Likeness { containment: self.contained_in, contained_in: self.containment, ..self }
    }
}

/// What is stored of a sketch has not the form that its method writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sketch of method {method} is damaged: expected {expected}; rebuild the index of that method")]
pub struct Damaged {
    /// [`Method::NAME`].
    pub method: &'static str,
    /// What should have been there.
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

/// The sketch of bytes that are all at hand.
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
