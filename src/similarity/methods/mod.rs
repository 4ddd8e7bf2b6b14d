//! The published methods of finding similar files, each complete behind one trait, beside the default.
//!
//! ```text
//! bytes -> Builder -> Sketch            one pass, whatever pieces the bytes come in
//! Sketch -> keys, look_up               where an index files it, and where it looks for others
//! Sketch, Sketch -> Likeness            what the paper measures, and nothing that it does not
//! ```
//!
//! A method knows neither files nor databases nor the other methods. [`AnyMethod`] is the same without types, over
//! encoded sketches: whoever lets the user choose (the index, the commands) names no method.
//!
//! What must always be true, and is tested for each method by `laws`: the same bytes and name give the same sketch,
//! however they are split; a sketch that was encoded is decoded to the same; damaged encodings are errors; what is
//! compared the other way round gives the same with both shares exchanged; a file that has keys is wholly like itself;
//! and two sketches that share a key find each other.

pub mod chunk_graph;
mod index;
#[cfg(test)]
pub(crate) mod laws;
mod postings;
pub mod sif;
pub mod simhash;
mod sorter;
pub mod winnow;

pub use index::{Found, FoundPair, Index, IndexOptions, IndexStats};

use std::ffi::OsStr;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A way to tell which files are similar: its parameters, so it costs next to nothing to clone.
pub trait Method: Clone + Send + Sync + 'static {
    /// What it keeps of a file.
    type Sketch: Clone + PartialEq + Debug + Send + Sync;
    /// Makes one.
    type Builder: Builder<Sketch = Self::Sketch>;

    /// What users call it.
    const NAME: &'static str;

    /// Whether a file's name counts, and [`Method::called`] does something.
    const BY_NAME: bool = false;

    /// Everything that sketches depend on, for people to read. Sketches are comparable only if made with the same.
    fn parameters(&self) -> String;

    /// Starts a sketch. `name` is the file's name without its directory, if it has one.
    fn builder(&self, name: Option<&OsStr>) -> Self::Builder;

    /// For storing. One sketch has one encoding.
    fn encode(&self, sketch: &Self::Sketch) -> Vec<u8>;

    /// Fails with [`Damaged`] on anything that [`Method::encode`] does not make.
    fn decode(&self, bytes: &[u8]) -> Result<Self::Sketch, Damaged>;

    /// What an index files the sketch under: sorted, each once.
    fn keys(&self, sketch: &Self::Sketch) -> Vec<u64>;

    /// The keys of others that are worth comparing with: sorted, not overlapping. Its own, unless the method tolerates
    /// a difference.
    fn look_up(&self, sketch: &Self::Sketch) -> Vec<RangeInclusive<u64>> {
        self.keys(sketch).into_iter().map(|key| key..=key).collect()
    }

    /// The sketch of the same bytes under a name, of one that was made without. A name takes likeness away and never adds
    /// any: so an index can keep what has no name, and look at names when it answers.
    fn called(&self, sketch: Self::Sketch, _name: &OsStr) -> Self::Sketch {
        sketch
    }

    /// Compares two sketches by the measure of the paper.
    fn compare(&self, a: &Self::Sketch, b: &Self::Sketch) -> Likeness;
}

/// Takes the bytes of one file, in order.
pub trait Builder: Send {
    /// What comes of it.
    type Sketch;

    /// Takes the next bytes, however many.
    fn add(&mut self, bytes: &[u8]);

    /// There are no more.
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

/// An encoded sketch has not the form that its method writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sketch of method {method} is damaged: expected {expected}; rebuild the index of that method")]
pub struct Damaged {
    /// [`Method::NAME`].
    pub method: &'static str,
    /// What should have been there.
    pub expected: &'static str,
}

/// A method without its types: sketches are encoded.
pub trait AnyMethod: Send + Sync {
    /// [`Method::NAME`].
    fn name(&self) -> &'static str;
    /// [`Method::parameters`].
    fn settings(&self) -> String;
    /// [`Method::builder`].
    fn start(&self, name: Option<&OsStr>) -> Box<dyn AnyBuilder>;
    /// [`Method::keys`].
    fn keys_of(&self, sketch: &[u8]) -> Result<Vec<u64>, Damaged>;
    /// [`Method::look_up`].
    fn ranges_of(&self, sketch: &[u8]) -> Result<Vec<RangeInclusive<u64>>, Damaged>;
    /// [`Method::BY_NAME`].
    fn by_name(&self) -> bool;
    /// [`Method::called`].
    fn called_by(&self, sketch: &[u8], name: &OsStr) -> Result<Vec<u8>, Damaged>;
    /// Prepares one sketch to be compared with many.
    fn comparer<'a>(&'a self, sketch: &[u8]) -> Result<Box<dyn Comparer + 'a>, Damaged>;
}

/// [`Builder`] for any method.
pub trait AnyBuilder: Send {
    /// [`Builder::add`].
    fn add_bytes(&mut self, bytes: &[u8]);
    /// [`Builder::finish`], then [`Method::encode`].
    fn encoded(self: Box<Self>) -> Vec<u8>;
}

/// One sketch, to be compared with others.
pub trait Comparer {
    /// [`Method::compare`] with `sketch` as the second.
    fn with(&self, sketch: &[u8]) -> Result<Likeness, Damaged>;
}

impl<M: Method> AnyMethod for M {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn settings(&self) -> String {
        self.parameters()
    }

    fn start(&self, name: Option<&OsStr>) -> Box<dyn AnyBuilder> {
        Box::new(Building { method: self.clone(), builder: self.builder(name) })
    }

    fn keys_of(&self, sketch: &[u8]) -> Result<Vec<u64>, Damaged> {
        Ok(self.keys(&self.decode(sketch)?))
    }

    fn ranges_of(&self, sketch: &[u8]) -> Result<Vec<RangeInclusive<u64>>, Damaged> {
        Ok(self.look_up(&self.decode(sketch)?))
    }

    fn by_name(&self) -> bool {
        M::BY_NAME
    }

    fn called_by(&self, sketch: &[u8], name: &OsStr) -> Result<Vec<u8>, Damaged> {
        Ok(self.encode(&self.called(self.decode(sketch)?, name)))
    }

    fn comparer<'a>(&'a self, sketch: &[u8]) -> Result<Box<dyn Comparer + 'a>, Damaged> {
        Ok(Box::new(Comparing { method: self, sketch: self.decode(sketch)? }))
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

    fn encoded(self: Box<Self>) -> Vec<u8> {
        let Building { method, builder } = *self;
        method.encode(&builder.finish())
    }
}

struct Comparing<'a, M: Method> {
    method: &'a M,
    sketch: M::Sketch,
}

impl<M: Method> Comparer for Comparing<'_, M> {
    fn with(&self, sketch: &[u8]) -> Result<Likeness, Damaged> {
        Ok(self.method.compare(&self.sketch, &self.method.decode(sketch)?))
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
