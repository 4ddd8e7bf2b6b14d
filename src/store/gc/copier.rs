use super::{Collection, GcDone};
use crate::env::DiskFile;
use crate::store::append::Frames;
use crate::store::dictionary::Copies;
use crate::store::entry::{Address, Entry};
use crate::store::error::StoreError;
use crate::store::frame::{self, HEADER_BYTES, Header, Kind};
use crate::store::group::Group;
use crate::store::member::Named;
use zstd::bulk::Compressor;

/// Size of one append of copied frames, about.
const COPY_BYTES: usize = 1 << 20;

/// Copies frames to the end of the store.
pub(in crate::store) struct Copier<'a, 'b> {
    collection: &'a Collection<'b>,
    frames: Frames,
    done: &'a mut GcDone,
}

impl<'a, 'b> Copier<'a, 'b> {
    pub(in crate::store) fn new(collection: &'a Collection<'b>, done: &'a mut GcDone) -> Copier<'a, 'b> {
        Copier { collection, frames: Frames::default(), done }
    }

    /// Copies a verified frame, with its chunks if it is a group. A delta must follow its root, or another
    /// delta of that root.
    pub(super) fn copy(
        &mut self,
        header: &Header,
        payload: &[u8],
        chunks: &[Named],
    ) -> Result<(), StoreError> {
        if self.frames.bytes.len() >= COPY_BYTES && header.kind != Kind::Delta as u8 {
            self.flush()?;
        }
        self.frames.frame(header, payload, chunks.iter().copied());
        Ok(())
    }

    /// Records that the last copied frame needs a dictionary of its pack; false if no copy verifies.
    pub(super) fn need(&mut self, file: &dyn DiskFile, pack: u32, copies: &Copies) -> bool {
        let reader = &self.collection.store.reader;
        let found = reader.dictionaries.get(&reader.packs, file, pack, copies);
        found.map(|dictionary| self.frames.need(&dictionary)).is_ok()
    }

    /// Copies a chunk out of a group; false if it does not verify.
    fn copy_out(&mut self, file: &dyn DiskFile, entry: Entry) -> Result<bool, StoreError> {
        let store = self.collection.store;
        let (packs, Address { pack, offset, raw_len, .. }) = (&store.reader.packs, entry.address);
        let dictionaries = &store.reader.dictionaries;
        let Ok(group) = Group::read(packs, file, pack, offset, dictionaries) else { return Ok(false) };
        let Ok(chunk) = group.chunk(entry.key.id(), raw_len) else { return Ok(false) };
        if blake3::hash(chunk).as_bytes() != entry.key.id() {
            return Ok(false);
        }
        let compressor = Compressor::new(store.options.zstd_level);
        let mut compressor = compressor.map_err(|e| StoreError::io("start zstd for", &packs.dir, e))?;
        let kind = if entry.key.recipe_id().is_some() { Kind::Recipe } else { Kind::Chunk };
        let header = frame::build(&mut self.frames.bytes, kind, *entry.key.id(), chunk, &mut compressor);
        self.frames.headers.push(header);
        Ok(true)
    }

    /// Reads, verifies and copies one frame; false if it does not verify.
    pub(super) fn copy_from(&mut self, file: &dyn DiskFile, entry: Entry) -> Result<bool, StoreError> {
        let packs = &self.collection.store.reader.packs;
        let mut bytes = vec![0; HEADER_BYTES + entry.address.stored_len as usize];
        let read = file.read_exact_at(&mut bytes, u64::from(entry.address.offset));
        let place = packs.place(entry.address.pack, entry.address.offset);
        let header = read.ok().and_then(|()| Header::parse(&bytes, place).ok());
        match header {
            Some(header) if header.is_group() => self.copy_out(file, entry),
            Some(header) if header.key() == entry.key && header.decode(&bytes[HEADER_BYTES..]).is_ok() => {
                self.copy(&header, &bytes[HEADER_BYTES..], &[])?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    pub(in crate::store) fn flush(&mut self) -> Result<(), StoreError> {
        if self.frames.headers.is_empty() {
            return Ok(());
        }
        let bytes = self.frames.bytes.len() as u64;
        let moved = self.collection.store.append_moved(&mut self.frames);
        self.frames.clear();
        moved?;
        self.done.copied_bytes += bytes;
        Ok(())
    }
}
