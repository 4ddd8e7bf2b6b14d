//! Mounts a deduplicating overlay: see `dedupfs --help`.

fn main() -> std::process::ExitCode {
    dedupfs::cli::dedupfs(std::env::args_os())
}
