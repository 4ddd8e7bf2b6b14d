//! Both sides have the same snapshot: the short way without the tree, which may be large. The messages are the same.

use super::super::diff;
use super::super::error::SyncError;
use super::super::merge::Merged;
use super::super::proto::{Message, TreePart};
use super::super::replica::{Replica, remembered};
use super::super::tree::Tree;
use super::super::version::SnapshotId;
use super::leaving::Leaving;
use super::{Session, State};
use std::collections::BTreeSet;

/// The encoding of any tree against itself.
fn no_difference() -> Result<Vec<u8>, SyncError> {
    diff::encode(&Tree::default(), &Tree::default(), None, &BTreeSet::new())
}

impl Session {
    /// Reads this side's tree. From here on there may be something to do.
    pub(super) fn load_tree(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        self.nothing = false;
        replica.load()?;
        self.mine = remembered(replica, self.head)?;
        self.here = replica.here();
        Ok(())
    }

    /// Does as [`Session::push`] if there is nothing to send.
    pub(super) fn push_nothing(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        // The peer may have entries that this side lacks.
        if replica.lacks() {
            return self.go_long(true, replica);
        }
        self.snapshot = self.dag.get(self.head).cloned();
        self.pass_on_all(replica)?;
        self.note(replica)?;
        self.tell_troubles(true, replica);
        let (base, bytes) = (Some(self.head), no_difference()?);
        self.out.push_back(Message::Tree(TreePart { of: None, base, bytes, last: true }));
        self.sender = Some(Leaving::new(Vec::new(), &Tree::default(), replica)?);
        self.state = State::Taken;
        Ok(())
    }

    /// Takes the peer's tree in `parts`, which should be the own one.
    pub(super) fn take_nothing(
        &mut self,
        base: Option<SnapshotId>,
        replica: &mut dyn Replica,
    ) -> Result<(), SyncError> {
        if base == Some(self.head) && self.parts == no_difference()? {
            self.parts.clear();
            self.state = State::Data;
            return self.expect();
        }
        // The peer says it in another way.
        self.load_tree(replica)?;
        self.take_whole_tree(&TreePart { of: None, base, bytes: Vec::new(), last: true }, replica)
    }

    /// Ends as [`Session::take_pushed`] does.
    pub(super) fn end_nothing(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        self.snapshot = self.dag.get(self.head).cloned();
        self.merged = Merged::default();
        self.pass_on_all(replica)?;
        self.note(replica)?;
        let done = self.finish(replica)?;
        self.out.push_back(Message::Done(done));
        self.state = State::Ended;
        Ok(())
    }

    fn pass_on_all(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        if self.to_pass_on.is_empty() {
            return Ok(());
        }
        let base = remembered(replica, self.head)?;
        self.pass_on(Some(self.head), &base, replica)
    }
}
