//! The floors of the house: a module may use only modules on lower floors.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lower numbers are lower floors; modules with the same number are siblings and may not know each other.
const FLOORS: &[(&str, u32)] = &[
    ("id", 0),
    ("env", 0),
    ("beneath", 0),
    ("recipe", 1),
    ("db", 2),
    ("chunk", 10),
    ("deflate", 10),
    ("view", 10),
    ("page", 10),
    ("web", 10),
    ("store", 20),
    ("similarity", 20),
    ("contents", 22),
    ("backing", 24),
    ("catalog", 26),
    ("overlay", 30),
    ("history", 35),
    ("config", 40),
    ("repo", 41),
    ("admin", 42),
    ("fuse", 50),
    ("control", 50),
    ("sync", 50),
    ("daemon", 60),
    ("cli", 61),
    ("fuzz", 70),
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names that follow `crate::` in code, comments left out; of `crate::{a, b::c}` each.
fn imports(source: &str) -> Vec<String> {
    let code: String =
        source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = Vec::new();
    for after in code.split("crate::").skip(1) {
        match after.strip_prefix('{') {
            Some(group) => {
                let (mut depth, mut start) = (0, true);
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && c.is_alphabetic() => {
                            names.push(word(&group[i..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
            None => names.push(word(after)),
        }
    }
    names
}

fn violations(root: &Path) -> Vec<String> {
    let floors: BTreeMap<_, _> = FLOORS.iter().copied().collect();
    let mut files = Vec::new();
    sources(root, &mut files);
    assert!(!files.is_empty());
    let mut wrong = Vec::new();
    for file in files {
        let inside = file.strip_prefix(root).unwrap();
        let module =
            inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" || module == "bin" {
            continue;
        }
        let Some(own) = floors.get(module) else {
            wrong.push(format!("{}: module `{module}` has no floor: give it one", inside.display()));
            continue;
        };
        for import in imports(&std::fs::read_to_string(&file).unwrap()) {
            match floors.get(import.as_str()) {
                _ if import == module => {}
                Some(floor) if floor < own => {}
                Some(_) => wrong.push(format!("{}: `{module}` uses `{import}`", inside.display())),
                None => wrong.push(format!("{}: `crate::{import}` is not a module", inside.display())),
            }
        }
    }
    wrong
}

#[test]
fn lower_floors_do_not_use_higher_ones() {
    let wrong = violations(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The check itself notices: a lower floor using a higher, siblings, groups, inline paths.
#[test]
fn the_check_can_fail() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("store")).unwrap();
    std::fs::write(
        dir.path().join("store/mod.rs"),
        "use crate::{id, overlay::{A, B}};\n// crate::cli is fine here",
    )
    .unwrap();
    std::fs::write(dir.path().join("similarity.rs"), "fn f() { crate::store::g() }").unwrap();
    std::fs::write(dir.path().join("overlay.rs"), "use crate::store::Store;").unwrap();
    let mut wrong = violations(dir.path());
    wrong.sort();
    assert_eq!(wrong, ["similarity.rs: `similarity` uses `store`", "store/mod.rs: `store` uses `overlay`"]);
}

/// sled is named in one file, so that it can be replaced in one file.
#[test]
fn only_one_file_names_sled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let naming = files.iter().filter(|file| std::fs::read_to_string(file).unwrap().contains("sled::Config"));
    assert_eq!(naming.collect::<Vec<_>>(), [&root.join("db/sled.rs")]);
}
