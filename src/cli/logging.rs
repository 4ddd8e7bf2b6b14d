use std::io::{self, IsTerminal, Write};
use std::os::linux::fs::MetadataExt;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Stderr, ignoring write errors: a log on a full disk must not stop any command.
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
/// people at a terminal have neither time nor source location. If stderr is the journal, they go there with
/// their level as priority and their fields.
pub(super) fn start(default: &str, plain: bool) {
    let filter = std::env::var("DEDUPFS_LOG").ok().and_then(|text| text.parse::<EnvFilter>().ok());
    if stderr_is_journal()
        && let Ok(journal) = tracing_journald::layer()
    {
        let filter = filter.unwrap_or_else(|| EnvFilter::new(default));
        let _ = tracing_subscriber::registry().with(filter).with(journal).try_init();
        return;
    }
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|| EnvFilter::new(default)))
        .with_writer(|| Stderr)
        // The crate would print the error, and panic if that fails.
        .log_internal_errors(false)
        .with_target(false)
        .with_ansi(plain && !no_color && std::io::stderr().is_terminal());
    // A second start, as in tests, changes nothing.
    let _ = if plain { log.without_time().try_init() } else { log.try_init() };
}

/// Detects the journal as in systemd.exec(5): `JOURNAL_STREAM` names the device and inode of the stream.
fn stderr_is_journal() -> bool {
    let (Some(stream), Ok(stderr)) =
        (std::env::var("JOURNAL_STREAM").ok(), std::fs::metadata("/proc/self/fd/2"))
    else {
        return false;
    };
    stream == format!("{}:{}", stderr.st_dev(), stderr.st_ino())
}
