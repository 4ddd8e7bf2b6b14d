use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;

/// Stderr, as far as it can be written to: a log on a full disk must not stop anybody.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends log messages to stderr. `DEDUPFS_LOG` overrides `default` (as `RUST_LOG` elsewhere). Messages for
/// people at a terminal carry neither time nor place.
pub(super) fn start(default: &str, plain: bool) {
    let filter = std::env::var("DEDUPFS_LOG").ok().and_then(|text| text.parse::<EnvFilter>().ok());
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|| EnvFilter::new(default)))
        .with_writer(|| Stderr)
        // It would print, and panic where that fails.
        .log_internal_errors(false)
        .with_target(false)
        .with_ansi(plain && !no_color && std::io::stderr().is_terminal());
    // A second start, as in tests, changes nothing.
    let _ = if plain { log.without_time().try_init() } else { log.try_init() };
}
