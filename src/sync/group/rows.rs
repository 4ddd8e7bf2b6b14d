//! The entries of one group.

use crate::sync::attributes::same_xattrs;
use crate::sync::tree::Entry;
use std::collections::BTreeMap;

/// The suffix of the group's own entry.
pub const ITSELF: &[u8] = b"";

/// The entries of a group by suffix, which is the rest of the path after the group's path: `/HEAD`, or `-wal`.
/// [`ITSELF`] is the group's own entry.
pub type Rows = BTreeMap<Vec<u8>, Entry>;

/// Returns whether a step can keep the present file for a row. It may get another owner or ACL.
pub fn stays(was: &Entry, is: &Entry) -> bool {
    (&was.kind, was.mode, was.mtime) == (&is.kind, is.mode, is.mtime) && same_xattrs(&was.xattrs, &is.xattrs)
}
