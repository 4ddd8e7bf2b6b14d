//! The floors of the house: a module may use only modules on lower floors, and files do not import each other in a circle.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use super::imports::{Graph, cycles, graph};
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
    ("tree", 28),
    ("indexes", 29),
    ("convert", 30),
    ("query", 30),
    ("maintain", 31),
    ("overlay", 32),
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
        for import in imports(&code_of(&file)) {
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

/// Shows a cycle: each file with the names that it takes from others.
fn shown(cycle: &Graph) -> String {
    let edges = cycle.iter().flat_map(|(file, uses)| uses.iter().map(move |(to, names)| (file, to, names)));
    let edges = edges.map(|(file, to, names)| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("{file} uses {to}: {}", names.join(", "))
    });
    edges.collect::<Vec<_>>().join("\n")
}

/// Returns the import cycles below `root`.
fn import_cycles(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    sources(root, &mut files);
    cycles(&graph(root, &files)).iter().map(shown).collect()
}

#[test]
fn no_file_imports_in_a_circle() {
    let wrong = import_cycles(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(wrong.is_empty(), "files import each other in a circle:\n\n{}", wrong.join("\n\n"));
}

/// Types whose methods are spread over the files of a module.
const SPREAD: &[(&str, &str)] = &[
    ("tree", "Tree"),
    ("indexes", "Indexes"),
    ("convert", "Converter"),
    ("query", "Queries"),
    ("maintain", "Maintenance"),
];

/// Returns the code of a file without its unit tests.
fn code_of(file: &Path) -> String {
    let source = std::fs::read_to_string(file).unwrap();
    source.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned()
}

/// Returns the cycles of files below `dir` in which a method of `of` calls one that another file defines.
fn call_cycles(dir: &Path, of: &str) -> Vec<String> {
    let mut files = Vec::new();
    sources(dir, &mut files);
    let name = |file: &Path| file.strip_prefix(dir).unwrap().display().to_string();
    let code: BTreeMap<_, _> = files.iter().map(|file| (name(file), code_of(file))).collect();
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut defined = BTreeMap::new();
    for (file, code) in &code {
        for block in code.split(&format!("\nimpl {of} {{\n")).skip(1) {
            let block = block.split("\n}\n").next().unwrap();
            for line in block.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     ")) {
                let signature = line.split_once("fn ").filter(|(before, _)| !before.contains("//"));
                defined.extend(signature.map(|(_, name)| (word(name), file.clone())));
            }
        }
    }
    assert!(defined.len() > 1, "{of} has no methods in {}", dir.display());
    let mut graph = Graph::new();
    for (file, code) in &code {
        let calls = ["self.".to_owned(), format!("{of}::")];
        for called in calls.iter().flat_map(|prefix| code.split(&**prefix).skip(1)).map(word) {
            if let Some(to) = defined.get(&called).filter(|to| *to != file) {
                graph.entry(file.clone()).or_default().entry(to.clone()).or_default().insert(called);
            }
        }
    }
    cycles(&graph).iter().map(shown).collect()
}

/// No object knows everything: the files of a large type call in one direction.
#[test]
fn no_file_calls_in_a_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (module, of) in SPREAD {
        let wrong = call_cycles(&src.join(module), of);
        assert!(wrong.is_empty(), "files of {module} call each other in a circle:\n\n{}", wrong.join("\n\n"));
    }
}

#[test]
fn the_check_of_calls_can_fail() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, source: &str| std::fs::write(dir.path().join(name), source).unwrap();
    write("a.rs", "use super::T;\n\nimpl T {\n    fn up(&self) {\n        self.down();\n    }\n}\n");
    write("b.rs", "use super::T;\n\nimpl T {\n    pub(crate) fn down(&self) {}\n}\n");
    assert!(call_cycles(dir.path(), "T").is_empty());
    write(
        "b.rs",
        "use super::T;\n\nimpl T {\n    pub(crate) fn down(&self) {\n        T::up(self);\n    }\n}\n",
    );
    assert_eq!(call_cycles(dir.path(), "T"), ["a.rs uses b.rs: down\nb.rs uses a.rs: up"]);
}

/// A definition in a parent, a re-export that the parent uses, an inline path, and an imported module make cycles. A re-export, a
/// comment, a string, and code of tests make none.
#[test]
fn the_check_of_cycles_can_fail() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, source: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, source).unwrap();
    };
    write("lib.rs", "mod parent; mod shown; mod path; mod fine;");
    write("parent/mod.rs", "mod child;\npub struct Options;\nfn run() { child::run(&Options) }");
    write("parent/child.rs", "use super::Options;\nuse crate::fine::Leaf;\npub fn run(_: &Options) {}");
    write("shown/mod.rs", "mod a;\npub use a::{self as first, A};\npub struct Owner { a: Option<A> }");
    write("shown/a.rs", "pub struct A;\nimpl A { fn of(owner: &crate::shown::Owner) {} }");
    write("path/mod.rs", "pub mod one;\npub mod two;");
    write("path/one.rs", "use super::two;\npub fn f() { two::f() }");
    write("path/two.rs", "pub fn f() { crate::path::one::f() }");
    write(
        "fine/mod.rs",
        "mod leaf;\nmod user;\n#[cfg(test)]\nmod checks;\npub use leaf::Leaf;\npub struct Base;",
    );
    write(
        "fine/leaf.rs",
        "// use super::user::User;\npub struct Leaf(&'static str);\nconst TEXT: &str = \"super::user::User\";\n\
         #[cfg(test)]\nmod tests {\n    use super::super::user::User;\n}\n",
    );
    write("fine/user.rs", "use super::{Base, Leaf};\npub struct User(Base, Leaf);");
    write("fine/checks.rs", "use super::user::User;\npub struct Check(User, super::Base);");
    assert_eq!(
        import_cycles(dir.path()),
        [
            "parent/child.rs uses parent/mod.rs: Options\nparent/mod.rs uses parent/child.rs: run",
            "path/one.rs uses path/two.rs: f\npath/two.rs uses path/one.rs: f",
            "shown/a.rs uses shown/mod.rs: Owner\nshown/mod.rs uses shown/a.rs: A",
        ]
    );
}
