//! The lines of the protocol. Every length has a limit.

use crate::admin::{Progress, Response};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read, Write};

/// Limit of a request.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Limit of an answer: a report can name every damaged file of a large tree.
pub(super) const REPLY_BYTES_MAX: usize = 256 << 20;

/// A line from the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each is the line of that name")]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and it is written out at once")]
pub enum Reply {
    Progress(Progress),
    Ok(Response),
    Error(Fault),
}

/// An error in transit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The message.
    pub message: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

impl Fault {
    /// Creates an error without advice.
    pub fn new(message: impl Into<String>) -> Fault {
        Fault { message: message.into(), hint: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Writes one line.
pub(super) fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads one line; `None` at the end of the stream. A line that is longer than `bytes_max`, cut short or
/// malformed is `InvalidData`.
pub(super) fn read_line<T: DeserializeOwned>(
    from: &mut impl BufRead,
    bytes_max: usize,
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.by_ref().take(bytes_max as u64 + 1).read_until(b'\n', &mut line)?;
    let bad = |reason: String| io::Error::new(ErrorKind::InvalidData, reason);
    match line.pop() {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) if line.len() >= bytes_max => {
            return Err(bad(format!("a line is longer than {bytes_max} bytes")));
        }
        Some(_) => return Err(bad("a line is cut short".to_owned())),
    }
    serde_json::from_slice(&line).map(Some).map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::Request;

    fn read(mut bytes: &[u8]) -> Result<Option<Request>, String> {
        read_line(&mut bytes, 100).map_err(|e| e.to_string())
    }

    #[test]
    fn a_line_comes_back() {
        let mut bytes = Vec::new();
        write_line(&mut bytes, &Request::Settle).unwrap();
        write_line(&mut bytes, &Request::Scan { path: "a\nb".into() }).unwrap();
        let mut from = &bytes[..];
        assert!(matches!(read_line(&mut from, 100).unwrap(), Some(Request::Settle)));
        assert!(
            matches!(read_line(&mut from, 100).unwrap(), Some(Request::Scan { path }) if path == *"a\nb")
        );
        assert!(read_line::<Request>(&mut from, 100).unwrap().is_none());
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(read(b"").unwrap().is_none());
        assert_eq!(read(b"{\"do\":\"settle\"}").unwrap_err(), "a line is cut short");
        assert_eq!(read(&[b'x'; 500]).unwrap_err(), "a line is longer than 100 bytes");
        for bytes in
            [&b"\n"[..], b"{}\n", b"\xff\xff\n", b"{\"do\":\"nothing\"}\n", b"[1]\n", b"{\"do\":\"scan\"}\n"]
        {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
