//! The log: all events in order, in batches, with an index by path and by file.
//!
//! ```text
//! add -> pending (memory) -> batch: row of its number -> document -> (synced with the next commit, or by `flush`)
//!     -> rows of paths and files (memory) -> merged in bulk into the database -> "merged up to" in Meta
//! ```
//!
//! Invariants: batches in packs are authoritative, and all rows can be rebuilt from them. A batch's row
//! enters the database before its document enters a pack. So documents that the pack index covers have rows,
//! and the store reports the others on open ([`Store::take_documents_found`]). Rows of documents that were
//! never written are dropped then.
//!
//! Memory: events until they are written, at most [`UNWRITTEN_MAX`] batches if the store takes no writes
//! (then events are dropped, with one log message); rows until they are merged, about [`RECENT_MAX`].
//!
//! Lock order: `writing`, then `state`.

use super::error::{HistoryError, Result};
use super::event::{BATCH_EVENTS_MAX, Batch, Event, EventId, What};
use crate::db::{Db, DbError, DbResult, Layout, Runs, Table};
use crate::id::{DocumentId, FileId};
use crate::store::{DocumentKind, Store, StoreError};
use quick_cache::sync::Cache;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limit of batches that wait for a store that takes no writes.
const UNWRITTEN_MAX: usize = 64;
/// Rows gathered before they are merged.
const RECENT_MAX: usize = 32 << 10;
/// Cached decoded batches, about 100 KiB each.
const CACHED_MAX: usize = 32;

const BATCHES: Runs = Runs::new(Layout { table: Table::Batches, row_len: 8 + 32, key_len: 8 });
/// Hash of the path 8 | event 8 | seconds 8 | kind 1.
const PATHS: Runs = Runs::new(Layout { table: Table::PathEvents, row_len: 25, key_len: 16 });
/// File id 8 | event 8 | seconds 8 | kind 1.
const FILES: Runs = Runs::new(Layout { table: Table::FileEvents, row_len: 25, key_len: 16 });
/// Row of `Table::Meta`: 1 (version) | batches below this number have their rows in the database 8.
const STATE: &[u8] = b"history";
const STATE_VERSION: u8 = 1;

/// Role of an event for one of its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// The file at the path got a content.
    Version,
    /// The entry was renamed to another path.
    Left { directory: bool },
    /// An entry was renamed to the path.
    Came { directory: bool },
    /// The entry was exchanged with another.
    Exchanged { directory: bool },
    /// The entry was removed.
    Removed { directory: bool },
}

const DIRECTORY: u8 = 0x80;

impl Role {
    fn encode(self) -> u8 {
        let (kind, directory) = match self {
            Role::Version => (1, false),
            Role::Left { directory } => (2, directory),
            Role::Came { directory } => (3, directory),
            Role::Exchanged { directory } => (4, directory),
            Role::Removed { directory } => (5, directory),
        };
        if directory { kind | DIRECTORY } else { kind }
    }

    fn decode(byte: u8) -> Option<Role> {
        let directory = byte & DIRECTORY != 0;
        Some(match byte & !DIRECTORY {
            1 => Role::Version,
            2 => Role::Left { directory },
            3 => Role::Came { directory },
            4 => Role::Exchanged { directory },
            5 => Role::Removed { directory },
            _ => return None,
        })
    }

    pub(super) fn of_directory(self) -> bool {
        self.encode() & DIRECTORY != 0
    }
}

/// An event, as found by a path or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) event: EventId,
    /// Seconds since 1970.
    pub(super) time: i64,
    pub(super) role: Role,
}

#[derive(Default)]
struct State {
    pending: Vec<Event>,
    /// The future number of `pending`.
    next: u64,
    /// Batches whose documents are not in the store yet.
    unwritten: BTreeMap<u64, Arc<Batch>>,
    /// Rows that are not in the database yet.
    paths: BTreeMap<(u64, EventId), Row>,
    files: BTreeMap<(u64, EventId), Row>,
    dropping: bool,
}

pub(super) struct Log {
    store: Arc<Store>,
    db: Arc<dyn Db>,
    machine: String,
    state: Mutex<State>,
    /// Held while batches are written or rows merged: the number up to which rows are merged.
    writing: Mutex<u64>,
    cache: Cache<u64, Arc<Batch>>,
    /// Batches found on open that a read-only database has no row for.
    beside: BTreeMap<u64, DocumentId>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the hash that finds events of a path.
pub(super) fn hash(path: &Path) -> u64 {
    let hash = blake3::hash(path.as_os_str().as_bytes());
    hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl Log {
    /// Opens the log in `db` and `store`, and adds `found`, batches that no index covered. Also returns
    /// whether there was no log yet, and the snapshots that those batches remove.
    pub(super) fn open(
        store: Arc<Store>,
        db: Arc<dyn Db>,
        machine: String,
        found: &[DocumentId],
        read_only: bool,
    ) -> Result<(Log, bool, Vec<DocumentId>)> {
        let state = db.get(Table::Meta, STATE)?;
        let merged = state.as_deref().and_then(decode_state);
        let mut log = Log {
            store,
            db,
            machine,
            state: Mutex::default(),
            writing: Mutex::new(merged.unwrap_or(0)),
            cache: Cache::new(CACHED_MAX),
            beside: BTreeMap::new(),
        };
        if merged.is_none() && !read_only {
            [Table::Batches, Table::PathEvents, Table::FileEvents]
                .into_iter()
                .try_for_each(|table| log.db.clear(table, &[]))?;
            full_or(log.db.put(Table::Meta, STATE, &encode_state(0)))?;
        }
        let (extra, removed) = log.take_in(found, read_only)?;
        if read_only {
            log.beside = extra.clone();
        }
        log.load(merged.unwrap_or(0), extra, read_only)?;
        Ok((log, state.is_none() && found.is_empty(), removed))
    }

    /// Adds missing rows of batches that were found in the packs. A read-only log keeps them in memory.
    fn take_in(
        &self,
        found: &[DocumentId],
        read_only: bool,
    ) -> Result<(BTreeMap<u64, DocumentId>, Vec<DocumentId>)> {
        let (mut newest, mut removed) = (BTreeMap::<u64, (u64, DocumentId)>::new(), Vec::new());
        for id in found {
            let batch = match self.read(id) {
                Ok(batch) => batch,
                Err(e) => {
                    tracing::error!("a part of the history cannot be read: {e}");
                    continue;
                }
            };
            removed.extend(batch.events.iter().filter_map(|event| match event.what {
                What::SnapshotRemoved(id) => Some(id),
                _ => None,
            }));
            let known = newest.get(&batch.number).map(|(revision, _)| *revision);
            if known.is_none_or(|known| known < batch.revision) {
                newest.insert(batch.number, (batch.revision, *id));
            }
        }
        let mut rows = Vec::new();
        let mut extra = BTreeMap::new();
        for (number, (revision, id)) in newest {
            let known = BATCHES.find(&*self.db, &number.to_be_bytes())?.map(|row| document_at(&row));
            let known = known.and_then(|known| self.read(&known).ok());
            if known.is_none_or(|known| known.revision < revision) {
                rows.extend(batch_row(number, &id));
                extra.insert(number, id);
            }
        }
        if !read_only {
            BATCHES.merge(&*self.db, rows, Vec::new())?;
        }
        Ok((extra, removed))
    }

    /// Gathers the rows of the batches from `merged` on.
    fn load(&self, merged: u64, extra: BTreeMap<u64, DocumentId>, read_only: bool) -> Result<()> {
        let mut batches = BTreeMap::new();
        BATCHES.scan_from(&*self.db, &[], &merged.to_be_bytes(), |row| {
            batches.insert(number_at(row, 0), document_at(row));
            true
        })?;
        batches.extend(extra);
        let mut gone = Vec::new();
        lock(&self.state).next = merged;
        for (number, id) in batches {
            if !self.store.knows_document(DocumentKind::Events, &id)? {
                gone.extend(number.to_be_bytes());
                continue;
            }
            let mut state = lock(&self.state);
            state.next = state.next.max(number + 1);
            drop(state);
            match self.read(&id) {
                Ok(batch) => {
                    self.add_rows(&mut lock(&self.state), &batch.events, number, 0);
                    self.cache.insert(number, Arc::new(batch));
                }
                Err(e) => tracing::error!("batch {number} of the history cannot be read: {e}"),
            }
            if !read_only {
                self.merge_if_many()?;
            }
        }
        if !read_only {
            full_or(BATCHES.merge(&*self.db, Vec::new(), gone))?;
            match self.merge(&mut lock(&self.writing)) {
                Err(HistoryError::Db(e)) => full_or(Err(e))?,
                merged => merged?,
            }
        }
        Ok(())
    }

    pub(super) fn db(&self) -> &Arc<dyn Db> {
        &self.db
    }

    fn read(&self, id: &DocumentId) -> Result<Batch> {
        let bytes = self.store.document(DocumentKind::Events, id)?;
        Batch::decode(&bytes).ok_or(HistoryError::Form { what: "events", document: *id })
    }

    /// Adds an event, in memory only: returns at once.
    pub(super) fn add(&self, event: Event) {
        let mut state = lock(&self.state);
        if state.unwritten.len() >= UNWRITTEN_MAX {
            if !std::mem::replace(&mut state.dropping, true) {
                tracing::error!("the store takes no writes: changes of files are not recorded until it does");
            }
            return;
        }
        state.dropping = false;
        let (number, place) = (state.next, state.pending.len());
        self.add_rows(&mut state, std::slice::from_ref(&event), number, place);
        state.pending.push(event);
        if state.pending.len() >= BATCH_EVENTS_MAX {
            self.close_batch(&mut state);
        }
    }

    fn close_batch(&self, state: &mut State) {
        if state.pending.is_empty() {
            return;
        }
        let events = std::mem::take(&mut state.pending);
        let batch = Batch { number: state.next, revision: 0, machine: self.machine.clone(), events };
        state.unwritten.insert(state.next, Arc::new(batch));
        state.next += 1;
    }

    fn add_rows(&self, state: &mut State, events: &[Event], number: u64, first: usize) {
        for (i, event) in events.iter().enumerate() {
            let id = EventId::new(number, first + i);
            let row = |role| Row { event: id, time: event.time.sec, role };
            match &event.what {
                What::Version(version) => {
                    state.paths.insert((hash(&version.path), id), row(Role::Version));
                    state.files.insert((version.file.0, id), row(Role::Version));
                }
                What::Renamed { from, to, directory, exchanged } => {
                    let directory = *directory;
                    let (left, came) = match exchanged {
                        true => (Role::Exchanged { directory }, Role::Exchanged { directory }),
                        false => (Role::Left { directory }, Role::Came { directory }),
                    };
                    state.paths.insert((hash(from), id), row(left));
                    state.paths.insert((hash(to), id), row(came));
                }
                What::Removed { path, directory } => {
                    let role = Role::Removed { directory: *directory };
                    state.paths.insert((hash(path), id), row(role));
                }
                What::Linked { to, .. } => {
                    state.paths.insert((hash(to), id), row(Role::Came { directory: false }));
                }
                What::SnapshotRemoved(_) | What::Gone => {}
            }
        }
    }

    /// Whether there are full batches to write.
    pub(super) fn has_full_batches(&self) -> bool {
        !lock(&self.state).unwritten.is_empty()
    }

    /// Writes all events added so far to the store, in batches below the returned number. Durable after
    /// [`Store::sync`].
    pub(super) fn write(&self) -> Result<u64> {
        let mut writing = lock(&self.writing);
        let (end, batches): (u64, Vec<_>) = {
            let mut state = lock(&self.state);
            self.close_batch(&mut state);
            (state.next, state.unwritten.values().cloned().collect())
        };
        let mut writer = self.store.writer();
        for batch in batches {
            let encoded = batch.encode();
            BATCHES.merge(&*self.db, batch_row(batch.number, &DocumentId::of(&encoded)), Vec::new())?;
            writer.put_document(DocumentKind::Events, &encoded)?;
            writer.flush()?;
            lock(&self.state).unwritten.remove(&batch.number);
            self.cache.insert(batch.number, batch);
        }
        let many = { lock(&self.state).paths.len() } > RECENT_MAX;
        if many {
            self.merge(&mut writing)?;
        }
        Ok(end)
    }

    /// Moves all rows to the database. Durable after its flush.
    pub(super) fn persist(&self) -> Result<()> {
        self.write()?;
        self.merge(&mut lock(&self.writing))
    }

    fn merge_if_many(&self) -> Result<()> {
        let many = { lock(&self.state).paths.len() } > RECENT_MAX;
        if many { self.merge(&mut lock(&self.writing)) } else { Ok(()) }
    }

    fn merge(&self, merged: &mut u64) -> Result<()> {
        let (upto, paths, files) = {
            let state = lock(&self.state);
            let upto = state.unwritten.keys().next().copied().unwrap_or(state.next);
            let rows = |rows: &BTreeMap<(u64, EventId), Row>| -> Vec<u8> {
                let done = rows.iter().filter(|((_, event), _)| event.batch() < upto);
                done.flat_map(|((key, _), row)| encode_row(*key, row)).collect()
            };
            (upto, rows(&state.paths), rows(&state.files))
        };
        if upto == *merged && paths.is_empty() {
            return Ok(());
        }
        PATHS.merge(&*self.db, paths, Vec::new())?;
        FILES.merge(&*self.db, files, Vec::new())?;
        self.db.put(Table::Meta, STATE, &encode_state(upto))?;
        *merged = upto;
        let mut state = lock(&self.state);
        state.paths.retain(|(_, event), _| event.batch() >= upto);
        state.files.retain(|(_, event), _| event.batch() >= upto);
        Ok(())
    }

    /// Returns the events of a path in order, including those of other paths with the same hash.
    pub(super) fn of_path(&self, path: &Path) -> Result<Vec<Row>> {
        self.rows(&PATHS, hash(path), EventId(0), usize::MAX, |state| &state.paths)
    }

    /// Returns the first event of a path after `after`.
    pub(super) fn after(&self, path: &Path, after: EventId) -> Result<Option<Row>> {
        let rows = self.rows(&PATHS, hash(path), EventId(after.0 + 1), 1, |state| &state.paths)?;
        Ok(rows.first().copied())
    }

    /// Returns the versions of a file in order, including those of earlier files with its number.
    pub(super) fn of_file(&self, file: FileId) -> Result<Vec<Row>> {
        self.rows(&FILES, file.0, EventId(0), usize::MAX, |state| &state.files)
    }

    fn rows(
        &self,
        table: &Runs,
        key: u64,
        from: EventId,
        limit: usize,
        recent: impl Fn(&State) -> &BTreeMap<(u64, EventId), Row>,
    ) -> Result<Vec<Row>> {
        // Memory first: a row leaves memory only once it is in the database.
        let mut found: Vec<Row> = {
            let state = lock(&self.state);
            let rows = recent(&state).range((key, from)..=(key, EventId(u64::MAX)));
            rows.map(|(_, row)| *row).take(limit).collect()
        };
        let (prefix, mut damaged, mut left) = (key.to_be_bytes(), false, limit);
        let start = [prefix, from.0.to_be_bytes()].concat();
        table.scan_from(&*self.db, &prefix, &start, |row| {
            match decode_row(row) {
                Some(row) => found.push(row),
                None => damaged = true,
            }
            left -= 1;
            left > 0
        })?;
        if damaged {
            return Err(HistoryError::Rows);
        }
        found.sort_unstable();
        found.dedup();
        found.truncate(limit);
        Ok(found)
    }

    /// Returns a batch; `None` if there is none with that number.
    pub(super) fn batch(&self, number: u64) -> Result<Option<Arc<Batch>>> {
        {
            let state = lock(&self.state);
            if let Some(batch) = state.unwritten.get(&number) {
                return Ok(Some(batch.clone()));
            }
            if number == state.next && !state.pending.is_empty() {
                let (machine, events) = (self.machine.clone(), state.pending.clone());
                return Ok(Some(Arc::new(Batch { number, revision: 0, machine, events })));
            }
        }
        if let Some(batch) = self.cache.get(&number) {
            return Ok(Some(batch));
        }
        let Some(id) = self.document_of(number)? else { return Ok(None) };
        let batch = Arc::new(self.read(&id)?);
        self.cache.insert(number, batch.clone());
        Ok(Some(batch))
    }

    /// Returns the event and its machine.
    pub(super) fn event(&self, id: EventId) -> Result<Option<(Event, String)>> {
        let Some(batch) = self.batch(id.batch())? else { return Ok(None) };
        Ok(batch.events.get(id.place()).map(|event| (event.clone(), batch.machine.clone())))
    }

    /// Marks a batch as needed for a collection, and reads it from the store.
    pub(super) fn use_batch(&self, number: u64) -> Result<Option<Arc<Batch>>> {
        match self.document_of(number)? {
            Some(id) => Ok(Some(Arc::new(self.read(&id)?))),
            None => self.batch(number),
        }
    }

    fn document_of(&self, number: u64) -> Result<Option<DocumentId>> {
        if let Some(id) = self.beside.get(&number) {
            return Ok(Some(*id));
        }
        Ok(BATCHES.find(&*self.db, &number.to_be_bytes())?.map(|row| document_at(&row)))
    }

    /// Removes the rows of events.
    pub(super) fn forget_rows(&self, events: &[(EventId, Event)]) -> Result<()> {
        let _writing = lock(&self.writing);
        let (mut paths, mut files) = (Vec::new(), Vec::new());
        let mut state = lock(&self.state);
        let forget = |rows: &mut BTreeMap<_, _>, gone: &mut Vec<u8>, key: u64, id: EventId| {
            rows.remove(&(key, id));
            gone.extend([key.to_be_bytes(), id.0.to_be_bytes()].concat());
        };
        for (id, event) in events {
            for path in event.what.paths() {
                forget(&mut state.paths, &mut paths, hash(path), *id);
            }
            if let What::Version(version) = &event.what {
                forget(&mut state.files, &mut files, version.file.0, *id);
            }
        }
        drop(state);
        PATHS.merge(&*self.db, Vec::new(), paths)?;
        Ok(FILES.merge(&*self.db, Vec::new(), files)?)
    }

    /// Durably replaces batches with higher revisions of the same numbers.
    pub(super) fn replace(&self, batches: Vec<Batch>) -> Result<()> {
        if batches.is_empty() {
            return Ok(());
        }
        let _writing = lock(&self.writing);
        let (mut writer, mut rows) = (self.store.writer(), Vec::new());
        for batch in &batches {
            rows.extend(batch_row(
                batch.number,
                &writer.put_document(DocumentKind::Events, &batch.encode())?,
            ));
        }
        writer.flush()?;
        self.store.sync()?;
        BATCHES.merge(&*self.db, rows, Vec::new())?;
        self.db.flush()?;
        for batch in batches {
            self.cache.insert(batch.number, Arc::new(batch));
        }
        Ok(())
    }
}

/// Records in the database of a new store that there is no history yet, and that none was lost.
pub fn begin(db: &dyn Db) -> DbResult<()> {
    db.put(Table::Meta, STATE, &encode_state(0))
}

/// Ignores a full disk, which must be openable so that space can be freed: the rows are merged later.
pub(super) fn full_or(result: DbResult<()>) -> DbResult<()> {
    match result {
        Err(DbError::Full { .. }) => Ok(()),
        other => other,
    }
}

fn encode_state(merged: u64) -> Vec<u8> {
    [&[STATE_VERSION][..], &merged.to_be_bytes()].concat()
}

fn decode_state(value: &[u8]) -> Option<u64> {
    let (version, number) = value.split_first()?;
    (*version == STATE_VERSION).then_some(())?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

fn number_at(row: &[u8], at: usize) -> u64 {
    row[at..at + 8].iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn document_at(row: &[u8]) -> DocumentId {
    let mut id = [0; 32];
    id.copy_from_slice(&row[8..40]);
    DocumentId(id)
}

fn batch_row(number: u64, id: &DocumentId) -> Vec<u8> {
    [&number.to_be_bytes()[..], &id.0].concat()
}

fn encode_row(key: u64, row: &Row) -> Vec<u8> {
    let mut out = Vec::with_capacity(25);
    out.extend(key.to_be_bytes());
    out.extend(row.event.0.to_be_bytes());
    out.extend(row.time.to_be_bytes());
    out.push(row.role.encode());
    out
}

fn decode_row(row: &[u8]) -> Option<Row> {
    let role = Role::decode(row[24])?;
    Some(Row { event: EventId(number_at(row, 8)), time: number_at(row, 16) as i64, role })
}

/// Whether an error means that the object is missing, which is no damage.
pub(super) fn is_missing(error: &StoreError) -> bool {
    matches!(error, StoreError::Missing { .. } | StoreError::NoDocument { .. })
}
