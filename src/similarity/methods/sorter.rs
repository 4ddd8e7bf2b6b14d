//! Sorting more records than memory holds: sorted runs in files without a name, merged as they are read.

use crate::similarity::SimilarityError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, SimilarityError>;

const BUFFER_BYTES: usize = 64 << 10;
/// What a record takes in memory beside its bytes.
const RECORD_BYTES: usize = 32;

/// Records on their way.
pub(super) struct Sorter {
    dir: PathBuf,
    memory_bytes: usize,
    records: Vec<Box<[u8]>>,
    bytes: usize,
    runs: Vec<File>,
}

impl Sorter {
    /// With files of work in `dir`, if about `memory_bytes` do not suffice.
    pub(super) fn new(dir: &Path, memory_bytes: usize) -> Sorter {
        Sorter { dir: dir.to_owned(), memory_bytes, records: Vec::new(), bytes: 0, runs: Vec::new() }
    }

    pub(super) fn push(&mut self, record: &[u8]) -> Result<()> {
        self.bytes += record.len() + RECORD_BYTES;
        self.records.push(record.into());
        if self.bytes < self.memory_bytes {
            return Ok(());
        }
        self.spill().map_err(|source| SimilarityError::Scratch { operation: "write a sorted run", source })
    }

    fn spill(&mut self) -> io::Result<()> {
        self.records.sort_unstable();
        let mut run =
            BufWriter::with_capacity(BUFFER_BYTES, crate::similarity::scratch::nameless(&self.dir)?);
        for record in self.records.drain(..) {
            run.write_all(&(record.len() as u32).to_le_bytes())?;
            run.write_all(&record)?;
        }
        let mut file = run.into_inner()?;
        file.rewind()?;
        self.runs.push(file);
        self.bytes = 0;
        Ok(())
    }

    /// Gives `visit` every record, sorted.
    pub(super) fn finish(mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.records.sort_unstable();
        let failed = |source| SimilarityError::Scratch { operation: "read a sorted run", source };
        let mut runs: Vec<Run> = Vec::new();
        for file in self.runs {
            runs.push(Run::File(BufReader::with_capacity(BUFFER_BYTES, file)));
        }
        runs.push(Run::Memory(self.records.into_iter()));
        let mut heap = BinaryHeap::new();
        for (at, run) in runs.iter_mut().enumerate() {
            heap.extend(run.next().map_err(failed)?.map(|record| Reverse((record, at))));
        }
        while let Some(mut least) = heap.peek_mut() {
            let Reverse((record, at)) = &mut *least;
            visit(record)?;
            match runs[*at].next().map_err(failed)? {
                Some(next) => *record = next,
                None => drop(PeekMut::pop(least)),
            }
        }
        Ok(())
    }
}

enum Run {
    File(BufReader<File>),
    Memory(std::vec::IntoIter<Box<[u8]>>),
}

impl Run {
    fn next(&mut self) -> io::Result<Option<Box<[u8]>>> {
        let reader = match self {
            Run::Memory(records) => return Ok(records.next()),
            Run::File(reader) => reader,
        };
        let mut len = [0; 4];
        match reader.read_exact(&mut len) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let mut record = vec![0; u32::from_le_bytes(len) as usize];
        reader.read_exact(&mut record)?;
        Ok(Some(record.into_boxed_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// With memory for a few records, and for all.
        #[test]
        fn sorts_as_in_memory(records in prop::collection::vec(prop::collection::vec(0u8..4, 0..6), 0..200), memory in 1usize..9000) {
            let mut sorter = Sorter::new(&std::env::temp_dir(), memory);
            records.iter().for_each(|record| sorter.push(record).unwrap());
            let mut sorted = Vec::new();
            sorter.finish(&mut |record| { sorted.push(record.to_vec()); Ok(()) }).unwrap();
            let mut expected = records;
            expected.sort();
            prop_assert_eq!(sorted, expected);
        }
    }
}
