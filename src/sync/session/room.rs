//! Room for arriving contents on the disk of a replica.

use super::super::content::Want;
use std::collections::BTreeSet;

/// Bytes that a sync leaves free on a disk for its own files.
pub(super) const ROOM_BYTES: u64 = 8 << 20;
/// Bytes that a file takes in addition to its content.
const FILE_BYTES: u64 = 4 << 10;
/// Prefix of a feature in a hello: the free bytes of the replica's disk, as a power of two.
const ROOM: &str = "room ";

/// Maximum announced power of two.
const ROOM_BITS_MAX: u32 = 40;

/// Returns the feature with the number of free bytes.
pub(super) fn room_feature(free: u64) -> Option<String> {
    let bits = free.checked_ilog2().unwrap_or(0);
    (bits < ROOM_BITS_MAX).then(|| format!("{ROOM}{bits}"))
}

/// Returns whether a peer with these features may lack room for some of the contents that it is to get.
pub(super) fn may_be_too_much(wants: &[Want], features: &[String]) -> bool {
    let bits = features.iter().find_map(|feature| feature.strip_prefix(ROOM)?.parse::<u32>().ok());
    let free = bits.and_then(|bits| 1_u64.checked_shl(bits));
    free.is_some_and(|free| !too_large(wants, free).is_empty())
}

/// Returns the numbers of wants that do not fit after all smaller ones.
pub(super) fn too_large(wants: &[Want], free: u64) -> BTreeSet<u32> {
    let mut sizes: Vec<(u64, u32)> = wants.iter().map(|want| want.size).zip(0..).collect();
    sizes.sort_unstable();
    let mut room = free.saturating_sub(ROOM_BYTES);
    let mut fits = |size: u64| {
        let left = room.checked_sub(size.saturating_add(FILE_BYTES));
        room = left.unwrap_or(0);
        left.is_some()
    };
    sizes.into_iter().filter(|(size, _)| !fits(*size)).map(|(_, number)| number).collect()
}
