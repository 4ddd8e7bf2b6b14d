//! Capture of groups at one moment.
//!
//! Each group is read, and examined again. If an entry changed meanwhile, the daemon, which can suspend programs,
//! examines the group. It returns the changed contents too, because they would have changed again by the time they are
//! sent.

use super::super::attributes::OWNER;
use super::super::error;
use super::super::error::SyncError;
use super::super::group::{BESIDE, Groups};
use super::super::old_contents::{Row, RowKind};
use super::super::print::{FRESH, is_fresh, print, time, unchanged};
use super::super::seen::Seen;
use super::super::tree::{ContentId, Kind, Tree, TreePath, join, shown};
use super::super::wal_index;
use super::{AtBarrier, Look, Report, Scan, is_ignored, with_acls};
use crate::beneath::Stats;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Seek;
use std::time::SystemTime;

/// Number of attempts to capture a group that changes.
const ATTEMPTS: u32 = 20;
/// Number of these attempts that may fail because programs kept writing: each of them suspends all programs.
const ATTEMPTS_IN_VAIN: u32 = 5;
/// Suffix of git's lock files.
const LOCK: &[u8] = b".lock";
/// Maximum number of contents of groups that are kept from that moment: each is an open file.
const KEPT_MAX: usize = 512;

/// Returns whether `other` belongs to the group at `path`.
fn is_of(path: &[u8], other: &[u8]) -> bool {
    let rest = other.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || BESIDE.contains(&rest))
}

impl Scan {
    /// Makes sure that each group is captured as of one moment. A group that changes all the time, by programs that
    /// cannot be suspended, waits for the next sync.
    pub(super) fn settle_groups(
        &mut self,
        look: &Look<'_>,
        groups: &Groups,
        last: &Tree,
        at_barrier: &mut AtBarrier<'_>,
        report: &mut Report<'_>,
    ) -> Result<(), SyncError> {
        let mut torn = self.torn(look, groups, last)?;
        if !torn.is_empty() {
            // A file that changed just now may change again without a new time.
            std::thread::sleep(FRESH);
            for path in torn {
                self.look_again(look, &path, report)?;
            }
            torn = self.torn(look, groups, last)?;
        }
        for path in torn {
            if self.look_at_barrier(look, &path, at_barrier, report)? {
                continue;
            }
            let dir = self.is_dir(&path);
            self.forget(&path);
            let why = "is being changed, or locked, so all of it waits for the next sync; run it again when the programs that \
                       change it are done, and remove a lock that one of them has left";
            self.troubles.push((path.clone(), why.to_owned()));
            let beside = BESIDE.iter().map(|suffix| [&path[..], suffix].concat());
            self.left_out.extend(beside.filter(|_| !dir));
            self.left_out.push(path);
        }
        Ok(())
    }

    fn is_dir(&self, path: &TreePath) -> bool {
        self.seen.get(path).is_some_and(|seen| seen.kind.is_dir())
    }

    /// Returns the groups that may have changed during the scan.
    fn torn(&self, look: &Look<'_>, groups: &Groups, last: &Tree) -> Result<Vec<TreePath>, SyncError> {
        let busy = Kind::File { content: ContentId([0; 32]), size: 0 };
        let seen = self.seen.iter().map(|(path, seen)| (path, &seen.kind));
        let all: BTreeMap<&TreePath, &Kind> =
            seen.chain(self.busy.iter().map(|path| (path, &busy))).collect();
        let mut torn = Vec::new();
        for path in groups.find(&all.into_iter().collect::<Vec<_>>(), &|_| false).into_keys() {
            let members = self.members(&path);
            if !(self.is_known(look, last, &path, &members) || self.is_settled(look, &path, &members)?) {
                torn.push(path);
            }
        }
        Ok(torn)
    }

    /// Returns the scanned members of a group, itself first.
    fn members(&self, path: &TreePath) -> Vec<TreePath> {
        let below = join(path, b"");
        let inside = self.seen.range(below.clone()..).map(|(other, _)| other);
        let inside = inside.take_while(|other| other.starts_with(&below)).cloned();
        let beside = BESIDE.iter().map(|suffix| [&path[..], suffix].concat());
        let all = [path.clone()].into_iter().chain(beside).filter(|other| self.seen.contains_key(other));
        match self.seen.get(path).is_some_and(|seen| seen.kind.is_dir()) {
            true => [path.clone()].into_iter().chain(inside).collect(),
            false => all.collect(),
        }
    }

    /// Captures a group that changes all the time. Returns whether that succeeded.
    fn look_at_barrier(
        &mut self,
        look: &Look<'_>,
        path: &TreePath,
        at_barrier: &mut AtBarrier<'_>,
        report: &mut Report<'_>,
    ) -> Result<bool, SyncError> {
        let mut in_vain = 0;
        for attempt in 0..ATTEMPTS {
            // Reads as much as possible while programs run; later changes are captured at the barrier.
            let since = time(SystemTime::now() - FRESH);
            self.look_again(look, path, report)?;
            let beside = if self.is_dir(path) { &[][..] } else { &BESIDE };
            let whole = match at_barrier(path, beside, since) {
                Some(rows) => self.take(look, path, rows)?,
                None => {
                    in_vain += 1;
                    std::thread::sleep(2 * FRESH);
                    self.look_again(look, path, report)?;
                    self.is_settled(look, path, &self.members(path))?
                }
            };
            tracing::debug!("{}: attempt {attempt}, whole: {whole}", shown(path));
            if whole || in_vain == ATTEMPTS_IN_VAIN {
                return Ok(whole);
            }
        }
        Ok(false)
    }

    /// Takes the entries captured at the barrier as the result of the scan. Returns false if some of them are unknown,
    /// or if git is writing to the group.
    fn take(&mut self, look: &Look<'_>, path: &TreePath, rows: Vec<Row>) -> Result<bool, SyncError> {
        let git = rows.iter().any(|row| row.path == join(path, b"HEAD"));
        let (mut taken, mut kept) = (Vec::new(), Vec::new());
        let (mut left_out, mut wal_indexes) = (Vec::new(), Vec::new());
        for Row { path, kind, mode, mut print, owner, xattrs } in rows {
            let other = matches!(kind, RowKind::Other);
            if other || is_ignored(look.patterns, &path, matches!(kind, RowKind::Dir)) {
                left_out.push(path);
                continue;
            }
            if git && path.ends_with(LOCK) {
                return Ok(false);
            }
            print.fresh = is_fresh(print.ctime);
            let kind = match kind {
                RowKind::File(Some(file)) if wal_index::is_one(&path, print.size, &file) => {
                    wal_indexes.push(path);
                    continue;
                }
                RowKind::File(Some(file)) => {
                    let content =
                        hash(&file).map_err(|e| SyncError::io("read a copy of", shown(&path), e))?;
                    print.content = Some(content);
                    kept.push((content, file));
                    Kind::File { content, size: print.size }
                }
                RowKind::File(None) if self.wal_indexes.contains(&path) => {
                    wal_indexes.push(path);
                    continue;
                }
                RowKind::File(None) => match (self.seen.get(&path), self.prints.get(&path)) {
                    (Some(seen), Some(known)) if unchanged(known, &print) && !known.fresh => {
                        taken.push((path, seen.clone(), known.clone()));
                        continue;
                    }
                    _ => return Ok(false),
                },
                RowKind::Dir => Kind::Dir,
                RowKind::Symlink(target) => Kind::Symlink(target),
                RowKind::Fifo | RowKind::Other => Kind::Fifo,
            };
            let mtime = if kind.is_dir() { (0, 0) } else { print.mtime };
            let mode = if matches!(kind, Kind::Symlink(_)) { 0o777 } else { mode & 0o1777 };
            let mut values = with_acls(xattrs, look.owners);
            let stat = || look.root.stat(&path).ok().flatten().map(|stat| (stat.st_uid, stat.st_gid));
            // A daemon of an earlier version does not report it.
            let owner = owner.or_else(|| stat().filter(|_| look.owners.sees.owner));
            let owner = owner.and_then(|(uid, gid)| look.owners.owner(uid, gid));
            values.extend(owner.map(|owner| (OWNER.to_vec(), owner)));
            let xattrs = self.interned.share(values.into_iter().collect());
            taken.push((path, Seen { inode: (0, print.ino), kind, mode, mtime, xattrs }, print));
        }
        self.forget(path);
        for (path, seen, print) in taken {
            self.seen.insert(path.clone(), seen);
            self.prints.insert(path, print);
        }
        left_out.into_iter().for_each(|path| self.leave_out(path));
        self.wal_indexes.extend(wal_indexes);
        let room = KEPT_MAX.saturating_sub(self.kept.len());
        self.kept.extend(kept.into_iter().take(room));
        Ok(true)
    }

    fn look_again(
        &mut self,
        look: &Look<'_>,
        path: &TreePath,
        report: &mut Report<'_>,
    ) -> Result<(), SyncError> {
        self.forget(path);
        let mut stats = Stats::default();
        if self.look_at(look, path, &mut stats)? {
            self.walk(look, path.clone(), report)?;
        } else {
            for suffix in BESIDE {
                self.look_at(look, &[&path[..], suffix].concat(), &mut stats)?;
            }
        }
        Ok(())
    }

    /// Discards the scan's result for a group, but keeps its state for the next examination.
    fn forget(&mut self, path: &TreePath) {
        for member in self.members(path) {
            if let (Some(seen), Some(print)) = (self.seen.remove(&member), self.prints.remove(&member)) {
                self.again.insert(member, (seen, print));
            }
        }
        self.left_out.retain(|other| !is_of(path, other));
        self.busy.retain(|other| !is_of(path, other));
        self.wal_indexes.retain(|other| !is_of(path, other));
    }

    fn is_left_out(&self, path: &TreePath) -> bool {
        self.left_out.contains(path) || self.wal_indexes.contains(path)
    }

    /// Returns whether a group is unchanged since the last sync, which captured it as of one moment.
    fn is_known(&self, look: &Look<'_>, last: &Tree, path: &TreePath, members: &[TreePath]) -> bool {
        let same = |member: &TreePath| {
            let (Some(before), Some(now)) = (look.known.get(member), self.prints.get(member)) else {
                return false;
            };
            let dir = self.seen.get(member).is_some_and(|seen| seen.kind.is_dir());
            last.entries.contains_key(member) && (dir || (unchanged(before, now) && !now.fresh))
        };
        let below = join(path, b"");
        let before =
            last.entries.range(below.clone()..).take_while(|(other, _)| other.starts_with(&below)).count();
        let beside = BESIDE.iter().any(|suffix| last.entries.contains_key(&[&path[..], suffix].concat()));
        let dir = self.seen.get(path).is_some_and(|seen| seen.kind.is_dir());
        members.iter().all(same) && (if dir { before + 1 == members.len() } else { beside })
    }

    /// Returns whether nothing has changed since the scan, and no entries were added. A directory that is unchanged
    /// since before it was listed has no other names.
    fn is_settled(&self, look: &Look<'_>, first: &TreePath, members: &[TreePath]) -> Result<bool, SyncError> {
        if self.busy.iter().any(|busy| is_of(first, busy)) {
            return Ok(false);
        }
        let git = self.seen.contains_key(&join(first, b"HEAD"));
        let mut stats = Stats::default();
        for path in members {
            let stat = stats.stat(look.root, path).map_err(|e| error::on("look at", path, e))?;
            let (Some(stat), Some(known)) = (stat, self.prints.get(path)) else { return Ok(false) };
            // A lock of git: git is writing.
            if known.fresh || !unchanged(known, &print(&stat, None)) || (git && path.ends_with(LOCK)) {
                return Ok(false);
            }
        }
        // Files of a database that were created meanwhile.
        let dir = self.seen.get(first).is_some_and(|seen| seen.kind.is_dir());
        for suffix in BESIDE.iter().filter(|_| !dir) {
            let path = [&first[..], suffix].concat();
            let there = look.root.stat(&path).map_err(|e| error::on("look at", &path, e))?.is_some();
            if there && !members.contains(&path) && !self.is_left_out(&path) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn hash(mut file: &File) -> std::io::Result<ContentId> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    file.rewind()?;
    Ok(ContentId(*hasher.finalize().as_bytes()))
}
