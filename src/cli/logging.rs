use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Sends log messages to stderr. `DEDUPFS_LOG` overrides `default` (as `RUST_LOG` elsewhere). Messages for
/// people at a terminal carry neither time nor place.
pub(super) fn start(default: &str, plain: bool) {
    let filter = std::env::var("DEDUPFS_LOG").ok().and_then(|text| text.parse::<EnvFilter>().ok());
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|| EnvFilter::new(default)))
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(plain && !no_color && std::io::stderr().is_terminal());
    // A second start, as in tests, changes nothing.
    let _ = if plain { log.without_time().try_init() } else { log.try_init() };
}
