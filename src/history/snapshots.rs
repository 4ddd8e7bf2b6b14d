//! Snapshots as documents, and the list of them.
//!
//! ```text
//! snapshot = 1 (version) | number | time | replica 16 | machine | name | number of parents | parent 32 *
//!          | files | bytes | open | root entry, as in `node`, with an empty name
//! ```
//! The replica is the store's id; *open* counts files that were being written to.
//!
//! Invariants: a listed snapshot has all its directories and contents in the store. It is listed once its
//! document is durable, which comes after everything that it needs. A removed one is permanently gone once
//! that event is durable ([`super::event::What::SnapshotRemoved`]); only then does a collection ignore it.

use super::budget::Budget;
use super::error::{HistoryError, Result};
use super::event::{Event, What};
use super::keep::unsure;
use super::log::{Log, full_or, is_missing};
use super::node::{self, Entry, Node};
use super::retention::Moments;
use super::schedule;
use super::unreadable::Unreadable;
use super::wire::{Input, put_bytes, put_time};
use crate::backing::stub::Time;
use crate::db::{Db, Layout, Runs, Table};
use crate::id::{DocumentId, RecipeId, StoreId};
use crate::recipe::put_varint;
use crate::store::{Collection, DocumentKind, Store, StoreError};
use crate::tree::KeptForHistory;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const VERSION: u8 = 1;
const PARENTS_MAX: u64 = 64;
/// Digits of an id in messages.
const SHOWN_DIGITS: usize = 16;
const SNAPSHOTS: Runs = Runs::new(Layout { table: Table::Snapshots, row_len: 8 + 32, key_len: 8 });

/// A snapshot of the whole overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number among the replica's snapshots, from 1.
    pub number: u64,
    /// When it was taken.
    pub time: Time,
    /// The id of the store.
    pub replica: StoreId,
    /// The machine.
    pub machine: String,
    /// A name that finds it and keeps it until it is removed; empty for none.
    pub name: String,
    /// Its predecessors.
    pub parents: Vec<DocumentId>,
    /// Regular files in it; hard links count each.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Files that were being written to: they have the content of their last close, or are missing.
    pub open: u64,
    /// The root directory.
    pub root: Entry,
}

impl Snapshot {
    /// Encodes it; its id is the hash of the result.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.number);
        put_time(&mut out, self.time);
        out.extend_from_slice(&self.replica.0);
        put_bytes(&mut out, self.machine.as_bytes());
        put_bytes(&mut out, self.name.as_bytes());
        put_varint(&mut out, self.parents.len() as u64);
        self.parents.iter().for_each(|parent| out.extend_from_slice(&parent.0));
        for number in [self.files, self.bytes, self.open] {
            put_varint(&mut out, number);
        }
        self.root.encode(&mut out);
        out
    }

    /// Decodes [`Snapshot::encode`]'s output; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Snapshot> {
        let mut input = Input(bytes);
        if input.byte()? != VERSION {
            return None;
        }
        let (number, time) = (input.number()?, input.time()?);
        let replica = StoreId(input.array()?);
        let machine = String::from_utf8(input.bytes()?.to_vec()).ok()?;
        let name = String::from_utf8(input.bytes()?.to_vec()).ok()?;
        let count = input.number().filter(|count| *count <= PARENTS_MAX)?;
        let parents = (0..count).map(|_| input.array().map(DocumentId)).collect::<Option<Vec<_>>>()?;
        let (files, bytes, open) = (input.number()?, input.number()?, input.number()?);
        let root = Entry::decode(&mut input)?;
        let is_root = matches!(root.node, Node::Directory(_)) && root.name.is_empty();
        (is_root && input.ended()).then_some(Snapshot {
            number,
            time,
            replica,
            machine,
            name,
            parents,
            files,
            bytes,
            open,
            root,
        })
    }

    /// Returns the node of the root directory.
    pub fn root_node(&self) -> DocumentId {
        match self.root.node {
            Node::Directory(id) => id,
            _ => DocumentId([0; 32]),
        }
    }

    /// Whether only an explicit removal drops it: a user named it.
    pub fn is_pinned(&self) -> bool {
        !self.name.is_empty() && !self.is_scheduled()
    }

    /// Whether the daemon took it on schedule: it has the name that its time gives.
    pub fn is_scheduled(&self) -> bool {
        self.name.starts_with(schedule::NAME_PREFIX) && self.name == schedule::name_at(self.time.sec)
    }

    /// Whether this name finds it.
    pub fn is_named(&self, text: &str) -> bool {
        !text.is_empty() && self.name == text
    }
}

/// Returns the first digits of an id, as people see and type them.
pub fn short_id(id: &DocumentId) -> String {
    id.to_string()[..SHOWN_DIGITS].to_owned()
}

/// A collection's view of the history.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) moments: &'a Moments,
    /// Whether a schedule decides which scheduled snapshots stay. Otherwise the rules do.
    pub(super) scheduled: bool,
    /// Nothing is dropped.
    pub(super) dry_run: bool,
    /// A snapshot to ignore.
    pub(super) except: Option<&'a DocumentId>,
}

impl Wanted<'_> {
    fn counts(&self, id: &DocumentId) -> bool {
        self.except != Some(id)
    }
}

/// The snapshots of one overlay.
pub(super) struct Snapshots {
    store: Arc<Store>,
    db: Arc<dyn Db>,
    /// Held while snapshots are created, removed or marked ([`Snapshots::change`]), so that the base of a new
    /// one stays.
    changing: Mutex<()>,
    listed: Mutex<BTreeMap<u64, (DocumentId, Arc<Snapshot>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Snapshots {
    /// Loads those of `db`, and of `found`, which no index covered, except `removed`.
    pub(super) fn open(
        store: &Arc<Store>,
        db: Arc<dyn Db>,
        found: &[DocumentId],
        removed: &[DocumentId],
        read_only: bool,
    ) -> Result<Snapshots> {
        let mut known = HashMap::new();
        SNAPSHOTS.scan(&*db, &[], |row| {
            let (number, id) = row.split_at(8);
            known.insert(DocumentId(id.try_into().unwrap_or_default()), number.to_vec());
            true
        })?;
        let new = found.iter().copied().filter(|id| !known.contains_key(id));
        let (mut listed, mut rows, mut gone) = (BTreeMap::new(), Vec::new(), Vec::new());
        for id in known.keys().copied().chain(new) {
            let row_of = known.get(&id);
            match read(store, &id) {
                _ if removed.contains(&id) => gone.extend(row_of.into_iter().flatten()),
                Ok(snapshot) => {
                    if row_of.is_none() {
                        rows.extend(row(snapshot.number, &id));
                    }
                    listed.insert(snapshot.number, (id, Arc::new(snapshot)));
                }
                // Its row was written first, and a crash came before the snapshot.
                Err(HistoryError::Store(e)) if is_missing(&e) => gone.extend(row_of.into_iter().flatten()),
                Err(e) => tracing::error!("snapshot {} cannot be read: {e}", short_id(&id)),
            }
        }
        // Written only if there are changes. Never all at once: a crash in between would leave none.
        let changed = !rows.is_empty() || !gone.is_empty();
        if changed && !read_only {
            full_or(SNAPSHOTS.merge(&*db, rows, gone))?;
        }
        let (store, listed) = (store.clone(), Mutex::new(listed));
        Ok(Snapshots { store, db, changing: Mutex::new(()), listed })
    }

    /// Keeps other threads from creating, removing or marking snapshots.
    pub(super) fn change(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    /// Returns all snapshots, the oldest first.
    pub(super) fn all(&self) -> Vec<(DocumentId, Arc<Snapshot>)> {
        lock(&self.listed).values().cloned().collect()
    }

    /// Returns the snapshot with this name, or whose id begins like this.
    pub(super) fn find(&self, text: &str) -> Result<(DocumentId, Arc<Snapshot>)> {
        let all = self.all();
        if let Some(named) = all.iter().find(|(_, snapshot)| snapshot.is_named(text)) {
            return Ok(named.clone());
        }
        let lower = text.to_ascii_lowercase();
        let mut matching =
            all.into_iter().filter(|(id, _)| lower.len() >= 4 && id.to_string().starts_with(&lower));
        match (matching.next(), matching.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Err(HistoryError::Ambiguous(text.to_owned())),
            (None, _) => Err(HistoryError::NoSnapshot(text.to_owned())),
        }
    }

    /// Lists a snapshot whose directories and contents are in the store. All of it is durable on return.
    pub(super) fn add(&self, snapshot: Snapshot) -> Result<(DocumentId, Arc<Snapshot>)> {
        let encoded = snapshot.encode();
        let id = DocumentId::of(&encoded);
        SNAPSHOTS.merge(&*self.db, row(snapshot.number, &id), Vec::new())?;
        // First everything that it needs.
        self.store.sync()?;
        let mut writer = self.store.writer();
        writer.put_document(DocumentKind::Snapshot, &encoded)?;
        writer.flush()?;
        self.store.sync()?;
        let snapshot = Arc::new(snapshot);
        lock(&self.listed).insert(snapshot.number, (id, snapshot.clone()));
        Ok((id, snapshot))
    }

    /// Durably removes a snapshot from the list.
    pub(super) fn remove(&self, log: &Log, id: &DocumentId) -> Result<()> {
        let number = lock(&self.listed).iter().find(|(_, (of, _))| of == id).map(|(number, _)| *number);
        let Some(number) = number else { return Ok(()) };
        log.add(Event { time: Time::now(), what: What::SnapshotRemoved(*id) });
        log.write()?;
        self.store.sync()?;
        SNAPSHOTS.merge(&*self.db, Vec::new(), number.to_be_bytes().to_vec())?;
        lock(&self.listed).remove(&number);
        Ok(())
    }

    /// Reports named snapshots to the collection. The caller holds [`Snapshots::change`] until after
    /// [`Snapshots::mark_unnamed`]. False if `keep_going` returned false.
    pub(super) fn mark_named(
        &self,
        collection: &Collection<'_>,
        unreadable: &mut Unreadable<'_>,
        wanted: Wanted<'_>,
        kept: &mut KeptForHistory,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let all = self.all();
        let named = all.iter().filter(|(id, snapshot)| snapshot.is_pinned() && wanted.counts(id));
        let mut seen = HashSet::new();
        for (id, snapshot) in named {
            match self.mark_one((id, snapshot), collection, unreadable, &mut seen, keep_going)? {
                Some(bytes) => kept.bytes += bytes,
                None => return Ok(false),
            }
            kept.snapshots += 1;
        }
        Ok(true)
    }

    /// Drops snapshots without a user's name that the rules do not keep or that exceed the budget, unless `dry_run`, and
    /// reports the rest to the collection, the newest first. A schedule decides instead of the rules about its own
    /// snapshots. The newest unnamed and the newest scheduled one stay. False if `keep_going` returned false.
    pub(super) fn mark_unnamed(
        &self,
        log: &Log,
        collection: &Collection<'_>,
        unreadable: &mut Unreadable<'_>,
        (budget, kept): (&mut Budget, &mut KeptForHistory),
        wanted: Wanted<'_>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let choose = !budget.covers(collection.stored_bytes());
        let mut unnamed = self.all();
        unnamed.retain(|(_, snapshot)| !snapshot.is_pinned());
        // Apart: a scheduled snapshot must not change how long a user's is kept.
        let (mut seen, mut next) = (HashSet::new(), [None; 2]);
        for (id, snapshot) in unnamed.iter().rev() {
            let scheduled = snapshot.is_scheduled();
            let next = &mut next[usize::from(scheduled)];
            let newest = next.is_none();
            let ruled = wanted.moments.keep_snapshot(snapshot.time.sec, next.replace(snapshot.time.sec))
                || (scheduled && wanted.scheduled);
            let mut stays = ruled;
            if ruled && choose && !newest && wanted.counts(id) {
                let add = &mut |recipe: &RecipeId| collection.bytes_more(recipe);
                let Some(cost) =
                    self.walk(&snapshot.root_node(), unreadable, &mut HashSet::new(), add, keep_going)?
                else {
                    return Ok(false);
                };
                stays = budget.fits(cost);
                kept.thinned += u64::from(!stays);
            }
            if !stays {
                if !wanted.dry_run {
                    self.remove(log, id)?;
                }
            } else if wanted.counts(id) {
                let Some(bytes) =
                    self.mark_one((id, snapshot), collection, unreadable, &mut seen, keep_going)?
                else {
                    return Ok(false);
                };
                budget.spend(bytes);
                kept.bytes += bytes;
                kept.yielding_bytes += bytes;
                kept.snapshots += 1;
            }
        }
        Ok(true)
    }

    /// Reports one to the collection; returns how many more bytes on disk it needs. `None` if `keep_going`
    /// returned false.
    fn mark_one(
        &self,
        (id, snapshot): (&DocumentId, &Snapshot),
        collection: &Collection<'_>,
        unreadable: &mut Unreadable<'_>,
        seen: &mut HashSet<[u8; 16]>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<u64>> {
        self.store.knows_document(DocumentKind::Snapshot, id)?;
        let add = &mut |recipe: &RecipeId| collection.keep_more(recipe);
        self.walk(&snapshot.root_node(), unreadable, seen, add, keep_going)
            .map_err(|e| unsure(format!("snapshot {}", short_id(id)), e))
    }

    /// Visits the directories from `id` on that are not in `seen`, and sums the results of `add` for the
    /// contents.
    fn walk(
        &self,
        id: &DocumentId,
        unreadable: &mut Unreadable<'_>,
        seen: &mut HashSet<[u8; 16]>,
        add: &mut dyn FnMut(&RecipeId) -> std::result::Result<u64, StoreError>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<u64>> {
        let (mut left, mut sum) = (vec![*id], 0);
        while let Some(id) = left.pop() {
            if !keep_going() {
                return Ok(None);
            }
            let mut new = |id: &DocumentId| seen.insert(id.0.first_chunk().copied().unwrap_or_default());
            let mut visit = |entries: Vec<Entry>| {
                for entry in entries {
                    match entry.node {
                        Node::Directory(below) => left.push(below),
                        Node::File { recipe: Some(recipe), .. } => match add(&recipe) {
                            Ok(bytes) => sum += bytes,
                            Err(e) => {
                                let what = format!("{:?} in a snapshot", entry.name);
                                unreadable.leave(&what, &recipe.0, e.into())?;
                            }
                        },
                        _ => {}
                    }
                }
                Ok(())
            };
            let walked = node::each_leaf(&self.store, &id, &mut new, node::PAGES_DEPTH_MAX, &mut visit);
            if let Err(e) = walked {
                unreadable.leave(&"a directory of a snapshot", &id.0, e)?;
            }
        }
        Ok(Some(sum))
    }
}

pub(super) fn read(store: &Store, id: &DocumentId) -> Result<Snapshot> {
    let bytes = store.document(DocumentKind::Snapshot, id)?;
    Snapshot::decode(&bytes).ok_or(HistoryError::Form { what: "a snapshot", document: *id })
}

fn row(number: u64, id: &DocumentId) -> Vec<u8> {
    [&number.to_be_bytes()[..], &id.0].concat()
}
