//! Flags of open files: those that open(2) was given, and what fcntl(2) and pwritev2(2) change of them later.

use super::twin::Twin;
use crate::common::{As, as_both, noise, root_and_fuse_available};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const FLAGS: [&[&str]; 2] = [&[], &["--no-passthrough"]];

/// Passthrough is root's alone.
fn modes(user: As) -> &'static [&'static [&'static str]] {
    if user == As::Root { &FLAGS } else { &FLAGS[..1] }
}

/// Length of a file: large enough to become hybrid, and aligned for direct I/O.
const LEN: usize = 96 << 10;
const BLOCK: usize = 4096;
const NOAPPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);
const ASYNC: OFlags = OFlags::from_bits_retain(libc::O_ASYNC as u32);

/// A file is opened with some flags, and given others.
#[derive(Clone, Copy, Debug)]
struct Case {
    open: OFlags,
    set: Option<OFlags>,
}

/// The flags that change where and how is written; with `all` others too.
fn cases(all: bool) -> Vec<Case> {
    let none = OFlags::empty();
    let changed = [none, OFlags::APPEND, OFlags::DIRECT, OFlags::APPEND | OFlags::DIRECT];
    let sets = [OFlags::NOATIME, OFlags::NONBLOCK, ASYNC, OFlags::SYNC];
    let others = [
        OFlags::SYNC,
        OFlags::DSYNC,
        OFlags::APPEND | OFlags::DSYNC,
        OFlags::DIRECT | OFlags::SYNC,
        OFlags::NOATIME,
        OFlags::NONBLOCK,
        ASYNC,
        OFlags::TRUNC,
        OFlags::APPEND | OFlags::TRUNC,
        OFlags::CREATE,
        OFlags::NOCTTY,
    ];
    let mut cases = Vec::new();
    for access in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
        let mut add = |open: OFlags, set| cases.push(Case { open: access | open, set });
        for open in changed {
            add(open, None);
            changed.into_iter().for_each(|set| add(open, Some(set)));
        }
        if !all || access == OFlags::RDONLY {
            continue;
        }
        sets.into_iter().for_each(|set| add(none, Some(set)));
        for open in others {
            [None, Some(none), Some(OFlags::APPEND)].into_iter().for_each(|set| add(open, set));
        }
    }
    cases
}

/// Bytes at an address that direct I/O is content with.
#[repr(align(4096))]
struct Aligned([u8; 2 * BLOCK]);

/// What a program finds out that opens a file, sets flags, and writes and reads.
fn outcome(path: &Path, case: &Case) -> Vec<String> {
    let mut said = Vec::new();
    let file = match rustix::fs::open(path, case.open | OFlags::CLOEXEC, Mode::RUSR) {
        Ok(file) => file,
        Err(e) => return vec![format!("open: {e:?}")],
    };
    if let Some(set) = case.set {
        said.push(format!("F_SETFL: {:?}", rustix::fs::fcntl_setfl(&file, set)));
    }
    let flags = rustix::fs::fcntl_getfl(&file).unwrap();
    said.push(format!("F_GETFL: {:o}", flags.bits()));
    // Without it any length at any place is fine; with it, ext4 wants whole blocks.
    let direct = flags.contains(OFlags::DIRECT);
    let whole = |len: usize| if direct { len.next_multiple_of(BLOCK) } else { len };
    let buffer = |byte| Aligned([byte; 2 * BLOCK]);
    let mut note = |what: &str, result: rustix::io::Result<usize>| {
        let at = rustix::fs::seek(&file, SeekFrom::Current(0)).unwrap();
        said.push(format!("{what}: {result:?}, then at {at}"));
    };
    note("write", rustix::io::write(&file, &buffer(b'B').0[..whole(3)]));
    note("pwrite", rustix::io::pwrite(&file, &buffer(b'C').0[..whole(1)], whole(5) as u64));
    note("write again", rustix::io::write(&file, &buffer(b'D').0[..whole(1808)]));
    let per_write = [
        ("no flag", ReadWriteFlags::empty()),
        ("RWF_APPEND", ReadWriteFlags::APPEND),
        ("RWF_NOAPPEND", NOAPPEND),
        ("RWF_DSYNC", ReadWriteFlags::DSYNC),
        ("RWF_SYNC", ReadWriteFlags::SYNC),
    ];
    for (i, (what, flags)) in per_write.into_iter().enumerate() {
        let bytes = buffer(b'E' + i as u8);
        // Where it stands, and at a place.
        for place in [u64::MAX, whole(100 * (i + 1)) as u64] {
            let bytes = [IoSlice::new(&bytes.0[..whole(7)])];
            note(what, rustix::io::pwritev2(&file, &bytes, place, flags));
        }
    }
    note("lseek", rustix::fs::seek(&file, SeekFrom::End(0)).map(|at| at as usize));
    let mut bytes = buffer(0);
    note("pread", rustix::io::pread(&file, &mut bytes.0[..whole(200)], whole(50) as u64));
    said.push(format!("has read {}", blake3::hash(&bytes.0)));
    drop(file);
    let content = fs::read(path).unwrap();
    said.push(format!("{} bytes, {}", content.len(), blake3::hash(&content)));
    said
}

/// Each flag, and each change of flags, on plain files, stubs and hybrid files.
///
/// Seen to fail, by passthrough, when opens that append or do direct I/O are passed through as all others are: those cases
/// whose flag is cleared later, or by RWF_NOAPPEND.
#[test]
fn flags_do_what_they_do_without_a_mount() {
    as_both(|user| {
        for flags in modes(user) {
            compare(user, flags);
        }
    });
}

fn compare(user: As, flags: &[&str]) {
    for (form, hybrid_min) in [("plain", "off"), ("stub", "off"), ("hybrid", "64KiB")] {
        let twin = Twin::with_setting(user, flags, &format!("hybrid_min = \"{hybrid_min}\""));
        let cases = cases(form == "plain");
        let names: Vec<_> = (0..cases.len()).map(|number| format!("case {number}")).collect();
        let (plain, mount) = (twin.plain(), twin.mount.mnt());
        for (i, name) in names.iter().enumerate() {
            for dir in [&plain, &mount] {
                fs::write(dir.join(name), noise(i as u64, LEN)).unwrap();
            }
        }
        if form != "plain" {
            twin.settle(&names.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for (case, name) in cases.iter().zip(&names) {
            let expected = outcome(&plain.join(name), case);
            let found = outcome(&mount.join(name), case);
            assert_eq!(found, expected, "{user:?} {flags:?} {form} {case:?}");
        }
    }
}

#[test]
fn direct_writes_end_with_a_tail_that_is_not() {
    as_both(|user| {
        for flags in modes(user) {
            let twin = Twin::with_flags(user, flags);
            let said = twin.run(
                "seq 3000 | head -c 10000 > in
                dd if=in of=out bs=4096 oflag=direct status=none; stat -c %s out; cmp in out && echo the same
                dd if=out of=again bs=4096 iflag=direct status=none; cmp in again && echo the same",
            );
            assert_eq!(said.matches("the same").count(), 2, "{said}");
        }
    });
}

/// Handles that appended from the start, that append since they were told to, and that do not.
#[test]
fn appends_of_any_handles_go_to_the_end() {
    as_both(|user| {
        for flags in modes(user) {
            let twin = Twin::with_flags(user, flags);
            let [expected, found] = [twin.plain(), twin.mount.mnt()].map(|dir| {
                let path = dir.join("log");
                fs::write(&path, "start\n").unwrap();
                let open = |flags| {
                    OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap()
                };
                let mut handles = [open(libc::O_APPEND), open(0), open(libc::O_APPEND), open(0)];
                for round in 0..20 {
                    if round == 10 {
                        rustix::fs::fcntl_setfl(&handles[2], OFlags::empty()).unwrap();
                    }
                    rustix::fs::fcntl_setfl(&handles[1], OFlags::APPEND).unwrap();
                    for (i, handle) in handles.iter_mut().enumerate() {
                        handle.write_all(format!("{round} of {i}\n").as_bytes()).unwrap();
                    }
                }
                fs::read(&path).unwrap()
            });
            assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected), "{flags:?}");
            let path = twin.mount.at("both");
            File::create(&path).unwrap();
            std::thread::scope(|scope| {
                for late in [false, true] {
                    let path = &path;
                    scope.spawn(move || {
                        let flags = if late { 0 } else { libc::O_APPEND };
                        let mut file = OpenOptions::new().write(true).custom_flags(flags).open(path).unwrap();
                        rustix::fs::fcntl_setfl(&file, OFlags::APPEND).unwrap();
                        for i in 0..1000 {
                            // One call: what belongs together.
                            file.write_all(format!("{late} {i:04}\n").as_bytes()).unwrap();
                        }
                    });
                }
            });
            let text = fs::read_to_string(&path).unwrap();
            for late in ["true", "false"] {
                let lines: Vec<_> = text.lines().filter(|line| line.starts_with(late)).collect();
                let expected: Vec<_> = (0..1000).map(|i| format!("{late} {i:04}")).collect();
                assert_eq!(lines, expected, "{user:?} {flags:?}");
            }
        }
    });
}

/// A file that one handle appends to and another one writes to by passthrough: each sees what the other wrote, by read,
/// through a mapping and by sendfile.
#[test]
fn a_handle_that_appends_sees_what_others_write() {
    as_both(|user| {
        for flags in modes(user) {
            let twin = Twin::with_flags(user, flags);
            let said = twin.run(
                "seq 20000 > f; cat > see.py <<'END'
import hashlib, mmap, os, sys, time
other = os.open('f', os.O_RDWR)
ours = os.open('f', os.O_RDWR | getattr(os, sys.argv[1]))
mapped = mmap.mmap(ours, 65536)
def sent():
    out = os.open('out', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.lseek(ours, 0, os.SEEK_SET)
    while os.sendfile(out, ours, None, 65536): pass
    return os.pread(out, 1 << 20, 0)
def see(what):
    length = os.fstat(ours).st_size
    buffer = mmap.mmap(-1, 1 << 20)
    os.preadv(ours, [buffer], 0)
    end = time.monotonic() + 30
    copy = sent()
    # docs/semantics.md: a moment later.
    while copy != os.pread(other, 1 << 20, 0) and time.monotonic() < end: copy = sent()
    copies = copy, os.pread(other, 1 << 20, 0), buffer[:length]
    print(what, length, *(hashlib.md5(copy).hexdigest() for copy in copies), mapped[:] == copies[1][:65536])
    os.lseek(ours, 0, os.SEEK_SET)
see('before')
for i in range(4):
    os.pwrite(other, b'other %d' % i, 5000 * i); see('other')
    os.write(ours, mmap.mmap(-1, 4096)); see('ours')
    mapped[9000 * i:9000 * i + 6] = b'mapped'; see('mapped')
END
                for flag in O_APPEND O_DIRECT; do /usr/bin/python3 see.py $flag; done; md5sum f",
            );
            assert!(!said.contains("False") && !said.contains("Error"), "{said}");
        }
    });
}

/// docs/semantics.md: programs fall back to a thread that may wait.
#[test]
fn io_that_must_not_wait_is_refused() {
    if !root_and_fuse_available() {
        return;
    }
    for flags in FLAGS {
        let twin = Twin::with_flags(As::Root, flags);
        let path = twin.mount.at("file");
        fs::write(&path, noise(1, LEN)).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let bytes = [IoSlice::new(b"x")];
        let refused = rustix::io::pwritev2(file.as_fd(), &bytes, 0, ReadWriteFlags::NOWAIT);
        assert_eq!(refused, Err(Errno::OPNOTSUPP));
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, noise(1, 1)[..]);
    }
}
