//! Some forty things that two users do to one tree between two syncs, in three forms of mounting; both sides are compared by
//! checksums. `cargo test --test sync scenarios::` does all of them in one tree; `cargo test --test sync -- --ignored scenarios::` each alone.
//! Started by root, they run as root and as an ordinary user.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod special;
mod table;
pub mod world;

use crate::common::as_both;
use std::fs;
use std::path::Path;
use table::{SCENARIOS, Scenario};
use world::{FORMS, Form, Side, act, manifest};

/// If set, `each_alone` does only the scenario of that name.
const ONLY: &str = "DEDUPFS_TEST_SCENARIO";

/// What has to be in a directory after a scenario.
fn check(scenario: &Scenario, dir: &Path, form: Form) {
    let name = scenario.name;
    for (path, text) in scenario.files {
        let found = fs::read_to_string(dir.join(path)).ok();
        assert_eq!(found.as_deref(), Some(*text), "{name}, {form:?}: {path} of {:?}", manifest(dir));
    }
    for path in scenario.gone {
        assert!(dir.join(path).symlink_metadata().is_err(), "{name}, {form:?}: {path} is still there");
    }
    let all = manifest(dir);
    let copies = all.keys().filter(|path| path.contains(".conflict-")).count();
    assert_eq!(copies, scenario.copies, "{name}, {form:?}: {all:?}");
}

/// Does `scenarios`, each in a directory of its own.
fn run(scenarios: &[Scenario], form: Form) {
    let (a, b) = (Side::new(form), Side::new(form));
    for scenario in scenarios {
        let dir = a.root().join(scenario.name);
        fs::create_dir(&dir).unwrap();
        act(&dir, scenario.before);
    }
    assert_eq!(a.sync(&b, &[]).0, 0);
    for scenario in scenarios {
        act(&a.root().join(scenario.name), scenario.here);
        act(&b.root().join(scenario.name), scenario.there);
    }
    let copies: usize = scenarios.iter().map(|scenario| scenario.copies).sum();
    let (code, report) = a.sync(&b, &[]);
    assert_eq!(code, i32::from(copies > 0), "{form:?}: {report}");
    for round in 0..2 {
        let (here, there) = (manifest(&a.root()), manifest(&b.root()));
        for (path, what) in &here {
            assert_eq!(Some(what), there.get(path), "{form:?}, round {round}: {path}");
        }
        assert_eq!(here.len(), there.len(), "{form:?}, round {round}: {there:?}");
        for scenario in scenarios {
            check(scenario, &a.root().join(scenario.name), form);
        }
        // All rests.
        let (code, report) = b.sync(&a, &[]);
        assert_eq!(
            (code, &report["created"], &report["updated"]),
            (0, &0.into(), &0.into()),
            "{form:?}: {report}"
        );
    }
}

#[test]
fn all_in_one_tree() {
    assert!(SCENARIOS.len() >= 40);
    as_both(|_| FORMS.into_iter().for_each(|form| run(SCENARIOS, form)));
}

#[test]
#[ignore = "takes minutes"]
fn each_alone() {
    let only = std::env::var(ONLY).ok();
    let wanted: Vec<_> =
        SCENARIOS.iter().filter(|scenario| only.as_ref().is_none_or(|name| name == scenario.name)).collect();
    assert!(!wanted.is_empty(), "no scenario is called {only:?}");
    as_both(|_| {
        for form in FORMS {
            wanted.iter().for_each(|scenario| run(std::slice::from_ref(*scenario), form));
        }
    });
}
