//! Every decoder of bytes from disk, for arbitrary input. Only tests use this (`tests/fuzz.rs` and the
//! programs in `tests/fuzz/`), so it is not part of the interface.
//!
//! Invariants of each target, for any bytes: it does not panic, it ends, and it takes no more memory than
//! [`Target::memory_bytes_max`]. Decoded values encode to the same bytes, or, if one content has several
//! encodings, to bytes that decode to the same content. A violation is a panic.

use crate::backing::stub::{GuardKey, Stub};
use crate::config::Config;
use crate::recipe::Recipe;
use crate::{history, repo, similarity, store, sync, view};

/// The key that guards the records of the target `stub`.
pub const KEY: GuardKey = GuardKey([7; 32]);

/// A decoder with its limits.
pub struct Target {
    /// Its name, and that of its corpus in `tests/fuzz/corpus`.
    pub name: &'static str,
    run: fn(&[u8]),
    repair: Option<fn(&mut [u8])>,
    /// Most bytes of memory for each byte of input, on top of [`MEMORY_BYTES_ALWAYS`].
    memory_factor: usize,
}

/// Memory that every run may take: a window of the walk over a pack, twice while it grows.
const MEMORY_BYTES_ALWAYS: usize = 3 << 20;

/// All decoders.
pub const TARGETS: &[Target] = &[
    // A payload of zstd expands 32,768 times at most; a footer may be one.
    Target {
        name: "frame",
        run: store::fuzz::frame,
        repair: Some(store::fuzz::repair_frame),
        memory_factor: 33_000,
    },
    Target {
        name: "group",
        run: store::fuzz::group,
        repair: Some(store::fuzz::repair_group),
        memory_factor: 33_000,
    },
    Target {
        name: "footer",
        run: store::fuzz::footer,
        repair: Some(store::fuzz::repair_footer),
        memory_factor: 8,
    },
    Target { name: "compact_footer", run: store::fuzz::compact_footer, repair: None, memory_factor: 200 },
    Target {
        name: "pack",
        run: store::fuzz::pack,
        repair: Some(store::fuzz::repair_pack),
        memory_factor: 33_000,
    },
    Target {
        name: "position",
        run: store::fuzz::position,
        repair: Some(store::fuzz::repair_position),
        memory_factor: 8,
    },
    Target { name: "block", run: similarity::fuzz::block, repair: None, memory_factor: 300 },
    Target { name: "head", run: similarity::fuzz::head, repair: None, memory_factor: 60 },
    // Groups of many files that share a set.
    Target {
        name: "sif_saved",
        run: similarity::fuzz::sif_saved,
        repair: Some(similarity::fuzz::repair_sif_saved),
        memory_factor: 2000,
    },
    Target { name: "chunk_list", run: similarity::fuzz::chunk_list, repair: None, memory_factor: 16 },
    Target { name: "recipe", run: recipe, repair: None, memory_factor: 16 },
    // A nested archive in memory, and the rows of its directory.
    Target { name: "view", run: view::fuzz::view, repair: None, memory_factor: 120 },
    // Its columns are zstd frames.
    Target { name: "delta", run: sync::delta::fuzz::delta, repair: None, memory_factor: 33_000 },
    Target { name: "stub", run: stub, repair: Some(repair_stub), memory_factor: 8 },
    Target { name: "config", run: config, repair: None, memory_factor: 4000 },
    Target { name: "format", run: repo::fuzz::format, repair: None, memory_factor: 4000 },
    // Rows of a tree share the beginnings of their paths.
    Target { name: "sync_frames", run: sync::fuzz::frames, repair: None, memory_factor: 400 },
    Target { name: "sync_tree", run: sync::fuzz::tree, repair: None, memory_factor: 1000 },
    Target { name: "sync_diff", run: sync::fuzz::diff, repair: None, memory_factor: 1000 },
    Target { name: "sync_contents", run: sync::fuzz::contents, repair: None, memory_factor: 400 },
    // An event of 5 bytes, or an entry of 12, is a row with paths and owners; an xattr of 2 bytes two vectors.
    Target { name: "history_events", run: history::fuzz::events, repair: None, memory_factor: 120 },
    Target { name: "history_node", run: history::fuzz::node, repair: None, memory_factor: 120 },
    Target { name: "history_snapshot", run: history::fuzz::snapshot, repair: None, memory_factor: 120 },
];

impl Target {
    /// Returns the target of that name.
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Passes `bytes` to the decoder. Panics if the decoder violates an invariant.
    pub fn feed(&self, bytes: &[u8]) {
        (self.run)(bytes);
    }

    /// Returns `bytes` with right checksums, so that a decoder reads beyond them; `None` if it has none.
    pub fn repaired(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let repair = self.repair?;
        let mut bytes = bytes.to_vec();
        repair(&mut bytes);
        Some(bytes)
    }

    /// Returns the maximum bytes of memory that an input of `len` bytes may take.
    pub fn memory_bytes_max(&self, len: usize) -> usize {
        MEMORY_BYTES_ALWAYS + len * self.memory_factor
    }
}

fn recipe(bytes: &[u8]) {
    let Ok(recipe) = Recipe::decode(bytes) else { return };
    assert_eq!(recipe.encode(), bytes, "a recipe has one encoding");
    let sum: u64 = recipe.chunks().iter().map(|chunk| u64::from(chunk.len)).sum();
    assert_eq!(recipe.size(), sum);
}

fn stub(bytes: &[u8]) {
    let Ok(record) = Stub::decode(bytes, &KEY) else { return };
    let encoded = record.encode(&KEY);
    // "No ctime" has many encodings; `encode` writes one of them.
    assert!(record.ctime.is_none() || encoded == *bytes, "a record has one encoding");
    assert_eq!(Stub::decode(&encoded, &KEY), Ok(record));
    record.shown_ctime(record.mtime, record.mtime);
}

fn repair_stub(bytes: &mut [u8]) {
    if let Some((body, guard)) = bytes.split_at_mut_checked(48) {
        let right = blake3::keyed_hash(&KEY.0, body);
        guard.iter_mut().zip(right.as_bytes()).for_each(|(byte, right)| *byte = *right);
    }
}

fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(config) = Config::parse(text) else { return };
    assert_eq!(Config::parse(&config.to_text()), Ok(config), "settings are read as they were written");
}
