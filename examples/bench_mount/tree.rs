//! Files to work on, the same in each run: half of them text that compresses about as program text does, half noise.

use std::path::Path;
use std::process::Command;

/// xorshift64*.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

const BLOCK: usize = 64 << 10;

/// `len` bytes, in blocks of text and of noise by turns.
pub(super) fn content(len: usize, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + BLOCK);
    while out.len() < len {
        let until = out.len() + BLOCK;
        text(until, &mut out, random);
        let until = out.len() + BLOCK;
        while out.len() < until {
            out.extend(random.next().to_le_bytes());
        }
    }
    out.truncate(len);
    out
}

fn text(until: usize, out: &mut Vec<u8>, random: &mut Random) {
    while out.len() < until {
        // Of 4,096 words some come often.
        let mut word = random.below(4096) * random.below(4096) / 4096;
        for _ in 0..3 + word % 7 {
            out.push(b'a' + (word % 26) as u8);
            word = word.wrapping_mul(31).wrapping_add(7);
        }
        out.push(if random.below(12) == 0 { b'\n' } else { b' ' });
    }
}

/// Makes `tree.tar` in `dir`: 4,000 files in 200 directories.
pub(super) fn pack(dir: &Path) {
    let tree = dir.join("tree");
    let mut random = Random::new(3);
    for d in 0..200 {
        let dir = tree.join(format!("part-{}/dir-{d}", d % 14));
        std::fs::create_dir_all(&dir).unwrap();
        for f in 0..20 {
            let mut bytes = Vec::new();
            text(random.below(16 << 10) as usize, &mut bytes, &mut random);
            std::fs::write(dir.join(format!("file-{f}.txt")), bytes).unwrap();
        }
    }
    let run = |program: &str, args: &[&str]| {
        assert!(Command::new(program).args(args).current_dir(dir).status().unwrap().success());
    };
    run("tar", &["-cf", "tree.tar", "tree"]);
    run("rm", &["-r", "tree"]);
}
