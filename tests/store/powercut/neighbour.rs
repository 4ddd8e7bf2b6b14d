//! Another program on the same filesystem, which syncs a file of its own again and again while it is told to: each
//! time the journal is written out, with whatever the overlay is in the middle of.

use super::recorder::Recorder;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two syncs.
const PAUSE: Duration = Duration::from_micros(200);

pub struct Neighbour<'a> {
    recorder: &'a Recorder,
    flags: Arc<Flags>,
    thread: Option<JoinHandle<()>>,
    begun: usize,
    /// Positions in the log between which it was busy.
    pub times: Vec<Range<usize>>,
}

#[derive(Default)]
struct Flags {
    busy: AtomicBool,
    ended: AtomicBool,
}

impl<'a> Neighbour<'a> {
    /// With a file in the directory `at`; idle at first.
    pub fn new(at: &Path, recorder: &'a Recorder) -> Neighbour<'a> {
        let mut file = File::create(at.join("neighbour")).unwrap();
        let flags = Arc::<Flags>::default();
        let told = flags.clone();
        let thread = std::thread::spawn(move || {
            while !told.ended.load(Ordering::Relaxed) {
                if told.busy.load(Ordering::Relaxed) {
                    file.write_all(b"a line of a log\n").unwrap();
                    file.sync_all().unwrap();
                }
                std::thread::sleep(PAUSE);
            }
        });
        Neighbour { recorder, flags, thread: Some(thread), begun: 0, times: Vec::new() }
    }

    pub fn start(&mut self) {
        self.begun = self.recorder.position();
        self.flags.busy.store(true, Ordering::Relaxed);
    }

    pub fn pause(&mut self) {
        self.flags.busy.store(false, Ordering::Relaxed);
        self.times.push(self.begun..self.recorder.position());
    }
}

impl Drop for Neighbour<'_> {
    fn drop(&mut self) {
        self.flags.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
