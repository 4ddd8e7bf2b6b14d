use super::ControlError;
use super::daemon_info::DaemonInfo;
use super::proto::{self, REPLY_BYTES_MAX, Reply};
use crate::admin::{Progress, Request, Response};
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// A connection to a daemon, good for one request.
pub struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects; `None` if no daemon listens there. The other end must run as root, as this user or as the
    /// owner of the backing directory: any other user could answer with anything.
    pub fn connect(info: &DaemonInfo) -> Result<Option<Client>, ControlError> {
        match UnixStream::connect(&info.socket) {
            Ok(stream) => check_server(&stream, info)
                .map(|()| Some(Client { socket: info.socket.clone(), stream: BufReader::new(stream) })),
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(None),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(ControlError::Denied(info.root.clone())),
            Err(e) => Err(ControlError::io("connect to", &info.socket, e)),
        }
    }

    /// Sends the request and waits for its answer; `progress` gets the daemon's progress messages.
    pub fn ask(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Response, ControlError> {
        let sent = proto::write_line(self.stream.get_mut(), request);
        // A server that refuses does not read the request, but its answer says why.
        if let Err(e) = sent
            && e.kind() != ErrorKind::BrokenPipe
        {
            return Err(ControlError::io("write to", &self.socket, e));
        }
        loop {
            match proto::read_line(&mut self.stream, REPLY_BYTES_MAX) {
                Ok(Some(Reply::Progress(step))) => progress(step),
                Ok(Some(Reply::Ok(response))) => return Ok(response),
                Ok(Some(Reply::Error(fault))) => return Err(ControlError::Fault(fault)),
                Ok(None) => return Err(ControlError::Ended),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Err(ControlError::Ended),
                Err(e) if e.kind() == ErrorKind::InvalidData => {
                    return Err(ControlError::Protocol(e.to_string()));
                }
                Err(e) => return Err(ControlError::io("read from", &self.socket, e)),
            }
        }
    }

    /// Waits until the daemon has ended: its end of the connection closes.
    pub fn wait_gone(mut self) {
        let mut rest = [0; 512];
        while matches!(self.stream.read(&mut rest), Ok(len) if len > 0) {}
    }
}

fn check_server(stream: &UnixStream, info: &DaemonInfo) -> Result<(), ControlError> {
    let server = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|e| ControlError::io("look who answers at", &info.socket, e))?
        .uid;
    let owner = info.root.metadata().map(|root| root.uid());
    if is_trusted(server.as_raw(), rustix::process::geteuid().as_raw(), owner.ok()) {
        return Ok(());
    }
    Err(ControlError::Server { socket: info.socket.clone(), user: server.as_raw(), root: info.root.clone() })
}

fn is_trusted(server: u32, client: u32, owner: Option<u32>) -> bool {
    server == 0 || server == client || owner == Some(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_the_user_and_the_owner_are_believed() {
        assert!(is_trusted(0, 1000, Some(1001)));
        assert!(is_trusted(1000, 1000, None));
        assert!(is_trusted(1000, 0, Some(1000)));
        assert!(!is_trusted(1001, 0, Some(1000)));
        assert!(!is_trusted(1001, 1000, None));
    }
}
