//! Groups as of one moment: each is read, looked at again, and read again if anything in it has changed. A database that changes
//! all the time is read while programs are held up, and what changed meanwhile is kept: when it is sent it has changed again.
//!
//! Nothing is believed of the holding up: what is not seen to have stood still has not.

use super::super::beneath::{self, Stats};
use super::super::content::nameless;
use super::super::error::SyncError;
use super::super::group::{BESIDE, Groups};
use super::super::tree::{ContentId, Kind, Tree, TreePath, join, shown};
use super::{FRESH, Look, Report, Scan, print, unchanged};
use rustix::fs::{Mode, OFlags};
use std::any::Any;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Seek;

/// So often a group is looked at that changes meanwhile,
const ATTEMPTS_FREE: u32 = 2;
/// and then so often while programs that write are held up, if it is a database.
const ATTEMPTS_HELD: u32 = 20;
/// How names of git's locks end.
const LOCK: &[u8] = b".lock";
/// At most so many contents are kept of what was in groups at that moment: each is an open file.
const KEPT_MAX: usize = 256;

/// What helps to see groups that are never at rest.
pub trait Rest {
    /// As [`crate::sync::past::Past::hold`].
    fn hold(&mut self) -> Option<Box<dyn Any>>;
    /// An empty file without a name.
    fn room(&self) -> Result<File, SyncError>;
}

/// Nobody can be held up.
impl Rest for () {
    fn hold(&mut self) -> Option<Box<dyn Any>> {
        None
    }

    fn room(&self) -> Result<File, SyncError> {
        nameless()
    }
}

/// Whether `other` belongs to the group at `path`.
fn is_of(path: &[u8], other: &[u8]) -> bool {
    let rest = other.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || BESIDE.contains(&rest))
}

impl Scan {
    /// Sees to it that each group is as it was at one moment: between two looks at which nothing in it had changed. What changes
    /// all the time, and is written by what cannot be held up, waits for the next sync.
    pub(super) fn settle_groups(
        &mut self,
        look: &Look<'_>,
        groups: &Groups,
        last: &Tree,
        rest: &mut dyn Rest,
        report: &mut Report<'_>,
    ) -> Result<(), SyncError> {
        let mut torn = self.torn(look, groups, last, rest)?;
        for _ in 0..ATTEMPTS_FREE {
            if torn.is_empty() {
                return Ok(());
            }
            // What was changed just now may be changed again without showing it.
            std::thread::sleep(FRESH);
            for path in torn {
                self.look_again(look, &path, report)?;
            }
            torn = self.torn(look, groups, last, rest)?;
        }
        for path in torn {
            if self.look_held(look, &path, rest, report)? {
                continue;
            }
            let dir = self.seen.get(&path).is_some_and(|seen| seen.kind.is_dir());
            self.forget(&path);
            let why = "is being changed, or locked, so all of it waits for the next sync";
            self.notes.push(format!("{}: {why}", shown(&path)));
            let beside = BESIDE.iter().map(|suffix| [&path[..], suffix].concat());
            self.left_out.extend(beside.filter(|_| !dir));
            self.left_out.push(path);
        }
        Ok(())
    }

    /// Groups that are not seen to have been at rest.
    fn torn(
        &mut self,
        look: &Look<'_>,
        groups: &Groups,
        last: &Tree,
        rest: &dyn Rest,
    ) -> Result<Vec<TreePath>, SyncError> {
        let busy = Kind::File { content: ContentId([0; 32]), size: 0 };
        let seen = self.seen.iter().map(|(path, seen)| (path, &seen.kind));
        let all: BTreeMap<&TreePath, &Kind> =
            seen.chain(self.busy.iter().map(|path| (path, &busy))).collect();
        let mut torn = Vec::new();
        for path in groups.find(&all.into_iter().collect::<Vec<_>>(), &|_| false).into_keys() {
            let members = self.members(&path);
            let known = self.is_known(look, last, &path, &members);
            if !(known || self.is_settled(look, &path, &members)? && self.keep(look, &members, rest)?) {
                torn.push(path);
            }
        }
        Ok(torn)
    }

    /// What of a group was seen, itself first.
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

    /// Looks at a group while nobody changes contents; whether it was at rest. Not so at a directory: whoever made a file in it would
    /// be held up by more than this, since the kernel lets nobody look for names in it meanwhile.
    fn look_held(
        &mut self,
        look: &Look<'_>,
        path: &TreePath,
        rest: &mut dyn Rest,
        report: &mut Report<'_>,
    ) -> Result<bool, SyncError> {
        let dir = self.seen.get(path).is_some_and(|seen| seen.kind.is_dir());
        for attempt in 0..ATTEMPTS_HELD {
            // While programs go on, as much as can be.
            self.look_again(look, path, report)?;
            let _held = if dir { None } else { rest.hold() };
            // Who is at work comes to where it waits, and what it did is not fresh any more.
            std::thread::sleep(2 * FRESH);
            self.look_again(look, path, report)?;
            let members = self.members(path);
            let settled = self.is_settled(look, path, &members)? && self.keep(look, &members, rest)?;
            tracing::debug!("{}: attempt {attempt}, at rest: {settled}", shown(path));
            if settled {
                return Ok(true);
            }
        }
        Ok(false)
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
        let now = self.prints.range(path.clone()..).take_while(|(other, _)| other.starts_with(path));
        let before = |other: &TreePath| self.again.get(other).and_then(|(_, print)| print.content);
        let moved = now.filter(|(other, print)| before(other) != print.content);
        self.moving.extend(moved.map(|(other, _)| other.clone()));
        Ok(())
    }

    /// What is known of a group is not so any more; it is remembered for the next look.
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

    /// Keeps what is in those members that changed while they were looked at: they may have changed again when they are sent.
    /// Whether that is what was looked at.
    fn keep(&mut self, look: &Look<'_>, members: &[TreePath], rest: &dyn Rest) -> Result<bool, SyncError> {
        for path in members.iter().filter(|path| self.moving.contains(*path)) {
            let Some(content) = self.prints.get(path).and_then(|print| print.content) else { continue };
            if self.kept.contains_key(&content) || self.kept.len() >= KEPT_MAX {
                continue;
            }
            let Ok(fd) = look.root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) else {
                return Ok(false);
            };
            let (mut room, mut hasher) = (rest.room()?, blake3::Hasher::new());
            let copied = std::io::copy(&mut File::from(fd), &mut room);
            let read =
                copied.and_then(|_| room.rewind()).and_then(|()| hasher.update_reader(&mut room).map(drop));
            read.map_err(|e| SyncError::io("keep", shown(path), e))?;
            if *hasher.finalize().as_bytes() != content.0 {
                return Ok(false);
            }
            self.kept.insert(content, room);
        }
        Ok(true)
    }

    /// Whether a group is as it was the last time: then that was at one moment.
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

    /// Whether nothing has changed since it was looked at, and what is there now is all: a directory that has not changed
    /// since before it was listed has no other names.
    fn is_settled(&self, look: &Look<'_>, first: &TreePath, members: &[TreePath]) -> Result<bool, SyncError> {
        if self.busy.iter().any(|busy| is_of(first, busy)) {
            return Ok(false);
        }
        let git = self.seen.contains_key(&join(first, b"HEAD"));
        let mut stats = Stats::default();
        for path in members {
            let stat = stats.stat(look.root, path).map_err(|e| beneath::error("look at", path, e))?;
            let (Some(stat), Some(known)) = (stat, self.prints.get(path)) else { return Ok(false) };
            // A lock of git: it is at work.
            if known.fresh || !unchanged(known, &print(&stat, None)) || (git && path.ends_with(LOCK)) {
                return Ok(false);
            }
        }
        // Those of a database that came meanwhile.
        let dir = self.seen.get(first).is_some_and(|seen| seen.kind.is_dir());
        for suffix in BESIDE.iter().filter(|_| !dir) {
            let path = [&first[..], suffix].concat();
            let there = look.root.stat(&path).map_err(|e| beneath::error("look at", &path, e))?.is_some();
            if there && !members.contains(&path) && !self.is_left_out(&path) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
