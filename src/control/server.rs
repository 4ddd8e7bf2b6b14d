//! The daemon's end of the control socket.
//!
//! Invariants:
//! - No client, and no number of clients, costs more than a bounded amount of memory and threads.
//! - Only root and the daemon's own user are served; others get an error.
//! - A client that sends nothing does not keep others out: it makes room for the next one.
//! - A request that panics frees its place and is answered with an error.

use super::ControlError;
use super::proto::{self, Fault, REQUEST_BYTES_MAX, Reply};
use crate::admin::{Progress, Request, Response};
use crate::id::StoreId;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Clients connected at a time.
const CONNECTIONS_MAX: usize = 32;
/// Time for a client to send its request, and to accept each line of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// A client whose unmount request was answered may stay connected this long, to see the daemon end.
const LINGER: Duration = Duration::from_secs(600);
/// Minimum interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Executes a request. The callback takes progress and returns whether the client still waits.
pub type Handler = dyn Fn(Request, &mut dyn FnMut(Progress) -> bool) -> Result<Response, Fault> + Send + Sync;

/// A listening socket.
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    connections: Mutex<Connections>,
    /// A request was answered, or a client has gone.
    changed: Condvar,
}

/// Clients, in order of connection.
#[derive(Default)]
struct Connections {
    next: u64,
    open: Vec<Connection>,
}

struct Connection {
    id: u64,
    stream: Arc<UnixStream>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Has sent no request yet.
    Waiting,
    /// Its request is running.
    Busy,
    /// Has its answer.
    Answered,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a place for a client; `None` if clients with requests have all of them.
    fn admit(self: &Arc<Self>, stream: &Arc<UnixStream>) -> Option<Place> {
        let mut connections = self.lock();
        if connections.open.len() >= CONNECTIONS_MAX {
            let waiting =
                connections.open.iter().position(|connection| connection.stage == Stage::Waiting)?;
            // Its thread sees the end of the connection, and ends.
            let _ = connections.open.remove(waiting).stream.shutdown(std::net::Shutdown::Both);
        }
        let id = connections.next;
        connections.next += 1;
        connections.open.push(Connection { id, stream: stream.clone(), stage: Stage::Waiting });
        Some(Place { shared: self.clone(), id })
    }

    fn is_busy(connections: &Connections) -> bool {
        connections.open.iter().any(|connection| connection.stage == Stage::Busy)
    }
}

/// A client's place among the connections, until dropped.
struct Place {
    shared: Arc<Shared>,
    id: u64,
}

impl Place {
    /// Records the client's progress; false if another client got its place.
    fn set(&self, stage: Stage) -> bool {
        let mut connections = self.shared.lock();
        let own = connections.open.iter_mut().find(|connection| connection.id == self.id);
        let held = own.map(|connection| connection.stage = stage).is_some();
        self.shared.changed.notify_all();
        held
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.lock().open.retain(|connection| connection.id != self.id);
        self.shared.changed.notify_all();
    }
}

impl Server {
    /// Listens in `runtime`. The caller has the store's lock, so an existing socket is a dead daemon's.
    pub fn bind(runtime: &Path, store: StoreId) -> Result<Server, ControlError> {
        let path = runtime.join(format!("{store}.sock"));
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(ControlError::io("remove", &path, e)),
        }
        let listener = UnixListener::bind(&path).map_err(|e| ControlError::io("listen on", &path, e))?;
        Ok(Server { path, listener, shared: Arc::default() })
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts to serve.
    pub fn start(&self, handler: Arc<Handler>) -> Result<(), ControlError> {
        let error = |e| ControlError::io("listen on", &self.path, e);
        let listener = self.listener.try_clone().map_err(error)?;
        let shared = self.shared.clone();
        let accept = move || {
            for stream in listener.incoming() {
                if shared.stopped.load(Ordering::Acquire) {
                    return;
                }
                match stream {
                    Ok(stream) => admit(stream, &shared, &handler),
                    Err(e) => {
                        // Probably out of descriptors: do not spin.
                        tracing::warn!("the control socket: {e}");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        std::thread::Builder::new().name("control".to_owned()).spawn(accept).map_err(error)?;
        Ok(())
    }

    /// Accepts no more requests, and gives running ones `time` to be answered.
    pub fn stop(&self, time: Duration) {
        self.shared.stopped.store(true, Ordering::Release);
        let _ = std::fs::remove_file(&self.path);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let connections = self.shared.lock();
        let is_busy = |connections: &mut Connections| Shared::is_busy(connections);
        drop(self.shared.changed.wait_timeout_while(connections, time, is_busy));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

fn admit(stream: UnixStream, shared: &Arc<Shared>, handler: &Arc<Handler>) {
    let stream = Arc::new(stream);
    let _ = stream.set_write_timeout(Some(CLIENT_TIMEOUT));
    let place = match rustix::net::sockopt::socket_peercred(&stream) {
        Ok(peer) if peer.uid.is_root() || peer.uid == rustix::process::geteuid() => {
            shared.admit(&stream).ok_or_else(|| {
                format!("the daemon is busy with {CONNECTIONS_MAX} other requests; try again later")
            })
        }
        Ok(peer) => Err(format!("user {} may not control this daemon", peer.uid)),
        Err(e) => Err(format!("the daemon cannot find out which user asks: {e}")),
    };
    let place = match place {
        Ok(place) => place,
        Err(reason) => return send(&stream, &Reply::Error(Fault::new(reason))),
    };
    let handler = handler.clone();
    let serve = move || serve(&stream, &place, &*handler);
    if let Err(e) = std::thread::Builder::new().name("request".to_owned()).spawn(serve) {
        tracing::warn!("the control socket: {e}");
    }
}

/// A client that does not read its answer is gone.
fn send(mut stream: &UnixStream, reply: &Reply) {
    let _ = proto::write_line(&mut stream, reply);
}

fn serve(stream: &UnixStream, place: &Place, handler: &Handler) {
    let _ = stream.set_read_timeout(Some(CLIENT_TIMEOUT));
    let mut from = BufReader::new(stream);
    let request = match proto::read_line::<Request>(&mut from, REQUEST_BYTES_MAX) {
        Ok(Some(request)) => request,
        Ok(None) => return,
        Err(e) => {
            let fault = Fault::new(format!("the request was not understood: {e}"));
            return send(stream, &Reply::Error(fault));
        }
    };
    if !place.set(Stage::Busy) {
        return;
    }
    let unmounts = matches!(request, Request::Unmount { .. });
    let shared = &place.shared;
    let (mut sent, mut waits) = (Instant::now(), true);
    let mut progress = |progress| {
        if waits && sent.elapsed() >= PROGRESS_INTERVAL {
            sent = Instant::now();
            waits = proto::write_line(&mut &*stream, &Reply::Progress(progress)).is_ok();
        }
        waits && !shared.stopped.load(Ordering::Acquire)
    };
    let result = catch_unwind(AssertUnwindSafe(|| handler(request, &mut progress))).unwrap_or_else(|_| {
        let message =
            "the daemon failed in the middle of this request, which is a bug; its other work goes on";
        Err(Fault {
            message: message.to_owned(),
            hint: Some("dedupfs.log in the store says where".to_owned()),
        })
    });
    let reply = result.map_or_else(Reply::Error, Reply::Ok);
    if waits {
        send(stream, &reply);
    }
    place.set(Stage::Answered);
    if unmounts && matches!(reply, Reply::Ok(_)) {
        let _ = stream.set_read_timeout(Some(LINGER));
        let _ = from.read(&mut [0; 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Client, DaemonInfo};
    use super::*;
    use crate::admin::SettleReport;
    use std::io::Write;

    fn server(dir: &Path) -> (Server, DaemonInfo) {
        let server = Server::bind(dir, StoreId([7; 16])).unwrap();
        let handler: Arc<Handler> = Arc::new(|request, progress| match request {
            Request::Settle => {
                std::thread::sleep(2 * PROGRESS_INTERVAL);
                progress(Progress::files("settling", 1, 2));
                Ok(Response::Settle(SettleReport { pending: 3, kept_plain: 0 }))
            }
            Request::Gc { .. } => panic!("as a bug would"),
            _ => Err(Fault { message: "no".to_owned(), hint: Some("ask nicely".to_owned()) }),
        });
        server.start(handler).unwrap();
        let socket = server.path().to_owned();
        (
            server,
            DaemonInfo { socket, root: "/r".into(), mountpoint: "/m".into(), store: "07".into(), pid: 1 },
        )
    }

    #[test]
    fn requests_are_answered() {
        let dir = tempfile::tempdir().unwrap();
        let (server, info) = server(dir.path());
        let mut steps = Vec::new();
        let mut client = Client::connect(&info).unwrap().unwrap();
        let response = client.ask(&Request::Settle, &mut |step| steps.push(step.done)).unwrap();
        assert!(matches!(response, Response::Settle(SettleReport { pending: 3, .. })));
        assert_eq!(steps, [1]);
        let error = Client::connect(&info).unwrap().unwrap().ask(&Request::Status, &mut |_| {}).unwrap_err();
        assert_eq!((error.to_string(), error.hint()), ("no".to_owned(), Some("ask nicely".to_owned())));
        server.stop(Duration::from_secs(1));
        assert!(Client::connect(&info).unwrap().is_none(), "a dead socket is no daemon");
    }

    #[test]
    fn garbage_is_answered_by_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (_server, info) = server(dir.path());
        let long = vec![b'{'; REQUEST_BYTES_MAX + 10];
        for bytes in [&b"hello\n"[..], b"\0\0\n", &long, b"{\"do\":\"se"] {
            let mut stream = UnixStream::connect(&info.socket).unwrap();
            let _ = stream.write_all(bytes);
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let reply = proto::read_line::<Reply>(&mut BufReader::new(stream), 1000).unwrap();
            assert!(matches!(reply, Some(Reply::Error(_))), "{reply:?}");
        }
        let mut client = Client::connect(&info).unwrap().unwrap();
        assert!(client.ask(&Request::Settle, &mut |_| {}).is_ok(), "and the next one is served");
    }

    #[test]
    fn clients_that_send_nothing_keep_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let (_server, info) = server(dir.path());
        let idle: Vec<_> =
            (0..2 * CONNECTIONS_MAX).map(|_| UnixStream::connect(&info.socket).unwrap()).collect();
        let mut client = Client::connect(&info).unwrap().unwrap();
        assert!(client.ask(&Request::Settle, &mut |_| {}).is_ok());
        drop(idle);
    }

    #[test]
    fn a_request_that_panics_is_answered_and_frees_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let (_server, info) = server(dir.path());
        for _ in 0..CONNECTIONS_MAX + 1 {
            let mut client = Client::connect(&info).unwrap().unwrap();
            let error = client.ask(&Request::Gc { dry_run: true }, &mut |_| {}).unwrap_err();
            assert!(error.to_string().contains("bug"), "{error}");
        }
        assert!(Client::connect(&info).unwrap().unwrap().ask(&Request::Settle, &mut |_| {}).is_ok());
    }
}
