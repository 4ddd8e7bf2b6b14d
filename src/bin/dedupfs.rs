//! Mounts a deduplicating overlay: see `dedupfs --help`.

fn main() -> std::process::ExitCode {
    dedupfs::cli::run(std::env::args_os(), dedupfs::cli::Program::Dedupfs)
}
