//! One bad file concerns itself: whatever is wrong with it, all others are synced, the user is told which it is, and it
//! arrives as soon as it can.

use super::*;
use std::os::unix::fs::chown;

const USER: u32 = 65534;

impl Copy {
    /// In `dir`, for a user who is not root.
    fn of_user(dir: &str) -> Copy {
        let copy = Copy { dir: tempfile::tempdir_in(dir).unwrap(), ..Copy::new() };
        fs::set_permissions(copy.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["tree", "state"] {
            fs::create_dir(copy.dir.path().join(name)).unwrap();
            // Without root, nothing is run as that user.
            let _ = chown(copy.dir.path().join(name), Some(USER), Some(USER));
        }
        copy
    }

    fn mode(&self, path: &str) -> u32 {
        fs::symlink_metadata(self.at(path)).unwrap().mode() & 0o777
    }

    fn chmod(&self, path: &str, mode: u32) {
        fs::set_permissions(self.at(path), PermissionsExt::from_mode(mode)).unwrap();
    }
}

/// Runs as a user who is not root, in a thread of its own. Only root can: then nothing is run by others.
fn as_user(run: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: it takes no pointers. The system call changes this thread only, the function of the C library all of them.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, -1, USER, -1) };
            assert_eq!(done, 0);
            run();
        });
        thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
    });
}

/// Both sides have looked at their trees; then something happens; then they sync.
fn sync_after(a: &Copy, b: &Copy, happens: impl FnOnce()) -> Outcome {
    let (mut from_b, to_a) = std::io::pipe().unwrap();
    let (mut from_a, to_b) = std::io::pipe().unwrap();
    let (looked, look) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut local = b.open(false).unwrap();
            looked.send(()).unwrap();
            gone.recv().unwrap();
            let (mut session, mut to_a) = (Session::answer(), to_a);
            link::run(&mut session, &mut local, &mut from_a, &mut to_a, &mut |_, _| {}).unwrap();
        });
        let mut local = a.open(false).unwrap();
        look.recv().unwrap();
        happens();
        go.send(()).unwrap();
        let (mut session, mut to_b) = (Session::call(&local, Options::default()), to_b);
        link::run(&mut session, &mut local, &mut from_b, &mut to_b, &mut |_, _| {}).unwrap();
        session.outcome().clone()
    })
}

fn told(outcome: &Outcome) -> Vec<(String, String)> {
    outcome.skipped.iter().map(|(path, why)| (shown(path), why.clone())).collect()
}

#[test]
fn what_cannot_be_read_does_not_keep_the_rest_from_being_synced() {
    let (a, b) = (Copy::of_user("/tmp"), Copy::of_user("/tmp"));
    as_user(|| {
        a.write("old", "old");
        a.write("closed/known", "known");
        sync(&a, &b);
        a.write("secret", "secret");
        a.write("new", "new");
        a.write("locked/x", "x");
        fs::remove_file(a.at("old")).unwrap();
        for path in ["secret", "closed", "locked"] {
            a.chmod(path, 0);
        }
        for (caller, called) in [(&a, &b), (&b, &a)] {
            let outcome = sync_after(caller, called, || {});
            let told = told(&outcome);
            assert_eq!(told.iter().map(|row| &row.0[..]).collect::<Vec<_>>(), ["closed", "locked", "secret"]);
            assert!(
                told.iter().all(|row| row.1.contains("denied") && row.1.contains(".dedupfsignore")),
                "{told:?}"
            );
            assert_eq!((b.read("new"), b.read("closed/known")), (b"new".to_vec(), b"known".to_vec()));
            assert!(!b.at("old").exists() && !b.at("secret").exists());
        }
        for path in ["secret", "closed", "locked"] {
            a.chmod(path, 0o700);
        }
        sync(&a, &b);
        assert_eq!((b.read("secret"), b.read("locked/x")), (b"secret".to_vec(), b"x".to_vec()));
    });
}

#[test]
fn directories_that_nobody_may_write_to_are_opened_for_a_step() {
    let (a, b) = (Copy::of_user("/tmp"), Copy::of_user("/tmp"));
    as_user(|| {
        a.write("objects/00/blob", "blob");
        a.write("objects/00/big", "big");
        a.write("closed/sub/x", "x");
        a.write("moved/y", "y");
        a.chmod("objects/00/big", 0o444);
        for dir in ["objects/00", "closed/sub", "closed", "moved"] {
            a.chmod(dir, 0o555);
        }
        sync(&a, &b);
        for dir in ["objects/00", "closed/sub", "closed", "moved"] {
            assert_eq!(b.mode(dir), 0o555, "{dir}");
            a.chmod(dir, 0o755);
        }
        fs::remove_file(a.at("objects/00/blob")).unwrap();
        a.chmod("objects/00/big", 0o644);
        a.write("objects/00/big", "bigger");
        a.chmod("objects/00/big", 0o444);
        a.write("objects/00/new", "new");
        fs::remove_dir_all(a.at("closed")).unwrap();
        fs::rename(a.at("moved"), a.at("objects/moved")).unwrap();
        for dir in ["objects/00", "objects/moved"] {
            a.chmod(dir, 0o555);
        }
        let (outcome, _) = sync(&a, &b);
        assert!(outcome.skipped.is_empty(), "{:?}", outcome.skipped);
        assert_eq!(
            (b.read("objects/00/big"), b.read("objects/00/new")),
            (b"bigger".to_vec(), b"new".to_vec())
        );
        assert!(!b.at("closed").exists() && !b.at("objects/00/blob").exists());
        assert_eq!(
            (b.mode("objects/00"), b.mode("objects/moved"), b.mode("objects/00/big")),
            (0o555, 0o555, 0o444)
        );
        let (outcome, _) = sync(&b, &a);
        assert_eq!((outcome.here, outcome.there), Default::default());
    });
}

/// A log that grows, a file that is written anew, one that is replaced and one that goes, between the look and the sync: the rest
/// arrives, the log as it was looked at, and the others with the next sync.
#[test]
fn what_changes_before_it_is_sent_is_named_and_the_rest_arrives() {
    for (told_as_deltas, stored) in [(false, false), (true, false), (true, true)] {
        for a_calls in [true, false] {
            let (a, b) = (Copy::new(), Copy::new());
            let log = noise(300_000, 3);
            if told_as_deltas {
                for name in ["log", "anew", "replaced", "temporary"] {
                    a.write(name, [&log[..], name.as_bytes()].concat());
                }
                sync(&a, &b);
            }
            let text = |name: &str, text: &str| [&log[..], name.as_bytes(), text.as_bytes()].concat();
            for name in ["log", "anew", "replaced", "temporary"] {
                a.write(name, text(name, "second"));
            }
            a.write("rest", "rest");
            let (caller, called) = if a_calls { (&a, &b) } else { (&b, &a) };
            let outcome = sync_after(caller, called, || {
                File::options().append(true).open(a.at("log")).unwrap().write_all(b"a line").unwrap();
                fs::write(a.at("anew"), text("anew", "third!")).unwrap();
                a.write("other", text("replaced", "third"));
                fs::rename(a.at("other"), a.at("replaced")).unwrap();
                fs::remove_file(a.at("temporary")).unwrap();
                if !stored {
                    a.past.lock().unwrap().clear();
                }
            });
            let told = told(&outcome);
            let mut named: Vec<&str> = told.iter().map(|row| &row.0[..]).collect();
            named.sort_unstable();
            // What the store still has arrives as it was.
            assert_eq!(
                named,
                if stored { vec![] } else { vec!["anew", "replaced", "temporary"] },
                "{told:?}"
            );
            assert!(told.iter().all(|row| !row.1.contains("hash")), "{told:?}");
            assert_eq!((b.read("log"), b.read("rest")), (text("log", "second"), b"rest".to_vec()));
            let (outcome, _) = sync(&a, &b);
            assert!(outcome.skipped.is_empty() && outcome.conflicts.is_empty(), "{outcome:?}");
            assert_eq!(b.read("log"), [&text("log", "second")[..], b"a line"].concat());
            assert_eq!(
                (b.read("anew"), b.read("replaced")),
                (text("anew", "third!"), text("replaced", "third"))
            );
            assert!(!b.at("temporary").exists());
        }
    }
}

/// ext4 has room for 4 KiB of xattrs, tmpfs for more.
#[test]
fn an_xattr_that_does_not_fit_is_named_and_not_deleted() {
    let (a, b) = (Copy::of_user("/dev/shm"), Copy::new());
    let set = |copy: &Copy, path: &str, len: usize| {
        rustix::fs::setxattr(copy.at(path), "user.fork", &vec![b'x'; len], rustix::fs::XattrFlags::empty())
    };
    let len =
        |copy: &Copy, path: &str| rustix::fs::getxattr(copy.at(path), "user.fork", &mut vec![0; 20_000][..]);
    b.write("try", "");
    a.write("f", "f");
    if set(&a, "f", 20_000).is_err() || set(&b, "try", 20_000).is_ok() {
        return;
    }
    fs::remove_file(b.at("try")).unwrap();
    fs::hard_link(a.at("f"), a.at("g")).unwrap();
    for n in 0..3 {
        a.write("new", n.to_string());
        let outcome = sync_after(&a, &b, || {});
        let told = told(&outcome);
        assert!(told.len() == 1 && told[0].1.contains("user.fork"), "{told:?}");
        assert_eq!(
            (b.read("new"), len(&a, "f"), len(&b, "f").is_err()),
            (n.to_string().into(), Ok(20_000), true)
        );
    }
    // Renamed and written to on the other side it is still there.
    fs::rename(b.at("f"), b.at("h")).unwrap();
    sync(&a, &b);
    b.write("h", "edited");
    sync(&a, &b);
    assert_eq!((a.read("g"), len(&a, "h"), len(&b, "h").is_err()), (b"edited".to_vec(), Ok(20_000), true));
    // A smaller one fits.
    set(&a, "h", 100).unwrap();
    let (outcome, _) = sync(&a, &b);
    assert_eq!((told(&outcome), len(&b, "g")), (vec![], Ok(100)));
    // One that fits nowhere is removed by a user.
    set(&a, "h", 20_000).unwrap();
    sync(&a, &b);
    rustix::fs::removexattr(a.at("h"), "user.fork").unwrap();
    let (outcome, _) = sync(&a, &b);
    assert!(told(&outcome).is_empty() && len(&a, "h").is_err() && len(&b, "h").is_err());
}

/// A user writes to a file just before another version is put in its place: both are kept, and the sync says so.
#[test]
fn a_conflict_with_what_is_written_meanwhile_is_told() {
    let a = Copy::new();
    a.write("f", "old");
    let mut local = a.open(true).unwrap();
    let from = local.tree.clone();
    let mut to = from.clone();
    let ident = from.entries[&b"f"[..]].ident;
    to.entries.insert(b"f".to_vec(), Entry { ident, ..file(7, "peer", "new") });
    local.begin(ContentId::of(b"new")).unwrap();
    local.write(b"new").unwrap();
    local.finish(ContentId::of(b"new")).unwrap();
    local.leave_out("");
    a.write("f", "written meanwhile");
    let skipped = adopt::adopt(&mut local, &from, &to, &plan(&from, &to)).unwrap();
    assert_eq!(skipped, []);
    let told = local.take_troubles(true);
    let [(path, why)] = &told[..] else { panic!("{told:?}") };
    let copy = why.rsplit(' ').next().unwrap();
    let mut texts = [a.read("f"), a.read(copy)];
    texts.sort();
    assert_eq!((&path[..], texts), (&b"f"[..], [b"new".to_vec(), b"written meanwhile".to_vec()]), "{why}");
}
