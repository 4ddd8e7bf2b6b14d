//! How much the similarity index finds, beside exact truth and beside others, all in one run.
//!
//! ```text
//! corpus   distinct contents of some directories, sampled by the names of files
//! oracle   for sampled queries: what of each lies in every other content, from all substrings of 32 and of 64 bytes
//! ours     the index as dedupfs builds it, its answers, and all pairs
//! peers    ssdeep, datasketch, rensa, gaoya on the same files and queries (`peers.py`)
//! table    recall and precision of each against the truth
//! ```
//!
//! `cargo run --release --example bench_similarity -- [--files N] [--queries N] [--kib-max N] [--seed N] [--similarity HOW] [--peers WORK] DIR...`
//! needs about ten times the sample in memory. `--peers` makes a Python environment below WORK, and needs the network once.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

mod corpus;
mod oracle;
mod ours;
mod peers;
mod table;

use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// What the index gets of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sketched {
    /// As `similarity = "full"`: grams, or the id alone if it does not compress and its content has 128 KiB or more
    Full,
    /// As `similarity = "chunks"`: the id alone
    Chunks,
    /// Grams of every chunk
    Grams,
}

#[derive(Parser)]
struct Args {
    /// Directories that are sampled as one.
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// Distinct contents.
    #[arg(long, default_value_t = 4000)]
    files: usize,
    /// Contents that are asked about.
    #[arg(long, default_value_t = 220)]
    queries: usize,
    /// Files of more KiB are left out.
    #[arg(long, default_value_t = 64 << 10)]
    kib_max: u64,
    /// Which files are taken.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What the index gets of a chunk.
    #[arg(long, value_enum, default_value = "full")]
    similarity: Sketched,
    /// Where others are installed; without it they are left out.
    #[arg(long)]
    peers: Option<PathBuf>,
    /// Shows so many of the pairs that were not found.
    #[arg(long, default_value_t = 0)]
    misses: usize,
}

fn main() {
    let args = Args::parse();
    let files = corpus::sample(&args.dirs, args.files, args.kib_max << 10, args.seed);
    let queries: Vec<usize> = (0..args.queries).map(|i| i * files.len() / args.queries).collect();
    let (kib_max, seed) = (args.kib_max, args.seed);
    println!(
        "{} of up to {kib_max} KiB, seed {seed}, {} queries, {:?}",
        corpus::described(&files),
        queries.len(),
        args.similarity
    );
    let peers = args.peers.as_ref().map(|work| (work, peers::start(work, &files, &queries)));
    let truth = oracle::truth(&files, &queries);
    println!("{}", oracle::described(&truth));
    let ours = ours::measure(&files, &queries, &truth, args.similarity);
    ours.print(&truth);
    let mut rows = ours.rows;
    if let Some((work, peers)) = peers {
        rows.extend(peers.rows(work, &files));
    }
    table::print(&rows, &files, &queries, &truth);
    table::print_own(&rows, &truth);
    table::print_errors(&rows[0], &files, &queries, &truth);
    table::print_misses(&rows[0], &files, &queries, &truth, args.misses);
}
