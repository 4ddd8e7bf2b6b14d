//! How time, memory and disk space grow with what is in an overlay.
//!
//! - `bench_scale files DIR 10000,100000 [SECONDS]`: makes trees of these numbers of small files below DIR, mounts each over itself with the built
//!   programs, and measures each command: seconds, processor time of the daemon and the command, memory, descriptors, bytes on disk.
//!   A step that takes longer than SECONDS (1,200) is ended and marked. Adds to `DIR/rows.tsv` and writes `DIR/scale.md` and `DIR/scale.svg`:
//!   a table with exponents (the slope of the logarithms), and a plot.
//! - `bench_scale report DIR`: writes them again from `DIR/rows.tsv`.
//! - `bench_scale soak DIR MINUTES [FILES]`: rounds of creating, settling and deleting FILES (3,000) small files; memory after each.
//! - `bench_scale DIR STEPS MIB random|text [FILE_KIB [full|chunks|off]]`: bytes written for one more step of MIB, without a mount ([`bytes`]).
//!
//! Programs are taken from `DEDUPFS_PROGRAMS`, or from where cargo puts them. Run it as an ordinary user and with `ulimit -n 1024`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first error, and prints"
)]

mod bytes;
mod files;
mod mounted;
mod numbers;
mod plot;
mod process;
mod report;
mod row;
mod soak;
mod tables;
mod tree;

use std::path::Path;
use std::time::Duration;

const USAGE: &str = "files DIR N,N.. [SECONDS] | report DIR | soak DIR MINUTES [FILES] | DIR STEPS MIB random|text [FILE_KIB [full|chunks|off]]";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let or = |rest: &[&str], default| rest.first().map_or(default, |text| number(text));
    match args[..] {
        ["files", dir, counts, ref rest @ ..] => {
            let counts: Vec<u64> = counts.split(',').map(number).collect();
            files::run(Path::new(dir), &counts, Duration::from_secs(or(rest, 1200)));
        }
        ["report", dir] => report::write(Path::new(dir)),
        ["soak", dir, minutes, ref rest @ ..] => soak::run(Path::new(dir), number(minutes), or(rest, 3000)),
        [dir, steps, mib, kind, ref rest @ ..] => bytes::run(dir, steps, mib, kind, rest),
        _ => panic!("{USAGE}"),
    }
}
