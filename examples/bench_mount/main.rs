//! What the mount costs: beside the plain filesystem, and beside others.
//!
//! `cargo build --release --bins --example bench_mount`, then as root:
//!
//! `bench_mount speed WORKDIR [--rounds N] [--only SUITE,..] [--sides SIDE,..] [--json]`: operations of programs on
//! fresh ext4 images, one a contestant, in turns; medians as ratios to plain ext4. WORKDIR is made, and its images
//! and mounts are removed at the end. bindfs is left out where it is not installed.
//!
//! `bench_mount copy WORKDIR SOURCE...`: copying trees in, against `cp`, borg and restic. WORKDIR is emptied.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

mod copy;
mod null;
mod side;
mod speed;
mod stage;
mod tree;

use std::path::{Path, PathBuf};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["speed", work, ref flags @ ..] => match speed::Options::parse(flags) {
            Some(options) => speed::run(Path::new(work), &options),
            None => usage(),
        },
        ["copy", work, ref sources @ ..] if !sources.is_empty() => {
            let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
            copy::run_all(Path::new(work), &sources);
        }
        // What `speed` starts itself for.
        ["stage", name, dir] => stage::work(name, Path::new(dir)),
        ["null", mountpoint] => null::serve(Path::new(mountpoint)),
        _ => usage(),
    }
}

fn usage() -> ! {
    println!(
        "usage: bench_mount speed WORKDIR [--rounds N] [--only SUITE,..] [--sides SIDE,..] [--json]\n       \
         bench_mount copy WORKDIR SOURCE...\nsuites: {}\nsides: {}",
        stage::SUITES.map(|suite| suite.name).join(" "),
        side::NAMES.join(" ")
    );
    std::process::exit(2)
}
