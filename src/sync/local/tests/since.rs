//! Examinations that rely on what a daemon saw.

use super::*;

/// A copy with a daemon that has seen nothing yet.
fn watched() -> Copy {
    let copy = Copy::new();
    *copy.changed.lock().unwrap() = Some(Vec::new());
    copy
}

fn saw(copy: &Copy, paths: &[(&str, bool)]) {
    let paths = paths.iter().map(|(path, moved)| (path.as_bytes().to_vec(), *moved)).collect();
    *copy.changed.lock().unwrap() = Some(paths);
}

/// What a walk finds, by a memory of its own.
fn walked(copy: &Copy) -> Vec<(String, Kind, u16)> {
    let other = tempfile::tempdir().unwrap();
    let rules = copy.rules.lock().unwrap().clone();
    let local =
        Local::open(&copy.at(""), other.path(), "store", &rules, true, None, Box::new(|_, _| {})).unwrap();
    rows(&local.tree)
}

fn rows(tree: &Tree) -> Vec<(String, Kind, u16)> {
    tree.entries.iter().map(|(path, entry)| (shown(path), entry.kind.clone(), entry.mode)).collect()
}

fn found(copy: &Copy) -> Vec<(String, Kind, u16)> {
    let mut local = copy.open(true).unwrap();
    local.load_tree().unwrap();
    rows(&local.tree)
}

#[test]
fn nothing_is_walked_if_a_daemon_saw_nothing() {
    let copy = watched();
    copy.write("d/f", "f");
    let before = found(&copy);
    assert!(copy.open(false).unwrap().unread);
    // Nobody saw this. It shows that the directory is not walked.
    copy.write("d/unseen", "unseen");
    assert_eq!(found(&copy), before);
    saw(&copy, &[("d", false)]);
    assert_eq!(found(&copy), walked(&copy));
    assert_eq!(found(&copy).len(), before.len() + 1);
}

/// A daemon that has begun again, one that is gone, and a memory that was written by another head.
#[test]
fn everything_is_walked_if_a_daemon_does_not_know() {
    for lost in 0..3 {
        let copy = watched();
        copy.write("d/f", "f");
        found(&copy);
        assert!(copy.open(false).unwrap().unread, "a moment was established");
        copy.write("d/unseen", "unseen");
        let state = copy.dir.path().join("state");
        match lost {
            0 => *copy.changed.lock().unwrap() = None,
            1 => fs::remove_file(state.join("since")).unwrap(),
            _ => {
                let mut bytes = fs::read(state.join("since")).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(state.join("since"), bytes).unwrap();
            }
        }
        assert_eq!(found(&copy), walked(&copy), "{lost}");
    }
}

/// Unless everything was examined, the next sync walks too.
#[test]
fn a_rule_and_what_was_not_examined_make_the_next_sync_walk() {
    let copy = watched();
    copy.write("d/f", "f");
    copy.write("d/x.o", "x");
    copy.write(".dedupfsignore", "*.o\n");
    found(&copy);
    assert!(copy.open(false).unwrap().unread);
    // The daemon says so too, but it is the text that counts.
    copy.write(".dedupfsignore", "");
    assert_eq!(found(&copy), walked(&copy));
    // An ignored file that was synced before stays in the tree, and is not examined.
    copy.write(".dedupfsignore", "*.o\n");
    found(&copy);
    assert!(!copy.open(false).unwrap().unread);
    assert!(copy.memory_since().is_none());
}

impl Copy {
    fn memory_since(&self) -> Option<super::super::super::since::Since> {
        self.open(false).unwrap().memory.since.clone()
    }
}

/// Each list is what the daemon reports of the change.
#[test]
fn what_is_examined_again_is_what_a_walk_finds() {
    let copy = watched();
    for path in ["d/e/f", "d/e/g", "d/h", "d-x", "top", "x/y/z"] {
        copy.write(path, path);
    }
    found(&copy);
    let at = |path: &str| copy.at(path);
    type Step<'a> = (&'a dyn Fn(), &'a [(&'a str, bool)]);
    let steps: [Step<'_>; 11] = [
        (&|| copy.write("d/h", "other"), &[("d/h", false)]),
        (&|| copy.write("d/new/deep/f", "f"), &[("d", false), ("d/new/deep/f", true)]),
        (&|| fs::rename(at("d/e"), at("x/e")).unwrap(), &[("d", false), ("x", false), ("x/e", true)]),
        (&|| fs::remove_dir_all(at("x/e")).unwrap(), &[("x", false)]),
        (&|| fs::rename(at("x/y"), at("y")).unwrap(), &[("", false), ("x", false), ("y", true)]),
        (
            &|| {
                fs::remove_file(at("top")).unwrap();
                copy.write("top/in", "in");
            },
            &[("", false), ("top", true), ("top/in", true)],
        ),
        (
            &|| {
                fs::remove_dir_all(at("top")).unwrap();
                copy.write("top", "a file again");
            },
            &[("", false), ("top", true)],
        ),
        (
            &|| fs::hard_link(at("d-x"), at("d/link")).unwrap(),
            &[("d", false), ("d-x", true), ("d/link", true)],
        ),
        (&|| copy.write("d/link", "through it"), &[("d-x", false), ("d/link", false)]),
        // It was removed again, and the list is older.
        (&|| {}, &[("gone/for/good", true), ("d/gone", false)]),
        // A directory that came meanwhile is not in the list.
        (&|| copy.write("late/f", "f"), &[("late/f", false)]),
    ];
    for (n, (step, paths)) in steps.into_iter().enumerate() {
        step();
        saw(&copy, paths);
        assert_eq!(found(&copy), walked(&copy), "{n}");
        saw(&copy, &[]);
        assert_eq!(found(&copy), walked(&copy), "{n}");
    }
}

/// Of a sync that takes something, the steps themselves are among the changes.
#[test]
fn a_moment_outlives_the_steps_of_a_sync() {
    let (a, b) = (Copy::new(), watched());
    a.write("d/f", "f");
    b.write("g", "g");
    sync(&a, &b);
    saw(&b, &[("", false), ("d", true), ("d/f", true)]);
    assert_eq!(found(&b), walked(&b));
    saw(&b, &[]);
    assert!(b.open(false).unwrap().unread);
    // While it did, someone wrote a file: among the changes since the moment before the walk.
    a.write("d/f", "f, edited");
    sync(&a, &b);
    b.write("d/during", "during");
    saw(&b, &[("d", false), ("d/f", true)]);
    assert_eq!(found(&b), walked(&b));
    assert_eq!(found(&b).len(), 4);
}
