//! Winnowing as a query wants it: without what a base has, and with fewer look-ups on the same index (section 3.2).

use super::{Base, Winnow, WinnowBuilder, WinnowSketch, resemblance};
use crate::similarity::methods::{Builder, Damaged, Likeness, Method};
use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A [`Winnow`] whose sketches lack what is in a base. Of the sketch asked about, a part may do: then only the figures
/// that this part tells are there.
#[derive(Clone, Debug)]
pub struct Query {
    winnow: Winnow,
    base: Arc<Base>,
    window: Option<u32>,
    smallest: Option<usize>,
}

impl Query {
    /// With what a window of `window` hashes keeps of the sketch asked about, and of that the `smallest` hashes.
    ///
    /// Fails if `window` is smaller than that of `winnow`, or `smallest` is 0.
    pub fn new(
        winnow: Winnow,
        base: Base,
        window: Option<u32>,
        smallest: Option<usize>,
    ) -> Result<Query, String> {
        if let Some(window) = window.filter(|window| *window < winnow.w()) {
            return Err(format!(
                "a window of {window} hashes: expected {} or more, as is indexed",
                winnow.w()
            ));
        }
        if smallest == Some(0) {
            return Err("the 0 smallest hashes: expected 1 or more".into());
        }
        Ok(Query { winnow, base: Arc::new(base), window, smallest })
    }

    fn part(&self, sketch: &WinnowSketch) -> WinnowSketch {
        let wide = self.window.map(|window| sketch.with_window(window));
        let sketch = wide.as_ref().unwrap_or(sketch);
        self.smallest.map_or_else(|| sketch.clone(), |n| sketch.smallest(n))
    }
}

/// Takes the bytes of one file.
pub struct QueryBuilder {
    builder: WinnowBuilder,
    base: Arc<Base>,
}

impl Builder for QueryBuilder {
    type Sketch = WinnowSketch;

    fn add(&mut self, bytes: &[u8]) {
        self.builder.add(bytes);
    }

    fn finish(self) -> WinnowSketch {
        self.base.taken_from(&self.builder.finish())
    }
}

impl Method for Query {
    type Sketch = WinnowSketch;
    type Builder = QueryBuilder;

    const NAME: &'static str = Winnow::NAME;

    fn parameters(&self) -> String {
        let mut text = self.winnow.parameters();
        if !self.base.is_empty() {
            text += ", without a base";
        }
        if let Some(window) = self.window {
            text += &format!(", asked with w={window}");
        }
        if let Some(n) = self.smallest {
            text += &format!(", asked with the {n} smallest");
        }
        text
    }

    fn builder(&self, name: Option<&OsStr>) -> QueryBuilder {
        QueryBuilder { builder: self.winnow.builder(name), base: self.base.clone() }
    }

    fn encode(&self, sketch: &WinnowSketch) -> Vec<u8> {
        self.winnow.encode(sketch)
    }

    fn decode(&self, bytes: &[u8]) -> Result<WinnowSketch, Damaged> {
        self.winnow.decode(bytes)
    }

    fn keys(&self, sketch: &WinnowSketch) -> Vec<u64> {
        self.winnow.keys(sketch)
    }

    fn look_up(&self, sketch: &WinnowSketch) -> Vec<RangeInclusive<u64>> {
        self.winnow.look_up(&self.part(sketch))
    }

    /// Of a part only the share of it that is in the other; of the smallest hashes resemblance too, as Broder's test has
    /// it.
    fn compare(&self, a: &WinnowSketch, b: &WinnowSketch) -> Likeness {
        if self.window.is_none() && self.smallest.is_none() {
            return self.winnow.compare(a, b);
        }
        let containment = self.winnow.compare(&self.part(a), b).containment;
        let resemblance = match (self.window, self.smallest) {
            (None, Some(n)) => resemblance(a, b, n),
            _ => None,
        };
        Likeness { containment, resemblance, ..Likeness::default() }
    }
}
