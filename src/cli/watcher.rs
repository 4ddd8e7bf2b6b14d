//! Watches a mount for a sync that stays connected, and sends a message to the other side when the mount was changed.
//!
//! The message is sent only between two syncs ([`Watcher::idle`]); a change during a sync is kept until then.

use super::error::CliError;
use crate::admin::{Request, Response, WaitReport};
use crate::control::{Client, ControlError, DaemonInfo};
use crate::sync::proto::{self, Message};
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct State<W> {
    /// The end of the connection to the other side; `None` once the watcher is dropped.
    to: Option<W>,
    message: Message,
    /// Whether no sync is running.
    idle: bool,
    /// Whether the mount has changed since the last sync began.
    changed: bool,
    /// The reason why nothing is watched any more.
    ended: Option<ControlError>,
}

impl<W: Write> State<W> {
    fn send(&mut self) {
        if let Some(to) = self.to.as_mut().filter(|_| self.idle && self.changed) {
            // The side that reads sees a broken connection.
            let _ = proto::write(to, &self.message);
            self.idle = false;
        }
    }
}

/// See the module.
pub(super) struct Watcher<W> {
    state: Arc<Mutex<State<W>>>,
    daemon: DaemonInfo,
}

fn lock<W>(state: &Mutex<State<W>>) -> MutexGuard<'_, State<W>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Write + Send + 'static> Watcher<W> {
    /// Watches the mount of `daemon`; `message` goes to `to`.
    pub(super) fn start(daemon: &DaemonInfo, to: W, message: Message) -> Result<Watcher<W>, CliError> {
        let seen = wait(daemon, None)?;
        let state = State { to: Some(to), message, idle: false, changed: false, ended: None };
        let state = Arc::new(Mutex::new(state));
        let (shared, info) = (state.clone(), daemon.clone());
        let watch = move || {
            let mut seen = seen;
            loop {
                let news = wait(&info, Some(&seen));
                let mut state = lock(&shared);
                if state.to.is_none() {
                    return;
                }
                state.changed = true;
                match news {
                    Ok(now) => seen = now,
                    // The next sync fails, or finds that the watch has ended.
                    Err(e) => state.ended = Some(e),
                }
                state.send();
                if state.ended.is_some() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("watcher".to_owned()).spawn(watch);
        thread.map_err(|e| CliError::new(format!("start a thread: {e}")))?;
        Ok(Watcher { state, daemon: daemon.clone() })
    }

    /// A sync begins: it sees the changes until now.
    pub(super) fn busy(&self) {
        let mut state = lock(&self.state);
        (state.idle, state.changed) = (false, false);
    }

    /// A sync has ended: sends the message after the next change, or now if there was one since it began.
    pub(super) fn idle(&self) -> Result<(), CliError> {
        let mut state = lock(&self.state);
        if let Some(e) = state.ended.take() {
            let message = format!("{}: the mount is not watched any more: {e}", self.daemon.root.display());
            return Err(CliError::new(message));
        }
        state.idle = true;
        state.send();
        Ok(())
    }
}

impl<W> Drop for Watcher<W> {
    fn drop(&mut self) {
        lock(&self.state).to = None;
    }
}

fn wait(daemon: &DaemonInfo, seen: Option<&str>) -> Result<String, ControlError> {
    let request = Request::WaitForChange { seen: seen.map(str::to_owned) };
    match Client::connect(daemon)?.ok_or(ControlError::Ended)?.ask(&request, &mut |_| {})? {
        Response::WaitForChange(WaitReport { seen }) => Ok(seen),
        _ => Err(ControlError::Protocol("unexpected answer".to_owned())),
    }
}
