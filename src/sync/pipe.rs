//! The two ends of a connection to a peer. They never wait forever, they respect a rate, and they send
//! keep-alives while this side works without data to send.
//!
//! A waiting side gets an error after the other side has been silent for [`Limits::silence`]. So a busy side (for
//! example, while it scans a large tree) sends [`ALIVE`] four times in that time. A side that waits sends none: it is
//! the peer's turn. Between two syncs over one connection both sides wait, and both send ([`Outgoing::stay_alive`]).

use super::error::Silence;
use super::proto::ALIVE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A writable pipe has room for at least this many bytes (`PIPE_BUF`).
const PIECE_BYTES: usize = 4 << 10;
/// Minimum rate: a lower one would look like silence to the other side.
pub const RATE_MIN: u64 = PIECE_BYTES as u64;

/// After a pause, as many bytes as the rate allows in this time pass at once.
const CREDIT: Duration = Duration::from_millis(500);

/// Default of [`Limits::silence`]. An sshd waits as long for a password.
pub const SILENCE_SECONDS: u32 = 120;

/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum time in which the other side neither sends nor receives anything.
    pub silence: Duration,
    /// Bytes a second, of both directions together; at least [`RATE_MIN`].
    pub rate: Option<u64>,
}

/// State that both ends share.
struct Throttle {
    limits: Limits,
    /// The time at which the rate allows the bytes so far.
    due: Mutex<Instant>,
    /// Whether this side waits for the other.
    listens: AtomicBool,
    /// Whether this side sends keep-alives also while it waits.
    stays: AtomicBool,
}

impl Throttle {
    /// Waits until `end` is readable or writable.
    fn wait(&self, end: impl AsFd, flags: PollFlags) -> io::Result<()> {
        let silence = self.limits.silence;
        let timeout = Timespec { tv_sec: silence.as_secs() as i64, tv_nsec: silence.subsec_nanos().into() };
        loop {
            match poll(&mut [PollFd::new(&end, flags)], Some(&timeout)) {
                Ok(0) => return Err(io::Error::new(ErrorKind::TimedOut, Silence(silence))),
                Err(Errno::INTR) => {}
                done => return done.map(drop).map_err(io::Error::from),
            }
        }
    }

    /// Waits as long as the rate requires for `bytes` more. Time without transfers is no credit, except for [`CREDIT`].
    fn pass(&self, bytes: usize) {
        let Some(rate) = self.limits.rate else { return };
        let now = Instant::now();
        let wait = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            *due = (*due).max(now.checked_sub(CREDIT).unwrap_or(now));
            *due += Duration::from_secs_f64(bytes as f64 / rate.max(RATE_MIN) as f64);
            due.saturating_duration_since(now)
        };
        std::thread::sleep(wait);
    }
}

/// The end that receives from the peer.
pub struct Incoming<R> {
    end: R,
    throttle: Arc<Throttle>,
}

/// The end that sends to the peer. While it exists, keep-alives are sent whenever this side is busy.
pub struct Outgoing<W> {
    shared: Arc<Shared<W>>,
}

struct Shared<W> {
    end: Mutex<End<W>>,
    throttle: Arc<Throttle>,
}

struct End<W> {
    to: W,
    last: Instant,
}

/// Returns both ends of a connection.
pub fn connect<R: Read + AsFd, W: Write + AsFd + Send + 'static>(
    from: R,
    to: W,
    limits: Limits,
) -> (Incoming<R>, Outgoing<W>) {
    let throttle = Arc::new(Throttle {
        limits,
        due: Mutex::new(Instant::now()),
        listens: AtomicBool::new(false),
        stays: AtomicBool::new(false),
    });
    let end = Mutex::new(End { to, last: Instant::now() });
    let shared = Arc::new(Shared { end, throttle: throttle.clone() });
    let (weak, interval) = (Arc::downgrade(&shared), limits.silence / 4);
    std::thread::spawn(move || keep_alive(&weak, interval));
    (Incoming { end: from, throttle }, Outgoing { shared })
}

fn keep_alive<W: Write + AsFd>(shared: &Weak<Shared<W>>, interval: Duration) {
    loop {
        std::thread::park_timeout(interval);
        let Some(shared) = shared.upgrade() else { return };
        let Ok(mut end) = shared.end.try_lock() else { continue };
        let Throttle { listens, stays, .. } = &*shared.throttle;
        let sends = !listens.load(Ordering::Relaxed) || stays.load(Ordering::Relaxed);
        if sends && end.last.elapsed() * 2 > interval && end.write(&shared.throttle, &ALIVE).is_err() {
            return;
        }
    }
}

impl<W: Write + AsFd> End<W> {
    fn write(&mut self, throttle: &Throttle, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(PIECE_BYTES) {
            // If it is a socket, it may take fewer bytes at once.
            let mut rest = piece;
            while !rest.is_empty() {
                throttle.wait(&self.to, PollFlags::OUT)?;
                match self.to.write(rest) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(len) => rest = &rest[len..],
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            self.last = Instant::now();
            throttle.pass(piece.len());
        }
        Ok(())
    }
}

impl<R: Read + AsFd> Read for Incoming<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = match self.throttle.limits.rate {
            Some(_) => buf.len().min(PIECE_BYTES),
            None => buf.len(),
        };
        self.throttle.listens.store(true, Ordering::Relaxed);
        let read =
            self.throttle.wait(&self.end, PollFlags::IN).and_then(|()| self.end.read(&mut buf[..most]));
        self.throttle.listens.store(false, Ordering::Relaxed);
        if let Ok(len) = read {
            self.throttle.pass(len);
        }
        read
    }
}

impl<W> Clone for Outgoing<W> {
    fn clone(&self) -> Self {
        Outgoing { shared: self.shared.clone() }
    }
}

impl<W> Outgoing<W> {
    /// Sends keep-alives from now on also while this side waits for the other.
    pub fn stay_alive(&self) {
        self.shared.throttle.stays.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, End<W>> {
        self.shared.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write + AsFd> Write for Outgoing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    /// Writes all bytes, with nothing in between.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.lock().write(&self.shared.throttle, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::SyncError;
    use super::super::proto::{self, Message};
    use super::*;

    fn limits(silence_ms: u64) -> Limits {
        Limits { silence: Duration::from_millis(silence_ms), rate: None }
    }

    #[test]
    fn silence_is_an_error_in_both_directions() {
        let (hear, _kept) = io::pipe().unwrap();
        let (_kept_too, say) = io::pipe().unwrap();
        let (mut hear, mut say) = connect(hear, say, limits(50));
        let error = proto::read(&mut hear).unwrap_err();
        assert!(matches!(&error, SyncError::Silent(_)), "{error}");
        // Nobody takes what is said.
        let error = proto::write(&mut say, &Message::Wants(vec![])).and_then(|_| {
            let part =
                super::super::proto::TreePart { of: None, base: None, bytes: vec![7; 1 << 20], last: true };
            proto::write(&mut say, &Message::Tree(part))
        });
        assert!(matches!(error, Err(SyncError::Silent(_))), "{error:?}");
    }

    #[test]
    fn who_works_is_not_silent() {
        let (mut hear, to) = io::pipe().unwrap();
        let (from, _kept) = io::pipe().unwrap();
        let (_, mut say) = connect(from, to, limits(40));
        let mut alive = [0; 2 * ALIVE.len()];
        hear.read_exact(&mut alive).unwrap();
        assert_eq!(alive, [ALIVE, ALIVE].concat()[..]);
        proto::write(&mut say, &Message::WantsEnd(())).unwrap();
        assert_eq!(proto::read(&mut hear).unwrap().0, Message::WantsEnd(()), "what says nothing is skipped");
        drop(say);
        assert!(matches!(proto::read(&mut hear), Err(SyncError::Cut)), "and no more when it has ended");
    }
}
