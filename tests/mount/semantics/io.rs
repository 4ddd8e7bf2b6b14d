//! Reading and writing: appends, direct I/O, truncation, sparse files, mappings, copies in the kernel.

use super::twin::{Twin, wait_for};
use crate::common::{as_both, noise};
use rustix::fs::{OFlags, SeekFrom};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

#[test]
fn appends_of_two_processes_do_not_overwrite() {
    as_both(|user| {
        for flags in [&[][..], &["--no-passthrough"]] {
            let twin = Twin::with_flags(user, flags);
            twin.run("seq 5000 > log");
            twin.settle(&["log"]);
            twin.run(
                "append() { exec >> log; for i in {1..1500}; do echo \"$1 $i\"; done; }
                append a & append b & wait
                wc -l < log; grep -c '^a [0-9]*$' log; grep -c '^b [0-9]*$' log; grep '^a' log | md5sum",
            );
            twin.settle(&["log"]);
            twin.run("wc log; grep -v '[ab]' log | md5sum; grep '^b' log | md5sum");
        }
    });
}

#[test]
fn direct_io_reads_and_writes() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("seq 200000 > file");
        for stub in [false, true] {
            if stub {
                twin.settle(&["file"]);
            }
            twin.run("dd if=file iflag=direct bs=64k status=none | md5sum");
            twin.run("head -c 8192 /dev/zero | tr '\\0' x | dd of=file oflag=direct conv=notrunc bs=4096 seek=7 status=none");
            twin.run("md5sum < file; stat -c %s file; dd if=file iflag=direct bs=4096 skip=6 count=4 status=none | md5sum");
        }
        twin.settle(&["file"]);
        twin.run("md5sum < file");
    });
}

#[test]
fn truncation_by_any_way() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("for f in a b c d e; do seq 20000 > $f; done");
        twin.settle(&["a", "b", "c", "d", "e"]);
        twin.run(": > a; truncate -s 5 b; truncate -s 500000 c; echo x > d; truncate -s 0 e; md5sum ?; stat -c %s ?");
        // Opened to be read and emptied by that.
        let path = twin.mount.at("c");
        twin.mount.settle();
        let file = OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&path);
        // The standard library refuses that combination where it can see it.
        drop(file);
        let flags = OFlags::RDONLY | OFlags::TRUNC | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    });
}

/// A descriptor that was opened for writing can resize its file whatever the file's mode says since. Seen to fail
/// for an ordinary user when the daemon opens the file anew for it.
#[test]
fn a_writer_resizes_a_file_that_is_read_only_by_now() {
    as_both(|user| {
        let twin = Twin::new(user);
        let path = twin.mount.at("file");
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path).unwrap();
        file.write_all(&noise(1, 10_000)).unwrap();
        file.set_len(5_000).unwrap();
        file.set_len(0).unwrap();
        file.set_len(20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 20);
    });
}

#[test]
fn sparse_files_stay_sparse_when_written_again() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run(
            "truncate -s 12M file; echo start | dd of=file conv=notrunc status=none
            seq 20000 | dd of=file bs=1M seek=9 conv=notrunc status=none; sync file; stat -c %s file; md5sum < file",
        );
        let path = twin.mount.at("file");
        let seek = |from| rustix::fs::seek(File::open(&path).unwrap(), from);
        assert_eq!(seek(SeekFrom::Data(1 << 20)).unwrap(), 9 << 20);
        assert!(seek(SeekFrom::Hole(0)).unwrap() < 1 << 20);
        twin.settle(&["file"]);
        twin.run("md5sum < file; stat -c %s file; [ $(stat -c %b file) -lt 2000 ] && echo few blocks");
        // A stub is data from end to end.
        assert_eq!(seek(SeekFrom::Data(1 << 20)).unwrap(), 1 << 20);
        assert_eq!(seek(SeekFrom::Hole(0)).unwrap(), 12 << 20);
        assert_eq!(seek(SeekFrom::Data(12 << 20)), Err(rustix::io::Errno::NXIO));
        twin.run("echo more >> file; md5sum < file; [ $(stat -c %b file) -lt 2000 ] && echo few blocks");
        assert_eq!(seek(SeekFrom::Data(1 << 20)).unwrap(), 9 << 20);
    });
}

#[test]
fn space_is_allocated_punched_and_zeroed() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("for f in a b c d e; do seq 20000 > $f; done");
        for stubs in [false, true] {
            if stubs {
                twin.settle(&["a", "b", "c", "d", "e"]);
            }
            twin.run(
                "fallocate -l 300000 a; fallocate -n -l 400000 b; fallocate -p -o 5000 -l 30000 c
                fallocate -z -o 100 -l 9000 d; fallocate -z -n -o 100000 -l 90000 e; fallocate -p -o 0 -l 5 missing
                stat -c %s ?; md5sum ?",
            );
        }
        // Here the kernel's FUSE says no.
        let said =
            twin.on_mount("fallocate -c -o 0 -l 4096 a; fallocate -i -o 0 -l 4096 a; fallocate -d a; true");
        assert_eq!(said.matches("not supported").count(), 2, "{said}");
        twin.mount.settle();
        twin.run("md5sum ?");
    });
}

/// One page written by this process and one by another through mappings of their own, and the file converted after.
#[test]
fn shared_mappings_are_shared() {
    as_both(|user| {
        for flags in [&[][..], &["--no-passthrough"]] {
            let twin = Twin::with_flags(user, flags);
            let path = twin.mount.at("mapped");
            fs::write(&path, noise(5, 40_000)).unwrap();
            twin.settle(&["mapped"]);
            let ours = Mapping::new(&path);
            // SAFETY: the child only uses a mapping made before the fork, msync and _exit, which are safe there.
            let child = unsafe {
                let theirs = Mapping::new(&path);
                let child = libc::fork();
                assert!(child >= 0);
                if child == 0 {
                    theirs.set(4096, b'C');
                    theirs.set(30_000, b'C');
                    libc::_exit(theirs.sync());
                }
                child
            };
            ours.set(0, b'P');
            assert_eq!(ours.sync(), 0);
            let mut status = -1;
            // SAFETY: the child is ours, and the status lives until the call returns.
            wait_for("the child", || unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child);
            assert_eq!(status, 0);
            assert_eq!((ours.get(4096), ours.get(30_000)), (b'C', b'C'));
            let mut expected = noise(5, 40_000);
            (expected[0], expected[4096], expected[30_000]) = (b'P', b'C', b'C');
            assert!(fs::read(&path).unwrap() == expected);
            drop(ours);
            twin.settle(&["mapped"]);
            assert!(fs::read(&path).unwrap() == expected);
        }
    });
}

/// A whole file, mapped to be shared.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(path: &std::path::Path) -> Mapping {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping, as long as the file, which nothing truncates while it lives.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Mapping { start: start.cast(), len }
    }

    fn set(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: within the mapping; nobody holds a reference into it.
        unsafe { self.start.add(at).write_volatile(byte) }
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: as above.
        unsafe { self.start.add(at).read_volatile() }
    }

    fn sync(&self) -> i32 {
        // SAFETY: the mapping is that long.
        unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is that long and not used after this.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

#[test]
fn the_kernel_copies_between_files() {
    as_both(|user| {
        let twin = Twin::new(user);
        let bytes = noise(6, 300_000);
        fs::write(twin.mount.at("from"), &bytes).unwrap();
        for stub in [false, true] {
            if stub {
                twin.settle(&["from"]);
            }
            let (from, to) = (File::open(twin.mount.at("from")).unwrap(), twin.mount.at("to"));
            let outside = twin.mount.root.path().join("outside");
            for to in [&to, &outside] {
                let target = File::create(to).unwrap();
                let (mut offset, mut left) = (0u64, bytes.len());
                while left > 0 {
                    let copied = rustix::fs::copy_file_range(&from, Some(&mut offset), &target, None, left);
                    // Between filesystems the kernel may refuse; here between different kinds it does.
                    let Ok(copied) = copied else {
                        assert!(to == &outside);
                        break;
                    };
                    assert!(copied > 0, "the end comes too early");
                    left -= copied;
                }
                assert!(to == &outside || fs::read(to).unwrap() == bytes);
                let target = File::create(to).unwrap();
                let mut offset = 0;
                while (offset as usize) < bytes.len() {
                    assert!(
                        rustix::fs::sendfile(&target, &from, Some(&mut offset), bytes.len()).unwrap() > 0
                    );
                }
                assert!(fs::read(to).unwrap() == bytes);
            }
            for advice in
                [rustix::fs::Advice::WillNeed, rustix::fs::Advice::DontNeed, rustix::fs::Advice::Random]
            {
                rustix::fs::fadvise(&from, 0, None, advice).unwrap();
            }
            // SAFETY: readahead takes a descriptor and two numbers.
            assert_eq!(unsafe { libc::readahead(from.as_raw_fd(), 0, 1 << 20) }, 0);
            let mut part = [0; 100];
            from.read_exact_at(&mut part, 200_000).unwrap();
            assert_eq!(part, bytes[200_000..200_100]);
            // Through a pipe, by splice.
            let (reader, writer) = std::io::pipe().unwrap();
            let mut offset = 100_000i64;
            let (null, flags) = (std::ptr::null_mut(), 0);
            // SAFETY: both descriptors are open, and the offset lives until the call returns.
            let moved = unsafe {
                libc::splice(from.as_raw_fd(), &mut offset, writer.as_raw_fd(), null, 5_000, flags)
            };
            drop(writer);
            let mut piped = Vec::new();
            (&reader).read_to_end(&mut piped).unwrap();
            assert!(moved > 0 && piped == bytes[100_000..][..moved as usize], "{moved}");
        }
    });
}
