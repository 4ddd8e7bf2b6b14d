//! Reading files in every way, and what must be true of what is read.

use super::map::{Aligned, How, Map};
use super::table::{BLOCK, BYTES_MAX, FILES, Kind, Table, kind, len_of, version_in};
use super::{Rng, file_path};
use std::fs::{File, OpenOptions};
use std::io::{Read, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

const KEPT_MAX: usize = 6;

enum Source {
    Map(Map),
    File(File),
}

/// A file that stays open or mapped while it is changed.
struct Kept {
    file: usize,
    source: Source,
    how: &'static str,
    /// Of a file that is replaced: this inode's only version.
    version: Option<u64>,
}

/// One thread that reads.
pub struct Reader {
    table: &'static Table,
    kept: Vec<Kept>,
    /// The oldest word that this thread saw last in each block.
    seen: Vec<[u64; super::table::BLOCKS]>,
}

/// What is known before a read begins.
struct Before {
    quiet: Option<u64>,
    len: usize,
    oldest: u64,
    done: Vec<u64>,
}

impl Reader {
    pub fn new(table: &'static Table) -> Reader {
        Reader { table, kept: Vec::new(), seen: vec![[0; super::table::BLOCKS]; FILES] }
    }

    /// Reads a file, in a way drawn by lot.
    pub fn read(&mut self, dir: &Path, file: usize, rng: &mut Rng) -> Result<()> {
        let path = file_path(dir, file);
        let before = self.before(file);
        let stable = matches!(kind(file), Kind::InPlace | Kind::Replaced);
        let (words, kept, how) = match rng.below(if stable { 8 } else { 3 }) {
            0 => {
                let mut from = File::open(path)?;
                let mut content = Vec::new();
                from.read_to_end(&mut content)?;
                (words(&content), Some(Source::File(from)), "read")
            }
            1 => {
                let from = File::open(path)?;
                let content = pieces(&from, 1 + rng.below(BLOCK))?;
                (words(&content), Some(Source::File(from)), "pread")
            }
            2 => (words(&direct(&path)?), None, "O_DIRECT"),
            n => {
                let from = OpenOptions::new().read(true).write(n == 7).open(path)?;
                let how = if n.is_multiple_of(2) { How::Shared } else { How::Private };
                let map = Map::new(&from, from.metadata()?.len() as usize, how)
                    .map_err(|e| std::io::Error::other(format!("mmap: {e}")))?;
                let name = if how == How::Shared { "shared mmap" } else { "private mmap" };
                (map.words(), Some(Source::Map(map)), name)
            }
        };
        let version = self.check(file, &words, &before, how, None);
        if let Some(source) = kept.filter(|_| stable && rng.below(3) == 0) {
            if self.kept.len() == KEPT_MAX {
                self.kept.swap_remove(rng.below(KEPT_MAX));
            }
            let version = version.filter(|_| kind(file) == Kind::Replaced);
            self.kept.push(Kept { file, source, how, version });
        }
        Ok(())
    }

    /// Looks again at something that is open or mapped.
    pub fn look_again(&mut self, rng: &mut Rng) -> Result<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let kept = self.kept.swap_remove(rng.below(self.kept.len()));
        let before = self.before(kept.file);
        let words = match &kept.source {
            Source::Map(map) => map.words(),
            Source::File(file) => words(&pieces(file, 1 + rng.below(2 * BLOCK))?),
        };
        self.check(kept.file, &words, &before, kept.how, kept.version);
        if rng.below(8) > 0 {
            self.kept.push(kept);
        }
        Ok(())
    }

    /// Reads a file that nobody writes to.
    pub fn read_at_rest(&mut self, dir: &Path, file: usize) -> Result<()> {
        let before = self.before(file);
        assert!(before.quiet.is_some(), "file {file} is not at rest");
        let content = std::fs::read(file_path(dir, file))?;
        self.check(file, &words(&content), &before, "read at rest", None);
        Ok(())
    }

    fn before(&self, file: usize) -> Before {
        let state = &self.table.files[file];
        let quiet = state.quiet();
        let done = state.blocks.iter().zip(&self.seen[file]);
        Before {
            quiet,
            len: state.len.load(SeqCst) as usize,
            oldest: state.oldest.load(SeqCst),
            done: done.map(|(block, seen)| block.done.load(SeqCst).max(*seen)).collect(),
        }
    }

    /// Checks what was read; of a file that is replaced, says which version it was.
    fn check(
        &mut self,
        file: usize,
        words: &[u64],
        before: &Before,
        how: &str,
        only: Option<u64>,
    ) -> Option<u64> {
        let (state, kind) = (&self.table.files[file], kind(file));
        let quiet = before.quiet.is_some() && before.quiet == state.quiet();
        let wrong = |what: String| -> ! {
            panic!(
                "file {file} ({kind:?}) by {how}, {}: {what}",
                if quiet { "at rest" } else { "while written" }
            )
        };
        let mut first = None;
        let mut last = 0;
        for (number, block) in words.chunks(BLOCK / 8).enumerate() {
            let begun = state.blocks[number].begun.load(SeqCst);
            let mut oldest = u64::MAX;
            for (i, &word) in block.iter().enumerate() {
                let index = number * BLOCK / 8 + i;
                // What a file just made longer shows to a reader that met it while it was short.
                if word == 0 && !quiet && matches!(kind, Kind::Rewritten | Kind::Appended) {
                    continue;
                }
                let Some(version) = version_in(word, file, index) else {
                    wrong(format!("word {index} is {word:#018x}, which was never written there"));
                };
                let least = match (kind, only) {
                    (_, Some(version)) => version,
                    (Kind::Appended, _) => before.oldest,
                    _ => before.done[number],
                };
                if version < least || version > begun {
                    wrong(format!("word {index} is of version {version}, expected {least} to {begun}"));
                }
                let first = *first.get_or_insert(version);
                if version != first && (kind == Kind::Replaced || kind == Kind::Rewritten && quiet) {
                    wrong(format!("word {index} is of version {version}, the first one of {first}"));
                }
                if kind == Kind::Appended && quiet && version < last {
                    wrong(format!("word {index} is of version {version}, the one before of {last}"));
                }
                last = version;
                oldest = oldest.min(version);
            }
            if kind == Kind::InPlace {
                let seen = &mut self.seen[file][number];
                *seen = (*seen).max(oldest);
            }
        }
        let len = match (kind, first) {
            (Kind::InPlace, _) => Some(len_of(file, 0)),
            (Kind::Replaced, version) => Some(version.map_or(0, |version| len_of(file, version))),
            _ => quiet.then_some(before.len),
        };
        if len.is_some_and(|len| len != words.len() * 8) {
            wrong(format!("{} bytes, expected {len:?}", words.len() * 8));
        }
        if only.is_some() && first != only {
            wrong(format!("version {first:?} of what was opened as {only:?}"));
        }
        self.table.reads.fetch_add(1, SeqCst);
        self.table.words.fetch_add(words.len() as u64, SeqCst);
        first
    }
}

/// Whole words; the last one may just be being written.
fn words(content: &[u8]) -> Vec<u64> {
    content.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

fn pieces(from: &File, len: usize) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut buffer = vec![0; len.next_multiple_of(8)];
    loop {
        match from.read_at(&mut buffer, content.len() as u64)? {
            0 => return Ok(content),
            n => content.extend_from_slice(&buffer[..n]),
        }
    }
}

fn direct(path: &Path) -> Result<Vec<u8>> {
    let from = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut aligned = Aligned::new(BYTES_MAX + BLOCK);
    let len = from.read_at(aligned.bytes(BYTES_MAX + BLOCK), 0)?;
    Ok(aligned.bytes(BYTES_MAX + BLOCK)[..len].to_vec())
}
