//! A connection to the other side of a sync, and the process that serves it.

use super::super::error::CliError;
use super::super::peer_process::PeerProcess;
use crate::sync::pipe::{self, Incoming, Limits, Outgoing};
use std::process::{ChildStdin, ChildStdout, Command};
use std::time::Duration;

type Pipes = (Incoming<ChildStdout>, Outgoing<ChildStdin>);

/// See the module.
pub(super) struct Connection {
    // Dropped in this order: the process ends when its pipes are closed.
    pipes: Option<Pipes>,
    process: PeerProcess,
}

impl Connection {
    /// Starts the process.
    pub(super) fn start(command: Command, limits: Limits) -> Result<Connection, CliError> {
        let mut process = PeerProcess::start(command)?;
        let (from, to) = process.pipes()?;
        Ok(Connection { pipes: Some(pipe::connect(from, to, limits)), process })
    }

    /// Returns both ends.
    pub(super) fn ends(&mut self) -> Result<&mut Pipes, CliError> {
        self.pipes.as_mut().ok_or_else(|| CliError::new("the connection is closed"))
    }

    /// Sets the time that the process may take to end on its own.
    pub(super) fn may_take(&mut self, ending: Duration) {
        self.process.may_take(ending);
    }

    /// Closes the connection, and returns the exit code of the process, if it has one.
    pub(super) fn exit_code(&mut self) -> Option<i32> {
        self.pipes = None;
        self.process.exit_code()
    }
}
