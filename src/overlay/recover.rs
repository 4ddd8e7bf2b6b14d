//! State of a file, determined from the disk: the record in its xattr and the bytes in it.
//!
//! | record | file | it is | action |
//! | --- | --- | --- | --- |
//! | none | any | plain | |
//! | plain | any | plain | |
//! | settled | empty | stub | |
//! | settled | not empty | plain: changed below the mount | drop the record, log |
//! | unsettled | empty | stub | settle |
//! | unsettled | not empty, whole | plain: the conversion had not come to emptying it | drop the record |
//! | unsettled | not empty, cut short, mtime as recorded | stub | empty, settle |
//! | unsettled | not empty, otherwise | plain: changed below the mount | drop the record, log |
//! | hydrating | any | stub: the bytes were being written back, or a hybrid file emptied | empty, settle |
//! | hybrid | any, its list whole | hybrid | if the list says *unsettled*: base bytes out of the file, its mtime as recorded |
//! | hybrid | any, its list missing or not its own | unknown: reading it is an error | log |
//! | newer version | any | unknown: reading it is an error | log |
//! | not ours | empty | unknown: reading it is an error | log |
//! | not ours | not empty | plain | log |
//!
//! "Cut short" happens if the power fails between the record and the end of a delayed write: the recipe is durable by
//! then and is the whole content. The state is determined when the daemon first meets a file, so recovery takes no time
//! at mount and comes before any other operation on the file.

use super::Overlay;
use super::hybrid::Hybrid;
use super::inode::{Content, Inode, State as InodeState};
use crate::backing;
use crate::backing::stub::{State, Stub, StubError, XATTR};
use crate::backing::types::{Kind, SetTime};
use crate::contents::error::Result;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::sync::{Arc, MutexGuard};

/// Action that recovery takes for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// None: the file has this content.
    Keep(Content),
    /// The file is plain: drop the record; the text is the reason if that is worth a log line.
    DropRecord(Option<&'static str>),
    /// It is a stub: write the settled record.
    Settle(Stub),
    /// It is a stub: empty the file, then write the settled record.
    Empty(Stub),
    /// The file is hybrid, if the list with this number is valid.
    Hybrid(Stub, u64),
}

/// The content of a file, and the extents of a hybrid one.
pub(super) type Found = (Content, Option<Arc<Hybrid>>);

fn decide(record: std::result::Result<Option<Stub>, StubError>, stat: &Stat) -> Action {
    let empty = stat.st_size == 0;
    let record = match record {
        Ok(None) => return Action::Keep(Content::Plain(None)),
        Ok(Some(record)) => record,
        Err(StubError::Newer) => {
            return Action::Keep(Content::Unknown("it was written by a newer version of dedupfs"));
        }
        Err(_) if empty => {
            return Action::Keep(Content::Unknown("it was altered, or belongs to another store"));
        }
        Err(_) => return Action::DropRecord(Some("its record is not of this store")),
    };
    match record.state {
        State::Plain => Action::Keep(Content::Plain(Some(record))),
        State::Settled if empty => Action::Keep(Content::Stub(record)),
        State::Settled => Action::DropRecord(Some("the stub was written to behind the overlay's back")),
        State::Unsettled if empty => Action::Settle(record),
        State::Unsettled if stat.st_size as u64 == record.size => Action::DropRecord(None),
        State::Unsettled if backing::mtime(stat) == record.mtime && (stat.st_size as u64) < record.size => {
            Action::Empty(record)
        }
        State::Unsettled => Action::DropRecord(Some("it was written to behind the overlay's back")),
        State::Hydrating => Action::Empty(record),
        State::Hybrid { list } => Action::Hybrid(record, list),
    }
}

fn has_record(inode: &Inode) -> Result<bool> {
    let names = backing::list_xattrs(&inode.path_fd()?)?;
    Ok(names.split(|&byte| byte == 0).any(|name| name == XATTR.as_bytes()))
}

impl Overlay {
    /// Locks a regular file's state with its content known.
    pub(super) fn lock_loaded<'a>(&self, inode: &'a Inode) -> Result<MutexGuard<'a, InodeState>> {
        let mut state = inode.lock();
        if state.content.is_none() {
            let (content, hybrid) = self.load(inode)?;
            (state.content, state.hybrid) = (Some(content), hybrid);
        }
        Ok(state)
    }

    /// Returns the content of a regular file without changing anything: does not carry out the action of recovery.
    pub(super) fn look_at(&self, inode: &Inode) -> Result<Content> {
        let state = inode.lock();
        match state.content {
            Some(content) => Ok(content),
            None => Ok(self.meaning(inode, self.found(inode)?)?.0),
        }
    }

    /// Returns the content that a file has if the action is not carried out.
    fn meaning(&self, inode: &Inode, action: Action) -> Result<Found> {
        Ok(match action {
            Action::Keep(content) => (content, None),
            Action::DropRecord(_) => (Content::Plain(None), None),
            Action::Settle(stub) | Action::Empty(stub) => (Content::Stub(stub), None),
            Action::Hybrid(stub, list) => match self.load_hybrid(inode, &stub, list)? {
                Ok(hybrid) => (Content::Hybrid(stub), Some(hybrid)),
                Err(reason) => (Content::Unknown(reason), None),
            },
        })
    }

    pub(super) fn load(&self, inode: &Inode) -> Result<Found> {
        let action = self.found(inode)?;
        let found = match (self.read_only, action) {
            (true, _) | (_, Action::Keep(_) | Action::Hybrid(..)) => self.meaning(inode, action)?,
            (false, action) => (self.carry_out(inode, action)?, None),
        };
        if let (Content::Hybrid(stub), Some(hybrid)) = &found
            && !self.read_only
        {
            self.settle_again(inode, stub, hybrid);
        }
        if let Content::Unknown(reason) = found.0 {
            tracing::error!("{}: its content is not known: {reason}", self.name_of(inode));
        }
        Ok(found)
    }

    /// Determines the action for a file from the disk.
    fn found(&self, inode: &Inode) -> Result<Action> {
        if inode.kind != Kind::File || !inode.on_root_fs {
            return Ok(Action::Keep(Content::Plain(None)));
        }
        let stat = rustix::fs::fstat(&inode.path_fd()?)?;
        let record = match backing::get_xattr(&inode.path_fd()?, OsStr::new(XATTR)) {
            Ok(value) => value.map(|value| Stub::decode(&value, &self.key)).transpose(),
            Err(Errno::NOTSUP) => Ok(None),
            Err(Errno::ACCESS) => {
                // A file of our own may be a stub; another user's file cannot be one that we made.
                let ours = stat.st_uid == rustix::process::geteuid().as_raw();
                // The names of xattrs can be read in any case.
                let content = if ours && stat.st_size == 0 && has_record(inode)? {
                    Content::Unknown("its xattr may not be read: give its owner read permission")
                } else {
                    Content::Plain(None)
                };
                return Ok(Action::Keep(content));
            }
            Err(e) => return Err(e.into()),
        };
        Ok(decide(record, &stat))
    }

    fn carry_out(&self, inode: &Inode, action: Action) -> Result<Content> {
        match action {
            Action::Keep(content) => Ok(content),
            Action::Hybrid(stub, _) => Ok(Content::Hybrid(stub)),
            Action::DropRecord(reason) => {
                if let Some(reason) = reason {
                    tracing::warn!("{}: taken as a plain file: {reason}", self.name_of(inode));
                }
                rustix::fs::removexattr(backing::proc_path(&inode.path_fd()?), XATTR)?;
                Ok(Content::Plain(None))
            }
            Action::Empty(stub) => {
                if !self.contents.store.knows_recipe(&stub.recipe)? {
                    let name = self.name_of(inode);
                    tracing::error!(
                        "{name}: its content is not in the store, so its file stays as it is; run `dedupctl check`"
                    );
                    return Ok(Content::Stub(stub));
                }
                let file = backing::open_io(&inode.path_fd()?, rustix::fs::OFlags::RDWR)?;
                // Logged; it stays a stub, and the file stays as it is.
                let Ok(inside) = self.not_outside(inode, &file) else { return Ok(Content::Stub(stub)) };
                tracing::info!("{}: an interrupted conversion is taken back", self.name_of(inode));
                inside.empty()?;
                self.settle_record(inode, stub)
            }
            Action::Settle(stub) => self.settle_record(inode, stub),
        }
    }

    fn settle_record(&self, inode: &Inode, stub: Stub) -> Result<Content> {
        backing::set_times(&inode.path_fd()?, None, Some(SetTime::At(stub.mtime)))?;
        let settled = stub.stamped(State::Settled);
        self.write_record(inode, &settled)?;
        Ok(Content::Stub(settled))
    }

    /// Writes a file's record.
    pub(super) fn write_record(&self, inode: &Inode, record: &Stub) -> rustix::io::Result<()> {
        let value = record.encode(&self.key);
        rustix::fs::setxattr(
            backing::proc_path(&inode.path_fd()?),
            XATTR,
            &value,
            rustix::fs::XattrFlags::empty(),
        )
    }

    /// To be called before anything that moves a file's ctime: gives up a conversion under way, and makes sure that
    /// the ctime saved by a recent one does not hide the change.
    pub(super) fn before_change(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        state.interrupt_conversion();
        let Some(Content::Stub(record) | Content::Plain(Some(record))) = &mut state.content else {
            return Ok(());
        };
        if record.covers(crate::backing::stub::Time::now().millis()) {
            let cleared = Stub { ctime: None, ..*record };
            self.write_record(inode, &cleared)?;
            *record = cleared;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::stub::Time;
    use crate::id::RecipeId;

    const HYBRID: State = State::Hybrid { list: 9 };
    const MTIME: Time = Time { sec: 100, nsec: 5 };

    fn record(state: State) -> Stub {
        let recipe = RecipeId([1; 16]);
        Stub { state, size: 10, mtime: MTIME, ctime: None, stamp_ms: 0, blocks: 8, recipe }
    }

    fn stat(size: i64, mtime: Time) -> Stat {
        let mut stat = rustix::fs::stat("/").unwrap();
        stat.st_size = size;
        stat.st_mtime = mtime.sec;
        stat.st_mtime_nsec = mtime.nsec.into();
        stat
    }

    #[test]
    fn the_table() {
        let later = Time { sec: 101, nsec: 0 };
        let plain = Action::Keep(Content::Plain(None));
        let dropped = |action| matches!(action, Action::DropRecord(Some(_)));
        assert_eq!(decide(Ok(None), &stat(3, later)), plain);
        for (state, size, mtime, expected) in [
            (State::Plain, 10, later, Some(Action::Keep(Content::Plain(Some(record(State::Plain)))))),
            (State::Settled, 0, MTIME, Some(Action::Keep(Content::Stub(record(State::Settled))))),
            (State::Settled, 4, MTIME, None),
            (State::Unsettled, 0, later, Some(Action::Settle(record(State::Unsettled)))),
            (State::Unsettled, 10, MTIME, Some(Action::DropRecord(None))),
            (State::Unsettled, 4, MTIME, Some(Action::Empty(record(State::Unsettled)))),
            (State::Unsettled, 4, later, None),
            (State::Unsettled, 40, MTIME, None),
            (State::Hydrating, 0, later, Some(Action::Empty(record(State::Hydrating)))),
            (State::Hydrating, 10, MTIME, Some(Action::Empty(record(State::Hydrating)))),
            (HYBRID, 10, later, Some(Action::Hybrid(record(HYBRID), 9))),
            (HYBRID, 0, MTIME, Some(Action::Hybrid(record(HYBRID), 9))),
        ] {
            let action = decide(Ok(Some(record(state))), &stat(size, mtime));
            match expected {
                Some(expected) => assert_eq!(action, expected),
                None => assert!(dropped(action), "{state:?} {size}"),
            }
        }
        assert!(matches!(decide(Err(StubError::Guard), &stat(0, later)), Action::Keep(Content::Unknown(_))));
        assert!(dropped(decide(Err(StubError::Guard), &stat(9, later))));
    }
}
