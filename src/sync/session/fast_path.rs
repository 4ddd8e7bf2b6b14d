//! The fast path: only one side has changed since both had the same tree, and only the other is to be changed. Nothing
//! has to be merged. So the side that is ahead sends the differences of its tree and the contents at once; the other
//! takes them, and confirms.
//!
//! ```text
//! caller, ahead                              called, behind
//! Hello, Known                       -->
//!                                    <--     Hello, Known
//! Tree..., Deltas..., Data..., End   -->     everything is staged, durable and has the root: it changes its tree
//!                                    <--     Tree..., Done
//!
//! caller, behind                             called, ahead
//! Hello, Known                       -->
//!                                    <--     Hello, Known, Tree..., Deltas..., Data..., End
//! Tree..., Done                      -->
//! ```
//!
//! The side that is ahead sends its tree without the hashes of contents that go as deltas: the receiver can compute
//! them once the contents are there. Then it knows the whole tree, and the root of the announced snapshot proves all
//! hashes.
//!
//! If the root differs, or if a content is missing or cannot be decoded, the receiver sends [`Message::Long`]. Both
//! sides continue as if nothing had been sent, this time with the hashes; contents that were staged under the right
//! hash are not requested again. The side that is ahead sends [`Message::Long`] itself if it cannot read former
//! contents.

use super::super::batch::Ranks;
use super::super::content::Want;
use super::super::error::SyncError;
use super::super::guard;
use super::super::ignored::{self, Ignored};
use super::super::merge::Merged;
use super::super::plan::{Op, summary};
use super::super::presence::Goal;
use super::super::proto::{Agreed, Direction, Message};
use super::super::replica::{Replica, remembered};
use super::super::tree::{ContentId, Entry, Ident, Kind, Tree, TreePath};
use super::contents::entries_of;
use super::lacking::Lacking;
use super::leaving::Leaving;
use super::room::may_be_too_much;
use super::way::Way;
use super::{Outcome, Session, State};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Maximum size of a file that is sent completely although the receiver has an older content. For larger files, an
/// additional round trip for the receiver's chunks pays off.
const WHOLE_BYTES_MAX: u64 = 64 << 10;

/// Returns the contents of `new` that `old` lacks, in the order of the paths, each with its former content. Both sides
/// get the same result, whether they know the hashes of `new` or not.
fn lacking<'a>(old: &Tree, new: &'a Tree) -> Vec<Want> {
    let ranks = Ranks::of(old);
    let mut wanted = BTreeSet::new();
    let is_new = |(path, entry): (&'a TreePath, &'a Entry)| match entry.kind {
        Kind::File { content, size } if ranks.rank(content).is_none() && wanted.insert(content) => {
            Some((path, entry.ident, content, size))
        }
        _ => None,
    };
    let new_ones: Vec<_> = new.entries.iter().filter_map(is_new).collect();
    if new_ones.is_empty() {
        return Vec::new();
    }
    let idents: HashSet<Ident> = new_ones.iter().map(|(_, ident, ..)| *ident).collect();
    let mut by_ident: HashMap<Ident, ContentId> = HashMap::new();
    for entry in old.entries.values().filter(|entry| idents.contains(&entry.ident)) {
        if let Some(content) = entry.kind.content() {
            by_ident.entry(entry.ident).or_insert(content);
        }
    }
    let gone = Namesakes::of(old, new);
    let mut wants = Vec::new();
    for (path, ident, content, size) in new_ones {
        let by_path = || old.entries.get(path).and_then(|was| was.kind.content());
        let was = by_ident.get(&ident).copied().or_else(by_path).or_else(|| gone.nearest(path));
        wants.push(Want { content, size, base: was.and_then(|was| ranks.rank(was)), have: Vec::new() });
    }
    wants
}

/// Files of an older tree whose paths a newer tree does not have, by the ends of their paths. If a directory of one
/// version replaces that of another, only these show a file's former content.
struct Namesakes<'a>(HashMap<&'a [u8], Vec<(&'a TreePath, ContentId)>>);

/// Maximum number of names of a path that are compared.
const NAMES_MAX: usize = 6;

/// Yields the ends of a path at `/`, the longest first.
fn ends(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut starts: Vec<usize> =
        (0..path.len()).rev().filter(|at| path[*at] == b'/').take(NAMES_MAX).collect();
    starts.reverse();
    starts.into_iter().map(|at| &path[at + 1..])
}

impl<'a> Namesakes<'a> {
    fn of(old: &'a Tree, new: &Tree) -> Namesakes<'a> {
        let mut by_end: HashMap<&[u8], Vec<(&TreePath, ContentId)>> = HashMap::new();
        for (path, entry) in old.entries.iter().filter(|(path, _)| !new.entries.contains_key(*path)) {
            if let Some(content) = entry.kind.content() {
                ends(path).for_each(|end| by_end.entry(end).or_default().push((path, content)));
            }
        }
        Namesakes(by_end)
    }

    /// Returns the content of the file with the most last names in common; among several, the one with the longest
    /// common beginning.
    fn nearest(&self, path: &TreePath) -> Option<ContentId> {
        let same = ends(path).find_map(|end| self.0.get(end))?;
        // They are sorted, so it is one of the two neighbours of `path`.
        let at = same.partition_point(|(other, _)| *other < path);
        let near = &same[at.saturating_sub(1)..same.len().min(at + 1)];
        let shared = |other: &TreePath| other.iter().zip(path).take_while(|(a, b)| a == b).count();
        near.iter().max_by_key(|(other, _)| shared(other)).map(|(_, content)| *content)
    }
}

impl Session {
    /// Returns the way of this sync. Both sides have the same information, so they decide alike. `begun`: this side
    /// has staged contents.
    pub(super) fn which_way(&self, replica: &dyn Replica, begun: bool) -> Way {
        let theirs = self.theirs.as_ref().expect("came before");
        let (here, there) = (self.head, theirs.head);
        let at_rest = here == there && self.is_behind_at_rest(replica);
        // If both are equal, the caller is behind: it sends the last message.
        let ahead = self.dag.descends(here, there) && !(self.calls && here == there);
        let behind = self.dag.descends(there, here) && !ahead;
        let (known, left) = match (ahead, behind) {
            (true, _) => (replica.trees().contains(&there), theirs.begun && !at_rest),
            (_, true) => (theirs.trees.contains(&here), begun && !at_rest),
            _ => return Way::Long,
        };
        let direction = self.options.direction;
        let called_changes = behind != self.calls;
        let wanted = direction == Direction::Both || (direction == Direction::Push) == called_changes;
        match !self.options.dry_run && wanted && known && !left {
            true if ahead => Way::Ahead,
            true => Way::Behind,
            false => Way::Long,
        }
    }

    /// Sends this side's tree and contents, if all changes can be sent at once.
    pub(super) fn push(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        let head = self.theirs.as_ref().expect("came before").head;
        let theirs = remembered(replica, head)?;
        let mine = self.mine.contents();
        let gone: Vec<ContentId> =
            theirs.contents().into_keys().filter(|content| !mine.contains_key(content)).collect();
        replica.held(&gone)?;
        let wants = lacking(&theirs, &self.mine);
        // The peer has to know what this side does not have.
        if replica.lacks() || !self.has_all(&wants) {
            return self.go_long(true, replica);
        }
        // Files that do not fit are not sent: the peer can request the rest.
        if may_be_too_much(&wants, &self.features) {
            return self.go_long(true, replica);
        }
        self.to_send = wants.iter().map(|want| want.size).sum();
        let leaving = Leaving::new(wants, &theirs, replica)?;
        if leaving.sender.wants().any(|want| want.base.is_some() && want.size > WHOLE_BYTES_MAX) {
            return self.go_long(true, replica);
        }
        let ignored = Ignored::of(ignored::tellable(&replica.patterns()));
        let ops = ignored.plan(&theirs, &self.mine, |from, to| self.groups.plan(from, to));
        // The peer would refuse: lets it do so before contents are sent.
        if !self.options.force && guard::objection(&theirs, &self.mine, &ops).is_some() {
            return self.go_long(true, replica);
        }
        self.outcome.there = summary(&ops);
        self.merged = Merged { tree: self.mine.clone(), ..Merged::default() };
        self.snapshot = self.dag.get(self.head).cloned();
        self.their_tree = theirs.clone();
        self.pass_on(Some(head), &theirs, replica)?;
        // From here on the peer may take the tree. Other devices that meet it need to know where this side met it, so
        // this is recorded first.
        self.note(replica)?;
        self.tell_troubles(true, replica);
        self.tell_tree(None, Some(head), &theirs, &self.mine.clone(), &leaving.teller.contents())?;
        self.tell_times(replica);
        self.sender = Some(leaving);
        self.state = State::Taken;
        Ok(())
    }

    /// Takes the other side's tree, which lacks some hashes.
    pub(super) fn expect_pushed(&mut self, tree: Tree, replica: &mut dyn Replica) -> Result<(), SyncError> {
        self.wants = lacking(&self.mine, &tree);
        replica.expect(entries_of(&tree, &self.wants));
        self.their_tree = tree;
        self.state = State::Data;
        self.overfull = self.is_too_much(replica);
        self.expect()
    }

    /// Takes the sent tree after all contents have arrived, if it is the announced one.
    pub(super) fn take_pushed(&mut self, whole: bool, replica: &mut dyn Replica) -> Result<(), SyncError> {
        if self.nothing {
            return self.end_nothing(replica);
        }
        let mut tree = self.their_tree.clone();
        for entry in tree.entries.values_mut() {
            if let Kind::File { content, .. } = &mut entry.kind
                && let Some(found) = self.hashes.get(content)
            {
                *content = *found;
            }
        }
        let head = self.theirs.as_ref().expect("came before").head;
        let root = self.dag.get(head).expect("was checked").root;
        if !whole || tree.root() != root {
            tracing::debug!(
                "the tree that was sent has another root than announced, so its hashes are requested"
            );
            return self.go_long(true, replica);
        }
        self.their_tree = tree;
        self.merge(replica)?;
        if let Some(refused) =
            guard::objection(&self.mine, &self.merged.tree, &self.ops).filter(|_| !self.options.force)
        {
            self.outcome = Outcome::default();
            if self.calls {
                return Err(SyncError::Guard(refused));
            }
            let (root, summary) = (self.root(), Default::default());
            self.out.push_back(Message::Agreed(Agreed { root, summary, refused: Some(refused) }));
            self.state = State::Ended;
            return Ok(());
        }
        let contents: Vec<ContentId> =
            self.ops.iter().flat_map(Op::staged).filter_map(|(_, entry, _)| entry.kind.content()).collect();
        for content in contents {
            if !self.absent.contains_key(&content) && !replica.stage(content)? {
                return self.go_long(true, replica);
            }
        }
        let mine = self.mine.clone();
        self.pass_on(Some(self.head), &mine, replica)?;
        self.note(replica)?;
        let done = self.finish(replica)?;
        self.out.push_back(Message::Done(done));
        self.state = State::Ended;
        Ok(())
    }

    /// Starts again on the long way; `say` also tells the other side.
    pub(super) fn go_long(&mut self, say: bool, replica: &mut dyn Replica) -> Result<(), SyncError> {
        if self.nothing {
            self.load_tree(replica)?;
        }
        self.way = Way::Long;
        self.sender = None;
        self.receiver = None;
        self.arriving = None;
        self.undelivered.clear();
        self.wants.clear();
        self.hashes.clear();
        self.their_times.clear();
        self.absent.clear();
        self.parts.clear();
        self.their_tree = Tree::default();
        self.they_lack = Lacking::default();
        self.merged = Merged::default();
        self.goal = Goal::default();
        self.ops.clear();
        self.snapshot = None;
        self.outcome = Outcome { skipped: std::mem::take(&mut self.outcome.skipped), ..Outcome::default() };
        (self.received, self.sent, self.to_send) = (0, 0, 0);
        if say {
            self.out.push_back(Message::Long(()));
        }
        if !self.calls {
            self.tell_trees(replica)?;
        }
        self.state = State::Tree;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::merge::tests::{file, tree};
    use super::*;

    #[test]
    fn what_a_file_was_is_read_off_its_ident_its_path_and_its_name() {
        let old = tree(&[
            ("a-1/lib/x", file(1, "a", "x of a")),
            ("b-1/lib/x", file(2, "a", "x of b")),
            ("kept", file(3, "a", "kept")),
            ("moved", file(4, "a", "moved")),
        ]);
        let new = tree(&[
            ("a-2/lib/x", file(11, "a", "x of a, edited")),
            ("b-2/lib/x", file(12, "a", "x of b, edited")),
            ("elsewhere", file(4, "a", "moved, edited")),
            ("kept", file(13, "a", "replaced")),
            ("same", file(14, "a", "x of a")),
            ("x", file(15, "a", "new")),
        ]);
        let bases: Vec<Option<u32>> = lacking(&old, &new).iter().map(|want| want.base).collect();
        assert_eq!(bases, [Some(0), Some(1), Some(3), Some(2), None]);
    }
}
