//! Scan of changed entries: all others are as in the last tree.

use super::super::error::{self, SyncError};
use super::super::print::Print;
use super::super::rules::Rules;
use super::super::seen::Seen;
use super::super::tree::{Entry, Tree, TreePath, is_reserved, join};
use super::{AtBarrier, Chosen, Examine, Look, Report, Scan, is_apart, parse_patterns};
use crate::beneath::{Root, Stats};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Scans as [`super::scan`] does, but examines only `changed`: paths, and whether everything below them may have changed.
/// `text` is that of `.dedupfsignore`. Returns `None` if the entries of `last` are not all `known`.
#[expect(clippy::too_many_arguments, reason = "those of a scan, and the changes")]
pub fn scan_changed(
    root: &Root,
    last: &Tree,
    known: &BTreeMap<TreePath, Print>,
    text: &str,
    mut changed: Vec<(TreePath, bool)>,
    rules: &Rules,
    at_barrier: &mut AtBarrier<'_>,
    below: Option<&dyn Examine>,
    report: &mut Report<'_>,
) -> Result<Option<Scan>, SyncError> {
    let patterns = parse_patterns(text)?;
    let device = rustix::fs::fstat(root.fd()).map_err(|e| error::on("look at", b".", e))?.st_dev;
    let chosen = Chosen::new(root, rules);
    let owners = &*rules.owners;
    let look = Look { root, known, patterns: &patterns, chosen: &chosen, device, below, owners };
    let mut scan = Scan { patterns: text.to_owned(), ..Scan::default() };
    let mut before = known.iter().peekable();
    let (mut seen, mut prints) = (Vec::with_capacity(known.len()), Vec::with_capacity(known.len()));
    for (path, Entry { kind, mode, mtime, xattrs, .. }) in &last.entries {
        while before.next_if(|(before, _)| *before < path).is_some() {}
        let Some((_, print)) = before.next_if(|(before, _)| *before == path) else { return Ok(None) };
        let (kind, xattrs) = (kind.clone(), xattrs.clone());
        let now = Seen { inode: (0, print.ino), kind, mode: *mode, mtime: *mtime, xattrs };
        seen.push((path.clone(), now));
        // A change within the same tick of the clock would be among the changes.
        prints.push((path.clone(), Print { fresh: false, ..print.clone() }));
    }
    (scan.seen, scan.prints) = (seen.into_iter().collect(), prints.into_iter().collect());
    scan.examined = Some(BTreeSet::new());
    // Directories come before their entries.
    changed.sort();
    if let Some(below) = below {
        below.ask_for(&mut changed.iter().map(|(path, _)| path));
    }
    let mut walked = BTreeSet::new();
    for (path, moved) in changed {
        if !is_apart(&patterns, &chosen, &path) {
            scan.examine(&look, path, moved, &mut walked, report)?;
        }
    }
    scan.settle_groups(&look, &rules.groups, last, at_barrier, report)?;
    scan.end(last, known);
    Ok(Some(scan))
}

/// Returns the directories above a path, from the top.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}

impl Scan {
    /// Examines one path. `walked` has the directories below which everything was examined.
    fn examine(
        &mut self,
        look: &Look<'_>,
        path: TreePath,
        moved: bool,
        walked: &mut BTreeSet<TreePath>,
        report: &mut Report<'_>,
    ) -> Result<(), SyncError> {
        if above(&path).any(|dir| walked.contains(dir)) {
            return Ok(());
        }
        if path.is_empty() {
            return self.list_again(look, &path, walked, report);
        }
        let mut stats = Stats::default();
        // A directory above may have come here meanwhile.
        let dirs: Vec<TreePath> = above(&path).map(<[u8]>::to_vec).collect();
        for dir in dirs {
            if self.seen.get(&dir).is_some_and(|seen| seen.kind.is_dir()) {
                continue;
            }
            self.drop_all(&dir);
            if self.look_at(look, &dir, &mut stats)? {
                self.walk(look, dir.clone(), report)?;
            }
            walked.insert(dir);
            return Ok(());
        }
        let examined = self.examined.as_ref().is_some_and(|examined| examined.contains(&path));
        let before = self.seen.get(&path).filter(|before| before.kind.is_dir()).map(|before| before.inode);
        let is_dir = match examined {
            true => before.is_some(),
            false => {
                self.seen.remove(&path);
                self.prints.remove(&path);
                self.look_at(look, &path, &mut stats)?
            }
        };
        let same = before.is_some() && self.seen.get(&path).map(|now| now.inode) == before;
        match is_dir {
            true if same && !moved => self.list_again(look, &path, walked, report),
            true => {
                self.drop_below(&path);
                self.walk(look, path.clone(), report)?;
                walked.insert(path);
                Ok(())
            }
            false => {
                self.drop_below(&path);
                Ok(())
            }
        }
    }

    /// Compares the names in a directory with the known ones. An entry that was replaced is among the changes itself.
    fn list_again(
        &mut self,
        look: &Look<'_>,
        dir: &TreePath,
        walked: &mut BTreeSet<TreePath>,
        report: &mut Report<'_>,
    ) -> Result<(), SyncError> {
        let names: BTreeSet<Vec<u8>> = match look.root.list(dir) {
            Ok(names) => names.into_iter().collect(),
            Err(e) if dir.is_empty() => return Err(error::on("read", b".", e)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                self.drop_all(dir);
                return Ok(());
            }
            Err(e) => return self.cannot_read(dir.clone(), error::on("read the directory", b"", e)),
        };
        let known = self.children(dir);
        for name in known.difference(&names) {
            self.drop_all(&join(dir, name));
        }
        let mut stats = Stats::default();
        for name in names.difference(&known).filter(|name| !dir.is_empty() || !is_reserved(name)) {
            let path = join(dir, name);
            if self.look_at(look, &path, &mut stats)? {
                self.walk(look, path.clone(), report)?;
                walked.insert(path);
            }
        }
        Ok(())
    }

    fn children(&self, dir: &TreePath) -> BTreeSet<Vec<u8>> {
        let below = if dir.is_empty() { Vec::new() } else { join(dir, b"") };
        let all = self.seen.range(below.clone()..).map(|(path, _)| path);
        let inside = all.take_while(|path| path.starts_with(&below)).map(|path| &path[below.len()..]);
        inside.filter(|name| !name.contains(&b'/')).map(<[u8]>::to_vec).collect()
    }

    fn drop_all(&mut self, path: &TreePath) {
        self.seen.remove(path);
        self.prints.remove(path);
        self.drop_below(path);
    }

    fn drop_below(&mut self, path: &TreePath) {
        let below = join(path, b"");
        let gone = self.seen.range(below.clone()..).map(|(path, _)| path);
        let gone: Vec<TreePath> = gone.take_while(|path| path.starts_with(&below)).cloned().collect();
        for path in gone {
            self.seen.remove(&path);
            self.prints.remove(&path);
        }
    }
}
