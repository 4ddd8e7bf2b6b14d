//! Free inodes of a filesystem. A sync leaves some of them, which it needs to write its own state.

use super::plan::Op;
use crate::beneath::Root;

/// Contents and directories are left out if fewer would be free.
pub const KEPT: u64 = 64;
/// Steps are skipped if fewer are free. Staged files are still put in place.
const LAST: u64 = KEPT / 2;
/// The reason for the user.
pub const WHY: &str =
    "there is no inode left for it on that filesystem; remove files from it and run the sync again";

/// Returns how many inodes are free; `None` if the filesystem makes them as needed.
pub fn free(root: &Root) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(root.fd()).ok()?;
    (stat.f_files > 0).then_some(stat.f_favail)
}

/// Whether inodes are so scarce that each step must check them first.
#[derive(Default)]
pub struct Scarce(bool);

impl Scarce {
    /// Looks whether `ops` may use up the inodes.
    pub fn for_steps(root: &Root, ops: &[Op]) -> Scarce {
        let most: usize = ops.iter().map(taken_by).sum();
        Scarce(free(root).is_some_and(|free| free < most as u64 + KEPT))
    }

    /// Returns whether there are too few for a step.
    pub fn are_too_few_for(&self, root: &Root, op: &Op) -> bool {
        let taken = taken_by(op) as u64;
        self.0 && taken > 0 && free(root).is_some_and(|free| free < taken + LAST)
    }
}

/// Returns the maximum number of inodes that a step takes.
fn taken_by(op: &Op) -> usize {
    match op {
        Op::MakeDir { .. } | Op::Create { link: None, .. } => 1,
        Op::Group { is, .. } => is.len() + 1,
        _ => 0,
    }
}
