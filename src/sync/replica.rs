//! The interface of a sync to each of its two sides.

use super::bases::Base;
use super::content::{Sink, Source, Tag};
use super::device::Device;
use super::error::SyncError;
use super::group::Groups;
use super::plan::Op;
use super::proto::Done;
use super::selection::Selection;
use super::tree::{ContentId, Entry, Time, Tree, TreePath};
use super::version::{Dag, Snapshot, SnapshotId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A tree on disk, and the memory of its syncs.
pub trait Replica: Source + Sink {
    /// Returns its name.
    fn device(&self) -> Device;
    /// Returns the name of its store.
    fn store(&self) -> String;
    /// Returns features for the peer beyond the version of the protocol, such as [`super::proto::NEW_DIRECTORY`].
    fn features(&self) -> Vec<String> {
        Vec::new()
    }
    /// Returns the rules for groups, which are merged and changed as a whole.
    fn groups(&self) -> Groups {
        Groups::default()
    }
    /// Reads what [`Replica::head`], [`Replica::dag`] and the like do not need, and everything else does. A sync that has
    /// nothing to do does without it.
    fn load(&mut self) -> Result<(), SyncError> {
        Ok(())
    }
    /// Returns the text of its `.dedupfsignore` as of the scan.
    fn patterns(&self) -> String {
        String::new()
    }
    /// Returns the paths that it syncs.
    fn selection(&self) -> Selection {
        Selection::default()
    }
    /// Returns whether it may have only a part of its tree.
    fn is_partial(&self) -> bool {
        false
    }
    /// Returns whether its disk lacks entries that it should have by its tree and its selection.
    fn lacks(&self) -> bool {
        false
    }
    /// Returns the number of entries that its selection leaves out, if it has one.
    fn left_out(&self) -> Option<u64> {
        None
    }
    /// Returns the included entries on its disk, if they may be others than its tree has.
    fn here(&self) -> Option<Tree> {
        None
    }
    /// Returns whether something on its disk is at `path`.
    fn is_used(&self, _path: &[u8]) -> bool {
        false
    }
    /// Returns whether a content is staged completely.
    fn is_staged(&self, _content: ContentId) -> bool {
        false
    }
    /// Prepares to take a tree in part: some contents are not available if `lacks` is set, and those in
    /// `kept` may be nowhere else.
    fn take_part(&mut self, _lacks: bool, _kept: BTreeSet<ContentId>) {}
    /// Sets the text of `.dedupfsignore` in the tree that is to be taken.
    fn leave_out(&mut self, _patterns: &str) {}
    /// Sets the rules for groups that both sides use from now on.
    fn agree_on(&mut self, _groups: Groups) {}
    /// Returns the remembered snapshots.
    fn dag(&self) -> &Dag;
    /// Returns the snapshot of its tree, as scanned for this sync.
    fn head(&self) -> SnapshotId;
    /// Returns the snapshots whose trees are remembered.
    fn trees(&self) -> Vec<SnapshotId>;
    /// Returns the tree of a snapshot if it is remembered.
    fn tree(&self, id: SnapshotId) -> Result<Option<Tree>, SyncError>;
    /// Returns the last known snapshots of other devices.
    fn heads(&self) -> BTreeMap<Device, SnapshotId>;
    /// Returns whether a content is staged completely. If not, stages it from this side's tree if that has it.
    fn stage(&mut self, content: ContentId) -> Result<bool, SyncError>;
    /// Returns which of these contents it can still read, though its tree does not have them.
    fn held(&mut self, contents: &[ContentId]) -> Result<Vec<bool>, SyncError> {
        Ok(vec![false; contents.len()])
    }
    /// Returns whether an interrupted attempt has left anything.
    fn has_staged(&self) -> bool {
        false
    }
    /// Returns whether an interrupted attempt has left a part of a content.
    fn has_part(&self, _content: ContentId) -> Result<bool, SyncError> {
        Ok(false)
    }
    /// Sets the entries of contents that will be staged and become one file each. Only saves work.
    fn expect(&mut self, _entries: HashMap<ContentId, Entry>) {}
    /// Returns chunks that it can read locally for a content that goes to `path`; at most `most`.
    fn have(&mut self, content: ContentId, path: &TreePath, most: usize) -> Result<Vec<Tag>, SyncError>;
    /// Returns the free bytes; `None` if that is unknown.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// Returns the free inodes; `None` if that is unknown.
    fn free_inodes(&self) -> Option<u64> {
        None
    }
    /// Sets the contents that will not be staged, each with the reason. Steps that need them are skipped.
    fn do_without(&mut self, _contents: BTreeMap<ContentId, String>) {}
    /// Returns paths that could not be read, and the reasons. At the `end` it adds those that are not stored
    /// completely.
    fn take_troubles(&mut self, _end: bool) -> Vec<(TreePath, String)> {
        Vec::new()
    }
    /// Returns the time of a directory of its tree, if it is known.
    fn directory_time(&self, _path: &TreePath) -> Option<Time> {
        None
    }
    /// Sets the times that directories get if the next [`Replica::adopt`] creates them or changes names in them.
    fn set_directory_times(&mut self, _times: BTreeMap<TreePath, Time>) {}
    /// Saves the versions before the conflicts of the next [`Replica::adopt`], as far as it can read them.
    fn keep_bases(&mut self, _bases: &[Base]) {}
    /// Changes the tree by `ops` into `target`, with staged contents. If no step was skipped, `snapshot` becomes its
    /// state; if some stay skipped, its state becomes a snapshot of its own. From here on it completes without the
    /// peer.
    fn adopt(&mut self, snapshot: &Snapshot, target: &Tree, ops: &[Op]) -> Result<Done, SyncError>;
    /// Records that the peer has taken a part of this replica's tree. `theirs` is the peer's state now, and `both` the
    /// state of this replica, which descends from it.
    fn meet(&mut self, theirs: (&Snapshot, &Tree), both: &Snapshot) -> Result<(), SyncError>;
    /// Remembers the peer's knowledge, as in `dag` and `heads`, and the trees that it sent.
    fn learn(
        &mut self,
        dag: Dag,
        heads: BTreeMap<Device, SnapshotId>,
        trees: &[(SnapshotId, &Tree)],
    ) -> Result<(), SyncError>;
}

/// Returns the tree of a snapshot that the replica must have.
pub(super) fn remembered(replica: &dyn Replica, id: SnapshotId) -> Result<Tree, SyncError> {
    let missing = || SyncError::State {
        object: id.to_string(),
        reason: "the tree of a snapshot is missing".to_owned(),
    };
    replica.tree(id)?.ok_or_else(missing)
}
