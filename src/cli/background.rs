//! Start in the background: the program runs itself again, detached, and waits for a report over a pipe (the child's
//! stdout): the mount answers, or the reason why it does not.

use super::error::CliError;
use super::{CliResult, Outcome, Program};
use crate::control::Fault;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A log longer than this is set aside at start; one older log is kept.
const LOG_BYTES_MAX: u64 = 8 << 20;
const MESSAGE_BYTES_MAX: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Message {
    Mounted(String),
    Failed { message: String, hint: Option<String> },
}

/// Runs in the parent: starts the daemon and returns when it serves.
pub(super) fn launch(args: &[OsString]) -> CliResult {
    let mut command = Program::Dedupfs.command();
    command.arg("--background-child").args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    let child = command.spawn();
    let mut child = child.map_err(|e| CliError::io("start", Path::new(command.get_program()), &e))?;
    let mut text = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = stdout.take(MESSAGE_BYTES_MAX).read_to_end(&mut text);
    }
    match serde_json::from_slice(&text) {
        Ok(Message::Mounted(_)) => Ok(Outcome::Clean),
        Ok(Message::Failed { message, hint }) => {
            let _ = child.wait();
            Err(Fault { message, hint }.into())
        }
        Err(_) => {
            let ended = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            Err(CliError::new(format!("the daemon ended before it had mounted ({ended})"))
                .hint("run it with --foreground to see why"))
        }
    }
}

/// The daemon's end of the pipe.
pub(super) struct Ready {
    /// `None` once the parent has its report.
    pipe: Mutex<Option<File>>,
}

/// Runs in the daemon: leaves the caller's session and terminal.
pub(super) fn detach() -> Result<Ready, CliError> {
    let error = |e: std::io::Error| CliError::new(format!("go into the background: {e}"));
    // Fails only where this leads a session already, which is as good.
    let _ = rustix::process::setsid();
    let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).map_err(|e| error(e.into()))?;
    rustix::stdio::dup2_stdout(null()?).map_err(|e| error(e.into()))?;
    Ok(Ready { pipe: Mutex::new(Some(File::from(pipe))) })
}

impl Ready {
    /// Returns whether the parent has its report.
    pub(super) fn told(&self) -> bool {
        self.pipe().is_none()
    }

    fn pipe(&self) -> MutexGuard<'_, Option<File>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that the mount answers. From here messages go to the log, and none of the caller's files stays open.
    pub(super) fn mounted(&self, mountpoint: &Path, log: Option<File>) {
        let target = log.map(OwnedFd::from).map_or_else(null, Ok);
        if let Ok(target) = target {
            let _ = rustix::stdio::dup2_stderr(target);
        }
        self.tell(&Message::Mounted(mountpoint.to_string_lossy().into_owned()));
    }

    pub(super) fn failed(&self, error: &CliError) {
        self.tell(&Message::Failed { message: error.message.clone(), hint: error.hint.clone() });
    }

    fn tell(&self, message: &Message) {
        // The parent reads to the end, which comes when the pipe is dropped here.
        if let (Some(mut pipe), Ok(text)) = (self.pipe().take(), serde_json::to_vec(message)) {
            let _ = pipe.write_all(&text);
        }
    }
}

fn null() -> Result<OwnedFd, CliError> {
    let path = Path::new("/dev/null");
    let file =
        OpenOptions::new().read(true).write(true).open(path).map_err(|e| CliError::io("open", path, &e))?;
    Ok(file.into())
}

/// Opens the log to append to. Without it the daemon serves all the same.
pub(super) fn open_log(path: &Path) -> Option<File> {
    if path.metadata().is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        let _ = std::fs::rename(path, path.with_extension("log.1"));
    }
    let open = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    open.inspect_err(|e| tracing::warn!("no log is written: {e}")).ok()
}
