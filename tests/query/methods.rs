//! The published methods through `dedupctl`, on a directory that is no overlay.
//!
//! Seen to fail with: options of other methods taken; the collection that is written read too; any file replaced by what is
//! saved; something else saved; --min not passed on; a base not taken from sketches, nor from what regions are made of; a part
//! of a sketch measured as the whole; both directories under one name; what is in one directory only left out; anchors read
//! or learned but not used; every cluster a pair; limits not kept; lines without their numbers; a missing root passed over;
//! the reference of figure 3 not marked; common fingerprints not added up; identical files or the same counts not told; regions by
//! place, or the shortest first; --min-common not passed on.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::session::dedupctl;
use crate::common::text;
use serde_json::Value;
use std::fs;
use std::path::Path;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A file, two copies of it, one that has half of it, a part of it, and others.
fn tree(dir: &Path) {
    let whole = noise(40_000, 1);
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("a"), &whole).unwrap();
    fs::write(dir.join("sub/copy"), &whole).unwrap();
    fs::write(dir.join("half"), [&whole[..20_000], &noise(20_000, 2)].concat()).unwrap();
    fs::write(dir.join("part"), &whole[5_000..25_000]).unwrap();
    for seed in 10..30 {
        fs::write(dir.join(format!("sub/{seed}")), noise(30_000, seed)).unwrap();
    }
}

fn json(args: &[&str], dir: &Path) -> Value {
    let output = dedupctl(args, dir);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn similar_by_each_method() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    for method in ["sif", "winnow", "chunk-graph"] {
        let found =
            json(&["similar", "a", "--method", method, "--in", ".", "--min", "0.3", "--json"], dir.path());
        assert_eq!(found["method"], method);
        let matches = found["matches"].as_array().unwrap();
        let paths: Vec<_> = matches.iter().map(|found| found["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["sub/copy", "part", "half"], "{method}: {found}");
        assert_eq!(matches[0]["identical"], true, "{found}");
        let share = |at: usize, figure: &str| matches[at][figure].as_f64().unwrap();
        assert!((0.4..0.6).contains(&share(1, "containment")) && share(1, "contained_in") > 0.9, "{found}");
        assert!((0.4..0.6).contains(&share(2, "containment")), "{found}");
        let limited =
            json(&["similar", "a", "--method", method, "--in", ".", "--limit", "1", "--json"], dir.path());
        assert_eq!(limited["matches"].as_array().unwrap().len(), 1, "{limited}");
    }
}

/// What has another size is nothing to SimHash, whatever it contains.
#[test]
fn simhash_finds_files_of_one_size() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let found = json(&["similar", "a", "--method", "simhash", "--in", ".", "--json"], dir.path());
    let matches = found["matches"].as_array().unwrap();
    let sizes: Vec<_> = matches.iter().map(|found| found["size"].as_u64().unwrap()).collect();
    assert!(sizes.iter().all(|size| *size == 40_000), "{found}");
    let distance_zero = &matches[0];
    assert_eq!(
        (&distance_zero["path"], &distance_zero["identical"]),
        (&"sub/copy".into(), &true.into()),
        "{found}"
    );
    assert_eq!(distance_zero["distance"], 0.0, "{found}");
    assert!(distance_zero["containment"].is_null(), "{found}");
}

#[test]
fn groups_are_reported_as_figure_3() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let output = dedupctl(&["groups", ".", "--method", "sif", "--min", "0.3"], dir.path());
    let report = String::from_utf8(output.stdout.clone()).unwrap();
    let lines: Vec<_> = report.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "The following groups of files are similar. Minimum similarity = 30%",
            "",
            "R100 a 40000",
            "   100 sub/copy 40000"
        ],
        "{}",
        text(&output)
    );
    assert!(lines[4..6].iter().any(|line| line.ends_with(" half 40000")), "{report}");
    assert!(!report.contains("sub/10"), "{report}");
}

#[test]
fn methods_are_compared_with_the_truth() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let found = json(&["compare-methods", ".", "--queries", "24", "--json"], dir.path());
    assert_eq!(found["contents"], 23);
    // `a`, `half` and `part`: each has 37% or more of each other.
    assert_eq!(found["pairs"], serde_json::json!([6, 5, 1]), "{found}");
    let standings = found["methods"].as_array().unwrap();
    let names: Vec<_> = standings.iter().map(|standing| standing["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "sif", "winnow", "chunk-graph", "simhash"]);
    assert!(
        standings[4]["recall_25"].as_f64().unwrap() < 1.0,
        "it cannot find what a larger file contains: {found}"
    );
    for standing in &standings[..4] {
        let recall = ["recall_25", "recall_50", "recall_80"].map(|name| standing[name].as_f64());
        assert_eq!(recall, [Some(1.0); 3], "{standing}");
        assert_eq!(standing["precision"], 1.0, "{standing}");
        let share = standing["index_share"].as_f64().unwrap();
        assert!(share > 0.005 && share < 0.5, "{standing}");
    }
    // All four find everything; sif has the smallest index.
    let line = "methods = [\"sif\"]";
    assert_eq!(
        (&found["recommendation"]["method"], &found["recommendation"]["config"]),
        (&"sif".into(), &line.into())
    );
    assert_eq!(found["sizes"], serde_json::json!([20_000, 30_000, 40_000]), "{found}");
    let text = String::from_utf8(dedupctl(&["compare-methods", "."], dir.path()).stdout).unwrap();
    assert!(
        text.contains("recommended: sif, because it lists 100% of the files") && text.contains(line),
        "{text}"
    );
    // Small files: each method has a second row, with parameters that suit them.
    let small = tempfile::tempdir().unwrap();
    let base = noise(500, 1);
    for seed in 2..12 {
        fs::write(small.path().join(seed.to_string()), [&base[..300], &noise(200, seed)].concat()).unwrap();
    }
    let found = json(&["compare-methods", ".", "--json"], small.path());
    let rows = found["methods"].as_array().unwrap().iter();
    let fitted: Vec<_> = rows.filter(|row| row["fitted"] == true).collect();
    assert_eq!(fitted.len(), 3, "{found}");
    let with = fitted.iter().find(|row| row["name"] == "winnow").unwrap();
    assert_eq!((&with["method"], &with["recall_25"]), (&"winnow:k=16,w=35".into(), &1.0.into()), "{with}");
}

#[test]
fn what_cannot_be_looked_at_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let refused = |args: &[&str], part: &str| refused(args, dir.path(), part);
    refused(&["similar", "a", "--method", "sif", "--in", "missing"], "missing");
    refused(
        &["similar", "a", "--method", "magic", "--in", "."],
        "default, sif, winnow, chunk-graph, simhash",
    );
    refused(&["similar", "a", "--method", "sif"], "--in");
    refused(&["compare-methods", "missing"], "missing");
}

fn refused(args: &[&str], dir: &Path, part: &str) {
    let output = dedupctl(args, dir);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{args:?}: {}", text(&output));
}

/// Values of one field in a list.
fn each<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap()).collect()
}

const GRAPH: [&str; 4] = ["groups", "--json", "--method", "chunk-graph"];
const SIF: [&str; 4] = ["groups", "--json", "--method", "sif"];

#[test]
fn the_chunk_graph_reports_identical_files_clusters_and_pairs() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let found = json(&[&GRAPH[..], &["--pairs", "."]].concat(), dir.path());
    assert_eq!((&found["files"], &found["identical_sets"]), (&24.into(), &1.into()), "{found}");
    let set = &found["identical"][0];
    assert_eq!(
        (&set["overhead_bytes"], &set["paths"]),
        (&40_000.into(), &serde_json::json!(["a", "sub/copy"]))
    );
    assert_eq!(found["cluster_count"], 1, "{found}");
    let cluster = &found["clusters"][0];
    assert_eq!(
        (&cluster["kind"], &cluster["links"], &cluster["bytes"]),
        (&"clique".into(), &3.into(), &100_000.into())
    );
    assert_eq!(each(&cluster["files"], "path"), ["a", "half", "part"]);
    // a and half 20,000 bytes of 40,000; a and part 20,000 of 20,000; half and part 15,000 of 20,000.
    let similarity = cluster["similarity"].as_f64().unwrap();
    assert!((0.65..=0.75).contains(&similarity), "{found}");
    let pairs = found["pairs"].as_array().unwrap();
    assert_eq!((pairs.len(), &pairs[2]["a"], &pairs[2]["b"]), (3, &"half".into(), &"part".into()), "{found}");
    assert!((14_000..=15_000).contains(&pairs[2]["bytes_common"].as_u64().unwrap()), "{found}");
    assert!((0.7..=0.75).contains(&pairs[2]["contained_in"].as_f64().unwrap()), "{found}");
    // Chunks of 5,000 bytes lose more at the edges.
    let coarse =
        json(&[&GRAPH[..], &["--pairs", ".", "--target", "5000", "--limit", "1"]].concat(), dir.path());
    let pairs_coarse = coarse["pairs"].as_array().unwrap();
    let bytes = |pair: &Value| pair["bytes_common"].as_u64().unwrap();
    assert!(pairs_coarse.len() == 1 && bytes(&pairs_coarse[0]) < bytes(&pairs[0]), "{coarse}");
    let output = dedupctl(&["groups", ".", "--method", "chunk-graph", "--pairs"], dir.path());
    let report = String::from_utf8(output.stdout).unwrap();
    for part in
        ["identical: 1 sets, 39 KiB redundant", "\n#1: clique of 3 files, 98 KiB, 3 links", "\npairs:\n"]
    {
        assert!(report.contains(part), "{part}: {report}");
    }
}

/// Another threshold and templates, after the files are gone.
#[test]
fn a_saved_collection_needs_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    fs::create_dir(&files).unwrap();
    tree(&files);
    // It does not read what it writes.
    let saved = json(&[&GRAPH[..], &["files", "--save", "files/saved"]].concat(), dir.path());
    assert_eq!(saved["files"], 24, "{saved}");
    fs::rename(files.join("saved"), dir.path().join("saved")).unwrap();
    assert_eq!(fs::read_dir(&files).unwrap().count(), 4, "only the files");
    refused(&[&GRAPH[..], &["files", "--save", "files/a"]].concat(), dir.path(), "files/a");
    assert_eq!(fs::metadata(files.join("a")).unwrap().len(), 40_000, "not replaced");
    fs::remove_dir_all(&files).unwrap();
    let from = |args: &[&str]| json(&[&GRAPH[..], &["--from", "saved"], args].concat(), dir.path());
    assert_eq!(from(&[])["clusters"], saved["clusters"]);
    let strict = from(&["--min", "0.9"]);
    assert_eq!(strict["clusters"][0]["kind"], "pair", "{strict}");
    assert_eq!(each(&strict["clusters"][0]["files"], "path"), ["a", "part"]);
    let tables = from(&["--tables", "tables"]);
    let rows = |name: &str| fs::read_to_string(dir.path().join("tables").join(name)).unwrap().lines().count();
    assert_eq!([rows("identical.csv"), rows("clusters.csv"), rows("pairs.csv")], [3, 4, 4], "{tables}");
    assert!(rows("chunks.csv") > 300, "{}", rows("chunks.csv"));
    refused(&[&GRAPH[..], &["--from", "saved", "--tables", "tables"]].concat(), dir.path(), "identical.csv");
    refused(&[&GRAPH[..], &["--from", "saved", "--template", "2"]].concat(), dir.path(), "from 1 to 1");
    // What all three have is marked; 5,000 bytes that only `a` and `part` have are left, and 5,000 of 25,000 in `half`.
    let marked = from(&["--template", "1"]);
    assert!(marked["template_chunks"].as_u64().unwrap() > 30, "{marked}");
    assert_eq!(each(&marked["clusters"][0]["files"], "path"), ["a", "part"]);
    assert_eq!(from(&[])["clusters"], marked["clusters"], "marks stay");
    fs::remove_file(dir.path().join("saved.templates")).unwrap();
    assert_eq!(from(&[])["clusters"], saved["clusters"]);
    // The chunks of two of the three files are more.
    let more = from(&["--template", "1", "--template-share", "0.6"]);
    assert!(more["template_chunks"].as_u64() > marked["template_chunks"].as_u64(), "{more}");
    refused(
        &[&GRAPH[..], &["--from", "saved", "--template-share", "0.6"]].concat(),
        dir.path(),
        "--template",
    );
    fs::remove_file(dir.path().join("saved.templates")).unwrap();
    fs::write(dir.path().join("saved"), "no collection").unwrap();
    refused(&[&GRAPH[..], &["--from", "saved"]].concat(), dir.path(), "collection saved is damaged");
}

#[test]
fn sif_saves_and_finds_interesting_sets() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    fs::create_dir(&files).unwrap();
    tree(&files);
    fs::rename(files.join("half"), files.join("half.c")).unwrap();
    fs::rename(files.join("part"), files.join("part.c")).unwrap();
    let saved = json(&[&SIF[..], &["files", "--min", "0.3", "--save", "saved"]].concat(), dir.path());
    assert!(saved["parameters"].is_string(), "{saved}");
    refused(&[&SIF[..], &["files", "--save", "files/a"]].concat(), dir.path(), "files/a");
    fs::remove_dir_all(&files).unwrap();
    let from = |args: &[&str]| json(&[&SIF[..], &["--from", "saved"], args].concat(), dir.path());
    assert_eq!(from(&["--min", "0.3"])["groups"], saved["groups"]);
    let paths = |found: &Value| {
        let groups = found["groups"].as_array().unwrap().iter();
        groups.map(|group| each(&group["members"], "path").join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(paths(&from(&["--min", "0.9"])), ["a sub/copy", "part.c a sub/copy"]);
    assert_eq!(paths(&from(&["--min", "0.3", "--same-suffix"])), ["a sub/copy", "half.c part.c"]);
    assert_eq!(paths(&from(&["--min", "0.3", "--size-ratio", "0.9"])), ["a sub/copy half.c"]);
    let sets = from(&["--interesting", "--min", "0.3"]);
    assert_eq!(each(&sets["sets"][0]["files"], "path"), ["a", "sub/copy", "half.c", "part.c"], "{sets}");
    // 15,000 bytes are in all: a fingerprint each 256 and 50 that are passed over.
    assert!((30..=70).contains(&sets["sets"][0]["common"].as_u64().unwrap()), "{sets}");
    assert_eq!((&sets["cut"], &sets["common_min"]), (&false.into(), &5.into()));
    assert_eq!(from(&["--interesting=500", "--min", "0.3"])["sets"], serde_json::json!([]));
    fs::write(dir.path().join("saved"), "no result").unwrap();
    refused(&[&SIF[..], &["--from", "saved"]].concat(), dir.path(), "saved: is damaged");
}

#[test]
fn sif_compares_directories() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
    for dir in [&old, &new] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("same"), noise(20_000, 1)).unwrap();
    }
    let changed = noise(20_000, 2);
    fs::write(old.join("name"), &changed).unwrap();
    fs::write(new.join("renamed"), [&changed[..15_000], &noise(5_000, 3)].concat()).unwrap();
    fs::write(old.join("gone"), noise(20_000, 4)).unwrap();
    fs::write(new.join("come"), noise(20_000, 5)).unwrap();
    let found = json(&[&SIF[..], &["--in", "old", "--against", "new"]].concat(), dir.path());
    let alike = &found["alike"];
    assert_eq!(
        (each(alike, "a"), each(alike, "b")),
        (vec!["name", "same"], vec!["renamed", "same"]),
        "{found}"
    );
    assert!((0.6..0.9).contains(&alike[0]["containment"].as_f64().unwrap()), "{found}");
    assert_eq!((&alike[0]["identical"], &alike[1]["identical"]), (&false.into(), &true.into()));
    assert_eq!(
        (&found["only_a"], &found["only_b"]),
        (&serde_json::json!(["gone"]), &serde_json::json!(["come"]))
    );
}

#[test]
fn sif_starts_at_anchors() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let words: String =
        (0..4000).map(|i: u32| format!("word{} the ", i.wrapping_mul(2_654_435_761) % 9973)).collect();
    fs::write(dir.path().join("text"), &words).unwrap();
    fs::write(dir.path().join("text2"), &words[words.len() / 2..]).unwrap();
    fs::write(dir.path().join("anchors"), "the word1\nthe word2\n").unwrap();
    let found = json(&[&SIF[..], &[".", "--anchors", "anchors"]].concat(), dir.path());
    assert!(found["parameters"].as_str().unwrap().starts_with("2 anchors "), "{found}");
    let groups = found["groups"].to_string();
    assert!(groups.contains("\"text2\"") && !groups.contains("half"), "noise has no anchors: {found}");
    fs::create_dir(dir.path().join("words")).unwrap();
    for name in ["text", "text2"] {
        fs::copy(dir.path().join(name), dir.path().join("words").join(name)).unwrap();
    }
    let learned = json(&[&SIF[..], &["words", "--learn-anchors"]].concat(), dir.path());
    assert!(learned["parameters"].as_str().unwrap().contains(" anchors "), "{learned}");
    assert!(learned["groups"].to_string().contains("\"text2\""), "{learned}");
    fs::write(dir.path().join("anchors"), "x".repeat(60)).unwrap();
    refused(&[&SIF[..], &[".", "--anchors", "anchors"]].concat(), dir.path(), "expected 1 to 50 bytes");
}

/// Two pieces of work that have a handout in common, and 40 lines that one has taken from the other.
fn homework(dir: &Path) {
    let own = |seed: u32, lines: u32| -> String {
        let word = |i: u32| (seed * 1000 + i).wrapping_mul(2_654_435_761) % 1_000_003;
        (0..lines).map(|i| format!("line {} of {} and {}\n", word(i), word(i + 300), word(i + 600))).collect()
    };
    let (handout, taken) = (own(1, 40), own(2, 40));
    fs::write(dir.join("handout.txt"), &handout).unwrap();
    fs::write(dir.join("ann.txt"), format!("{handout}{}{taken}", own(3, 10))).unwrap();
    fs::write(dir.join("bob.txt"), format!("{handout}{}{}", taken.to_uppercase(), own(4, 30))).unwrap();
    fs::write(dir.join("eve.txt"), format!("{handout}{}", own(5, 40))).unwrap();
}

#[test]
fn regions_are_shown_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    homework(dir.path());
    let all = json(&["regions", "ann.txt", "bob.txt", "--json"], dir.path());
    assert_eq!(all["passages"].as_array().unwrap().len(), 2, "{all}");
    assert_eq!(all["views"], serde_json::json!(["text", "text"]));
    let found = json(&["regions", "ann.txt", "bob.txt", "--base", "handout.txt", "--json"], dir.path());
    // Where the handout ends a window may keep another hash than in the handout alone.
    let is_edge = |passage: &&Value| passage["prints"].as_u64().unwrap() <= 2;
    let (_, passages): (Vec<_>, Vec<_>) = found["passages"].as_array().unwrap().iter().partition(is_edge);
    assert_eq!(passages.len(), 1, "{found}");
    let lines = |side: &str, end: usize| passages[0][side][end].as_u64().unwrap();
    // Lines 51 to 90 of one are 41 to 80 of the other; the edges may be a window off.
    assert!(lines("a", 0).abs_diff(51) <= 2 && lines("a", 1).abs_diff(90) <= 2, "{found}");
    assert_eq!([lines("a", 0) - lines("b", 0), lines("a", 1) - lines("b", 1)], [10, 10], "{found}");
    let output =
        dedupctl(&["regions", "ann.txt", "bob.txt", "--base", "handout.txt", "--lines", "2"], dir.path());
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    let line = |name: &str, at: u64| {
        let text = fs::read_to_string(dir.path().join(name)).unwrap();
        text.lines().nth(at as usize - 1).unwrap().to_owned()
    };
    let (a, b) = (lines("a", 0) + 1, lines("b", 0) + 1);
    let [of_a, of_b] =
        [("ann.txt", a), ("bob.txt", b)].map(|(name, at)| format!("{at:>5}  {}", line(name, at)));
    let both = |line: &str| line.starts_with(&of_a) && line.ends_with(&of_b);
    assert!(shown.lines().any(both), "{of_a} {of_b}: {}", text(&output));
    assert!(shown.contains("more lines"), "{shown}");
    let longest = json(&["regions", "ann.txt", "bob.txt", "--limit", "1", "--json"], dir.path());
    let bytes = |passage: &Value| passage["bytes"].as_u64().unwrap();
    assert_eq!(longest["passages"].as_array().unwrap().len(), 1, "{longest}");
    assert!(bytes(&longest["passages"][0]) > bytes(&all["passages"][1]), "{longest} {all}");
    let none = json(&["regions", "eve.txt", "bob.txt", "--base", "handout.txt", "--json"], dir.path());
    assert!(none["passages"].as_array().unwrap().iter().all(|passage| is_edge(&passage)), "{none}");
    refused(&["regions", "ann.txt", "none"], dir.path(), "none");
    refused(&["regions", "ann.txt", "bob.txt", "-k", "0"], dir.path(), "'-k'");
    refused(&["regions", "ann.txt", "bob.txt", "--k", "0"], dir.path(), "k-grams of 0 bytes");
}

#[test]
fn winnowing_leaves_a_base_out_and_asks_coarsely() {
    let dir = tempfile::tempdir().unwrap();
    homework(dir.path());
    let raw = fs::read_to_string(dir.path().join("bob.txt")).unwrap().to_lowercase();
    fs::write(dir.path().join("bob.txt"), raw).unwrap();
    let ask = |args: &[&str]| {
        let all =
            [&["similar", "ann.txt", "--json", "--method", "winnow", "--in", ".", "--min", "0.2"], args];
        json(&all.concat(), dir.path())
    };
    let mut all = each(&ask(&[])["matches"], "path").into_iter().map(str::to_owned).collect::<Vec<_>>();
    all.sort();
    assert_eq!(all, ["bob.txt", "eve.txt", "handout.txt"]);
    let found = ask(&["--base", "handout.txt"]);
    assert_eq!(each(&found["matches"], "path"), ["bob.txt"], "{found}");
    let coarse = ask(&["--window", "400"]);
    assert_eq!(coarse["matches"].as_array().unwrap().len(), 3, "{coarse}");
    assert!(coarse["matches"][0]["contained_in"].is_null(), "a part tells no more: {coarse}");
    let few = ask(&["--smallest", "16"]);
    assert!(few["matches"][0]["resemblance"].is_number(), "{few}");
    let refuse = |args: &[&str], part: &str| {
        let all = [&["similar", "ann.txt", "--method", "winnow", "--in", "."], args].concat();
        refused(&all, dir.path(), part);
    };
    refuse(&["--window", "50"], "expected 100 or more");
    refuse(&["--smallest", "0"], "expected 1 or more");
    refuse(&["--base", "none"], "none");
}

#[test]
fn winnowing_ranks_pairs_beside_a_base() {
    let dir = tempfile::tempdir().unwrap();
    homework(dir.path());
    let works = dir.path().join("works");
    fs::create_dir(&works).unwrap();
    for name in ["ann.txt", "bob.txt", "eve.txt"] {
        fs::rename(dir.path().join(name), works.join(name)).unwrap();
    }
    let ask = |args: &[&str]| {
        let all =
            [&["groups", "--json", "--method", "winnow", "--pairs", "--min", "0.1", "--in", "works"], args];
        json(&all.concat(), dir.path())
    };
    let pairs = |found: &Value| {
        let pairs = found["pairs"].as_array().unwrap().iter();
        let name = |pair: &Value, side: &str| pair[side].as_str().unwrap().to_owned();
        pairs.map(|pair| name(pair, "a") + " " + &name(pair, "b")).collect::<Vec<_>>()
    };
    let all = ask(&[]);
    assert_eq!(pairs(&all).len(), 3, "all have the handout: {all}");
    let common = |at: usize| all["pairs"][at]["common"].as_u64().unwrap();
    assert!(common(0) >= common(1) && common(1) >= common(2), "{all}");
    // What bob has taken is in capitals: only a front end sees it.
    assert_eq!(pairs(&ask(&["--base", "handout.txt"])), [""; 0]);
    let found = ask(&["--base", "handout.txt", "--view", "auto"]);
    assert_eq!(pairs(&found), ["ann.txt bob.txt"], "{found}");
    let pair = &found["pairs"][0];
    assert!((0.5..0.9).contains(&pair["containment"].as_f64().unwrap()), "40 of 50 lines: {found}");
    assert!((0.4..0.7).contains(&pair["contained_in"].as_f64().unwrap()), "40 of 70 lines: {found}");
    assert_eq!(pairs(&ask(&["--view", "text", "--limit", "1"])).len(), 1);
    let args = ["groups", "--method", "winnow", "--in", "works", "--base", "handout.txt", "--view", "text"];
    let groups = json(&[&args[..], &["--json"]].concat(), dir.path());
    assert_eq!(groups["groups"].as_array().unwrap().len(), 1, "{groups}");
    let output = dedupctl(&[&args[..], &["--pairs"]].concat(), dir.path());
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(shown.contains("FINGERPRINTS") && shown.contains("dedupctl regions"), "{}", text(&output));
    let similar =
        ["similar", "works/ann.txt", "--method", "winnow", "--in", "works", "--base", "handout.txt"];
    let seen = |view: &str| {
        let found = json(&[&similar[..], &["--json", "--view", view]].concat(), dir.path());
        each(&found["matches"], "path").join(" ")
    };
    assert_eq!([seen("raw"), seen("auto"), seen("text")], ["", "bob.txt", "bob.txt"]);
}

/// Lines in another order: all counts are the same, the bytes are not.
#[test]
fn simhash_tells_identical_files_from_the_same_counts() {
    let dir = tempfile::tempdir().unwrap();
    homework(dir.path());
    let lines = fs::read_to_string(dir.path().join("ann.txt")).unwrap();
    let (first, rest) = lines.split_once('\n').unwrap();
    let turned: Vec<_> = [first].into_iter().chain(rest.lines().rev()).collect();
    fs::write(dir.path().join("turned.txt"), turned.join("\n") + "\n").unwrap();
    fs::copy(dir.path().join("ann.txt"), dir.path().join("copy.txt")).unwrap();
    let args = ["similar", "ann.txt", "--method", "simhash", "--in", "."];
    let found = json(&[&args[..], &["--json"]].concat(), dir.path());
    assert_eq!(each(&found["matches"], "path")[..2], ["copy.txt", "turned.txt"], "{found}");
    let of = |at: usize| (&found["matches"][at]["identical"], found["matches"][at]["distance"].as_f64());
    assert_eq!((of(0), of(1)), ((&true.into(), Some(0.0)), (&false.into(), Some(0.0))), "{found}");
    let output = dedupctl(&args, dir.path());
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(shown.contains("copy.txt (identical)"), "{shown}");
    assert!(shown.contains("turned.txt (the same counts, other bytes)"), "{shown}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("order within a file does not count"));
}

#[test]
fn methods_take_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let passage = noise(60, 7);
    for (name, seed, extension) in [("a", 1, "txt"), ("b", 2, "txt"), ("c", 3, "ps")] {
        let bytes = [noise(2000, seed), passage.clone(), noise(2000, seed + 10)].concat();
        fs::write(dir.path().join(format!("{name}.{extension}")), bytes).unwrap();
    }
    let found = |method: &str, min: &str| {
        let args = ["similar", "a.txt", "--method", method, "--in", ".", "--min", min, "--json"];
        let found = json(&args, dir.path());
        (each(&found["matches"], "path").len(), found["parameters"].as_str().unwrap().to_owned())
    };
    // Of 60 bytes in common 149 are too few for w = 100, and enough for t = 49.
    assert_eq!(found("winnow:t=149", "0.001").0, 0);
    let (count, parameters) = found("winnow:k=30,t=49", "0.001");
    assert_eq!(count, 2, "{parameters}");
    assert!(parameters.contains("w=20 t=49") && parameters.contains("49 bytes or more"), "{parameters}");
    let args = ["groups", ".", "--method", "winnow:k=30,w=20", "--pairs", "--json", "--min", "0.1"];
    assert_eq!(json(&args, dir.path())["pairs"], serde_json::json!([]), "a hundredth of each");
    refused(
        &["similar", "a.txt", "--method", "winnow:k=30,w=20,t=60", "--in", "."],
        dir.path(),
        "t = w+k-1 = 49",
    );
    refused(
        &["similar", "a.txt", "--method", "winnow:base=x", "--in", "."],
        dir.path(),
        "there is no \"base\"",
    );
    refused(
        &["groups", ".", "--method", "winnow:k=30", "--target", "100"],
        dir.path(),
        "an option of --method chunk-graph",
    );
    refused(
        &["groups", ".", "--method", "chunk-graph:target=100", "--target", "100"],
        dir.path(),
        "target twice",
    );
    let told = |method: &str| found(method, "0.001").1;
    assert_eq!([told("sif"), told("sif:zeros=4,bits=32")], ["one in 256 of 30 bits", "one in 16 of 32 bits"]);
    // Noise of one size has nearly the same counts; extensions keep it apart, and so does a strict tolerance for one.
    assert_eq!(found("simhash:tolerance=0.5", "0.1").0, 1);
    assert_eq!(found("simhash:tolerance=0.5,tolerance.ps=0.5,extension=no", "0.1").0, 2);
    assert_eq!(found("simhash:tolerance=0.5,extension=no", "0.1").0, 1, "PostScript has to be nearer");
    let (count, parameters) = found("simhash:key=uniform,tolerance=0.00001", "0.1");
    assert_eq!(count, 0, "{parameters}");
    assert!(
        parameters.contains("uniform+extension") && parameters.contains(".ps: keys 0.00001"),
        "{parameters}"
    );
}

#[test]
fn links_of_the_chunk_graph_have_a_least_number_of_bytes() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let clusters = |more: &[&str]| {
        let args = [&["groups", ".", "--method", "chunk-graph", "--min", "0.1", "--json"], more].concat();
        let found = json(&args, dir.path());
        (found["cluster_count"].as_u64().unwrap(), found["min_common"].as_u64().unwrap())
    };
    assert_eq!(clusters(&[]), (1, 1));
    assert_eq!(clusters(&["--min-common", "10000"]), (1, 10_000));
    assert_eq!(
        clusters(&["--min-common", "20KiB"]),
        (0, 20 << 10),
        "no two different files have so much in common"
    );
}

#[test]
fn options_of_another_method_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let refused = |args: &[&str], part: &str| refused(args, dir.path(), part);
    let groups = |method, args: &[&'static str]| [&["groups", ".", "--method", method], args].concat();
    refused(
        &groups("sif", &["--target", "100"]),
        "--target is an option of --method chunk-graph, not of sif",
    );
    refused(
        &groups("chunk-graph", &["--interesting"]),
        "--interesting is an option of --method sif, not of chunk-graph",
    );
    refused(
        &groups("winnow", &["--save", "x"]),
        "--save is an option of --method chunk-graph or sif, not of winnow",
    );
    refused(&groups("sif", &["--min-size", "0"]), "--min-size is an option of --method default, not of sif");
    refused(
        &groups("default", &["--pairs"]),
        "--pairs is an option of --method chunk-graph or winnow, not of default",
    );
    refused(&["groups", "--against", "x"], "--against is an option of --method sif, not of default");
    let similar =
        |method, args: &[&'static str]| [&["similar", "a", "--in", ".", "--method", method], args].concat();
    refused(&similar("simhash", &["--base", "a"]), "--base is an option of --method winnow, not of simhash");
    refused(
        &similar("winnow", &["--same-suffix"]),
        "--same-suffix is an option of --method default, not of winnow",
    );
    refused(
        &groups("simhash", &["--pairs"]),
        "--pairs is an option of --method chunk-graph or winnow, not of simhash",
    );
    refused(&groups("sif", &["--base", "a"]), "--base is an option of --method winnow, not of sif");
    refused(
        &groups("winnow", &["--suffix", ".c"]),
        "--suffix is an option of --method default, not of winnow",
    );
    refused(&similar("sif", &["--path", "*.c"]), "--path is an option of --method default, not of sif");
    refused(&similar("winnow", &["--not", "*.c"]), "--not is an option of --method default, not of winnow");
    refused(
        &similar("sif", &["--view", "text"]),
        "--view is an option of --method default or winnow, not of sif",
    );
    // These stand against each other.
    refused(&groups("sif", &["--from", "x"]), "--from");
    refused(&groups("chunk-graph", &["--template", "1"]), "--from");
    refused(&groups("chunk-graph", &["--target", "63"]), "from 64 to 1048576 bytes");
}

/// Names of one content that differ in what SimHash looks at: each counts. `a.md` comes first and resembles nothing.
#[test]
fn each_name_of_a_content_counts() {
    let dir = tempfile::tempdir().unwrap();
    let whole = noise(5000, 1);
    fs::write(dir.path().join("a.md"), &whole).unwrap();
    fs::write(dir.path().join("a.txt"), &whole).unwrap();
    fs::write(dir.path().join("edit.txt"), [&whole[..2000], b"x", &whole[2000..]].concat()).unwrap();
    let found = json(&["groups", ".", "--method", "simhash", "--json"], dir.path());
    let paths = |list: &Value| {
        let files = list.as_array().unwrap().iter();
        files.map(|file| file["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let groups = found["groups"].as_array().unwrap();
    assert_eq!(paths(&groups[0]["members"]), ["a.md", "a.txt", "edit.txt"], "{found}");
    assert_eq!((&groups[0]["representative"], &groups[0]["id"]), (&"a.md".into(), &1.into()), "{found}");
    let found = json(&["similar", "edit.txt", "--method", "simhash", "--in", ".", "--json"], dir.path());
    assert_eq!(paths(&found["matches"]), ["a.txt"], "a.md has another extension: {found}");
    // The report names what it shows.
    let text = dedupctl(&["groups", ".", "--method", "simhash"], dir.path());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("The figure is the distance") && !text.contains('%'), "{text}");
}

/// What two files of any length have in common, if it is as long as winnowing guarantees; and what an option leaves out.
#[test]
fn winnowing_reports_every_passage_of_the_guarantee() {
    let dir = tempfile::tempdir().unwrap();
    let passage = noise(149, 1);
    for (at, len) in [500, 1100, 100_000].into_iter().enumerate() {
        for side in 0..2u64 {
            let own = noise(len, 10 * (at as u64 + 1) + side);
            let bytes = [&own[..len / 3], &passage[..], &own[len / 3..]].concat();
            fs::create_dir_all(dir.path().join(len.to_string())).unwrap();
            fs::write(dir.path().join(len.to_string()).join(side.to_string()), bytes).unwrap();
        }
        let of = &*len.to_string();
        let pairs = json(&["groups", of, "--method", "winnow", "--pairs", "--json"], dir.path());
        assert_eq!((&pairs["found"], &pairs["below_min"]), (&1.into(), &0.into()), "{len}: {pairs}");
        let args = ["groups", of, "--method", "winnow", "--min", "0.9"];
        let text = String::from_utf8(dedupctl(&args, dir.path()).stdout).unwrap();
        assert!(text.contains("1 more pair of files has less than 90.0% in common (--min"), "{len}: {text}");
        let first = dir.path().join(of).join("0");
        let found = json(
            &["similar", first.to_str().unwrap(), "--method", "winnow", "--in", of, "--min", "0", "--json"],
            dir.path(),
        );
        assert_eq!(found["matches"].as_array().unwrap().len(), 1, "{len}: {found}");
        let second = dir.path().join(of).join("1");
        let args = ["regions", first.to_str().unwrap(), second.to_str().unwrap(), "--view", "raw", "--json"];
        let found = json(&[&args[..], &["--k", "50", "--w", "100"]].concat(), dir.path());
        let bytes = found["passages"][0]["bytes"].as_u64().unwrap();
        assert!((149..153).contains(&bytes), "{len}: {found}");
    }
}

/// A pipe without another end, a socket, a device, a directory: refused at once.
#[test]
fn only_regular_files_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let pipe = dir.path().join("pipe");
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
    std::os::unix::fs::symlink("pipe", dir.path().join("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    fs::create_dir(dir.path().join("overlay")).unwrap();
    fs::write(dir.path().join("overlay/f"), noise(3000, 1)).unwrap();
    for args in [["init", "overlay"], ["scan", "overlay"]] {
        assert!(dedupctl(&args, dir.path()).status.success());
    }
    for other in ["pipe", "link", "socket", "/dev/zero", "sub"] {
        for args in [["regions", other, "a"], ["regions", "a", other], ["diff", other, "overlay/f"]] {
            refused(&args, dir.path(), "expected a regular file");
        }
        refused(&["regions", "a", "a", "--base", other], dir.path(), "expected a regular file");
    }
}

/// Files of an overlay that is not mounted are empty, with their bytes in the store: no method compares them as empty.
#[test]
fn stubs_are_not_read_as_empty_files() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    for args in [&["init", "."][..], &["scan", ".", "--offline", "--yes"]] {
        let output = dedupctl(args, dir.path());
        assert!(output.status.success(), "{}", text(&output));
    }
    assert_eq!(fs::metadata(dir.path().join("a")).unwrap().len(), 0);
    for method in ["sif", "winnow", "chunk-graph", "simhash"] {
        refused(&["groups", "--method", method, "--in", "."], dir.path(), "is a stub");
        refused(&["similar", "a", "--method", method, "--in", "."], dir.path(), "is a stub");
    }
    refused(&["compare-methods", "."], dir.path(), "is a stub");
    refused(&["regions", "a", "half"], dir.path(), "mount the overlay");
    refused(&["groups", "--method", "sif", "--in", "/etc", "--against", "."], dir.path(), "is a stub");
    // A stub among other files is left out, and stops none of them.
    let mixed = tempfile::tempdir().unwrap();
    tree(mixed.path());
    let (from, to) = (dir.path().join("half"), mixed.path().join("stub"));
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
    let output = dedupctl(&["groups", "--method", "sif", "--in", "."], mixed.path());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("stub: is a stub") && text(&output).contains("sub/copy"),
        "{}",
        text(&output)
    );
    // The default index needs no mount.
    let found = json(&["similar", "a", "--json"], dir.path());
    assert_eq!(found["matches"][0]["path"], "sub/copy", "{found}");
}
