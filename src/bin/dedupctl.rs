//! Asks and steers dedupfs: see `dedupctl --help`.

fn main() -> std::process::ExitCode {
    dedupfs::cli::dedupctl(std::env::args_os())
}
