//! Repeated reports, until the user ends them.

use super::error::CliError;
use super::output::Output;
use super::{CliResult, Outcome};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Shows the result of `next` at intervals of `every`: it replaces the last one on a terminal, or is one document a
/// line with `--json`. Ends successfully on Ctrl-C, or if the reader goes away.
pub(super) fn watch<T: Serialize>(
    every: Duration,
    out: &Output,
    mut next: impl FnMut() -> Result<T, CliError>,
    text: impl Fn(&T) -> String,
) -> CliResult {
    let failed = |e: std::io::Error| CliError::new(format!("wait for signals: {e}"));
    let (mut told, tell) = UnixStream::pair().map_err(failed)?;
    for signal in [SIGINT, SIGTERM] {
        let tell = tell.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, tell).map_err(failed)?;
    }
    told.set_read_timeout(Some(every)).map_err(failed)?;
    while out.again(&next()?, &text)? {
        match told.read_exact(&mut [0]) {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    Ok(Outcome::Clean)
}

/// Reads a number of seconds.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, from 0.1 to 86400".to_owned())
}
