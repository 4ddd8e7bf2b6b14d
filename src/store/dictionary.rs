//! Dictionaries: shared content of the groups in a pack, so that small groups compress like large ones.
//!
//! ```text
//! frame of kind 10: a dictionary as zstd trains it; it stands twice in a pack, before the groups that need it
//! ```
//!
//! Invariants: a dictionary is in the same pack as every group that needs it, and is found by location and by
//! hash. Each pack holds two copies, because losing the dictionary loses all groups; one copy is enough.

use super::frame::{self, HEADER_BYTES, Header, Kind, inflate_with};
use super::pack::Packs;
use crate::env::DiskFile;
use quick_cache::sync::Cache;
use std::sync::{Arc, OnceLock};
use zstd::zstd_safe::{CCtx, CDict, CParameter, DDict, compress_bound};

/// No dictionary is longer: zstd's own default.
pub(super) const BYTES_MAX: usize = 112 << 10;
/// Shorter ones do not help.
const BYTES_MIN: usize = 8 << 10;
/// Training uses samples of this many times its length, as zstd's authors advise.
const SAMPLES_PER_BYTE: usize = 100;
/// A dictionary is at most one part in this many of the bytes it serves.
const SHARE_MAX: u64 = 128;
/// Level of zstd at which the copies are stored.
const LEVEL: i32 = 19;
/// Cached dictionaries, about 150 KiB each.
const KEPT: usize = 32;

/// Locations of the two copies in a pack, and the first bytes of the dictionary's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) at: [u32; 2],
    pub(super) begins: [u8; 4],
}

/// A dictionary, ready for use.
pub(super) struct Dictionary {
    id: [u8; 32],
    bytes: Box<[u8]>,
    decoder: DDict<'static>,
    /// One copy, as it is stored.
    frame: OnceLock<(Header, Vec<u8>)>,
}

impl Dictionary {
    /// Prepares a dictionary from its bytes, if zstd accepts them.
    pub(super) fn new(bytes: &[u8]) -> Option<Dictionary> {
        let decoder = DDict::try_create(bytes)?;
        let (id, frame) = (*blake3::hash(bytes).as_bytes(), OnceLock::new());
        Some(Dictionary { id, bytes: bytes.into(), decoder, frame })
    }

    /// Returns how many sample bytes to train with, and the dictionary's length, for `raw_bytes` of content;
    /// `None` if there is too little.
    pub(super) fn wanted(raw_bytes: u64) -> Option<(usize, usize)> {
        let len = BYTES_MAX.min((raw_bytes / SHARE_MAX) as usize);
        (len >= BYTES_MIN).then_some((len * SAMPLES_PER_BYTE, len))
    }

    /// Trains a dictionary of at most `len` bytes; `None` if the samples have too little in common.
    pub(super) fn train(samples: &[u8], sizes: &[usize], len: usize) -> Option<Dictionary> {
        Dictionary::new(&zstd::dict::from_continuous(samples, sizes, len).ok()?)
    }

    /// Reads whichever of the two copies verifies.
    fn read(packs: &Packs, file: &dyn DiskFile, pack: u32, copies: &Copies) -> Result<Dictionary, String> {
        let mut first = None;
        for at in copies.at {
            match read_copy(packs, file, pack, at, &copies.begins) {
                Ok(found) => return Ok(found),
                Err(reason) => first = first.or(Some(reason)),
            }
        }
        Err(format!(
            "the dictionary at offsets {} and {} that it needs: {}",
            copies.at[0],
            copies.at[1],
            first.unwrap_or_default()
        ))
    }

    /// Returns the BLAKE3 hash of its bytes.
    pub(super) fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// Whether a group refers to this dictionary.
    pub(super) fn is(&self, begins: &[u8; 4]) -> bool {
        self.id.starts_with(begins)
    }

    /// Returns header and payload of one copy.
    pub(super) fn frame(&self) -> (&Header, &[u8]) {
        let (header, frame) = self.frame.get_or_init(|| {
            let mut compressor = zstd::bulk::Compressor::new(LEVEL).expect("zstd takes any level");
            let mut frame = Vec::new();
            let header = frame::build(&mut frame, Kind::Dictionary, self.id, &self.bytes, &mut compressor);
            (header, frame)
        });
        (header, &frame[HEADER_BYTES..])
    }

    /// Returns the bytes that both copies take in a pack.
    pub(super) fn copies_len(&self) -> u64 {
        2 * self.frame().0.frame_len()
    }

    /// Returns an encoder that uses it.
    pub(super) fn encoder(&self, level: i32) -> Encoder {
        Encoder { dictionary: CDict::create(&self.bytes, level), begins: self.begins() }
    }

    fn begins(&self) -> [u8; 4] {
        *self.id.first_chunk().expect("a hash has 32 bytes")
    }

    /// Decompresses one zstd frame to `raw_len` bytes.
    pub(super) fn inflate(&self, packed: &[u8], raw_len: u32) -> Result<Arc<[u8]>, &'static str> {
        inflate_with(packed, raw_len, |context, target| {
            context.decompress_using_ddict(target, packed, &self.decoder)
        })
    }
}

/// Compresses with a dictionary.
pub(super) struct Encoder {
    dictionary: CDict<'static>,
    /// The first bytes of the dictionary's id.
    pub(super) begins: [u8; 4],
}

impl Encoder {
    /// Compresses to one zstd frame.
    pub(super) fn compress(&self, raw: &[u8]) -> Vec<u8> {
        let mut packed = Vec::with_capacity(compress_bound(raw.len()));
        let mut context = CCtx::create();
        // The group's table already names the dictionary.
        context.set_parameter(CParameter::DictIdFlag(false)).expect("a new context takes a flag");
        context.ref_cdict(&self.dictionary).expect("a new context takes a dictionary");
        context.compress2(&mut packed, raw).expect("there is room for the worst case");
        packed
    }
}

/// Cached dictionaries, by pack and location of the first copy. Frames never change, and pack numbers are
/// never reused.
pub(super) struct Dictionaries(Cache<(u32, u32), Arc<Dictionary>>);

impl Dictionaries {
    pub(super) fn new() -> Dictionaries {
        Dictionaries(Cache::new(KEPT))
    }

    /// Returns the dictionary that a group in `pack` needs.
    pub(super) fn get(
        &self,
        packs: &Packs,
        file: &dyn DiskFile,
        pack: u32,
        copies: &Copies,
    ) -> Result<Arc<Dictionary>, String> {
        let read = || Dictionary::read(packs, file, pack, copies).map(Arc::new);
        let found = self.0.get_or_insert_with(&(pack, copies.at[0]), read)?;
        match found.is(&copies.begins) {
            true => Ok(found),
            false => Err("another dictionary stands where it says".to_owned()),
        }
    }
}

fn read_copy(
    packs: &Packs,
    file: &dyn DiskFile,
    pack: u32,
    offset: u32,
    begins: &[u8; 4],
) -> Result<Dictionary, String> {
    let (header, payload) = read_frame(packs, file, pack, offset, begins)?;
    let bytes = header.decode(&payload)?;
    let found = Dictionary::new(&bytes).ok_or("zstd does not take it")?;
    match found.id == header.id {
        true => Ok(found),
        false => Err("the content does not have the hash that names it".to_owned()),
    }
}

/// Reads a dictionary's frame, and its payload if the checksum fits.
fn read_frame(
    packs: &Packs,
    file: &dyn DiskFile,
    pack: u32,
    offset: u32,
    begins: &[u8; 4],
) -> Result<(Header, Vec<u8>), String> {
    let failed = |e| format!("it cannot be read: {e}");
    let mut head = [0; HEADER_BYTES];
    file.read_exact_at(&mut head, u64::from(offset)).map_err(failed)?;
    let header = Header::parse(&head, packs.place(pack, offset))?;
    if header.kind != Kind::Dictionary as u8 || !header.id.starts_with(begins) {
        return Err("another frame stands there".to_owned());
    }
    let mut payload = vec![0; header.stored_len as usize];
    file.read_exact_at(&mut payload, u64::from(offset) + HEADER_BYTES as u64).map_err(failed)?;
    header.check(&payload)?;
    Ok((header, payload))
}
