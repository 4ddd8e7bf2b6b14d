//! Division of the memory setting.
//!
//! Invariants: the parts add up to at most the whole. `docs/memory.md` lists the
//! effect of each part, and the memory that no part bounds.

/// Default: 256 MiB.
pub const MEMORY_BYTES: u64 = 256 << 20;
/// Minimum: 32 MiB. Less does not work well, and would save little.
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Worst case for a recent row of the chunk index: gathered rows, twice while a writer waits, and as many on
/// their way into the database.
const RECENT_ROW_BYTES: u64 = 256;

/// The parts, in bytes unless noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Decoded chunks and recipes: a quarter, or its own setting.
    pub cache_bytes: u64,
    /// Requested cache of the index database: an eighth.
    pub index_cache_bytes: u64,
    /// Rows of the chunk index gathered before they enter the database: an eighth of the bytes, counted in
    /// rows.
    pub recent_rows: usize,
    /// Filters of stored keys: an eighth.
    pub filter_bytes: u64,
    /// Additions to similarity: an eighth.
    pub similarity_bytes: usize,
    /// Additions to the index of views: a thirty-second.
    pub views_bytes: usize,
    /// Additions to the saved indexes of published methods, together: a thirty-second.
    pub kept_bytes: usize,
    /// Sketches of one content for these methods: as much; more is sorted on disk.
    pub kept_sketch_bytes: usize,
}

impl Memory {
    /// Divides `total` bytes; `cache_bytes` overrides its part. A quarter is left for the program itself,
    /// segments on their way to the workers, and the database beyond its cache.
    pub fn divide(total: Option<u64>, cache_bytes: Option<u64>) -> Memory {
        let total = total.unwrap_or(MEMORY_BYTES).max(MEMORY_BYTES_MIN);
        let eighth = total / 8;
        Memory {
            cache_bytes: cache_bytes.unwrap_or(total / 4),
            index_cache_bytes: eighth,
            recent_rows: (eighth / RECENT_ROW_BYTES).try_into().unwrap_or(usize::MAX),
            filter_bytes: eighth,
            similarity_bytes: eighth.try_into().unwrap_or(usize::MAX),
            views_bytes: (eighth / 4).try_into().unwrap_or(usize::MAX),
            kept_bytes: (eighth / 4).try_into().unwrap_or(usize::MAX),
            kept_sketch_bytes: (eighth / 4).try_into().unwrap_or(usize::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_do_not_exceed_the_whole() {
        for total in [None, Some(0), Some(128 << 20), Some(512 << 20), Some(u64::MAX)] {
            let memory = Memory::divide(total, None);
            let recent = memory.recent_rows as u64 * RECENT_ROW_BYTES;
            let parts = [memory.cache_bytes, memory.index_cache_bytes, recent, memory.filter_bytes];
            let kept = memory.kept_bytes + memory.kept_sketch_bytes;
            let similarity = (memory.similarity_bytes + memory.views_bytes + kept) as u64;
            let sum = parts.iter().sum::<u64>() + similarity;
            let whole = total.unwrap_or(MEMORY_BYTES).max(MEMORY_BYTES_MIN);
            assert!(sum <= whole && sum > whole / 2, "{memory:?} of {total:?}");
        }
    }

    #[test]
    fn one_part_can_be_set_by_itself() {
        let whole = Memory::divide(Some(256 << 20), None);
        assert_eq!(whole.cache_bytes, 64 << 20);
        assert_eq!(Memory::divide(Some(256 << 20), Some(7)), Memory { cache_bytes: 7, ..whole });
    }
}
