//! How many entries of a directory come with their attributes at first.
//!
//! The kernel asks for attributes with the first entries of each directory, and with the rest if a program has wanted those
//! meanwhile. It does not say what a program does that reads all names before it wants any attributes, as `ls -l` does. So:
//! few at first, as each costs as much as a look-up; and many in the next directories once somebody has looked up a file of
//! the directory listed last, which it need not have, had it come with its attributes.

use crate::overlay::NodeId;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Among them `.` and `..`.
const FEW: usize = 6;
const MANY: usize = 34;
/// So many directories are listed with many after one whose files were looked up.
const EAGER: u32 = 16;

/// What was listed, and whether attributes were wanted. A hint: nothing is wrong if threads pass each other.
#[derive(Default)]
pub(super) struct Listings {
    last: AtomicU64,
    eager: AtomicU32,
}

impl Listings {
    /// A directory is listed from its beginning: how many entries get their attributes.
    pub(super) fn begin(&self, dir: NodeId) -> usize {
        self.last.store(dir.0, Ordering::Relaxed);
        let eager = self.eager.load(Ordering::Relaxed);
        self.eager.store(eager.saturating_sub(1), Ordering::Relaxed);
        if eager > 0 { MANY } else { FEW }
    }

    /// A file was looked up in a directory.
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
