use super::super::merge::tests::{dir, file, tree};
use super::super::plan::apply;
use super::*;

fn groups(globs: &[&str]) -> Groups {
    Groups::of(globs.iter().map(|glob| (*glob).to_owned())).unwrap()
}

/// Merges both ways round, and plans from either side.
fn both(groups: &Groups, base: &Tree, left: &Tree, right: &Tree) -> Merged {
    let merged = groups.merge(base, left, right);
    assert_eq!(merged, groups.merge(base, right, left), "the sides are alike");
    merged.tree.check().unwrap();
    for from in [left, right] {
        let mut now = from.clone();
        groups.plan(from, &merged.tree).iter().for_each(|op| apply(&mut now, op));
        let kinds = |tree: &Tree| -> Vec<(TreePath, Kind)> {
            tree.entries.iter().map(|(path, entry)| (path.clone(), entry.kind.clone())).collect()
        };
        assert_eq!(kinds(&now), kinds(&merged.tree));
        assert!(groups.plan(&now, &now).is_empty());
    }
    merged
}

/// What files are at and below a path, and what is in them, as far as these tests tell one from another.
fn rows(tree: &Tree, path: &str) -> Vec<(String, Kind)> {
    let below = tree
        .entries
        .iter()
        .filter(|(other, entry)| other.starts_with(path.as_bytes()) && !entry.kind.is_dir());
    below
        .map(|(other, entry)| {
            (String::from_utf8_lossy(&other[path.len()..]).into_owned(), entry.kind.clone())
        })
        .collect()
}

fn repository(author: &str, head: &str, objects: &[&str]) -> Vec<(String, Entry)> {
    let mut rows = vec![
        ("p".to_owned(), dir(1)),
        ("p/.git".to_owned(), dir(2)),
        ("p/.git/HEAD".to_owned(), file(3, author, head)),
        ("p/.git/objects".to_owned(), dir(4)),
    ];
    for object in objects {
        let ident = 100 + u64::from(object.as_bytes()[0]);
        rows.push((format!("p/.git/objects/{object}"), file(ident, author, object)));
    }
    rows
}

fn of(rows: &[(String, Entry)]) -> Tree {
    tree(&rows.iter().map(|(path, entry)| (path.as_str(), entry.clone())).collect::<Vec<_>>())
}

/// Each side made a file that the other did not: without groups both would be in one directory, with one of the heads.
#[test]
fn a_repository_that_both_changed_is_kept_twice_as_a_whole() {
    let base = of(&repository("a", "0", &["x"]));
    let left = of(&repository("l", "left", &["x", "y"]));
    let right = of(&repository("r", "right", &["x", "z"]));
    let merged = both(&Groups::default(), &base, &left, &right);
    assert_eq!(rows(&merged.tree, "p/.git/"), rows(&right, "p/.git/"));
    assert_eq!((merged.conflicts.len(), merged.conflicts[0].path.as_slice()), (1, &b"p/.git"[..]));
    let copy = String::from_utf8(merged.conflicts[0].copy.clone()).unwrap();
    assert!(copy.starts_with("p/.git.conflict-l-"), "{copy}");
    assert_eq!(rows(&merged.tree, &format!("{copy}/")), rows(&left, "p/.git/"));
    // What came of it is a group too, and rests.
    assert!(both(&Groups::default(), &base, &merged.tree, &left).conflicts.len() <= 1);
    let again = both(&Groups::default(), &left, &merged.tree, &left);
    assert_eq!((again.tree, again.conflicts.len()), (merged.tree, 0));
}

#[test]
fn who_changed_a_repository_wins_with_all_of_it() {
    let base = of(&repository("a", "0", &["x"]));
    let right = of(&repository("r", "right", &["z"]));
    let mut left = base.clone();
    left.entries.insert(b"p/work".to_vec(), file(50, "l", "work"));
    left.entries.get_mut(&b"p/.git/HEAD"[..]).unwrap().mtime = (7, 7);
    let merged = both(&Groups::default(), &base, &left, &right);
    assert_eq!(rows(&merged.tree, "p/.git/"), rows(&right, "p/.git/"));
    assert!(merged.conflicts.is_empty() && merged.tree.entries.contains_key(&b"p/work"[..]));
    // Deleted on one side: all of the other's is kept, not only what is new in it.
    let gone = of(&[]);
    let merged = both(&Groups::default(), &base, &gone, &right);
    assert_eq!(rows(&merged.tree, "p/.git/"), rows(&right, "p/.git/"));
    assert_eq!(merged.kept, [b"p/.git".to_vec()]);
    assert!(both(&Groups::default(), &base, &gone, &base).tree.entries.is_empty());
    // Its directory renamed meanwhile.
    let renamed = |tree: &Tree| Tree {
        entries: tree
            .entries
            .iter()
            .map(|(path, entry)| ([b"q", &path[1..]].concat(), entry.clone()))
            .collect(),
    };
    let merged = both(&Groups::default(), &base, &renamed(&base), &right);
    assert_eq!(rows(&merged.tree, "q/.git/"), rows(&right, "p/.git/"));
}

/// One side closed the database, which took its log in; the other wrote to the log.
/// Both sides asked git for its status.
#[test]
fn an_index_of_git_is_no_change_of_its_repository() {
    let with_index = |head: &str, objects: &[&str], index: &str| {
        let mut rows = repository("a", head, objects);
        rows.push(("p/.git/index".to_owned(), file(5, "a", index)));
        rows.push(("p/.git/modules/m/HEAD".to_owned(), file(6, "a", "m")));
        rows.push(("p/.git/modules/m/index".to_owned(), file(7, "a", index)));
        let dirs = [("p/.git/modules", 8), ("p/.git/modules/m", 9)];
        rows.extend(dirs.map(|(path, ident)| (path.to_owned(), dir(ident))));
        of(&rows)
    };
    let base = with_index("0", &["x"], "base");
    let [left, right] = ["left", "right"].map(|index| with_index("0", &["x"], index));
    let committed = with_index("1", &["x", "y"], "committed");
    let merge = |left: &Tree, right: &Tree| {
        let merged = both(&Groups::default(), &base, left, right);
        assert!(merged.conflicts.is_empty(), "{:?}", merged.conflicts);
        rows(&merged.tree, "p/.git/")
    };
    assert_eq!(merge(&left, &base), rows(&left, "p/.git/"), "it is taken along");
    assert_eq!(merge(&left, &committed), rows(&committed, "p/.git/"));
    let one = merge(&left, &right);
    assert!([&left, &right].iter().any(|side| rows(side, "p/.git/") == one), "{one:?}");
    // Elsewhere a file of that name is one like any other.
    let other = |text: &str| {
        let dir = [("d.lib".to_owned(), dir(1)), ("d.lib/index".to_owned(), file(2, "a", text))];
        of(&dir)
    };
    let merged = both(&groups(&["*.lib"]), &other("base"), &other("left"), &other("right"));
    assert_eq!(merged.conflicts.len(), 1);
}

#[test]
fn a_database_and_its_log_stay_together() {
    let base = tree(&[
        ("d.db", file(1, "a", "0")),
        ("d.db-wal", file(2, "a", "0")),
        ("d.db-shm", file(3, "a", "0")),
    ]);
    let left = tree(&[("d.db", file(1, "l", "left"))]);
    let right = tree(&[
        ("d.db", file(1, "a", "0")),
        ("d.db-wal", file(2, "r", "right")),
        ("d.db-shm", file(3, "r", "right")),
    ]);
    let merged = both(&Groups::default(), &base, &left, &right);
    assert_eq!(rows(&merged.tree, "d.db"), rows(&right, "d.db"));
    let copy = String::from_utf8(merged.conflicts[0].copy.clone()).unwrap();
    assert_eq!(rows(&merged.tree, &copy), rows(&left, "d.db"));
    assert_eq!((merged.conflicts.len(), merged.tree.entries.len()), (1, 4));
    // Only one did.
    assert_eq!(both(&Groups::default(), &base, &left, &base).tree, left);
    assert_eq!(both(&Groups::default(), &base, &base, &right).tree, right);
    // The loser is the one with a log.
    let right = tree(&[("d.db", file(1, "r", "right"))]);
    let mut left = base.clone();
    left.entries.insert(b"d.db-wal".to_vec(), file(2, "l", "left"));
    let merged = both(&Groups::default(), &base, &left, &right);
    let copy = String::from_utf8(merged.conflicts[0].copy.clone()).unwrap();
    assert_eq!(rows(&merged.tree, &copy), rows(&left, "d.db"));
}

#[test]
fn a_file_in_the_place_of_a_log_goes_beside_it() {
    let base = tree(&[("d.db", file(1, "a", "0")), ("d.db-wal", file(2, "a", "0"))]);
    let left = tree(&[("d.db-wal", file(9, "l", "no log"))]);
    let mut right = base.clone();
    right.entries.insert(b"d.db".to_vec(), file(1, "r", "right"));
    let merged = both(&Groups::default(), &base, &left, &right);
    assert_eq!(merged.tree.entries[&b"d.db-wal"[..]].kind, right.entries[&b"d.db-wal"[..]].kind);
    assert!(merged.tree.entries.values().any(|entry| entry.kind == left.entries[&b"d.db-wal"[..]].kind));
}

/// Idents do not lead into a group, or out of one.
#[test]
fn what_is_moved_into_a_group_does_not_take_along_what_the_other_side_did() {
    let mut base = repository("a", "0", &["x"]);
    base.push(("note".to_owned(), file(60, "a", "note")));
    let mut right = repository("a", "0", &["x"]);
    right.push(("p/.git/note".to_owned(), file(60, "a", "note")));
    let mut left = repository("a", "0", &["x"]);
    left.push(("note".to_owned(), file(60, "l", "edited")));
    let (base, left, right) = (of(&base), of(&left), of(&right));
    let merged = both(&Groups::default(), &base, &left, &right);
    assert_eq!(rows(&merged.tree, "p/.git/"), rows(&right, "p/.git/"));
    assert_eq!(merged.tree.entries[&b"note"[..]].kind, left.entries[&b"note"[..]].kind);
}

#[test]
fn which_directories_are_groups() {
    let found = |globs: &[&str], tree: &Tree| -> Vec<String> {
        let found = groups(globs).find(&kinds(tree), &|_| false);
        found.into_keys().map(|path| String::from_utf8(path).unwrap()).collect()
    };
    let some = tree(&[
        ("a.lib", dir(1)),
        ("a.lib/.git", dir(2)),
        ("b", dir(3)),
        ("b/HEAD", file(4, "a", "h")),
        ("b/objects", dir(5)),
        ("b/refs", dir(6)),
        ("c", dir(7)),
        ("c/HEAD", file(8, "a", "h")),
        ("c/a.lib", dir(9)),
        ("d", file(10, "a", "d")),
        ("d-journal", file(11, "a", "j")),
        ("e-wal", file(12, "a", "w")),
        (".git", file(13, "a", "gitdir: x")),
        ("f", dir(14)),
        ("f.conflict-a-00000000", dir(15)),
    ]);
    assert_eq!(found(&[], &some), ["a.lib/.git", "b", "d"]);
    assert_eq!(found(&["*.lib", "/f/"], &some), ["a.lib", "b", "c/a.lib", "d", "f", "f.conflict-a-00000000"]);
    assert_eq!(found(&["c/*.lib"], &some), ["a.lib/.git", "b", "c/a.lib", "d"]);
    // Of both sides; what is no glob is none.
    let told =
        groups(&["f"]).with(&["group *.lib".to_owned(), "group [".to_owned(), "new overlay".to_owned()]);
    assert_eq!(told.features(), ["group *.lib", "group f"]);
    assert!(Groups::of(["[".to_owned()]).is_err());
}

/// The machine stopped when the log of the old database was out, and the new one in its place.
#[test]
fn a_database_that_is_half_in_place_is_no_edit() {
    let before = tree(&[("d.db", file(1, "a", "0")), ("d.db-wal", file(2, "a", "0"))]);
    let agreed = tree(&[("d.db", file(1, "p", "new")), ("d.db-wal", file(2, "p", "new"))]);
    let now = tree(&[("d.db", file(1, "p", "new"))]);
    let merged = Groups::default().merge_on_the_way(&before, &now, &agreed);
    assert_eq!((rows(&merged.tree, ""), merged.conflicts.len()), (rows(&agreed, ""), 0));
    // One that somebody wrote to meanwhile is.
    let now = tree(&[("d.db", file(1, "u", "written")), ("d.db-wal", file(2, "a", "0"))]);
    let merged = Groups::default().merge_on_the_way(&before, &now, &agreed);
    assert_eq!(merged.conflicts.len(), 1);
}
