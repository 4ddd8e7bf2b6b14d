//! One side of a sync: messages in, messages out. It does no I/O; [`Replica`] is its interface to a tree, so that the
//! simulator drives the same code.
//!
//! ```text
//! caller                                     called
//! Hello, Known                       -->
//!                                    <--     Hello, Known, Tree...       against a last common ancestor; first those that
//!                                                                        the caller does not have
//! Tree..., Agreed, Wants..., End     -->     both merge; the roots must be equal
//!                                    <--     Agreed, Wants..., End, Data..., End
//! Data..., End                       -->     everything is staged and durable on both sides
//!                                    <--     Ready
//! Commit                             -->     each changes its tree by itself
//!                                    <--     Done
//! Done                               -->
//! ```
//!
//! If only one side has changed, it is shorter: `session/fast_path.rs`.
//!
//! Only one side sends at any time, so two pipes cannot block each other. Neither tree is changed before both sides
//! have all contents that they need. If the sync is interrupted at any point, each side is at its old state, at the
//! merged state or, with its journal, on the way between; staged contents stay.

use super::bases::Base;
use super::batch::{Arriving, Teller, Told};
use super::content::{Receiver, Sender, Want};
use super::device::Device;
use super::error::SyncError;
use super::group::Groups;
use super::guard;
use super::ignored;
use super::known::{Known, Told as ToldPast};
use super::merge::{Conflict, Merged};
use super::plan::{Op, Summary};
use super::presence::Goal;
use super::proto::{
    Agreed, Asked, DeltaPart, Direction, Done, Failure, Hello, Message, OWNERS, Options, PROTOCOL, Took,
};
use super::replica::Replica;
use super::tree::{ContentId, RootHash, Time, Tree, TreePath};
use super::version::{Dag, Snapshot, SnapshotId};
use lacking::Lacking;
use leaving::Leaving;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use way::Way;

mod contents;
mod fast_path;
mod lacking;
mod leaving;
mod merging;
mod nothing;
mod part;
mod partly;
mod room;
mod times;
mod trees;
mod way;

/// Maximum number of withheld contents in one frame.
const WITHHELD_IN_FRAME: usize = 4096;
/// Maximum number of trees that are passed on in one sync.
const PASSED_ON_MAX: usize = 64;

/// Progress of the transfer of contents, in bytes of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes that have arrived.
    pub received: u64,
    /// All bytes to arrive.
    pub to_receive: u64,
    /// Bytes sent.
    pub sent: u64,
    /// All bytes to be sent.
    pub to_send: u64,
}

/// The result of a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Changes on this side.
    pub here: Summary,
    /// Changes on the other side.
    pub there: Summary,
    /// Files that are there in two versions now.
    pub conflicts: Vec<Conflict>,
    /// Changed files that the other side had deleted; they are kept.
    pub kept: Vec<TreePath>,
    /// Paths that this side, and that the other side, left as they were.
    pub skipped: Vec<(TreePath, String)>,
    /// No common snapshot was remembered: nothing counted as deleted.
    pub without_base: bool,
    /// Number of entries that the selection of this side leaves out, if it has one.
    pub left_out: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waiting for Hello, for Known, for the tree, and so on.
    Hello,
    Known,
    Tree,
    Agreed,
    Wants,
    Data,
    Ready,
    Commit,
    Done,
    /// States of the fast path: waiting for the tree, and for the peer's answer to it.
    Pushed,
    Taken,
    Ended,
}

/// One side.
pub struct Session {
    state: State,
    /// Set on the calling side.
    calls: bool,
    options: Options,
    way: Way,
    peer: Option<Device>,
    /// Devices and snapshots that both sides have sent.
    past: ToldPast,
    features: Vec<String>,
    /// The rules for groups of both sides.
    groups: Groups,
    out: VecDeque<Message>,
    /// Contents that are being sent.
    sender: Option<Leaving>,
    receiver: Option<Receiver>,
    /// A batch of deltas that has arrived in part.
    arriving: Option<Arriving>,
    /// Numbers of wants that may still come as deltas.
    undelivered: BTreeSet<u32>,
    /// The arrived contents of those that were announced without their hashes.
    hashes: BTreeMap<ContentId, ContentId>,
    /// Versions before the conflicts.
    bases: Vec<Base>,
    /// Times of directories that the peer sent, by their numbers in the agreed tree.
    their_times: Vec<(u32, Time)>,
    /// Whether contents that could not be decoded were requested again: by this side, and by the other.
    asked_again: (bool, bool),
    /// Contents that do not arrive, and the reasons.
    absent: BTreeMap<ContentId, String>,
    /// The part of the agreed tree that the peer has taken, if it has not taken all.
    took: Option<Took>,
    /// The contents being sent do not fit on the disk: this side discards them, and requests them in another way.
    overfull: bool,
    /// Contents that the peer can still read, in addition to those of its tree.
    held: BTreeSet<ContentId>,
    theirs: Option<Known>,
    dag: Dag,
    /// The common ancestors, and, if there are several, their common ancestors.
    needed: BTreeSet<SnapshotId>,
    /// Those whose trees both sides have, or will have before they merge.
    shared: BTreeSet<SnapshotId>,
    /// Those whose trees the peer has sent.
    told: BTreeMap<SnapshotId, Tree>,
    /// Those whose trees the peer does not have.
    to_tell: Vec<SnapshotId>,
    /// Snapshots where this side met other devices, whose trees the peer does not have.
    to_pass_on: Vec<SnapshotId>,
    parts: Vec<u8>,
    head: SnapshotId,
    /// Both sides have the same snapshot, so neither needs its tree: `session/nothing.rs`.
    nothing: bool,
    mine: Tree,
    /// The entries on this side's disk, if these may be others.
    here: Option<Tree>,
    /// Contents of the peer's tree that it does not have.
    they_lack: Lacking,
    merged: Merged,
    goal: Goal,
    snapshot: Option<Snapshot>,
    ops: Vec<Op>,
    /// Patterns of paths that are excluded once both sides have agreed.
    left_out: String,
    wants: Vec<Want>,
    /// The path of each want.
    want_paths: Vec<TreePath>,
    asked: Vec<Asked>,
    their_wants: Vec<Want>,
    tags: usize,
    their_tree: Tree,
    received: u64,
    sent: u64,
    to_send: u64,
    outcome: Outcome,
}

impl Session {
    /// Returns the session of the calling side.
    pub fn call(replica: &dyn Replica, options: Options) -> Session {
        let mut session = Session::new(true, options);
        session.introduce(replica, Some(options));
        session
    }

    /// Returns the session of the called side.
    pub fn answer() -> Session {
        Session::new(false, Options::default())
    }

    fn new(calls: bool, options: Options) -> Session {
        Session {
            state: State::Hello,
            calls,
            options,
            way: Way::Long,
            peer: None,
            past: ToldPast::default(),
            features: Vec::new(),
            groups: Groups::default(),
            out: VecDeque::new(),
            sender: None,
            receiver: None,
            arriving: None,
            undelivered: BTreeSet::new(),
            hashes: BTreeMap::new(),
            bases: Vec::new(),
            their_times: Vec::new(),
            asked_again: (false, false),
            absent: BTreeMap::new(),
            took: None,
            overfull: false,
            held: BTreeSet::new(),
            theirs: None,
            dag: Dag::default(),
            needed: BTreeSet::new(),
            shared: BTreeSet::new(),
            told: BTreeMap::new(),
            to_tell: Vec::new(),
            to_pass_on: Vec::new(),
            parts: Vec::new(),
            head: SnapshotId([0; 32]),
            nothing: false,
            mine: Tree::default(),
            here: None,
            they_lack: Lacking::default(),
            merged: Merged::default(),
            goal: Goal::default(),
            snapshot: None,
            ops: Vec::new(),
            left_out: String::new(),
            wants: Vec::new(),
            want_paths: Vec::new(),
            asked: Vec::new(),
            their_wants: Vec::new(),
            tags: 0,
            their_tree: Tree::default(),
            received: 0,
            sent: 0,
            to_send: 0,
            outcome: Outcome::default(),
        }
    }

    /// Returns whether there is nothing more to send or to receive.
    pub fn is_over(&self) -> bool {
        self.state == State::Ended && self.out.is_empty()
    }

    /// Returns the peer's features beyond the version of the protocol.
    pub fn peer_features(&self) -> &[String] {
        &self.features
    }

    /// Returns the name of the peer, once it has sent it.
    pub fn peer(&self) -> Option<&Device> {
        self.peer.as_ref()
    }

    /// Returns the result.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns the progress of contents.
    pub fn progress(&self) -> Transfer {
        let to_receive = self.wants.iter().map(|want| want.size).sum();
        Transfer { received: self.received, to_receive, sent: self.sent, to_send: self.to_send }
    }

    /// Returns the next message to send; `None` if it is the peer's turn, or the sync is over.
    pub fn next_message(&mut self, replica: &mut dyn Replica) -> Result<Option<Message>, SyncError> {
        if let Some(message) = self.out.pop_front() {
            return Ok(Some(message));
        }
        let Some(Leaving { teller, sender }) = &mut self.sender else { return Ok(None) };
        let mut message = match teller.next(replica)? {
            Some(Told::Begin(numbers)) => Some(Message::Deltas(numbers)),
            Some(Told::Part { bytes, last }) => Some(Message::Delta(DeltaPart { bytes, last })),
            None => sender.next_block(replica)?.map(Message::Data),
        };
        if message.is_none() {
            let withheld = [teller.take_withheld(), sender.take_withheld()].concat();
            self.out.extend(
                withheld.chunks(WITHHELD_IN_FRAME).map(|withheld| Message::Withheld(withheld.to_vec())),
            );
            message = self.out.pop_front();
        }
        self.sent = self.to_send.saturating_sub(sender.left_bytes() + teller.left_bytes());
        if message.is_none() {
            self.sender = None;
            match (self.way, self.calls) {
                (Way::Ahead, _) => self.state = State::Taken,
                (_, true) => self.state = State::Ready,
                (_, false) => {
                    self.state = State::Data;
                    self.expect()?;
                }
            }
        }
        Ok(Some(message.unwrap_or(Message::DataEnd(()))))
    }

    /// Prepares for arriving contents.
    fn expect(&mut self) -> Result<(), SyncError> {
        self.receiver = Some(Receiver::new(&self.wants)?);
        self.undelivered = (0..self.wants.len() as u32).collect();
        Ok(())
    }

    /// Takes a message of the peer.
    pub fn receive(&mut self, message: Message, replica: &mut dyn Replica) -> Result<(), SyncError> {
        match (self.state, message) {
            (_, Message::Failed(Failure { message, hint })) => {
                return Err(SyncError::Remote { message, hint });
            }
            // Sent before this sync began: it sees these changes.
            (_, Message::Changed(()) | Message::Wake(())) => {}
            (_, Message::Troubles(troubles)) => {
                self.hear_troubles(troubles);
            }
            (_, Message::Times(times)) => self.take_times(times)?,
            (State::Taken | State::Done, Message::Took(took)) => self.took = Some(took),
            // Discards contents that do not fit, up to their end.
            (
                State::Data,
                Message::Data(_) | Message::Deltas(_) | Message::Delta(_) | Message::Withheld(_),
            ) if self.overfull => {}
            (State::Data, Message::DataEnd(())) if self.overfull => {
                self.overfull = false;
                self.go_long(true, replica)?;
            }
            (State::Data, Message::Withheld(withheld)) => self.take_withheld(withheld)?,
            (State::Hello, Message::Hello(hello)) => {
                self.greet(hello, replica)?;
                self.groups = replica.groups().with(&self.features);
                replica.agree_on(self.groups.clone());
            }
            (State::Known, Message::Known(telling)) => {
                let known = self.past.take(telling)?;
                self.compare(known, replica)?;
            }
            (State::Tree, Message::Lacks(runs)) => self.they_lack.hear(runs)?,
            (State::Tree, Message::Held(held)) => self.take_held(&held, replica)?,
            (State::Tree | State::Pushed, Message::Tree(part)) => self.take_tree(part, replica)?,
            (State::Taken, Message::Tree(part)) if part.of.is_some() => self.take_tree(part, replica)?,
            (State::Pushed | State::Taken, Message::Long(())) => self.go_long(false, replica)?,
            (State::Taken, Message::Agreed(agreed)) if agreed.refused.is_some() => self.agree(&agreed)?,
            (State::Taken, Message::Done(theirs)) => {
                self.note(replica)?;
                self.finish(replica)?;
                self.note_taken(&theirs, replica)?;
                self.meet_partly(replica)?;
                self.hear_skipped(theirs);
                self.state = State::Ended;
            }
            (State::Agreed, Message::Agreed(agreed)) => self.agree(&agreed)?,
            (State::Wants, Message::Wants(wants)) => self.take_wants(wants)?,
            (State::Wants, Message::WantsEnd(())) => self.serve(replica)?,
            (State::Data, Message::Data(block)) => {
                let receiver = self.receiver.as_mut().expect("made with the state");
                self.received += receiver.take(&block, replica)?;
            }
            (State::Data, Message::Deltas(runs)) if self.arriving.is_none() => {
                self.arriving = Some(Arriving::new(&runs, &self.wants, &mut self.undelivered, replica)?);
            }
            (State::Data, Message::Delta(part)) if self.arriving.is_some() => {
                self.take_delta(&part, replica)?;
            }
            (State::Data, Message::DataEnd(())) => self.have_all(replica)?,
            // Requests for contents whose deltas could not be decoded.
            (State::Ready | State::Data, Message::Wants(wants)) if !self.asked_again.1 => {
                self.take_wants(wants)?;
            }
            (State::Ready | State::Data, Message::WantsEnd(())) if !self.asked_again.1 => {
                self.asked_again.1 = true;
                let wants = (0..).zip(self.reached_wants()?).collect();
                self.sender = Some(Leaving { teller: Teller::default(), sender: Sender::new(wants)? });
            }
            (State::Ready, Message::Ready(())) => {
                // From here on the peer may take the agreed tree. Other devices that meet it need to know where this
                // side met it, so this is recorded first.
                self.note(replica)?;
                self.out.push_back(Message::Commit(()));
                self.state = State::Done;
            }
            (State::Commit, Message::Commit(())) => {
                self.note(replica)?;
                let done = self.finish(replica)?;
                self.out.push_back(Message::Done(done));
                self.state = State::Done;
            }
            (State::Done, Message::Done(theirs)) => {
                if self.calls {
                    let done = self.finish(replica)?;
                    self.out.push_back(Message::Done(done));
                }
                self.note_taken(&theirs, replica)?;
                self.meet_partly(replica)?;
                self.hear_skipped(theirs);
                self.state = State::Ended;
            }
            (state, message) => {
                let number = message.number();
                return Err(SyncError::peer(format!("sent a frame of type {number} when {state:?} was due")));
            }
        }
        Ok(())
    }

    /// Sends the name of this side, and its history.
    fn introduce(&mut self, replica: &dyn Replica, options: Option<Options>) {
        let ignored = ignored::feature(&replica.patterns());
        let room = replica.free_bytes().and_then(room::room_feature);
        let features = replica.features().into_iter().chain(replica.groups().features());
        let features = features.chain(ignored).chain(room).chain(lacking::features(replica));
        let features = features.chain([OWNERS.to_owned()]).collect();
        let (store, device) = (replica.store(), replica.device());
        self.past.greet(&device);
        let known = self.past.tell(&known(replica));
        let hello = Hello { protocol: PROTOCOL, features, store, device, options };
        self.out.extend([Message::Hello(hello), Message::Known(known)]);
    }

    fn greet(&mut self, hello: Hello, replica: &dyn Replica) -> Result<(), SyncError> {
        let (low, high) = hello.protocol;
        if low > PROTOCOL.1 || high < PROTOCOL.0 || low > high {
            return Err(SyncError::Protocol { theirs: hello.protocol, ours: PROTOCOL });
        }
        if hello.device == replica.device() {
            return Err(SyncError::Itself(hello.device.to_string()));
        }
        self.past.greet(&hello.device);
        self.peer = Some(hello.device);
        self.features = hello.features;
        if !self.calls {
            self.options = hello.options.unwrap_or_default();
        }
        self.state = State::Known;
        Ok(())
    }

    /// Compares both histories: finds the common ancestors, and sends this side's tree encoded against one of them.
    fn compare(&mut self, theirs: Known, replica: &mut dyn Replica) -> Result<(), SyncError> {
        let mut dag = replica.dag().clone();
        for snapshot in &theirs.snapshots {
            dag.add(snapshot.clone())?;
        }
        if dag.get(theirs.head).is_none() {
            return Err(super::version::VersionError::Unknown(theirs.head).into());
        }
        self.dag = dag;
        let theirs_device = self.peer.clone().expect("came before");
        let head = replica.head();
        self.head = head;
        self.needed = self.dag.meeting_points(head, theirs.head);
        let mine: BTreeSet<SnapshotId> = replica.trees().into_iter().collect();
        let of_theirs = theirs.trees.clone();
        self.shared =
            self.needed.iter().copied().filter(|id| mine.contains(id) || of_theirs.contains(id)).collect();
        self.to_tell = self.shared.iter().copied().filter(|id| !of_theirs.contains(id)).collect();
        // Snapshots where this side last met others: a device that descends from one of them and meets the peer has it
        // in common with the peer.
        let met =
            replica.heads().into_iter().filter(|(device, _)| *device != theirs_device).map(|(_, id)| id);
        let met: BTreeSet<SnapshotId> = met
            .filter(|id| mine.contains(id) && !of_theirs.contains(id) && !self.shared.contains(id))
            .collect();
        self.to_pass_on = met.into_iter().take(PASSED_ON_MAX).collect();
        self.nothing = head == theirs.head;
        self.outcome.left_out = replica.left_out();
        self.theirs = Some(theirs);
        if !self.calls {
            self.introduce(replica, None);
        }
        self.tell_troubles(false, replica);
        self.way = self.which_way(replica, has_begun(replica));
        if !self.nothing || self.way == Way::Long {
            self.load_tree(replica)?;
        }
        self.state = State::Tree;
        match self.way {
            Way::Ahead if self.nothing => self.push_nothing(replica)?,
            Way::Ahead => self.push(replica)?,
            Way::Behind => self.state = State::Pushed,
            Way::Long if !self.calls => self.tell_trees(replica)?,
            Way::Long => {}
        }
        Ok(())
    }

    fn root(&self) -> RootHash {
        self.snapshot.as_ref().expect("merged before").root
    }

    /// Returns whether the direction of the sync includes changes of this side's tree.
    fn is_changed(&self) -> bool {
        let direction = self.options.direction;
        direction == Direction::Both || (direction == Direction::Pull) == self.calls
    }

    /// Returns whether this sync changes this side's tree.
    fn takes(&self) -> bool {
        !self.options.dry_run && self.is_changed()
    }

    /// Sends the result of merging on this side, and its requests. Returns false if it refuses.
    fn announce(&mut self, replica: &mut dyn Replica) -> Result<bool, SyncError> {
        let refused = guard::objection(self.on_disk(), &self.merged.tree, &self.ops)
            .filter(|_| self.takes() && !self.options.force);
        let agreed = Agreed { root: self.root(), summary: self.outcome.here, refused: refused.clone() };
        self.out.push_back(Message::Agreed(agreed));
        if let Some(refused) = refused {
            self.outcome = Outcome::default();
            return match self.calls {
                // The peer answers with its own result.
                true => Err(SyncError::Guard(refused)),
                false => Ok(false),
            };
        }
        if !self.options.dry_run {
            self.tell_times(replica);
        }
        if self.takes() {
            self.collect_wants(replica)?;
        }
        self.say_wants();
        Ok(true)
    }

    fn agree(&mut self, theirs: &Agreed) -> Result<(), SyncError> {
        if theirs.root != self.root() {
            let message = "both sides merged to different trees; nothing was changed";
            return Err(SyncError::peer(message));
        }
        if let Some(refused) = &theirs.refused {
            return Err(SyncError::Guard(format!("on the other side: {refused}")));
        }
        self.outcome.there = theirs.summary;
        self.state = State::Wants;
        Ok(())
    }

    /// Remembers the peer's state, and the agreed snapshot.
    fn note(&mut self, replica: &mut dyn Replica) -> Result<(), SyncError> {
        let snapshot = self.snapshot.clone().expect("merged before");
        let theirs = self.theirs.as_ref().expect("came before");
        let mut dag = self.dag.clone();
        dag.add(snapshot)?;
        let mut heads = replica.heads();
        for (device, id) in &theirs.heads {
            let newer = heads.get(device).is_none_or(|known| dag.descends(*id, *known));
            if *device != replica.device() && newer && dag.get(*id).is_some() {
                heads.insert(device.clone(), *id);
            }
        }
        heads.insert(self.peer.clone().expect("greeted before"), theirs.head);
        let told = self.told.iter().map(|(id, tree)| (*id, tree)).filter(|(id, _)| dag.get(*id).is_some());
        let their_tree = (!self.nothing).then_some((theirs.head, &self.their_tree));
        let trees: Vec<_> = told.chain(their_tree).collect();
        replica.learn(dag, heads, &trees)
    }

    /// Remembers that the peer has taken the agreed tree.
    fn note_taken(&mut self, theirs: &Done, replica: &mut dyn Replica) -> Result<(), SyncError> {
        let direction = self.options.direction;
        let changed = direction == Direction::Both || (direction == Direction::Push) == self.calls;
        if !changed || !theirs.skipped.is_empty() {
            return Ok(());
        }
        let id = self.snapshot.as_ref().expect("merged before").id();
        let mut heads = replica.heads();
        heads.insert(self.peer.clone().expect("greeted before"), id);
        let tree = (!self.nothing).then_some((id, &self.merged.tree));
        replica.learn(replica.dag().clone(), heads, tree.as_slice())
    }

    /// Changes this side's tree.
    fn finish(&mut self, replica: &mut dyn Replica) -> Result<Done, SyncError> {
        let snapshot = self.snapshot.clone().expect("merged before");
        replica.do_without(std::mem::take(&mut self.absent));
        replica.leave_out(&self.left_out);
        let lacks = !(self.goal.missing.is_empty() && self.goal.blocked.is_empty());
        replica.take_part(lacks, std::mem::take(&mut self.goal.kept));
        let times = self.directory_times();
        replica.set_directory_times(times);
        let done = match self.takes() {
            true if !self.nothing => {
                replica.keep_bases(&self.bases);
                replica.adopt(&snapshot, &self.merged.tree, &self.ops)?
            }
            _ => Done::default(),
        };
        // On the fast path, the side that is ahead has sent everything already.
        if self.state != State::Taken {
            self.tell_troubles(true, replica);
            self.tell_partly(&done, replica)?;
        }
        self.skip(done.skipped.clone());
        Ok(done)
    }
}

fn known(replica: &dyn Replica) -> Known {
    Known {
        head: replica.head(),
        snapshots: replica.dag().iter().map(|(_, snapshot)| snapshot.clone()).collect(),
        trees: replica.trees().into_iter().collect(),
        heads: replica.heads().into_iter().collect(),
        begun: has_begun(replica),
    }
}

/// Returns whether a peer cannot determine what this side needs by the snapshots alone.
fn has_begun(replica: &dyn Replica) -> bool {
    replica.has_staged() || replica.is_partial()
}

#[cfg(test)]
mod simulator;
