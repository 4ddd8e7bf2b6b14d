//! Groups of files that are synced as one.

use super::*;

/// What a peer wants of a tree with a repository, a database and a file.
fn with_groups(a: &Copy) -> (Tree, Tree) {
    for (path, text) in [
        (".git/HEAD", "old"),
        (".git/objects/x", "x"),
        (".git/gone", "gone"),
        ("d.db", "old"),
        ("d.db-wal", "log"),
        ("f", "old"),
    ] {
        a.write(path, text);
    }
    let from = a.tree();
    let mut to = from.clone();
    let mut put = |path: &str, ident, text| {
        let ident = from
            .entries
            .get(path.as_bytes())
            .map_or(super::super::super::tree::Ident(ident), |entry| entry.ident);
        to.entries.insert(path.as_bytes().to_vec(), Entry { ident, ..file(7, "peer", text) });
    };
    put(".git/HEAD", 0, "new");
    put(".git/objects/y", 70, "new");
    put("d.db", 0, "new");
    put("d.db-journal", 71, "new");
    put("f", 0, "new");
    to.entries.remove(&b".git/gone"[..]);
    to.entries.remove(&b"d.db-wal"[..]);
    (from, to)
}

/// Somebody changes one of its files, or makes one, between the last look at a group and the step: nothing of it is changed.
#[test]
fn a_group_is_taken_whole_or_not_at_all() {
    let old = |a: &Copy| {
        let git = [".git/HEAD", ".git/objects/x", ".git/gone"].map(|path| a.read(path));
        (git, ["d.db", "d.db-wal"].map(|path| a.read(path)))
    };
    for (path, change) in [
        ("", ""),
        (".git", ".git/HEAD"),
        (".git", ".git/objects/x"),
        (".git", ".git/objects/made"),
        (".git", ".git/gone"),
        ("d.db", "d.db"),
        ("d.db", "d.db-wal"),
        ("d.db", "d.db-journal"),
    ] {
        let a = Copy::new();
        let (from, to) = with_groups(&a);
        let before = old(&a);
        let mut local = a.open(true).unwrap();
        local.begin(ContentId::of(b"new")).unwrap();
        local.write(b"new").unwrap();
        local.finish(ContentId::of(b"new")).unwrap();
        let ops = local.rules.groups.plan(&from, &to);
        assert_eq!(ops.len(), 3, "{ops:?}");
        let mut executor = local.executor().unwrap();
        executor.between = Some(Box::new(|at: &[u8]| {
            if at == path.as_bytes() {
                a.write(change, "written");
            }
        }));
        let skipped: Vec<String> = executor.run(&ops).unwrap().iter().map(|step| shown(&step.path)).collect();
        assert_eq!(skipped, if path.is_empty() { vec![] } else { vec![path.to_owned()] }, "{change}");
        let untouched = |group: &str| path == group;
        let expect = |name: &str, group: &str| match () {
            () if name == change => b"written".to_vec(),
            () if untouched(group) => [&before.0[..], &before.1[..]].concat()[match name {
                ".git/HEAD" => 0,
                ".git/objects/x" => 1,
                ".git/gone" => 2,
                "d.db" => 3,
                _ => 4,
            }]
            .clone(),
            () => b"new".to_vec(),
        };
        assert_eq!(a.read(".git/HEAD"), expect(".git/HEAD", ".git"), "{change}");
        assert_eq!(a.read("d.db"), expect("d.db", "d.db"), "{change}");
        assert_eq!(a.at(".git/objects/y").exists(), !untouched(".git"), "{change}");
        assert_eq!(a.at(".git/gone").exists(), untouched(".git"), "{change}");
        assert_eq!(a.at("d.db-wal").exists(), untouched("d.db"), "{change}");
        assert_eq!(a.at("d.db-journal").exists(), !untouched("d.db") || change == "d.db-journal", "{change}");
        if untouched(".git") {
            assert_eq!(a.read(".git/objects/x"), expect(".git/objects/x", ".git"));
        }
        // The rest of the sync, with what somebody wrote as a change like any other.
        drop(executor);
        drop(local);
        let swaps = staging::swaps(&Root::open(&a.at("")).unwrap()).unwrap();
        assert!(swaps.is_empty(), "{change}: {swaps:?}");
    }
}

/// Who looks at a path whose database becomes a directory, or the other way round, finds one of the two, also if that fails.
#[test]
fn a_database_and_a_directory_change_places_at_once() {
    let rows = |rows: &[(&str, Entry)]| -> super::super::super::group::Rows {
        rows.iter().map(|(suffix, row)| (suffix.as_bytes().to_vec(), row.clone())).collect()
    };
    let dir = |ident| Entry { kind: Kind::Dir, mode: 0o755, ..file(ident, "peer", "") };
    for (to_dir, change) in
        [(true, None), (false, None), (true, Some("x")), (true, Some("x-wal")), (false, Some("x/HEAD"))]
    {
        let a = Copy::new();
        let (database, directory): (&[_], &[_]) = (&["x", "x-wal"], &["x/HEAD", "x/refs/one"]);
        let (old, new) = if to_dir { (database, directory) } else { (directory, database) };
        old.iter().for_each(|path| a.write(path, "old"));
        let tree = a.tree();
        let mut local = a.open(true).unwrap();
        local.begin(ContentId::of(b"new")).unwrap();
        local.write(b"new").unwrap();
        local.finish(ContentId::of(b"new")).unwrap();
        let was = tree.entries.iter().filter(|(path, _)| path[0] == b'x');
        let was = was.map(|(path, row)| (path[1..].to_vec(), row.clone())).collect();
        let is = match to_dir {
            true => rows(&[
                ("", dir(70)),
                ("/HEAD", file(71, "peer", "new")),
                ("/refs", dir(72)),
                ("/refs/one", file(73, "peer", "new")),
            ]),
            false => rows(&[("", file(70, "peer", "new")), ("-wal", file(71, "peer", "new"))]),
        };
        let mut executor = local.executor().unwrap();
        executor.between = Some(Box::new(|_: &[u8]| {
            assert!(old.iter().all(|path| a.at(path).exists()), "neither is there: {:?}", a.at("x").exists());
            change.into_iter().for_each(|path| a.write(path, "written"));
        }));
        let skipped = executor.run(&[Op::Group { path: b"x".to_vec(), was, is }]).unwrap();
        assert_eq!(skipped.len(), usize::from(change.is_some()), "{skipped:?}");
        let (there, gone) = if change.is_some() { (old, new) } else { (new, old) };
        for path in there {
            let expected = match change {
                Some(changed) if changed == *path => "written",
                Some(_) => "old",
                None => "new",
            };
            assert_eq!(a.read(path), expected.as_bytes(), "{path}, {change:?}");
        }
        // `x` itself is one or the other.
        assert!(gone.iter().all(|path| *path == "x" || !a.at(path).exists()), "{change:?}");
        drop(executor);
        assert!(staging::swaps(&local.root).unwrap().is_empty());
        // What was not put in place is there for the next attempt.
        assert_eq!(a.at(&shown(&staging::whole(ContentId::of(b"new")))).exists(), change.is_some());
    }
}

/// What is ignored in a group, or cannot be synced, stays in it.
#[test]
fn what_is_not_synced_in_a_group_stays_there() {
    let a = Copy::new();
    a.write(".dedupfsignore", "*.ipc\n/.git/cache/\n");
    a.write(".git/cache/c", "c");
    a.write(".git/hooks.ipc", "h");
    let (from, mut to) = with_groups(&a);
    let _socket = std::os::unix::net::UnixListener::bind(a.at(".git/socket")).unwrap();
    let mut local = a.open(true).unwrap();
    local.begin(ContentId::of(b"new")).unwrap();
    local.write(b"new").unwrap();
    local.finish(ContentId::of(b"new")).unwrap();
    assert_eq!(local.run(&local.rules.groups.clone().plan(&from, &to)).unwrap(), []);
    assert_eq!(
        (a.read(".git/HEAD"), a.read(".git/cache/c"), a.read(".git/hooks.ipc")),
        (b"new".into(), b"c".into(), b"h".into())
    );
    assert!(a.at(".git/socket").exists());
    // Nor does removing the group remove it.
    let from = to.clone();
    to.entries.retain(|path, _| !path.starts_with(b".git"));
    assert_eq!(local.run(&local.rules.groups.clone().plan(&from, &to)).unwrap(), []);
    assert!(!a.at(".git/HEAD").exists() && a.read(".git/cache/c") == b"c");
}

/// A machine stopped while a group was on its way into the tree or out of it.
#[test]
fn a_group_that_nobody_has_seen_is_kept() {
    let a = Copy::new();
    a.write(".git/HEAD", "known");
    drop(a.open(true).unwrap());
    a.write(".dedupfs-sync/swap-1/refs/x", "known");
    a.write(".dedupfs-sync/swap-2/refs/y", "unseen");
    a.write(".dedupfs-sync/swap-2/HEAD", "known");
    let local = a.open(true).unwrap();
    let name = format!("recovered-{}", &ContentId::of(b"unseen").to_string()[..8]);
    assert!(local.notes.iter().any(|note| note.starts_with(&name)), "{:?}", local.notes);
    assert_eq!(a.read(&format!("{name}/refs/y")), b"unseen");
    assert!(staging::swaps(&local.root).unwrap().is_empty());
}

/// Somebody writes to two files of a group while it is read.
#[test]
fn a_group_is_read_at_one_moment() {
    for (writes, path) in [(6, ".git"), (6, "d"), (u64::MAX, ".git")] {
        let a = Copy::new();
        let (one, other) = match path {
            ".git" => (".git/HEAD", ".git/refs"),
            _ => ("d", "d-wal"),
        };
        let write = |n: u64| [one, other].map(|path| a.write(path, n.to_string()));
        write(0);
        let mut n = 0;
        let report = |_, _| {
            if n < writes {
                n += 1;
                write(n);
            }
        };
        let state = a.dir.path().join("state");
        let mut local =
            Local::open(&a.at(""), &state, "", &Rules::default(), true, None, Box::new(report)).unwrap();
        let content =
            |path: &str| local.tree.entries.get(path.as_bytes()).and_then(|entry| entry.kind.content());
        match writes {
            u64::MAX => {
                assert_eq!((content(one), content(other)), (None, None));
                // Not only a note: the sync was not complete.
                let told = local.take_troubles(false);
                assert!(
                    told.iter().any(|(of, why)| of == b".git" && why.contains("waits for the next sync"))
                );
            }
            _ => assert!(content(one).is_some() && content(one) == content(other), "{path} is torn"),
        }
    }
}

/// Two files of a group that are changed all the time, but while nobody may.
#[test]
fn a_group_that_is_never_at_rest_is_read_while_programs_are_held_up() {
    for (group, files) in [("d", ["d", "d-wal"]), (".git", [".git/HEAD", ".git/refs/x"])] {
        let a = Copy::new();
        let write = |n: u64| files.map(|path| a.write(path, n.to_string()));
        write(0);
        a.write(".git/objects/old", "as it was");
        let going = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in (1..).take_while(|_| going.load(Ordering::SeqCst)) {
                    let held = a.held.lock().unwrap();
                    write(n);
                    drop(held);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            let past = Some(Box::new(Kept(&a)) as Box<dyn OldContents>);
            let (state, rules) = (a.dir.path().join("state"), Rules::default());
            let opened = Local::open(&a.at(""), &state, "", &rules, true, past, Box::new(|_, _| {}));
            // Meanwhile it has changed.
            std::thread::sleep(std::time::Duration::from_millis(20));
            going.store(false, Ordering::SeqCst);
            let mut local = opened.unwrap();
            let content = |path: &str| local.tree.entries.get(path.as_bytes())?.kind.content();
            let seen = content(files[0]).unwrap_or_else(|| panic!("{group}: {:?}", local.notes));
            assert_eq!(Some(seen), content(files[1]), "{group} is torn");
            assert_eq!(content(".git/objects/old"), Some(ContentId::of(b"as it was")));
            let mut sent = Vec::new();
            local.open(seen).unwrap().read_to_end(&mut sent).unwrap();
            assert_eq!(ContentId::of(&sent), seen);
        });
    }
}
