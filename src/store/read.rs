//! Reading: from an id to verified bytes, through a byte-bounded cache of decoded chunks.
//!
//! Invariants:
//! - Bytes are returned only from a frame whose location, id, lengths and checksums verify.
//! - Damaged content is remembered, so that it is no longer "known" and the next put of it stores it again.
//! - A file relies on stored content only after its frame was read and its checksum verified, once while the
//!   store is open. Otherwise one unnoticed bad chunk would spoil every later copy of its bytes.
//!
//! A read does not hash chunks again; `verify` with `deep` does.

use super::bytes::{ByBytes, Bytes};
use super::dictionary::Dictionaries;
use super::entry::{Address, Entry};
use super::error::{Damage, DamageKind, Object, StoreError};
use super::frame::{HEADER_BYTES, Header, Key, Kind};
use super::group::{Base, Group};
use super::group_cache::GroupCache;
use super::group_table::Table;
use super::index::Index;
use super::live::LiveSet;
use super::pack::Packs;
use crate::env::{Refusal, Watched};
use crate::id::{ChunkId, PackId, RecipeId};
use crate::recipe::{ChunkRef, Recipe};
use quick_cache::sync::Cache;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt::{self, Display};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

/// When a group is decoded for one chunk, this many bytes of the chunks behind it are cached too: they are
/// useful even if the group has left the cache.
const ALONG_BYTES: usize = 1 << 20;
/// A thread's read buffer is freed if it grew beyond this.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;
/// Limit of keys remembered as intact, about 80 bytes each.
const SOUND_KEYS: usize = 64 << 10;
/// Keys that are looked up while a collection waits.
const KEYS_AT_ONCE: usize = 1024;

/// The reading side of the store, shared with the decode-ahead threads.
pub(super) struct Reader {
    pub(super) index: Index,
    pub(super) packs: Arc<Packs>,
    pub(super) chunks: Cache<ChunkId, Bytes, ByBytes>,
    recipes: Cache<RecipeId, Arc<Recipe>, ByBytes>,
    /// Decoded groups.
    pub(super) groups: GroupCache,
    /// Dictionaries of groups.
    pub(super) dictionaries: Dictionaries,
    damaged: Mutex<HashSet<Key>>,
    /// Size of `damaged`, so that the usual case (none) takes no lock.
    damaged_count: AtomicUsize,
    /// During a collection, the live set. A look-up adds to it and looks under the same lock, and packs are
    /// retired under it, so the two are ordered.
    gate: RwLock<Option<Arc<LiveSet>>>,
    /// Some of the keys whose frames were verified or written since the store was opened.
    sound: Cache<Key, ()>,
}

/// Converts a payload.
pub(super) type Decode = fn(&Header, &[u8]) -> Result<Bytes, &'static str>;
/// Only checks its checksum.
const CHECK: Decode = |header, payload| header.check(payload).map(|()| Bytes::from([]));

/// Whether cached groups may be used, or the disk must be read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    AtHand,
    OnDisk,
}

/// Result of loading the frame that the index names.
enum Loaded {
    Bytes(Bytes),
    Bad(String),
}

/// Why a frame that was read yields no bytes.
pub(super) enum Flaw {
    /// It or its base is damaged.
    Bad(String),
    /// The system refused to read its base.
    Refused(io::Error),
}

impl Flaw {
    /// The pack cannot be opened again.
    fn unopened(error: io::Error) -> Flaw {
        match Refusal::of(&error) {
            Some(_) => Flaw::Refused(error),
            None => Flaw::Bad(format!("it cannot be opened: {error}")),
        }
    }

    /// The frame's base is not intact in `file`.
    fn in_file(file: &Watched<'_>, reason: String) -> Flaw {
        match file.refusal() {
            Some(refusal) => Flaw::Refused(refusal.into()),
            None => Flaw::Bad(reason),
        }
    }
}

impl From<&str> for Flaw {
    fn from(reason: &str) -> Flaw {
        Flaw::Bad(reason.to_owned())
    }
}

impl Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Bad(reason) => f.write_str(reason),
            Flaw::Refused(error) => error.fmt(f),
        }
    }
}

/// Returns a look-up that returns `found` at its first call: a second look-up is needed only for an object that has moved.
fn after(
    found: Option<Entry>,
    find: impl Fn() -> Result<Option<Entry>, StoreError>,
) -> impl Fn() -> Result<Option<Entry>, StoreError> {
    let first = Cell::new(Some(found));
    move || first.take().map_or_else(&find, Ok)
}

impl Reader {
    pub(super) fn new(index: Index, packs: Arc<Packs>, cache_bytes: u64) -> Reader {
        let recipe_bytes = cache_bytes / 8;
        let group_bytes = cache_bytes / 8;
        let chunk_bytes = cache_bytes - recipe_bytes - group_bytes;
        Reader {
            index,
            packs,
            chunks: Cache::with_weighter((chunk_bytes / (16 << 10)) as usize, chunk_bytes, ByBytes),
            recipes: Cache::with_weighter((recipe_bytes / 1024) as usize, recipe_bytes, ByBytes),
            groups: GroupCache::new(group_bytes, cache_bytes / 4),
            dictionaries: Dictionaries::new(),
            damaged: Mutex::default(),
            damaged_count: AtomicUsize::new(0),
            gate: RwLock::default(),
            sound: Cache::new(SOUND_KEYS),
        }
    }

    fn damaged(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn damaged_count(&self) -> usize {
        self.damaged_count.load(Ordering::Acquire)
    }

    pub(super) fn is_damaged(&self, key: &Key) -> bool {
        self.damaged_count() > 0 && self.damaged().contains(key)
    }

    /// Clears a key's damage mark because the content was stored again; returns whether it had one.
    pub(super) fn healed(&self, key: &Key) -> bool {
        if self.damaged_count() == 0 {
            return false;
        }
        let mut damaged = self.damaged();
        let was = damaged.remove(key);
        self.damaged_count.store(damaged.len(), Ordering::Release);
        was
    }

    /// Marks the frame of a key, found at `address`, as damaged.
    pub(super) fn note_damaged(&self, key: Key, address: &Address) {
        let mut damaged = self.damaged();
        // It may have been stored again since the look-up.
        if self.index.find_recent(&key).is_none_or(|now| now == *address) {
            damaged.insert(key);
        }
        self.damaged_count.store(damaged.len(), Ordering::Release);
    }

    pub(super) fn gate_mut(&self) -> RwLockWriteGuard<'_, Option<Arc<LiveSet>>> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether content is stored. A running collection then counts it as needed.
    pub(super) fn known(&self, key: &Key) -> Result<bool, StoreError> {
        let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = &*gate {
            live.insert(key);
        }
        let stands = |address: Address| self.packs.has(address.pack);
        Ok(!self.is_damaged(key) && self.index.find(key)?.is_some_and(stands))
    }

    /// As [`Reader::known`] for many keys, in ascending order.
    pub(super) fn all_known(&self, keys: &[Key]) -> Result<Vec<bool>, StoreError> {
        let mut known = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(live) = &*gate {
                keys.iter().for_each(|key| live.insert(key));
            }
            let stands = |address: &Address| self.packs.has(address.pack);
            let found = self.index.find_all(keys)?;
            let is_known = |(key, found): (&Key, &Option<Address>)| {
                found.as_ref().is_some_and(stands) && !self.is_damaged(key)
            };
            known.extend(keys.iter().zip(&found).map(is_known));
        }
        Ok(known)
    }

    /// Like [`Reader::known`], and its frame is intact: the condition for emptying a file. Marks a bad frame
    /// as damaged.
    pub(super) fn is_sound(&self, key: &Key) -> Result<bool, StoreError> {
        if !self.known(key)? {
            return Ok(false);
        }
        if self.sound.get(key).is_some() {
            return Ok(true);
        }
        let find = || Ok(self.index.find(key)?.map(|address| Entry { key: *key, address }));
        // A cached group was read and verified since the store was opened.
        if find()?.is_some_and(|found| self.in_group_at_hand(key, &found.address).is_some()) {
            self.note_sound(key);
            return Ok(true);
        }
        let object = match (key.chunk_id(), key.recipe_id()) {
            (None, Some(recipe)) => Object::Recipe(recipe),
            (chunk, _) => Object::Chunk(chunk.unwrap_or(ChunkId(*key.id()))),
        };
        match self.load_current(object, find, CHECK) {
            Ok(_) => {
                self.note_sound(key);
                Ok(true)
            }
            Err(StoreError::Damaged { damage }) => {
                tracing::warn!(%damage, "stored again, since the same content comes again");
                Ok(false)
            }
            Err(StoreError::Missing { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns the flaw of the frame at `address`, if any.
    pub(super) fn reason_if_bad(&self, key: Key, address: &Address) -> Result<Option<String>, StoreError> {
        Ok(match self.load(key, address, CHECK, Groups::OnDisk)? {
            Loaded::Bytes(_) => None,
            Loaded::Bad(reason) => Some(reason),
        })
    }

    /// Remembers that the frame of a key is intact.
    pub(super) fn note_sound(&self, key: &Key) {
        self.sound.insert(*key, ());
    }

    /// Marks a recipe, with its key if that is known, and its chunks as needed for a running collection.
    pub(super) fn use_recipe(&self, recipe: &Recipe, key: Option<Key>) {
        let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = &*gate {
            let key_of = || Key::new(blake3::hash(&recipe.encode()).as_bytes(), Kind::Recipe as u8);
            live.insert(&key.unwrap_or_else(key_of));
            recipe.chunks().iter().for_each(|chunk| live.insert(&Key::chunk(&chunk.id)));
        }
    }

    pub(super) fn cache_bytes(&self) -> u64 {
        self.chunks.weight() + self.recipes.weight() + self.groups.weight()
    }

    pub(super) fn is_cached(&self, id: &ChunkId) -> bool {
        self.chunks.contains_key(id)
    }

    /// Returns a chunk; one thread decodes it even if many ask at once.
    pub(super) fn chunk(&self, id: &ChunkId) -> Result<Bytes, StoreError> {
        self.chunks.get_or_insert_with(id, || {
            let key = Key::chunk(id);
            let find = || Ok(self.index.find(&key)?.map(|address| Entry { key, address }));
            let found = find()?;
            if let Some(bytes) = found.and_then(|found| self.in_group_at_hand(&found.key, &found.address)) {
                return Ok(bytes);
            }
            let find = after(found, find);
            Ok(self.load_current_from(Object::Chunk(*id), find, Header::decode, Groups::AtHand)?.1)
        })
    }

    /// Returns a chunk from a cached group.
    pub(super) fn in_group_at_hand(&self, key: &Key, address: &Address) -> Option<Bytes> {
        let group = self.groups.get((address.pack, address.offset))?;
        group.shared_chunk(key.id(), address.raw_len).ok()
    }

    pub(super) fn recipe(&self, id: &RecipeId) -> Result<Arc<Recipe>, StoreError> {
        self.recipe_at(id, None)
    }

    /// Returns a recipe that was found at `place` a moment ago.
    pub(super) fn recipe_at(&self, id: &RecipeId, place: Option<Entry>) -> Result<Arc<Recipe>, StoreError> {
        self.recipes.get_or_insert_with(id, || {
            let find = || self.index.find_recipe(id);
            let found = place.map_or_else(find, |place| Ok(Some(place)))?;
            let at_hand = found.and_then(|found| self.in_group_at_hand(&found.key, &found.address));
            let (Entry { key, address }, bytes) = match (found, at_hand) {
                (Some(found), Some(bytes)) => (found, bytes),
                _ => {
                    let find = after(found, find);
                    self.load_current_from(Object::Recipe(*id), find, Header::decode, Groups::AtHand)?
                }
            };
            let recipe = Recipe::decode(&bytes).map_err(|e| self.damage(key, &address, e.to_string()))?;
            Ok(Arc::new(recipe))
        })
    }

    /// Reads a frame past the caches, and hashes its content.
    pub(super) fn reread(&self, object: &Object) -> Result<(), StoreError> {
        let find = || match object {
            Object::Chunk(id) => {
                let key = Key::chunk(id);
                Ok(self.index.find(&key)?.map(|address| Entry { key, address }))
            }
            Object::Recipe(id) => self.index.find_recipe(id),
        };
        let (Entry { key, address }, bytes) = self.load_current(*object, find, Header::decode)?;
        match blake3::hash(&bytes).as_bytes() == key.id() {
            true => Ok(()),
            false => Err(self.unlike_its_name(key, &address)),
        }
    }

    /// Returns the content of a chunk's own frame at any address.
    pub(super) fn at(&self, key: Key, address: &Address) -> Result<Bytes, StoreError> {
        match self.load(key, address, Header::decode, Groups::OnDisk)? {
            Loaded::Bytes(bytes) => Ok(bytes),
            Loaded::Bad(reason) => Err(self.damage(key, address, reason)),
        }
    }

    /// Reports content whose hash does not match its id.
    pub(super) fn unlike_its_name(&self, key: Key, address: &Address) -> StoreError {
        self.damage(key, address, "the content does not have the hash that names it".to_owned())
    }

    /// Reads the frame that the index names, which may move meanwhile.
    pub(super) fn load_current(
        &self,
        object: Object,
        find: impl Fn() -> Result<Option<Entry>, StoreError>,
        decode: Decode,
    ) -> Result<(Entry, Bytes), StoreError> {
        self.load_current_from(object, find, decode, Groups::OnDisk)
    }

    fn load_current_from(
        &self,
        object: Object,
        find: impl Fn() -> Result<Option<Entry>, StoreError>,
        decode: Decode,
        groups: Groups,
    ) -> Result<(Entry, Bytes), StoreError> {
        let mut found = find()?;
        loop {
            let Some(entry) = found else { return Err(StoreError::Missing { object }) };
            let reason = match self.load(entry.key, &entry.address, decode, groups)? {
                Loaded::Bytes(bytes) => return Ok((entry, bytes)),
                Loaded::Bad(reason) => reason,
            };
            found = find()?;
            if found.is_some_and(|now| now.address == entry.address) {
                return Err(match self.packs.is_retired(entry.address.pack) {
                    true => StoreError::Missing { object },
                    false => self.damage(entry.key, &entry.address, reason),
                });
            }
        }
    }

    pub(super) fn damage(&self, key: Key, address: &Address, reason: String) -> StoreError {
        self.note_damaged(key, address);
        let reason = match key.document_id() {
            Some(document) => format!("document {document}: {reason}"),
            None => reason,
        };
        StoreError::Damaged {
            damage: Damage {
                kind: DamageKind::Frame,
                chunk: key.chunk_id(),
                recipe: key.recipe_id(),
                pack: PackId(address.pack),
                offset: u64::from(address.offset),
                reason,
            },
        }
    }

    /// Reads and verifies a frame.
    fn load(
        &self,
        key: Key,
        address: &Address,
        decode: Decode,
        groups: Groups,
    ) -> Result<Loaded, StoreError> {
        thread_local! {
            static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let result = self.load_with(key, address, scratch, decode, groups);
            if scratch.capacity() > SCRATCH_BYTES_KEPT {
                *scratch = Vec::new();
            }
            result
        })
    }

    fn load_with(
        &self,
        key: Key,
        address: &Address,
        scratch: &mut Vec<u8>,
        decode: Decode,
        groups: Groups,
    ) -> Result<Loaded, StoreError> {
        let bad = |reason: &str| Ok(Loaded::Bad(reason.to_owned()));
        let failed = |operation, e: io::Error| match (e.kind(), e.raw_os_error()) {
            (io::ErrorKind::UnexpectedEof, _) => bad("the pack ends before the frame"),
            (io::ErrorKind::NotFound, _) => bad("the pack file is missing"),
            (_, Some(libc::EIO)) => bad(&format!("it cannot be read: {e}")),
            _ => Err(StoreError::io(operation, &self.packs.path(address.pack), e)),
        };
        let file = match self.packs.file(address.pack) {
            Ok(file) => file,
            Err(e) => return failed("open", e),
        };
        // The length comes from the index, which may be damaged: check it before allocating.
        let max = super::frame::RECIPE_BYTES_MAX;
        if address.stored_len > max {
            return bad("the index names an impossible length");
        }
        scratch.resize(HEADER_BYTES + address.stored_len as usize, 0);
        if let Err(e) = file.read_exact_at(scratch, u64::from(address.offset)) {
            return failed("read", e);
        }
        match self.decode_frame(&key, address, scratch, decode, groups) {
            Ok(bytes) => Ok(Loaded::Bytes(bytes)),
            Err(Flaw::Bad(reason)) => Ok(Loaded::Bad(reason)),
            Err(Flaw::Refused(e)) => failed("read", e),
        }
    }

    /// Verifies a frame read from `address`.
    pub(super) fn decode_frame(
        &self,
        key: &Key,
        address: &Address,
        frame: &[u8],
        decode: Decode,
        groups: Groups,
    ) -> Result<Bytes, Flaw> {
        let header = Header::parse(frame, self.packs.place(address.pack, address.offset))?;
        let too_long = "the frame is not as long as the index says";
        if header.is_group() && header.stored_len == address.stored_len {
            let group = self.decode_group(address, &header, &frame[HEADER_BYTES..], groups)?;
            if groups == Groups::AtHand && key.chunk_id().is_some() && self.groups.is_long(&group) {
                self.keep_along(&group, key, address.raw_len);
            }
            return Ok(group.shared_chunk(key.id(), address.raw_len)?);
        }
        if header.is_group() {
            return Err(too_long.into());
        }
        if header.key() != *key {
            return Err("another frame stands where the index leads".into());
        }
        if header.stored_len != address.stored_len || header.raw_len != address.raw_len {
            return Err(too_long.into());
        }
        Ok(decode(&header, &frame[HEADER_BYTES..])?)
    }

    /// Caches the chunks behind a chunk of a long group.
    fn keep_along(&self, group: &Group, key: &Key, len: u32) {
        for (id, bytes) in group.chunks_behind(key.id(), len, ALONG_BYTES) {
            if !self.chunks.contains_key(&id) {
                self.chunks.insert(id, bytes.into());
            }
        }
    }

    /// Decodes a group read from `address`, with its base, and caches both.
    fn decode_group(
        &self,
        address: &Address,
        header: &Header,
        payload: &[u8],
        groups: Groups,
    ) -> Result<Arc<Group>, Flaw> {
        let &Address { pack, offset, .. } = address;
        header.check(payload)?;
        let table = Table::parse(header, payload)?;
        let turn = self.groups.turn(header);
        // Another thread decoded it meanwhile; the disk still holds the same bytes.
        if turn.is_some()
            && let Some(found) = self.groups.get((pack, offset)).filter(|found| found.is_made_of(header))
        {
            return Ok(found);
        }
        let group = if let Some((at, _)) = table.root(offset)? {
            Group::decode_with(header, payload, table, Base::Root(&*self.root_at(pack, at, groups)?))?
        } else if let Some(copies) = table.dictionary(offset)? {
            let file = self.packs.file(pack).map_err(Flaw::unopened)?;
            let file = Watched::new(&*file);
            let dictionary = self.dictionaries.get(&self.packs, &file, pack, &copies);
            let dictionary = dictionary.map_err(|reason| Flaw::in_file(&file, reason))?;
            Group::decode_with(header, payload, table, Base::Dictionary(&dictionary))?
        } else {
            Group::decode_with(header, payload, table, Base::Nothing)?
        };
        let group = Arc::new(group);
        // A delta with one cached chunk is not wanted again; roots use the cache better.
        if header.kind == Kind::Group as u8 || group.has_several() {
            self.groups.insert((pack, offset), &group);
        }
        Ok(group)
    }

    fn root_at(&self, pack: u32, offset: u32, groups: Groups) -> Result<Arc<Group>, Flaw> {
        if let Some(root) = self.groups.get((pack, offset)).filter(|_| groups == Groups::AtHand) {
            return Ok(root);
        }
        let file = self.packs.file(pack).map_err(Flaw::unopened)?;
        let file = Watched::new(&*file);
        let root = Group::read_root(&self.packs, &file, pack, offset, &self.dictionaries);
        let root = Arc::new(root.map_err(|reason| Flaw::in_file(&file, reason))?);
        self.groups.insert((pack, offset), &root);
        Ok(root)
    }

    /// Fills `buf` from `offset` of a recipe's file; returns less only at its end.
    pub(super) fn read_at(&self, recipe: &Recipe, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        let Some(mut index) = recipe.chunk_at(offset) else {
            return Ok(0);
        };
        let mut skip = (offset - recipe.start_of(index)) as usize;
        let mut done = 0;
        while done < buf.len() && index < recipe.chunks().len() {
            let wanted = recipe.chunks()[index];
            let bytes = self.chunk(&wanted.id)?;
            if bytes.len() != wanted.len as usize {
                return Err(self.disagrees(wanted, bytes.len()));
            }
            let part = &bytes[skip..];
            let len = part.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&part[..len]);
            done += len;
            skip = 0;
            index += 1;
        }
        Ok(done)
    }

    /// Both verify and disagree: storing the chunk again would not help, so it stays known.
    fn disagrees(&self, wanted: ChunkRef, len: usize) -> StoreError {
        let address = self.index.find(&Key::chunk(&wanted.id)).ok().flatten();
        StoreError::Damaged {
            damage: Damage {
                kind: DamageKind::Frame,
                chunk: Some(wanted.id),
                recipe: None,
                pack: PackId(address.map_or(0, |address| address.pack)),
                offset: address.map_or(0, |address| u64::from(address.offset)),
                reason: format!("the recipe says {} bytes, the chunk has {len}", wanted.len),
            },
        }
    }
}
