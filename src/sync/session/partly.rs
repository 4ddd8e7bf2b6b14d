//! A side that could take only a part of the agreed tree: the rest comes with a later sync. The part is not a separate
//! change. So both sides must record that they met there, and the other side's state descends from it from then on.

use super::super::diff;
use super::super::error::SyncError;
use super::super::proto::{Done, Message, Took};
use super::super::tree::TreePath;
use super::super::version::Snapshot;
use super::{Replica, Session};
use std::collections::BTreeSet;

/// Maximum bytes of a difference that is sent.
const DIFF_BYTES_MAX: usize = 1 << 20;
/// Maximum number of paths with troubles that one side sends.
const TROUBLES_MAX: usize = 1000;

fn on_the_other_side(why: &str) -> String {
    format!("on the other side: {why}")
}

impl Session {
    /// Sends the paths that this side could not read or store, since the calling side has a user who reads it. `end`:
    /// nothing more is done to its tree.
    pub(super) fn tell_troubles(&mut self, end: bool, replica: &mut dyn Replica) {
        let mut troubles = replica.take_troubles(end);
        troubles.truncate(TROUBLES_MAX);
        match self.calls {
            true => self.skip(troubles),
            false if troubles.is_empty() => {}
            false => self.out.push_back(Message::Troubles(troubles)),
        }
    }

    pub(super) fn hear_troubles(&mut self, troubles: Vec<(TreePath, String)>) {
        let theirs = troubles.into_iter().map(|(path, why)| (path, on_the_other_side(&why)));
        self.skip(theirs.take(TROUBLES_MAX).collect());
    }

    pub(super) fn hear_skipped(&mut self, theirs: Done) {
        let theirs = theirs.skipped.into_iter().map(|(path, why)| (path, on_the_other_side(&why)));
        self.skip(theirs.collect());
    }

    /// Adds each path once for each reason.
    pub(super) fn skip(&mut self, paths: Vec<(TreePath, String)>) {
        for skipped in paths {
            if !self.outcome.skipped.contains(&skipped) {
                self.outcome.skipped.push(skipped);
            }
        }
    }

    /// Sends the part of the agreed tree that this side has taken, if it has not taken all and no retry helps.
    pub(super) fn tell_partly(&mut self, done: &Done, replica: &dyn Replica) -> Result<(), SyncError> {
        let (agreed, now) = (self.snapshot.as_ref().expect("merged before").id(), replica.head());
        if done.skipped.is_empty() || now == self.head || now == agreed {
            return Ok(());
        }
        let (Some(snapshot), Some(tree)) = (replica.dag().get(now).cloned(), replica.tree(now)?) else {
            return Ok(());
        };
        let tree = diff::encode(&self.merged.tree, &tree, snapshot.seen.as_ref(), &BTreeSet::new())?;
        if tree.len() <= DIFF_BYTES_MAX {
            self.out.push_back(Message::Took(Took { snapshot, tree }));
        }
        Ok(())
    }

    /// Takes the report that the peer has taken a part of this side's tree. If the peer's tree has nothing else, this
    /// is where both met.
    pub(super) fn meet_partly(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        let Some(Took { snapshot, tree }) = self.took.take() else { return Ok(()) };
        let (head, theirs) = (replica.head(), self.theirs.as_ref().expect("came before").head);
        let by_peer = snapshot.seen.as_ref().map(|(device, _)| device) == self.peer.as_ref();
        if snapshot.parents != [theirs] || !by_peer {
            return Ok(());
        }
        let agreed = self.snapshot.as_ref().expect("merged before").id();
        let (base, mine) = match () {
            () if head == agreed => (self.their_tree.clone(), &self.merged.tree),
            () if head == self.head => {
                let common = self.dag.common(head, theirs);
                (self.base(replica, &self.dag, &common, 0)?.unwrap_or_default(), &self.mine)
            }
            () => return Ok(()),
        };
        let tree = diff::decode(&self.merged.tree, &tree)?;
        if tree.root() != snapshot.root {
            return Err(SyncError::peer("announced another tree than it sent"));
        }
        tree.check()?;
        let merged = self.groups.merge(&base, mine, &tree);
        if merged.tree == *mine && merged.conflicts.is_empty() {
            let both = Snapshot::merged(mine.root(), head, snapshot.id());
            replica.meet((&snapshot, &tree), &both)?;
        }
        Ok(())
    }
}
