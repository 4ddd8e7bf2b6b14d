//! `dedupctl groups`: identical files, groups around representatives, with a daemon and without.
//!
//! Groups are checked by comparing their files by bytes here, not by what the program says of them.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, fuse_available, noise, prose, text};
use dedupfs::similarity::exact;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Directories, and a store for which files stay where they are.
fn indexed(files: &[(&str, Vec<u8>)]) -> Mount {
    let mount = Mount::prepare(As::Root);
    for (path, bytes) in files {
        let path = mount.dir().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    crate::common::succeed(mount.dedupctl().args(["init", "--dedup", "off"]).arg(mount.dir()));
    scan(&mount);
    mount
}

fn scan(mount: &Mount) {
    crate::common::succeed(mount.dedupctl().arg("scan").arg(mount.dir()));
}

/// What `dedupctl groups ARGS` answers for a path below the directory.
#[track_caller]
fn groups_in(mount: &Mount, path: &str, args: &[&str]) -> Value {
    let path = mount.dir().join(path);
    let output = mount.dedupctl().args(["groups", "--json"]).args(args).arg(path).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn groups(mount: &Mount, args: &[&str]) -> Value {
    groups_in(mount, "", args)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn paths(group: &Value) -> BTreeSet<&str> {
    list(&group["members"]).iter().map(|member| member["path"].as_str().unwrap()).collect()
}

/// The sets and groups alone, which do not depend on how the answer was found.
fn found(report: &Value) -> (Value, Value) {
    (report["identical"].clone(), report["groups"].clone())
}

/// What the documents promise: each figure is true to the byte, and every member reaches the threshold towards the
/// representative itself.
#[track_caller]
fn assert_true(dir: &Path, report: &Value, min: f64) {
    let mut seen = BTreeSet::new();
    let mut savable_before = u64::MAX;
    for (i, group) in list(&report["groups"]).iter().enumerate() {
        assert_eq!(group["id"], i as u64 + 1);
        let representative = group["representative"].as_str().unwrap();
        let center = fs::read(dir.join(representative)).unwrap();
        let (mut bytes, mut savable) = (0, 0);
        for (i, member) in list(&group["members"]).iter().enumerate() {
            let path = member["path"].as_str().unwrap();
            assert!(seen.insert(path.to_owned()), "{path} is in two groups");
            let content = fs::read(dir.join(path)).unwrap();
            assert_eq!(member["size"], content.len() as u64);
            bytes += content.len() as u64;
            assert_eq!(i == 0, path == representative, "the representative comes first");
            assert_eq!(member["verified"], true);
            if i == 0 {
                continue;
            }
            let common = exact::compare(&&content[..], &&center[..], 64 << 20).unwrap();
            savable += common.a_bytes;
            let shares =
                [common.a_bytes as f64 / content.len() as f64, common.b_bytes as f64 / center.len() as f64];
            assert!(shares[0].max(shares[1]) >= min, "{path} towards {representative}: {shares:?}");
            for (name, share) in ["containment", "contained_in"].into_iter().zip(shares) {
                assert!((member[name].as_f64().unwrap() - share).abs() < 1e-9, "{path} {name} {share}");
            }
            assert_eq!(member["bytes_common"], common.a_bytes);
        }
        assert_eq!((&group["bytes"], &group["savable_bytes"]), (&bytes.into(), &savable.into()));
        assert!(savable <= savable_before, "most first");
        savable_before = savable;
    }
}

fn edited(bytes: &[u8]) -> Vec<u8> {
    let mut edited = bytes.to_vec();
    (0..edited.len()).step_by(20_000).for_each(|at| edited[at] ^= 1);
    edited
}

fn family() -> Vec<(&'static str, Vec<u8>)> {
    let first = noise(1, 100_000);
    vec![
        ("same/a", prose(1, 50_000)),
        ("same/b", prose(1, 50_000)),
        ("same/c.txt", prose(1, 50_000)),
        ("short/x", noise(5, 20)),
        ("short/y", noise(5, 20)),
        ("near/first", first.clone()),
        ("near/edited", edited(&first)),
        ("near/edited-copy", edited(&first)),
        ("near/half.txt", [&first[..60_000], &noise(2, 60_000)].concat()),
        ("part/small", first[20_000..24_000].to_vec()),
        ("alone/stranger", noise(3, 80_000)),
        ("alone/empty", Vec::new()),
        ("alone/empty-too", Vec::new()),
    ]
}

#[test]
fn identical_sets_come_first_then_groups_with_distances() {
    let mount = indexed(&family());
    fs::hard_link(mount.dir().join("alone/stranger"), mount.dir().join("alone/link")).unwrap();
    scan(&mount);
    let report = groups(&mount, &[]);
    let sets: Vec<_> = list(&report["identical"]).iter().map(|set| (&set["size"], &set["paths"])).collect();
    let expected = serde_json::json!([
        [100_000, ["near/edited", "near/edited-copy"]],
        [50_000, ["same/a", "same/b", "same/c.txt"]],
        [20, ["short/x", "short/y"]]
    ]);
    // Both save 100,000 bytes: either may come first.
    let mut sets: Vec<_> = sets.into_iter().map(|(size, paths)| serde_json::json!([size, paths])).collect();
    sets[..2].sort_by_key(|set| std::cmp::Reverse(set[0].as_u64()));
    assert_eq!(Value::from(sets), expected);
    assert_eq!((&report["identical_sets"], &report["identical_files"]), (&3.into(), &7.into()));
    assert_eq!(report["identical_bytes"], 200_020);
    assert_true(&mount.dir(), &report, 0.25);
    let found = list(&report["groups"]);
    assert_eq!(found.len(), 1, "{report}");
    let near = BTreeSet::from(["near/first", "near/edited", "near/half.txt", "part/small"]);
    assert_eq!(paths(&found[0]), near);
    for member in list(&found[0]["members"]) {
        assert_eq!(member["copies"], if member["path"] == "near/edited" { 2 } else { 1 });
    }
    let small = list(&found[0]["members"]).iter().find(|member| member["path"] == "part/small").unwrap();
    assert!(small["containment"].as_f64().unwrap() > 0.95 && small["contained_in"].as_f64().unwrap() < 0.05);
    let only = groups(&mount, &["--identical"]);
    assert_eq!((list(&only["identical"]).len(), list(&only["groups"]).len()), (3, 0));
}

/// a-b, b-c, c-d, d-e share halves, and nothing else does.
#[test]
fn nothing_is_in_a_group_by_way_of_a_third_file() {
    let parts: Vec<_> = (0..6).map(|seed| noise(10 + seed, 40_000)).collect();
    let link = |i: usize| [&parts[i][..], &parts[i + 1][..]].concat();
    let names = ["a", "b", "c", "d", "e"];
    let files: Vec<_> = (0..5).map(|i| (names[i], link(i))).collect();
    let mount = indexed(&files);
    let report = groups(&mount, &["--min", "0.25"]);
    assert_true(&mount.dir(), &report, 0.25);
    let found = list(&report["groups"]);
    assert!(!found.is_empty(), "{report}");
    for group in found {
        let representative = group["representative"].as_str().unwrap().as_bytes()[0];
        for path in paths(group) {
            assert!(path.as_bytes()[0].abs_diff(representative) <= 1, "{group}");
        }
    }
    assert_eq!(list(&groups(&mount, &["--min", "0.6"])["groups"]).len(), 0);
}

/// Bytes are changed behind the overlay's back: estimates at another threshold do not see it, verification does.
#[test]
fn another_threshold_reads_no_file() {
    let mount = indexed(&family());
    let before = groups(&mount, &["--estimate", "--min", "0.25"]);
    let pairs = mount.dir().join(".dedupfs/groups/pairs");
    let inode = fs::metadata(&pairs).unwrap().ino();
    for name in ["near/first", "near/half.txt", "near/edited", "near/edited-copy"] {
        let path = mount.dir().join(name);
        let meta = fs::metadata(&path).unwrap();
        fs::write(&path, noise(name.len() as u64 + 100, meta.len() as usize)).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(meta.modified().unwrap()).unwrap();
    }
    assert_eq!(found(&groups(&mount, &["--estimate", "--min", "0.25"])), found(&before));
    let close = groups(&mount, &["--estimate", "--min", "0.8"]);
    assert_eq!(paths(&close["groups"][0]), BTreeSet::from(["near/first", "near/edited", "part/small"]));
    assert_eq!(fs::metadata(&pairs).unwrap().ino(), inode, "the pairs were not made anew");
    assert_eq!(
        list(&groups(&mount, &[])["groups"]).len(),
        0,
        "and bytes are compared before anything is claimed"
    );
    let again = groups(&mount, &["--estimate", "--min", "0.25", "--anew"]);
    assert_eq!(found(&again), found(&before));
    assert_ne!(fs::metadata(&pairs).unwrap().ino(), inode);
}

/// Lists are cut into ranges and the index is read in batches, or not.
#[test]
fn little_memory_gives_the_same_answer() {
    let mut files = family();
    let names: Vec<String> = (0..120).map(|i| format!("many/{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        let seed = 1000 + (i % 20) as u64;
        files.push((name, [prose(seed, 9_000 + 100 * i), noise(i as u64 + 500, 6_000)].concat()));
    }
    let mount = indexed(&files);
    let plenty = groups(&mount, &["--memory", "1GiB", "--anew"]);
    let few = groups(&mount, &["--memory", "64KiB", "--anew"]);
    assert_eq!(found(&plenty), found(&few));
    assert_eq!(found(&groups(&mount, &["--anew"])), found(&few), "and so does asking again");
    assert_true(&mount.dir(), &few, 0.25);
    assert!(list(&few["groups"]).len() > 10, "{}", list(&few["groups"]).len());
}

/// By directory, by name, by size; and what is not understood is said.
#[test]
fn what_counts_can_be_chosen() {
    let mount = indexed(&family());
    let near = groups_in(&mount, "near", &[]);
    assert_eq!(list(&near["identical"]).len(), 1);
    assert_eq!(paths(&near["groups"][0]), BTreeSet::from(["near/first", "near/edited", "near/half.txt"]));
    let one = groups_in(&mount, "near/first", &[]);
    assert_eq!((list(&one["identical"]).len(), list(&one["groups"]).len()), (0, 0));
    let text_only = groups(&mount, &["--suffix", ".txt"]);
    assert_eq!((list(&text_only["identical"]).len(), list(&text_only["groups"]).len()), (0, 0));
    let both = groups(&mount, &["--suffix", ".txt", "--suffix", "first"]);
    assert_eq!(paths(&both["groups"][0]), BTreeSet::from(["near/first", "near/half.txt"]));
    let large = groups(&mount, &["--min-size", "60000"]);
    assert_eq!(list(&large["identical"]).len(), 1);
    assert!(!paths(&large["groups"][0]).contains("part/small"));
    assert_eq!(list(&groups(&mount, &["--limit", "1"])["identical"]).len(), 1);

    let output = mount.dedupctl().args(["groups", "--csv"]).arg(mount.dir()).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let kinds = |kind: &str| lines.lines().filter(|line| line.starts_with(kind)).count();
    assert_eq!((kinds("identical,"), kinds("representative,"), kinds("member,")), (7, 1, 3), "{lines}");
    let output = mount.dedupctl().arg("groups").arg(mount.dir()).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("3 sets of 7 files") && shown.contains("(representative)"), "{shown}");
    for (args, said) in [
        (["--min", "0.05"], "from 0.1 to 1"),
        (["--memory", "1"], "65536 bytes or more"),
        (["--min-size", "x"], "expected a number of bytes"),
    ] {
        let output = mount.dedupctl().arg("groups").args(args).arg(mount.dir()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output).contains(said), "{}", text(&output));
    }
}

/// Stubs, asked through the daemon; what is renamed and removed meanwhile; and the same without a daemon.
#[test]
fn a_mount_is_asked_while_files_come_and_go() {
    as_both(|user| {
        let mount = Mount::new(user);
        for (path, bytes) in family() {
            fs::create_dir_all(mount.at(path).parent().unwrap()).unwrap();
            fs::write(mount.at(path), bytes).unwrap();
        }
        mount.settle();
        let report = mount.ctl(&["groups"]);
        assert_true(&mount.mnt(), &report, 0.25);
        assert_eq!((list(&report["identical"]).len(), list(&report["groups"]).len()), (3, 1), "{report}");
        let four = BTreeSet::from(["near/first", "near/edited", "near/half.txt", "part/small"]);
        assert_eq!(paths(&report["groups"][0]), four);
        fs::rename(mount.at("near/half.txt"), mount.at("alone/renamed")).unwrap();
        fs::remove_file(mount.at("part/small")).unwrap();
        fs::remove_file(mount.at("same/a")).unwrap();
        fs::write(mount.at("near/new"), [&noise(1, 100_000)[..90_000], &noise(9, 500)[..]].concat()).unwrap();
        mount.settle();
        let report = mount.ctl(&["groups"]);
        assert_true(&mount.mnt(), &report, 0.25);
        let now = BTreeSet::from(["near/first", "near/edited", "alone/renamed", "near/new"]);
        assert_eq!(paths(&report["groups"][0]), now, "{report}");
        let same = list(&report["identical"]).iter().find(|set| set["size"] == 50_000).unwrap();
        assert_eq!(same["paths"], serde_json::json!(["same/b", "same/c.txt"]));
        let inside = mount.ctl(&["groups", mount.at("near").to_str().unwrap()]);
        assert_eq!(paths(&inside["groups"][0]), BTreeSet::from(["near/first", "near/edited", "near/new"]));
        mount.unmount();
        let output = mount.dedupctl().args(["groups", "--json"]).arg(mount.dir()).output().unwrap();
        let direct: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found(&direct), found(&report));
    });
}

/// A report of more than a request may have bytes comes through the socket.
#[test]
fn a_long_report_comes_through() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    for i in 0..700 {
        fs::write(mount.at(&format!("{i:03}-{}", "x".repeat(120))), noise(i / 2, 300)).unwrap();
    }
    mount.settle();
    let report = mount.ctl(&["groups"]);
    assert_eq!(list(&report["identical"]).len(), 350);
    assert!(report.to_string().len() > 80_000);
    assert_eq!(report["omitted"], 0);
}
