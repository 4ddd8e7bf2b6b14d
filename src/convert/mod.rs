//! Conversion of plain files to stubs, in the background.
//!
//! Files are converted when no program has them open (`commit`), or piece by piece if they do not fit on the disk twice
//! (`hybrid_beginning`). Programs see no difference: size, times and inode number stay.
//!
//! Durability: a stub is made only from a recipe that is durable in the store. A file's record says that its content is
//! elsewhere before its bytes are removed, and a conversion first proves that the file is in the tree
//! (`tree/proof`). `docs/durability.md` lists every truncation and replacement of a file in this program, and why each is
//! safe (`tests/house/truncations.rs` checks the list).

mod again;
mod commit;
mod converter;
pub(crate) mod garbage;
mod growing;
mod hybrid_beginning;
mod hybrid_commit;
mod hybrid_step;
mod keep_plain;
pub(crate) mod queue;
mod rewrite_backoff;
mod rewrites;
pub(crate) mod room;
mod round_size;
mod space;
mod taken;
mod warm;
mod warming;

pub use converter::Converter;
pub use garbage::{Garbage, Held as HeldForHistory};
pub use room::{Amount, keep_free_bytes, snapshots_fill_disk};
