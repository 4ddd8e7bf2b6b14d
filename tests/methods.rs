//! The published methods through `dedupctl`, on a directory that is no overlay.
//!
//! Seen to fail with: NOT YET
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod common;

use common::session::dedupctl;
use common::text;
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
        let share = |at: usize, figure: &str| matches[at]["likeness"][figure].as_f64().unwrap();
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
    assert_eq!(distance_zero["likeness"]["distance"], 0.0, "{found}");
    assert!(distance_zero["likeness"]["containment"].is_null(), "{found}");
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
    let standings = found["standings"].as_array().unwrap();
    let names: Vec<_> = standings.iter().map(|standing| standing["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "sif", "winnow", "chunk-graph", "simhash"]);
    assert!(
        standings[4]["recall"][0].as_f64().unwrap() < 1.0,
        "it cannot find what a larger file contains: {found}"
    );
    for standing in &standings[..4] {
        assert_eq!(standing["recall"], serde_json::json!([1.0, 1.0, 1.0]), "{standing}");
        assert_eq!(standing["precision"], 1.0, "{standing}");
        let share = standing["index_share"].as_f64().unwrap();
        assert!(share > 0.005 && share < 0.5, "{standing}");
    }
}

#[test]
fn what_cannot_be_looked_at_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let refused = |args: &[&str], part: &str| {
        let output = dedupctl(args, dir.path());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{args:?}: {}", text(&output));
    };
    refused(&["similar", "a", "--method", "sif", "--in", "missing"], "missing");
    refused(
        &["similar", "a", "--method", "magic", "--in", "."],
        "default, sif, winnow, chunk-graph, simhash",
    );
    refused(&["similar", "a", "--method", "sif"], "--in");
    refused(&["compare-methods", "missing"], "missing");
}
