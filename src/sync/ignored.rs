//! Files that `.dedupfsignore` of the agreed tree excludes, on both sides. Each side's next scan excludes the
//! same ones.
//!
//! - An excluded path is in the agreed tree as both had it, or not at all.
//! - No step concerns it: both sides keep theirs.
//!
//! Each side sends its patterns in its hello; the `.dedupfsignore` of the agreed tree decides which of the
//! two apply. Pure.

use super::plan::Op;
use super::scan::{IGNORE, is_ignored};
use super::tree::{Ident, Tree, TreePath, split};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::collections::BTreeSet;

/// Prefix of a feature in a hello: the patterns of the sending side.
const FEATURE: &str = "ignore ";
/// Longer patterns are not sent, and hold on their own side only.
const TOLD_BYTES_MAX: usize = 1 << 20;

/// Returns the patterns that a peer gets: all of them, or none.
pub fn tellable(patterns: &str) -> &str {
    if patterns.len() <= TOLD_BYTES_MAX { patterns } else { "" }
}

/// Returns the patterns as a feature for the hello.
pub fn feature(patterns: &str) -> Option<String> {
    let patterns = tellable(patterns);
    (!patterns.is_empty()).then(|| format!("{FEATURE}{patterns}"))
}

/// Returns the patterns in a peer's features.
pub fn told(features: &[String]) -> &str {
    features.iter().find_map(|feature| feature.strip_prefix(FEATURE)).unwrap_or_default()
}

/// Patterns of one `.dedupfsignore`, and their text.
pub struct Ignored(Gitignore, String);

impl Ignored {
    /// Parses a text. Ignores invalid patterns; the scan warns the user of this side about them.
    pub fn of(text: &str) -> Ignored {
        let mut builder = GitignoreBuilder::new("");
        for line in text.lines() {
            let _ = builder.add_line(None, line);
        }
        Ignored(builder.build().unwrap_or_else(|_| Gitignore::empty()), text.to_owned())
    }

    /// Returns the text of the patterns.
    pub fn text(&self) -> &str {
        &self.1
    }

    /// Returns the patterns of `agreed`. `left` and `right` are trees with the pattern text that their side sent.
    /// Exchanging the two gives the same result.
    pub fn agreed(agreed: &Tree, left: (&Tree, &str), right: (&Tree, &str)) -> Ignored {
        let content = |tree: &Tree| tree.entries.get(IGNORE.as_bytes()).map(|entry| entry.kind.clone());
        let wanted = content(agreed);
        let texts = [left, right].into_iter().filter(|(tree, _)| wanted.is_some() && content(tree) == wanted);
        Ignored::of(texts.map(|(_, text)| text).max().unwrap_or_default())
    }

    /// Returns whether nothing is excluded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the excluded paths of `tree`, with all paths below them.
    fn paths<'a>(&self, tree: &'a Tree) -> BTreeSet<&'a TreePath> {
        let mut out: BTreeSet<&TreePath> = BTreeSet::new();
        let mut dirs: BTreeSet<&[u8]> = BTreeSet::new();
        for (path, entry) in tree.entries.iter().filter(|_| !self.is_empty()) {
            if dirs.contains(split(path).0) || is_ignored(&self.0, path, entry.kind.is_dir()) {
                out.insert(path);
                dirs.insert(path);
            }
        }
        out
    }

    /// Returns `tree` without excluded entries.
    pub fn without(&self, tree: &Tree) -> Tree {
        let out = self.paths(tree);
        let kept = tree.entries.iter().filter(|(path, _)| !out.contains(path));
        Tree { entries: kept.map(|(path, entry)| (path.clone(), entry.clone())).collect() }
    }

    /// Returns `tree` with the excluded entries of `base`.
    pub fn as_before(&self, base: &Tree, tree: &Tree) -> Tree {
        if self.is_empty() {
            return tree.clone();
        }
        let mut is = self.without(tree);
        let elsewhere: BTreeSet<Ident> = is.entries.values().map(|entry| entry.ident).collect();
        for path in self.paths(base) {
            let (dir, entry) = (split(path).0, &base.entries[path]);
            let has_room = dir.is_empty() || is.entries.get(dir).is_some_and(|dir| dir.kind.is_dir());
            if has_room && !is.entries.contains_key(path) && !elsewhere.contains(&entry.ident) {
                is.entries.insert(path.clone(), entry.clone());
            }
        }
        is
    }

    /// Returns the steps that `plan` makes from one tree to the other, without steps on excluded entries.
    pub fn plan(&self, from: &Tree, to: &Tree, plan: impl FnOnce(&Tree, &Tree) -> Vec<Op>) -> Vec<Op> {
        match self.is_empty() {
            true => plan(from, to),
            false => plan(&self.without(from), &self.without(to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge::tests::{dir, file, tree};
    use super::super::plan::plan;
    use super::*;

    #[test]
    fn what_is_left_out_is_as_before_and_no_step_concerns_it() {
        let base = tree(&[
            ("cache", dir(1)),
            ("cache/old", file(2, "a", "old")),
            ("moved", dir(9)),
            ("f", file(3, "a", "f")),
        ]);
        let now = tree(&[
            ("cache", dir(1)),
            ("cache/new", file(4, "b", "new")),
            ("cache/old", file(2, "b", "edited")),
            ("cache/deep", dir(9)),
            ("f", file(3, "b", "g")),
        ]);
        let ignored = Ignored::of("/cache/\n");
        let is = ignored.as_before(&base, &now);
        let expected =
            tree(&[("cache", dir(1)), ("cache/old", file(2, "a", "old")), ("f", file(3, "b", "g"))]);
        assert_eq!(is, expected);
        assert!(ignored.plan(&now, &is, plan).is_empty());
        assert_eq!(ignored.plan(&now, &base, plan).len(), 2, "f is put back, and moved is made");
        // What was moved out of it is one file.
        let moved = tree(&[("cache", dir(1)), ("new", file(2, "a", "old"))]);
        assert_eq!(ignored.as_before(&base, &moved).entries.len(), 2);
        assert_eq!(Ignored::of("").as_before(&base, &now), now);
    }

    #[test]
    fn patterns_are_those_of_the_agreed_tree() {
        let of = |text: &str| tree(&[(IGNORE, file(1, "a", text)), ("x.o", file(2, "a", "x"))]);
        let (mine, theirs) = (of("*.o"), of("*.x"));
        let all = |agreed: &Tree| {
            Ignored::agreed(agreed, (&mine, "*.o"), (&theirs, "*.x")).without(&mine).entries.len()
        };
        assert_eq!((all(&mine), all(&theirs), all(&Tree::default())), (1, 2, 2));
        let features = [feature("*.o\nb").unwrap(), "group x".to_owned()];
        assert_eq!((told(&features), told(&features[1..]), feature("")), ("*.o\nb", "", None));
    }
}
