//! How many entries of a directory come with attributes at first.
//!
//! The kernel asks for attributes with the first entries of each directory, and with the rest if a program
//! has wanted attributes meanwhile. It does not show that a program, like `ls -l`, reads all names before it
//! wants any attributes. So the first listing has few, because each costs as much as a look-up. After a
//! look-up of a file in the last listed directory, which attributes would have avoided, the next directories
//! have many.

use crate::backing::types::NodeId;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Including `.` and `..`.
const FEW: usize = 6;
const MANY: usize = 34;
/// After a directory whose files were looked up, this many directories are listed with many attributes.
const EAGER: u32 = 16;

/// Recent listings, and whether attributes were wanted. Only a hint: races are harmless.
#[derive(Default)]
pub(super) struct Listings {
    last: AtomicU64,
    eager: AtomicU32,
}

impl Listings {
    /// Called when a listing begins; returns how many entries get attributes.
    pub(super) fn begin(&self, dir: NodeId) -> usize {
        self.last.store(dir.0, Ordering::Relaxed);
        let eager = self.eager.load(Ordering::Relaxed);
        self.eager.store(eager.saturating_sub(1), Ordering::Relaxed);
        if eager > 0 { MANY } else { FEW }
    }

    /// Called when a file in a directory was looked up.
    pub(super) fn looked_up(&self, dir: NodeId) {
        if self.last.load(Ordering::Relaxed) == dir.0 {
            self.eager.store(EAGER, Ordering::Relaxed);
        }
    }
}

// Seen to fail with: attributes for many always, or for few always.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_with_names_where_they_are_wanted() {
        let listings = Listings::default();
        assert_eq!(listings.begin(NodeId(7)), FEW);
        listings.looked_up(NodeId(8));
        assert_eq!(listings.begin(NodeId(7)), FEW, "elsewhere somebody looked up a file");
        listings.looked_up(NodeId(7));
        for dir in 0..u64::from(EAGER) {
            assert_eq!(listings.begin(NodeId(100 + dir)), MANY);
        }
        assert_eq!(listings.begin(NodeId(7)), FEW, "nobody did any more");
    }
}
