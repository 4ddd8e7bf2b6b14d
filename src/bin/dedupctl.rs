//! Asks and steers dedupfs: see `dedupctl --help`.

fn main() -> std::process::ExitCode {
    dedupfs::cli::run(std::env::args_os(), dedupfs::cli::Program::Dedupctl)
}
