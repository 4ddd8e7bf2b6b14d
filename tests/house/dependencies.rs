//! `docs/dependencies.md` speaks of every crate that `Cargo.toml` names, in the version that is built, and of no other.
//!
//! Seen to fail: with a row taken out, with a version changed, and with a row of a crate that is not used.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::BTreeMap;
use std::path::Path;
use toml::Table;

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Cells of a row of a table, without what marks them as code.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect()
}

#[test]
fn every_dependency_is_explained_in_its_version() {
    let manifest: Table = read("Cargo.toml").parse().unwrap();
    let lock: Table = read("Cargo.lock").parse().unwrap();
    let package = lock["package"].as_array().unwrap();
    let ours = package.iter().find(|package| package["name"].as_str() == Some("dedupfs")).unwrap();
    // A crate of which two versions are built is named there with the one that is ours.
    let resolved: BTreeMap<&str, Option<&str>> = ours["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|dependency| dependency.as_str().unwrap())
        .map(|dependency| dependency.split_once(' ').map_or((dependency, None), |(n, v)| (n, Some(v))))
        .collect();
    let version = |name: &str| {
        let of_lock = || {
            let package = package.iter().find(|package| package["name"].as_str() == Some(name)).unwrap();
            package["version"].as_str().unwrap()
        };
        let version = resolved[name].unwrap_or_else(of_lock);
        version.split('+').next().unwrap().to_owned()
    };
    let named = ["dependencies", "build-dependencies", "dev-dependencies"]
        .into_iter()
        .filter_map(|section| manifest.get(section)?.as_table())
        .flat_map(|section| section.keys())
        // The crate is its own dependency in tests.
        .filter(|name| *name != "dedupfs")
        .map(|name| (name.clone(), version(name)));
    let named: BTreeMap<String, String> = named.collect();

    let doc = read("docs/dependencies.md");
    let rows: Vec<Vec<&str>> = doc.lines().filter(|line| line.starts_with("| `")).map(cells).collect();
    let explained: BTreeMap<String, String> =
        rows.iter().map(|row| (row[0].to_owned(), row[1].to_owned())).collect();
    assert_eq!(explained, named);
    assert_eq!(rows.len(), named.len(), "each has one row");
    for row in rows {
        let [_, _, released, _, _, why, instead] = row[..] else { panic!("{row:?} has seven cells") };
        assert!(released.starts_with("20") && released.len() == 10, "{row:?}");
        assert!(!why.is_empty() && !instead.is_empty(), "{row:?}");
    }
}
