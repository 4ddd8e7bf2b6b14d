//! Trees of small files.
//!
//! - File `n` has the same name and bytes in every tree, so that a large tree holds a small one.
//! - Of eight files four are text, two are edits of the text before them, one is a licence with a line of its own, and
//!   one is random. All have 1 to 4 KiB.
//! - A directory holds 64 files, and its parent 64 directories.

use crate::numbers::Numbers;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the path of file `n` below the tree's root.
pub fn path(n: u64) -> PathBuf {
    format!("p{:04}/d{:02}/f{n:08}.{}", n >> 12, n >> 6 & 63, if n & 7 == 7 { "bin" } else { "txt" }).into()
}

/// Makes the files `from..to` below `root`.
pub fn make(root: &Path, from: u64, to: u64) {
    let words = Words::new();
    let licence = words.text(&mut Numbers::new(1), 900);
    for n in from..to {
        let path = root.join(path(n));
        if n == from || n & 63 == 0 {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        fs::write(path, content(&words, &licence, n)).unwrap();
    }
}

/// The bytes of file `n`.
fn content(words: &Words, licence: &[u8], n: u64) -> Vec<u8> {
    let mut numbers = Numbers::new(n << 8 | 2);
    let bytes = 1024 + numbers.below(3 << 10);
    match n & 7 {
        // Edits of the file before, which is text.
        4 | 5 => {
            let mut text = content(words, licence, n & !7 | 3);
            for _ in 0..1 + numbers.below(3) {
                let at = numbers.below(text.len());
                text.splice(at..at, words.text(&mut numbers, 12));
            }
            text
        }
        6 => [licence, &words.text(&mut numbers, bytes - 900)].concat(),
        7 => (0..bytes).map(|_| numbers.next() as u8).collect(),
        _ => words.text(&mut numbers, bytes),
    }
}

/// A vocabulary; the first words are the frequent ones.
struct Words(Vec<Vec<u8>>);

impl Words {
    fn new() -> Self {
        let mut numbers = Numbers::new(3);
        let mut letters = |len| (0..len).map(|_| b'a' + numbers.below(26) as u8).collect();
        Self((0..20_000).map(|n: usize| letters(2 + (n + 1).ilog2().min(9) as usize * 2 / 3)).collect())
    }

    /// At least `bytes` of text.
    fn text(&self, numbers: &mut Numbers, bytes: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes + 16);
        while text.len() < bytes {
            let share = numbers.share();
            let word = (self.0.len() as f64).powf(share) as usize;
            text.extend_from_slice(&self.0[word.min(self.0.len() - 1)]);
            text.push(if numbers.below(12) == 0 { b'\n' } else { b' ' });
        }
        text
    }
}
