//! A method without its types, for code that lets the user choose one.

use super::{Builder, Damaged, Entry, Likeness, Method, Sums, Whole};
use std::ffi::OsStr;
use std::ops::RangeInclusive;

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
    /// [`Method::without`].
    fn head_without(&self, head: &[u8], sums: &Sums) -> Result<Vec<u8>, Damaged>;
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

    fn head_without(&self, head: &[u8], sums: &Sums) -> Result<Vec<u8>, Damaged> {
        Ok(self.encode(&self.without(self.decode(head)?, sums)))
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
