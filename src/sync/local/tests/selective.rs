//! Devices that sync a part of the tree.

use super::*;
use crate::sync::selection::tests::selection;

/// A file and its text.
type File = (&'static str, &'static str);

const BOTH: (u32, u32) = (u32::MAX, u32::MAX);

fn select(copy: &Copy, only: &[&str], not: &[&str]) {
    copy.rules.lock().unwrap().selection = selection(only, not);
}

/// Returns the files on the disk, sorted.
fn disk(copy: &Copy) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut dirs = vec![copy.at("")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false => {
                    let text = String::from_utf8(fs::read(&path).unwrap()).unwrap();
                    found.push((path.strip_prefix(copy.at("")).unwrap().display().to_string(), text));
                }
            }
        }
    }
    found.sort();
    found
}

#[track_caller]
fn has(copy: &Copy, files: &[File]) {
    let files: Vec<_> = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    assert_eq!(disk(copy), files);
}

fn write(copy: &Copy, files: &[File]) {
    files.iter().for_each(|(path, text)| copy.write(path, text));
}

fn rename(copy: &Copy, from: &str, to: &str) {
    fs::create_dir_all(copy.at(to).parent().unwrap()).unwrap();
    fs::rename(copy.at(from), copy.at(to)).unwrap();
}

const ALL: [File; 6] = [
    (".dedupfsignore", "*.tmp\n"),
    ("docs/a", "a"),
    ("docs/huge/h", "huge"),
    ("music/m", "m"),
    ("photos/2023/x", "x"),
    ("photos/2024-05/y", "y"),
];
const PART: [File; 3] = [ALL[0], ALL[1], ALL[5]];

/// A full device with all files, and an empty one that selects some of them, after their first sync.
fn pair() -> (Copy, Copy) {
    let (full, part) = (Copy::new(), Copy::new());
    write(&full, &ALL);
    select(&part, &["/docs", "/photos/2024*"], &["/docs/huge"]);
    sync(&full, &part);
    has(&part, &PART);
    (full, part)
}

#[test]
fn an_empty_device_gets_its_part_whoever_calls() {
    for calls in [false, true] {
        let (full, part) = (Copy::new(), Copy::new());
        write(&full, &ALL);
        select(&part, &["/docs", "/photos/2024*"], &["/docs/huge"]);
        let (a, b) = if calls { (&part, &full) } else { (&full, &part) };
        let (done, _) = sync(a, b);
        assert_eq!(done.left_out.filter(|_| calls), calls.then_some(6), "{:?}", part.names());
        has(&part, &PART);
        has(&full, &ALL);
        assert!(!part.at("music").exists() && !part.at("docs/huge").exists());
        // Nothing is left to do, in one round trip.
        for (a, b) in [(&full, &part), (&part, &full)] {
            let (done, traffic) = sync(a, b);
            assert_eq!((done.here, done.there, done.skipped), Default::default());
            assert!(traffic.sent + traffic.received < 1500, "{traffic:?}");
        }
    }
}

#[test]
fn changes_inside_are_synced_and_those_outside_are_known_only() {
    let (full, part) = pair();
    write(
        &full,
        &[("docs/a", "a, edited"), ("docs/huge/h", "huge, edited"), ("docs/b", "b"), ("other", "o")],
    );
    fs::remove_file(full.at("photos/2023/x")).unwrap();
    sync(&full, &part);
    has(&part, &[ALL[0], ("docs/a", "a, edited"), ("docs/b", "b"), ALL[5]]);
    assert!(
        part.names().contains(&"other".to_owned()) && !part.names().contains(&"photos/2023/x".to_owned())
    );
    // The other way round. The files outside stay by themselves.
    write(
        &part,
        &[("docs/a", "a, edited twice"), ("docs/c", "c"), ("music/own", "own"), ("other", "another")],
    );
    fs::remove_file(part.at("docs/b")).unwrap();
    let (done, _) = sync(&part, &full);
    assert_eq!((done.there.created, done.there.updated, done.there.deleted), (1, 1, 1));
    let both = [ALL[0], ("docs/a", "a, edited twice"), ("docs/c", "c")];
    has(&full, &[&both[..], &[("docs/huge/h", "huge, edited"), ALL[3], ("other", "o"), ALL[5]]].concat());
    has(&part, &[&both[..], &[("music/own", "own"), ("other", "another"), ALL[5]]].concat());
    sync(&full, &part);
    has(&part, &[&both[..], &[("music/own", "own"), ("other", "another"), ALL[5]]].concat());
}

#[test]
fn files_that_cross_the_border() {
    let (full, part) = pair();
    // Out of it, on the other device: it is there.
    rename(&full, "docs/a", "music/a");
    // Into it.
    rename(&full, "music/m", "docs/m");
    sync(&part, &full);
    has(&part, &[ALL[0], ("docs/m", "m"), ALL[5]]);
    // Out of it, on this device: the file stays here, and counts as deleted.
    rename(&part, "docs/m", "own/m");
    // Into it: it arrives there.
    write(&part, &[("own/n", "n")]);
    rename(&part, "own/n", "docs/n");
    sync(&part, &full);
    has(&part, &[ALL[0], ("docs/n", "n"), ("own/m", "m"), ALL[5]]);
    has(&full, &[ALL[0], ALL[2], ("docs/n", "n"), ("music/a", "a"), ALL[4], ALL[5]]);
}

/// The directory of entries that are not here is renamed on this device, then deleted.
#[test]
fn what_is_not_here_follows_its_directory() {
    let (full, part) = (Copy::new(), Copy::new());
    write(&full, &ALL);
    select(&part, &[], &["/docs/huge", "h"]);
    sync(&full, &part);
    rename(&part, "photos", "docs/photos");
    rename(&part, "docs", "papers");
    sync(&part, &full);
    let moved = ["papers/a", "papers/huge/h", "papers/photos/2023/x"];
    assert!(moved.iter().all(|path| full.at(path).exists()), "{:?}", disk(&full));
    assert!(!full.at("docs").exists());
    // It is not left out at the new path, but its file is.
    assert!(part.at("papers/huge").exists() && !part.at("papers/huge/h").exists());
    fs::remove_dir_all(part.at("papers")).unwrap();
    sync(&part, &full);
    has(&full, &[ALL[0], ("music/m", "m"), ("papers/huge/h", "huge")]);
}

#[test]
fn a_wider_selection_is_fetched_although_nothing_has_changed() {
    let (full, part) = pair();
    for (n, calls) in [(1, true), (2, false)] {
        let only: &[&str] = if n == 1 { &["/docs", "/music"] } else { &[] };
        select(&part, only, &[]);
        let (a, b) = if calls { (&part, &full) } else { (&full, &part) };
        let (done, _) = sync(a, b);
        assert_eq!(done.skipped, []);
        match n {
            // Narrower too: the photograph stays.
            1 => has(&part, &[ALL[0], ALL[1], ALL[2], ALL[3], ALL[5]]),
            _ => has(&part, &ALL),
        }
        has(&full, &ALL);
    }
    // A full device again: a deletion is one.
    assert!(!part.open(true).unwrap().memory.partial);
    fs::remove_file(part.at("music/m")).unwrap();
    sync(&part, &full);
    assert!(!full.at("music/m").exists());
}

#[test]
fn an_interrupted_wider_selection_is_continued() {
    for cut in 0..14 {
        let (full, part) = pair();
        full.write("music/big", noise(300_000, 3).iter().map(|byte| byte % 64 + 32).collect::<Vec<u8>>());
        sync(&full, &part);
        select(&part, &[], &[]);
        for cuts in [(cut, u32::MAX), (u32::MAX, cut)] {
            let _ = sync_cut(&part, &full, Options::default(), cuts);
            assert_eq!(disk(&full).len(), 7, "{cut}");
        }
        // Its user changes something meanwhile.
        write(&part, &[("docs/a", "a, edited")]);
        sync(&part, &full);
        assert_eq!(disk(&part), disk(&full), "{cut}");
        assert_eq!((disk(&full).len(), full.read("docs/a")), (7, b"a, edited".to_vec()));
    }
}

/// A machine stops after any step.
#[test]
fn a_stopped_wider_selection_is_continued() {
    for steps in 0..6 {
        let (full, part) = pair();
        select(&part, &[], &[]);
        {
            let mut local = part.open(true).unwrap();
            let (here, target) = (local.here.clone().unwrap(), local.tree.clone());
            let ops = plan(&here, &target);
            assert!(ops.len() > 5, "{ops:?}");
            for text in ["huge", "m", "x"] {
                let id = ContentId::of(text.as_bytes());
                local.begin(id).unwrap();
                local.write(text.as_bytes()).unwrap();
                Sink::finish(&mut local, id).unwrap();
            }
            let head = local.memory.dag.get(local.memory.head.unwrap()).unwrap().clone();
            local.memory.taking = Some(head);
            local.memory.save_part().unwrap();
            local.memory.save().unwrap();
            assert_eq!(local.run(&ops[..steps]).unwrap(), []);
        }
        // Opening it completes the steps.
        drop(part.open(false).unwrap());
        has(&part, &ALL);
        let (done, _) = sync(&part, &full);
        assert_eq!((done.here, done.there), Default::default(), "{steps}");
        has(&full, &ALL);
    }
}

#[test]
fn a_narrower_selection_leaves_the_files() {
    let (full, part) = (Copy::new(), Copy::new());
    write(&full, &ALL);
    sync(&full, &part);
    select(&part, &["/docs"], &[]);
    write(&full, &[("music/m", "m, edited"), ("photos/2023/x", "x, edited")]);
    fs::remove_file(full.at("photos/2024-05/y")).unwrap();
    write(&part, &[("photos/2023/x", "x, edited here")]);
    fs::remove_file(part.at("docs/a")).unwrap();
    sync(&part, &full);
    has(&part, &[ALL[0], ALL[2], ALL[3], ("photos/2023/x", "x, edited here"), ALL[5]]);
    has(&full, &[ALL[0], ALL[2], ("music/m", "m, edited"), ("photos/2023/x", "x, edited")]);
    // Wider again: the older state is replaced. An edit is another file, and what was deleted is new.
    select(&part, &[], &[]);
    let (done, _) = sync(&part, &full);
    assert_eq!(part.read("music/m"), b"m, edited");
    assert_eq!(part.read("photos/2023/x"), b"x, edited here");
    assert_eq!(disk(&part), disk(&full));
    let texts: Vec<String> = disk(&full).into_iter().map(|(_, text)| text).collect();
    assert!(texts.contains(&"x, edited".to_owned()) && texts.contains(&"y".to_owned()), "{texts:?}");
    assert_eq!(done.skipped.len(), 1, "{:?}", done.skipped);
    assert!(done.skipped[0].1.contains("another file"), "{:?}", done.skipped);
}

#[test]
fn a_third_device_gets_the_rest_later() {
    let (full, part) = pair();
    let third = Copy::new();
    write(&third, &[("own", "own")]);
    let (done, _) = sync(&third, &part);
    has(&third, &[ALL[0], ALL[1], ("own", "own"), ALL[5]]);
    assert_eq!(done.skipped.len(), 1, "{:?}", done.skipped);
    let why = &done.skipped[0].1;
    assert!(why.contains("2 more") && why.contains(part.open(true).unwrap().device().as_str()), "{why}");
    // What it does not have is not deleted anywhere.
    write(&third, &[("docs/a", "a, edited on the third")]);
    sync(&third, &part);
    sync(&part, &full);
    let all = [ALL[0], ("docs/a", "a, edited on the third"), ALL[2], ALL[3], ("own", "own"), ALL[4], ALL[5]];
    has(&full, &[&all[..4], &all[5..]].concat());
    // It comes with the next sync with a device that has it, though both have the same tree.
    assert_eq!(third.tree(), full.tree());
    let (done, _) = sync(&third, &full);
    assert_eq!(done.skipped, []);
    has(&third, &all);
    has(&full, &all);
    assert!(!third.open(true).unwrap().memory.partial);
    has(&part, &[ALL[0], ("docs/a", "a, edited on the third"), ALL[5]]);
}

/// A file on a third device, whose new content it does not get from the one that leaves the file out.
#[test]
fn a_content_that_is_not_there_does_not_undo_or_overwrite() {
    let (full, part) = pair();
    let third = Copy::new();
    sync(&full, &third);
    write(&full, &[("music/m", "m, edited")]);
    sync(&full, &part);
    let (done, _) = sync(&part, &third);
    assert_eq!(done.skipped.len(), 1);
    assert_eq!(third.read("music/m"), b"m");
    sync(&third, &part);
    assert_eq!(third.read("music/m"), b"m");
    sync(&third, &full);
    assert_eq!((third.read("music/m"), full.read("music/m")), (b"m, edited".to_vec(), b"m, edited".to_vec()));
}

#[test]
fn a_conflict_inside_keeps_both_and_stays_inside() {
    let (full, part) = (Copy::new(), Copy::new());
    write(&full, &[("a.txt", "a"), ("b", "b")]);
    select(&part, &["/a.txt"], &[]);
    sync(&full, &part);
    write(&full, &[("a.txt", "full")]);
    write(&part, &[("a.txt", "part")]);
    let (done, _) = sync(&part, &full);
    assert_eq!(done.conflicts.len(), 1);
    assert_eq!((disk(&part).len(), disk(&full).len()), (2, 3));
    assert!(disk(&part).iter().all(|row| disk(&full).contains(row)));
}

/// Another device renames a directory while a file in it is edited here: nobody else has the edit yet.
#[test]
fn an_edit_that_moves_out_stays_until_it_is_elsewhere() {
    let (full, part) = pair();
    let other = Copy::new();
    select(&other, &["/nothing"], &[]);
    rename(&full, "docs", "archive");
    sync(&full, &other);
    write(&part, &[("docs/a", "a, edited")]);
    // The other device does not get the file.
    let (Ok(_), Ok(_)) = sync_cut(&part, &other, Options::default(), BOTH) else { panic!("no sync") };
    assert!(disk(&part).iter().any(|(_, text)| text == "a, edited"), "{:?}", disk(&part));
    sync(&part, &full);
    assert!(disk(&full).iter().any(|(_, text)| text == "a, edited"), "{:?}", disk(&full));
}

#[test]
fn a_dry_run_changes_nothing() {
    let (full, part) = pair();
    select(&part, &["/docs", "/music"], &[]);
    write(&full, &[("docs/a", "a, edited")]);
    let (before, theirs) = (disk(&part), disk(&full));
    let options = Options { dry_run: true, ..Options::default() };
    let (Ok((done, _)), Ok(_)) = sync_cut(&part, &full, options, BOTH) else { panic!("a dry run failed") };
    assert_eq!((done.here.updated, done.here.created, done.left_out), (1, 4, Some(5)), "{done:?}");
    assert_eq!((disk(&part), disk(&full)), (before, theirs));
    sync(&part, &full);
    assert_eq!(part.read("music/m"), b"m");
}

#[test]
fn guards_count_what_is_included() {
    let (full, part) = (Copy::new(), Copy::new());
    let names: Vec<String> = (0..20).map(|n| format!("many/{n}")).collect();
    names.iter().for_each(|name| full.write(name, name));
    write(&full, &ALL[1..]);
    sync(&full, &part);
    let unforced = |a: &Copy, b: &Copy| sync_cut(a, b, Options::default(), BOTH).0.map(drop);
    // Nothing of the selection is here, and that is no loss.
    select(&part, &["/new"], &[]);
    unforced(&part, &full).unwrap();
    assert_eq!(disk(&full).len(), 25);
    // All of it is lost.
    select(&part, &["/many"], &[]);
    unforced(&part, &full).unwrap();
    fs::remove_dir_all(part.at("many")).unwrap();
    let e = unforced(&part, &full).unwrap_err();
    assert!(matches!(&e, SyncError::Guard(why) if why.contains("is it mounted")), "{e}");
    fs::create_dir(part.at("many")).unwrap();
    fs::write(part.at("many/0"), "many/0").unwrap();
    let e = unforced(&part, &full).unwrap_err();
    assert!(matches!(&e, SyncError::Guard(why) if why.contains("more than half")), "{e}");
    assert_eq!(disk(&full).len(), 25);
}

#[test]
fn names_of_a_file_on_both_sides_of_the_border() {
    let (full, part) = (Copy::new(), Copy::new());
    write(&full, &[("in/a", "a")]);
    fs::create_dir(full.at("out")).unwrap();
    fs::hard_link(full.at("in/a"), full.at("out/a")).unwrap();
    select(&part, &["/in"], &[]);
    sync(&full, &part);
    has(&part, &[("in/a", "a")]);
    // In place: an edit of the file.
    fs::OpenOptions::new().append(true).open(part.at("in/a")).unwrap().write_all(b", edited").unwrap();
    sync(&part, &full);
    has(&full, &[("in/a", "a, edited"), ("out/a", "a, edited")]);
    let ino = |copy: &Copy, path: &str| fs::metadata(copy.at(path)).unwrap().ino();
    assert_eq!(ino(&full, "in/a"), ino(&full, "out/a"));
    // Another file under the name.
    fs::write(part.at("in/new"), "another").unwrap();
    fs::rename(part.at("in/new"), part.at("in/a")).unwrap();
    sync(&part, &full);
    has(&full, &[("in/a", "another"), ("out/a", "a, edited")]);
    // The name comes back as a link, without its content.
    fs::remove_file(full.at("in/a")).unwrap();
    fs::hard_link(full.at("out/a"), full.at("in/a")).unwrap();
    sync(&full, &part);
    select(&part, &[], &[]);
    sync(&full, &part);
    assert_eq!(ino(&part, "in/a"), ino(&part, "out/a"));
    assert_eq!(part.read("out/a"), b"a, edited");
}

#[test]
fn a_group_is_left_out_or_here_as_a_whole() {
    let (full, part) = (Copy::new(), Copy::new());
    let files: [File; 6] = [
        ("r/.git/HEAD", "ref"),
        ("r/.git/objects/x.pack", "pack"),
        ("r/a.pack", "a"),
        ("s/x.db", "db"),
        ("s/x.db-wal", "wal"),
        ("t/y.db", "y"),
    ];
    write(&full, &files);
    select(&part, &[], &["*.pack", "x.db"]);
    sync(&full, &part);
    has(&part, &[files[0], files[1], files[5]]);
    write(&part, &[("r/.git/objects/y.pack", "y"), ("r/.git/HEAD", "other")]);
    write(&full, &[("s/x.db-wal", "wal 2")]);
    sync(&part, &full);
    assert_eq!(full.read("r/.git/objects/y.pack"), b"y");
    has(&part, &[("r/.git/HEAD", "other"), files[1], ("r/.git/objects/y.pack", "y"), files[5]]);
    // Left out with a local edit, then wanted again: two groups.
    select(&part, &[], &[".git"]);
    sync(&part, &full);
    write(&part, &[("r/.git/HEAD", "here")]);
    write(&full, &[("r/.git/HEAD", "there"), ("r/.git/objects/z.pack", "z")]);
    sync(&part, &full);
    select(&part, &[], &[]);
    sync(&part, &full);
    assert_eq!(disk(&part), disk(&full));
    let at = |text: &str| disk(&full).into_iter().find(|(_, found)| found == text).unwrap().0;
    let (here, there) = (at("here"), at("there"));
    assert_ne!(here, there);
    let pack = |head: &str| full.at(&head.replace("HEAD", "objects/z.pack")).exists();
    assert_eq!((pack(&here), pack(&there)), (false, true), "{:?}", disk(&full));
}

/// The daemon sees changes that do not concern the sync. Seen to fail if the rules of the moment lack the selection.
#[test]
fn the_moment_of_the_daemon_belongs_to_a_selection() {
    let (full, part) = pair();
    *part.changed.lock().unwrap() = Some(Vec::new());
    drop(part.open(true).unwrap());
    assert!(part.open(true).unwrap().unread);
    write(&part, &[("music/own", "own")]);
    *part.changed.lock().unwrap() =
        Some(vec![(b"music/own".to_vec(), true), (b"docs/huge/x".to_vec(), false)]);
    let local = part.open(true).unwrap();
    assert!(local.unread && Replica::left_out(&local) == Some(6));
    drop(local);
    // Some of it: only the changes are examined.
    write(&part, &[("docs/a", "a, edited"), ("docs/unseen", "unseen")]);
    *part.changed.lock().unwrap() = Some(vec![(b"docs/a".to_vec(), false), (b"music".to_vec(), false)]);
    sync(&part, &full);
    assert_eq!((full.read("docs/a"), full.at("docs/unseen").exists()), (b"a, edited".to_vec(), false));
    *part.changed.lock().unwrap() = Some(Vec::new());
    select(&part, &["/docs"], &[]);
    let local = part.open(true).unwrap();
    assert!(!local.unread && local.lacking);
    drop(local);
    // As long as something lacks, the next sync must not be one without a tree.
    assert!(!part.open(true).unwrap().unread);
    sync(&part, &full);
    assert_eq!(part.read("docs/huge/h"), b"huge");
    *part.changed.lock().unwrap() = Some(Vec::new());
    drop(part.open(true).unwrap());
    assert!(part.open(true).unwrap().unread);
}

/// Two devices with other parts of one tree, through a full one.
#[test]
fn two_parts_meet() {
    let (full, part) = pair();
    let other = Copy::new();
    select(&other, &["/music", "/docs/huge"], &[]);
    sync(&other, &full);
    write(&other, &[("music/m", "m, edited")]);
    write(&part, &[("docs/a", "a, edited")]);
    sync(&other, &part);
    sync(&part, &full);
    has(&full, &[ALL[0], ("docs/a", "a, edited"), ALL[2], ALL[3], ALL[4], ALL[5]]);
    sync(&full, &other);
    let (done, _) = sync(&other, &full);
    assert_eq!(done.skipped, []);
    has(&full, &[ALL[0], ("docs/a", "a, edited"), ALL[2], ("music/m", "m, edited"), ALL[4], ALL[5]]);
    has(&other, &[ALL[0], ALL[2], ("music/m", "m, edited")]);
}

/// The path is included for a directory only, and the disk has a file there.
#[test]
fn an_entry_that_is_left_out_may_be_in_the_way() {
    let (full, part) = pair();
    fs::remove_dir_all(part.at("photos")).unwrap();
    sync(&part, &full);
    fs::remove_dir(part.at("photos")).unwrap();
    write(&part, &[("photos", "a file")]);
    write(&full, &[("photos/2024-06/z", "z"), ("docs/b", "b")]);
    let (done, _) = sync(&part, &full);
    assert_eq!(done.skipped.len(), 1, "{:?}", done.skipped);
    assert!(done.skipped[0].1.contains("rename it"), "{:?}", done.skipped);
    assert_eq!((part.read("photos"), part.read("docs/b")), (b"a file".to_vec(), b"b".to_vec()));
    rename(&part, "photos", "photo");
    let (done, _) = sync(&part, &full);
    assert_eq!((done.skipped, part.read("photos/2024-06/z")), (vec![], b"z".to_vec()));
}

/// A database that was left out for a time, and has changed on the other device.
#[test]
fn a_database_that_was_left_out_is_updated_as_a_whole() {
    let (full, part) = (Copy::new(), Copy::new());
    write(&full, &[("x.db", "db"), ("x.db-wal", "wal"), ("y", "y")]);
    sync(&full, &part);
    select(&part, &[], &["*.db"]);
    sync(&full, &part);
    write(&full, &[("x.db", "db 2"), ("x.db-wal", "wal 2")]);
    sync(&full, &part);
    has(&part, &[("x.db", "db"), ("x.db-wal", "wal"), ("y", "y")]);
    select(&part, &[], &[]);
    let (done, _) = sync(&full, &part);
    assert_eq!(done.skipped, []);
    has(&part, &[("x.db", "db 2"), ("x.db-wal", "wal 2"), ("y", "y")]);
}

/// The other device deletes a directory that has a file here that is left out.
#[test]
fn a_directory_stays_for_files_that_are_left_out() {
    let (full, part) = (Copy::new(), Copy::new());
    write(&full, &ALL);
    sync(&full, &part);
    select(&part, &[], &["/docs/huge"]);
    sync(&full, &part);
    fs::remove_dir_all(full.at("docs")).unwrap();
    let (Ok((done, _)), Ok(_)) = sync_cut(&part, &full, Options::default(), BOTH) else { panic!("no sync") };
    assert_eq!(done.skipped, []);
    has(&part, &[ALL[0], ALL[2], ALL[3], ALL[4], ALL[5]]);
    assert!(!full.at("docs").exists());
}

/// The daemon of the third device sees no change, since nothing arrives. Seen to fail if the moment is kept.
#[test]
fn entries_that_did_not_arrive_are_looked_for_without_a_change() {
    let (full, part) = (Copy::new(), Copy::new());
    write(&full, &[("in/a", "a")]);
    select(&part, &["/in"], &[]);
    let third = Copy::new();
    *third.changed.lock().unwrap() = Some(Vec::new());
    sync(&full, &part);
    sync(&full, &third);
    drop(third.open(true).unwrap());
    assert!(third.open(true).unwrap().unread);
    write(&full, &[("out", "out")]);
    sync(&full, &part);
    let (done, _) = sync_cut(&third, &part, Options::default(), BOTH).0.unwrap();
    assert_eq!(done.skipped.len(), 1);
    let (done, _) = sync_cut(&third, &full, Options::default(), BOTH).0.unwrap();
    assert_eq!((done.skipped, third.read("out")), (vec![], b"out".to_vec()));
}
