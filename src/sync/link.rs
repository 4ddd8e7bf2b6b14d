//! A session over two streams (pipes, a socket, ssh), and the time until the next one.

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

/// Waits, on the calling side, until the other side reports changes. This side's own changes come back to it: see
/// [`Message::Wake`].
pub fn until_changed(from: &mut impl Read) -> Result<(), SyncError> {
    match proto::read(from)?.0 {
        Message::Changed(()) => Ok(()),
        other => Err(unexpected(other)),
    }
}

/// Waits, on the called side, until the other side begins the next session. Returns its first message; `None` if it has
/// closed the connection.
pub fn until_called(from: &mut impl Read, to: &mut impl Write) -> Result<Option<Message>, SyncError> {
    loop {
        match proto::read(from) {
            Ok((Message::Wake(()), _)) => {
                proto::write(to, &Message::Changed(()))?;
            }
            Ok((hello @ Message::Hello(_), _)) => return Ok(Some(hello)),
            Ok((other, _)) => return Err(unexpected(other)),
            Err(SyncError::Cut) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

fn unexpected(message: Message) -> SyncError {
    match message {
        Message::Failed(Failure { message, hint }) => SyncError::Remote { message, hint },
        other => SyncError::peer(format!("sent a frame of type {} between two syncs", other.number())),
    }
}
