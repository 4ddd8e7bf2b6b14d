//! Sketches without their types, for files of any length: entries that do not fit in memory are sorted on disk.

use super::sorter::{Merge, Sorted, Sorter};
use super::{AnyBuilder, AnyMethod, Entry, Likeness, Method, Sums};
use crate::similarity::SimilarityError;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

type Result<T> = std::result::Result<T, SimilarityError>;

/// key 8 | value 8
const ENTRY_BYTES: usize = 16;

/// Makes the sketch of one file.
pub struct Sketcher {
    method: Arc<dyn AnyMethod>,
    builder: Box<dyn AnyBuilder>,
    sorter: Sorter<ENTRY_BYTES>,
}

impl Sketcher {
    /// Starts a sketch. Holds at most about `memory` bytes of entries; the rest goes to a temporary file in `dir`.
    pub fn new(method: Arc<dyn AnyMethod>, name: Option<&OsStr>, dir: &Path, memory: usize) -> Sketcher {
        Sketcher { builder: method.start(name), method, sorter: Sorter::new(dir, memory) }
    }

    /// Takes the next bytes, however many. Fails if the temporary file cannot be written.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.builder.add_bytes(bytes);
        let (mut failed, sorter) = (Ok(()), &mut self.sorter);
        self.builder.give(&mut |entry| put(sorter, entry, &mut failed));
        failed
    }

    /// Ends the file.
    pub fn finish(self) -> Result<AnySketch> {
        let Sketcher { method, builder, mut sorter } = self;
        let mut failed = Ok(());
        let head = builder.end(&mut |entry| put(&mut sorter, entry, &mut failed));
        failed?;
        AnySketch::sorted(method, head, sorter)
    }
}

fn put(sorter: &mut Sorter<ENTRY_BYTES>, entry: Entry, failed: &mut Result<()>) {
    let mut record = [0; ENTRY_BYTES];
    record[..8].copy_from_slice(&entry.key.to_be_bytes());
    record[8..].copy_from_slice(&entry.value.to_be_bytes());
    if failed.is_ok() {
        *failed = sorter.add(record);
    }
}

/// The sketch of a file by any method.
pub struct AnySketch {
    method: Arc<dyn AnyMethod>,
    head: Vec<u8>,
    keys: u64,
    entries: Sorted<ENTRY_BYTES>,
}

impl AnySketch {
    /// Makes it from a sketch in memory.
    pub fn of<M: Method>(method: &M, sketch: &M::Sketch) -> Result<AnySketch> {
        let mut sorter = Sorter::new(Path::new(""), usize::MAX);
        let mut failed = Ok(());
        method.entries(sketch).into_iter().for_each(|entry| put(&mut sorter, entry, &mut failed));
        failed?;
        AnySketch::sorted(Arc::new(method.clone()), method.encode(&method.head(sketch)), sorter)
    }

    fn sorted(method: Arc<dyn AnyMethod>, head: Vec<u8>, sorter: Sorter<ENTRY_BYTES>) -> Result<AnySketch> {
        let mut sketch = AnySketch { method, head, keys: 0, entries: sorter.finish()? };
        let mut keys = 0;
        sketch.each(&mut |_| {
            keys += 1;
            Ok(())
        })?;
        sketch.keys = keys;
        Ok(sketch)
    }

    /// Returns the encoded head.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the same sketch under a name.
    pub fn called(mut self, name: &OsStr) -> Result<AnySketch> {
        self.head = self.method.called_by(&self.head, name)?;
        Ok(self)
    }

    /// How many different keys it has.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Returns how it compares with itself.
    pub fn with_itself(&self) -> Result<Likeness> {
        let mut sums = Sums::default();
        self.each(&mut |entry| {
            self.method.met(&mut sums, entry.value, entry.value);
            Ok(())
        })?;
        Ok(self.method.comparer(&self.head, self.keys)?.with(&self.head, self.keys, &sums)?)
    }

    /// Calls `visit` with the entries by key, each key once.
    pub fn each(&self, visit: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let mut merge = self.entries.all()?;
        let mut next = read(&mut merge)?;
        while let Some(mut entry) = next {
            next = read(&mut merge)?;
            while let Some(same) = next.filter(|next| next.key == entry.key) {
                entry.value = self.method.join(entry.value, same.value);
                next = read(&mut merge)?;
            }
            visit(entry)?;
        }
        Ok(())
    }
}

fn read(merge: &mut Merge<'_, ENTRY_BYTES>) -> Result<Option<Entry>> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    Ok(merge.next()?.map(|record| Entry { key: number(&record[..8]), value: number(&record[8..]) }))
}
