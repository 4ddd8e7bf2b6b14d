//! A side that has only a part of its tree.
//!
//! - The trees of both sides are merged as always. Only the steps on the disk of such a side differ: they lead to its
//!   [`Goal`].
//! - On the long way each side sends which contents of its tree it does not have ([`Message::Lacks`]), so that the other
//!   neither asks for them, nor removes its own.
//! - Such a side does not get a tree by the short way, since the other could not know which contents it needs. An older
//!   peer sees it as a side with staged contents.

use super::super::batch::Ranks;
use super::super::content::Want;
use super::super::presence::{Goal, Sources, goal};
use super::super::proto::Message;
use super::super::replica::Replica;
use super::super::tree::{Tree, TreePath};
use super::Session;
use super::lacking::{AT_REST, KNOWN, RUNS_IN_FRAME, is_at_rest, runs};

impl Session {
    /// Returns the included entries on this side's disk.
    pub(super) fn on_disk(&self) -> &Tree {
        self.here.as_ref().unwrap_or(&self.mine)
    }

    /// Returns whether the side that is behind, or the caller if neither is, needs nothing that its snapshot does not show.
    pub(super) fn is_behind_at_rest(&self, replica: &dyn Replica) -> bool {
        let has = |name: &str| self.features.iter().any(|feature| feature == name);
        match self.calls {
            true => has(KNOWN) && is_at_rest(replica),
            false => has(AT_REST),
        }
    }

    /// Returns whether this side has all of these contents of its tree.
    pub(super) fn has_all(&self, wants: &[Want]) -> bool {
        let Some(here) = &self.here else { return true };
        let here = here.contents();
        wants.iter().all(|want| here.contains_key(&want.content))
    }

    /// Sends which contents of this side's tree it does not have.
    pub(super) fn tell_lacking(&mut self) {
        let Some(here) = &self.here else { return };
        let here = here.contents();
        let ranks = Ranks::of(&self.mine);
        let runs = runs(ranks.contents().iter().map(|content| !here.contains_key(content)));
        self.out.extend(runs.chunks(RUNS_IN_FRAME).map(|runs| Message::Lacks(runs.to_vec())));
    }

    /// Returns the tree that this side's disk is to have of an agreed one.
    pub(super) fn goal_of(&self, agreed: &Tree, replica: &dyn Replica) -> Goal {
        if !replica.is_partial() && self.they_lack.is_empty() {
            return Goal { tree: agreed.clone(), ..Goal::default() };
        }
        let theirs = self.their_tree.contents();
        let has_there = |content| theirs.contains_key(&content) && !self.they_lack.has(content);
        let sources = Sources {
            can_come: &|content| has_there(content) || replica.is_staged(content),
            is_elsewhere: &has_there,
            is_used: &|path| replica.is_used(path),
        };
        goal(&replica.selection(), &self.groups, self.on_disk(), agreed, &sources)
    }

    /// Notes for the user which entries this side does not get.
    pub(super) fn note_part(&mut self, agreed: &Tree, replica: &dyn Replica) {
        let selection = replica.selection();
        if !selection.is_all() {
            let part = selection.paths(agreed, &self.groups).len();
            self.outcome.left_out = Some((agreed.entries.len() - part) as u64);
        }
        if !self.is_changed() {
            return;
        }
        let peer = self.peer.as_ref().map_or_else(String::new, ToString::to_string);
        let why_missing = format!(
            "{peer} does not have it either, since its config.toml leaves it out, or it has not arrived there; sync with a \
             device that has it"
        );
        let why_blocked = "another entry has this name here, and config.toml leaves that out; rename it, and run the sync again";
        let all = [(&self.goal.missing, &*why_missing), (&self.goal.blocked, why_blocked)];
        let trouble = |(paths, why): (&Vec<TreePath>, &str)| {
            let more = match paths.len() {
                0 | 1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            Some((paths.first()?.clone(), format!("is not on this device{more}: {why}")))
        };
        let troubles: Vec<_> = all.into_iter().filter_map(trouble).collect();
        match self.calls {
            true => self.skip(troubles),
            false if troubles.is_empty() => {}
            false => self.out.push_back(Message::Troubles(troubles)),
        }
    }
}
