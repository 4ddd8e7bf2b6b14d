//! Creation of a snapshot: the tree as documents, at one moment.
//!
//! ```text
//! settle -> (the last tree of this process, or a walk of all metadata) -> hold up changes
//!        -> look again at changes since, and nothing else -> release -> documents durable -> listed
//! ```
//!
//! Promise: the snapshot is the tree at one moment between the call and its answer, for all changes through
//! the mount: no rename is half in it. A closed file has its content at the close. A file that was being
//! written to has its last stored content, or is missing if it was never stored; there is no half-written
//! save.
//!
//! Only changes are examined if this process took the last snapshot, that snapshot still exists, and the bare
//! directory cannot have changed: the overlay is mounted over the directory itself. Otherwise all names and
//! attributes are examined, and the contents of plain files that may have changed (`plain`). A new tree below
//! a renamed directory is walked too.

use super::error::{HistoryError, Result};
use super::event::{Event, What};
use super::log::{Log, Role};
use super::node::{self, Entry, Node};
use super::plain::PlainFiles;
use super::schedule;
use super::snapshots::Snapshot;
use super::{History, short_id};
use crate::backing::stub::Time;
use crate::backing::types::Kind;
use crate::id::{DocumentId, FileId, RecipeId, StoreId};
use crate::maintain::{Held, INSTALL_PREFIX, Met};
use crate::overlay::Overlay;
use crate::store::{Store, Writer};
use crate::tree::{Change, Meta};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer names cannot be names of directories.
const NAME_BYTES_MAX: usize = 200;

/// While changes are held up, files that seem open are examined again after this time,
const CLOSE_WAIT: Duration = Duration::from_millis(2);
/// at most this many times.
const CLOSE_WAITS: u32 = 20;
/// While files are being saved, the snapshot tries another moment this many times, and waits twice as long
/// for such files each time.
const SAVE_TRIES: u32 = 5;
/// Plain files read together: at most this many,
const TOGETHER_MAX: usize = 128;
/// and this many bytes, except for a single file.
const TOGETHER_BYTES: u64 = 64 << 20;
/// After this many walks during which changes were lost, the next one holds up programs.
const WALKS_MAX: u32 = 2;

/// Result of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its id.
    pub id: DocumentId,
    /// The snapshot.
    pub snapshot: std::sync::Arc<Snapshot>,
    /// Whether all metadata were examined.
    pub walked: bool,
    /// Files and directories examined.
    pub looked_at: u64,
    /// Plain files among them whose contents were read.
    pub read: u64,
}

/// The purpose of a snapshot.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// A user wants it, with a name or without.
    User(&'a str),
    /// It is due, unless its tree would be that of the last scheduled one.
    Schedule(fn() -> Time),
}

/// Gets the number of files and directories examined; false asks to stop.
pub type Step<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Content of a part of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    files: i64,
    bytes: i64,
}

/// Known changes at and below a directory.
#[derive(Default)]
struct Changed {
    /// It is new here, so nothing is known of it.
    moved: bool,
    /// Its attributes or names changed.
    touched: bool,
    below: BTreeMap<OsString, Changed>,
}

struct Taker<'a> {
    overlay: &'a Overlay,
    store: &'a Store,
    log: &'a Log,
    writer: Writer,
    step: Step<'a>,
    looked_at: u64,
    read: u64,
    plain: PlainFiles,
    /// Contents of plain files that were read together: [`Taker::plain`] takes them out again.
    ahead: HashMap<PathBuf, Option<(RecipeId, u64)>>,
    open: u64,
    count: Count,
    /// Files among them that are being saved, and whose last content is gone.
    saves: u64,
    /// How many more times to wait for open files.
    patience: u32,
}

impl History {
    /// Takes a snapshot. `alone` says that the bare directory cannot have changed since the last one.
    pub fn snapshot(&self, name: &str, replica: StoreId, alone: bool, step: Step<'_>) -> Result<Taken> {
        check_name(name)?;
        self.take(Purpose::User(name), replica, alone, step)?.ok_or(HistoryError::Interrupted)
    }

    /// Takes a scheduled snapshot, like [`History::snapshot`]. `None` if nothing changed since the last scheduled one:
    /// then nothing is written. `clock` is [`Time::now`], except in tests.
    pub fn scheduled_snapshot(
        &self,
        replica: StoreId,
        alone: bool,
        clock: fn() -> Time,
        step: Step<'_>,
    ) -> Result<Option<Taken>> {
        self.take(Purpose::Schedule(clock), replica, alone, step)
    }

    /// Takes a snapshot; `None` if it is scheduled and nothing changed.
    fn take(
        &self,
        purpose: Purpose<'_>,
        replica: StoreId,
        alone: bool,
        step: Step<'_>,
    ) -> Result<Option<Taken>> {
        let clock = match purpose {
            Purpose::User(_) => Time::now,
            Purpose::Schedule(clock) => clock,
        };
        let overlay = &*self.overlay;
        let (recorder, snapshots) = (&self.recorder, &self.recorder.snapshots);
        if overlay.maintenance.read_only() {
            return Err(crate::contents::OverlayError::ReadOnly.into());
        }
        if !overlay.maintenance.settle(&mut |_| step(0))? {
            return Err(HistoryError::Interrupted);
        }
        let _changing = snapshots.change();
        if let Purpose::User(name) = purpose
            && snapshots.all().iter().any(|(_, known)| known.is_named(name))
        {
            return Err(HistoryError::Name { name: name.to_owned(), reason: "there is one already" });
        }
        // Its references must not be collected before it is listed.
        let _pin = overlay.store().pin();
        let last = snapshots.all().pop();
        let base = self.last_taken().filter(|_| alone);
        let base = snapshots.all().into_iter().find(|(id, _)| Some(*id) == base);
        let mut taker = Taker {
            overlay,
            store: overlay.store(),
            log: &recorder.log,
            writer: overlay.store().writer(),
            step,
            looked_at: 0,
            read: 0,
            plain: PlainFiles::new(recorder.log.db().clone(), overlay.store().stats().damaged == 0),
            ahead: HashMap::new(),
            open: 0,
            count: Count::default(),
            saves: 0,
            patience: 0,
        };
        self.set_last_taken(None);
        let last_root = last.as_ref().map(|(_, last)| last.root_node());
        let (mut walked, mut walks, mut tries) = (base.is_none(), 0, 0);
        let mut root = match &base {
            Some((_, base)) => {
                taker.count = Count { files: base.files as i64, bytes: base.bytes as i64 };
                base.root_node()
            }
            None => {
                overlay.tree.begin_changes();
                taker.walk(Path::new(""), last_root)?
            }
        };
        let (root_met, time) = loop {
            // Files closed during the walk are committed while programs run, not while they wait.
            if walked && !overlay.maintenance.settle(&mut |_| (taker.step)(taker.looked_at))? {
                return Err(HistoryError::Interrupted);
            }
            let still = overlay.tree.stand_still(&mut || (taker.step)(taker.looked_at));
            let Some(_still) = still else { return Err(HistoryError::Interrupted) };
            let changes = overlay.tree.take_changes()?;
            let Some(changes) = changes else {
                // Some changes are unknown: everything is walked while programs run; after too many walks,
                // while they wait.
                walked = true;
                (taker.count, taker.open) = (Count::default(), 0);
                overlay.tree.begin_changes();
                if walks < WALKS_MAX {
                    walks += 1;
                    drop(_still);
                    root = taker.walk(Path::new(""), last_root)?;
                    continue;
                }
                taker.patience = CLOSE_WAITS;
                root = taker.walk(Path::new(""), last_root)?;
                break (overlay.maintenance.snapshot_at(Path::new(""))?, clock());
            };
            (taker.open, taker.saves, taker.patience) = (0, 0, CLOSE_WAITS << tries);
            let mut changed = Changed::default();
            changes.iter().for_each(|(path, change)| changed.note(path, *change));
            // The walked tree is read again.
            taker.writer.flush()?;
            root = taker.update(Path::new(""), root, &changed)?;
            if taker.saves > 0 && tries < SAVE_TRIES {
                tries += 1;
                continue;
            }
            let root_met = overlay.maintenance.snapshot_at(Path::new(""))?;
            break (root_met, clock());
        };
        let root_met =
            root_met.ok_or_else(|| HistoryError::NoSnapshot("the root directory is gone".to_owned()))?;
        taker.writer.flush()?;
        let root = Entry { name: OsString::new(), meta: root_met.meta, node: Node::Directory(root) };
        if let Purpose::Schedule(_) = purpose
            && let Some((id, _)) =
                self.scheduled_snapshots().pop().filter(|(_, last)| same_tree(&last.root, &root))
        {
            // The next one examines the changes since now.
            self.set_last_taken(Some(id));
            taker.end(walked);
            return Ok(None);
        }
        let name = match purpose {
            Purpose::User(name) => name.to_owned(),
            Purpose::Schedule(_) => schedule::name_at(time.sec),
        };
        let snapshot = Snapshot {
            number: last.as_ref().map_or(0, |(_, last)| last.number) + 1,
            time,
            replica,
            machine: super::machine(),
            name,
            parents: last.iter().map(|(id, _)| *id).collect(),
            files: taker.count.files.max(0) as u64,
            bytes: taker.count.bytes.max(0) as u64,
            open: taker.open,
            root,
        };
        // So that an earlier rename is found before it.
        recorder.log.write()?;
        let (id, snapshot) = snapshots.add(snapshot)?;
        self.set_last_taken(Some(id));
        let (looked_at, read) = taker.end(walked);
        Ok(Some(Taken { id, snapshot, walked, looked_at, read }))
    }
}

/// Whether two root directories have the same entries and attributes. Their mtimes may differ: the daemon writes a note
/// into the bare directory when it unmounts.
fn same_tree(a: &Entry, b: &Entry) -> bool {
    a.node == b.node && a.meta == Meta { mtime: a.meta.mtime, ..b.meta.clone() }
}

fn check_name(name: &str) -> Result<()> {
    let bad = |reason| Err(HistoryError::Name { name: name.to_owned(), reason });
    if name.len() > NAME_BYTES_MAX {
        return bad("it is longer than 200 bytes");
    }
    if name.contains(['/', '\0']) || matches!(name, "." | "..") || name.chars().any(char::is_control) {
        return bad("expected one that a directory could have, without control characters");
    }
    if name.starts_with(schedule::NAME_PREFIX) {
        return bad("names that begin like this are those of scheduled snapshots; choose another");
    }
    if name.len() >= 4 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return bad("it could be taken for the beginning of an id");
    }
    Ok(())
}

impl Changed {
    fn note(&mut self, path: &Path, change: Change) {
        let mut at = self;
        for part in path.components() {
            at = at.below.entry(part.as_os_str().to_owned()).or_default();
        }
        match change {
            Change::Touched => at.touched = true,
            Change::Moved => at.moved = true,
        }
    }
}

impl Taker<'_> {
    /// Keeps the known contents of plain files for the next snapshot. Returns how many files were examined and read.
    fn end(self, walked: bool) -> (u64, u64) {
        if let Err(e) = self.plain.end(walked) {
            tracing::warn!("plain files will be read again for the next snapshot after a restart: {e}");
        }
        (self.looked_at, self.read)
    }

    fn look(&mut self) -> Result<()> {
        self.looked_at += 1;
        if self.looked_at.is_multiple_of(1024) && !(self.step)(self.looked_at) {
            return Err(HistoryError::Interrupted);
        }
        Ok(())
    }

    /// Builds the tree of a directory; `before` is its node in the last snapshot.
    fn walk(&mut self, path: &Path, before: Option<DocumentId>) -> Result<DocumentId> {
        let mut known: HashMap<OsString, Entry> = match before.map(|id| node::read(self.store, &id)) {
            Some(Ok(entries)) => entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect(),
            // An unreadable old directory only costs time.
            Some(Err(_)) | None => HashMap::new(),
        };
        let mut entries = Vec::new();
        for names in self.overlay.maintenance.snapshot_names(path)?.unwrap_or_default().chunks(TOGETHER_MAX) {
            let mut met = Vec::with_capacity(names.len());
            for name in names {
                let (path, before) = (path.join(name), known.remove(name));
                met.extend(self.meet(&path)?.map(|met| (path, met, before)));
            }
            self.read_ahead(&met)?;
            for (path, met, before) in met {
                entries.extend(self.entry(&path, met, before.as_ref(), true)?);
            }
        }
        node::write(&mut self.writer, &entries)
    }

    /// Returns the entry at `path`, if snapshots contain its kind.
    fn meet(&mut self, path: &Path) -> Result<Option<Met>> {
        if path.file_name().unwrap_or_default().as_bytes().starts_with(INSTALL_PREFIX.as_bytes()) {
            return Ok(None);
        }
        self.look()?;
        Ok(self.overlay.maintenance.snapshot_at(path)?)
    }

    /// Reads those of these plain files that must be read, together: each one alone would cost more than its
    /// bytes.
    fn read_ahead(&mut self, met: &[(PathBuf, Met, Option<Entry>)]) -> Result<()> {
        let (mut read, mut bytes) = (Vec::new(), 0);
        let time = Time::now();
        for (path, met, before) in met {
            if met.kind != Kind::File || met.held != Held::Plain || !self.overlay.tree.keeps_history(path) {
                continue;
            }
            match before.as_ref().map(|before| &before.node) {
                Some(Node::File { size, recipe: Some(recipe), .. })
                    if *size == met.bytes && self.plain.is(met, *recipe)? =>
                {
                    self.ahead.insert(path.clone(), Some((*recipe, *size)));
                }
                _ => read.push((path, met)),
            }
        }
        let mut rest = &read[..];
        while !rest.is_empty() {
            let fit = rest.iter().take_while(|(_, met)| {
                bytes += met.bytes;
                bytes <= TOGETHER_BYTES
            });
            let (now, later) = rest.split_at(fit.count().max(1));
            let paths: Vec<&Path> = now.iter().map(|(path, _)| path.as_path()).collect();
            self.read += now.len() as u64;
            for ((path, met), stored) in now.iter().zip(self.overlay.maintenance.store_all_plain(&paths)?) {
                if let Some((recipe, _)) = stored {
                    self.plain.note(met, time, recipe)?;
                }
                self.ahead.insert((*path).clone(), stored);
            }
            (rest, bytes) = (later, 0);
        }
        Ok(())
    }

    /// Builds the entry for `path`; with `walk` including everything below it, otherwise a directory of
    /// `before` keeps its content.
    fn entry(&mut self, path: &Path, met: Met, before: Option<&Entry>, walk: bool) -> Result<Option<Entry>> {
        let name = path.file_name().unwrap_or_default();
        let node = match met.kind {
            Kind::File => return self.file(path, met, before),
            Kind::Directory => match before.map(|before| &before.node) {
                Some(Node::Directory(id)) if !walk => Node::Directory(*id),
                Some(Node::Directory(id)) => Node::Directory(self.walk(path, Some(*id))?),
                _ => Node::Directory(self.walk(path, None)?),
            },
            Kind::Symlink => Node::Symlink(met.target),
            Kind::Fifo => Node::Fifo,
            Kind::Socket => Node::Socket,
            Kind::CharDevice => Node::CharDevice(met.rdev),
            Kind::BlockDevice => Node::BlockDevice(met.rdev),
        };
        Ok(Some(Entry { name: name.to_owned(), meta: met.meta, node }))
    }

    fn file(&mut self, path: &Path, met: Met, before: Option<&Entry>) -> Result<Option<Entry>> {
        if !self.overlay.tree.keeps_history(path) {
            return Ok(None);
        }
        let link = if met.nlink > 1 { met.file.0 } else { 0 };
        let entry = |meta, size, recipe| {
            Some(Entry { name: met.name.clone(), meta, node: Node::File { size, link, recipe } })
        };
        let entry = match &met.held {
            Held::Empty => entry(met.meta.clone(), 0, None),
            Held::Stored { recipe, size } => entry(met.meta.clone(), *size, Some(*recipe)),
            Held::Plain => match self.plain(path)? {
                Some((recipe, size)) => entry(met.meta.clone(), size, Some(recipe)),
                None => self.as_it_was(path, met.file, before)?,
            },
            // The kernel reports a close a little late.
            Held::Open { .. } if self.patience > 0 => {
                self.patience -= 1;
                std::thread::sleep(CLOSE_WAIT);
                let Some(met) = self.overlay.maintenance.snapshot_at(path)? else { return Ok(None) };
                return self.file(path, met, before);
            }
            Held::Open { save } => {
                self.saves += u64::from(*save);
                self.as_it_was(path, met.file, before)?
            }
            Held::Unknown(reason) => {
                tracing::warn!("{}: left out of the snapshot: {reason}", path.display());
                None
            }
        };
        if let Some(Entry { node: Node::File { size, .. }, .. }) = &entry {
            self.count.files += 1;
            self.count.bytes += *size as i64;
        }
        Ok(entry)
    }

    /// Returns the content of a plain file; `None` if a program has it open.
    fn plain(&mut self, path: &Path) -> Result<Option<(RecipeId, u64)>> {
        match self.ahead.remove(path) {
            Some(known) => Ok(known),
            // It was open when it was met.
            None => {
                self.read += 1;
                Ok(self.overlay.maintenance.store_plain(path)?)
            }
        }
    }

    /// Returns the last stored content of a file that is being written to.
    fn as_it_was(&mut self, path: &Path, file: FileId, before: Option<&Entry>) -> Result<Option<Entry>> {
        self.open += 1;
        let name = path.file_name().unwrap_or_default().to_owned();
        // Its own last content, otherwise its predecessor's.
        let own = self.log.of_file(file)?.pop();
        let at_path = self.log.of_path(path)?.into_iter().rev().find(|row| row.role == Role::Version);
        for row in own.into_iter().chain(at_path) {
            if let Some((Event { what: What::Version(version), .. }, _)) = self.log.event(row.event)?
                && version.kept
                && version.path == path
                && self.store.recipe(&version.recipe).is_ok()
            {
                let recipe = (version.size > 0).then_some(version.recipe);
                let node = Node::File { size: version.size, link: 0, recipe };
                return Ok(Some(Entry { name, meta: version.meta, node }));
            }
        }
        Ok(before.filter(|before| matches!(before.node, Node::File { .. })).cloned())
    }

    /// Updates the tree of a directory that was `before`, and examines the changes.
    fn update(&mut self, path: &Path, before: DocumentId, changed: &Changed) -> Result<DocumentId> {
        let mut entries: BTreeMap<OsString, Entry> =
            node::read(self.store, &before)?.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        if changed.touched || changed.moved {
            let names = self.overlay.maintenance.snapshot_names(path)?.unwrap_or_default();
            let gone: Vec<OsString> =
                entries.keys().filter(|name| names.binary_search(name).is_err()).cloned().collect();
            for name in gone {
                if let Some(entry) = entries.remove(&name) {
                    self.uncount(&entry)?;
                }
            }
            for name in names {
                if !entries.contains_key(&name) && !changed.below.contains_key(&name) {
                    let path = path.join(&name);
                    if let Some(met) = self.meet(&path)? {
                        entries.extend(self.entry(&path, met, None, true)?.map(|entry| (name, entry)));
                    }
                }
            }
        }
        let below: Vec<_> = changed.below.iter().collect();
        for changes in below.chunks(TOGETHER_MAX) {
            self.update_entries(path, &mut entries, changes)?;
        }
        node::write(&mut self.writer, &entries.into_values().collect::<Vec<_>>())
    }

    fn update_entries(
        &mut self,
        path: &Path,
        entries: &mut BTreeMap<OsString, Entry>,
        changes: &[(&OsString, &Changed)],
    ) -> Result<()> {
        let mut all = Vec::with_capacity(changes.len());
        for (name, _) in changes {
            let inner = path.join(name);
            let met = self.meet(&inner)?;
            all.push((inner, met, entries.remove(*name)));
        }
        let met = |(path, met, old): &(PathBuf, Option<Met>, Option<Entry>)| {
            Some((path.clone(), met.clone()?, old.clone()))
        };
        self.read_ahead(&all.iter().filter_map(met).collect::<Vec<_>>())?;
        for ((name, change), (inner, met, old)) in changes.iter().zip(all) {
            let same = matches!(old.as_ref().map(|old| &old.node), Some(Node::Directory(_))) && !change.moved;
            if let Some(old) = old.as_ref().filter(|_| !same) {
                self.uncount(old)?;
            }
            let mut entry = match met {
                Some(met) => self.entry(&inner, met, old.as_ref(), !same)?,
                None => None,
            };
            match &mut entry {
                Some(Entry { node: Node::Directory(id), .. }) if same => {
                    *id = self.update(&inner, *id, change)?
                }
                Some(_) if !same => {}
                // It was a directory, and is not any more.
                _ => old.iter().try_for_each(|old| self.uncount(old))?,
            }
            entries.extend(entry.map(|entry| ((*name).clone(), entry)));
        }
        Ok(())
    }

    /// Removes a missing entry from the count.
    fn uncount(&mut self, entry: &Entry) -> Result<()> {
        match &entry.node {
            Node::File { size, .. } => {
                self.count.files -= 1;
                self.count.bytes -= *size as i64;
            }
            Node::Directory(id) => {
                for entry in node::read(self.store, id)? {
                    self.uncount(&entry)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Finds an entry in a snapshot.
pub(super) fn find_in(store: &Store, snapshot: &Snapshot, id: &DocumentId, path: &Path) -> Result<Entry> {
    let missing = || HistoryError::NotInSnapshot { path: path.to_owned(), snapshot: short_id(id) };
    let mut at = snapshot.root.clone();
    for part in path.components() {
        let Node::Directory(node) = at.node else { return Err(missing()) };
        let name: &OsStr = part.as_os_str();
        at = node::find(store, &node, name)?.ok_or_else(missing)?;
    }
    Ok(at)
}
