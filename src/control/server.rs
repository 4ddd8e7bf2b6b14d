//! The daemon's end. Always true: nothing a client sends, and no number of clients, costs more than a
//! bounded amount of memory and threads; who is not the daemon's user or root is answered but not served.

use super::ControlError;
use super::proto::{self, Fault, REQUEST_BYTES_MAX, Reply};
use crate::admin::{Progress, Request, Response};
use crate::id::StoreId;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Requests served at a time.
const CONNECTIONS_MAX: usize = 32;
/// A client sends its request within this time and takes each line of the answer within it.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// An answered client may stay connected for so long, to see the daemon end.
const LINGER: Duration = Duration::from_secs(600);
/// Progress is told no more often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Does what is requested. The callback is told progress and answers whether the client still waits.
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
    connections: AtomicUsize,
    /// Requests that have not been answered yet.
    busy: Mutex<usize>,
    idle: Condvar,
}

impl Server {
    /// Listens in `runtime`. The caller has the store's lock, so a socket that is there already is a dead
    /// daemon's.
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

    /// Where it listens.
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
                        // Out of descriptors, most likely: do not spin.
                        tracing::warn!("the control socket: {e}");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        std::thread::Builder::new().name("control".to_owned()).spawn(accept).map_err(error)?;
        Ok(())
    }

    /// Takes no more requests, and gives those under way `time` to be answered.
    pub fn stop(&self, time: Duration) {
        self.shared.stopped.store(true, Ordering::Release);
        let _ = std::fs::remove_file(&self.path);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let busy = self.shared.busy.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.shared.idle.wait_timeout_while(busy, time, |busy| *busy > 0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

fn admit(mut stream: UnixStream, shared: &Arc<Shared>, handler: &Arc<Handler>) {
    let _ = stream.set_write_timeout(Some(CLIENT_TIMEOUT));
    let refuse = match rustix::net::sockopt::socket_peercred(&stream) {
        Ok(peer) if peer.uid.is_root() || peer.uid == rustix::process::geteuid() => None,
        Ok(peer) => Some(format!("user {} may not control this daemon", peer.uid)),
        Err(e) => Some(format!("it is not known who asks: {e}")),
    };
    let refuse = refuse.or_else(|| {
        let full = shared.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX;
        full.then(|| {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            "the daemon is busy with too many requests".to_owned()
        })
    });
    if let Some(reason) = refuse {
        let _ = proto::write_line(&mut stream, &Reply::Error(Fault::new(reason)));
        return;
    }
    let (own, handler) = (shared.clone(), handler.clone());
    let serve = move || {
        serve(stream, &own, &*handler);
        own.connections.fetch_sub(1, Ordering::AcqRel);
    };
    if let Err(e) = std::thread::Builder::new().name("request".to_owned()).spawn(serve) {
        shared.connections.fetch_sub(1, Ordering::AcqRel);
        tracing::warn!("the control socket: {e}");
    }
}

fn serve(stream: UnixStream, shared: &Shared, handler: &Handler) {
    let _ = stream.set_read_timeout(Some(CLIENT_TIMEOUT));
    let Ok(mut to) = stream.try_clone() else { return };
    let mut from = BufReader::new(stream);
    let request = match proto::read_line::<Request>(&mut from, REQUEST_BYTES_MAX) {
        Ok(Some(request)) => request,
        Ok(None) => return,
        Err(e) => {
            let fault = Fault::new(format!("the request was not understood: {e}"));
            let _ = proto::write_line(&mut to, &Reply::Error(fault));
            return;
        }
    };
    *shared.busy.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    let mut told = Instant::now();
    let mut waiting = true;
    let result = handler(request, &mut |progress| {
        if waiting && told.elapsed() >= PROGRESS_INTERVAL {
            told = Instant::now();
            waiting = proto::write_line(&mut to, &Reply::Progress(progress)).is_ok();
        }
        waiting && !shared.stopped.load(Ordering::Acquire)
    });
    let reply = result.map_or_else(Reply::Error, Reply::Ok);
    if waiting {
        let _ = proto::write_line(&mut to, &reply);
    }
    *shared.busy.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
    shared.idle.notify_all();
    let _ = from.get_ref().set_read_timeout(Some(LINGER));
    let _ = from.read(&mut [0; 1]);
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
                Ok(Response::Settle(SettleReport { pending: 3 }))
            }
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
        assert!(matches!(response, Response::Settle(SettleReport { pending: 3 })));
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
}
