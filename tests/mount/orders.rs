//! Opening, mapping, writing, closing and converting one file in every order: no step is an error, and what is read
//! is what was written.
//!
//! Every sequence has a file of its own. They go on together until all that are not done wait for a conversion,
//! which is then one for all: so each sequence meets exactly the steps that it names.
//!
//! Seen to fail with: a reader of a stub that has no file to read when somebody shortens it (EBADF).
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first error, and tells how much it did"
)]

use crate::common::{As, Mount, alone, fuse_available, root_and_fuse_available};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    OpenRead,
    OpenWrite,
    OpenTruncate,
    Map,
    CloseFirst,
    CloseLast,
    Truncate,
    Read,
    Write,
    Settle,
}

use Step::*;
const STEPS: [Step; 10] =
    [OpenRead, OpenWrite, OpenTruncate, Map, CloseFirst, CloseLast, Truncate, Read, Write, Settle];
const LEN: usize = 9000;

/// A shared mapping to read, which outlives the descriptor that it was made with.
struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn new(path: &Path) -> Mapping {
        let file = File::open(path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping, read only as far as the file goes and unmapped when this is dropped.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { at, len }
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        let at = self.at.cast::<u8>();
        // SAFETY: within the mapping and the file, to which nobody writes just now.
        (0..len.min(self.len)).map(|i| unsafe { at.add(i).read_volatile() }).collect()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

enum Held {
    Open { file: File, write: bool, read: bool },
    Mapped(Mapping),
}

/// One file and what is to happen to it.
struct Case {
    path: PathBuf,
    steps: Vec<Step>,
    next: usize,
    content: Vec<u8>,
    held: Vec<Held>,
}

impl Case {
    /// Goes on to the next conversion, or the end.
    fn advance(&mut self) {
        while let Some(&step) = self.steps.get(self.next) {
            if step == Settle {
                return;
            }
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step(step)));
            assert!(done.is_ok(), "{:?}: step {}", self.steps, self.next);
            self.next += 1;
        }
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.look()));
        assert!(seen.is_ok(), "{:?}: after the last step", self.steps);
    }

    fn step(&mut self, step: Step) {
        let mark = [b'a' + self.next as u8; 100];
        match step {
            OpenRead => self.open(File::open(&self.path).unwrap(), false, true),
            OpenWrite => {
                let file = OpenOptions::new().read(true).write(true).open(&self.path).unwrap();
                self.open(file, true, true);
            }
            OpenTruncate => {
                let file = OpenOptions::new().write(true).truncate(true).open(&self.path).unwrap();
                self.content.clear();
                self.open(file, true, false);
            }
            Map if self.content.is_empty() => {}
            Map => self.held.push(Held::Mapped(Mapping::new(&self.path))),
            CloseFirst if !self.held.is_empty() => drop(self.held.remove(0)),
            CloseLast => drop(self.held.pop()),
            CloseFirst | Settle => {}
            Truncate => {
                let path = std::ffi::CString::new(self.path.to_str().unwrap()).unwrap();
                // SAFETY: a C string. Unlike ftruncate, this opens nothing.
                let done = unsafe { libc::truncate(path.as_ptr(), 5000) };
                assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
                self.content.resize(5000, 0);
            }
            Read => self.look(),
            Write => {
                let writable = self.held.iter().rev().find_map(|held| match held {
                    Held::Open { file, write: true, .. } => Some(file),
                    _ => None,
                });
                if let Some(file) = writable {
                    let at = self.content.len() / 2;
                    file.write_all_at(&mark, at as u64).unwrap();
                    self.content.resize(self.content.len().max(at + mark.len()), 0);
                    self.content[at..at + mark.len()].copy_from_slice(&mark);
                }
            }
        }
    }

    fn open(&mut self, file: File, write: bool, read: bool) {
        self.held.push(Held::Open { file, write, read });
    }

    /// Whoever has the file open or mapped sees what it holds, and so does who opens it now.
    fn look(&self) {
        for held in &self.held {
            match held {
                Held::Open { file, read: true, .. } => {
                    let mut found = vec![0; self.content.len() + 1];
                    let len = file.read_at(&mut found, 0).unwrap();
                    assert!(found[..len] == self.content, "through an open file");
                }
                Held::Open { .. } => {}
                Held::Mapped(mapping) => {
                    let len = mapping.len.min(self.content.len());
                    assert!(mapping.bytes(len) == self.content[..len], "through a mapping");
                }
            }
        }
        assert!(fs::read(&self.path).unwrap() == self.content, "through a new open");
        assert_eq!(fs::metadata(&self.path).unwrap().len(), self.content.len() as u64);
    }
}

/// Runs every sequence of N steps on files that begin as stubs or plain. Lowers this process's limit of open files.
fn every_order(flags: &[&str], count: u32) {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let mount = Mount::with_flags(As::Root, &[&["--dedup", "idle:1h"], flags].concat());
    let all = STEPS.len().pow(count);
    let mut done = 0;
    for stubs in [true, false] {
        for part in (0..all).collect::<Vec<_>>().chunks(2500) {
            let dir = mount.at("dir");
            fs::create_dir(&dir).unwrap();
            let case = |&number: &usize| {
                let digit = |place: u32| STEPS[number / STEPS.len().pow(place) % STEPS.len()];
                let content = crate::common::noise(number as u64, LEN);
                let path = dir.join(number.to_string());
                fs::write(&path, &content).unwrap();
                Case { path, steps: (0..count).map(digit).collect(), next: 0, content, held: Vec::new() }
            };
            let mut cases: Vec<_> = part.iter().map(case).collect();
            if stubs {
                mount.settle();
            }
            for _ in 0..=count {
                cases.iter_mut().for_each(Case::advance);
                if cases.iter().all(|case| case.next == case.steps.len()) {
                    break;
                }
                mount.settle();
                for case in cases.iter_mut().filter(|case| case.next < case.steps.len()) {
                    case.next += 1;
                }
            }
            assert!(cases.iter().all(|case| case.next == case.steps.len()));
            cases.iter_mut().for_each(|case| case.held.clear());
            mount.settle();
            for case in &cases {
                let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.look()));
                assert!(seen.is_ok(), "{:?}: at rest", case.steps);
            }
            done += cases.len();
            fs::remove_dir_all(&dir).unwrap();
        }
    }
    println!("{flags:?}: {done} sequences of {count} steps");
    let log = fs::read_to_string(mount.dir().join(".dedupfs/dedupfs.log")).unwrap();
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn every_order_of_three_steps_is_right() {
    if !fuse_available() || !root_and_fuse_available() {
        return;
    }
    alone(|| {
        every_order(&[], 3);
        every_order(&["--no-passthrough"], 3);
    });
}

#[test]
#[ignore = "takes minutes"]
fn every_order_of_four_steps_is_right() {
    assert!(root_and_fuse_available());
    alone(|| {
        every_order(&[], 4);
        every_order(&["--no-passthrough"], 4);
    });
}
