//! Salvage: finds intact copies of wanted chunks and recipes in the packs of this store or another.
//!
//! Invariants: packs are only read. Bytes are returned only if their BLAKE3 is the wanted id, whatever the
//! pack, its footer or its store claim.
//!
//! Memory: about 100 bytes for each wanted object, the footer of one pack, one frame. The caller puts the
//! bytes into a store with a [`super::Writer`]: nothing is replaced, the later copy counts.

use super::Store;
use super::dictionary::Dictionaries;
use super::entry::Entry;
use super::error::{Object, StoreError};
use super::footer::read_footer;
use super::frame::{HEADER_BYTES, Header, Key};
use super::group::Group;
use super::pack::{FORMAT, PACK_HEADER_BYTES, PackHeader, Packs, read_header};
use super::scan::{Item, Scanner};
use crate::env::{Access, DiskFile, RealDisk};
use crate::id::{ChunkId, RecipeId, StoreId};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The wanted ids. Shrinks as they are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    chunks: BTreeSet<ChunkId>,
    recipes: BTreeSet<RecipeId>,
}

impl Wanted {
    /// Adds `object`; false if it was already wanted.
    pub fn add(&mut self, object: Object) -> bool {
        match object {
            Object::Chunk(id) => self.chunks.insert(id),
            Object::Recipe(id) => self.recipes.insert(id),
        }
    }

    /// Removes `object`.
    pub fn remove(&mut self, object: &Object) {
        match object {
            Object::Chunk(id) => self.chunks.remove(id),
            Object::Recipe(id) => self.recipes.remove(id),
        };
    }

    /// Whether `object` is wanted.
    pub fn contains(&self, object: &Object) -> bool {
        match object {
            Object::Chunk(id) => self.chunks.contains(id),
            Object::Recipe(id) => self.recipes.contains(id),
        }
    }

    /// Whether any recipe is wanted.
    pub fn has_recipes(&self) -> bool {
        !self.recipes.is_empty()
    }

    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.recipes.is_empty()
    }

    /// Returns all objects: recipes first, each kind sorted.
    pub fn objects(&self) -> impl Iterator<Item = Object> + '_ {
        let recipes = self.recipes.iter().map(|id| Object::Recipe(*id));
        recipes.chain(self.chunks.iter().map(|id| Object::Chunk(*id)))
    }
}

/// A wanted object that was found intact.
pub struct Salvaged<'a> {
    /// The object.
    pub object: Object,
    /// A chunk's bytes, or an encoded recipe.
    pub bytes: &'a [u8],
    /// The pack file that holds it; none if it was still in memory.
    pub pack: Option<PathBuf>,
}

/// Gets each found object. An error ends the search.
pub type Take<'a> = &'a mut dyn FnMut(Salvaged<'_>) -> Result<(), StoreError>;
/// Gets bytes done and bytes in total; false ends the search.
pub type Step<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

impl Store {
    /// Whether a recipe is stored and not known to be damaged.
    pub fn knows_recipe(&self, id: &RecipeId) -> Result<bool, StoreError> {
        let found = self.reader.index.find_recipe(id)?;
        Ok(found.is_some_and(|entry| !self.reader.is_damaged(&entry.key)))
    }

    /// Reads the index's target from disk, past all caches, and checks its hash. Content that fails counts as
    /// damaged from then on, so that the next put stores it again.
    pub fn reread(&self, object: &Object) -> Result<(), StoreError> {
        self.reader.reread(object)
    }

    /// Searches for wanted objects where the index does not point: in memory, then in every frame of the
    /// packs, including superseded ones. Passes each found object to `take` and removes it from `wanted`.
    pub fn salvage(&self, wanted: &mut Wanted, step: Step<'_>, take: Take<'_>) -> Result<(), StoreError> {
        for object in wanted.clone().objects() {
            let bytes = match &object {
                Object::Chunk(id) => self.read(id).ok().filter(|bytes| ChunkId::of(bytes) == *id),
                Object::Recipe(id) => self
                    .recipe(id)
                    .ok()
                    .filter(|recipe| recipe.id() == *id)
                    .map(|recipe| recipe.encode().into()),
            };
            if let Some(bytes) = bytes {
                take(Salvaged { object, bytes: &bytes, pack: None })?;
                wanted.remove(&object);
            }
        }
        search(&self.reader.packs, wanted, step, take)
    }
}

/// Searches `dir`, a directory of packs of any store. Packs are only read. Unreadable packs, packs of a newer
/// format, and packs of different stores are skipped and logged.
pub fn search_packs(
    dir: &Path,
    wanted: &mut Wanted,
    step: Step<'_>,
    take: Take<'_>,
) -> Result<(), StoreError> {
    let packs_of = |store| Packs::new(Arc::new(RealDisk), dir.to_owned(), store);
    let unnamed = packs_of(StoreId([0; 16]));
    let id_in = |pack: u32| match unnamed.open(pack, Access::Read).and_then(|file| read_header(&*file)) {
        Ok(PackHeader::Whole { store, .. }) => Some(store),
        Ok(PackHeader::Damaged) | Err(_) => None,
    };
    match unnamed.list()?.into_iter().find_map(id_in) {
        Some(store) => search(&packs_of(store), wanted, step, take),
        None => Ok(()),
    }
}

fn search(packs: &Packs, wanted: &mut Wanted, step: Step<'_>, take: Take<'_>) -> Result<(), StoreError> {
    let length = |pack: &u32| packs.open(*pack, Access::Read).and_then(|file| file.len()).unwrap_or(0);
    // The newest first: it is the most likely to be intact, and found objects are not searched again.
    let numbers: Vec<u32> = packs.list()?.into_iter().rev().collect();
    let total = numbers.iter().map(length).sum();
    let mut done = 0;
    for pack in numbers {
        if wanted.is_empty() || !step(done, total) {
            break;
        }
        done += length(&pack);
        let path = packs.path(pack);
        let file = match packs.open(pack, Access::Read) {
            Ok(file) => file,
            Err(e) => {
                tracing::warn!("{}: passed over: {e}", path.display());
                continue;
            }
        };
        match read_header(&*file) {
            Ok(PackHeader::Whole { version, store, .. }) if version > FORMAT || store != packs.store => {
                tracing::warn!(
                    "{}: skipped: it belongs to another store or has a newer format",
                    path.display()
                );
                continue;
            }
            // Its frames can be intact.
            Ok(_) => {}
            Err(e) => {
                tracing::warn!("{}: passed over: {e}", path.display());
                continue;
            }
        }
        let len = file.len().unwrap_or(0);
        match read_footer(&*file, packs.store, pack, len) {
            Ok(Some((_, mut entries))) => {
                entries.sort_unstable_by_key(|entry| entry.address.offset);
                let mut last = None;
                for entry in entries {
                    if let Some(object) = object_of(&entry.key)
                        && wanted.contains(&object)
                        && let Some(bytes) = frame_at(packs, &*file, &entry, &mut last)
                    {
                        take(Salvaged { object, bytes: &bytes, pack: Some(path.clone()) })?;
                        wanted.remove(&object);
                    }
                }
            }
            Ok(None) | Err(_) => walk(packs, pack, &*file, len, wanted, take)?,
        }
    }
    Ok(())
}

/// Walks the frames of a pack without a usable footer.
fn walk(
    packs: &Packs,
    pack: u32,
    file: &dyn DiskFile,
    len: u64,
    wanted: &mut Wanted,
    take: Take<'_>,
) -> Result<(), StoreError> {
    let mut scanner = Scanner::new(packs, pack, file, u64::from(PACK_HEADER_BYTES), len);
    loop {
        let mut found = None;
        let item = scanner.next_with(|header, payload| {
            let object = object_of(&header.key()).filter(|object| wanted.contains(object));
            found = object.and_then(|object| Some((object, whole(header, payload)?)));
            Ok(())
        });
        if let Some((object, bytes)) = found {
            take(Salvaged { object, bytes: &bytes, pack: Some(packs.path(pack)) })?;
            wanted.remove(&object);
        }
        match item {
            Some(Item::Frame { offset, header }) if header.is_group() => {
                let mut last = None;
                for entry in scanner.entries(&header, offset) {
                    if let Some(object) = object_of(&entry.key)
                        && wanted.contains(&object)
                        && let Some(bytes) = frame_at(packs, file, &entry, &mut last)
                    {
                        take(Salvaged { object, bytes: &bytes, pack: Some(packs.path(pack)) })?;
                        wanted.remove(&object);
                    }
                }
            }
            Some(_) => {}
            None => return Ok(()),
        }
    }
}

/// Returns a frame from a footer, if it is there and intact. Often all chunks of a group are wanted, so the
/// last group is cached.
fn frame_at(
    packs: &Packs,
    file: &dyn DiskFile,
    entry: &Entry,
    last: &mut Option<(u32, Group)>,
) -> Option<super::Bytes> {
    let address = &entry.address;
    let of_group = |group: &Group| {
        let chunk = group.chunk(entry.key.id(), address.raw_len).ok()?;
        (*blake3::hash(chunk).as_bytes() == *entry.key.id()).then(|| chunk.into())
    };
    if let Some((_, group)) = last.as_ref().filter(|(at, _)| *at == address.offset) {
        return of_group(group);
    }
    let mut bytes = vec![0; HEADER_BYTES + address.stored_len as usize];
    file.read_exact_at(&mut bytes, u64::from(address.offset)).ok()?;
    let header = Header::parse(&bytes, packs.place(address.pack, address.offset)).ok()?;
    if header.is_group() {
        let group = Group::read(packs, file, address.pack, address.offset, &Dictionaries::new()).ok()?;
        let (_, group) = last.insert((address.offset, group));
        return of_group(group);
    }
    let fits = header.key() == entry.key && header.stored_len == address.stored_len;
    fits.then(|| whole(&header, &bytes[HEADER_BYTES..]))?
}

/// Returns the decoded payload if it matches the frame's id.
fn whole(header: &Header, payload: &[u8]) -> Option<super::Bytes> {
    let raw = header.decode(payload).ok()?;
    (*blake3::hash(&raw).as_bytes() == header.id).then_some(raw)
}

fn object_of(key: &Key) -> Option<Object> {
    let chunk = key.chunk_id().map(Object::Chunk);
    chunk.or_else(|| key.recipe_id().map(Object::Recipe))
}

impl super::Damage {
    /// Returns the affected chunk or recipe, if known.
    pub fn object(&self) -> Option<Object> {
        self.chunk.map(Object::Chunk).or_else(|| self.recipe.map(Object::Recipe))
    }
}
