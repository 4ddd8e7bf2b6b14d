//! Input and output of a view, with their limits.

use std::cell::Cell;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::rc::Rc;

pub(super) const BUFFER_BYTES: usize = 32 << 10;

/// The input of a view.
pub trait Input: Read + Seek {}

impl<T: Read + Seek> Input for T {}

/// The target of a view, with its remaining limit.
pub(super) struct Sink<'a> {
    pub(super) emit: &'a mut dyn FnMut(&[u8]),
    pub(super) bytes: u64,
    pub(super) left: u64,
    pub(super) whole: bool,
    /// Bytes that all decoders together may still produce.
    pub(super) decoded_left: Rc<Cell<u64>>,
}

impl Sink<'_> {
    /// Accepts as much as the limit allows. False at the limit: then stop.
    pub(super) fn put(&mut self, bytes: &[u8]) -> bool {
        let len = (bytes.len() as u64).min(self.left) as usize;
        if len > 0 {
            (self.emit)(&bytes[..len]);
        }
        self.bytes += len as u64;
        self.left -= len as u64;
        self.whole &= len == bytes.len();
        len == bytes.len()
    }

    /// Whether further parts are useless.
    pub(super) fn is_done(&self) -> bool {
        self.decoded_left.get() == 0 || (self.left == 0 && !self.whole)
    }

    /// Records that the view is incomplete.
    pub(super) fn is_partial(&mut self) {
        self.whole = false;
    }
}

/// Records read errors: decoders take them for damage.
pub(super) struct Watched<'a> {
    pub(super) input: &'a mut dyn Input,
    pub(super) failed: Option<io::Error>,
}

impl Watched<'_> {
    fn kept<T: Default>(&mut self, result: io::Result<T>) -> io::Result<T> {
        match result {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                let kind = e.kind();
                self.failed.get_or_insert(e);
                Err(kind.into())
            }
            other => other,
        }
    }
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.input.read(buffer);
        self.kept(result)
    }
}

impl Seek for Watched<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        // A position before the start is the decoder's mistake, caused by the input's claims.
        self.input.seek(to)
    }
}

/// Decoded bytes on their way to another decoder, limited by what all decoders of a view may produce
/// together. So input that expands without end, in many members and without output, ends too.
pub(super) struct Metered<R> {
    pub(super) inner: R,
    pub(super) left: Rc<Cell<u64>>,
    cut: bool,
}

impl<R: Read> Metered<R> {
    pub(super) fn new(inner: R, sink: &Sink<'_>) -> Metered<R> {
        Metered { inner, left: sink.decoded_left.clone(), cut: false }
    }

    /// Whether more data would have come.
    pub(super) fn ended(&self) -> bool {
        self.cut
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = (buffer.len() as u64).min(self.left.get()) as usize;
        if most == 0 {
            self.cut |= !buffer.is_empty();
            return Ok(0);
        }
        let len = self.inner.read(&mut buffer[..most])?;
        // Its source may be metered too.
        self.left.set(self.left.get().saturating_sub(len as u64));
        Ok(len)
    }
}

/// Writes the content of a member through its own view.
pub(super) type Inner<'a> = &'a dyn Fn(&mut dyn BufRead, &mut Sink<'_>);

/// Calls `visit` with each piece of `input` until it returns false.
pub(super) fn each(
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    visit: &mut dyn FnMut(&[u8], &mut Sink<'_>) -> bool,
) {
    loop {
        match input.fill_buf() {
            Ok([]) => return,
            Ok(bytes) => {
                let len = bytes.len();
                if !visit(bytes, sink) {
                    return;
                }
                input.consume(len);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return sink.is_partial(),
        }
    }
}

pub(super) fn copy(input: &mut dyn BufRead, sink: &mut Sink<'_>) {
    each(input, sink, &mut |bytes, sink| sink.put(bytes));
}
