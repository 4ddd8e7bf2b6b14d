//! Decode-ahead: a few threads that load chunks into the cache before a read wants them.
//!
//! Only hints pass through here: a full queue drops them, and errors are left to the read that follows.

use super::read::Reader;
use crate::id::ChunkId;
use crate::recipe::ChunkRef;
use crossbeam::channel::{Receiver, Sender, bounded};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Chunks in a message: few enough to spread a window over the threads, and to get the first of them soon.
const CHUNKS_PER_HINT: usize = 16;
const HINTS_QUEUED: usize = 64;

pub(super) struct Prefetcher {
    hints: Option<Sender<Vec<ChunkId>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Prefetcher {
    /// Starts `threads` threads; with none, hints do nothing.
    pub(super) fn start(reader: &Arc<Reader>, threads: usize) -> Prefetcher {
        let (hints, queue) = bounded::<Vec<ChunkId>>(HINTS_QUEUED);
        let start = |i| {
            let (reader, queue) = (Arc::clone(reader), queue.clone());
            let name = format!("prefetch-{i}");
            // A thread that cannot be started only means fewer hints served.
            std::thread::Builder::new().name(name).spawn(move || decode(&reader, &queue)).ok()
        };
        let threads: Vec<_> = (0..threads).filter_map(start).collect();
        Prefetcher { hints: (!threads.is_empty()).then_some(hints), threads }
    }

    pub(super) fn hint(&self, reader: &Reader, chunks: &[ChunkRef]) {
        let Some(hints) = &self.hints else { return };
        for part in chunks.chunks(CHUNKS_PER_HINT) {
            let ids = part.iter().map(|chunk| chunk.id);
            let wanted: Vec<ChunkId> = ids.filter(|id| !reader.is_cached(id)).collect();
            if !wanted.is_empty() && hints.try_send(wanted).is_err() {
                return;
            }
        }
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.hints = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn decode(reader: &Reader, queue: &Receiver<Vec<ChunkId>>) {
    let mut buffer = Vec::new();
    for ids in queue {
        reader.load_ahead(&ids, &mut buffer);
    }
}
