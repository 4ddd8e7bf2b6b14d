//! Hybrid files in a real mount.

use crate::common::{As, Mount, as_both, fuse_available, noise, xattr};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

const LEN: usize = 600_000;

/// A mount in which stubs from 64 KiB on become hybrid, with one of [`LEN`] bytes.
fn mount_with_stub(user: As) -> Mount {
    let mount = Mount::prepare(user);
    mount.init("hybrid_min = \"64KiB\"");
    mount.start();
    fs::write(mount.at("file"), noise(1, LEN)).unwrap();
    mount.settle();
    assert!(mount.is_stub("file"));
    mount
}

fn is_hybrid(mount: &Mount, name: &str) -> bool {
    xattr(&mount.dir().join(name), "user.dedupfs").is_some_and(|record| record[0] == 0x15)
}

fn lists(mount: &Mount) -> usize {
    mount.dir().join(".dedupfs/extents").read_dir().map_or(0, Iterator::count)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn write_mapped(file: &File, at: usize, data: &[u8]) {
    let len = file.metadata().unwrap().len() as usize;
    let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a fresh mapping of the whole of a file that nobody shortens meanwhile.
    let mapping = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, shared, file.as_raw_fd(), 0) };
    assert_ne!(mapping, libc::MAP_FAILED);
    // SAFETY: the mapping is that long and nobody else in this process uses it.
    let mapped = unsafe { std::slice::from_raw_parts_mut(mapping.cast::<u8>(), len) };
    mapped[at..at + data.len()].copy_from_slice(data);
    // SAFETY: `mapped` is not used after this.
    assert_eq!(unsafe { libc::munmap(mapping, len) }, 0);
}

fn punch(file: &File, at: usize, len: usize) {
    use rustix::fs::{FallocateFlags, fallocate};
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, mode, at as u64, len as u64).unwrap();
}

/// The same random operations on a stub in the mount and on a plain file beside it.
#[test]
fn behaves_as_a_file() {
    as_both(|user| {
        let mount = mount_with_stub(user);
        let plain = mount.root.path().join("plain");
        fs::write(&plain, noise(1, LEN)).unwrap();
        let mut seed = 88_172_645_463_325_252u64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below as u64) as usize
        };
        let mut both = [open(&mount.at("file")), open(&plain)];
        let mut was_hybrid = 0;
        for i in 0..120 {
            let size = both[1].metadata().unwrap().len() as usize;
            let (at, len) = (random(size), 1 + random(12_000));
            let data = noise(i + 2, len);
            match random(12) {
                0..4 => both.iter().for_each(|file| file.write_all_at(&data, at as u64).unwrap()),
                4..6 => {
                    let data = &data[..len.min(size - at)];
                    both.iter().for_each(|file| write_mapped(file, at, data));
                }
                6 => both.iter_mut().for_each(|file| {
                    file.seek(SeekFrom::End(0)).unwrap();
                    file.write_all(&data).unwrap();
                }),
                7 if size > 200_000 => {
                    both.iter().for_each(|file| file.set_len((size - len) as u64).unwrap())
                }
                8 => both.iter().for_each(|file| punch(file, at, len)),
                9 => both.iter().for_each(|file| file.sync_data().unwrap()),
                10 => {
                    drop(both);
                    if random(2) == 0 {
                        mount.settle();
                        assert!(mount.is_stub("file"), "it is converted once it is closed");
                        assert_eq!(lists(&mount), 0);
                    }
                    both = [open(&mount.at("file")), open(&plain)];
                }
                _ if i % 3 == 0 => {
                    drop(both);
                    mount.remount();
                    both = [open(&mount.at("file")), open(&plain)];
                }
                _ => {}
            }
            was_hybrid += u32::from(is_hybrid(&mount, "file"));
            let [found, expected] = [mount.at("file"), plain.clone()].map(|path| fs::read(path).unwrap());
            let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert!(found == expected, "after {i}: {} of {}, {differs:?}", found.len(), expected.len());
        }
        assert!(was_hybrid > 20, "hybrid only {was_hybrid} times");
        drop(both);
        mount.settle();
        assert!(mount.is_stub("file"));
        assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
    });
}

/// Each in its own way: written back, cut off without being open, removed while open and while not.
#[test]
fn ends_as_any_file_does() {
    as_both(|user| {
        let mount = mount_with_stub(user);
        let mut bytes = noise(1, LEN);
        bytes[1000..1003].copy_from_slice(b"new");
        open(&mount.at("file")).write_all_at(b"new", 1000).unwrap();
        assert!(is_hybrid(&mount, "file"));
        fs::set_permissions(mount.at("file"), Permissions::from_mode(0o400)).unwrap();
        if user == As::User {
            assert!(!is_hybrid(&mount, "file"), "an ordinary user's daemon could not read its record");
            assert_eq!(lists(&mount), 0);
        }
        assert!(fs::read(mount.at("file")).unwrap() == bytes);
        fs::set_permissions(mount.at("file"), Permissions::from_mode(0o600)).unwrap();
        mount.settle();
        assert!(mount.is_stub("file"));

        open(&mount.at("file")).set_len(500_001).unwrap();
        bytes.truncate(500_001);
        assert!(fs::read(mount.at("file")).unwrap() == bytes);
        let meta = fs::metadata(mount.at("file")).unwrap();
        assert!(meta.len() == 500_001 && meta.blocks() * 512 >= 500_001 && meta.blocks() * 512 < 520_000);
        assert!(is_hybrid(&mount, "file"), "only what was cut off is noted");
        fs::hard_link(mount.at("file"), mount.at("link")).unwrap();
        fs::rename(mount.at("file"), mount.at("moved")).unwrap();
        mount.settle();
        assert!(mount.is_stub("moved") && fs::read(mount.at("link")).unwrap() == bytes);
        fs::remove_file(mount.at("link")).unwrap();

        let file = open(&mount.at("moved"));
        file.write_all_at(b"newer", 2000).unwrap();
        bytes[2000..2005].copy_from_slice(b"newer");
        fs::remove_file(mount.at("moved")).unwrap();
        let mut found = vec![0; bytes.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes);
        drop(file);
        for wait in 0.. {
            if lists(&mount) == 0 {
                break;
            }
            assert!(wait < 1000, "its list stays after the file is gone");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// kill -9 while several files are written to: what was answered is there.
#[test]
fn what_was_written_survives_kills() {
    if !fuse_available() {
        return;
    }
    kill_while_writing(4);
}

/// `cargo test --test mount -- --ignored --nocapture forty_kills`.
#[test]
#[ignore = "takes a minute or two"]
fn what_was_written_survives_forty_kills() {
    assert!(fuse_available());
    kill_while_writing(40);
}

fn kill_while_writing(rounds: u64) {
    const FILES: usize = 3;
    let mount = Mount::prepare(As::Root);
    mount.init("hybrid_min = \"64KiB\"");
    mount.start();
    let mut contents: Vec<_> = (0..FILES).map(|file| noise(file as u64, LEN)).collect();
    let name = |file: usize| format!("file{file}");
    contents.iter().enumerate().for_each(|(file, bytes)| fs::write(mount.at(&name(file)), bytes).unwrap());
    mount.settle();
    let mut writes = 0;
    for round in 0..rounds {
        // Of the call that was not answered any block may be there: where it wrote, and what.
        let unanswered: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = contents
                .iter_mut()
                .enumerate()
                .map(|(file, bytes)| {
                    let path = mount.at(&name(file));
                    scope.spawn(move || write_until_killed(&path, bytes, round * FILES as u64 + file as u64))
                })
                .collect();
            std::thread::sleep(Duration::from_millis(300 + round * 397 % 1200));
            mount.kill();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        mount.start();
        for (file, (done, at, data)) in unanswered.into_iter().enumerate() {
            writes += done;
            let bytes = &mut contents[file];
            let found = fs::read(mount.at(&name(file))).unwrap();
            let blocks = found.chunks(4096).zip(bytes.chunks_mut(4096)).enumerate();
            for (block, (found, expected)) in blocks {
                let mut new = expected.to_vec();
                for (i, byte) in new.iter_mut().enumerate() {
                    *byte = (block * 4096 + i)
                        .checked_sub(at)
                        .and_then(|i| data.get(i))
                        .copied()
                        .unwrap_or(*byte);
                }
                assert!(found == expected || found == new, "round {round}, file {file}, block {block}");
                expected.copy_from_slice(found);
            }
            assert_eq!(found.len(), LEN);
        }
    }
    mount.settle();
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
    // A kill may come between the last step of a commit and the end of its list.
    mount.ctl(&["gc"]);
    assert_eq!(lists(&mount), 0);
    println!("{rounds} kills, {writes} writes that were answered, all there");
}

/// Writes here and there until that fails. Returns how many writes were answered, and the one that was not.
fn write_until_killed(path: &Path, bytes: &mut [u8], seed: u64) -> (u64, usize, Vec<u8>) {
    for i in 0.. {
        let seed = seed << 32 | i;
        let at = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % LEN as u64) as usize;
        let mut data = noise(seed, 1 + (seed % 9_000) as usize);
        data.truncate(LEN - at);
        let written = OpenOptions::new().write(true).open(path).and_then(|file| {
            file.write_all_at(&data, at as u64)?;
            if i % 7 == 0 { file.sync_data() } else { Ok(()) }
        });
        if written.is_err() {
            return (i, at, data);
        }
        bytes[at..at + data.len()].copy_from_slice(&data);
        // Long enough to be converted meanwhile.
        if i % 60 == 59 {
            std::thread::sleep(Duration::from_millis(700));
        }
    }
    unreachable!("writing ends when the daemon is killed")
}
