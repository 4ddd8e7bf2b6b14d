//! The experiments of the papers whose methods dedupfs has, run again: then and now.
//!
//! `cargo run --release --example papers -- sif DIR`: 4,000 text files of DIR, about 60 MB, and one with half of it
//! replaced.
//!
//! `cargo run --release --example papers -- winnow DIR PLOT.svg`: noise, and the web pages of DIR.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

mod sif;
mod winnow;

use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["sif", dir] => sif::run(Path::new(dir)),
        ["winnow", dir, plot] => winnow::run(Path::new(dir), Path::new(plot)),
        _ => panic!("usage: papers sif DIR | winnow DIR PLOT.svg"),
    }
}
