//! Verification of every frame of every pack, and of the index against the packs. It changes nothing on disk.
//!
//! Damaged content counts as unknown from then on, as after a failed read, so that the next put of it stores
//! it again. A pack that the system refuses to read counts as not checked; nothing is reported about its
//! content.
//!
//! All cores share the packs; each pack is walked in order. An index row that points into a bad range names
//! the lost content. Appends may continue; frames after the start are not checked.

use super::Store;
use super::dictionary::{Dictionaries, Dictionary};
use super::entry::{Address, Entry};
use super::error::{Damage, DamageKind, StoreError};
use super::footer::{claims_footer_at, parse_footer};
use super::frame::{self, HEADER_BYTES, Header, Key, Kind};
use super::group::{Base, Group};
use super::group_table::Table;
use super::index::Position;
use super::pack::{PACK_HEADER_BYTES, PackHeader, read_header};
use super::scan::{Item, Scanner};
use crate::env::{Access, Refusal, Watched};
use crate::id::PackId;
use crossbeam::channel::{Sender, bounded};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A worker's message to the calling thread.
enum Message {
    Progress {
        bytes: u64,
        frames: u64,
    },
    Found(Damage),
    /// The rest of a pack cannot be checked.
    Refused {
        pack: u32,
        refusal: Refusal,
    },
    /// Bytes whose content only the index can name.
    Unknown {
        pack: u32,
        range: BadRange,
    },
}

struct BadRange {
    start: u32,
    end: u64,
    reason: String,
    named: bool,
}

/// Extent of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Frames checked.
    pub frames: u64,
    /// Packs that could not be checked completely, and why.
    pub unchecked: BTreeMap<PackId, Refusal>,
}

impl Store {
    /// Checks every frame of every pack, and that the index points to it. `deep` also decodes and hashes
    /// each.
    ///
    /// `progress` gets bytes done and bytes in total, `found` each finding. Returns how much was checked.
    /// Changes nothing on disk; other threads may read and write meanwhile. Damaged content counts as unknown
    /// from then on, so that the next put of the same content stores it again.
    pub fn verify(
        &self,
        deep: bool,
        progress: &mut dyn FnMut(u64, u64),
        found: &mut dyn FnMut(Damage),
    ) -> Result<Verified, StoreError> {
        verify(self, deep, progress, found)
    }
}

fn verify(
    store: &Store,
    deep: bool,
    progress: &mut dyn FnMut(u64, u64),
    found: &mut dyn FnMut(Damage),
) -> Result<Verified, StoreError> {
    let packs = &store.reader.packs;
    let (upto, numbers) = {
        let tail = store.appender.lock();
        (tail.position(), packs.list()?)
    };
    let mut jobs = Vec::with_capacity(numbers.len());
    let mut verified = Verified::default();
    for pack in numbers {
        let path = packs.path(pack);
        match packs.open(pack, Access::Read).and_then(|file| file.len()) {
            Ok(_) if pack == upto.pack && upto.offset > 0 => jobs.push((pack, u64::from(upto.offset))),
            Ok(len) => jobs.push((pack, len)),
            Err(e) if e.kind() == io::ErrorKind::IsADirectory => {
                found(damage(DamageKind::Pack, None, pack, 0, "it is not a file".to_owned()));
            }
            // A collection removed it meanwhile.
            Err(_) if packs.is_retired(pack) => {}
            Err(e) => match Refusal::of(&e) {
                Some(refusal) => drop(verified.unchecked.insert(PackId(pack), refusal)),
                None => return Err(StoreError::io("look at", &path, e)),
            },
        }
    }
    let total = jobs.iter().map(|(_, len)| len).sum();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let mut unknown: HashMap<u32, BTreeMap<u32, BadRange>> = HashMap::new();
    let mut told: HashMap<u32, HashSet<u64>> = HashMap::new();
    let mut done = 0;
    let (messages, inbox) = bounded(1024);
    crossbeam::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores.min(jobs.len()))
            .map(|_| {
                let (messages, next, jobs) = (messages.clone(), &next, &jobs);
                scope.spawn(move |_| -> Result<(), StoreError> {
                    while let Some(&(pack, len)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let job = Job { store, deep, pack, len, messages: &messages };
                        job.run()?;
                    }
                    Ok(())
                })
            })
            .collect();
        drop(messages);
        for message in &inbox {
            match message {
                Message::Progress { bytes, frames: more } => {
                    done += bytes;
                    verified.frames += more;
                    progress(done, total);
                }
                Message::Found(damage) => {
                    told.entry(damage.pack.0).or_default().insert(damage.offset);
                    found(damage);
                }
                Message::Refused { pack, refusal } => {
                    verified.unchecked.insert(PackId(pack), refusal);
                }
                Message::Unknown { pack, range } => {
                    told.entry(pack).or_default();
                    unknown.entry(pack).or_default().insert(range.start, range);
                }
            }
        }
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker does not panic on any bytes"))
    })
    .expect("a worker does not panic on any bytes")?;
    check_rows(store, upto, &jobs, &mut unknown, &told, &mut verified, found)?;
    for (pack, ranges) in unknown {
        for range in ranges.into_values().filter(|range| !range.named) {
            found(damage(DamageKind::Frame, None, pack, u64::from(range.start), range.reason));
        }
    }
    Ok(verified)
}

/// Checks that every index row points to an existing, undamaged location. A damaged pack may lack a frame
/// without a gap; `told` has the offsets that were reported for it, and rows elsewhere in it are read.
fn check_rows(
    store: &Store,
    upto: Position,
    jobs: &[(u32, u64)],
    unknown: &mut HashMap<u32, BTreeMap<u32, BadRange>>,
    told: &HashMap<u32, HashSet<u64>>,
    verified: &mut Verified,
    found: &mut dyn FnMut(Damage),
) -> Result<(), StoreError> {
    let lens: HashMap<u32, u64> = jobs.iter().copied().collect();
    // A row in the database may be older than one in memory: only the current one counts.
    let (mut suspects, mut in_damaged) = (Vec::new(), Vec::new());
    store.reader.index.for_each(|Entry { key, address }| {
        let at = Position { pack: address.pack, offset: address.offset };
        // Frames removed by a collection are not damage; leftover rows after a crash do no harm.
        if at >= upto
            || store.reader.packs.is_retired(address.pack)
            || verified.unchecked.contains_key(&PackId(address.pack))
        {
            return ControlFlow::Continue(());
        }
        let end = u64::from(address.offset) + HEADER_BYTES as u64 + u64::from(address.stored_len);
        let ranges = unknown.get_mut(&address.pack);
        let range = ranges.and_then(|ranges| ranges.range_mut(..=address.offset).next_back());
        match (lens.get(&address.pack), range) {
            (None, _) => {
                suspects.push((key, address, DamageKind::Pack, "the pack file is missing".to_owned()))
            }
            (Some(len), _) if end > *len => {
                suspects.push((key, address, DamageKind::Pack, "the pack ends before the frame".to_owned()));
            }
            (Some(_), Some((_, range))) if u64::from(address.offset) < range.end => {
                range.named = true;
                suspects.push((key, address, DamageKind::Frame, range.reason.clone()));
            }
            _ => {
                let told = told.get(&address.pack);
                if told.is_some_and(|offsets| !offsets.contains(&u64::from(address.offset))) {
                    in_damaged.push((key, address));
                }
            }
        }
        ControlFlow::Continue(())
    })?;
    for (key, address) in in_damaged {
        match store.reader.reason_if_bad(key, &address) {
            Ok(Some(reason)) => suspects.push((key, address, DamageKind::Frame, reason)),
            Ok(None) => {}
            Err(e) => match e.refusal() {
                Some(refusal) => drop(verified.unchecked.insert(PackId(address.pack), refusal)),
                None => return Err(e),
            },
        }
    }
    for (key, address, kind, reason) in suspects {
        let kind = match store.reader.index.find(&key)? == Some(address) {
            true => {
                store.reader.note_damaged(key, &address);
                kind
            }
            // The content of a removed pack is not needed.
            false if kind == DamageKind::Pack => continue,
            false => DamageKind::Superseded,
        };
        found(damage(kind, Some(key), address.pack, u64::from(address.offset), reason));
    }
    Ok(())
}

fn damage(kind: DamageKind, key: Option<Key>, pack: u32, offset: u64, reason: String) -> Damage {
    let reason = match key.and_then(|key| key.document_id()) {
        Some(document) => format!("document {document}: {reason}"),
        None => reason,
    };
    Damage {
        kind,
        chunk: key.and_then(|key| key.chunk_id()),
        recipe: key.and_then(|key| key.recipe_id()),
        pack: PackId(pack),
        offset,
        reason,
    }
}

/// The check of one pack.
struct Job<'a> {
    store: &'a Store,
    deep: bool,
    pack: u32,
    len: u64,
    messages: &'a Sender<Message>,
}

impl Job<'_> {
    fn tell(&self, message: Message) {
        // The receiver only disappears with the whole verification.
        let _ = self.messages.send(message);
    }

    fn found(&self, kind: DamageKind, key: Option<Key>, offset: u64, reason: &str) {
        self.tell(Message::Found(damage(kind, key, self.pack, offset, reason.to_owned())));
    }

    fn run(&self) -> Result<(), StoreError> {
        let packs = &self.store.reader.packs;
        let path = packs.path(self.pack);
        let file = match packs.open(self.pack, Access::Read) {
            Ok(file) => file,
            // A collection removed it meanwhile.
            Err(_) if packs.is_retired(self.pack) => return Ok(()),
            Err(e) => match Refusal::of(&e) {
                Some(refusal) => {
                    self.tell(Message::Refused { pack: self.pack, refusal });
                    return Ok(());
                }
                None => return Err(StoreError::io("open", &path, e)),
            },
        };
        let file = Watched::new(&*file);
        match read_header(&file) {
            Ok(PackHeader::Whole { store, pack, .. }) if store == packs.store && pack == self.pack => {}
            Ok(_) => self.found(DamageKind::PackHeader, None, 0, "the pack header does not verify"),
            // The walk ends at once.
            Err(_) if file.refusal().is_some() => {}
            Err(e) => self.found(DamageKind::PackHeader, None, 0, &format!("it cannot be read: {e}")),
        }
        let mut scanner = Scanner::new(packs, self.pack, &file, u64::from(PACK_HEADER_BYTES), self.len);
        let mut told = 0;
        let mut frames = 0;
        let mut entries: BTreeMap<(u32, Key), Entry> = BTreeMap::new();
        let mut footer = None;
        let mut lost = Vec::new();
        // The last group, decoded, for the deltas behind it.
        let mut root = None;
        let dictionaries = Dictionaries::new();
        loop {
            let mut payload_of_footer = None;
            let offset = scanner.at() as u32;
            let dictionary_of = |table: &Table| {
                let found = table.dictionary(offset)?;
                let found = found.map(|copies| dictionaries.get(packs, &file, self.pack, &copies));
                found.transpose().map_err(|_| "the dictionary that it needs is damaged or missing")
            };
            let item = scanner.next_with(|header, payload| {
                if header.kind == Kind::Footer as u8 {
                    payload_of_footer = Some(payload.to_vec());
                }
                if self.deep { deep_check(header, payload, &mut root, dictionary_of) } else { Ok(()) }
            });
            // Frames after a refused read may be intact.
            if let Some(refusal) = file.refusal() {
                self.tell(Message::Refused { pack: self.pack, refusal });
                return Ok(());
            }
            let Some(item) = item else { break };
            match item {
                Item::Frame { offset, header } => {
                    frames += 1;
                    match payload_of_footer {
                        Some(payload) => footer = Some((offset, header, payload)),
                        None => {
                            for entry in scanner.entries(&header, offset) {
                                self.check_index(&entry)?;
                                entries.insert((offset, entry.key.looked_up()), entry);
                            }
                        }
                    }
                }
                Item::Bad { offset, end, header: Some(header), reason } if header.is_group() => {
                    frames += 1;
                    // The table names the lost content; if the table is damaged, the footer does.
                    match scanner.table().is_some() {
                        true => {
                            for entry in scanner.entries(&header, offset) {
                                if entry.is_row() {
                                    let kind = self.kind_of_loss(&entry)?;
                                    self.found(kind, Some(entry.key), u64::from(offset), &reason);
                                }
                                entries.insert((offset, entry.key.looked_up()), entry);
                            }
                        }
                        false => lost.push(BadRange { start: offset, end, reason, named: false }),
                    }
                }
                Item::Bad { offset, header: Some(header), reason, .. } => {
                    frames += 1;
                    let entry = Entry::of(&header, self.pack, offset);
                    let kind = match header.kind == Kind::Footer as u8 {
                        true => DamageKind::Footer,
                        false => self.kind_of_loss(&entry)?,
                    };
                    self.found(kind, Some(entry.key), u64::from(offset), &reason);
                    entries.insert((offset, entry.key.looked_up()), entry);
                }
                Item::Bad { offset, end, reason, .. }
                    if end == self.len && claims_footer_at(&file, end, offset) =>
                {
                    self.found(DamageKind::Footer, None, u64::from(offset), &reason);
                }
                Item::Bad { offset, end, reason, .. } => {
                    lost.push(BadRange { start: offset, end, reason, named: false });
                }
            }
            if scanner.at() - told >= 4 << 20 {
                let bytes = scanner.at() - told;
                told = scanner.at();
                self.tell(Message::Progress { bytes, frames });
                frames = 0;
            }
        }
        if let Some((offset, header, payload)) = footer {
            let listed = parse_footer(&header, &payload, &file, packs.place(self.pack, offset));
            if let Some(refusal) = file.refusal() {
                self.tell(Message::Refused { pack: self.pack, refusal });
                return Ok(());
            }
            self.check_footer(offset, listed.as_deref(), &entries, !lost.is_empty());
            // The footer can name the content of a bad range, also if the index already points to a later
            // copy.
            for entry in listed.unwrap_or_default() {
                let at = entry.address.offset;
                // Its chunks have their own entries.
                if frame::is_group(entry.key.kind()) {
                    continue;
                }
                if let Some(range) =
                    lost.iter_mut().find(|range| range.start <= at && u64::from(at) < range.end)
                {
                    range.named = true;
                    self.found(self.kind_of_loss(&entry)?, Some(entry.key), u64::from(at), &range.reason);
                }
            }
        }
        for range in lost.into_iter().filter(|range| !range.named) {
            self.tell(Message::Unknown { pack: self.pack, range });
        }
        self.tell(Message::Progress { bytes: self.len - told, frames });
        Ok(())
    }

    /// Checks that the index points to this intact frame, or to a later one of the same content.
    fn check_index(&self, entry: &Entry) -> Result<(), StoreError> {
        if !entry.is_row() {
            return Ok(());
        }
        let offset = u64::from(entry.address.offset);
        match self.store.reader.index.find(&entry.key)? {
            // A collection removed the pack while it was read, and its rows.
            None if self.store.reader.packs.is_retired(self.pack) => {}
            None => self.found(DamageKind::Index, Some(entry.key), offset, "the index does not know it"),
            Some(now) if is_older(&now, &entry.address) => {
                self.found(DamageKind::Index, Some(entry.key), offset, "the index leads to an older copy");
            }
            Some(now) if now != entry.address && !is_older(&entry.address, &now) => {
                self.found(DamageKind::Index, Some(entry.key), offset, "the index has other lengths for it");
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Classifies the loss of this frame. Marks it as damaged in the store if it is the current one.
    fn kind_of_loss(&self, entry: &Entry) -> Result<DamageKind, StoreError> {
        let now = self.store.reader.index.find(&entry.key)?;
        if now == Some(entry.address) {
            self.store.reader.note_damaged(entry.key, &entry.address);
        }
        Ok(match now {
            Some(now) if is_older(&entry.address, &now) => DamageKind::Superseded,
            _ => DamageKind::Frame,
        })
    }

    /// Checks that a footer lists exactly the frames before it. The content of a bad range is unknown here.
    fn check_footer(
        &self,
        offset: u32,
        listed: Option<&[Entry]>,
        entries: &BTreeMap<(u32, Key), Entry>,
        lost: bool,
    ) {
        let at = u64::from(offset);
        // It may depend on a damaged group and be intact itself.
        if listed.is_none() && lost {
            return;
        }
        let Some(listed) = listed else {
            return self.found(DamageKind::Footer, None, at, "the footer is not a list of frames");
        };
        let same = |entry: &&Entry| {
            let stands = entries.get(&(entry.address.offset, entry.key.looked_up()));
            stands.is_some_and(|stands| stands.address == entry.address)
        };
        let right = listed.iter().filter(same).count();
        if right != entries.len() || (right != listed.len() && !lost) {
            self.found(DamageKind::Footer, None, at, "the footer does not list the frames of its pack");
        }
    }
}

fn is_older(one: &Address, other: &Address) -> bool {
    (one.pack, one.offset) < (other.pack, other.offset)
}

/// Decodes and hashes a payload. Skips kinds and codecs of newer programs.
fn deep_check(
    header: &Header,
    payload: &[u8],
    root: &mut Option<Group>,
    dictionary_of: impl Fn(&Table) -> Result<Option<Arc<Dictionary>>, &'static str>,
) -> Result<(), &'static str> {
    if header.is_group() {
        let dictionary = dictionary_of(&Table::parse(header, payload)?)?;
        let base = match (&dictionary, &root) {
            (Some(dictionary), _) => Base::Dictionary(dictionary),
            (None, Some(root)) if header.kind == Kind::Delta as u8 => Base::Root(root),
            _ => Base::Nothing,
        };
        let group = Group::decode(header, payload, base)?;
        let hashes = group.check_hashes();
        if header.kind == Kind::Group as u8 {
            *root = Some(group);
        }
        return hashes;
    }
    if header.kind == Kind::Footer as u8 {
        return match *blake3::hash(payload).as_bytes() == header.id {
            true => Ok(()),
            false => Err("the content does not have the hash that names it"),
        };
    }
    let raw = header.decode(payload)?;
    match *blake3::hash(&raw).as_bytes() == header.id {
        true => Ok(()),
        false => Err("the content does not have the hash that names it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::MemDb;
    use crate::id::{ChunkId, StoreId};
    use crate::store::StoreOptions;

    /// Seen to fail without the look at retired packs.
    #[test]
    fn a_pack_that_is_collected_while_it_is_read_is_sound() {
        let dir = tempfile::tempdir().unwrap();
        let (db, options) = (Arc::new(MemDb::new()), StoreOptions::default());
        let store = Store::open(dir.path(), StoreId([7; 16]), db, options, &mut |_, _| {});
        let store = Arc::new(store.unwrap());
        let mut writer = store.writer();
        for n in 0..200u64 {
            let mut bytes = vec![0; 64 << 10];
            blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut bytes);
            writer.put(ChunkId::of(&bytes), &bytes).unwrap();
        }
        writer.flush().unwrap();
        drop(writer);
        store.sync().unwrap();
        let (pack, len) = (0, store.appender.lock().position().offset.into());

        let (messages, inbox) = bounded(0);
        let heard: Vec<_> = std::thread::scope(|scope| {
            let store = &store;
            scope.spawn(move || Job { store, deep: true, pack, len, messages: &messages }.run().unwrap());
            // From then on it goes on to its next message, far from the end, and waits for somebody to hear it.
            let first = inbox.recv().unwrap();
            let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
            let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
            assert_eq!(collection.apply(&plan, &mut |_, _| true).unwrap().packs_removed, 1);
            [first].into_iter().chain(&inbox).collect()
        });
        assert!(heard.len() > 2 && heard.iter().all(|message| matches!(message, Message::Progress { .. })));
    }
}
