use super::error::busy_hint;
use super::{Daemon, DaemonError, RETRY, process, schedule};
use crate::admin::{self, AdminError, Context, Progress, Request, Response, UnmountReport};
use crate::control::{Fault, Handler};
use crate::env::trim_heap;
use crate::fuse::{MountError, Mounted};
use crate::repo::{DAEMON, Repo};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// After a request that took longer, freed memory is returned to the system.
const LONG_REQUEST: Duration = Duration::from_secs(1);
/// A request to unmount is refused if the mount is busy for this long.
const BUSY_REQUEST: Duration = Duration::from_secs(2);
/// After a signal, a busy mount is detached after this time: programs keep their open files for a while.
const BUSY_SIGNAL: Duration = Duration::from_secs(5);
/// A mount that still lives this long after an unmount is held in another mount namespace.
const HELD: Duration = Duration::from_secs(3);
/// Time for an unmounted filesystem to report it.
const GONE: Duration = Duration::from_secs(10);
/// Time at the end for running requests to be answered.
const ANSWER: Duration = Duration::from_secs(2);

/// State of a serving daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// All is set up, and requests are answered.
    Ready,
    /// The end has begun.
    Ending,
}

enum Event {
    Signal(i32),
    /// The process that needed the mount has ended.
    ClientEnded,
    /// The filesystem was unmounted, by this process or another.
    Gone,
}

impl Daemon {
    /// Serves until a signal, a request or an outside unmount ends it, then closes everything cleanly. Calls
    /// `told` once for each of [`Serving`].
    pub fn serve(mut self, mut told: impl FnMut(Serving)) -> Result<(), DaemonError> {
        let (events, incoming) = channel();
        watch_signals(events.clone())?;
        let client = self.client.take();
        let private = client.is_some();
        if let Some(client) = client {
            watch_client(client, events.clone());
        }
        watch_mount(self.mounted.clone(), events);
        self.server.start(self.handler())?;
        self.catch_up();
        let ended = Arc::new(AtomicBool::new(false));
        // A private mount is there for a while, to answer questions.
        if !private {
            schedule::keep_schedule(&self.repo, &self.mountpoint, &ended);
        }
        told(Serving::Ready);
        tracing::info!("{}: mounted", self.mountpoint.display());
        let event = incoming.recv();
        ended.store(true, Ordering::Release);
        told(Serving::Ending);
        match event {
            Ok(Event::Signal(signal)) => self.end_by(&format!("signal {signal}"), &incoming),
            Ok(Event::ClientEnded) => {
                self.end_by("the end of the process that it was mounted for", &incoming)
            }
            Ok(Event::Gone) | Err(_) => {}
        }
        let Daemon { repo, background, mounted: _, server, mountpoint, client: _ } = self;
        if private {
            let _ = std::fs::remove_dir(&mountpoint);
        }
        repo.overlay().tree.end_waits();
        server.stop(ANSWER);
        let left = background.stop();
        let _ = std::fs::remove_file(repo.state_file(DAEMON));
        tracing::info!(
            "{}: unmounted; {} files are left for the next time",
            mountpoint.display(),
            left.len()
        );
        close(repo, left)
    }

    /// Unmounts. A busy mount is detached and served until no program has it open, or the next event.
    fn end_by(&self, why: &str, incoming: &Receiver<Event>) {
        tracing::info!("ending on {why}");
        let detach_at = Instant::now() + BUSY_SIGNAL;
        if unmount_until(&self.mounted, detach_at).is_ok() {
            self.mounted.gone_within(GONE);
            return;
        }
        tracing::warn!(
            "{}: still in use; it is detached, and served until the last file is closed or another signal comes",
            self.mountpoint.display()
        );
        if let Err(e) = self.mounted.unmount(true) {
            tracing::error!("{e}");
        }
        // Clients must not find a mount that is no longer visible.
        self.repo.overlay().tree.end_waits();
        self.server.stop(ANSWER);
        let _ = std::fs::remove_file(self.repo.state_file(DAEMON));
        let _ = incoming.recv();
    }

    /// Commits files that the last daemon left over, in the background.
    fn catch_up(&self) {
        if !self.repo.behind() || self.repo.read_only() {
            return;
        }
        let repo = Arc::downgrade(&self.repo);
        let work = move || {
            let Some(repo) = repo.upgrade() else { return };
            if let Err(e) = admin::catch_up_quietly(&repo) {
                tracing::error!("catching up: {}", repo.readable(&e));
            }
        };
        if let Err(e) = std::thread::Builder::new().name("catch-up".to_owned()).spawn(work) {
            tracing::error!("catching up: {e}");
        }
    }

    fn handler(&self) -> Arc<Handler> {
        // Weak: a running request must not keep the store open.
        let (repo, mounted) = (Arc::downgrade(&self.repo), self.mounted.clone());
        let mountpoint = self.mountpoint.clone();
        Arc::new(move |request, progress| {
            let Some(repo) = repo.upgrade() else {
                return Err(Fault::new("the daemon is ending"));
            };
            if let Request::Unmount { lazy } = request {
                return unmount(&repo, &mounted, lazy, progress);
            }
            let context = Context { repo: &repo, mountpoint: Some(&mountpoint) };
            let begun = Instant::now();
            let answer = admin::run(context, request, progress).map_err(|e| fault(&repo, &e));
            if begun.elapsed() > LONG_REQUEST {
                // Its working memory is not needed again soon.
                trim_heap();
            }
            answer
        })
    }
}

fn fault(repo: &Repo, error: &AdminError) -> Fault {
    Fault { message: repo.readable(error), hint: admin::hint(repo, error) }
}

fn unmount(
    repo: &Repo,
    mounted: &Mounted,
    lazy: bool,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Response, Fault> {
    // Work that a scan or catch-up has not reached is done later.
    let mut most = 0;
    let settled = repo.overlay().maintenance.settle(&mut |pending| {
        most = most.max(pending as u64);
        progress(Progress::files("settling", most - pending as u64, most))
    });
    let unfinished = match settled {
        Ok(true) => None,
        // The caller has gone and does not want it any more.
        Ok(false) => return Err(Fault::new("interrupted; it stays mounted")),
        Err(e) => match AdminError::from(e) {
            // No content depends on the index, and the next mount brings it up to date.
            full if full.is_full() && !repo.is_gone() => {
                tracing::warn!("unmounting though the index could not be written: {}", repo.readable(&full));
                None
            }
            // No reason to keep the mount: waiting does not repair the store.
            other => Some(unfinished(repo, &other)),
        },
    };
    match unmount_until(mounted, Instant::now() + BUSY_REQUEST) {
        Ok(()) => {
            let held_by = held_by(mounted, lazy);
            Ok(Response::Unmount(UnmountReport { unfinished, held_by }))
        }
        Err(MountError::Busy(path)) => {
            let hint = Some(busy_hint(&path));
            Err(Fault { message: MountError::Busy(path).to_string(), hint })
        }
        Err(e) => Err(Fault::new(e.to_string())),
    }
}

/// Returns the holders of an unmounted filesystem in other mount namespaces; with `lazy` they are given up.
fn held_by(mounted: &Mounted, lazy: bool) -> Vec<String> {
    if mounted.gone_within(HELD) {
        return Vec::new();
    }
    if lazy {
        mounted.give_up();
        return Vec::new();
    }
    let mut holders: Vec<String> = mounted.holders().iter().map(ToString::to_string).collect();
    if holders.is_empty() {
        holders.push("a process that is not to be seen from here".to_owned());
    }
    tracing::warn!(
        "{}: unmounted; other mount namespaces hold it: {}",
        mounted.mountpoint().display(),
        holders.join(", ")
    );
    holders
}

/// Describes the effect of not bringing the store up to date before an unmount.
fn unfinished(repo: &Repo, error: &AdminError) -> String {
    let layout = repo.layout();
    let message = match repo.is_gone() {
        true => format!(
            "{}: the store was removed while it was mounted, and what it held is lost with it. Files that were not converted yet \
             are whole, in {}",
            layout.state.display(),
            layout.root.display()
        ),
        false => format!(
            "{}: the index is not up to date ({}). No file is affected: the next mount brings it up to date",
            layout.state.display(),
            repo.readable(error)
        ),
    };
    tracing::error!("{message}");
    message
}

fn unmount_until(mounted: &Mounted, end: Instant) -> Result<(), MountError> {
    loop {
        match mounted.unmount(false) {
            Err(MountError::Busy(_)) if Instant::now() < end => std::thread::sleep(RETRY),
            other => return other,
        }
    }
}

fn watch_signals(events: Sender<Event>) -> Result<(), DaemonError> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]);
    let mut signals = signals.map_err(|e| DaemonError::Text(format!("signals: {e}")))?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn watch_client(client: OwnedFd, events: Sender<Event>) {
    std::thread::spawn(move || {
        process::wait_for_end(&client);
        let _ = events.send(Event::ClientEnded);
    });
}

fn watch_mount(mounted: Arc<Mounted>, events: Sender<Event>) {
    std::thread::spawn(move || {
        mounted.wait_gone();
        let _ = events.send(Event::Gone);
    });
}

/// Closes the store once the last running request has released it; otherwise the next open finds out what the
/// index lacks.
fn close(repo: Arc<Repo>, left: Vec<PathBuf>) -> Result<(), DaemonError> {
    let end = Instant::now() + ANSWER;
    let mut repo = Some(repo);
    while let Some(shared) = repo.take() {
        match Arc::try_unwrap(shared) {
            Ok(repo) => return Ok(repo.close(left)?),
            Err(shared) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
                repo = Some(shared);
            }
            Err(shared) => {
                tracing::warn!("work was under way at the end; the next mount handles the rest");
                let result = shared.overlay().maintenance.persist();
                return result.map_err(|e| DaemonError::Text(shared.readable(&e)));
            }
        }
    }
    Ok(())
}
