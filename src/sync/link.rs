//! A session over two streams: pipes, a socket, ssh.

use super::error::SyncError;
use super::proto::{self, Failure, Message};
use super::replica::Replica;
use super::session::Session;
use std::io::{Read, Write};

/// Bytes transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent to the peer.
    pub sent: u64,
    /// Bytes received from the peer.
    pub received: u64,
}

/// Runs `session` to its end. Sends an error of this side to the peer. Calls `report` after every message.
pub fn run(
    session: &mut Session,
    replica: &mut dyn Replica,
    from: &mut impl Read,
    to: &mut impl Write,
    report: &mut dyn FnMut(&Session, Traffic),
) -> Result<Traffic, SyncError> {
    let mut traffic = Traffic::default();
    let result = exchange(session, replica, from, to, report, &mut traffic);
    if let Err(e) = &result
        && !matches!(e, SyncError::Cut | SyncError::Silent(_) | SyncError::Remote { .. })
    {
        let failure = Failure { message: e.to_string(), hint: e.hint() };
        let _ = proto::write(to, &Message::Failed(failure));
    }
    result.map(|()| traffic)
}

fn exchange(
    session: &mut Session,
    replica: &mut dyn Replica,
    from: &mut impl Read,
    to: &mut impl Write,
    report: &mut dyn FnMut(&Session, Traffic),
    traffic: &mut Traffic,
) -> Result<(), SyncError> {
    loop {
        while let Some(message) = session.next_message(replica)? {
            let sent = proto::write(to, &message);
            let bytes = match sent {
                Ok(bytes) => bytes,
                // The peer's last message contains the reason.
                Err(SyncError::Cut) => return Err(last_words(from)),
                Err(e) => return Err(e),
            };
            traffic.sent += bytes;
            report(session, *traffic);
        }
        if session.is_over() {
            return Ok(());
        }
        let (message, bytes) = proto::read(from)?;
        traffic.received += bytes;
        session.receive(message, replica)?;
        report(session, *traffic);
    }
}

fn last_words(from: &mut impl Read) -> SyncError {
    match proto::read(from) {
        Ok((Message::Failed(Failure { message, hint }), _)) => SyncError::Remote { message, hint },
        _ => SyncError::Cut,
    }
}
