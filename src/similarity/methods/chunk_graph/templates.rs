//! Templates: chunks that do not count, because files have them from a common form and not from each other (section 4 of
//! the paper). Only the other chunks of a file count.

use super::error::io;
use super::{Chunk, ChunkList, Collection, GraphError};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::path::Path;

/// Chunks that the user has marked, by hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Templates {
    hashes: BTreeSet<u64>,
}

impl Templates {
    /// Whether none are marked.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// How many are marked.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether a chunk is one.
    pub fn has(&self, hash: u64) -> bool {
        self.hashes.contains(&hash)
    }

    /// Marks the chunks that at least `share` (0 to 1) of some files of a collection have, and returns how many were not
    /// marked before. The paper marks those that all files of a cluster have, a share of 1; there may be none if files are in
    /// the cluster only by way of others. One pass over the collection, reads no file again.
    pub fn mark(&mut self, collection: &Collection, files: &[u32], share: f64) -> Result<usize, GraphError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(GraphError::Setting {
                name: "template share",
                found: share,
                expected: "above 0, up to 1",
            });
        }
        let wanted: BTreeSet<u32> = files.iter().copied().collect();
        let mut having: HashMap<u64, u32> = HashMap::new();
        collection.each(&mut |number, _, list| {
            if wanted.contains(&number) {
                let chunks = list.chunks().chunk_by(|a, b| a.hash == b.hash);
                chunks.for_each(|same| *having.entry(same[0].hash).or_default() += 1);
            }
            Ok(())
        })?;
        let before = self.hashes.len();
        let enough = |count: u32| f64::from(count) >= share * wanted.len() as f64;
        self.hashes.extend(having.into_iter().filter(|(_, count)| enough(*count)).map(|(hash, _)| hash));
        Ok(self.hashes.len() - before)
    }

    /// Removes a mark; returns whether there was one.
    pub fn unmark(&mut self, hash: u64) -> bool {
        self.hashes.remove(&hash)
    }

    /// Reads a list: a hash in 16 hexadecimal digits on each line; lines that start with `#` are remarks.
    pub fn load(path: &Path) -> Result<Templates, GraphError> {
        let text = std::fs::read_to_string(path).map_err(io("read templates", path))?;
        let mut hashes = BTreeSet::new();
        for (at, line) in
            text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        {
            let digits = line.len() == 16 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let hash = u64::from_str_radix(line, 16).ok().filter(|_| digits);
            hashes.insert(hash.ok_or_else(|| GraphError::Template {
                path: path.to_owned(),
                line: at + 1,
                found: line.to_owned(),
            })?);
        }
        Ok(Templates { hashes })
    }

    /// Writes the list that [`Templates::load`] reads. Replaces an existing file at once or not at all.
    pub fn save(&self, path: &Path) -> Result<(), GraphError> {
        let mut text = String::from("# Chunks that do not count when files are compared by shared chunks.\n");
        for hash in &self.hashes {
            writeln!(text, "{hash:016x}").expect("writing to a string does not fail");
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = Path::new(&beside);
        std::fs::write(beside, text).map_err(io("write templates", beside))?;
        std::fs::rename(beside, path).map_err(io("replace templates", path))
    }
}

impl ChunkList {
    /// Returns the chunks that are not templates.
    pub fn payload(&self, templates: &Templates) -> Cow<'_, [Chunk]> {
        if templates.is_empty() {
            return Cow::Borrowed(self.chunks());
        }
        Cow::Owned(self.chunks().iter().copied().filter(|chunk| !templates.has(chunk.hash)).collect())
    }
}
