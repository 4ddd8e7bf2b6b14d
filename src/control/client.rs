use super::proto::{self, REPLY_BYTES_MAX, Reply};
use super::{ControlError, DaemonInfo};
use crate::admin::{Progress, Request, Response};
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// A connection to a daemon, good for one request.
pub struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects; `None` if no daemon listens there (any more).
    pub fn connect(info: &DaemonInfo) -> Result<Option<Client>, ControlError> {
        match UnixStream::connect(&info.socket) {
            Ok(stream) => Ok(Some(Client { socket: info.socket.clone(), stream: BufReader::new(stream) })),
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(None),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(ControlError::Denied(info.root.clone())),
            Err(e) => Err(ControlError::io("connect to", &info.socket, e)),
        }
    }

    /// Sends a request that lasts until this is dropped, and waits until it is told of for the first time.
    pub fn begin(mut self, request: &Request) -> Result<Client, ControlError> {
        self.send(request)?;
        match self.next_reply()? {
            Reply::Progress(_) | Reply::Ok(_) => Ok(self),
            Reply::Error(fault) => Err(ControlError::Fault(fault)),
        }
    }

    /// Sends the request and waits for its answer; `progress` is told what the daemon tells meanwhile.
    pub fn ask(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Response, ControlError> {
        self.send(request)?;
        loop {
            match self.next_reply()? {
                Reply::Progress(step) => progress(step),
                Reply::Ok(response) => return Ok(response),
                Reply::Error(fault) => return Err(ControlError::Fault(fault)),
            }
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), ControlError> {
        match proto::write_line(self.stream.get_mut(), request) {
            // A server that refuses does not read the request, but its answer says why.
            Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(ControlError::io("write to", &self.socket, e)),
            _ => Ok(()),
        }
    }

    fn next_reply(&mut self) -> Result<Reply, ControlError> {
        proto::read_line(&mut self.stream, REPLY_BYTES_MAX)
            .map_err(|e| match e.kind() {
                ErrorKind::ConnectionReset => ControlError::Ended,
                ErrorKind::InvalidData => ControlError::Protocol(e.to_string()),
                _ => ControlError::io("read from", &self.socket, e),
            })?
            .ok_or(ControlError::Ended)
    }

    /// Waits until the daemon has ended: its end of the connection closes.
    pub fn wait_gone(mut self) {
        let mut rest = [0; 512];
        while matches!(self.stream.read(&mut rest), Ok(len) if len > 0) {}
    }
}
