//! Limits, locks, events, and what is refused.

use super::twin::Twin;
use crate::common::{As, Mount, as_both, root_and_fuse_available};
use rustix::fs::{CWD, Mode, OFlags, inotify};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};

#[test]
fn free_space_is_that_of_the_filesystem_below() {
    as_both(|user| {
        let twin = Twin::new(user);
        let (found, below) =
            (rustix::fs::statvfs(twin.mount.mnt()).unwrap(), rustix::fs::statvfs(twin.mount.dir()).unwrap());
        assert_eq!(
            (found.f_blocks, found.f_frsize, found.f_bsize),
            (below.f_blocks, below.f_frsize, below.f_bsize)
        );
        assert_eq!((found.f_files, found.f_namemax), (below.f_files, below.f_namemax));
        // Others write to that disk too.
        assert!(found.f_bavail.abs_diff(below.f_bavail) * below.f_frsize < 1 << 30);
    });
}

#[test]
fn the_limit_of_file_sizes_holds() {
    as_both(|user| {
        for flags in [&[][..], &["--no-passthrough"]] {
            let twin = Twin::with_flags(user, flags);
            twin.run("seq 20000 > stub");
            twin.settle(&["stub"]);
            twin.run(
                "trap '' XFSZ; ulimit -f 16; head -c 100000 /dev/zero > new; stat -c %s new
                echo more >> stub; stat -c %s stub; truncate -s 1M new; fallocate -l 1M new; stat -c %s new",
            );
            twin.run("exec 2> /dev/null; (ulimit -f 16; exec head -c 100000 /dev/zero > killed); echo $?; stat -c %s killed");
        }
    });
}

#[test]
fn locks_exclude_other_processes() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("seq 9000 > file; seq 9001 > other");
        twin.settle(&["file"]);
        twin.run(
            "flock file sh -c 'flock -n file echo got it || echo held'; flock -n file echo free
            flock -s file sh -c 'flock -n -s file echo shared; flock -n -x file echo no || echo not alone'",
        );
        let path = twin.mount.at("file");
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // Of the process: seen by another.
        let (file, again) = (open(), open());
        let lock = |from, len| libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: from,
            l_len: len,
            l_pid: 0,
        };
        let set = |file: &File, command, lock: &libc::flock| {
            // SAFETY: the lock lives until the call returns.
            let set = unsafe { libc::fcntl(file.as_raw_fd(), command, lock) };
            if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
        };
        set(&file, libc::F_SETLK, &lock(100, 50)).unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                let held = libc::fcntl(again.as_raw_fd(), libc::F_SETLK, &lock(120, 1)) == -1;
                let free = libc::fcntl(again.as_raw_fd(), libc::F_SETLK, &lock(150, 1)) == 0;
                libc::_exit(if held && free { 0 } else { 1 });
            }
            child
        };
        let mut status = -1;
        // SAFETY: the child is ours, and the status lives until the call returns.
        super::twin::wait_for(
            "the child",
            || unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child,
        );
        assert_eq!(status, 0, "a lock of another process holds, beside it there is none");
        // Of the open file: seen by another open of the same process.
        set(&file, libc::F_OFD_SETLK, &lock(1000, 10)).unwrap();
        assert_eq!(set(&again, libc::F_OFD_SETLK, &lock(1005, 1)), Err(libc::EAGAIN));
        assert_eq!(set(&again, libc::F_OFD_SETLK, &lock(1010, 1)), Ok(()));
        drop(file);
        assert_eq!(set(&again, libc::F_OFD_SETLK, &lock(1005, 1)), Ok(()));
    });
}

#[test]
fn inotify_tells_of_programs_and_not_of_conversions() {
    as_both(|user| {
        let twin = Twin::new(user);
        fs::create_dir(twin.mount.at("dir")).unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, twin.mount.at("dir"), inotify::WatchFlags::ALL_EVENTS).unwrap();
        let events = || {
            let (mut buffer, mut found) = ([const { std::mem::MaybeUninit::uninit() }; 4096], Vec::new());
            let mut reader = inotify::Reader::new(watch.as_fd(), &mut buffer);
            while let Ok(event) = reader.next() {
                if event.file_name().is_some() {
                    found.push(event.events());
                }
            }
            found
        };
        let path = twin.mount.at("dir/file");
        fs::write(&path, crate::common::noise(1, 50_000)).unwrap();
        let seen = events();
        for wanted in
            [inotify::ReadFlags::CREATE, inotify::ReadFlags::MODIFY, inotify::ReadFlags::CLOSE_WRITE]
        {
            assert!(seen.iter().any(|event| event.contains(wanted)), "{wanted:?} in {seen:?}");
        }
        twin.settle(&["dir/file"]);
        assert_eq!(events(), [], "nothing of a conversion");
        fs::read(&path).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap();
        assert!(
            !events().iter().any(|event| event.contains(inotify::ReadFlags::MODIFY)),
            "nothing was written"
        );
        fs::rename(&path, twin.mount.at("dir/new")).unwrap();
        fs::remove_file(twin.mount.at("dir/new")).unwrap();
        let seen = events();
        for wanted in
            [inotify::ReadFlags::MOVED_FROM, inotify::ReadFlags::MOVED_TO, inotify::ReadFlags::DELETE]
        {
            assert!(seen.iter().any(|event| event.contains(wanted)), "{wanted:?} in {seen:?}");
        }
    });
}

/// What the kernel's FUSE has no request for, or none that fuser knows: refused as by any filesystem without it.
#[test]
fn what_cannot_be_is_refused_cleanly() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("seq 9000 > a; seq 9000 > b");
        twin.settle(&["a"]);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        assert_eq!(
            rustix::fs::openat(CWD, twin.mount.mnt(), flags, Mode::RWXU).unwrap_err(),
            Errno::OPNOTSUPP
        );
        let (from, to) = (File::open(twin.mount.at("a")).unwrap(), File::create(twin.mount.at("c")).unwrap());
        assert!(matches!(
            rustix::fs::ioctl_ficlone(&to, &from),
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY)
        ));
        let said = twin.on_mount("cp --reflink=auto a d && cmp a d && echo copied; lsattr a; chattr +i a");
        assert!(said.contains("copied"), "{said}");
        assert_eq!(
            said.matches("Inappropriate ioctl").count() + said.matches("not supported").count(),
            2,
            "{said}"
        );
    });
}

/// docs/semantics.md: what asks where a file's blocks are on the disk.
#[test]
fn blocks_on_the_disk_are_not_told() {
    if !root_and_fuse_available() {
        return;
    }
    for flags in [&[][..], &["--no-passthrough"]] {
        let twin = Twin::with_flags(As::Root, flags);
        let said = twin.on_mount(
            "head -c 400000 /dev/zero > f; chmod 600 f; mkswap f > /dev/null 2>&1; swapon f
            /usr/bin/python3 -c 'import fcntl; fcntl.ioctl(open(\"f\"), 0xC020660B, bytes(32))' 2>&1 | tail -1",
        );
        assert!(said.contains("swapon failed: Invalid argument"), "{said}");
        assert!(said.contains("Operation not supported"), "{said}");
    }
}

/// Without the helper of mount(8), which takes the directory for a program.
#[test]
fn the_kernel_makes_a_mount_read_only() {
    if !root_and_fuse_available() {
        return;
    }
    let twin = Twin::new(As::Root);
    let said = twin.on_mount(
        "mount -i -o remount,ro \"$PWD\" && touch f; mount -i -o remount,rw \"$PWD\" && touch f && ls f",
    );
    assert!(said.contains("Read-only file system") && said.starts_with("f\n"), "{said}");
}

/// An unmount that leaves files open: the next daemon says which process has the store.
#[test]
fn a_store_in_use_after_a_lazy_unmount_names_its_process() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let file = File::create(mount.at("file")).unwrap();
    let pid = mount.pid();
    rustix::mount::unmount(mount.mnt(), rustix::mount::UnmountFlags::DETACH).unwrap();
    let refused = mount.dedupfs().arg(mount.dir()).arg(mount.mnt()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(&format!("the store is in use by process {pid}")), "{said}");
    assert!(said.contains("after `umount -l`"), "{said}");
    drop(file);
    mount.start();
}
