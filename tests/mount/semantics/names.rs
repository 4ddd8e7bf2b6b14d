//! Names and what stands under them: any bytes, any depth, any kind; large directories.

use super::twin::Twin;
use crate::common::{As, Mount, as_both, noise};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

#[test]
fn names_may_be_any_bytes_and_255_of_them() {
    as_both(|user| {
        let twin = Twin::new(user);
        let long = "n".repeat(255);
        for name in
            [&b"\xff\xfe bytes \x01\n"[..], b"-", b" ", "\u{e9}".as_bytes(), b"e\xcc\x81", long.as_bytes()]
        {
            let path = twin.mount.mnt().join(OsStr::from_bytes(name));
            fs::write(&path, noise(1, 10_000)).unwrap();
        }
        twin.mount.settle();
        let listed: BTreeSet<_> =
            fs::read_dir(twin.mount.mnt()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(listed.len(), 6);
        for name in listed {
            assert_eq!(fs::read(twin.mount.mnt().join(&name)).unwrap(), noise(1, 10_000), "{name:?}");
            assert!(fs::metadata(twin.mount.dir().join(&name)).unwrap().len() == 0, "{name:?} is a stub");
        }
        let script = format!(
            "echo x > {long}x; mkdir {long}x; ln -s {long} l; cat l | head -c 0; mv l {long}x; cat {long}x"
        );
        twin.run(&format!("echo x > {long}; {script}"));
        twin.run("ln -s loop loop; cat loop; echo > loop; ln -s b a; ln -s a b; cat a/x; mkdir c; ln -s .. c/up; ls c/up/c");
        twin.run("ln -s $(printf 'x%.0s' {1..4000}) far; readlink far | wc -c; cat far; ln -s $(printf 'x%.0s' {1..4096}) farther");
    });
}

/// Deeper than any path can say: by steps.
#[test]
fn directories_may_be_deeper_than_paths_are_long() {
    as_both(|user| {
        let mount = Mount::new(user);
        let (levels, name) = (40, "d".repeat(200));
        let dir = |at: &OwnedFd| {
            rustix::fs::openat(at, &name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .unwrap()
        };
        let start = || -> OwnedFd { File::open(mount.mnt()).unwrap().into() };
        let mut here = start();
        for _ in 0..levels {
            rustix::fs::mkdirat(&here, &name, Mode::RWXU).unwrap();
            here = dir(&here);
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&here, "file", flags, Mode::RUSR | Mode::WUSR).unwrap();
        File::from(file).write_all(&noise(2, 50_000)).unwrap();
        drop(here);
        let check = || {
            mount.settle();
            let here = (0..levels).fold(start(), |here, _| dir(&here));
            let file =
                rustix::fs::openat(&here, "file", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let mut bytes = Vec::new();
            File::from(file).read_to_end(&mut bytes).unwrap();
            assert!(bytes == noise(2, 50_000));
            here
        };
        drop(check());
        mount.remount();
        let here = check();
        rustix::fs::renameat(&here, "file", &here, "renamed").unwrap();
        rustix::fs::unlinkat(&here, "renamed", AtFlags::empty()).unwrap();
        let long = mount.mnt().join(vec![name.as_str(); levels].join("/"));
        assert_eq!(rustix::fs::stat(&long).unwrap_err(), Errno::NAMETOOLONG);
        drop(here);
        // The tree has to be taken down by steps as well.
        for level in (0..levels).rev() {
            let here = (0..level).fold(start(), |here, _| dir(&here));
            rustix::fs::unlinkat(&here, &name, AtFlags::REMOVEDIR).unwrap();
        }
    });
}

#[test]
fn fifos_sockets_and_devices() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run(
            "mkfifo pipe; (echo through > pipe &) ; cat pipe; stat -c '%n %F %a %s' pipe; mv pipe p; rm p",
        );
        let path = twin.mount.at("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let client = std::thread::spawn(move || {
            std::os::unix::net::UnixStream::connect(path).unwrap().write_all(b"hello").unwrap();
        });
        let mut said = String::new();
        listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
        client.join().unwrap();
        assert_eq!(said, "hello");
        // An open socket keeps a filesystem busy.
        drop(listener);
        if user == As::Root {
            twin.run(
                "mknod null c 1 3; mknod zero c 1 5; mknod many b 300 70000; stat -c '%n %F %t %T %a' null zero many
                echo x > null; head -c 5 zero | od -c; chmod 600 null; stat -c %a null",
            );
            twin.mount.remount();
            twin.run("head -c 5 zero | od -c; stat -c '%n %F %t %T' null zero many");
        } else {
            assert!(twin.run("mknod null c 1 3").contains("not permitted"));
        }
    });
}

#[test]
fn a_directory_of_100000_names_is_listed_whole() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        // Once is enough of the full length.
        let many = if user == As::Root { 100_000 } else { 20_000 };
        let below = mount.dir().join("many");
        fs::create_dir(&below).unwrap();
        File::create(below.join("0")).unwrap();
        // Other names of one file: faster to make, and the same to list. ext4 allows 65,000 for each.
        for i in 1..many {
            let first = i / 50_000 * 50_000;
            if i == first {
                File::create(below.join(i.to_string())).unwrap();
            } else {
                fs::hard_link(below.join(first.to_string()), below.join(i.to_string())).unwrap();
            }
        }
        mount.start();
        let dir = mount.at("many");
        let listed = || -> Vec<_> { fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect() };
        // Each hundredth goes while it is read: none of the others is missed or listed twice.
        let (mut seen, mut gone) = (BTreeSet::new(), BTreeSet::new());
        for (i, entry) in fs::read_dir(&dir).unwrap().enumerate() {
            let name = entry.unwrap().file_name();
            if i % 100 == 0 {
                fs::remove_file(dir.join(&name)).unwrap();
                gone.insert(name.clone());
            }
            assert!(seen.insert(name.clone()), "{name:?} was listed twice");
        }
        assert_eq!((seen.len(), gone.len()), (many, many / 100));
        assert_eq!(listed().len(), many - many / 100);
        // Back to a place, and on from there.
        let path = CString::new(dir.to_str().unwrap()).unwrap();
        let mut stream = Stream::open(&path);
        let before: Vec<_> = (0..many * 2 / 5).map(|_| stream.next().unwrap()).collect();
        let place = stream.tell();
        let after: Vec<_> = (0..1_000).map(|_| stream.next().unwrap()).collect();
        stream.seek(place);
        assert_eq!((0..1_000).map(|_| stream.next().unwrap()).collect::<Vec<_>>(), after);
        stream.seek(0);
        assert_eq!(stream.next().as_ref(), before.first());
    });
}

/// A directory stream of the C library.
struct Stream(*mut libc::DIR);

impl Stream {
    fn open(path: &CStr) -> Stream {
        // SAFETY: the path is ended by a zero byte.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null());
        Stream(stream)
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        // SAFETY: the stream is open; the entry is copied before the next call.
        unsafe {
            let entry = libc::readdir(self.0);
            (!entry.is_null()).then(|| CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes().to_vec())
        }
    }

    fn tell(&mut self) -> libc::c_long {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }

    fn seek(&mut self, place: libc::c_long) {
        // SAFETY: the stream is open, and the place came from it.
        unsafe { libc::seekdir(self.0, place) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used after this.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn a_name_is_stale_when_its_directory_is_gone() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("mkdir d; cd d; rmdir ../d; echo x > f; ls; mkdir e");
        assert_eq!(rustix::fs::stat(twin.mount.at("missing/x")).unwrap_err(), Errno::NOENT);
        assert_eq!(
            rustix::fs::openat(CWD, twin.mount.at(""), OFlags::WRONLY, Mode::empty()).unwrap_err(),
            Errno::ISDIR
        );
    });
}
