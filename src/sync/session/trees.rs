//! Trees in a session: former ones that the peer lacks, then the side's own.

use super::super::attributes::is_reserved;
use super::super::batch::Ranks;
use super::super::diff;
use super::super::error::SyncError;
use super::super::proto::{Held, Message, OWNERS, TreePart};
use super::super::replica::{Replica, remembered};
use super::super::tree::{ContentId, Entry, Tree, TreeError};
use super::super::version::{MEETING_POINTS_MAX, SnapshotId, VersionError};
use super::way::Way;
use super::{PASSED_ON_MAX, Session, State};
use std::collections::BTreeSet;

/// Maximum compressed bytes of a tree in one frame, and of all its parts.
const PART_BYTES_MAX: usize = 1 << 20;
const PARTS_BYTES_MAX: usize = 256 << 20;
/// Maximum number of former contents that one side announces as readable.
const HELD_MAX: usize = 512 << 10;

impl Session {
    /// Sends the former trees that the peer lacks, then this side's tree, encoded against one that the peer has by
    /// then.
    pub(super) fn tell_trees(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        for id in std::mem::take(&mut self.to_tell) {
            let tree = remembered(replica, id)?;
            self.tell_tree(Some(id), None, &Tree::default(), &tree, &BTreeSet::new())?;
        }
        let common = self.dag.common(replica.head(), self.theirs.as_ref().expect("came before").head);
        for id in common.into_iter().filter(|id| self.shared.contains(id)) {
            if let Some(base) = self.ancestor(replica, id)? {
                self.pass_on(Some(id), &base, replica)?;
                self.tell_held(id, &base, replica)?;
                self.tell_lacking();
                return self.tell_tree(None, Some(id), &base, &self.mine.clone(), &BTreeSet::new());
            }
        }
        self.pass_on(None, &Tree::default(), replica)?;
        self.tell_lacking();
        self.tell_tree(None, None, &Tree::default(), &self.mine.clone(), &BTreeSet::new())
    }

    pub(super) fn pass_on(
        &mut self,
        base: Option<SnapshotId>,
        base_tree: &Tree,
        replica: &dyn Replica,
    ) -> Result<(), SyncError> {
        for id in std::mem::take(&mut self.to_pass_on) {
            let tree = remembered(replica, id)?;
            self.tell_tree(Some(id), base, base_tree, &tree, &BTreeSet::new())?;
        }
        Ok(())
    }

    /// Announces the contents of `base` that this side can still read, though its tree does not have them any more.
    pub(super) fn tell_held(
        &mut self,
        of: SnapshotId,
        base: &Tree,
        replica: &mut dyn Replica,
    ) -> Result<(), SyncError> {
        let mine = self.mine.contents();
        let ranks = Ranks::of(base);
        let gone: Vec<ContentId> =
            ranks.contents().iter().copied().filter(|content| !mine.contains_key(content)).collect();
        let held = replica.held(&gone)?;
        let ranks: Vec<u32> = gone
            .iter()
            .zip(held)
            .filter_map(|(content, held)| ranks.rank(*content).filter(|_| held))
            .take(HELD_MAX)
            .collect();
        if !ranks.is_empty() {
            self.out.push_back(Message::Held(Held { of, ranks }));
        }
        Ok(())
    }

    pub(super) fn take_held(&mut self, held: &Held, replica: &dyn Replica) -> Result<(), SyncError> {
        let known = match self.shared.contains(&held.of) {
            true => self.ancestor(replica, held.of)?,
            false => None,
        };
        let ranks = known.map(|tree| Ranks::of(&tree)).unwrap_or_default();
        for rank in &held.ranks {
            let content = ranks.content(u64::from(*rank));
            self.held.insert(
                content.ok_or_else(|| SyncError::peer("announced a former content that does not exist"))?,
            );
        }
        Ok(())
    }

    /// Returns a tree that this side remembers, or has received.
    pub(super) fn ancestor(&self, replica: &dyn Replica, id: SnapshotId) -> Result<Option<Tree>, SyncError> {
        match self.told.get(&id) {
            Some(tree) => Ok(Some(tree.clone())),
            None => replica.tree(id),
        }
    }

    pub(super) fn tell_tree(
        &mut self,
        of: Option<SnapshotId>,
        base: Option<SnapshotId>,
        base_tree: &Tree,
        tree: &Tree,
        untold: &BTreeSet<ContentId>,
    ) -> Result<(), SyncError> {
        let has_any = |entry: &Entry| entry.xattrs.keys().any(|name| is_reserved(name));
        if !self.features.iter().any(|feature| feature == OWNERS) && tree.entries.values().any(has_any) {
            return Err(SyncError::WithoutOwners);
        }
        let look = self.dag.get(of.unwrap_or(self.head)).and_then(|snapshot| snapshot.seen.as_ref());
        let bytes = diff::encode(base_tree, tree, look, untold)?;
        if bytes.len() > PARTS_BYTES_MAX {
            return Err(SyncError::Changed("the tree is too large to be sent to a peer".to_owned()));
        }
        let parts: Vec<&[u8]> = bytes.chunks(PART_BYTES_MAX).collect();
        for (n, part) in parts.iter().enumerate() {
            let last = n + 1 == parts.len();
            self.out.push_back(Message::Tree(TreePart { of, base, bytes: part.to_vec(), last }));
        }
        Ok(())
    }

    pub(super) fn take_tree(&mut self, part: TreePart, replica: &mut dyn Replica) -> Result<(), SyncError> {
        if part.bytes.is_empty() || self.parts.len() + part.bytes.len() > PARTS_BYTES_MAX {
            return Err(SyncError::peer("sent a tree that is empty or too long"));
        }
        self.parts.extend_from_slice(&part.bytes);
        if !part.last {
            return Ok(());
        }
        if self.nothing && part.of.is_none() {
            return self.take_nothing(part.base, replica);
        }
        self.take_whole_tree(&part, replica)
    }

    pub(super) fn take_whole_tree(
        &mut self,
        part: &TreePart,
        replica: &mut dyn Replica,
    ) -> Result<(), SyncError> {
        let base = match part.base {
            Some(id) if self.shared.contains(&id) => self.ancestor(replica, id)?,
            Some(_) => None,
            None => Some(Tree::default()),
        };
        let base = base
            .ok_or_else(|| SyncError::peer("sent its tree relative to one that this side does not have"))?;
        let tree = diff::decode(&base, &std::mem::take(&mut self.parts))?;
        if part.of.is_none() && self.way == Way::Behind {
            return self.expect_pushed(tree, replica);
        }
        let id = part.of.unwrap_or(self.theirs.as_ref().expect("came before").head);
        let expected = self.dag.get(id).ok_or(VersionError::Unknown(id))?.root;
        let found = tree.root();
        if found != expected {
            return Err(TreeError::Root { expected, found }.into());
        }
        if part.of.is_some() {
            let met = &self.theirs.as_ref().expect("came before").heads;
            let due = self.shared.contains(&id) || met.iter().any(|(_, met)| *met == id);
            let few = self.told.len() < MEETING_POINTS_MAX + PASSED_ON_MAX;
            if !due || !few || self.told.insert(id, tree).is_some() {
                return Err(SyncError::peer("sent a former tree that was not due"));
            }
            return Ok(());
        }
        if self.calls {
            self.tell_trees(replica)?;
        }
        self.they_lack.find(&tree)?;
        self.their_tree = tree;
        self.merge(replica)?;
        self.state = State::Agreed;
        if self.calls {
            self.announce(replica)?;
        }
        Ok(())
    }
}
