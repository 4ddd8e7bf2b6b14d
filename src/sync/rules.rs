//! Settings of a device for its syncs.

use super::group::Groups;
use super::owners::Owners;
use super::selection::Selection;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Default)]
pub struct Rules {
    /// Entries that are read and changed as a whole.
    pub groups: Groups,
    /// The paths that this device syncs.
    pub selection: Selection,
    /// Owners and ACLs, and the names of accounts.
    pub owners: Arc<Owners>,
}

impl From<Groups> for Rules {
    fn from(groups: Groups) -> Rules {
        Rules { groups, ..Rules::default() }
    }
}
