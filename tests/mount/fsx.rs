//! One file under random reads, writes, mappings, truncation, allocation, holes and copies, against bytes in memory;
//! in between it is closed, becomes a stub, is mounted anew, and goes on.
//!
//! A failure prints its seed. Seen to fail with an fallocate that is a byte short, as root and without passthrough.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first error, and the long form tells what it did"
)]

use crate::common::{As, Mount, as_both, root_and_fuse_available};
use rustix::fs::{FallocateFlags, OFlags};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

const SIZE_MAX: u64 = 400_000;
const OP_BYTES_MAX: u64 = 50_000;

/// xorshift64*: the same for the same seed, on any machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

struct Exerciser {
    /// Closed before the mount ends.
    file: File,
    mount: Mount,
    random: Random,
    model: Vec<u8>,
    seed: u64,
    step: u32,
    stubs: u32,
    /// It is closed and converted only one time in so many that it could be.
    calm: u64,
}

impl Exerciser {
    fn new(user: As, flags: &[&str], seed: u64) -> Exerciser {
        let mount = Mount::with_flags(user, flags);
        let file = open(mount.at("file"), 0);
        // A seed of 0 would stay 0.
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Exerciser { file, mount, random, model: Vec::new(), seed, step: 0, stubs: 0, calm: 1 }
    }

    fn run(mut self, steps: u32) -> u32 {
        for step in 0..steps {
            self.step = step;
            self.act();
        }
        self.check_whole();
        self.stubs
    }

    fn act(&mut self) {
        let at = self.random.below(SIZE_MAX - OP_BYTES_MAX);
        let len = 1 + self.random.below(OP_BYTES_MAX);
        let what = self.random.below(100);
        match what {
            0..15 => self.read(at, len),
            15..35 => {
                let data = self.data(len);
                self.file.write_all_at(&data, at).unwrap();
                self.put(at, &data);
            }
            35..45 => self.map_and_read(at, len),
            45..60 => self.map_and_write(at, len),
            60..68 => {
                let size = self.random.below(SIZE_MAX);
                self.file.set_len(size).unwrap();
                self.model.resize(size as usize, 0);
            }
            68..80 => self.allocate(at, len),
            80..86 => self.copy(at, len),
            86..89 => {
                if self.random.below(2) == 0 { self.file.sync_all() } else { self.file.sync_data() }.unwrap();
            }
            89..94 => {
                let flags = [0, libc::O_APPEND, libc::O_TRUNC, libc::O_SYNC][self.random.below(4) as usize];
                self.file = open(self.mount.at("file"), flags);
                if flags == libc::O_TRUNC {
                    self.model.clear();
                }
                if flags == libc::O_APPEND {
                    use std::io::Write;
                    let data = self.data(100);
                    self.file.write_all(&data).unwrap();
                    self.model.extend_from_slice(&data);
                    // Positions of writes count for nothing in this one.
                    self.file = open(self.mount.at("file"), 0);
                }
            }
            _ if self.random.below(self.calm) > 0 => {}
            _ => self.close_and_convert(what == 99),
        }
        self.check_size();
    }

    fn data(&mut self, len: u64) -> Vec<u8> {
        let byte = self.random.next() as u8;
        (0..len).map(|i| byte.wrapping_add((i / 7) as u8)).collect()
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        let (at, end) = (at as usize, at as usize + data.len());
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at..end].copy_from_slice(data);
    }

    /// What is to be at a place, as far as the file goes.
    fn expected(&self, at: u64, len: u64) -> &[u8] {
        let size = self.model.len();
        &self.model[(at as usize).min(size)..(at as usize + len as usize).min(size)]
    }

    #[track_caller]
    fn same(&self, found: &[u8], at: u64) {
        let expected = self.expected(at, found.len() as u64);
        if found != expected {
            let first = found.iter().zip(expected).position(|(a, b)| a != b);
            panic!(
                "seed {}, step {}: {} bytes at {at}, expected {}, the first that differs is {first:?}",
                self.seed,
                self.step,
                found.len(),
                expected.len()
            );
        }
    }

    #[track_caller]
    fn check_size(&self) {
        let size = self.file.metadata().unwrap().len();
        assert_eq!(size, self.model.len() as u64, "size; seed {}, step {}", self.seed, self.step);
    }

    fn check_whole(&self) {
        let found = std::fs::read(self.mount.at("file")).unwrap();
        assert_eq!(found.len(), self.model.len(), "seed {}, step {}", self.seed, self.step);
        self.same(&found, 0);
    }

    fn read(&mut self, at: u64, len: u64) {
        let mut buffer = vec![0; len as usize];
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], at + filled as u64).unwrap() {
                0 => break,
                n => filled += n,
            }
        }
        buffer.truncate(filled);
        let left = (self.model.len() as u64).saturating_sub(at).min(len);
        assert_eq!(filled as u64, left, "seed {}, step {}", self.seed, self.step);
        self.same(&buffer, at);
    }

    fn map_and_read(&mut self, at: u64, len: u64) {
        let len = len.min((self.model.len() as u64).saturating_sub(at));
        if len > 0 {
            let found = with_mapping(&self.file, at, len, |bytes| bytes.to_vec());
            self.same(&found, at);
        }
    }

    fn map_and_write(&mut self, at: u64, len: u64) {
        let size = self.model.len().max((at + len) as usize);
        if size > self.model.len() {
            self.file.set_len(size as u64).unwrap();
            self.model.resize(size, 0);
        }
        let data = self.data(len);
        with_mapping(&self.file, at, len, |bytes| bytes.copy_from_slice(&data));
        self.put(at, &data);
    }

    fn allocate(&mut self, at: u64, len: u64) {
        let keep = FallocateFlags::KEEP_SIZE;
        let (flags, zero, grow) = match self.random.below(5) {
            0 => (FallocateFlags::empty(), false, true),
            1 => (keep, false, false),
            2 | 3 => (keep | FallocateFlags::PUNCH_HOLE, true, false),
            _ => (FallocateFlags::ZERO_RANGE, true, true),
        };
        rustix::fs::fallocate(&self.file, flags, at, len).unwrap();
        let end = (at + len) as usize;
        if grow && self.model.len() < end {
            self.model.resize(end, 0);
        }
        if zero {
            let size = self.model.len();
            self.model[(at as usize).min(size)..end.min(size)].fill(0);
        }
    }

    /// From one place of the file to another.
    fn copy(&mut self, at: u64, len: u64) {
        let to = self.random.below(SIZE_MAX - OP_BYTES_MAX);
        let data = self.expected(at, len).to_vec();
        if data.is_empty() || at.abs_diff(to) < len {
            return;
        }
        let (mut from_at, mut to_at, mut left) = (at, to, data.len());
        while left > 0 {
            let copied = rustix::fs::copy_file_range(
                &self.file,
                Some(&mut from_at),
                &self.file,
                Some(&mut to_at),
                left,
            );
            let copied = copied.unwrap();
            assert!(copied > 0, "seed {}, step {}", self.seed, self.step);
            left -= copied;
        }
        self.put(to, &data);
    }

    fn close_and_convert(&mut self, remount: bool) {
        self.file = File::open(self.mount.mnt()).unwrap();
        if self.random.below(4) > 0 {
            self.mount.settle();
            self.stubs += u32::from(self.mount.is_stub("file"));
        }
        if remount {
            self.file = File::open("/").unwrap();
            self.mount.remount();
        }
        // Sometimes a reader comes first and stays while it is written to.
        let reader = (self.random.below(2) == 0).then(|| File::open(self.mount.at("file")).unwrap());
        if let Some(reader) = &reader {
            let mut first = vec![0; self.model.len().min(1000)];
            reader.read_exact_at(&mut first, 0).unwrap();
            self.same(&first, 0);
        }
        self.file = open(self.mount.at("file"), 0);
        self.check_whole();
    }
}

fn open(path: PathBuf, flags: i32) -> File {
    let truncate = flags & libc::O_TRUNC != 0;
    let flags = OFlags::from_bits_retain((flags & !libc::O_TRUNC) as u32).bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(truncate).custom_flags(flags);
    options.open(path).unwrap()
}

/// Calls `with` on a piece of the file that is mapped for as long.
fn with_mapping<T>(file: &File, at: u64, len: u64, with: impl FnOnce(&mut [u8]) -> T) -> T {
    let start = at / 4096 * 4096;
    let (skip, len) = ((at - start) as usize, (at - start + len) as usize);
    let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: a new mapping within the file, which nobody truncates while it lives; it is used here only.
    unsafe {
        let mapped =
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, start as libc::off_t);
        assert_ne!(mapped, libc::MAP_FAILED);
        let result = with(&mut std::slice::from_raw_parts_mut(mapped.cast::<u8>(), len)[skip..]);
        assert_eq!(libc::munmap(mapped, len), 0);
        result
    }
}

#[test]
fn a_file_keeps_its_bytes_through_anything() {
    as_both(|user| {
        let stubs: u32 = [1, 2].map(|seed| Exerciser::new(user, &[], seed).run(800)).iter().sum();
        assert!(stubs > 25, "it became a stub {stubs} times");
    });
}

#[test]
fn a_file_keeps_its_bytes_without_passthrough() {
    if root_and_fuse_available() {
        assert!(Exerciser::new(As::Root, &["--no-passthrough"], 3).run(800) > 12);
    }
}

/// So many in all, of four seeds: `DEDUPFS_FSX_STEPS`, a million if not set. Two seeds as root, by passthrough and without
/// it, and two as an ordinary user.
#[test]
#[ignore = "takes about an hour"]
fn a_file_keeps_its_bytes_through_a_million_operations() {
    let steps = std::env::var("DEDUPFS_FSX_STEPS").map_or(1_000_000, |steps| steps.parse().unwrap());
    as_both(|user| {
        let seeds = match user {
            As::Root => [(&[][..], 10), (&["--no-passthrough"][..], 11)],
            As::User => [(&[][..], 12), (&[][..], 13)],
        };
        std::thread::scope(|scope| {
            for (flags, seed) in seeds {
                scope.spawn(move || {
                    let exerciser = Exerciser { calm: 10, ..Exerciser::new(user, flags, seed) };
                    let stubs = exerciser.run(steps / 4);
                    eprintln!("{user:?} {flags:?}, seed {seed}: {} steps, a stub {stubs} times", steps / 4);
                });
            }
        });
    });
}
