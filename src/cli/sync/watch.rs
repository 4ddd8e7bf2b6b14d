//! A sync that stays connected: a change on either side begins the next sync.
//!
//! The calling side begins each sync. Each side watches its own mount ([`super::super::watcher`]); a message wakes the
//! other. A broken connection is made again, after a time that doubles up to a minute.

use super::super::error::CliError;
use super::super::output::Output;
use super::super::watcher::Watcher;
use super::budget::Budget;
use super::connection::Connection;
use crate::control::DaemonInfo;
use crate::sync::link;
use crate::sync::proto::Message;
use std::time::{Duration, Instant};

/// Time until the first attempt to connect again, and the maximum.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Syncs over one connection after another. Every call of `connect` returns a connection and the daemon of this side; every
/// call of `sync` does one sync, and returns false if there is no use in another. Returns the first error before anything
/// was synced; after that, errors are shown, and the connection is made again.
pub(super) fn watch(
    out: &Output,
    connect: &mut dyn FnMut() -> Result<(Connection, DaemonInfo), CliError>,
    sync: &mut dyn FnMut(&mut Connection) -> Result<bool, CliError>,
) -> Result<(), CliError> {
    let (mut synced, mut retry, mut shown) = (false, RETRY, String::new());
    loop {
        let mut first = true;
        let mut sync = |connection: &mut Connection| {
            let goes_on = sync(connection)?;
            if !synced {
                out.note("watching both sides for changes; Ctrl-C ends this");
            } else if first && !shown.is_empty() {
                out.note("connected again");
            }
            (synced, first, retry) = (true, false, RETRY);
            shown.clear();
            Ok(goes_on)
        };
        let error = match connect().and_then(|(connection, daemon)| serve(connection, &daemon, &mut sync)) {
            Ok(()) => return Ok(()),
            Err(e) if !synced => return Err(e),
            Err(e) => e,
        };
        if shown != error.message {
            out.error(&error);
            out.note("trying again until it works, at least once a minute");
            shown.clone_from(&error.message);
        }
        std::thread::sleep(retry);
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// Syncs over one connection until an error, or until `sync` returns false.
fn serve(
    mut connection: Connection,
    daemon: &DaemonInfo,
    sync: &mut dyn FnMut(&mut Connection) -> Result<bool, CliError>,
) -> Result<(), CliError> {
    let (_, to) = connection.ends()?;
    to.stay_alive();
    let watcher = Watcher::start(daemon, to.clone(), Message::Wake(()))?;
    let mut budget = Budget::new(Instant::now());
    loop {
        watcher.busy();
        let began = Instant::now();
        if !sync(&mut connection)? {
            return Ok(());
        }
        let ended = Instant::now();
        let pause = budget.spend(began, ended);
        watcher.idle()?;
        link::until_changed(&mut connection.ends()?.0)?;
        std::thread::sleep(pause.saturating_sub(ended.elapsed()));
    }
}
