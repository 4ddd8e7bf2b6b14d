//! Contents in a session: own requests, the peer's requests, and arrivals.

use super::super::batch::Ranks;
use super::super::content::{TAGS_MAX, Want, Withheld};
use super::super::error::SyncError;
use super::super::inodes;
use super::super::plan::Op;
use super::super::proto::{Asked, DeltaPart, Message};
use super::super::replica::Replica;
use super::super::tree::{ContentId, Entry, Ident, Tree};
use super::leaving::Leaving;
use super::room::{ROOM_BYTES, too_large};
use super::way::Way;
use super::{Session, State};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Maximum number of wants in one frame.
const WANTS_IN_FRAME: usize = 256;
const TAGS_IN_FRAME: usize = 64 << 10;

/// Returns the entries of `tree` whose content is wanted and in no other entry.
pub(super) fn entries_of(tree: &Tree, wants: &[Want]) -> HashMap<ContentId, Entry> {
    let wanted: HashSet<ContentId> = wants.iter().map(|want| want.content).collect();
    let (mut found, mut several) = (HashMap::new(), HashSet::new());
    for entry in tree.entries.values() {
        if let Some(content) = entry.kind.content().filter(|content| wanted.contains(content))
            && found.insert(content, entry.clone()).is_some()
        {
            several.insert(content);
        }
    }
    found.retain(|content, _| !several.contains(content));
    found
}

impl Session {
    pub(super) fn say_wants(&mut self) {
        let agreed = Ranks::of(&self.merged.tree);
        let mut frame = Vec::new();
        let mut tags = 0;
        for want in &self.wants {
            if frame.len() == WANTS_IN_FRAME || (tags > 0 && tags + want.have.len() > TAGS_IN_FRAME) {
                self.out.push_back(Message::Wants(std::mem::take(&mut frame)));
                tags = 0;
            }
            tags += want.have.len();
            let content = agreed.rank(want.content).expect("a wanted content is in the agreed tree");
            frame.push(Asked { content, base: want.base, have: want.have.clone() });
        }
        if !frame.is_empty() {
            self.out.push_back(Message::Wants(frame));
        }
        self.out.push_back(Message::WantsEnd(()));
    }

    pub(super) fn collect_wants(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        let mut seen = BTreeSet::new();
        let ranks = Ranks::of(&self.mine);
        let mut theirs = self.their_tree.contents();
        theirs.retain(|content, _| !self.they_lack.has(*content));
        let mut room = TAGS_MAX;
        // In the order of the paths, since neighbouring files resemble each other.
        for (path, entry, was) in self.ops.iter().flat_map(Op::staged) {
            let was = was.and_then(|was| was.kind.content());
            let Some(content) = entry.kind.content().filter(|content| seen.insert(*content)) else {
                continue;
            };
            if replica.stage(content)? {
                continue;
            }
            let read_there = was.is_some_and(|was| theirs.contains_key(&was) || self.held.contains(&was));
            let base = was.and_then(|was| ranks.rank(was)).filter(|_| read_there);
            let have = match base.is_some() && !replica.has_part(content)? {
                true => Vec::new(),
                false => replica.have(content, &path, room.min(TAGS_IN_FRAME))?,
            };
            room -= have.len().min(room);
            self.wants.push(Want { content, size: entry.kind.size(), base, have });
            self.want_paths.push(path);
        }
        self.want_what_fits(replica);
        replica.expect(entries_of(&self.merged.tree, &self.wants));
        Ok(())
    }

    /// If there is no room for all wanted contents, requests the smallest ones, and refuses those that are too large.
    fn want_what_fits(&mut self, replica: &dyn Replica) {
        let free = replica.free_bytes().unwrap_or(u64::MAX);
        let refused = too_large(&self.wants, free);
        let mut inodes = free_inodes(self.on_disk(), &self.goal.tree, replica);
        if refused.is_empty() && self.wants.len() as u64 <= inodes {
            return;
        }
        let all = std::mem::take(&mut self.wants).into_iter().zip(std::mem::take(&mut self.want_paths));
        for (number, (want, path)) in (0..).zip(all) {
            match refused.contains(&number) {
                true => {
                    let why = format!(
                        "there is no room for its {} bytes: {free} bytes are free, and the sync leaves {ROOM_BYTES} of them; \
                         make room and run the sync again",
                        want.size
                    );
                    self.absent.insert(want.content, why);
                }
                false if inodes == 0 => drop(self.absent.insert(want.content, inodes::WHY.to_owned())),
                false => {
                    inodes -= 1;
                    self.wants.push(want);
                    self.want_paths.push(path);
                }
            }
        }
    }

    /// Returns whether the contents being sent do not fit on the disk.
    pub(super) fn is_too_much(&self, replica: &dyn Replica) -> bool {
        let inodes = free_inodes(&self.mine, &self.their_tree, replica);
        self.wants.len() as u64 > inodes
            || replica.free_bytes().is_some_and(|free| !too_large(&self.wants, free).is_empty())
    }

    /// Takes the report of contents that the peer cannot send.
    pub(super) fn take_withheld(&mut self, withheld: Vec<Withheld>) -> Result<(), SyncError> {
        let receiver = self.receiver.as_mut().expect("made with the state");
        for Withheld { number, content, reason } in withheld {
            let want = self.wants.get(number as usize);
            let wanted = want.filter(|want| want.content == content || want.content.is_untold());
            let wanted =
                wanted.ok_or_else(|| SyncError::peer("withholds a content that was not asked for"))?.content;
            receiver.forget(number);
            self.undelivered.remove(&number);
            if wanted.is_untold() {
                self.hashes.insert(wanted, content);
            }
            self.absent.insert(content, reason);
        }
        Ok(())
    }

    pub(super) fn take_wants(&mut self, asked: Vec<Asked>) -> Result<(), SyncError> {
        let empty = asked.is_empty();
        self.tags += asked.iter().map(|asked| asked.have.len()).sum::<usize>();
        self.asked.extend(asked);
        let most = self.mine.entries.len() + self.merged.tree.entries.len();
        match empty || self.tags > TAGS_MAX || self.asked.len() > most {
            true => Err(SyncError::peer("wants more than there is")),
            false => Ok(()),
        }
    }

    /// Returns the peer's wants. Allows only contents of the agreed tree that the peer lacks and this side's tree has.
    pub(super) fn reached_wants(&mut self) -> Result<Vec<Want>, SyncError> {
        let (mine, agreed) = (self.mine.contents(), Ranks::of(&self.merged.tree));
        let reached = |Asked { content, base, have }: Asked| {
            let content = agreed.content(content.into())?;
            let size = *mine.get(&content)?;
            Some(Want { content, size, base, have })
        };
        let wants: Option<Vec<Want>> = std::mem::take(&mut self.asked).into_iter().map(reached).collect();
        wants.ok_or_else(|| SyncError::peer("wants a content that its tree does not reach"))
    }

    /// Serves the peer's requests, after all of them have arrived.
    pub(super) fn serve(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        let wants = self.reached_wants()?;
        self.to_send = wants.iter().map(|want| want.size).sum();
        // Only now: the peer has sent everything, and waits for an answer.
        let willing = self.calls || self.announce(replica)?;
        if self.options.dry_run || !willing {
            self.state = State::Ended;
            return Ok(());
        }
        match self.calls {
            // First receives contents, then sends them.
            true => {
                self.expect()?;
                self.their_wants = wants;
                self.state = State::Data;
            }
            false => self.sender = Some(Leaving::new(wants, &self.their_tree, replica)?),
        }
        Ok(())
    }

    pub(super) fn take_delta(
        &mut self,
        part: &DeltaPart,
        replica: &mut dyn Replica,
    ) -> Result<(), SyncError> {
        let mut arriving = self.arriving.take().expect("asked before");
        arriving.take(&part.bytes)?;
        if !part.last {
            self.arriving = Some(arriving);
            return Ok(());
        }
        let receiver = self.receiver.as_mut().expect("made with the state");
        self.received += arriving.bytes();
        for (number, content) in arriving.finish(&self.mine, replica)? {
            receiver.forget(number);
            self.hashes.insert(self.wants[number as usize].content, content);
        }
        Ok(())
    }

    /// Takes the peer's message that all contents were sent.
    pub(super) fn have_all(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        let mut receiver = self.receiver.take().expect("made with the state");
        for (number, why) in receiver.take_refused()? {
            self.absent.insert(self.wants[number as usize].content, why);
        }
        let whole = receiver.is_at_rest() && self.arriving.is_none();
        // Contents that came as deltas, and could not be decoded.
        let again: Vec<usize> = receiver.missing().into_iter().map(|number| number as usize).collect();
        let came = |number: usize| !self.undelivered.contains(&(number as u32));
        if !whole || (!again.is_empty() && (self.asked_again.0 || !again.iter().all(|n| came(*n)))) {
            return Err(SyncError::peer("ended without having sent all contents"));
        }
        if self.way == Way::Behind {
            return self.take_pushed(again.is_empty(), replica);
        }
        if !again.is_empty() {
            self.asked_again.0 = true;
            let mut wants = Vec::new();
            for n in &again {
                let Want { content, size, .. } = self.wants[*n];
                self.received = self.received.saturating_sub(size);
                let have = replica.have(content, &self.want_paths[*n], TAGS_IN_FRAME)?;
                wants.push(Want { content, size, base: None, have });
            }
            self.wants = wants;
            self.expect()?;
            self.undelivered.clear();
            self.say_wants();
            return Ok(());
        }
        match self.calls {
            true => {
                let wants = std::mem::take(&mut self.their_wants);
                self.sender = Some(Leaving::new(wants, &self.their_tree, replica)?);
            }
            false => {
                self.out.push_back(Message::Ready(()));
                self.state = State::Commit;
            }
        }
        Ok(())
    }
}

/// Returns for how many contents there are free inodes, if `mine` becomes `new`. Directories and links take theirs
/// first.
fn free_inodes(mine: &Tree, new: &Tree, replica: &dyn Replica) -> u64 {
    let Some(free) = replica.free_inodes() else { return u64::MAX };
    let known: BTreeSet<Ident> = mine.entries.values().map(|entry| entry.ident).collect();
    let others = new.entries.values().filter(|entry| entry.kind.content().is_none());
    let others = others.filter(|entry| !known.contains(&entry.ident)).count() as u64;
    free.saturating_sub(inodes::KEPT + others)
}
