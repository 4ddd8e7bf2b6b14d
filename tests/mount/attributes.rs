//! Attributes that the kernel may remember, and those that it must not.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, root_and_fuse_available};
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

/// A mapping outlives the descriptor that it was made from, and with passthrough the kernel writes through it without a
/// word: the time of the change shows all the same.
#[test]
fn a_write_through_a_mapping_of_a_closed_file_shows_at_once() {
    if !root_and_fuse_available() {
        return;
    }
    let mut mount = Mount::prepare(As::Root);
    mount.flags = vec!["--dedup".to_owned(), "idle:1h".to_owned()];
    mount.start();
    let path = mount.at("mapped");
    fs::write(&path, [1; 8192]).unwrap();
    // What a program creates is remembered for a second.
    std::thread::sleep(Duration::from_millis(1200));
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    // SAFETY: a new mapping of a file that nothing truncates, unmapped below.
    let mapping = unsafe {
        let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), 8192, protection, shared, file.as_raw_fd(), 0)
    };
    assert_ne!(mapping, libc::MAP_FAILED);
    drop(file);
    std::thread::sleep(Duration::from_millis(100));
    let time = || fs::metadata(&path).map(|stat| (stat.mtime(), stat.mtime_nsec())).unwrap();
    let before = time();
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: the mapping is that long, and nobody else in this process uses it.
    unsafe { mapping.cast::<u8>().add(5000).write_volatile(2) };
    assert!(time() > before, "the change does not show");
    // SAFETY: nothing uses the mapping after this.
    assert_eq!(unsafe { libc::munmap(mapping, 8192) }, 0);
    assert_eq!(fs::read(&path).unwrap()[5000], 2);
}

/// In place the kernel remembers attributes for an hour. It takes mapping a file for an access, and so asks again: nothing
/// of ours was seen to be needed for this.
#[test]
fn a_change_only_through_a_mapping_shows_in_place() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::in_place(As::Root);
    let path = mount.at("mapped");
    fs::write(&path, [1; 8192]).unwrap();
    mount.settle();
    let time = || fs::metadata(&path).map(|stat| (stat.mtime(), stat.mtime_nsec())).unwrap();
    let mut before = time();
    for round in 2..4 {
        assert_eq!(time(), before);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // SAFETY: a new mapping of a file that nothing truncates, unmapped below.
        let mapping = unsafe {
            let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), 8192, protection, shared, file.as_raw_fd(), 0)
        };
        assert_ne!(mapping, libc::MAP_FAILED);
        // SAFETY: the mapping is that long, and nobody else in this process uses it.
        unsafe { mapping.cast::<u8>().add(5000).write_volatile(round) };
        // SAFETY: nothing uses the mapping after this.
        assert_eq!(unsafe { libc::munmap(mapping, 8192) }, 0);
        drop(file);
        assert!(time() > before, "the change does not show");
        mount.settle();
        assert!(time() > before, "the change does not show any more");
        assert_eq!(fs::read(&path).unwrap()[5000], round);
        before = time();
    }
}

/// `ls -l` asks for the label of each file until it hears that there are none.
#[test]
fn a_file_without_a_label_says_that_there_are_none_on_a_kernel_without_selinux() {
    if !root_and_fuse_available() {
        return;
    }
    if fs::read_to_string("/proc/filesystems").unwrap().contains("selinuxfs") {
        // This kernel answers by itself.
        return;
    }
    let mount = Mount::in_place(As::Root);
    let (plain, labelled) = (mount.at("plain"), mount.at("labelled"));
    fs::write(&plain, "x").unwrap();
    fs::write(&labelled, "x").unwrap();
    let get = |path: &std::path::Path, name: &str| {
        let mut value = [0; 64];
        rustix::fs::lgetxattr(path, name, &mut value[..]).map(|len| value[..len].to_vec())
    };
    assert_eq!(get(&plain, "security.selinux"), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(get(&plain, "security.other"), Err(rustix::io::Errno::NODATA));
    assert_eq!(get(&plain, "user.other"), Err(rustix::io::Errno::NODATA));
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&labelled, "security.selinux", b"system_u:object_r:tmp_t:s0", flags).unwrap();
    assert_eq!(get(&labelled, "security.selinux").unwrap(), b"system_u:object_r:tmp_t:s0");
}
