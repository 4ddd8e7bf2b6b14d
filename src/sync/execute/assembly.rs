//! The order in which a plan's steps are done if new directories are assembled below the mount.

use crate::beneath::{Parents, Root};
use crate::sync::plan::Op;
use crate::sync::tree::{ContentId, TreePath, split};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// A part of the work on a plan.
pub(super) enum Part<'a> {
    /// Does a step.
    Do(&'a Op),
    /// Begins a new directory for this path. The next parts assemble it.
    Begin(&'a TreePath),
    /// Puts it in place.
    End,
}

/// Returns `ops` with the steps that assemble a new directory together, at the place where it is made.
pub(super) fn parts(ops: &[Op]) -> Vec<Part<'_>> {
    let mut made: HashSet<&[u8]> = HashSet::new();
    for op in ops {
        if let Op::MakeDir { path, .. } = op {
            made.insert(path);
        }
    }
    let top_of = |path: &[u8]| -> Option<&[u8]> {
        let (mut dir, mut top) = (path, None);
        while !dir.is_empty() {
            match made.get(dir) {
                Some(known) => top = Some(*known),
                None if top.is_some() => break,
                None => {}
            }
            dir = split(dir).0;
        }
        top
    };
    // The steps that assemble each new directory; `None` if another kind of step concerns it.
    let mut below: BTreeMap<&[u8], Option<Vec<&Op>>> = BTreeMap::new();
    let mut top_of_op: Vec<Option<&[u8]>> = Vec::with_capacity(ops.len());
    for op in ops {
        let (assembles, paths): (bool, Vec<&TreePath>) = match op {
            Op::MakeDir { path, .. } | Op::Create { path, link: None, .. } => (true, vec![path]),
            // When the directory is in place.
            Op::Meta { .. } => (false, Vec::new()),
            Op::Create { path, link: Some(link), .. } => (false, vec![path, link]),
            Op::Move { from, to } => (false, vec![from, to]),
            Op::Replace { path, link, .. } => (false, link.iter().chain([path]).collect()),
            Op::Remove { path, .. } | Op::Group { path, .. } => (false, vec![path]),
        };
        let mut top = None;
        for path in paths {
            top = top_of(path);
            let Some(top) = top else { continue };
            let steps = below.entry(top).or_insert_with(|| Some(Vec::new()));
            match steps {
                Some(steps) if assembles => steps.push(op),
                steps => *steps = None,
            }
        }
        top_of_op.push(top.filter(|_| assembles));
    }
    // An empty one is as well made in place.
    below.retain(|_, steps| steps.as_ref().is_some_and(|steps| steps.len() > 1));
    let mut parts = Vec::with_capacity(ops.len());
    for (op, top) in ops.iter().zip(top_of_op) {
        match top.and_then(|top| below.get(top)) {
            None => parts.push(Part::Do(op)),
            Some(Some(steps)) if top == Some(&op.path()[..]) => {
                parts.push(Part::Begin(op.path()));
                parts.extend(steps.iter().map(|op| Part::Do(op)));
                parts.push(Part::End);
            }
            // Is done with the others of that directory.
            Some(_) => {}
        }
    }
    parts
}

/// A directory that is being assembled.
pub(super) struct NewDirectory {
    pub direct: Arc<Root>,
    /// Its path in the tree.
    pub path: TreePath,
    /// Its path in the staging directory.
    pub at: TreePath,
    /// The contents in it, and their paths in the staging directory.
    pub contents: Vec<(ContentId, TreePath)>,
    pub parents: Parents,
}

impl NewDirectory {
    /// Returns the contents that were put into it.
    pub(super) fn contents(&self) -> impl Iterator<Item = ContentId> {
        self.contents.iter().map(|(content, _)| *content)
    }

    /// Returns the present place of a path below it.
    pub(super) fn place(&self, path: &[u8]) -> TreePath {
        [&self.at, &path[self.path.len()..]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::merge::tests::{dir, file};

    fn shown(ops: &[Op]) -> Vec<String> {
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let name = |part: &Part<'_>| match part {
            Part::Do(op) => text(op.path()),
            Part::Begin(path) => format!("begin {}", text(path)),
            Part::End => "end".to_owned(),
        };
        parts(ops).iter().map(name).collect()
    }

    fn make(path: &str) -> Op {
        Op::MakeDir { path: path.into(), entry: dir(1) }
    }

    fn create(path: &str, link: Option<&str>) -> Op {
        Op::Create { path: path.into(), entry: file(2, "a", path), link: link.map(Into::into) }
    }

    #[test]
    fn steps_below_a_new_directory_are_done_together() {
        let ops = [
            make("d"),
            make("d/e"),
            make("x"),
            create("a", None),
            create("d/e/f", None),
            create("x/g", None),
        ];
        let expected = ["begin d", "d", "d/e", "d/e/f", "end", "begin x", "x", "x/g", "end", "a"];
        assert_eq!(shown(&ops), expected);
    }

    #[test]
    fn directories_with_other_steps_and_empty_ones_are_made_in_place() {
        let moved = Op::Move { from: "old".into(), to: "d/new".into() };
        let ops = [make("d"), create("d/f", None), moved];
        assert_eq!(shown(&ops), ["d", "d/f", "old"]);
        assert_eq!(shown(&[make("d"), create("d/f", None), create("d/g", Some("d/f"))]), ["d", "d/f", "d/g"]);
        assert_eq!(shown(&[make("d"), create("d/f", None), create("g", Some("d/f"))]), ["d", "d/f", "g"]);
        assert_eq!(shown(&[make("d")]), ["d"]);
        // `e` lies in a directory that exists.
        assert_eq!(
            shown(&[make("was/e"), create("was/e/f", None)]),
            ["begin was/e", "was/e", "was/e/f", "end"]
        );
    }
}
