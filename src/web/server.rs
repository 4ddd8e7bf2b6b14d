use super::head::{Door, HEAD_BYTES_MAX, Refusal, Request};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limit of concurrent requests.
const CONNECTIONS_MAX: usize = 32;
/// Time for a request to arrive.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time for a client to read its answer.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Bytes written at once; the time is checked in between.
const WRITE_BYTES: usize = 64 << 10;
const TOKEN_BYTES: usize = 32;

/// Kind of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An HTML page whose scripts have this nonce.
    Page {
        /// See the Content Security Policy.
        nonce: String,
    },
    /// JSON.
    Json,
    /// Plain text.
    Text,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Its kind.
    pub kind: Kind,
    /// Its bytes.
    pub body: Vec<u8>,
}

impl Answer {
    fn refuse(refusal: Refusal) -> Answer {
        Answer { status: refusal.status(), kind: Kind::Text, body: format!("{refusal}\n").into_bytes() }
    }

    fn head(&self) -> String {
        let (kind, scripts) = match &self.kind {
            Kind::Page { nonce } => {
                ("text/html", format!("script-src 'nonce-{nonce}'; connect-src 'self'; "))
            }
            Kind::Json => ("application/json", String::new()),
            Kind::Text => ("text/plain", String::new()),
        };
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        let fields = [
            ("Content-Type", format!("{kind}; charset=utf-8")),
            ("Content-Length", self.body.len().to_string()),
            (
                "Content-Security-Policy",
                format!(
                    "default-src 'none'; style-src 'unsafe-inline'; {scripts}form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
                ),
            ),
            // The address contains the token: it must not be forwarded or stored.
            ("Referrer-Policy", "no-referrer".to_owned()),
            ("Cache-Control", "no-store".to_owned()),
            ("X-Content-Type-Options", "nosniff".to_owned()),
            ("X-Frame-Options", "DENY".to_owned()),
            ("Cross-Origin-Resource-Policy", "same-origin".to_owned()),
            ("Cross-Origin-Opener-Policy", "same-origin".to_owned()),
            ("Connection", "close".to_owned()),
        ];
        for (name, value) in fields {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if self.status == Refusal::Method.status() {
            head += "Allow: GET\r\n";
        }
        head + "\r\n"
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

/// The server; see the module. Answers until it is stopped.
pub struct Server {
    listener: TcpListener,
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    door: Door,
    busy: Mutex<usize>,
    idle: Condvar,
    stopped: AtomicBool,
}

impl Shared {
    fn busy(&self) -> MutexGuard<'_, usize> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a running request.
struct Turn(Arc<Shared>);

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.busy() -= 1;
        self.0.idle.notify_all();
    }
}

impl Server {
    /// Listens on 127.0.0.1 at `port`, or at a free one for 0, with a new token.
    ///
    /// # Errors
    ///
    /// Fails if the port is taken or not allowed, or if the system returns no random bytes.
    pub fn bind(port: u16) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = listener.local_addr()?.port();
        let token = random_hex()?;
        let url = format!("http://127.0.0.1:{port}/{token}/");
        let door = Door { token: blake3::hash(token.as_bytes()), port };
        let shared =
            Shared { door, busy: Mutex::new(0), idle: Condvar::new(), stopped: AtomicBool::new(false) };
        Ok(Server { listener, url, shared: Arc::new(shared) })
    }

    /// Returns the address of the first page. Anyone who knows it may read everything.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Starts answering with `handler`, in threads.
    ///
    /// # Errors
    ///
    /// Fails if no thread can be started.
    pub fn start(&self, handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> io::Result<()> {
        let (listener, shared, handler) =
            (self.listener.try_clone()?, self.shared.clone(), Arc::new(handler));
        let accept = move || {
            while !shared.stopped.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => admit(stream, &shared, &handler),
                    // For example no free descriptor: this passes.
                    Err(e) if e.kind() != ErrorKind::Interrupted => {
                        std::thread::sleep(Duration::from_millis(50))
                    }
                    Err(_) => {}
                }
            }
        };
        std::thread::Builder::new().name("web".to_owned()).spawn(accept).map(|_| ())
    }

    /// Accepts no more requests, and waits up to `time` for running ones.
    pub fn stop(&self, time: Duration) {
        self.shared.stopped.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        drop(self.shared.idle.wait_timeout_while(self.shared.busy(), time, |busy| *busy > 0));
    }
}

/// Returns a nonce for the scripts of one page.
///
/// # Errors
///
/// Fails if the system returns no random bytes.
pub fn nonce() -> io::Result<String> {
    random_hex()
}

/// Random bytes, hexadecimal.
fn random_hex() -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    let mut filled = 0;
    while filled < TOKEN_BYTES {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(blake3::Hash::from_bytes(bytes).to_hex().to_string())
}

fn admit<H: Fn(&Request) -> Answer + Send + Sync + 'static>(
    mut stream: TcpStream,
    shared: &Arc<Shared>,
    handler: &Arc<H>,
) {
    let mut busy = shared.busy();
    if *busy >= CONNECTIONS_MAX {
        drop(busy);
        // It fits into the kernel's buffer, so no thread waits for a client.
        let _ = stream.set_nonblocking(true);
        let answer = Answer::refuse(Refusal::Busy);
        let _ = stream.write(&[answer.head().as_bytes(), &answer.body].concat());
        return;
    }
    *busy += 1;
    drop(busy);
    let (turn, handler) = (Turn(shared.clone()), handler.clone());
    let serve = move || {
        let answer = match head(&mut stream, &turn.0.door, Instant::now() + HEAD_TIME) {
            Ok(request) => handler(&request),
            Err(Some(refusal)) => Answer::refuse(refusal),
            Err(None) => return,
        };
        let _ = send(&mut stream, &answer);
    };
    if let Err(e) = std::thread::Builder::new().name("page".to_owned()).spawn(serve) {
        tracing::warn!("a request is not answered: {e}");
    }
}

/// Reads a request; returns `None` as error if the client has gone.
fn head(stream: &mut TcpStream, door: &Door, end: Instant) -> Result<Request, Option<Refusal>> {
    let mut head = vec![0; HEAD_BYTES_MAX];
    let mut filled = 0;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(Some(Refusal::Slow));
        }
        match stream.read(&mut head[filled..]) {
            Ok(0) => return Err(None),
            Ok(len) => filled += len,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(Some(Refusal::Slow));
            }
            Err(_) => return Err(None),
        }
        if let Some(request) = door.read(&head[..filled]).map_err(Some)? {
            return Ok(request);
        }
    }
}

fn send(stream: &mut TcpStream, answer: &Answer) -> io::Result<()> {
    let end = Instant::now() + ANSWER_TIME;
    let head = answer.head();
    for part in std::iter::once(head.as_bytes()).chain(answer.body.chunks(WRITE_BYTES)) {
        let mut part = part;
        while !part.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            stream.set_write_timeout(Some(left))?;
            let len = stream.write(part)?;
            part = &part[len..];
        }
    }
    stream.shutdown(Shutdown::Write)?;
    // Unread input beyond the head would make the kernel cut off the answer.
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut rest = [0; 4096];
    for _ in 0..16 {
        if !matches!(stream.read(&mut rest), Ok(len) if len > 0) {
            break;
        }
    }
    Ok(())
}
