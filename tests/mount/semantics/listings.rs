//! Listings that the kernel keeps: each change of a directory has to drop what is kept of it.

use super::twin::Twin;
use crate::common::{As, Mount, as_both, root_and_fuse_available};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Each way to change a directory, and what it adds to and takes from `a` and `b`.
const CHANGES: [&str; 16] = [
    "echo x > a/new",
    "mkdir a/sub",
    "mkfifo a/pipe",
    "ln -s x a/link",
    "ln a/new a/hard",
    "mv a/new a/renamed",
    "mv a/renamed b/moved",
    "mv b/moved a/back",
    "echo y > b/other; mv b/other a/back",
    "mv a/sub b",
    "mv b/sub a/sub2",
    "rmdir a/sub2",
    "rm a/pipe a/link",
    "/usr/bin/python3 -c \"import ctypes; c = ctypes.CDLL(None); print(c.renameat2(-100, b'a/hard', -100, b'b', 2))\"",
    "mkdir gone; rmdir gone; mkdir a/gone; touch a/gone/x; rm -r a/gone",
    "cd a; touch here; cd ..; rm a/here",
];

/// In place, where the kernel keeps listings.
#[test]
fn a_kept_listing_goes_with_each_change_of_the_directory() {
    as_both(|user| {
        let plain = tempfile::tempdir().unwrap();
        let mount = Mount::in_place(user);
        let other = mount.root.path().join("other");
        fs::create_dir(&other).unwrap();
        // Another mount of the same tree shares what is kept. Only root can make one.
        let bound = user == As::Root;
        if bound {
            rustix::mount::mount_bind(mount.mnt(), &other).unwrap();
        }
        let _undo = Undo(bound.then(|| other.clone()));
        let dirs = [plain.path(), &mount.mnt()];
        for dir in dirs {
            fs::create_dir(dir.join("a")).unwrap();
            fs::create_dir(dir.join("b")).unwrap();
            (0..300).for_each(|n| drop(File::create(dir.join("a").join(format!("file-{n}"))).unwrap()));
        }
        // One that stays open is read from its start again.
        let open =
            std::cell::RefCell::new(rustix::fs::Dir::new(File::open(dirs[1].join("a")).unwrap()).unwrap());
        let look = |change: &str| {
            if dirs[0].join("a").is_dir() {
                let mut open = open.borrow_mut();
                open.rewind();
                let listed =
                    open.by_ref().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
                let listed: BTreeSet<_> = listed.filter(|name| name != "." && name != "..").collect();
                assert_eq!(listed, names(&dirs[0].join("a")), "{user:?}: open: after {change}");
            }
            for dir in ["", "a", "b"].map(Path::new).into_iter().filter(|dir| dirs[0].join(dir).is_dir()) {
                let expected = names(&dirs[0].join(dir));
                // Read, kept, and read again.
                for _ in 0..3 {
                    assert_eq!(
                        names(&dirs[1].join(dir)),
                        expected,
                        "{user:?}: {}: after {change}",
                        dir.display()
                    );
                }
                if bound {
                    assert_eq!(names(&other.join(dir)), expected, "{}: bound, after {change}", dir.display());
                }
            }
        };
        look("nothing");
        for (number, change) in CHANGES.iter().enumerate() {
            // By turns through the other mount.
            let at = if bound && number % 2 == 1 { &other } else { dirs[1] };
            let run = |dir: &Path| {
                let mut command = Command::new("bash");
                let output = command.args(["-c", change]).current_dir(dir).output().unwrap();
                (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
            };
            assert_eq!(run(at), run(dirs[0]), "{change}");
            look(change);
        }
        mount.settle();
        look("settle");
    });
}

struct Undo(Option<PathBuf>);

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// With a mount point of its own the bare directory is open to others: nothing is kept there.
#[test]
fn changes_of_the_bare_directory_are_listed_at_once() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::create_dir(mount.dir().join("d")).unwrap();
        let look = |what: &str| {
            for _ in 0..2 {
                assert_eq!(names(&mount.at("d")), names(&mount.dir().join("d")), "{user:?}: {what}");
            }
        };
        for n in 0..20 {
            fs::write(mount.dir().join(format!("d/below-{n}")), "x").unwrap();
            look("made below");
            fs::write(mount.at(&format!("d/above-{n}")), "x").unwrap();
            look("made in the mount");
            fs::rename(mount.dir().join(format!("d/above-{n}")), mount.dir().join(format!("d/r-{n}")))
                .unwrap();
            look("renamed below");
            if n % 2 == 0 {
                fs::remove_file(mount.dir().join(format!("d/below-{n}"))).unwrap();
                look("removed below");
            }
        }
    });
}

/// Who lists a directory sees what was there before and still is after: whatever others do to it meanwhile.
#[test]
fn listings_beside_changes_miss_nothing_that_stays() {
    if !root_and_fuse_available() {
        return;
    }
    const ROUNDS: u32 = 400;
    let mount = Mount::in_place(As::Root);
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    // How many of the numbered files are made, and how many may be gone.
    let (made, going, end) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let lister = || {
            let mut seen = 0;
            while !end.load(Ordering::SeqCst) {
                let until = made.load(Ordering::SeqCst);
                let listed = names(&dir);
                let from = going.load(Ordering::SeqCst);
                for n in from..until {
                    assert!(listed.contains(&n.to_string()), "{n} of {from}..{until} is there");
                    seen += 1;
                }
                let last = made.load(Ordering::SeqCst) + 1;
                assert!(listed.iter().all(|name| name.parse::<u32>().is_ok_and(|n| n <= last)), "{listed:?}");
            }
            seen
        };
        let listers = [(); 3].map(|()| scope.spawn(lister));
        for n in 0..ROUNDS {
            fs::write(dir.join(n.to_string()), "x").unwrap();
            made.store(n + 1, Ordering::SeqCst);
            if n >= 10 {
                going.store(n - 9, Ordering::SeqCst);
                fs::remove_file(dir.join((n - 10).to_string())).unwrap();
            }
        }
        end.store(true, Ordering::SeqCst);
        assert!(listers.map(|lister| lister.join().unwrap()).iter().all(|seen| *seen > 0));
    });
    let left: BTreeSet<_> = (ROUNDS - 10..ROUNDS).map(|n| n.to_string()).collect();
    assert_eq!(names(&dir), left);
}

/// What somebody makes gets that caller's umask, whatever others do at the same time, and what the daemon makes for itself
/// gets none of them.
#[test]
fn callers_with_different_umasks_side_by_side() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run(
            "mkdir d acl; setfacl -d -m u::rwx,g::r-x,o::--- acl
            for umask in 000 022 077 777; do (
                umask $umask
                for n in {1..25}; do
                    for dir in d acl; do
                        at=$dir/$umask-$n
                        : > $at-f; mkdir $at-d; [ $((n % 10)) != 0 ] || mkfifo $at-p; ln -s x $at-l
                    done
                done
            ) & done
            wait; stat -c '%n %a' d/* acl/*",
        );
        // Meanwhile the store grows, by threads that answer nobody and by one that does.
        twin.run("umask 777; for n in {1..20}; do head -c 20000 /dev/urandom > big-$n; done; stat -c '%n %a' big-*");
        twin.run("chmod 600 big-*");
        twin.mount.settle();
        let mut dirs = vec![twin.mount.dir().join(".dedupfs")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let meta = entry.metadata().unwrap();
                let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions());
                let own = if meta.is_dir() { 0o700 } else { 0o400 };
                assert_eq!(mode & own, own, "{}: {mode:o}", entry.path().display());
                if meta.is_dir() {
                    dirs.push(entry.path());
                }
            }
        }
    });
}
