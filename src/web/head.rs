use percent_encoding::percent_decode_str;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

/// Limit of a request: only an address is needed.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The page, without the token: `similar.json`; empty for the first.
    pub page: String,
    /// The query.
    pub query: Vec<(String, OsString)>,
}

impl Request {
    /// Returns a query value by name, if it is there and not empty.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let found = self.query.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("this is no request that a browser makes")]
    Malformed,
    #[error("the request is too long, or has too many headers")]
    TooLong,
    #[error("only GET is answered: nothing can be changed here")]
    Method,
    #[error("this server answers to 127.0.0.1 and localhost, with its port, only")]
    Host,
    #[error("there is no such page: open the address that `dedupctl ui` printed")]
    Unknown,
    #[error("the request did not come in time")]
    Slow,
    #[error("too many requests at once: try again")]
    Busy,
}

impl Refusal {
    pub(super) fn status(self) -> u16 {
        match self {
            Refusal::Malformed => 400,
            Refusal::TooLong => 431,
            Refusal::Method => 405,
            Refusal::Host => 403,
            Refusal::Unknown => 404,
            Refusal::Slow => 408,
            Refusal::Busy => 503,
        }
    }
}

/// Access check.
pub(super) struct Door {
    pub token: blake3::Hash,
    pub port: u16,
}

impl Door {
    /// Reads the head of a request; `None` while it is incomplete.
    pub(super) fn read(&self, bytes: &[u8]) -> Result<Option<Request>, Refusal> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Request::new(&mut headers);
        match head.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(Refusal::TooLong);
            }
            Err(_) => return Err(Refusal::Malformed),
        }
        let (Some(method), Some(target)) = (head.method, head.path) else { return Err(Refusal::Malformed) };
        self.check_host(head.headers)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (token, page) =
            path.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or(Refusal::Unknown)?;
        // Compares hashes, in constant time, so that timing reveals nothing about the token.
        if blake3::hash(token.as_bytes()) != self.token {
            return Err(Refusal::Unknown);
        }
        if method != "GET" {
            return Err(Refusal::Method);
        }
        // Page names use only these characters, so no path can escape.
        if !page.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'.') {
            return Err(Refusal::Unknown);
        }
        Ok(Some(Request { page: page.to_owned(), query: query_of(query) }))
    }

    /// Checks the host: a page of another site whose name points to this machine sends that name.
    fn check_host(&self, headers: &[httparse::Header]) -> Result<(), Refusal> {
        let mut hosts = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return Err(Refusal::Host) };
        let ours = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", self.port));
        match ours.iter().any(|name| name.as_bytes() == host.value) {
            true => Ok(()),
            false => Err(Refusal::Host),
        }
    }
}

fn query_of(text: &str) -> Vec<(String, OsString)> {
    let decoded = |text: &str| -> Vec<u8> { percent_decode_str(&text.replace('+', " ")).collect() };
    let pairs = text
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(name, value)| {
            (String::from_utf8_lossy(&decoded(name)).into_owned(), OsString::from_vec(decoded(value)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str) -> Result<Option<Request>, Refusal> {
        Door { token: blake3::hash(b"secret"), port: 80 }.read(head.as_bytes())
    }

    fn get(target: &str) -> Result<Option<Request>, Refusal> {
        read(&format!("GET {target} HTTP/1.1\r\nHost: localhost:80\r\n\r\n"))
    }

    #[test]
    fn an_address_is_read() {
        let request = get("/secret/similar?file=a%2Fb+c%ff&min=&x").unwrap().unwrap();
        assert_eq!(request.page, "similar");
        assert_eq!(request.get("file").unwrap(), OsStr::from_bytes(b"a/b c\xff"));
        assert_eq!((request.get("min"), request.get("x"), request.get("y")), (None, None, None));
        assert_eq!(get("/secret/").unwrap().unwrap(), Request::default());
    }

    #[test]
    fn who_does_not_know_the_token_or_means_another_host_is_refused() {
        for target in
            ["/", "/secret", "/secre/", "/secret2/", "/SECRET/", "//secret/", "/secret%2f", "/x/../secret/"]
        {
            assert_eq!(get(target), Err(Refusal::Unknown), "{target}");
        }
        for target in
            ["/secret/../x", "/secret/..", "/secret/%2e%2e/x", "/secret/a/b", "/secret//", "/secret/X"]
        {
            assert!(
                get(target) == Err(Refusal::Unknown) || get(target).unwrap().unwrap().page == "..",
                "{target}"
            );
        }
        for host in [
            "Host: evil.example:80",
            "Host: localhost",
            "Host: 127.0.0.1:81",
            "Host:",
            "X: y",
            "Host: localhost:80\r\nHost: x",
        ] {
            let head = format!("GET /secret/ HTTP/1.1\r\n{host}\r\n\r\n");
            assert_eq!(read(&head), Err(Refusal::Host), "{host}");
        }
        let other = |method| read(&format!("{method} /secret/ HTTP/1.1\r\nhost: 127.0.0.1:80\r\n\r\n"));
        assert!(other("GET").is_ok());
        for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "get"] {
            assert_eq!(other(method), Err(Refusal::Method), "{method}");
        }
    }

    #[test]
    fn what_is_no_head_is_refused_and_half_of_one_waited_for() {
        assert_eq!(read(""), Ok(None));
        assert_eq!(read("GET /secret/ HTTP/1.1\r\nHost: local"), Ok(None));
        for bad in ["\0\0\0", "GET\r\n\r\n", "GET /secret/ HTTP/9\r\n\r\n", "{\"do\":\"status\"}\n"] {
            assert_eq!(read(bad), Err(Refusal::Malformed), "{bad:?}");
        }
        assert_eq!(read(&("GET /".to_owned() + &"a".repeat(HEAD_BYTES_MAX))), Err(Refusal::TooLong));
        let many = "X: y\r\n".repeat(HEADERS_MAX + 1);
        assert_eq!(read(&format!("GET /secret/ HTTP/1.1\r\n{many}\r\n")), Err(Refusal::TooLong));
    }

    use std::os::unix::ffi::OsStrExt;
}
