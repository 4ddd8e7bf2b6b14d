//! Selection: the paths that a device syncs. All others are left out on this device; other devices have them.
//!
//! - `only`: patterns of paths from the root, each component a glob. A path is included if it matches, lies below a match,
//!   or is a directory above a possible match.
//! - `not`: lines as in a `.gitignore`, of paths that are left out.
//! - A group is included if its root is. So is the copy of a file in conflict if the file is.
//! - `.dedupfsignore` in the root is always included.
//! - The directory of an included path is included.
//!
//! Pure.

use super::group::Groups;
use super::merge::parse_conflict_name;
use super::names::IGNORE;
use super::tree::{Tree, TreePath};
use super::units::Units;
use crate::config::{BadPattern, PathPattern};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// See the module. By default it includes everything.
#[derive(Clone, Default)]
pub struct Selection {
    /// `None` includes everything.
    only: Option<Vec<PathPattern>>,
    not: Option<Gitignore>,
    text: String,
}

impl Selection {
    /// Parses patterns. Without `only`, every path is included that `not` does not leave out.
    pub fn of(only: Option<&[String]>, not: &[String]) -> Result<Selection, BadPattern> {
        let patterns =
            only.map(|only| only.iter().map(|text| PathPattern::of(text)).collect::<Result<_, _>>());
        let mut builder = GitignoreBuilder::new("");
        let bad = |pattern: &str, e: ignore::Error| BadPattern {
            pattern: pattern.to_owned(),
            reason: e.to_string(),
        };
        for line in not {
            builder.add_line(None, line).map_err(|e| bad(line, e))?;
        }
        let matcher = builder.build().map_err(|e| bad(&not.join(" "), e))?;
        let quoted = |name: &str, all: &[String]| format!("{name} = {all:?}\n");
        let text = [only.map(|only| quoted("only", only)), (!not.is_empty()).then(|| quoted("not", not))];
        Ok(Selection {
            only: patterns.transpose()?,
            not: (!matcher.is_empty()).then_some(matcher),
            text: text.into_iter().flatten().collect(),
        })
    }

    /// Returns whether nothing is left out.
    pub fn is_all(&self) -> bool {
        self.only.is_none() && self.not.is_none()
    }

    /// Returns the patterns as text: two selections with the same text include the same paths.
    pub fn text(&self) -> &str {
        if self.is_all() { "" } else { &self.text }
    }

    /// Returns whether the entry at `path` is included, by its path alone: see [`Selection::part`] for groups.
    pub fn includes(&self, path: &[u8], is_dir: bool) -> bool {
        if self.is_all() || path == IGNORE.as_bytes() {
            return true;
        }
        let plain = without_conflict_names(path);
        let only = self.is_asked_for(path, is_dir) || self.is_asked_for(&plain, is_dir);
        only && !self.is_refused(path, is_dir) && !(plain != path && self.is_refused(&plain, is_dir))
    }

    fn is_asked_for(&self, path: &[u8], is_dir: bool) -> bool {
        let Some(only) = &self.only else { return true };
        only.iter().any(|pattern| pattern.includes(path, is_dir))
    }

    fn is_refused(&self, path: &[u8], is_dir: bool) -> bool {
        let Some(not) = &self.not else { return false };
        let is_ignored =
            |path: &[u8], is_dir| not.matched(Path::new(OsStr::from_bytes(path)), is_dir).is_ignore();
        // A pattern with `!` cannot bring back an entry of a directory that is left out.
        let mut dirs = (0..path.len()).filter(|at| path[*at] == b'/').map(|at| &path[..at]);
        dirs.any(|dir| is_ignored(dir, true)) || is_ignored(path, is_dir)
    }

    /// Returns the part of `tree` that is included.
    pub fn part(&self, tree: &Tree, groups: &Groups) -> Tree {
        match self.is_all() {
            true => tree.clone(),
            false => {
                let all = self.paths(tree, groups).into_iter();
                Tree { entries: all.map(|path| (path.clone(), tree.entries[path].clone())).collect() }
            }
        }
    }

    /// Returns the included paths of `tree`.
    pub fn paths<'a>(&self, tree: &'a Tree, groups: &Groups) -> Vec<&'a TreePath> {
        if self.is_all() {
            return tree.entries.keys().collect();
        }
        let units = Units::of(tree, groups);
        let is_included = |path: &&TreePath| {
            let root = units.root(path);
            self.includes(root, tree.entries.get(root).is_some_and(|entry| entry.kind.is_dir()))
        };
        tree.entries.keys().filter(is_included).collect()
    }
}

/// Returns `path` with the names that conflicting entries had before.
fn without_conflict_names(path: &[u8]) -> Cow<'_, [u8]> {
    const MARK: &[u8] = b".conflict-";
    if !path.windows(MARK.len()).any(|window| window == MARK) {
        return Cow::Borrowed(path);
    }
    let name = |name: &[u8]| parse_conflict_name(name).map_or_else(|| name.to_vec(), |(name, _)| name);
    Cow::Owned(path.split(|byte| *byte == b'/').map(name).collect::<Vec<_>>().join(&b'/'))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::merge::tests::{dir, file, tree};
    use super::*;

    pub(in super::super) fn selection(only: &[&str], not: &[&str]) -> Selection {
        let of = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let only = (!only.is_empty()).then(|| of(only));
        Selection::of(only.as_deref(), &of(not)).unwrap()
    }

    #[test]
    fn a_path_is_included_above_at_and_below_a_match() {
        let some = selection(&["/docs", "/photos/2024*", "x/*/z/"], &["/docs/huge", "*.iso", "!keep.iso"]);
        let cases = [
            ("docs", true, true),
            ("docs/a/b", false, true),
            ("docs2", true, false),
            ("sub/docs", true, false),
            ("photos", true, true),
            ("photos", false, false),
            ("photos/2024-05/a", false, true),
            ("photos/2023", true, false),
            ("photos/x", false, false),
            ("x/y", true, true),
            ("x/y", false, false),
            ("x/y/z/f", false, true),
            ("x/y/w", true, false),
            ("docs/huge/f", false, false),
            ("docs/a.iso", false, false),
            ("docs/keep.iso", false, true),
            ("docs/huge/keep.iso", false, false),
            (".dedupfsignore", false, true),
            ("docs/.dedupfsignore", false, true),
            ("other", false, false),
            ("docs.conflict-ann-1a2b3c4d", true, true),
            ("docs/huge.conflict-ann-1a2b3c4d/f", false, false),
        ];
        for (path, is_dir, expected) in cases {
            assert_eq!(some.includes(path.as_bytes(), is_dir), expected, "{path}");
        }
        assert!(Selection::default().includes(b"anything", false) && Selection::default().is_all());
        assert!(selection(&[], &["# a comment", ""]).is_all());
        assert!(!selection(&[], &["*.iso"]).includes(&[0xff, b'.', b'i', b's', b'o'], false));
    }

    #[test]
    fn a_wrong_pattern_is_named() {
        for (pattern, reason) in [
            ("/", "from the root"),
            ("/a//b", "from the root"),
            ("../x", "from the root"),
            ("/a/**", "not needed"),
            ("/a[", "class"),
        ] {
            let e = Selection::of(Some(&[pattern.to_owned()]), &[]).err().unwrap().to_string();
            assert!(e.contains(pattern) && e.contains(reason), "{e}");
        }
        let e = Selection::of(None, &["a{b".to_owned()]).err().unwrap().to_string();
        assert!(e.contains("a{b"), "{e}");
    }

    #[test]
    fn a_group_is_included_by_its_root() {
        let whole = tree(&[
            ("r", dir(1)),
            ("r/.git", dir(2)),
            ("r/.git/a.pack", file(3, "a", "pack")),
            ("r/b.pack", file(4, "a", "b")),
            ("r/x.db", file(5, "a", "db")),
            ("r/x.db-wal", file(6, "a", "wal")),
        ]);
        let names = |not: &[&str]| -> Vec<String> {
            let part = selection(&[], not).part(&whole, &Groups::default());
            part.entries.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
        };
        assert_eq!(names(&["*.pack", "*-wal"]), ["r", "r/.git", "r/.git/a.pack", "r/x.db", "r/x.db-wal"]);
        assert_eq!(names(&[".git", "*.db"]), ["r", "r/b.pack"]);
    }
}
