//! Memory that was freed and that the allocator still has.
//!
//! glibc returns only the end of its heap to the system. A daemon frees most of its memory between blocks that stay in
//! use, so its resident memory grew with each round of work, to several times the memory in use.

use std::time::{Duration, Instant};

/// The shortest time between two calls.
const INTERVAL: Duration = Duration::from_secs(5);
/// A call may take this share of the time until the next.
const SHARE: u32 = 50;

/// Returns freed memory to the system now and then.
#[derive(Debug, Default)]
pub struct Heap {
    not_before: Option<Instant>,
}

impl Heap {
    /// Returns whole pages of freed memory, if the last time is long enough ago. Returns true if it did.
    pub fn trim_if_due(&mut self) -> bool {
        let begun = Instant::now();
        if self.not_before.is_some_and(|due| begun < due) {
            return false;
        }
        trim_heap();
        self.not_before = Some(begun + INTERVAL.max(begun.elapsed() * SHARE));
        true
    }
}

/// Returns whole pages of freed memory to the system. Allocations wait meanwhile: some 10 ms for 100 MiB.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only gives up freed memory, and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    /// Resident KiB of this process.
    fn resident() -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn freed_memory_between_blocks_in_use_goes_back() {
        let blocks: Vec<Vec<u8>> = (0..200_000).map(|_| vec![1; 1000]).collect();
        let kept: Vec<Vec<u8>> = blocks.into_iter().step_by(100).collect();
        let before = resident();
        let mut heap = Heap::default();
        assert!(heap.trim_if_due());
        let after = resident();
        assert!(
            after + (100 << 10) < before,
            "{before} KiB before, {after} KiB after, {} in use",
            kept.len()
        );
        assert!(!heap.trim_if_due(), "once in a while");
    }
}
