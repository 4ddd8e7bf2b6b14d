//! Steps of a plan, done to the directory.

use super::super::adopt::{Now, Skipped, Steps};
use super::super::error::{self, SyncError};
use super::super::execute::Executor;
use super::super::group::Groups;
use super::super::ignored::{self, Ignored};
use super::super::merge::Conflict;
use super::super::plan::Op;
use super::super::presence::{self, Sources};
use super::super::replica::Replica;
use super::super::tree::{Tree, shown};
use super::super::{scan, staging};
use super::Local;
use rustix::fs::{Mode, OFlags};
use std::fs::File;

/// Up to this many files and directories are synced one by one: a sync of the filesystem also waits for what others wrote.
const FEW: usize = 16;

impl Local<'_> {
    /// Makes staged contents durable, with the metadata of the files that they become.
    pub(super) fn make_contents_durable(&mut self, ops: &[Op]) -> Result<(), SyncError> {
        let staged = ops.iter().map(|op| op.staged().len()).sum::<usize>();
        if self.staging.unsynced() == 0 {
            return Ok(());
        }
        let together = staged.max(self.staging.unsynced()) > FEW && self.past.is_some();
        let mut executor = self.executor()?;
        executor.prepare_all(ops, !together)?;
        let waiting = std::mem::take(&mut executor.waiting);
        drop(executor);
        self.note_waiting(waiting)?;
        if together && self.sync_all()? {
            self.staging.are_synced();
            return Ok(());
        }
        self.staging.sync_each(&self.root)
    }

    /// Returns an executor of steps in the directory.
    pub(super) fn executor(&mut self) -> Result<Executor<'_>, SyncError> {
        let (cache, absent) = (&mut self.memory.cache, &self.absent);
        let mut executor = Executor::new(&self.root, &mut self.staging, cache, absent, &self.rules.owners)?;
        executor.selection = self.rules.selection.clone();
        Ok(executor)
    }

    /// Syncs the filesystem; returns false if that is not possible.
    fn sync_all(&mut self) -> Result<bool, SyncError> {
        match &mut self.past {
            Some(past) => past.sync_all().map(|()| true),
            None => Ok(false),
        }
    }
}

impl Steps for Local<'_> {
    fn run(&mut self, ops: &[Op]) -> Result<Vec<Skipped>, SyncError> {
        self.make_contents_durable(ops)?;
        let mut executor = self.executor()?;
        let done = executor.run(ops);
        let (unfit, kept_dirs) = (std::mem::take(&mut executor.unfit), executor.kept_dirs);
        let (touched, waiting) =
            (std::mem::take(&mut executor.touched), std::mem::take(&mut executor.waiting));
        drop(executor);
        self.touched.extend(touched.iter().cloned());
        if touched.len() > FEW && self.sync_all()? {
            tracing::debug!("{} directories were synced together", touched.len());
        } else {
            for dir in touched {
                self.root.sync_dir(&dir).map_err(|e| error::on("sync", &dir, e))?;
            }
        }
        if kept_dirs {
            // Only a walk finds them.
            self.memory.save_since(None)?;
        }
        self.note_unfit(unfit)?;
        self.note_waiting(waiting)?;
        done
    }

    fn groups(&self) -> Groups {
        self.rules.groups.clone()
    }

    fn ignored(&mut self, agreed: &Tree) -> Result<Ignored, SyncError> {
        if let Some(patterns) = &self.left_out {
            return Ok(Ignored::of(patterns));
        }
        let entry = agreed.entries.get(scan::IGNORE.as_bytes());
        let Some(content) = entry.and_then(|entry| entry.kind.content()) else { return Ok(Ignored::of("")) };
        // After an interrupted sync it is staged, or in its place already.
        let staged = (self.staging.place(&self.root), staging::whole(content));
        for (root, path) in [staged, (&self.root, scan::IGNORE.as_bytes().to_vec())] {
            if staging::hash(root, &path)? == Some(content)
                && let Ok(fd) = root.open_at(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            {
                return Ok(Ignored::of(ignored::tellable(&scan::pattern_text_of(File::from(fd))?)));
            }
        }
        Err(SyncError::Changed(format!("{}: the agreed version is missing", scan::IGNORE)))
    }

    fn keep_twice(&mut self, conflicts: &[Conflict]) {
        for Conflict { path, copy, .. } in conflicts {
            let why = format!(
                "was changed while it was synced: both versions are kept, the other is {}",
                shown(copy)
            );
            self.troubles.insert(path.clone(), why);
        }
    }

    fn look_again(&mut self, before: &Tree, agreed: &Tree) -> Result<Now, SyncError> {
        let tree = self.look(before, Some(agreed))?;
        Ok(Now { tree, here: self.here.clone() })
    }

    fn goal(&self, now: &Now, target: &Tree, agreed: &Tree) -> Result<Tree, SyncError> {
        let Some(here) = &now.here else { return Ok(target.clone()) };
        let agreed = agreed.contents();
        let sources = Sources {
            // Steps whose contents do not arrive are skipped, and named to the user.
            can_come: &|content| self.is_staged(content) || self.absent.contains_key(&content),
            is_elsewhere: &|content| {
                agreed.contains_key(&content) && !self.memory.part.kept.contains(&content)
            },
            is_used: &|path| self.is_used(path),
        };
        Ok(presence::goal(&self.rules.selection, &self.rules.groups, here, target, &sources).tree)
    }

    fn stage_for(&mut self, ops: &[Op]) -> Result<(), SyncError> {
        for op in ops {
            for (path, entry, _) in op.staged() {
                if let Some(content) = entry.kind.content()
                    && !self.absent.contains_key(&content)
                    && !self.stage(content)?
                {
                    let message = format!("{}: its content is not here any more", shown(&path));
                    return Err(SyncError::Changed(message));
                }
            }
        }
        Ok(())
    }
}
