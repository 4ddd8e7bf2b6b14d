//! Pager for long output on a terminal, like that of git: `PAGER`, or `less -FRX`.

use signal_hook::consts::SIGINT;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use terminal_size::{Height, Width, terminal_size_of};

/// Assumed size of terminals that do not report theirs.
const SIZE: (Width, Height) = (Width(80), Height(24));
/// A shell's exit codes for a program that it could not start; less uses them too.
const NOT_STARTED: [Option<i32>; 2] = [Some(126), Some(127)];

/// Shows a text in the pager. Returns false if the text fits the terminal that stdout is, or there is no pager.
pub(super) fn show(text: &[u8]) -> bool {
    let (Width(columns), Height(rows)) = terminal_size_of(io::stdout()).unwrap_or(SIZE);
    if fits(text, columns.into(), rows.into()) {
        return false;
    }
    match std::env::var_os("PAGER") {
        Some(pager) if pager.is_empty() || pager == "cat" => false,
        Some(pager) => through("sh".as_ref(), &["-c".into(), pager], text),
        None => through("less".as_ref(), &[], text),
    }
}

fn fits(text: &[u8], columns: usize, rows: usize) -> bool {
    let lines = String::from_utf8_lossy(text);
    let needed = lines.lines().map(|line| line.chars().count().div_ceil(columns.max(1)).max(1));
    // The prompt takes a row too.
    needed.sum::<usize>() < rows
}

fn through(program: &OsStr, args: &[OsString], text: &[u8]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    // The pager handles Ctrl-C; without this program it would be left alone with the terminal. It does not inherit
    // this.
    let ignored = signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)));
    let ended = run(command, text);
    if let Ok(id) = ignored {
        signal_hook::low_level::unregister(id);
    }
    ended.is_ok_and(|status| !NOT_STARTED.contains(&status.code()))
}

fn run(mut command: Command, text: &[u8]) -> io::Result<ExitStatus> {
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // The user may quit before the end of the text.
        let _ = stdin.write_all(text);
    }
    child.wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_the_screen_is_not_paged() {
        assert!(fits(b"", 80, 24) && fits(&b"x\n".repeat(23), 80, 24) && !fits(&b"x\n".repeat(24), 80, 24));
        assert!(!fits(&b"x".repeat(80 * 24), 80, 24), "long lines take several rows");
    }
}
