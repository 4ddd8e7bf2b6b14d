//! Effects of a rename on policies. A renamed file itself is visited at once; files below a renamed directory
//! are visited in the background, some time after the rename was answered.
//!
//! Bounded: only a limited number of directories is remembered; beyond that, all files are visited. Files are
//! queued as in a scan, a few thousand at a time. After a kill, catch-up visits the rest.

use crate::backing;
use crate::catalog::NAMED_DIRS_MAX;
use crate::contents::Result;
use crate::contents::throttle::Priority;
use crate::maintain::Maintenance;
use crate::maintain::renamed_dirs::{Dirs, Pass};
use crate::maintain::scan::RESTING_FACTOR;
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

/// Files in the queue that one pass over it examines.
const QUEUED_MAX: usize = 4096;
/// Between two looks whether another thread has ended.
const WAIT: Duration = Duration::from_millis(10);

impl Maintenance {
    /// Examines the files below renamed directories; waits if another thread does. Ends early, and returns false, if `keep_going`
    /// returned false; the next pass examines the directories that are left.
    pub(crate) fn look_below_renamed(&self, keep_going: &mut dyn FnMut() -> bool) -> bool {
        let pass = loop {
            match self.renamed.pass() {
                Some(pass) => break pass,
                None if keep_going() => std::thread::sleep(WAIT),
                None => return false,
            }
        };
        let Dirs { few, all } = self.renamed.take();
        let mut goes_on = true;
        let mut look_below = |path: &Path| {
            let mut keep_going = || {
                goes_on = goes_on && keep_going();
                goes_on
            };
            if let Err(e) = self.look_below(path, &pass, &mut keep_going) {
                tracing::warn!("{}: files below keep the policy of their old name: {e}", path.display());
            }
            goes_on
        };
        if all && !look_below(Path::new("")) {
            self.renamed.add_all();
        }
        for dir in few.into_values() {
            // A removed directory has no path.
            let done = all || self.tree.path_of(&dir).is_none_or(|path| look_below(&path));
            match done {
                true => self.tree.inodes.release(dir),
                false => self.renamed.add(dir),
            }
        }
        goes_on
    }

    fn look_below(&self, path: &Path, pass: &Pass<'_>, keep_going: &mut dyn FnMut() -> bool) -> Result<()> {
        let (mut priority, mut queued) = (Priority::default(), HashSet::new());
        let mut names = self.catalog.finder(&self.tree.backing);
        self.tree.walk(path, &mut |path, found| {
            priority.set_low(self.indexes.throttle.is_background());
            let Ok(inode) = found else { return };
            if !keep_going() || backing::is_staged(path) {
                return self.tree.inodes.release(inode);
            }
            if inode.lock().queued {
                queued.insert(inode.node);
            } else {
                names.shed(NAMED_DIRS_MAX);
                let mut finder = self.catalog.finder(&self.tree.backing);
                match self.scan_file(&inode, &mut finder, &mut names) {
                    Ok((_, true)) => pass.queued(),
                    Ok((_, false)) => {}
                    Err(e) => tracing::warn!("{}: keeps the policy of its old name: {e}", path.display()),
                }
            }
            self.tree.inodes.release(inode);
            if queued.len() == QUEUED_MAX {
                self.converter.queue.look_again(&std::mem::take(&mut queued));
            }
            self.wait_for_room(RESTING_FACTOR);
        })?;
        self.converter.queue.look_again(&queued);
        Ok(())
    }
}
