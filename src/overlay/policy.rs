//! Policy of a file by its name: rules of globs over a default. Pure.
//!
//! Globs mean the same as in a `.gitignore` in the overlay's root: `*.iso` and `target/` match at any depth, a `/` at the
//! beginning or in the middle anchors, a `/` at the end matches a directory and everything in it, `!` takes back the
//! matches of an earlier glob of the same rule. Names are bytes: they need not be UTF-8.
//!
//! The last matching rule that has a setting decides it, separately for each setting. So rule files go from the general
//! to the particular, as `.gitignore` and udev rules do, and a rule added at the end is in force whatever comes before
//! it. (The alternative is that the most specific glob decides, but neither of `*.iso` and `vm/` is more specific.)

use super::Dedup;
use super::queue::GATHER;
use crate::contents::Indexing;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::time::Duration;

/// Limit of globs in one rule, and of rules.
const RULES_MAX: usize = 1000;
/// Limit of a glob's length.
const GLOB_BYTES_MAX: usize = 1024;

/// How a file is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// When it is converted.
    pub dedup: Dedup,
    /// A smaller file stays plain.
    pub min_bytes: u64,
    /// Whether its versions are kept.
    pub keep_history: bool,
    /// How much of it the similarity index gets.
    pub similarity: Indexing,
    /// Whether it stays plain, whatever the rest says: only a mount or an explicit request converts files.
    pub withheld: bool,
}

/// Settings for the files that match one of some globs; `None` keeps the setting of earlier rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Patterns as in a `.gitignore`.
    pub globs: Vec<String>,
    /// When they are converted.
    pub dedup: Option<Dedup>,
    /// Smaller ones stay plain.
    pub min_bytes: Option<u64>,
    /// Whether their versions are kept.
    pub keep_history: Option<bool>,
    /// How much of them the similarity index gets.
    pub similarity: Option<Indexing>,
}

/// A glob that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "glob {glob:?}: {reason}; expected a pattern as in .gitignore, like \"*.iso\", \"target/\" or \"/var/log/\""
)]
pub struct BadGlob {
    /// The glob as written.
    pub glob: String,
    /// The error.
    pub reason: String,
}

/// All rules of an overlay, compiled.
#[derive(Clone, Debug)]
pub struct Policies {
    fallback: Policy,
    rules: Vec<(Gitignore, Rule)>,
    /// Whether a rule has a glob with a place, not only a name.
    places: bool,
}

impl Policies {
    /// Compiles the rules; `fallback` has the settings that no rule sets.
    pub fn new(fallback: Policy, rules: Vec<Rule>) -> Result<Policies, BadGlob> {
        if rules.len() > RULES_MAX {
            let glob = rules[RULES_MAX].globs.first().cloned().unwrap_or_default();
            return Err(BadGlob { glob, reason: format!("there are more than {RULES_MAX} rules") });
        }
        let places = rules.iter().flat_map(|rule| &rule.globs).any(|glob| is_place(glob));
        let compiled = rules.into_iter().map(|rule| Ok((rule.compile()?, rule)));
        Ok(Policies { fallback, rules: compiled.collect::<Result<_, _>>()?, places })
    }

    /// The same for all files.
    pub fn uniform(dedup: Dedup) -> Policies {
        Policies { fallback: Policy { dedup, ..Policy::default() }, rules: Vec::new(), places: false }
    }

    /// The same, but no file is converted.
    pub fn withholding(mut self) -> Policies {
        self.fallback.withheld = true;
        self
    }

    /// The same with one more rule after all others.
    pub fn with_rule(&self, rule: Rule) -> Result<Policies, BadGlob> {
        let rules = self.rules.iter().map(|(_, rule)| rule.clone()).chain([rule]).collect();
        Policies::new(self.fallback, rules)
    }

    /// Returns the policy of the file at `path`, below the overlay's root.
    ///
    /// O(rules * depth).
    pub fn of(&self, path: &Path) -> Policy {
        let mut policy = self.fallback;
        for (matcher, rule) in &self.rules {
            if matcher.matched_path_or_any_parents(path, false).is_ignore() {
                policy.dedup = rule.dedup.unwrap_or(policy.dedup);
                policy.min_bytes = rule.min_bytes.unwrap_or(policy.min_bytes);
                policy.keep_history = rule.keep_history.unwrap_or(policy.keep_history);
                policy.similarity = rule.similarity.unwrap_or(policy.similarity);
            }
        }
        policy
    }

    /// Returns whether files below a directory may get another policy when it is renamed.
    ///
    /// O(rules * depth).
    pub fn differ_below(&self, from: &Path, to: &Path) -> bool {
        let decides = |(matcher, _): &(Gitignore, Rule), dir: &Path| {
            let found = matcher.matched_path_or_any_parents(dir, true);
            (found.is_ignore(), found.is_whitelist())
        };
        // A glob with a place may match below a directory that it does not match. Other globs match a name
        // wherever it is.
        from != to && (self.places || self.rules.iter().any(|rule| decides(rule, from) != decides(rule, to)))
    }

    /// Returns the policy of a file that no rule matches.
    pub fn fallback(&self) -> Policy {
        self.fallback
    }

    /// Number of rules. With none, the name of a file does not matter.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Whether the similarity index has all of every file.
    pub fn index_all(&self) -> bool {
        let is_all = |similarity: Indexing| similarity == Indexing::Full;
        is_all(self.fallback.similarity)
            && self.rules.iter().all(|(_, rule)| rule.similarity.is_none_or(is_all))
    }

    /// Returns whether the index leaves out some files.
    pub fn leave_out(&self) -> bool {
        let is_off = |similarity: Indexing| similarity == Indexing::Off;
        is_off(self.fallback.similarity)
            || self.rules.iter().any(|(_, rule)| rule.similarity.is_some_and(is_off))
    }

    /// Whether there are files that are converted.
    pub fn convert(&self) -> bool {
        let converts = |dedup| dedup != Dedup::Off;
        converts(self.fallback.dedup) || self.rules.iter().any(|(_, rule)| rule.dedup.is_some_and(converts))
    }
}

impl Rule {
    /// Returns the rule that leaves everything at and below `path` plain (`is_dir` if that is a directory); all files if it
    /// is empty.
    ///
    /// A name that is no UTF-8 becomes a pattern, which may also match names that differ from it only in those bytes.
    pub fn plain_below(path: &Path, is_dir: bool) -> Rule {
        let mut glob = String::new();
        for part in path.components() {
            glob.push('/');
            let mut rest = part.as_os_str().as_bytes();
            while let Some(chunk) = rest.utf8_chunks().next() {
                for c in chunk.valid().chars() {
                    // The parser cuts these off at the end, escaped or not, or takes them for an escape of the last `/`. So
                    // any byte may stand for each of their bytes.
                    if c == '\\' || (c.is_whitespace() && c != ' ') {
                        glob.extend(std::iter::repeat_n('?', c.len_utf8()));
                        continue;
                    }
                    // A space at the end is cut off unless it is escaped.
                    if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '!' | '#' | ' ') {
                        glob.push('\\');
                    }
                    glob.push(c);
                }
                glob.extend(chunk.invalid().iter().map(|_| '?'));
                rest = &rest[chunk.valid().len() + chunk.invalid().len()..];
            }
        }
        match (glob.is_empty(), is_dir) {
            (true, _) => glob.push('*'),
            (false, true) => glob.push('/'),
            (false, false) => {}
        }
        Rule { globs: vec![glob], dedup: Some(Dedup::Off), ..Rule::default() }
    }

    /// Returns whether every glob can be used.
    pub fn check(&self) -> Result<(), BadGlob> {
        self.compile().map(drop)
    }

    fn compile(&self) -> Result<Gitignore, BadGlob> {
        let mut builder = GitignoreBuilder::new("");
        builder.allow_unclosed_class(false);
        for glob in &self.globs {
            let bad = |reason: String| BadGlob { glob: glob.chars().take(GLOB_BYTES_MAX).collect(), reason };
            if glob.len() > GLOB_BYTES_MAX {
                return Err(bad(format!("it is longer than {GLOB_BYTES_MAX} bytes")));
            }
            if glob.starts_with('#') || glob.trim_start_matches('!').trim_matches(['/', ' ']).is_empty() {
                return Err(bad("it matches nothing".to_owned()));
            }
            let mut parts = Path::new(glob.trim_start_matches('!')).components();
            if parts.any(|part| matches!(part, Component::CurDir | Component::ParentDir)) {
                return Err(bad("names below the overlay's root have no . or .. in them".to_owned()));
            }
            builder.add_line(None, glob).map_err(|e| bad(reason(&e)))?;
        }
        let all = || BadGlob { glob: self.globs.join(" "), reason: String::new() };
        if self.globs.len() > RULES_MAX {
            return Err(BadGlob { reason: format!("more than {RULES_MAX} globs in one rule"), ..all() });
        }
        builder.build().map_err(|e| BadGlob { reason: reason(&e), ..all() })
    }
}

/// Returns whether a glob has a place: a `/` at its beginning or in the middle.
fn is_place(glob: &str) -> bool {
    glob.trim_end_matches(['/', ' ']).contains('/')
}

/// Returns the error of the matcher without the glob, which our message names.
fn reason(error: &ignore::Error) -> String {
    match error {
        ignore::Error::Glob { err, .. } => err.clone(),
        other => other.to_string(),
    }
}

impl Default for Policy {
    /// Every file is converted when it is closed.
    fn default() -> Policy {
        Policy {
            dedup: Dedup::OnClose,
            min_bytes: 0,
            keep_history: true,
            similarity: Indexing::Full,
            withheld: false,
        }
    }
}

impl Policy {
    /// Whether a file of that size is converted here.
    pub fn converts(&self, bytes: u64) -> bool {
        !self.withheld && self.wants(bytes)
    }

    /// Whether a file of that size stays plain only because of [`Policy::withheld`].
    pub fn withholds(&self, bytes: u64) -> bool {
        self.withheld && self.wants(bytes)
    }

    fn wants(&self, bytes: u64) -> bool {
        self.dedup != Dedup::Off && bytes >= self.min_bytes
    }

    /// Returns how long a closed file is left alone.
    pub fn rest(&self) -> Duration {
        match self.dedup {
            Dedup::Idle(time) => time,
            Dedup::OnClose | Dedup::Off => GATHER,
        }
    }

    /// Combines the policies of two names of a file: the one that touches the file least.
    pub fn strictest(self, other: Policy) -> Policy {
        let rank = |dedup| match dedup {
            Dedup::OnClose => (0, Duration::ZERO),
            Dedup::Idle(time) => (1, time),
            Dedup::Off => (2, Duration::ZERO),
        };
        let dedup = if rank(other.dedup) > rank(self.dedup) { other.dedup } else { self.dedup };
        let min_bytes = self.min_bytes.max(other.min_bytes);
        let withheld = self.withheld || other.withheld;
        let keep_history = self.keep_history && other.keep_history;
        Policy { dedup, min_bytes, keep_history, similarity: self.similarity.min(other.similarity), withheld }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsStr;

    fn rule(globs: &[&str], dedup: Option<Dedup>, min_bytes: Option<u64>) -> Rule {
        let globs = globs.iter().map(|glob| (*glob).to_owned()).collect();
        Rule { globs, dedup, min_bytes, ..Rule::default() }
    }

    fn policies(rules: Vec<Rule>) -> Policies {
        Policies::new(Policy::default(), rules).unwrap()
    }

    #[test]
    fn globs_mean_what_they_mean_in_a_gitignore() {
        let off = |glob: &str, path: &[u8]| {
            let policies = policies(vec![rule(&[glob], Some(Dedup::Off), None)]);
            policies.of(Path::new(OsStr::from_bytes(path))).dedup == Dedup::Off
        };
        for (glob, path) in [
            ("*.sqlite-*", &b"a/b.sqlite-wal"[..]),
            ("target/", b"target/debug/x"),
            ("target/", b"a/b/target/x"),
            ("/var/log/", b"var/log/x"),
            ("var/log", b"var/log/x/y"),
            ("**/cache/*.db", b"a/cache/x.db"),
            ("a/**/b", b"a/x/y/b"),
            ("[ab].txt", b"b.txt"),
            ("*.{iso,img}", b"x.img"),
            ("*.log", b"\xff\xfe.log"),
            ("target/", b"\xff/target/\x80"),
            ("\\!important", b"!important"),
            (".*", b".hidden/x"),
        ] {
            assert!(off(glob, path), "{glob} {}", path.escape_ascii());
        }
        for (glob, path) in [
            ("target/", &b"target"[..]),
            ("/var/log/", b"a/var/log/x"),
            ("var/log", b"a/var/log"),
            ("*.iso", b"x.iso.part"),
            ("a/*/b", b"a/x/y/b"),
            ("*.ISO", b"x.iso"),
        ] {
            assert!(!off(glob, path), "{glob} {}", path.escape_ascii());
        }
    }

    #[test]
    fn the_last_rule_that_says_something_decides() {
        let hour = Dedup::Idle(Duration::from_secs(3600));
        let policies = policies(vec![
            rule(&["*.iso", "!keep.iso"], Some(Dedup::Off), Some(10)),
            rule(&["vm/"], Some(hour), None),
            rule(&["vm/*.iso"], None, Some(20)),
        ]);
        let of = |path: &str| (policies.of(Path::new(path)).dedup, policies.of(Path::new(path)).min_bytes);
        assert_eq!(of("a.iso"), (Dedup::Off, 10));
        assert_eq!(of("keep.iso"), (Dedup::OnClose, 0));
        assert_eq!(of("vm/a.iso"), (hour, 20));
        assert_eq!(of("vm/a"), (hour, 0));
        assert_eq!(of("other"), (Dedup::OnClose, 0));
    }

    #[test]
    fn what_a_renamed_directory_changes() {
        let differ = |globs: &[&str], from: &str, to: &str| {
            let policies = policies(vec![rule(globs, Some(Dedup::Off), None)]);
            policies.differ_below(Path::new(from), Path::new(to))
        };
        for (globs, from, to) in [
            (&["target/"][..], "target", "x"),
            (&["target/"], "a", "target/a"),
            (&["target/"], "target/a", "b/a"),
            (&["target"], "a/target", "a/b"),
            (&["*.d", "!keep.d"], "keep.d", "x.d"),
            (&["a/**/b"], "x", "a"),
            (&["/log/*.txt"], "log", "old"),
        ] {
            assert!(differ(globs, from, to), "{globs:?} {from} {to}");
        }
        for (globs, from, to) in [
            (&["*.sqlite"][..], "a", "b"),
            (&["target/"], "a", "b/a"),
            (&["target/"], "target/a", "target/b"),
            (&["target/"], "a/target", "target"),
            (&["a/b"], "c", "c"),
        ] {
            assert!(!differ(globs, from, to), "{globs:?} {from} {to}");
        }
    }

    proptest! {
        /// Whatever is in a name: the rule for a file is for that file, and that for a directory for all below.
        #[test]
        fn a_rule_for_a_path_matches_it(parts in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>().prop_filter("no slash or zero", |b| *b != b'/' && *b != 0), 1..8),
                prop::collection::vec(prop::sample::select(&b" *?[]{}!#\\ab,-^"[..]), 1..6),
            ].prop_filter("a name", |name| name != b"." && name != b".."), 1..4))
        {
            let path: std::path::PathBuf = parts.iter().map(|part| OsStr::from_bytes(part)).collect();
            let off = |rule: Rule, path: &Path| policies(vec![rule]).of(path).dedup == Dedup::Off;
            prop_assert!(off(Rule::plain_below(&path, false), &path));
            prop_assert!(off(Rule::plain_below(&path, true), &path.join("x/y")));
            prop_assert!(!off(Rule::plain_below(&path, true), Path::new("zzzzzzzzzzzzzzzzzzzzz/x")));
            prop_assert!(off(Rule::plain_below(Path::new(""), true), &path));
        }
    }

    #[test]
    fn what_means_nothing_is_an_error() {
        let long = "x".repeat(GLOB_BYTES_MAX + 1);
        for glob in ["", " ", "#comment", "!", "/", "!/", "[a", "a/../b", "./a", "{a", "a\\", long.as_str()] {
            let error = rule(&["ok", glob], None, None).check().unwrap_err();
            assert!(glob.starts_with(&error.glob), "{error}");
            assert!(error.to_string().contains("expected a pattern as in .gitignore"), "{error}");
        }
    }

    #[test]
    fn of_several_names_the_strictest_counts() {
        let policy = |dedup, min_bytes| Policy { dedup, min_bytes, ..Policy::default() };
        let idle = |seconds| Dedup::Idle(Duration::from_secs(seconds));
        let order = [Dedup::OnClose, idle(0), idle(5), idle(9), Dedup::Off];
        for (i, a) in order.into_iter().enumerate() {
            for b in &order[..=i] {
                assert_eq!(policy(a, 1).strictest(policy(*b, 2)), policy(a, 2));
                assert_eq!(policy(*b, 2).strictest(policy(a, 1)), policy(a, 2));
            }
        }
    }
}
