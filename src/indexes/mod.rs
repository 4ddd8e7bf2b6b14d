//! Indexes of contents that files have: by their bytes, through views, and by published methods.
//!
//! A content is added when it is committed or met by a scan, and removed when its last file is gone. Nothing here answers a
//! question of a user: [`query`](crate::query) does.

mod forgetting;
mod index_stub;
mod indexing;
pub(crate) mod method_indexes;
mod method_sketches;
mod set;
mod summing;
mod totals;
mod view_index;
pub(crate) mod views;

pub use method_indexes::{MethodIndexOptions, MethodIndexes};
pub use set::Indexes;
pub use totals::Totals;
pub use views::Views;
