//! Templates: chunks that do not count, because files have them from a common form and not from each other (section 4 of
//! the paper). Files shrink by them to what is their own.

use super::error::io;
use super::{Collection, GraphError};
use std::collections::BTreeSet;
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

    /// Marks what all of some files of a collection share as a template, and tells how many chunks were not marked
    /// before. One pass over the collection, no file is read again.
    pub fn mark(&mut self, collection: &Collection, files: &[u32]) -> Result<usize, GraphError> {
        let wanted: BTreeSet<u32> = files.iter().copied().collect();
        let mut shared: Option<BTreeSet<u64>> = None;
        collection.each(&mut |number, _, list| {
            if wanted.contains(&number) {
                let own: BTreeSet<u64> = list.chunks().iter().map(|chunk| chunk.hash).collect();
                shared = Some(match shared.take() {
                    Some(shared) => shared.intersection(&own).copied().collect(),
                    None => own,
                });
            }
            Ok(())
        })?;
        let before = self.hashes.len();
        self.hashes.extend(shared.unwrap_or_default());
        Ok(self.hashes.len() - before)
    }

    /// Takes a mark away; whether there was one.
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

    /// Writes the list that [`Templates::load`] reads. A file that was there is replaced at once or not at all.
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
