use super::super::tree::ContentId;
use super::*;
use proptest::prelude::*;

pub(in super::super) fn file(ident: u64, author: &str, text: &str) -> Entry {
    let kind = Kind::File { content: ContentId::of(text.as_bytes()), size: text.len() as u64 };
    Entry {
        ident: Ident(ident),
        author: Device::named(author),
        kind,
        mode: 0o644,
        mtime: (1, 0),
        xattrs: Default::default(),
    }
}

pub(in super::super) fn dir(ident: u64) -> Entry {
    Entry { kind: Kind::Dir, mtime: (0, 0), mode: 0o755, ..file(ident, "a", "") }
}

pub(in super::super) fn tree(rows: &[(&str, Entry)]) -> Tree {
    Tree { entries: rows.iter().map(|(path, entry)| (path.as_bytes().to_vec(), entry.clone())).collect() }
}

/// Merges both ways round, and checks what must always be true.
fn both(base: &Tree, left: &Tree, right: &Tree) -> Merged {
    let merged = merge(base, left, right);
    assert_eq!(merged, merge(base, right, left), "the sides are alike");
    merged.tree.check().unwrap();
    merged
}

fn paths(merged: &Merged) -> Vec<String> {
    merged.tree.entries.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

#[test]
fn who_changed_it_wins() {
    let base = tree(&[("f", file(1, "a", "old"))]);
    let mut left = tree(&[("f", file(1, "l", "new"))]);
    let mut right = base.clone();
    right.entries.get_mut(&b"f"[..]).unwrap().mode = 0o600;
    left.entries.get_mut(&b"f"[..]).unwrap().xattrs.insert(b"user.x".to_vec(), b"1".to_vec());
    let merged = both(&base, &left, &right);
    let entry = &merged.tree.entries[&b"f"[..]];
    assert_eq!(entry.kind, file(1, "l", "new").kind);
    assert_eq!((entry.mode, entry.xattrs.len()), (0o600, 1));
    assert!(merged.conflicts.is_empty());
}

#[test]
fn both_contents_are_kept() {
    let base = tree(&[("a.txt", file(1, "a", "old"))]);
    let merged =
        both(&base, &tree(&[("a.txt", file(1, "l", "left"))]), &tree(&[("a.txt", file(1, "r", "right"))]));
    let digits = &ContentId::of(b"left").to_string()[..8];
    assert_eq!(paths(&merged), [format!("a.conflict-l-{digits}.txt"), "a.txt".to_owned()]);
    assert_eq!(merged.tree.entries[&b"a.txt"[..]].author, Device::named("r"));
    assert_eq!(merged.conflicts.len(), 1);
    // The same on both sides is none.
    let merged =
        both(&base, &tree(&[("a.txt", file(1, "l", "new"))]), &tree(&[("a.txt", file(1, "r", "new"))]));
    assert_eq!((paths(&merged), merged.conflicts.len()), (vec!["a.txt".to_owned()], 0));
}

#[test]
fn an_edit_beats_a_deletion_and_brings_its_directories_back() {
    let base =
        tree(&[("d", dir(1)), ("d/e", dir(2)), ("d/e/f", file(3, "a", "old")), ("d/g", file(4, "a", "g"))]);
    let left = tree(&[]);
    let mut right = base.clone();
    right.entries.insert(b"d/e/f".to_vec(), file(3, "r", "new"));
    let merged = both(&base, &left, &right);
    assert_eq!(paths(&merged), ["d", "d/e", "d/e/f"]);
    assert_eq!(merged.kept, [b"d/e/f".to_vec()]);
    assert!(both(&base, &left, &base).tree.entries.is_empty());
}

#[test]
fn what_is_made_in_a_renamed_directory_goes_with_it() {
    let base = tree(&[("d", dir(1)), ("d/f", file(2, "a", "old"))]);
    let left = tree(&[("e", dir(1)), ("e/f", file(2, "a", "old"))]);
    let right = tree(&[("d", dir(1)), ("d/f", file(2, "r", "new")), ("d/n", file(3, "r", "n"))]);
    let merged = both(&base, &left, &right);
    assert_eq!(paths(&merged), ["e", "e/f", "e/n"]);
    assert_eq!(merged.tree.entries[&b"e/f"[..]].author, Device::named("r"));
}

#[test]
fn directories_moved_into_each_other_stay_reachable() {
    let base = tree(&[("a", dir(1)), ("b", dir(2)), ("a/f", file(3, "a", "f"))]);
    let left = tree(&[("b", dir(2)), ("b/a", dir(1)), ("b/a/f", file(3, "a", "f"))]);
    let right = tree(&[("a", dir(1)), ("a/b", dir(2)), ("a/f", file(3, "a", "f"))]);
    let merged = both(&base, &left, &right);
    assert_eq!(merged.tree.entries.len(), 3);
    assert!(merged.tree.by_ident().contains_key(&Ident(3)));
}

#[test]
fn made_on_both_sides() {
    let left =
        tree(&[("d", dir(1)), ("d/same", file(2, "l", "s")), ("d/x", file(3, "l", "left")), ("t", dir(7))]);
    let right = tree(&[
        ("d", dir(4)),
        ("d/same", file(5, "r", "s")),
        ("d/x", file(6, "r", "right")),
        ("t", file(8, "r", "a file")),
    ]);
    let merged = both(&Tree::default(), &left, &right);
    assert_eq!(merged.tree.entries.len(), 6, "{:?}", paths(&merged));
    assert_eq!(merged.conflicts.len(), 2);
    assert!(merged.tree.entries[&b"t"[..]].kind.is_dir());
}

#[test]
fn hard_links_are_files_with_several_names() {
    let base = tree(&[("a", file(1, "a", "x")), ("b", file(1, "a", "x"))]);
    let left = tree(&[("a", file(1, "l", "y")), ("b", file(1, "l", "y"))]);
    let right = tree(&[("a", file(1, "a", "x")), ("b", file(1, "a", "x")), ("c", file(1, "a", "x"))]);
    let merged = both(&base, &left, &right);
    assert_eq!(paths(&merged), ["a", "b", "c"]);
    assert!(merged.tree.entries.values().all(|entry| *entry == file(1, "l", "y")));
    // One name replaced by another file.
    let right = tree(&[("a", file(1, "a", "x")), ("b", file(2, "r", "z"))]);
    let merged = both(&base, &left, &right);
    assert_eq!(merged.tree.entries[&b"a"[..]], file(1, "l", "y"));
    assert_eq!(merged.tree.entries[&b"b"[..]], file(2, "r", "z"));
}

#[test]
fn names_of_conflicts() {
    let (device, hash) = (Device::named("laptop-0000002a"), [0xab; 32]);
    let name = |name: &[u8], n| String::from_utf8(conflict_name(name, &device, &hash, n)).unwrap();
    assert_eq!(name(b"a.tar.gz", 0), "a.tar.conflict-laptop-0000002a-abababab.gz");
    assert_eq!(name(b".bashrc", 0), ".bashrc.conflict-laptop-0000002a-abababab");
    assert_eq!(name(b"noext", 3), "noext.conflict-laptop-0000002a-abababab-3");
    for long in ["x".repeat(255), "ä".repeat(127), format!("{}.txt", "y".repeat(251))] {
        let name = name(long.as_bytes(), 0);
        assert!(name.len() <= 255 && name.contains(".conflict-"));
    }
    for (text, before) in [("a.tar.gz", "a.tar.gz"), (".x", ".x"), ("n", "n")] {
        for n in [0, 12] {
            let parsed = parse_conflict_name(&conflict_name(text.as_bytes(), &device, &hash, n));
            assert_eq!(parsed, Some((before.as_bytes().to_vec(), device.clone())));
        }
    }
    for other in ["a.conflict-", "a.conflict-x", "a.txt", ".conflict-a-00000000", "a.conflict-a-0000000g"] {
        assert_eq!(parse_conflict_name(other.as_bytes()), None, "{other}");
    }
}

#[test]
fn owners_are_merged_and_keep_no_deleted_file() {
    let owned = |entry: Entry, owner: &str| {
        let xattrs = [(b"owner".to_vec(), owner.as_bytes().to_vec())].into_iter().collect();
        Entry { xattrs, ..entry }
    };
    let old = file(1, "a", "x");
    let base = tree(&[("d", dir(9)), ("d/f", old.clone()), ("g", file(2, "a", "g"))]);
    // They appear on both sides; one of these deleted a file, the other made a directory of its own.
    let left = tree(&[("d", owned(dir(9), "root:root")), ("d/f", owned(file(1, "l", "new"), "root:root"))]);
    let right = tree(&[
        ("d", owned(dir(9), "ann:users")),
        ("d/f", owned(old.clone(), "ann:users")),
        ("g", owned(file(2, "a", "g"), "ann:users")),
    ]);
    let merged = both(&base, &left, &right);
    let expected =
        tree(&[("d", owned(dir(9), "ann:users")), ("d/f", owned(file(1, "l", "new"), "ann:users"))]);
    assert_eq!((merged.tree, merged.conflicts, merged.kept), (expected, vec![], vec![]));
    // One side changed the owner, the other the mode.
    let base = tree(&[("f", owned(old.clone(), "ann:users"))]);
    let left = tree(&[("f", owned(old.clone(), "bob:users"))]);
    let right = tree(&[("f", Entry { mode: 0o600, ..owned(old.clone(), "ann:users") })]);
    let merged = both(&base, &left, &right);
    assert_eq!(merged.tree.entries[&b"f"[..]], Entry { mode: 0o600, ..owned(old, "bob:users") });
}

/// A tree of few names, idents and contents, so that all cases meet.
pub(in super::super) fn any_tree(author: &'static str) -> impl Strategy<Value = Tree> {
    let row = (0..4u64, 0..3usize, 0..4usize, any::<bool>(), 0..3u8);
    proptest::collection::vec(row, 0..9).prop_map(move |rows| {
        let mut tree = Tree::default();
        let mut used = BTreeSet::new();
        let mut dirs = vec![TreePath::new()];
        for (ident, dir_at, name, is_dir, text) in rows {
            let parent = dirs[dir_at % dirs.len()].clone();
            let path = join(&parent, &[b"abcd"[name]]);
            let ident = if is_dir { 100 + ident } else { 1 + ident };
            if tree.entries.contains_key(&path) || (is_dir && !used.insert(ident)) {
                continue;
            }
            let entry = match is_dir {
                true => dir(ident),
                false => {
                    let known = tree.entries.values().find(|entry: &&Entry| entry.ident == Ident(ident));
                    known.cloned().unwrap_or_else(|| file(ident, author, &text.to_string()))
                }
            };
            if is_dir {
                dirs.push(path.clone());
            }
            tree.entries.insert(path, entry);
        }
        tree
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Both ways round alike, a proper tree, and no content lost that a side had made and the base had not.
    #[test]
    fn any_three_trees_merge(base in any_tree("a"), left in any_tree("l"), right in any_tree("r")) {
        let merged = both(&base, &left, &right);
        let contents = |tree: &Tree| tree.entries.values().map(|e| e.kind.clone()).collect::<BTreeSet<_>>();
        let (all, old) = (contents(&merged.tree), contents(&base));
        for kind in contents(&left).iter().chain(&contents(&right)) {
            prop_assert!(old.contains(kind) || all.contains(kind), "{:?} was lost", kind);
        }
        // What is merged is not merged again.
        prop_assert_eq!(&merge(&left, &merged.tree, &left).tree, &merged.tree);
    }
}

/// Each of 10,000 conflicts was met by two devices on their own, and one of them edited the copy. The edits win; each is found by the
/// copy's name: with a look at all files for each this took three minutes.
#[test]
fn many_edited_copies_are_merged() {
    let n = 10_000;
    let (mut base, mut left) = (Tree::default(), Tree::default());
    let mut right = Tree::default();
    for i in 1..=n {
        let (name, old) = (format!("f{i}.txt"), format!("old {i}"));
        base.entries.insert(name.clone().into_bytes(), file(i, "a", &old));
        let copy = file(i, "l", &format!("l {i}"));
        let Entry { author, kind, mode, mtime, xattrs, .. } = copy.clone();
        let loser = Item { author, kind, mode, mtime, xattrs };
        let at = conflict_name(name.as_bytes(), &loser.author, &digest(&loser.kind), 0);
        let ident = copy_of(Ident(i), &loser);
        for (side, text) in [(&mut left, format!("l {i}")), (&mut right, format!("edited {i}"))] {
            side.entries.insert(name.clone().into_bytes(), file(i, "r", &format!("r {i}")));
            side.entries.insert(at.clone(), Entry { ident, ..file(i, "l", &text) });
        }
    }
    let merged = merge(&base, &left, &right);
    assert_eq!((merged.conflicts.len(), &merged.tree), (0, &right));
}
