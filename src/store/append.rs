//! The append side of the store: the one pack that grows, and its durability.
//!
//! Invariants:
//! - A frame enters the index only once it is completely in its pack.
//! - A pack is durable before the next one is created, so that only the newest pack can lose anything.
//! - After a failed fsync, or a failed write that cannot be cut off, nothing is written until the store is
//!   opened again: the kernel reports such a failure once and then marks the lost pages clean. A full disk is
//!   different: the partial write is cut off, and the store continues once there is space.
//!
//! Order: frames -> index in memory. [`Appender::sync`] makes all earlier appends durable. Sealing: footer ->
//! fsync -> next pack, its header fsynced and its name too.
//!
//! Locks, outermost first: `synced`, `tail`, `disk`.

use super::compact::Recipes;
use super::dictionary::Dictionary;
use super::entry::Entry;
use super::error::StoreError;
use super::footer::encode_footer;
use super::frame::{HEADER_BYTES, Header, Kind};
use super::gathered::{Gathered, With};
use super::group_table::{self};
use super::index::Position;
use super::member::Named;
use super::pack::{COMPACT, GROUPED, PACK_HEADER_BYTES, PLAIN, Packs, encode_header};
use crate::env::{Access, DiskFile};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limit for all packs: 32-bit offsets, with room for a footer.
const PACK_BYTES_LIMIT: u64 = 3 << 30;

/// Frames ready to append; the appender fills in the header checksums.
#[derive(Default)]
pub(super) struct Frames {
    /// Room for a header, then a payload, for each frame.
    pub(super) bytes: Vec<u8>,
    pub(super) headers: Vec<Header>,
    /// The chunks of each group, in order.
    named: Vec<Vec<Named>>,
    /// Dictionaries of these groups, each written before the first group in a pack that needs it.
    dictionaries: Vec<Arc<Dictionary>>,
}

impl Frames {
    /// Adds a group.
    pub(super) fn group(&mut self, gathered: &Gathered, with: With<'_>) {
        let header = gathered.build(&mut self.bytes, with);
        self.headers.push(header);
        self.named.push(gathered.members().to_vec());
    }

    /// Adds a frame, and its chunks if it is a group.
    pub(super) fn frame(&mut self, header: &Header, payload: &[u8], chunks: impl Iterator<Item = Named>) {
        self.bytes.resize(self.bytes.len() + HEADER_BYTES, 0);
        self.bytes.extend_from_slice(payload);
        self.headers.push(*header);
        if header.is_group() {
            self.named.push(chunks.collect());
        }
    }

    /// Records that a group compresses with this dictionary.
    pub(super) fn need(&mut self, dictionary: &Arc<Dictionary>) {
        if !self.dictionaries.iter().any(|one| one.id() == dictionary.id()) {
            self.dictionaries.push(Arc::clone(dictionary));
        }
    }

    /// Keeps only the frames that `keep` accepts. The frames must not contain groups.
    pub(super) fn retain(
        &mut self,
        mut keep: impl FnMut(&Header) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        debug_assert!(self.named.is_empty());
        let (mut from, mut to) = (0, 0);
        let mut kept = Vec::with_capacity(self.headers.len());
        for header in &self.headers {
            let len = header.frame_len() as usize;
            if keep(header)? {
                self.bytes.copy_within(from..from + len, to);
                to += len;
                kept.push(*header);
            }
            from += len;
        }
        self.bytes.truncate(to);
        self.headers = kept;
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.headers.clear();
        self.named.clear();
        self.dictionaries.clear();
    }

    /// Returns how many frames from `first` on must be in one pack (a group and its deltas), and their bytes.
    fn unit(&self, first: usize) -> (usize, u64) {
        let is_delta = |header: &&Header| header.kind == Kind::Delta as u8;
        let deltas = self.headers[first + 1..].iter().take_while(is_delta).count();
        let unit = &self.headers[first..=first + deltas];
        (unit.len(), unit.iter().map(Header::frame_len).sum())
    }

    /// The dictionary that the frame `next`, whose payload begins at `payload_at`, needs.
    fn dictionary(&self, next: usize, payload_at: usize) -> Option<Arc<Dictionary>> {
        let begins = group_table::dictionary_of(&self.headers[next], self.bytes.get(payload_at..)?)?;
        self.dictionaries.iter().find(|one| one.is(&begins)).map(Arc::clone)
    }

    /// Returns the pack version that these frames need.
    fn version(&self, first: usize) -> u32 {
        if self.headers[first].is_group() { GROUPED } else { PLAIN }
    }
}

/// The pack that grows.
pub(super) struct Growing {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) pack: u32,
    /// The format version that its header says.
    pub(super) version: u32,
    pub(super) len: u32,
    /// The entries of its future footer.
    pub(super) entries: Vec<Entry>,
    /// Dictionary copies that this process wrote into it, by dictionary hash.
    dictionaries: Vec<([u8; 32], [u32; 2])>,
}

impl Growing {
    pub(super) fn new(file: Arc<dyn DiskFile>, pack: u32, version: u32, len: u32) -> Growing {
        Growing { file, pack, version, len, entries: Vec::new(), dictionaries: Vec::new() }
    }

    fn copies_of(&self, dictionary: &Dictionary) -> Option<[u32; 2]> {
        let found = self.dictionaries.iter().find(|(id, _)| id == dictionary.id());
        found.map(|(_, copies)| *copies)
    }
}

/// The end of the store. Rows are published to the index under its lock.
pub(super) struct Tail {
    pub(super) growing: Option<Growing>,
    pub(super) next_pack: u32,
    /// Bytes ever appended by this process.
    appended: u64,
}

impl Tail {
    /// Everything before this has been appended.
    pub(super) fn position(&self) -> Position {
        match &self.growing {
            Some(growing) => Position { pack: growing.pack, offset: growing.len },
            None => Position { pack: self.next_pack, offset: 0 },
        }
    }
}

/// Appends frames and makes them durable.
pub(super) struct Appender {
    packs: Arc<Packs>,
    pack_bytes_max: u32,
    tail: Mutex<Tail>,
    /// How much of `Tail::appended` is durable. Held during a sync: waiting callers then find the work done.
    synced: Mutex<u64>,
    /// Held around each fsync and the setting of `failed`, so that no other fsync runs in between.
    disk: Mutex<()>,
    failed: AtomicBool,
    pub(super) stored_bytes: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Appender {
    pub(super) fn new(
        packs: Arc<Packs>,
        pack_bytes_max: u32,
        growing: Option<Growing>,
        next_pack: u32,
        stored_bytes: u64,
    ) -> Appender {
        let tail = Tail { growing, next_pack, appended: 0 };
        Appender {
            packs,
            pack_bytes_max,
            tail: Mutex::new(tail),
            synced: Mutex::new(0),
            disk: Mutex::new(()),
            failed: AtomicBool::new(false),
            stored_bytes: AtomicU64::new(stored_bytes),
        }
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.failed.load(Ordering::SeqCst) {
            true => Err(StoreError::Failed),
            false => Ok(()),
        }
    }

    /// Refuses writes from now on.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Locks the end of the store, to append or to read it undisturbed.
    pub(super) fn lock(&self) -> MutexGuard<'_, Tail> {
        lock(&self.tail)
    }

    /// Appends frames and passes the completely written ones to `publish`, also if a later one fails. A group
    /// and its deltas go into one pack, one behind the other.
    pub(super) fn append(
        &self,
        tail: &mut Tail,
        frames: &mut Frames,
        mut publish: impl FnMut(&[Entry]),
    ) -> Result<(), StoreError> {
        let (mut byte, mut next, mut group, mut written) = (0, 0, 0, 0);
        while next < frames.headers.len() {
            self.check()?;
            let dictionary = frames.dictionary(next, byte + HEADER_BYTES);
            // None if the pack already contains it.
            let missing = |growing: Option<&Growing>| {
                let has = |dictionary: &&Dictionary| {
                    growing.is_some_and(|growing| growing.copies_of(dictionary).is_some())
                };
                dictionary.as_deref().filter(|dictionary| !has(dictionary))
            };
            let growing = self.room(tail, frames.version(next), |growing| {
                frames.unit(next).1 + missing(growing).map_or(0, Dictionary::copies_len)
            })?;
            if let Some(dictionary) = missing(Some(growing)) {
                self.write_copies(growing, dictionary)?;
                written += dictionary.copies_len();
            }
            let (start, first) = (byte, next);
            let mut at = growing.len;
            let mut entries = Vec::new();
            while next < frames.headers.len() {
                let (count, len) = frames.unit(next);
                let fits = u64::from(at) + len <= u64::from(self.pack_bytes_max);
                let dictionary = frames.dictionary(next, byte + HEADER_BYTES);
                let copies = dictionary.as_deref().and_then(|dictionary| growing.copies_of(dictionary));
                let ready = dictionary.is_none() || copies.is_some();
                if next > first && !(fits && ready && frames.version(next) <= growing.version) {
                    break;
                }
                let root_at = at;
                for header in &mut frames.headers[next..next + count] {
                    let payload_at = byte + HEADER_BYTES;
                    let payload = &mut frames.bytes[payload_at..payload_at + header.stored_len as usize];
                    if header.kind == Kind::Delta as u8 {
                        group_table::set_distance(header, payload, at - root_at);
                    } else if let Some(copies) = copies {
                        group_table::set_distances(header, payload, copies.map(|copy| at - copy));
                    }
                    let chunks = if header.is_group() { &*frames.named[group] } else { &[] };
                    group += usize::from(header.is_group());
                    entries.extend(Entry::all_of(header, chunks.iter().copied(), growing.pack, at));
                    let head = header.encode(self.packs.place(growing.pack, at));
                    frames.bytes[byte..payload_at].copy_from_slice(&head);
                    byte += header.frame_len() as usize;
                    at += header.frame_len() as u32;
                }
                next += count;
            }
            self.write(growing, &frames.bytes[start..byte])?;
            growing.entries.extend_from_slice(&entries);
            publish(&entries);
            tail.appended += (byte - start) as u64 + std::mem::take(&mut written);
        }
        Ok(())
    }

    /// Writes the copies of a dictionary.
    fn write_copies(&self, growing: &mut Growing, dictionary: &Dictionary) -> Result<(), StoreError> {
        let (header, payload) = dictionary.frame();
        let at = [growing.len, growing.len + header.frame_len() as u32];
        let head = at.map(|at| header.encode(self.packs.place(growing.pack, at)));
        self.write(growing, &[&head[0], payload, &head[1], payload].concat())?;
        growing.entries.extend(at.map(|at| Entry::of(header, growing.pack, at)));
        growing.dictionaries.push((*dictionary.id(), at));
        Ok(())
    }

    /// Returns the growing pack with room for `needed` bytes and at least this format version. Seals a full
    /// pack and creates a new one. An item larger than the pack limit gets its own pack.
    fn room<'a>(
        &self,
        tail: &'a mut Tail,
        version: u32,
        needed: impl Fn(Option<&Growing>) -> u64,
    ) -> Result<&'a mut Growing, StoreError> {
        let fits = |growing: &Growing| {
            let room = u64::from(growing.len) + needed(Some(growing)) <= u64::from(self.pack_bytes_max);
            growing.version >= version && (growing.len == PACK_HEADER_BYTES || room)
        };
        let limit = PACK_BYTES_LIMIT - u64::from(PACK_HEADER_BYTES);
        let len = needed(None);
        if len > limit {
            return Err(StoreError::TooLarge { bytes: len, max: limit });
        }
        match tail.growing.take() {
            Some(growing) if fits(&growing) => Ok(tail.growing.insert(growing)),
            full => {
                if let Some(mut full) = full
                    && let Err(e) = self.seal(&mut full)
                {
                    tail.growing = Some(full);
                    return Err(e);
                }
                let created = self.create(tail.next_pack, version)?;
                tail.next_pack += 1;
                Ok(tail.growing.insert(created))
            }
        }
    }

    /// Ensures that a pack with a higher number than `pack` exists, which seals `pack`. A new one has this
    /// format version.
    pub(super) fn begin_pack_after(&self, pack: u32, version: u32) -> Result<(), StoreError> {
        let mut tail = self.lock();
        self.check()?;
        if pack + 1 < tail.next_pack {
            return Ok(());
        }
        if let Some(mut full) = tail.growing.take()
            && let Err(e) = self.seal(&mut full)
        {
            tail.growing = Some(full);
            return Err(e);
        }
        tail.growing = Some(self.create(tail.next_pack, version)?);
        tail.next_pack += 1;
        Ok(())
    }

    /// Returns the frames and length of `pack` if it is the growing one.
    pub(super) fn growing_entries(&self, pack: u32) -> Option<(Vec<Entry>, u64)> {
        let tail = self.lock();
        let growing = tail.growing.as_ref().filter(|growing| growing.pack == pack)?;
        Some((growing.entries.clone(), u64::from(growing.len)))
    }

    fn seal(&self, growing: &mut Growing) -> Result<(), StoreError> {
        let place = self.packs.place(growing.pack, growing.len);
        let recipes = (growing.version >= COMPACT).then(|| {
            let file = self.packs.file(growing.pack).ok();
            file.map(|file| Recipes::among(&growing.entries, &*file, place)).unwrap_or_default()
        });
        let footer = encode_footer(growing.entries.clone(), place, growing.version, recipes.as_ref());
        self.write(growing, &footer)?;
        self.fdatasync(growing)
    }

    /// Creates the next pack, with durable header and name. After an error there is no such pack.
    fn create(&self, pack: u32, version: u32) -> Result<Growing, StoreError> {
        let path = self.packs.path(pack);
        let file = self
            .packs
            .open(pack, Access::New)
            .map_err(|e| self.refuse(StoreError::io("create", &path, e)))?;
        let mut growing = Growing::new(file, pack, version, 0);
        let made = self
            .write(&mut growing, &encode_header(self.packs.store, pack, version))
            .and_then(|()| self.fdatasync(&growing))
            .and_then(|()| self.packs.sync_names().map_err(|e| self.refuse(e)));
        match made {
            Ok(()) => {
                self.packs.add(pack);
                Ok(growing)
            }
            Err(e) => {
                // It is blank; its name would block the next try.
                if let Err(e) = self.packs.disk.remove(&path) {
                    self.fail();
                    tracing::warn!(path = %path.display(), error = %e, "a blank pack could not be removed");
                }
                Err(e)
            }
        }
    }

    /// Writes at the end of a pack. After a failure, cuts the pack back to its old length if possible.
    fn write(&self, growing: &mut Growing, bytes: &[u8]) -> Result<(), StoreError> {
        self.check()?;
        if let Err(e) = growing.file.write_all_at(bytes, u64::from(growing.len)) {
            let path = self.packs.path(growing.pack);
            if let Err(e) = growing.file.set_len(u64::from(growing.len)) {
                self.fail();
                tracing::warn!(path = %path.display(), error = %e, "a partial append could not be cut back");
            }
            return Err(self.refuse(StoreError::io("write", &path, e)));
        }
        growing.len += bytes.len() as u32;
        self.stored_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Refuses further writes if the error requires it. A full disk does not.
    fn refuse(&self, error: StoreError) -> StoreError {
        if !matches!(error, StoreError::Full { .. }) {
            self.fail();
        }
        error
    }

    fn fdatasync(&self, growing: &Growing) -> Result<(), StoreError> {
        let _disk = lock(&self.disk);
        self.check()?;
        growing.file.sync_data().map_err(|e| {
            self.fail();
            StoreError::io("fdatasync", &self.packs.path(growing.pack), e)
        })
    }

    /// Makes everything appended before this call durable. Concurrent callers share an fdatasync.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.check()?;
        let target = self.lock().appended;
        let mut synced = lock(&self.synced);
        if *synced < target {
            let (growing, upto) = {
                let tail = self.lock();
                let growing = tail.growing.as_ref().map(|growing| {
                    Growing::new(Arc::clone(&growing.file), growing.pack, growing.version, growing.len)
                });
                (growing, tail.appended)
            };
            // Sealed packs became durable before the growing one was made.
            if let Some(growing) = growing {
                self.fdatasync(&growing)?;
            }
            *synced = upto;
        }
        self.check()
    }
}
