//! The moment that a replica's head belongs to. The daemon of a mount lists the changes after it, so a sync examines those
//! instead of walking the tree.
//!
//! Invariant: everything in the directory is as in the head's tree, except changes after the moment, and entries that are not
//! synced. So a moment is taken before the walk that establishes it, and is dropped when anything was not examined: see
//! [`super::scan::Scan::is_complete`]. A change of the patterns, groups or selection makes it useless; so does a restart of
//! the daemon, which does not know moments of an earlier one.

use super::rules::Rules;
use super::tree::TreePath;
use super::version::SnapshotId;
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Since {
    /// The daemon's name for the moment.
    pub moment: String,
    /// The snapshot that the directory had.
    pub head: SnapshotId,
    /// [`rules()`] of then.
    pub rules: [u8; 32],
    /// Sockets and devices. Every sync names them to the user.
    pub unsupported: Vec<TreePath>,
    /// Number of entries that the selection leaves out.
    pub left_out: u64,
}

/// Returns a hash of the rules for entries and how they are examined: the text of `.dedupfsignore`, the groups, the selection,
/// the attributes that are seen, and the names of accounts.
pub fn rules(patterns: &str, rules: &Rules) -> [u8; 32] {
    let Rules { groups, selection, owners } = rules;
    let told = (patterns, groups.features(), selection.text(), owners.sees, owners.map());
    let told = postcard::to_allocvec(&told).expect("texts can be encoded");
    *blake3::Hasher::new_derive_key("dedupfs sync rules").update(&told).finalize().as_bytes()
}
