//! Opening: from packs and a possibly missing or old index to a usable store.
//!
//! | found | done |
//! | --- | --- |
//! | the index covers all packs | nothing is read but headers and the newest pack |
//! | frames after the index's position | read, from footers where they verify, and added |
//! | no position, or one that the packs do not bear out | the table is cleared and rebuilt from all packs |
//! | a torn end of the newest pack: nothing after it verifies, no index covered it | cut off |
//! | bad bytes before frames that verify, or their footer, after what the index covers of the newest pack | made a void frame |
//! | bad bytes anywhere else | reported; nothing is cut, and the pack is not appended to if they end it |
//! | a pack of another store or a newer format | refused, before anything is changed |
//!
//! Invariants: only the newest pack is ever written to, and bytes of frames that verify are never removed. A
//! power cut may leave a later page of an append and not an earlier one; no durable reference points into
//! such a gap, otherwise `check` reports the file. A void frame keeps the bytes of a gap, except for its own
//! header. Frames that no index covers may be only in the page cache, and marked clean after a failed fsync.
//! They are rewritten in place and fsynced before anything can depend on them.

use super::append::{Appender, Growing};
use super::document_kind::DocumentKind;
use super::entry::Entry;
use super::error::{Damage, DamageKind, StoreError};
use super::footer::read_footer;
use super::frame::{self, HEADER_BYTES, Kind};
use super::index::{Counters, Index, Position, is_bad_row};
use super::pack::{FORMAT, PACK_HEADER_BYTES, PLAIN, PackHeader, Packs, encode_header, read_header};
use super::prefetch::Prefetcher;
use super::read::Reader;
use super::scan::{Item, Scanner};
use super::{Store, StoreOptions};
use crate::db::Db;
use crate::env::{Access, Disk, DiskFile, RealDisk, Reserve, Watched};
use crate::id::{DocumentId, PackId, StoreId};
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// Minimum reserve: enough to open the index and to begin a collection.
const RESERVE_BASE_BYTES: u64 = 4 << 20;
/// Limit of findings kept from opening. Further ones are only logged.
const DAMAGE_MAX: usize = 10_000;

/// A pack file as found.
struct Found {
    pack: u32,
    file: Arc<dyn DiskFile>,
    len: u64,
    /// Too short: its creation was interrupted.
    blank: bool,
    header_ok: bool,
    /// Format version; for a blank pack, the version to create it with.
    version: u32,
}

impl Store {
    /// Opens the store in `dir`, and creates it if it is missing: `dir/packs`, and the index in `db`.
    ///
    /// Frames that the index does not cover are read again; an index that does not fit the packs is rebuilt.
    /// `progress` gets bytes done and bytes in total. A torn end of the newest pack is cut off;
    /// [`Store::damage`] reports other damage, which stays as it is.
    pub fn open(
        dir: &Path,
        id: StoreId,
        db: Arc<dyn Db>,
        options: StoreOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Store, StoreError> {
        Store::open_on(Arc::new(RealDisk), dir, id, db, options, progress)
    }

    /// Like [`Store::open`], with the packs on `disk`.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        id: StoreId,
        db: Arc<dyn Db>,
        options: StoreOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Store, StoreError> {
        open(disk, dir, id, db, options, progress)
    }
}

fn open(
    disk: Arc<dyn Disk>,
    dir: &Path,
    id: StoreId,
    db: Arc<dyn Db>,
    options: StoreOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Store, StoreError> {
    let packs_dir = dir.join("packs");
    if !options.read_only && disk.list(&packs_dir).is_err() {
        disk.create_dir_all(&packs_dir).map_err(|e| StoreError::io("create", &packs_dir, e))?;
        disk.sync_dir(dir).map_err(|e| StoreError::io("fsync", dir, e))?;
    }
    let packs = Arc::new(Packs::new(disk, packs_dir, id));
    let index = Index::open(db, options.filter_bytes)?;
    let mut damage = Vec::new();
    let numbers = packs.list()?;
    let found = find(&packs, &numbers, &mut damage)?;
    let next_pack = numbers.last().map_or(0, |last| last + 1);
    numbers.iter().for_each(|&pack| packs.add(pack));
    let removed = index.removing().unwrap_or_default();
    removed.into_iter().filter(|pack| !packs.has(*pack)).for_each(|pack| packs.retire(pack));

    let stored = index.load_position(id)?.filter(|(at, _)| is_borne_out(*at, &found, next_pack));
    let load = |stored, damage: &mut Vec<Damage>, progress: &mut dyn FnMut(u64, u64)| {
        let mut loader = Loader::new(&packs, &index, stored, options.recent_rows)?;
        let growing = loader.load(&found, next_pack, damage, progress)?;
        let documents = std::mem::take(&mut loader.documents);
        loader.finish().map(|counters| (growing, counters, documents))
    };
    let found_before = damage.len();
    let mut base = stored;
    let (end, counters, documents) = match load(stored, &mut damage, progress) {
        // A block of rows cannot be read: the index is worthless, the packs are not.
        Err(e) if stored.is_some() && is_bad_row(&e) => {
            damage.truncate(found_before);
            base = None;
            load(None, &mut damage, progress)?
        }
        other => other?,
    };
    for finding in &damage {
        tracing::warn!(%finding, "damage in the store");
    }

    let mut failed = options.read_only;
    let taken = end.growing.map(|end| match options.read_only {
        true => look_at(&packs, end),
        false => take_over(&packs, end, base.map(|(at, _)| at)),
    });
    let growing = taken.and_then(|taken| match taken {
        Ok(growing) => growing,
        Err(e) => {
            tracing::warn!(error = %e, "the newest pack cannot be written: the store is read-only");
            failed = true;
            None
        }
    });
    let lens = found.iter().filter(|found| growing.as_ref().is_none_or(|growing| growing.pack != found.pack));
    let stored_bytes =
        lens.map(|found| found.len).sum::<u64>() + growing.as_ref().map_or(0, |g| u64::from(g.len));
    let appender =
        Appender::new(Arc::clone(&packs), options.pack_bytes_max, growing, next_pack, stored_bytes);
    if failed {
        appender.fail();
    }
    let position = appender.lock().position();
    let persisted = match base {
        Some((at, _)) => at,
        // The layer that lists documents has not noted these yet; the next persist comes after that. A crash
        // before it means reading all packs again.
        None if failed || !documents.is_empty() => Position::default(),
        None => {
            index.save_position(id, position, counters)?;
            position
        }
    };
    let reserve = Arc::new(Reserve::new(dir, options.reserve_bytes, RESERVE_BASE_BYTES));
    let reader = Arc::new(Reader::new(index, packs, options.cache_bytes));
    let prefetcher = Prefetcher::start(&reader, options.prefetch_threads);
    Ok(Store {
        id,
        options,
        reader,
        appender,
        counters: Mutex::new(counters),
        persisted: Mutex::new(persisted),
        stale_rows: AtomicBool::new(false),
        collecting: Mutex::new(()),
        left: Mutex::new(None),
        pins: Arc::default(),
        reserve,
        damage_found: damage,
        prefetcher,
        documents_found: Mutex::new(documents),
    })
}

/// Opens every pack file and reads its header. Changes nothing.
fn find(packs: &Packs, numbers: &[u32], damage: &mut Vec<Damage>) -> Result<Vec<Found>, StoreError> {
    let mut found = Vec::with_capacity(numbers.len());
    for &pack in numbers {
        let path = packs.path(pack);
        let opened = packs.open(pack, Access::Read).and_then(|file| {
            let (len, header) = (file.len()?, read_header(&*file)?);
            Ok((file, len, header))
        });
        let (file, len, header) = match opened {
            Ok(opened) => opened,
            Err(e) if e.raw_os_error() == Some(libc::EIO) || e.kind() == io::ErrorKind::IsADirectory => {
                note(damage, DamageKind::Pack, pack, 0, format!("the pack cannot be read: {e}"));
                continue;
            }
            Err(e) => return Err(StoreError::io("open", &path, e)),
        };
        let blank = len <= u64::from(PACK_HEADER_BYTES) && header == PackHeader::Damaged;
        let version = match header {
            PackHeader::Whole { version, .. } => version,
            PackHeader::Damaged => PLAIN,
        };
        let header_ok = match header {
            PackHeader::Whole { version, .. } if version > FORMAT => {
                return Err(StoreError::NewerFormat { path, found: version, known: FORMAT });
            }
            PackHeader::Whole { store, .. } if store != packs.store => {
                return Err(StoreError::Foreign { path });
            }
            PackHeader::Whole { pack: number, .. } => number == pack,
            PackHeader::Damaged => false,
        };
        let torn = blank && numbers.last() == Some(&pack);
        if !header_ok && !torn {
            note(damage, DamageKind::PackHeader, pack, 0, "the pack header does not verify".to_owned());
        }
        found.push(Found { pack, file, len, blank, header_ok, version });
    }
    Ok(found)
}

fn note(damage: &mut Vec<Damage>, kind: DamageKind, pack: u32, offset: u64, reason: String) {
    if damage.len() < DAMAGE_MAX {
        damage.push(Damage { kind, chunk: None, recipe: None, pack: PackId(pack), offset, reason });
    }
}

/// Whether the packs reach as far as the index claims.
fn is_borne_out(at: Position, found: &[Found], next_pack: u32) -> bool {
    match found.iter().find(|found| found.pack == at.pack) {
        Some(found) => u64::from(at.offset) <= found.len,
        // An older pack may have been collected, or lost: rows that point there are ignored.
        None => at.pack < next_pack || (at.offset == 0 && at.pack == next_pack),
    }
}

/// The end of the newest pack, if it may be appended to.
struct End {
    pack: u32,
    version: u32,
    /// End of its last complete frame.
    len: u32,
    found_len: u64,
    blank: bool,
    entries: Vec<Entry>,
    /// Ranges to turn into void frames.
    voids: Vec<(u32, u64)>,
    sealed: bool,
}

struct Loaded {
    growing: Option<End>,
}

/// Reads frames that the index does not cover, and adds them.
struct Loader<'a> {
    packs: &'a Packs,
    index: &'a Index,
    /// The index is complete up to here. `None` during a rebuild.
    base: Option<Position>,
    counters: Counters,
    /// Entries for the index during a rebuild.
    gathered: Vec<Entry>,
    /// Limit of gathered entries.
    index_rows: usize,
    /// Listed documents found ([`DocumentKind::listed`]).
    documents: Vec<(DocumentKind, DocumentId)>,
}

impl<'a> Loader<'a> {
    fn new(
        packs: &'a Packs,
        index: &'a Index,
        stored: Option<(Position, Counters)>,
        index_rows: usize,
    ) -> Result<Loader<'a>, StoreError> {
        if stored.is_none() {
            index.clear()?;
        }
        Ok(Loader {
            packs,
            index,
            base: stored.map(|(at, _)| at),
            counters: stored.map(|(_, counters)| counters).unwrap_or_default(),
            gathered: Vec::new(),
            index_rows,
            documents: Vec::new(),
        })
    }

    fn load(
        &mut self,
        found: &[Found],
        next_pack: u32,
        damage: &mut Vec<Damage>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Loaded, StoreError> {
        let base = self.base.unwrap_or_default();
        let total = found.iter().filter(|f| f.pack >= base.pack).map(|f| f.len).sum();
        let mut done = 0;
        let mut growing = None;
        for one in found {
            let newest = one.pack + 1 == next_pack;
            if one.pack < base.pack && !newest {
                continue;
            }
            let start = match one.pack.cmp(&base.pack) {
                std::cmp::Ordering::Less => u32::MAX,
                std::cmp::Ordering::Equal => base.offset,
                std::cmp::Ordering::Greater => 0,
            };
            // The newest pack's footer may be on disk although frames before it are not: a power cut came
            // before the sealing fsync. Older packs were durable before the next was created.
            let durable = !newest || u64::from(start) >= one.len;
            let footer = match durable {
                true => read_footer(&*one.file, self.packs.store, one.pack, one.len).ok().flatten(),
                false => None,
            };
            match footer {
                Some((_, entries)) => {
                    for entry in entries.iter().filter(|entry| entry.address.offset >= start) {
                        self.add(entry)?;
                    }
                    if newest && one.header_ok {
                        growing = Some(End {
                            pack: one.pack,
                            version: one.version,
                            len: one.len as u32,
                            found_len: one.len,
                            blank: false,
                            entries: Vec::new(),
                            voids: Vec::new(),
                            sealed: true,
                        });
                    }
                }
                None => {
                    let mut report = |at| progress(done + at, total);
                    let end = self.scan(one, start, newest, damage, &mut report)?;
                    growing = end.filter(|_| newest);
                }
            }
            done += if one.pack >= base.pack { one.len } else { 0 };
            progress(done, total);
        }
        Ok(Loaded { growing })
    }

    /// Reads a pack without a footer; the newest from its beginning, because its footer must list all frames.
    fn scan(
        &mut self,
        one: &Found,
        start: u32,
        newest: bool,
        damage: &mut Vec<Damage>,
        report: &mut dyn FnMut(u64),
    ) -> Result<Option<End>, StoreError> {
        let from = if newest { PACK_HEADER_BYTES } else { start.max(PACK_HEADER_BYTES) };
        let file = Watched::new(&*one.file);
        let mut scanner = Scanner::new(self.packs, one.pack, &file, u64::from(from), one.len);
        let mut end = End {
            pack: one.pack,
            version: one.version,
            len: PACK_HEADER_BYTES,
            found_len: one.len,
            blank: one.blank,
            entries: Vec::new(),
            voids: Vec::new(),
            sealed: false,
        };
        // Bad ranges after the last complete frame: perhaps a torn end.
        let mut trailing: Vec<(u32, u64, String)> = Vec::new();
        let unfinished = newest && one.header_ok && self.base.is_some();
        let mut footer = None;
        while let Some(item) = scanner.next() {
            match item {
                Item::Frame { offset, header } => {
                    for (at, until, reason) in trailing.drain(..) {
                        let fits = until - u64::from(at) >= HEADER_BYTES as u64;
                        match unfinished && at >= start && fits {
                            true => end.voids.push((at, until)),
                            false => note(damage, DamageKind::Frame, one.pack, u64::from(at), reason),
                        }
                    }
                    let entries = scanner.entries(&header, offset);
                    if offset >= start {
                        entries.iter().try_for_each(|entry| self.add(entry))?;
                    }
                    if header.kind == Kind::Footer as u8 {
                        footer = Some((offset, scanner.at()));
                    } else if newest {
                        end.entries.extend(entries);
                    }
                    end.len = scanner.at() as u32;
                }
                Item::Bad { offset, end, reason, .. } => trailing.push((offset, end, reason)),
            }
            report(scanner.at());
        }
        // A range that is only unreadable now must not be cut off.
        if let Some(refusal) = file.refusal() {
            return Err(StoreError::io("read", &self.packs.path(one.pack), refusal.into()));
        }
        // Frames below the index's position were durable: a bad one is no torn write.
        let torn = newest && one.header_ok && trailing.iter().all(|(at, ..)| *at >= start);
        if torn {
            if let Some((at, _, reason)) = trailing.first() {
                tracing::info!(pack = %PackId(one.pack), at, reason, "the newest pack has a torn end");
            }
        } else if !one.blank {
            for (at, _, reason) in trailing.drain(..) {
                note(damage, DamageKind::Frame, one.pack, u64::from(at), reason);
            }
        }
        if let Some(footer) = footer {
            end.sealed = torn && trailing.is_empty() && end.voids.is_empty();
            if unfinished && !end.sealed {
                // It lists frames that are not there.
                end.voids.push(footer);
            }
        }
        let usable = one.blank || (torn && (footer.is_none() || unfinished || end.sealed));
        for (at, _) in end.voids.iter().filter(|_| !usable) {
            note(damage, DamageKind::Frame, one.pack, u64::from(*at), "a frame is missing here".to_owned());
        }
        Ok(usable.then_some(end))
    }

    fn add(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let kind = Kind::of(entry.key.kind());
        if !entry.is_row() {
            return Ok(());
        }
        if let (Some(kind), Some(id)) = (kind.and_then(DocumentKind::listed), entry.key.document_id()) {
            self.documents.push((kind, id));
        }
        let Some(base) = self.base else {
            self.gathered.push(*entry);
            return if self.gathered.len() >= self.index_rows { self.merge() } else { Ok(()) };
        };
        // A row after the position is from a merge that a crash interrupted: the counters do not include it.
        // A row before it means that this frame replaced an older one.
        let counted = self.index.find_recent(&entry.key).is_some()
            || self.index.find_in_db(&entry.key)?.is_some_and(|old| {
                let at = Position { pack: old.pack, offset: old.offset };
                at < base
            });
        if !counted {
            self.counters.add(&entry.key, &entry.address);
        }
        self.index.insert(std::slice::from_ref(entry));
        Ok(())
    }

    fn merge(&mut self) -> Result<(), StoreError> {
        self.index.bulk(&mut self.gathered)?;
        self.gathered.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<Counters, StoreError> {
        if self.base.is_none() {
            self.merge()?;
            let counters = &mut self.counters;
            self.index.settle(|entry| counters.add(&entry.key, &entry.address))?;
        }
        Ok(self.counters)
    }
}

/// Prepares the newest pack for appending: cuts a torn end, and makes uncovered frames durable.
fn take_over(packs: &Packs, mut end: End, base: Option<Position>) -> Result<Option<Growing>, StoreError> {
    let path = packs.path(end.pack);
    let failed = |operation| {
        let path = path.clone();
        move |e| StoreError::io(operation, &path, e)
    };
    let file = packs.open(end.pack, Access::Write).map_err(failed("open for writing"))?;
    let mut changed = false;
    if end.blank {
        file.set_len(0).map_err(failed("cut"))?;
        file.write_all_at(&encode_header(packs.store, end.pack, end.version), 0).map_err(failed("write"))?;
        changed = true;
    } else if end.found_len > u64::from(end.len) {
        file.set_len(u64::from(end.len)).map_err(failed("cut"))?;
        changed = true;
    }
    for (at, until) in std::mem::take(&mut end.voids) {
        let entry = make_void(packs, end.pack, &*file, at, until).map_err(failed("mend"))?;
        end.entries.push(entry);
        tracing::info!(pack = %PackId(end.pack), at, until, "a range that a power cut left unwritten is skipped");
    }
    let durable = match base {
        Some(base) if base.pack > end.pack => end.len,
        Some(base) if base.pack == end.pack => base.offset,
        Some(_) | None => 0,
    };
    changed |= durable < end.len;
    rewrite(&*file, u64::from(durable), u64::from(end.len)).map_err(failed("rewrite"))?;
    if changed {
        file.sync_data().map_err(failed("fsync"))?;
        packs.sync_names()?;
    }
    Ok(growing(file, end))
}

/// Returns the newest pack for a read-only store, ignoring everything after its last complete frame.
fn look_at(packs: &Packs, end: End) -> Result<Option<Growing>, StoreError> {
    let path = packs.path(end.pack);
    let file = packs.open(end.pack, Access::Read).map_err(|e| StoreError::io("open", &path, e))?;
    Ok(growing(file, end))
}

/// Returns the growing pack, unless it is sealed.
fn growing(file: Arc<dyn DiskFile>, end: End) -> Option<Growing> {
    (!end.sealed).then(|| {
        let mut growing = Growing::new(file, end.pack, end.version, end.len);
        growing.entries = end.entries;
        growing
    })
}

/// Turns a range without frames into a void frame.
fn make_void(packs: &Packs, pack: u32, file: &dyn DiskFile, at: u32, until: u64) -> io::Result<Entry> {
    let mut payload = vec![0; (until - u64::from(at)) as usize - HEADER_BYTES];
    file.read_exact_at(&mut payload, u64::from(at) + HEADER_BYTES as u64)?;
    let header = frame::raw(Kind::Void, &payload);
    file.write_all_at(&header.encode(packs.place(pack, at)), u64::from(at))?;
    Ok(Entry::of(&header, pack, at))
}

/// Rewrites bytes unchanged, so that the next fsync really writes them.
fn rewrite(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    let mut buf = vec![0; 1 << 20];
    while at < to {
        let part = &mut buf[..(to - at).min(1 << 20) as usize];
        match file.read_exact_at(part, at) {
            Ok(()) => file.write_all_at(part, at)?,
            // Unreadable bytes cannot be relied on either.
            Err(e) => tracing::warn!(at, error = %e, "a part of the newest pack cannot be read"),
        }
        at += part.len() as u64;
    }
    Ok(())
}
