//! dedupfs: a storage-deduplicating overlay filesystem that knows which files resemble each other, as a
//! library. The programs `dedupfs` and `dedupctl` are its first users.
//!
//! The promise, in this order: what was durable stays so; a read gives the right bytes or an error; then
//! speed; then comfort. A file's bytes are in exactly one place that counts: in the file, or, once it is a
//! stub, in the packs of the store. Everything else (the index, caches, sketches) can be rebuilt from those.
//!
//! ```text
//!            programs                                         dedupctl
//!               | open, read, write, rename ...                  | status, scan, similar ...
//!   ------------|--------------------------- kernel              |
//!               v                                                v
//!             fuse                                            control        (a Unix socket)
//!               |                                                |
//!               v                                                v
//!            overlay  <-------------------------------------  admin
//!               |  plain file: its own bytes     stub: a recipe
//!       +-------+---------------+------------------------+
//!       v                       v                        v
//!  backing directory          store                  similarity
//!  names, modes, times,       chunks and recipes     sketches of chunks: which
//!  plain files, stubs         in packs               contents share bytes
//!                               |                        |
//!                               +-----------+------------+
//!                                           v
//!                                  db: the index (rebuildable)
//! ```
//!
//! Without a mount it is a deduplicated set of contents that knows what they share:
//!
//! ```
//! use dedupfs::chunk::ChunkParams;
//! use dedupfs::overlay::{Contents, SimilarOptions};
//!
//! let dir = tempfile::tempdir()?;
//! let contents = Contents::open(dir.path(), ChunkParams::default())?;
//! let text: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
//! let edited = text.replace("line 17\n", "another line\n");
//! let first = contents.put(text.as_bytes())?;
//! let second = contents.put(edited.as_bytes())?;
//! contents.sync()?;
//!
//! let mut start = [0; 6];
//! contents.read_at(&second, 0, &mut start)?;
//! assert_eq!(&start, b"line 0");
//!
//! let similar = contents.similar(&first, &SimilarOptions::default())?;
//! let (alike, shares) = &similar[0];
//! assert_eq!(*alike, second);
//! assert!(shares.containment > 0.99 && !shares.identical);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/` has more: a file cut and sketched (`chunk`), files that are alike (`alike`), a store opened read-only
//! (`read_store`), and another filesystem with all of it (`plugin`).
//!
//! A module uses only modules on lower floors, and siblings do not know each other (`tests/layers.rs`). From
//! a module's page one sees what must always be true of it. `docs/architecture.md` follows a write and a
//! read through all of them; `docs/format.md` says what is on disk.

// Floor 0: words, and the outside world.
// A disk, real or simulated.
pub mod env;
// Paths from outside the process, kept inside one directory.
pub mod beneath;
// Names of things: chunks, recipes, files, packs, stores.
pub mod id;
// Which chunks make up a content.
pub mod recipe;
// The index database; its loss costs time, never data.
pub mod db;

// Floor 1: pure.
// Bytes in, cut points out.
pub mod chunk;
// Deflate streams, made again to the byte.
pub mod deflate;
// Documents in, what they say out, apart from how their format writes it down.
pub mod view;

// Reports to be looked at in a browser.
pub mod page;
// A server for them, on this machine and for one user.
pub mod web;

// Floor 2: siblings.
// Bytes by id: packs are the truth.
pub mod store;
// Which contents resemble each other. Never reads the store.
pub mod similarity;

// Floor 3: a filesystem without FUSE, and contents without names for other filesystems.
pub mod overlay;

// Floor 3.5: versions and snapshots of what the overlay has.
pub mod history;

// Floor 4: a store with its overlay, and what can be asked of it.
// Settings, and how sizes and times are written.
pub mod config;
// Make, lock, open, close.
pub mod repo;
// One action a file: scan, settle, similar, status, check.
pub mod admin;

// Floor 5: siblings, the two ways in.
// A thin adapter to the kernel.
pub mod fuse;
// Programs talk to the daemon.
pub mod control;
// Copies of a tree on several machines.
pub mod sync;

// Floor 6: the programs.
// The process that serves a mount.
pub mod daemon;
// Arguments in, text and exit codes out.
pub mod cli;

// For tests: every decoder, fed with any bytes.
#[doc(hidden)]
pub mod fuzz;
