//! SimHash (Sadowski and Levin 2007, "SimHash: hash-based similarity detection"): files count as similar if they have nearly
//! the same number of each of some bit patterns.
//!
//! ```text
//! bytes -> tags  -> sum table: hits of 16 tags           (`tags`)
//!       -> key   -> one number, near for like files      (`key`)
//! keys near each other -> sizes near -> sum tables near -> bytes, if the tables are the same   (`find`)
//! ```
//!
//! It sees resemblance of whole files of like size and never containment: a file inside a larger one is not found.
//! The order within a file does not count: the same lines in another order look the same.

mod find;
mod key;
mod tags;

pub use find::{Counts, Match, SameBytes, SimFind};
pub use key::{Extension, KeyKind};
pub use tags::{TAG_COUNT, TAGS, TagCounter};

use super::{Builder, Damaged, Entry, Likeness, Method, Options, Parametric, Sums, Whole};
use crate::recipe::{put_varint, take_varint};
use std::ffi::OsStr;
use std::ops::RangeInclusive;

/// How far apart files may be. Shares are of the size of the larger of two files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Difference of keys, for each byte of the queried file.
    pub key: f64,
    /// Difference of sizes, as a share.
    pub size: f64,
    /// Distance of sum tables, for each byte.
    pub sums: f64,
}

impl Default for Tolerance {
    /// "Ideally within 1-2% of each other" (section 3).
    fn default() -> Self {
        Tolerance { key: 0.01, size: 0.05, sums: 0.01 }
    }
}

/// The method.
#[derive(Clone, Debug)]
pub struct SimHash {
    /// How sums are combined to keys.
    pub key: KeyKind,
    /// Tolerance for extensions that [`SimHash::by_extension`] does not name.
    pub tolerance: Tolerance,
    /// Stricter tolerances for formats that are mostly structure (section 5.2 names PostScript). None may be looser.
    pub by_extension: Vec<(Extension, Tolerance)>,
}

impl Default for SimHash {
    /// The paper's standard key, with extensions.
    fn default() -> Self {
        SimHash {
            key: KeyKind::SKEW_EXTENSION,
            tolerance: Tolerance::default(),
            by_extension: [b"ps\0", b"eps"].map(|ps| (Extension(*ps), POSTSCRIPT)).to_vec(),
        }
    }
}

/// A tenth of the tolerance for other files: section 5.2 asks for "a very low tolerance setting" and names none.
const POSTSCRIPT: Tolerance = Tolerance { key: 0.001, size: 0.05, sums: 0.001 };

/// The sketch of a file: some 40 bytes when encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimSketch {
    /// Length of the file in bytes.
    pub size: u64,
    /// The extension in its name.
    pub extension: Extension,
    /// Hits of each tag.
    pub sums: [u64; TAG_COUNT],
}

impl SimSketch {
    /// Returns the sum of the differences of all entries of the sum tables (section 4.2).
    pub fn distance(&self, other: &SimSketch) -> u64 {
        self.sums.iter().zip(&other.sums).map(|(a, b)| a.abs_diff(*b)).fold(0, u64::saturating_add)
    }
}

impl SimHash {
    /// The key of a file.
    pub fn key_of(&self, sketch: &SimSketch) -> u64 {
        self.key.key(sketch.extension, &sketch.sums)
    }

    /// Returns keys that are near enough to that of a file.
    pub fn around(&self, sketch: &SimSketch) -> RangeInclusive<u64> {
        let tolerance = self.tolerance_of(sketch.extension).key;
        self.key.near(sketch.extension, self.key_of(sketch), (tolerance * sketch.size as f64) as u64)
    }

    /// Returns whether two keys are near enough, for the larger file; extensions do not count here.
    fn keys_fit(&self, a: &SimSketch, b: &SimSketch) -> bool {
        let most = self.of_both(a, b, |tolerance| tolerance.key) * a.size.max(b.size) as f64;
        let [a, b] = [a, b].map(|sketch| self.key.key(Extension::default(), &sketch.sums));
        a.abs_diff(b) as f64 <= most
    }

    /// Returns whether two sizes are near enough.
    pub fn sizes_fit(&self, a: &SimSketch, b: &SimSketch) -> bool {
        let share = self.of_both(a, b, |tolerance| tolerance.size);
        a.size.abs_diff(b.size) as f64 <= share * a.size.max(b.size) as f64
    }

    /// Returns the distance of two sum tables, if it is near enough.
    pub fn fitting_distance(&self, a: &SimSketch, b: &SimSketch) -> Option<u64> {
        let most = self.of_both(a, b, |tolerance| tolerance.sums) * a.size.max(b.size) as f64;
        Some(a.distance(b)).filter(|distance| *distance as f64 <= most)
    }

    fn tolerance_of(&self, extension: Extension) -> Tolerance {
        let own = self.by_extension.iter().find(|(of, _)| *of == extension);
        own.map_or(self.tolerance, |(_, tolerance)| *tolerance)
    }

    /// Returns the stricter tolerance of both files.
    fn of_both(&self, a: &SimSketch, b: &SimSketch, of: impl Fn(Tolerance) -> f64) -> f64 {
        of(self.tolerance_of(a.extension)).min(of(self.tolerance_of(b.extension)))
    }
}

/// Counts the tags of one file.
#[derive(Debug)]
pub struct SimBuilder {
    key: KeyKind,
    extension: Extension,
    counter: TagCounter,
}

impl Builder for SimBuilder {
    type Sketch = SimSketch;
    type Head = SimSketch;

    fn add(&mut self, bytes: &[u8]) {
        self.counter.add(bytes);
    }

    /// Does nothing: a file has one entry, at its end.
    fn drain(&mut self, _take: &mut dyn FnMut(Entry)) {}

    fn close(self, take: &mut dyn FnMut(Entry)) -> SimSketch {
        let key = self.key;
        let sketch = self.finish();
        if sketch.size > 0 {
            take(Entry { key: key.key(sketch.extension, &sketch.sums), value: 1 });
        }
        sketch
    }

    fn finish(self) -> SimSketch {
        SimSketch { size: self.counter.len(), extension: self.extension, sums: self.counter.sums() }
    }
}

impl Parametric for SimHash {
    const KEYS: &'static str = "key=skew or uniform, extension=yes or no (stands before the key), tolerance=0.01 for each byte, of \
        keys and of tables (keys=, tables= for one of them), size=0.05 as a share; tolerance.ps=0.001, keys.ps=, tables.ps=, \
        size.ps= for one extension";

    const EXAMPLE: &'static str = "key=skew,extension=yes,tolerance=0.01,size=0.05,tolerance.ps=0.001";

    const NOTE: Option<&'static str> = Some(
        "SimHash: finds files of like size and extension with nearly the same counts of bit patterns. Cannot find a file \
        that is contained in a larger one; order within a file does not count.",
    );

    fn with(options: &mut Options) -> Result<SimHash, String> {
        let uniform = options.either("key", ["uniform", "skew"])?.unwrap_or(false);
        let extension = options.either("extension", ["yes", "no"])?.unwrap_or(true);
        let key = match (uniform, extension) {
            (true, true) => KeyKind::UNIFORM_EXTENSION,
            (true, false) => KeyKind::UNIFORM,
            (false, true) => KeyKind::SKEW_EXTENSION,
            (false, false) => KeyKind::SKEW,
        };
        let SimHash { tolerance, mut by_extension, .. } = SimHash::default();
        let tolerance = tolerance.with(options, "")?;
        by_extension.iter_mut().for_each(|(_, own)| *own = own.stricter(tolerance));
        let fronts = ["tolerance.", "keys.", "tables.", "size."];
        for name in fronts.iter().flat_map(|front| options.after(front)).collect::<Vec<_>>() {
            if !(1..=3).contains(&name.len()) {
                return Err(format!("{name:?}: expected an extension of 1 to 3 characters"));
            }
            let extension = Extension::of(name.as_ref());
            let known = by_extension.iter().position(|(of, _)| *of == extension);
            let base = known.map_or(tolerance, |at| by_extension[at].1);
            let own = base.with(options, &format!(".{name}"))?;
            // The index finds candidates without names, by the tolerances for all extensions.
            if own.stricter(tolerance) != own {
                return Err(format!("tolerances of .{name}: expected none above that for all extensions"));
            }
            match known {
                Some(at) => by_extension[at].1 = own,
                None => by_extension.push((extension, own)),
            }
        }
        Ok(SimHash { key, tolerance, by_extension })
    }
}

impl Tolerance {
    /// Returns the stricter value of each setting.
    fn stricter(self, other: Tolerance) -> Tolerance {
        let Tolerance { key, size, sums } = self;
        Tolerance { key: key.min(other.key), size: size.min(other.size), sums: sums.min(other.sums) }
    }

    /// Returns these tolerances with the options whose keys end in `end`.
    fn with(mut self, options: &mut Options, end: &str) -> Result<Tolerance, String> {
        let mut share = |key: &str| -> Result<Option<f64>, String> {
            let (key, expected) = (format!("{key}{end}"), "a number from 0 to 1");
            match options.parse::<f64>(&key, expected)? {
                Some(share) if !(0.0..=1.0).contains(&share) => {
                    Err(format!("{key}={share}: expected {expected}"))
                }
                share => Ok(share),
            }
        };
        if let Some(both) = share("tolerance")? {
            (self.key, self.sums) = (both, both);
        }
        self.key = share("keys")?.unwrap_or(self.key);
        self.sums = share("tables")?.unwrap_or(self.sums);
        self.size = share("size")?.unwrap_or(self.size);
        Ok(self)
    }
}

impl Method for SimHash {
    type Sketch = SimSketch;
    type Head = SimSketch;
    type Builder = SimBuilder;
    const NAME: &'static str = "simhash";
    const BY_NAME: bool = true;
    const BY_RANGE: bool = true;

    fn parameters(&self) -> String {
        format!("tags {TAGS:02x?}, key {}, weights {:?}", self.key.name, self.key.weights)
    }

    fn described(&self) -> String {
        let told =
            |Tolerance { key, size, sums }: Tolerance| format!("keys {key}, sizes {size}, tables {sums}");
        let mut text = format!("key {}, tolerance of {}", self.key.name, told(self.tolerance));
        for (extension, tolerance) in &self.by_extension {
            text += &format!("; .{extension}: {}", told(*tolerance));
        }
        text
    }

    fn builder(&self, name: Option<&OsStr>) -> SimBuilder {
        let extension = name.map_or(Extension::default(), Extension::of_name);
        SimBuilder { key: self.key, extension, counter: TagCounter::default() }
    }

    fn head(&self, sketch: &SimSketch) -> SimSketch {
        sketch.clone()
    }

    fn entries(&self, sketch: &SimSketch) -> Vec<Entry> {
        if sketch.size == 0 { Vec::new() } else { vec![Entry { key: self.key_of(sketch), value: 1 }] }
    }

    fn encode(&self, sketch: &SimSketch) -> Vec<u8> {
        let mut out = sketch.extension.0.to_vec();
        put_varint(&mut out, sketch.size);
        sketch.sums.iter().for_each(|&sum| put_varint(&mut out, sum));
        out
    }

    fn decode(&self, mut bytes: &[u8]) -> Result<SimSketch, Damaged> {
        let damaged = |expected| Damaged { method: Self::NAME, expected };
        let mut decode = || {
            let (extension, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            let size = take_varint(&mut bytes)?;
            let mut sums = [0; TAG_COUNT];
            for sum in &mut sums {
                *sum = take_varint(&mut bytes)?;
            }
            Some(SimSketch { size, extension: Extension(*extension), sums })
        };
        let sketch = decode().ok_or(damaged("an extension, a size and 16 sums"))?;
        if !bytes.is_empty() {
            return Err(damaged("nothing after 16 sums"));
        }
        // Hits of one tag do not overlap.
        if sketch.sums.iter().any(|&sum| sum > sketch.size) {
            return Err(damaged("at most as many hits of a tag as bytes"));
        }
        Ok(sketch)
    }

    /// Returns the keys of all files from which this one is near, and of those that are near from this one.
    fn near(&self, sketch: &SimSketch) -> Vec<RangeInclusive<u64>> {
        if sketch.size == 0 {
            return Vec::new();
        }
        let Tolerance { key, size, .. } = self.tolerance_of(sketch.extension);
        // The largest file whose size is near enough.
        let largest = sketch.size as f64 / (1.0 - size).max(f64::MIN_POSITIVE);
        vec![self.key.near(sketch.extension, self.key_of(sketch), (key * largest).ceil() as u64)]
    }

    /// Adds the extension, which keeps files of others apart and may have stricter tolerances.
    fn called(&self, sketch: SimSketch, name: &OsStr) -> SimSketch {
        SimSketch { extension: Extension::of_name(name), ..sketch }
    }

    /// Returns the distance of the sum tables for each byte of the larger file; no measure if the files are not similar by
    /// the paper, from either side.
    fn likeness(&self, a: &Whole<SimSketch>, b: &Whole<SimSketch>, _sums: &Sums) -> Likeness {
        let (a, b) = (&a.head, &b.head);
        let apart = self.key.extension && a.extension != b.extension;
        if apart || a.size == 0 || b.size == 0 || !self.keys_fit(a, b) || !self.sizes_fit(a, b) {
            return Likeness::default();
        }
        let distance =
            self.fitting_distance(a, b).map(|distance| distance as f64 / a.size.max(b.size) as f64);
        Likeness { distance, ..Likeness::default() }
    }
}

#[cfg(test)]
mod tests;
