//! Others, run by a script on the same files with the same queries.

use crate::corpus::File;
use crate::table::Row;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PEERS: [&str; 5] = ["ssdeep", "datasketch-lsh", "datasketch-ensemble", "rensa", "gaoya"];

/// What the script prints.
#[derive(Deserialize)]
struct Said {
    settings: String,
    /// Of each query, the contents found, with an estimate of the resemblance where there is one.
    found: Vec<HashMap<usize, f64>>,
    sketch_s: f64,
    latencies_us: Vec<f64>,
    all_pairs_s: f64,
    all_pairs: u64,
    peak_mb: f64,
}

/// Peers at work. Each has a process of its own and is told apart by its processor time, so they may run beside the rest.
pub struct Peers(Vec<(&'static str, Child)>);

/// Starts all of them; none if they cannot be installed.
pub fn start(work: &Path, files: &[File], queries: &[usize]) -> Peers {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/bench_similarity");
    let ready = Command::new("sh").arg(here.join("peers.sh")).arg(work).status().unwrap();
    if !ready.success() {
        println!("peers: {} failed for {}; left out", here.join("peers.sh").display(), work.display());
        return Peers(Vec::new());
    }
    let manifest = work.join("files.json");
    let paths: Vec<_> = files.iter().map(|file| &file.path).collect();
    let said = serde_json::json!({ "files": paths, "queries": queries });
    std::fs::write(&manifest, said.to_string()).unwrap();
    let start = |peer: &&'static str| {
        let child = Command::new(work.join("venv/bin/python"))
            .arg(here.join("peers.py"))
            .args([peer.as_ref(), manifest.as_os_str(), work.as_os_str()])
            // One core each, as for dedupfs.
            .envs([("RAYON_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")])
            .stdout(std::fs::File::create(said_by(work, peer)).unwrap())
            .stderr(Stdio::piped())
            .spawn();
        (*peer, child.unwrap())
    };
    Peers(PEERS.iter().map(start).collect())
}

fn said_by(work: &Path, peer: &str) -> PathBuf {
    work.join(format!("{peer}.json"))
}

impl Peers {
    /// Waits for them. What failed is a row that says why.
    pub fn rows(self, work: &Path, files: &[File]) -> Vec<Row> {
        let megabytes = files.iter().map(|file| file.bytes.len()).sum::<usize>() as f64 / 1e6;
        let row = |(peer, child): (&str, Child)| {
            let output = child.wait_with_output().unwrap();
            let said = std::fs::read(said_by(work, peer)).unwrap();
            if let Ok(said) = serde_json::from_slice::<Said>(&said) {
                return said.row(peer, megabytes);
            }
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().last().unwrap_or("failed").to_string();
            Row { name: peer.into(), settings: why, ..Row::default() }
        };
        self.0.into_iter().map(row).collect()
    }
}

impl Said {
    fn row(self, peer: &str, megabytes: f64) -> Row {
        Row {
            name: peer.into(),
            settings: self.settings,
            found: self.found,
            estimates: false,
            sketch_mb_s: Some(megabytes / self.sketch_s),
            latencies_us: self.latencies_us,
            all_pairs: Some((self.all_pairs_s, self.all_pairs)),
            index_share: None,
            peak_mb: Some(self.peak_mb),
        }
    }
}
