//! gzip: the decompressed data of all members, through its own view.

use super::stream::{BUFFER_BYTES, Inner, Metered, Sink};
use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufRead, BufReader, Read};

pub(super) fn write(input: &mut dyn BufRead, sink: &mut Sink<'_>, inner: Inner<'_>) {
    let decoded = Damaged::new(MultiGzDecoder::new(input));
    let mut decoded = BufReader::with_capacity(BUFFER_BYTES, Metered::new(decoded, sink));
    inner(&mut decoded, sink);
    let metered = decoded.into_inner();
    if metered.ended() || metered.inner.seen {
        sink.is_partial();
    }
}

/// Ends at damage instead of failing, and remembers it.
pub(super) struct Damaged<R> {
    inner: R,
    pub(super) seen: bool,
}

impl<R> Damaged<R> {
    pub(super) fn new(inner: R) -> Damaged<R> {
        Damaged { inner, seen: false }
    }
}

impl<R: Read> Read for Damaged<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.seen {
            return Ok(0);
        }
        match self.inner.read(buffer) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                self.seen = true;
                Ok(0)
            }
            other => other,
        }
    }
}
