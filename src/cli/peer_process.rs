//! The process that serves the other side of a sync: ssh, or this program itself.

use super::error::CliError;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time for it to end on its own, and again after a request to end.
const ENDING: Duration = Duration::from_secs(20);

/// Ends the process when it is dropped.
pub(super) struct PeerProcess {
    child: Child,
    /// Maximum time for it to end on its own.
    ending: Duration,
}

impl PeerProcess {
    pub(super) fn start(mut command: Command) -> Result<PeerProcess, CliError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = PathBuf::from(command.get_program());
        let child = command.spawn().map_err(|e| CliError::io("start", &program, &e))?;
        Ok(PeerProcess { child, ending: ENDING })
    }

    /// Returns its output and its input.
    pub(super) fn pipes(&mut self) -> Result<(ChildStdout, ChildStdin), CliError> {
        let pipes = self.child.stdout.take().zip(self.child.stdin.take());
        pipes.ok_or_else(|| CliError::new("the other side has no pipes"))
    }

    /// Sets the maximum time for it to end on its own.
    pub(super) fn may_take(&mut self, ending: Duration) {
        self.ending = ending;
    }

    /// Returns its exit code, once it has closed its output; `None` if a signal ended it, or it still runs.
    pub(super) fn exit_code(&mut self) -> Option<i32> {
        if self.ends_within(self.ending) { self.child.try_wait().ok()??.code() } else { None }
    }

    fn ends_within(&mut self, time: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < time {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        drop(self.child.stdout.take());
        if !self.ends_within(self.ending) {
            // First asks it to end, so that it can still unmount its private mount.
            if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            if !self.ends_within(ENDING) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}
