//! Files with several names: an edit behind one name is an edit behind all of them, and no name comes back.

use super::*;

/// `names`, all of them names of one file, on both sides.
fn linked(names: &[&str]) -> (Copy, Copy) {
    let (a, b) = (Copy::new(), Copy::new());
    a.write(names[0], "old");
    for name in &names[1..] {
        fs::create_dir_all(a.at(name).parent().unwrap()).unwrap();
        fs::hard_link(a.at(names[0]), a.at(name)).unwrap();
    }
    a.write("other", "other");
    sync(&a, &b);
    (a, b)
}

/// Appends to the file that is there, as `>>` does.
fn append(copy: &Copy, name: &str) {
    File::options().append(true).open(copy.at(name)).unwrap().write_all(b", edited").unwrap();
}

#[track_caller]
fn one_file(copy: &Copy, names: &[&str], text: &str) {
    let ino = |name: &str| fs::metadata(copy.at(name)).unwrap().ino();
    for name in names {
        assert_eq!(String::from_utf8(copy.read(name)).unwrap(), text, "{name}");
        assert_eq!(ino(name), ino(names[0]), "{name} is another file than {}", names[0]);
    }
}

/// Nothing is skipped at the first try, and the next sync has nothing to do.
#[track_caller]
fn clean(a: &Copy, b: &Copy) {
    let (outcome, _) = sync(a, b);
    assert_eq!((outcome.conflicts, outcome.skipped, outcome.kept), Default::default());
    let (outcome, _) = sync(b, a);
    assert_eq!((outcome.here, outcome.there), Default::default());
}

#[test]
fn an_edit_behind_one_name_is_one_behind_all_of_them() {
    let all = ["n1", "n2", "d/n3", "d/e/n4"];
    for (names, edits_a, caller_a) in [(2, true, true), (2, false, true), (4, true, false), (4, false, false)]
    {
        let (a, b) = linked(&all[..names]);
        append(if edits_a { &a } else { &b }, all[names - 1]);
        if caller_a {
            clean(&a, &b)
        } else {
            clean(&b, &a)
        }
        for copy in [&a, &b] {
            one_file(copy, &all[..names], "old, edited");
        }
    }
}

#[test]
fn a_name_that_goes_while_its_file_is_edited_does_not_come_back() {
    for (edits, goes, renamed) in [(0, 0, false), (0, 0, true), (0, 1, false), (0, 1, true), (1, 0, true)] {
        let (a, b) = linked(&["n1", "n2", "d/n3"]);
        let copies = [&a, &b];
        append(copies[edits], "n1");
        match renamed {
            true => fs::rename(copies[goes].at("n2"), copies[goes].at("d/moved")).unwrap(),
            false => fs::remove_file(copies[goes].at("n2")).unwrap(),
        }
        clean(&a, &b);
        let mut names = vec!["n1", "d/n3"];
        names.extend(renamed.then_some("d/moved"));
        for copy in copies {
            one_file(copy, &names, "old, edited");
            assert_eq!(copy.names().len(), names.len() + 2, "{:?}", copy.names());
        }
    }
}

#[test]
fn an_edit_goes_with_names_that_were_given_or_made_files_of_their_own() {
    // A name is added on one side.
    let (a, b) = linked(&["n1", "n2"]);
    append(&a, "n2");
    fs::hard_link(b.at("n1"), b.at("n3")).unwrap();
    clean(&a, &b);
    one_file(&a, &["n1", "n2", "n3"], "old, edited");
    one_file(&b, &["n1", "n2", "n3"], "old, edited");
    // A name is made a file of its own on one side, and nothing else of it is changed.
    let (a, b) = linked(&["n1", "n2"]);
    append(&a, "n1");
    fs::copy(b.at("n2"), b.at("copy")).unwrap();
    fs::rename(b.at("copy"), b.at("n2")).unwrap();
    sync(&a, &b);
    for copy in [&a, &b] {
        assert_eq!((copy.read("n1"), copy.read("n2")), (b"old, edited".to_vec(), b"old, edited".to_vec()));
        assert_ne!(fs::metadata(copy.at("n1")).unwrap().ino(), fs::metadata(copy.at("n2")).unwrap().ino());
    }
    // Two files with the same content are made one on one side.
    let (a, b) = (Copy::new(), Copy::new());
    ["x", "y"].iter().for_each(|name| a.write(name, "same"));
    sync(&a, &b);
    append(&a, "y");
    fs::remove_file(b.at("y")).unwrap();
    fs::hard_link(b.at("x"), b.at("y")).unwrap();
    let (outcome, _) = sync(&a, &b);
    assert!(outcome.conflicts.is_empty(), "{:?}", outcome.conflicts);
    assert_eq!((b.read("x"), b.read("y")), (b"same".to_vec(), b"same, edited".to_vec()));
}

#[test]
fn a_mode_of_one_name_is_that_of_all() {
    let (a, b) = linked(&["n1", "n2", "d/n3"]);
    fs::set_permissions(a.at("n2"), PermissionsExt::from_mode(0o600)).unwrap();
    clean(&a, &b);
    assert_eq!(fs::metadata(b.at("d/n3")).unwrap().mode() & 0o777, 0o600);
    one_file(&b, &["n1", "n2", "d/n3"], "old");
}

/// A name that is not synced any more stays as it is on both sides, and does not hold up the others.
#[test]
fn a_name_that_is_ignored_does_not_keep_the_others_from_being_edited() {
    let (a, b) = linked(&["n1", "n2", "ignored/n3"]);
    a.write(".dedupfsignore", "/ignored/\n");
    append(&a, "n1");
    let (outcome, _) = sync(&a, &b);
    assert_eq!((outcome.conflicts, outcome.skipped), Default::default());
    one_file(&b, &["n1", "n2"], "old, edited");
    assert_eq!((a.read("ignored/n3"), b.read("ignored/n3")), (b"old, edited".to_vec(), b"old".to_vec()));
    // It is synced again.
    fs::remove_file(a.at(".dedupfsignore")).unwrap();
    sync(&a, &b);
    for copy in [&a, &b] {
        one_file(copy, &["n1", "n2", "ignored/n3"], "old, edited");
    }
}

/// An edit on one side follows a chain of renames on the other.
#[test]
fn an_edit_follows_a_chain_of_renames_and_a_swap() {
    let (a, b) = (Copy::new(), Copy::new());
    ["f1", "f2", "f3"].iter().for_each(|name| a.write(name, name));
    sync(&a, &b);
    fs::rename(a.at("f2"), a.at("f22")).unwrap();
    fs::rename(a.at("f1"), a.at("f2")).unwrap();
    append(&b, "f1");
    sync(&a, &b);
    assert_eq!((b.read("f2"), b.read("f22")), (b"f1, edited".to_vec(), b"f2".to_vec()));
    assert!(!b.at("f1").exists());
    for (from, to) in [("f2", "t"), ("f3", "f2"), ("t", "f3")] {
        fs::rename(b.at(from), b.at(to)).unwrap();
    }
    append(&a, "f3");
    sync(&a, &b);
    assert_eq!((a.read("f3"), a.read("f2")), (b"f1, edited".to_vec(), b"f3, edited".to_vec()));
}
