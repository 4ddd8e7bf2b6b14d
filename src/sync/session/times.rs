//! Times of directories. They are in no tree, since every change of an entry alters them, and never cause a sync. A side
//! sends those of directories in which the other side changes entries, and the other side sets them after its last step.

use super::super::error::SyncError;
use super::super::proto::Message;
use super::super::replica::Replica;
use super::super::tree::{Entry, Ident, Time, TreePath, split};
use super::Session;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of times in one frame.
const TIMES_IN_FRAME: usize = 64 << 10;

/// Adds a path with the directories above: a group is replaced in the directory that it is in.
fn add<'a>(mut path: &'a [u8], changed: &mut BTreeSet<&'a [u8]>) {
    while !path.is_empty() && changed.insert(path) {
        path = split(path).0;
    }
}

impl Session {
    /// Sends the times of directories, by their numbers in the agreed tree, in which the peer's tree and that tree differ.
    pub(super) fn tell_times(&mut self, replica: &dyn Replica) {
        let (agreed, theirs) = (&self.merged.tree.entries, &self.their_tree.entries);
        let mut changed: BTreeSet<&[u8]> = BTreeSet::new();
        for (path, _) in agreed.iter().filter(|(path, entry)| theirs.get(*path) != Some(entry)) {
            add(path, &mut changed);
        }
        theirs
            .keys()
            .filter(|path| !agreed.contains_key(*path))
            .for_each(|path| add(split(path).0, &mut changed));
        if changed.is_empty() {
            return;
        }
        let mine = self.mine.entries.iter().filter(|(_, entry)| entry.kind.is_dir());
        let mine: BTreeMap<Ident, &TreePath> = mine.map(|(path, entry)| (entry.ident, path)).collect();
        let time = |(number, (path, entry)): (u32, (&TreePath, &Entry))| {
            let is_one = entry.kind.is_dir() && changed.contains(&path[..]);
            let own = mine.get(&entry.ident).filter(|_| is_one)?;
            Some((number, replica.directory_time(own)?))
        };
        let times: Vec<(u32, Time)> = (0..).zip(agreed).filter_map(time).collect();
        self.out.extend(times.chunks(TIMES_IN_FRAME).map(|some| Message::Times(some.to_vec())));
    }

    pub(super) fn take_times(&mut self, times: Vec<(u32, Time)>) -> Result<(), SyncError> {
        self.their_times.extend(times);
        let most = self.mine.entries.len() + self.their_tree.entries.len();
        let good = |(_, time): &(u32, Time)| time.1 < 1_000_000_000;
        match self.their_times.len() <= most && self.their_times.iter().all(good) {
            true => Ok(()),
            false => Err(SyncError::peer("sent times of directories that cannot be")),
        }
    }

    /// Returns the times that the peer sent, by path.
    pub(super) fn directory_times(&mut self) -> BTreeMap<TreePath, Time> {
        let times: BTreeMap<u32, Time> = std::mem::take(&mut self.their_times).into_iter().collect();
        if times.is_empty() {
            return BTreeMap::new();
        }
        let dirs = (0..).zip(&*self.merged.tree.entries).filter(|(_, (_, entry))| entry.kind.is_dir());
        dirs.filter_map(|(number, (path, _))| Some((path.clone(), *times.get(&number)?))).collect()
    }
}
