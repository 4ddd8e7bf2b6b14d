//! The interface of a sync to each of its two sides.

use super::content::{Sink, Source, Tag};
use super::error::SyncError;
use super::group::Groups;
use super::plan::Op;
use super::proto::Done;
use super::tree::{ContentId, Tree, TreePath};
use super::version::{Dag, Device, Snapshot, SnapshotId};
use std::collections::BTreeMap;

/// A tree on disk, and what is remembered of its past.
pub trait Replica: Source + Sink {
    /// Its name.
    fn device(&self) -> Device;
    /// Which store it is in.
    fn store(&self) -> String;
    /// What the peer is told of it beyond the version of the protocol: as [`super::proto::NEW_DIRECTORY`].
    fn features(&self) -> Vec<String> {
        Vec::new()
    }
    /// What is merged and changed as a whole.
    fn groups(&self) -> Groups {
        Groups::default()
    }
    /// The text of its `.dedupfsignore`, as it was looked at.
    fn patterns(&self) -> String {
        String::new()
    }
    /// The text of `.dedupfsignore` in the tree that is to be taken.
    fn leave_out(&mut self, _patterns: &str) {}
    /// From now on also what the peer takes for groups.
    fn agree_on(&mut self, _groups: Groups) {}
    /// What is remembered.
    fn dag(&self) -> &Dag;
    /// What its tree is now, as it was looked at for this sync.
    fn head(&self) -> SnapshotId;
    /// The snapshots whose trees are remembered.
    fn trees(&self) -> Vec<SnapshotId>;
    /// The tree of a snapshot, if that is remembered.
    fn tree(&self, id: SnapshotId) -> Result<Option<Tree>, SyncError>;
    /// The last known states of other devices.
    fn heads(&self) -> BTreeMap<Device, SnapshotId>;
    /// Whether it has a content staged from an earlier attempt, whole; or can stage it from its own tree, which it does then.
    fn stage(&mut self, content: ContentId) -> Result<bool, SyncError>;
    /// Which of these contents it can still read, though its tree does not have them.
    fn held(&mut self, contents: &[ContentId]) -> Result<Vec<bool>, SyncError> {
        Ok(vec![false; contents.len()])
    }
    /// Whether a cut attempt has left anything.
    fn has_staged(&self) -> bool {
        false
    }
    /// Whether a cut attempt has left a part of a content.
    fn has_part(&self, _content: ContentId) -> Result<bool, SyncError> {
        Ok(false)
    }
    /// The chunks that it can read at home for a content which goes to `path`; not more than `most`.
    fn have(&mut self, content: ContentId, path: &TreePath, most: usize) -> Result<Vec<Tag>, SyncError>;
    /// Bytes that there is room for; none if that is not known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// Inodes that are free; none if that is not known.
    fn free_inodes(&self) -> Option<u64> {
        None
    }
    /// These contents will not be staged, and why: steps that need them are skipped.
    fn do_without(&mut self, _contents: BTreeMap<ContentId, String>) {}
    /// Paths that could not be read, and why; at the `end` also those that are not stored in full.
    fn take_troubles(&mut self, _end: bool) -> Vec<(TreePath, String)> {
        Vec::new()
    }
    /// Changes the tree by `ops` into `target`, and takes `snapshot` as its state if nothing was skipped. What was skipped for good
    /// makes a state of its own. Every content is
    /// staged. From here on it ends by itself, whatever becomes of the peer.
    fn adopt(&mut self, snapshot: &Snapshot, target: &Tree, ops: &[Op]) -> Result<Done, SyncError>;
    /// The peer has taken some of this replica's tree, which is its state `theirs` now; `both` is this one's, which came from that.
    fn meet(&mut self, theirs: (&Snapshot, &Tree), both: &Snapshot) -> Result<(), SyncError>;
    /// Remembers what the peer knows, as `dag` and `heads` have it, and the trees that it told.
    fn learn(
        &mut self,
        dag: Dag,
        heads: BTreeMap<Device, SnapshotId>,
        trees: &[(SnapshotId, &Tree)],
    ) -> Result<(), SyncError>;
}
