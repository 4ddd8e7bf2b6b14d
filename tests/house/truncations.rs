//! Every source file that cuts or replaces files is named, with the reason why that is safe, in `docs/durability.md`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::path::{Path, PathBuf};

/// What cuts a file, or puts one in the place of another.
const CALLS: &[&str] = &[
    "ftruncate(",
    "set_len(",
    "OFlags::TRUNC",
    "truncate(true)",
    "fallocate(",
    "renameat_with(",
    "renameat(",
    "fs::rename(",
    "root.rename(",
    "fs::write(",
    "File::create(",
    "inside.empty(",
];

/// Sources, without tests and what stands for a disk in tests.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if ["tests", "fuzz", "simulator", "sim", "testing"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_truncation_is_listed_with_its_reason() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(top.join("docs/durability.md")).unwrap();
    let (_, list) = page.split_once("## Truncations and replacements").unwrap();
    let list = list.split_once("\n## ").unwrap().0;
    let mut files = Vec::new();
    sources(&top.join("src"), &mut files);
    let cuts = |path: &Path| {
        let source = std::fs::read_to_string(path).unwrap();
        // Unit tests come last.
        let code = source.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code = code.lines().map(|line| line.split("//").next().unwrap());
        code.into_iter().any(|line| CALLS.iter().any(|call| line.contains(call)))
    };
    let name = |path: &PathBuf| path.strip_prefix(top.join("src")).unwrap().display().to_string();
    let cutting: Vec<String> = files.iter().filter(|path| cuts(path)).map(name).collect();
    assert!(cutting.len() > 20, "only {cutting:?}");
    let missing: Vec<_> = cutting.iter().filter(|name| !list.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not listed in docs/durability.md: {missing:?}");
    let named = list.split('`').filter(|word| word.ends_with(".rs") && !word.starts_with("tests/"));
    let gone: Vec<_> = named.filter(|name| !top.join("src").join(name).is_file()).collect();
    assert!(gone.is_empty(), "listed in docs/durability.md, and gone: {gone:?}");
}
