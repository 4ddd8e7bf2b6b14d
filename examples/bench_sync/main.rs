//! Bytes on the wire to bring one copy of a tree up to date with another, by the delta design.
//!
//! `bench_sync OLD NEW [RENAMES]`: OLD is the tree that both sides have (the last common snapshot), NEW what one side made
//! of it. RENAMES has a line `FROM<tab>TO` for each rename of a file or directory that the mount would have recorded, in
//! order. Prints one line of JSON. `run.py` makes the nine cases, runs this and the other programs on them, and prints
//! the table; see there for how to.
//!
//! What is counted, both directions together:
//! - the journal, encoded ([`journal`]), and the delta stream of all changed and new contents ([`dedupfs::sync::delta`]),
//!   each at level 9 and 19;
//! - an estimate of the rest, which no session has sent yet: [`SESSION_BYTES`].
//!
//! The delta is decoded against OLD and compared with NEW, byte by byte, on each run. Round trips: one, by construction:
//! nothing in the stream depends on an answer.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

mod bases;
mod journal;
mod tree;

use bases::OldFiles;
use dedupfs::sync::delta::{BaseId, Encoder, Level, Limits, Options, Receiver, decode};
use std::io;
use std::path::Path;
use std::time::Instant;
use tree::Tree;

/// Two greetings of 32 bytes with the identity of the last common snapshot and of a device each, the hash of the new
/// root, an acknowledgement, and frame headers of 8 bytes.
const SESSION_BYTES: u64 = 2 * (32 + 32 + 8) + (32 + 8) + (32 + 8);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [old, new, rest @ ..] = &args[..] else { panic!("usage: bench_sync OLD NEW [RENAMES]") };
    let (old, new) = (Tree::read(Path::new(old)), Tree::read(Path::new(new)));
    let renames = rest.first().map_or_else(Vec::new, |file| journal::read_renames(Path::new(file)));
    let start = Instant::now();
    let plan = journal::plan(&old, &new, &renames);
    let plan_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let chosen = bases::choose_all(&old, &new, &plan.changed);
    let choose_s = start.elapsed().as_secs_f64();
    let mut report = serde_json::json!({
        "files": new.files().count(),
        "bytes": new.files().map(|(_, file)| file.size).sum::<u64>(),
        "changed": plan.changed.len(),
        "session_bytes": SESSION_BYTES,
        "plan_seconds": plan_s,
        "choose_seconds": choose_s,
    });
    for (name, level, zstd_level) in [("level_9", Level::Normal, 9), ("level_19", Level::Slow, 19)] {
        let journal = zstd::bulk::compress(&plan.journal, zstd_level).unwrap();
        let (start, cpu) = (Instant::now(), cpu_s());
        let files = OldFiles(&old);
        let options = Options { level, ..Options::default() };
        let mut encoder = Encoder::new(&files, options, Vec::new()).unwrap();
        for (target, bases) in plan.changed.iter().zip(&chosen) {
            let content = std::fs::File::open(new.root.join(&target.path)).unwrap();
            encoder.add(&content, target.hint.map(BaseId), bases).unwrap();
        }
        let (encoded, stream) = encoder.finish().unwrap();
        let (encode_s, encode_cpu) = (start.elapsed().as_secs_f64(), cpu_s() - cpu);
        let (start, cpu) = (Instant::now(), cpu_s());
        let limits = Limits { targets_max: 1 << 24, bytes_max: 1 << 36 };
        let mut receiver = Comparing { new: &new, plan: &plan, at: 0, content: Vec::new() };
        decode(&files, &mut &stream[..], limits, &mut receiver).unwrap();
        assert_eq!(receiver.at, plan.changed.len());
        report[name] = serde_json::json!({
            "bytes": journal.len() as u64 + stream.len() as u64 + SESSION_BYTES,
            "journal_bytes": journal.len(),
            "delta_bytes": stream.len(),
            "operation_bytes": encoded.operation_bytes,
            "copies": encoded.copies,
            "literal_bytes": encoded.literal_bytes,
            "encode_seconds": encode_s,
            "encode_cpu_seconds": encode_cpu,
            "decode_seconds": start.elapsed().as_secs_f64(),
            "decode_cpu_seconds": cpu_s() - cpu,
        });
    }
    println!("{report}");
}

/// Processor time of this process in seconds.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Compares what is decoded with the new tree.
struct Comparing<'a> {
    new: &'a Tree,
    plan: &'a journal::Plan,
    at: usize,
    content: Vec<u8>,
}

impl Receiver for Comparing<'_> {
    fn hint(&mut self, target: u64) -> Option<BaseId> {
        self.plan.changed[target as usize].hint.map(BaseId)
    }

    fn begin(&mut self, target: u64, _: u64) -> io::Result<()> {
        assert_eq!(target as usize, self.at);
        self.content.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.content.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self, target: u64, _: [u8; 32]) -> io::Result<()> {
        let path = &self.plan.changed[target as usize].path;
        assert!(std::fs::read(self.new.root.join(path))? == self.content, "{}", path.display());
        self.at += 1;
        Ok(())
    }
}
