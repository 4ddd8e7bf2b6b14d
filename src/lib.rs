//! dedupfs: a deduplicating overlay filesystem that finds similar files, as a library. The programs `dedupfs` and
//! `dedupctl` use it.
//!
//! Priorities, in this order: durable data stays durable; a read returns the right bytes or an error; speed; comfort.
//! A file's bytes are in exactly one authoritative place: in the file itself, or in the packs of the store once the
//! file is a stub. Everything else (index, caches, sketches) can be rebuilt from those.
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
//! Without a mount, the library is a deduplicated set of contents with similarity search:
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
//! More in `examples/`: `chunk` chunks and sketches a file, `alike` finds similar files, `read_store` opens a store
//! read-only, and `plugin` adds deduplication and similarity to another filesystem.
//!
//! Features: `cli` has the programs, `mount` the adapter to the kernel. Both are on by default. A program that only embeds
//! contents, a store or sync needs neither: `default-features = false`.
//!
//! A module uses only modules on lower floors; siblings do not use each other (`tests/house/layers.rs`). Each module's header
//! lists its invariants. `docs/architecture.md` follows a write and a read through all modules; `docs/format.md`
//! describes the bytes on disk.

// Floor 0: vocabulary, and the outside world.
// The disk, real or simulated.
mod env;
// Untrusted paths, confined to one directory.
mod beneath;
// Ids of chunks, recipes, files, packs, stores.
pub mod id;
// The list of chunks of a content.
pub mod recipe;
// The index database. Losing it costs time, never data.
pub mod db;

// Floor 1: pure.
// Bytes in, cut points out.
pub mod chunk;
// Deflate streams, inflated and reproduced to the byte.
mod deflate;
// Text and structure of documents, independent of their file format.
pub mod view;

// HTML reports.
#[cfg(all(feature = "cli", not(feature = "testing")))]
mod page;
#[cfg(all(feature = "cli", feature = "testing"))]
#[doc(hidden)]
pub mod page;
// A local web server for the reports, for one user.
#[cfg(feature = "cli")]
mod web;

// Floor 2: siblings.
// Chunks and recipes by id. Packs are authoritative.
pub mod store;
// Similarity of contents. Never reads the store.
pub mod similarity;

// Floors 3 to 5: a filesystem without FUSE types, from the bottom up.
// Contents without names, for embedders: bytes by id, and their sketches.
mod contents;
// System calls on the backing directory, paths beneath it, and records of stubs.
mod backing;
// Which file has which content, and where it is.
mod catalog;
// The filesystem: names, attributes, open files, stubs and hybrid files.
mod tree;
// Which contents the files have: by bytes, through views, by published methods.
mod indexes;
// Plain files to stubs, in the background.
mod convert;
// Answers about similar, contained and grouped files.
mod query;
// Scans, garbage collection, export, repair.
mod maintain;
// All of it together, and its threads.
pub mod overlay;

// Floor 6: versions and snapshots; a store with its overlay, and the actions on it.
pub mod history;

// Settings; how sizes and times are written.
pub mod config;
// Creating, locking, opening and closing a store.
pub mod repo;
// One action a file: scan, settle, similar, status, check.
pub mod admin;

// Floor 7: siblings, the ways in.
// The adapter to the kernel.
#[cfg(feature = "mount")]
pub mod fuse;
// The daemon's Unix socket.
#[cfg(all(feature = "cli", not(feature = "testing")))]
mod control;
#[cfg(all(feature = "cli", feature = "testing"))]
#[doc(hidden)]
pub mod control;
// Synchronization of trees between machines.
pub mod sync;

// Floor 8: the programs.
// The process behind a mount.
#[cfg(feature = "cli")]
mod daemon;
// Command line: arguments in, text and exit codes out.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;

// For tests: entry points that feed arbitrary bytes to every decoder.
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
