//! New directories that are assembled below the mount, with all that they will contain, and put into the tree by one rename.
//!
//! The mount is not asked for anything in them before that rename, so the kernel has nothing to forget. If it fails, their
//! contents are staged again.

use super::skip::{Skip, Step, changed, refused};
use super::{Executor, Skipped};
use crate::beneath::{Parents, Root};
use crate::sync::plan::Op;
use crate::sync::print::print;
use crate::sync::staging::whole;
use crate::sync::tree::{ContentId, Entry, Kind, STAGING, TreePath, split};
use rustix::fs::{FileType, Mode, RenameFlags};
use std::collections::{BTreeMap, HashMap};
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
    let mut made: HashMap<&[u8], bool> = HashMap::new();
    for op in ops {
        if let Op::MakeDir { path, .. } = op {
            made.insert(path, true);
        }
    }
    let top_of = |path: &[u8]| -> Option<&[u8]> {
        let (mut dir, mut top) = (path, None);
        while !dir.is_empty() {
            match made.get_key_value(dir) {
                Some((known, _)) => top = Some(*known),
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
    direct: Arc<Root>,
    /// Its path in the tree, and in the staging directory.
    path: TreePath,
    at: TreePath,
    /// The contents in it, and their paths in the staging directory.
    contents: Vec<(ContentId, TreePath)>,
    parents: Parents,
}

impl NewDirectory {
    /// Returns the contents that were put into it.
    pub(super) fn contents(&self) -> impl Iterator<Item = ContentId> {
        self.contents.iter().map(|(content, _)| *content)
    }

    /// Returns the present place of a path below it.
    fn place(&self, path: &[u8]) -> TreePath {
        [&self.at, &path[self.path.len()..]].concat()
    }
}

impl Executor<'_> {
    pub(super) fn begin_directory(&mut self, path: &TreePath) -> Result<(), crate::sync::SyncError> {
        let Some(direct) = self.direct.clone() else { return Ok(()) };
        let at = self.staging.swap_name(self.root)?;
        let parents = Parents::default();
        self.assembled = Some(NewDirectory { direct, path: path.clone(), at, contents: Vec::new(), parents });
        Ok(())
    }

    /// Makes a directory of the one that is being assembled, or this itself.
    pub(super) fn assemble_dir(&mut self, path: &TreePath, entry: &Entry) -> Step {
        let Some(new) = &self.assembled else { return Err(changed()) };
        // The rename would find that out too late.
        if *path == new.path && self.stat(path)?.is_some() {
            return Err(changed());
        }
        let (direct, at) = (new.direct.clone(), new.place(path));
        // It is writable until it has its entries; the last step sets the final mode.
        let entry = Entry { mode: entry.mode | 0o700, ..entry.clone() };
        direct.make_dir(&at, Mode::from_raw_mode(entry.mode.into())).map_err(refused(path, "make"))?;
        self.put_metadata_at(&direct, &at, &entry, FileType::Directory, true)?;
        self.touch(path);
        self.note_assembled(path, &at, None)
    }

    /// Puts a file or symlink into it.
    pub(super) fn assemble_file(&mut self, path: &TreePath, entry: &Entry) -> Step {
        let Some(new) = &self.assembled else { return Err(changed()) };
        let at = new.place(path);
        self.put_at(&at, path, entry, None)?;
        if let (Kind::File { content, .. }, Some(new)) = (&entry.kind, &mut self.assembled) {
            new.contents.push((*content, at.clone()));
        }
        self.touch(path);
        self.note_assembled(path, &at, entry.kind.content())
    }

    /// Remembers the entry at `at`, which will be at `path`.
    fn note_assembled(&mut self, path: &TreePath, at: &TreePath, content: Option<ContentId>) -> Step {
        let Some(NewDirectory { direct, parents, .. }) = &mut self.assembled else { return Err(changed()) };
        let stat = parents.stat(direct, at).map_err(refused(path, "look at"))?.ok_or_else(changed)?;
        self.prints.insert(path.clone(), print(&stat, content));
        Ok(())
    }

    /// Puts the assembled directory in place. Returns why that was not possible.
    pub(super) fn end_directory(&mut self) -> Result<Option<Skipped>, crate::sync::SyncError> {
        let Some(new) = self.assembled.take() else { return Ok(None) };
        if self.lost.contains_key(&new.path) || !self.prints.contains_key(&new.path) {
            return Ok(None);
        }
        let done = self.root.rename(&new.at, &new.path, RenameFlags::NOREPLACE);
        let done = done.map_err(refused(&new.path, "put in place")).and_then(|()| self.note(&new.path, None));
        let (why, again) = match done {
            Ok(()) => return Ok(None),
            Err(Skip::Fatal(e)) => return Err(e),
            Err(Skip::Changed) => ("changed meanwhile; run the sync again".to_owned(), true),
            Err(Skip::Because(why)) => (why, false),
        };
        // The mount knows no name in it.
        for (content, at) in &new.contents {
            let back = new.direct.rename(at, &whole(*content), RenameFlags::empty());
            back.map_err(|e| crate::sync::error::on("rename", at, e))?;
        }
        let gone = new.direct.remove_all(&new.at);
        gone.map_err(|e| crate::sync::error::on("remove", &new.at, e))?;
        let below = [&new.path[..], b"/"].concat();
        self.prints.retain(|path, _| *path != new.path && !path.starts_with(&below));
        self.lost.insert(new.path.clone(), why.clone());
        Ok(Some(Skipped { path: new.path, why, again }))
    }

    /// Returns whether entries can be assembled at `at`, which the mount does not know, below the mount.
    pub(super) fn is_direct(&self, at: &TreePath) -> bool {
        self.direct.is_some() && (self.assembled.is_some() || split(at).0 == STAGING.as_bytes())
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
