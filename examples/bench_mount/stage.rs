//! The stages of each suite: what a program does, timed in a process of its own that runs as the contestant's user.

use super::tree;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the kernel remembers when a stage starts.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Before {
    /// What the stage before left.
    Warm,
    /// Neither names nor attributes.
    NoNames,
    /// Nothing, and the daemon is a new one.
    Cold,
}

/// One row of the table.
pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) before: Before,
    /// The least ratio of speed to plain ext4 that is wanted: for root, for an ordinary user, of stubs.
    pub(super) wanted: [Option<f64>; 3],
    /// Also to be faster than bindfs.
    pub(super) beats_bindfs: bool,
    /// How long it may take at most.
    pub(super) within: Option<Duration>,
}

/// Stages that follow one another on the same files.
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Run in a mount that converts closed files at once.
    pub(super) converts: bool,
    pub(super) stages: &'static [Stage],
}

const THIRD: Option<f64> = Some(1.0 / 3.0);

const fn small(name: &'static str, title: &'static str, before: Before) -> Stage {
    Stage { name, title, before, wanted: [THIRD, None, None], beats_bindfs: true, within: None }
}

const fn data(name: &'static str, title: &'static str, before: Before, user: f64) -> Stage {
    Stage { name, title, before, wanted: [Some(0.9), Some(user), None], beats_bindfs: false, within: None }
}

const fn stub(name: &'static str, title: &'static str, before: Before, wanted: Option<f64>) -> Stage {
    Stage { name, title, before, wanted: [None, None, wanted], beats_bindfs: false, within: None }
}

const fn setup(name: &'static str) -> Stage {
    Stage { name, title: "", before: Before::Warm, wanted: [None; 3], beats_bindfs: false, within: None }
}

const fn busy(name: &'static str, title: &'static str) -> Stage {
    Stage {
        name,
        title,
        before: Before::Warm,
        wanted: [Some(0.8), None, None],
        beats_bindfs: false,
        within: None,
    }
}

/// All of them.
pub(super) const SUITES: [Suite; 5] = [
    Suite {
        name: "data",
        converts: false,
        stages: &[
            data("write", "256 MiB written in order", Before::Warm, 0.4),
            data("rewrite", "the same over it", Before::Warm, 0.4),
            data("write-4k", "16,384 random writes of 4 KiB", Before::Warm, 0.4),
            Stage {
                wanted: [Some(0.9), None, None],
                ..data("read", "256 MiB read, cold", Before::Cold, 0.5)
            },
            data("read", "256 MiB read, warm", Before::Warm, 0.5),
            data("read-4k", "65,536 random reads of 4 KiB, warm", Before::Warm, 0.5),
        ],
    },
    Suite {
        // Empty files, so nothing is converted.
        name: "files",
        converts: true,
        stages: &[
            small("create", "10,000 creates", Before::Warm),
            small("stat", "10,000 stats, names not known", Before::NoNames),
            small("stat", "10,000 stats, names known", Before::Warm),
            small("open", "10,000 opens", Before::Warm),
            small("readdir", "readdir of 10,000", Before::NoNames),
            small("readdir", "readdir again", Before::Warm),
            small("list", "readdir and stat of 10,000", Before::NoNames),
            small("rename", "10,000 renames", Before::Warm),
            small("unlink", "10,000 unlinks", Before::Warm),
        ],
    },
    Suite {
        name: "tree",
        converts: false,
        stages: &[
            setup("tar"),
            small("untar", "untar, 4,000 files of 0 to 16 KiB", Before::Warm),
            small("git-add", "git add and commit of them", Before::Warm),
            small("git-status", "git status", Before::Warm),
            small("git-status", "git status, names not known", Before::NoNames),
            small("grep", "grep -r, cold", Before::Cold),
            small("remove", "rm -r", Before::Warm),
        ],
    },
    Suite {
        name: "stubs",
        converts: true,
        stages: &[
            setup("write"),
            setup("settle"),
            Stage {
                within: Some(Duration::from_millis(2 * FIRST_BYTE_FILES as u64)),
                ..stub("first-byte", "first byte of 64 stubs, cold", Before::Cold, None)
            },
            stub("read", "256 MiB of stub read, cold", Before::Cold, Some(0.6)),
            stub("read", "256 MiB of stub read, warm", Before::Warm, Some(0.9)),
            stub("read-4k", "65,536 random reads of 4 KiB, warm", Before::Warm, Some(0.9)),
            stub("read-4k-cold", "2,048 random reads of 4 KiB, cold", Before::Cold, None),
            setup("heat"),
            stub("read", "256 MiB of stub, read again and again", Before::Warm, None),
            stub("read-4k", "random reads of 4 KiB, again and again", Before::Warm, None),
        ],
    },
    Suite {
        name: "converting",
        converts: true,
        stages: &[
            setup("write"),
            busy("write-more", "256 MiB written, 256 MiB being converted"),
            setup("tar"),
            busy("untar", "untar, being converted"),
        ],
    },
];

/// What a stage took.
#[derive(Clone, Copy, Default)]
pub(super) struct Took {
    pub(super) time: Duration,
    /// User and system time of the program.
    pub(super) cpu: Duration,
}

/// Does a stage in `dir` and prints what it took.
pub(super) fn work(name: &str, dir: &Path) {
    // Whatever a process does first (page faults, clocks) is not the filesystem's.
    std::hint::black_box(vec![1u8; 1 << 20]);
    let mut job = Job::prepare(name, dir);
    let (cpu, start) = (cpu(), Instant::now());
    job.run(name, dir);
    let (time, cpu) = (start.elapsed(), self::cpu() - cpu);
    println!("{} {}", time.as_nanos(), cpu.as_nanos());
}

fn cpu() -> Duration {
    let of = |who| {
        // SAFETY: a rusage of zeros is valid, and the call fills it in.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(who, &raw mut usage);
            usage
        };
        [usage.ru_utime, usage.ru_stime]
            .map(|time| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000))
            .iter()
            .sum::<Duration>()
    };
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN)
}

const FILES: usize = 10_000;
const DIRS: usize = 10;
const DATA_BYTES: u64 = 256 << 20;
const FIRST_BYTE_FILES: usize = 64;

/// What a stage needs that is not to be timed.
struct Job {
    paths: Vec<std::path::PathBuf>,
    buffer: Vec<u8>,
    random: tree::Random,
}

impl Job {
    fn prepare(name: &str, dir: &Path) -> Job {
        let mut random = tree::Random::new(7);
        let buffer = match name {
            "write" | "write-more" => {
                tree::content(DATA_BYTES as usize, &mut tree::Random::new(name.len() as u64))
            }
            "rewrite" => tree::content(DATA_BYTES as usize, &mut tree::Random::new(99)),
            _ => vec![1; 1 << 20],
        };
        let mut paths: Vec<_> =
            (0..FILES).map(|n| dir.join(format!("d{}", n % DIRS)).join(format!("file-{n}"))).collect();
        match name {
            "create" => (0..DIRS).for_each(|n| std::fs::create_dir(dir.join(format!("d{n}"))).unwrap()),
            "unlink" => paths.iter_mut().for_each(|path| *path = renamed(path)),
            "stat" | "open" => random.shuffle(&mut paths),
            _ => {}
        }
        Job { paths, buffer, random }
    }

    fn run(&mut self, name: &str, dir: &Path) {
        let data = dir.join("data");
        match name {
            "write" => {
                write_all(&data, &self.buffer, true);
                for n in 0..FIRST_BYTE_FILES {
                    let part = &self.buffer[n << 20..(n << 20) + (300 << 10)];
                    std::fs::write(dir.join(format!("first-{n}")), part).unwrap();
                }
            }
            "write-more" => write_all(&dir.join("more"), &self.buffer, true),
            "rewrite" => write_all(&data, &self.buffer, false),
            "write-4k" => {
                let file = File::options().write(true).open(&data).unwrap();
                for _ in 0..16_384 {
                    file.write_all_at(&self.buffer[..4096], self.random.below(DATA_BYTES / 4096) * 4096)
                        .unwrap();
                }
            }
            "read" => {
                let mut file = File::open(&data).unwrap();
                while file.read(&mut self.buffer).unwrap() > 0 {}
                assert_eq!(file.stream_position().unwrap(), DATA_BYTES);
            }
            "read-4k" => self.read_at_random(&data, 65_536),
            "read-4k-cold" => self.read_at_random(&data, 2048),
            "first-byte" => {
                for n in 0..FIRST_BYTE_FILES {
                    File::open(dir.join(format!("first-{n}")))
                        .unwrap()
                        .read_exact(&mut self.buffer[..1])
                        .unwrap();
                }
            }
            "create" => self.paths.iter().for_each(|path| drop(File::create_new(path).unwrap())),
            "stat" => self.paths.iter().for_each(|path| assert!(path.symlink_metadata().is_ok())),
            "open" => self.paths.iter().for_each(|path| drop(File::open(path).unwrap())),
            "readdir" => assert_eq!(list(dir).count(), FILES),
            "list" => assert_eq!(list(dir).filter(|entry| entry.metadata().is_ok()).count(), FILES),
            "rename" => self.paths.iter().for_each(|path| std::fs::rename(path, renamed(path)).unwrap()),
            "unlink" => self.paths.iter().for_each(|path| std::fs::remove_file(path).unwrap()),
            "tar" => tree::pack(dir),
            "untar" => run(dir, "tar", &["-xf", "tree.tar"]),
            "git-add" => {
                let config = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "gc.auto=0"];
                run(dir, "git", &["init", "-q", "tree"]);
                run(&dir.join("tree"), "git", &["add", "."]);
                run(&dir.join("tree"), "git", &[&config[..], &["commit", "-q", "-m", "x"]].concat());
            }
            "git-status" => run(&dir.join("tree"), "git", &["status", "-s"]),
            "grep" => run(dir, "grep", &["-rc", "--include=*.txt", "e", "tree"]),
            "remove" => run(dir, "rm", &["-r", "tree"]),
            _ => panic!("no stage {name}"),
        }
    }

    fn read_at_random(&mut self, path: &Path, count: usize) {
        let file = File::open(path).unwrap();
        for _ in 0..count {
            file.read_exact_at(&mut self.buffer[..4096], self.random.below(DATA_BYTES / 4096) * 4096)
                .unwrap();
        }
    }
}

fn write_all(path: &Path, content: &[u8], create: bool) {
    let mut file = File::options().write(true).create(create).open(path).unwrap();
    content.chunks(1 << 20).for_each(|part| file.write_all(part).unwrap());
}

fn renamed(path: &Path) -> std::path::PathBuf {
    path.with_extension("renamed")
}

fn list(dir: &Path) -> impl Iterator<Item = std::fs::DirEntry> {
    let dir = dir.to_owned();
    (0..DIRS).flat_map(move |n| std::fs::read_dir(dir.join(format!("d{n}"))).unwrap().map(Result::unwrap))
}

fn run(dir: &Path, program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("HOME", dir).env("GIT_CONFIG_NOSYSTEM", "1");
    let status = command.stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{program}: {status}");
}
