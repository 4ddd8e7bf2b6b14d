//! Rewriting of one pack: copies its needed frames, then retires it.

use super::copier::Copier;
use super::plan::PackPlan;
use super::{Collection, GcDone};
use crate::env::Access;
use crate::store::dictionary::Copies;
use crate::store::entry::Entry;
use crate::store::error::StoreError;
use crate::store::footer::read_footer;
use crate::store::frame::{Header, Key, Kind};
use crate::store::group_table::{self};
use crate::store::index::Index;
use crate::store::member::Named;
use crate::store::pack::PACK_HEADER_BYTES;
use crate::store::scan::{Item, Scanner};
use std::collections::HashSet;

impl Collection<'_> {
    /// Copies the needed frames of a pack and retires it; returns the keys that only it held. `None` if the
    /// pack must stay.
    pub(super) fn rewrite(&self, one: &PackPlan, done: &mut GcDone) -> Result<Option<Vec<Key>>, StoreError> {
        if self.store.space().free < one.live_bytes {
            return Err(StoreError::Full { path: self.store.reader.packs.path(one.pack) });
        }
        let mut copier = Copier::new(self, done);
        let Some(dead) = self.copy_needed(one.pack, &mut copier, &mut |_, _| false)? else { return Ok(None) };
        copier.flush()?;
        self.store.sync()?;
        self.retire(one.pack, dead, &mut copier)
    }

    /// Copies the needed frames of a pack, except chunks that `aside` takes; returns the unneeded ones.
    /// `None` if the pack must stay.
    pub(in crate::store) fn copy_needed(
        &self,
        pack: u32,
        copier: &mut Copier<'_, '_>,
        aside: &mut dyn FnMut(&Header, &Entry) -> bool,
    ) -> Result<Option<Vec<Entry>>, StoreError> {
        let packs = &self.store.reader.packs;
        let path = packs.path(pack);
        let failed = |e| StoreError::io("read", &path, e);
        let file = match packs.open(pack, Access::Read) {
            Ok(file) => file,
            Err(_) => return Ok(None),
        };
        let len = file.len().map_err(failed)?;
        let listed = read_footer(&*file, packs.store, pack, len).map_err(failed)?;
        let mut dead: Vec<Entry> = Vec::new();
        let mut scanner = Scanner::new(packs, pack, &*file, u64::from(PACK_HEADER_BYTES), len);
        let mut payload = Vec::new();
        // The root of the deltas that follow.
        let mut root: Option<Root> = None;
        while let Some(item) = scanner.next_with(|_, bytes| {
            payload.clear();
            payload.extend_from_slice(bytes);
            Ok(())
        }) {
            match item {
                Item::Frame { header, .. }
                    if [Kind::Footer as u8, Kind::Void as u8, Kind::Dictionary as u8]
                        .contains(&header.kind) => {}
                Item::Frame { offset, mut header } if header.is_group() => {
                    let table = scanner.table().expect("the scanner has read it").clone();
                    let mut gone = Vec::new();
                    for entry in scanner.entries(&header, offset).into_iter().filter(Entry::is_row) {
                        if !self.is_needed(&entry)? {
                            gone.push(entry);
                        }
                    }
                    let gone_keys: HashSet<Key> = gone.iter().map(|entry| entry.key).collect();
                    group_table::drop_names(&mut header, &mut payload, &table, |key| gone_keys.contains(key));
                    let kind = header.member_kind() as u8;
                    let stays = |(id, _): &Named| !gone_keys.contains(&Key::new(&id.0, kind));
                    let mut left: Vec<Named> = table.named().filter(stays).collect();
                    let needed = !left.is_empty();
                    dead.extend(gone);
                    match table.root(offset) {
                        Ok(None) => {
                            let dictionary = table.dictionary(offset).ok().flatten();
                            let (payload, left) = (std::mem::take(&mut payload), std::mem::take(&mut left));
                            let frame = Some(Waiting { header, payload, chunks: left, dictionary });
                            root = Some(Root { offset, frame });
                        }
                        Ok(Some((at, _))) if root.as_ref().is_some_and(|root| root.offset == at) => {}
                        // Not written by this program: keep the pack.
                        _ => return Ok(None),
                    }
                    if let Some(root) = root.as_mut().filter(|_| needed) {
                        if let Some(frame) = root.frame.take() {
                            copier.copy(&frame.header, &frame.payload, &frame.chunks)?;
                            if let Some(copies) = frame.dictionary
                                && !copier.need(&*file, pack, &copies)
                            {
                                return Ok(None);
                            }
                        }
                        if header.kind == Kind::Delta as u8 {
                            copier.copy(&header, &payload, &left)?;
                        }
                    }
                }
                Item::Frame { offset, header } => {
                    root = None;
                    let entry = Entry::of(&header, pack, offset);
                    if Kind::of(header.kind).is_none() {
                        return Ok(None);
                    }
                    if !self.is_needed(&entry)? {
                        dead.push(entry);
                    } else if !aside(&header, &entry) {
                        copier.copy(&header, &payload, &[])?;
                    }
                }
                Item::Bad { offset, end, header, .. } => {
                    root = None;
                    let stood = match header {
                        Some(header) if !header.is_group() || scanner.table().is_some() => {
                            scanner.entries(&header, offset)
                        }
                        // Only the footer can say which frame was here.
                        _ => {
                            let Some((footer, entries)) = &listed else { return Ok(None) };
                            let inside = |entry: &&Entry| {
                                (offset..end as u32).contains(&entry.address.offset) && offset < *footer
                            };
                            entries.iter().filter(inside).copied().collect()
                        }
                    };
                    for entry in stood {
                        if self.is_needed(&entry)? {
                            return Ok(None);
                        }
                        dead.push(entry);
                    }
                }
            }
        }
        Ok(Some(dead))
    }

    /// Retires a pack whose copies are durable. Frames that a caller looked up since they were found unneeded
    /// are copied first.
    pub(in crate::store) fn retire(
        &self,
        pack: u32,
        mut dead: Vec<Entry>,
        copier: &mut Copier<'_, '_>,
    ) -> Result<Option<Vec<Key>>, StoreError> {
        loop {
            let wanted = self.retire_unless_wanted(pack, &dead)?;
            if wanted.is_empty() {
                break;
            }
            let packs = &self.store.reader.packs;
            let file =
                packs.open(pack, Access::Read).map_err(|e| StoreError::io("open", &packs.path(pack), e))?;
            dead.retain(|entry| !wanted.contains(&entry.key));
            for entry in wanted_entries(&self.store.reader.index, &wanted, pack)? {
                if !copier.copy_from(&*file, entry)? {
                    return Ok(None);
                }
            }
            copier.flush()?;
            self.store.sync()?;
        }
        Ok(Some(dead.into_iter().map(|entry| entry.key).collect()))
    }

    /// Under the gate: returns the frames that were looked up since they were found unneeded; retires the
    /// pack if there are none.
    fn retire_unless_wanted(&self, pack: u32, dead: &[Entry]) -> Result<Vec<Key>, StoreError> {
        let reader = &self.store.reader;
        let _gate = reader.gate_mut();
        let mut wanted = Vec::new();
        for entry in dead.iter().filter(|entry| self.live.contains(&entry.key)) {
            // A replaced frame is unneeded even if its content is needed.
            if reader.index.find(&entry.key)? == Some(entry.address) {
                wanted.push(entry.key);
            }
        }
        if wanted.is_empty() {
            reader.packs.retire(pack);
        }
        Ok(wanted)
    }
}

fn wanted_entries(index: &Index, wanted: &[Key], pack: u32) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::with_capacity(wanted.len());
    for &key in wanted {
        if let Some(address) = index.find(&key)?.filter(|address| address.pack == pack) {
            entries.push(Entry { key, address });
        }
    }
    Ok(entries)
}

/// A group in the pack that is being copied.
struct Root {
    /// Its old offset.
    offset: u32,
    /// Its frame, until it is copied.
    frame: Option<Waiting>,
}

/// A group that is copied once it or one of its deltas turns out to be needed.
struct Waiting {
    header: Header,
    payload: Vec<u8>,
    chunks: Vec<Named>,
    /// Its dictionary.
    dictionary: Option<Copies>,
}
