//! Reads a delta. The stream is not trusted.

use super::columns::{COLUMNS_BYTES_MAX, Reader};
use super::header::{Form, Header, Names};
use super::op::CopyOp;
use super::prefix::Ranges;
use super::segment::{Context, Item, take_piece};
use super::view::{View, names};
use super::{
    BaseId, Bases, DeltaError, MEMBERS_MAX, SEGMENT_ITEMS, SEGMENT_MEMBERS, VERSION, WINDOW_LOG_MAX, zip,
};
use std::io::{self, BufReader, Read};

/// Bytes that are decoded at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Limits of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of targets.
    pub targets_max: u64,
    /// Bytes of all targets, and of the inflated members of archives.
    pub bytes_max: u64,
}

/// Sizes of a decoded delta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Number of targets.
    pub targets: u64,
    /// Bytes of all targets.
    pub target_bytes: u64,
}

/// Takes decoded targets. The caller must not show any of them before [`decode`] has returned.
pub trait Receiver {
    /// Returns the base that the sender gave as hint for this target.
    fn hint(&mut self, target: u64) -> Option<BaseId> {
        let _ = target;
        None
    }
    /// Begins a target of `size` bytes.
    fn begin(&mut self, target: u64, size: u64) -> io::Result<()>;
    /// Takes its next bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Ends the target; `hash` is the BLAKE3 hash of its bytes.
    fn end(&mut self, target: u64, hash: [u8; 32]) -> io::Result<()>;
}

/// Reads a delta from `input` exactly to its end, and gives the targets to `receiver`.
///
/// `bases` must be those of the encoder. After an error, all that `receiver` got is worthless.
pub fn decode(
    bases: &dyn Bases,
    input: &mut dyn Read,
    limits: Limits,
    receiver: &mut dyn Receiver,
) -> Result<Decoded, DeltaError> {
    decode_checked(bases, input, limits, receiver, true)
}

/// The same; `checked` is false only for the fuzzer, which cannot make hashes match.
pub(super) fn decode_checked(
    bases: &dyn Bases,
    input: &mut dyn Read,
    limits: Limits,
    receiver: &mut dyn Receiver,
    checked: bool,
) -> Result<Decoded, DeltaError> {
    let version = take_byte(input)?;
    if version != VERSION {
        return Err(DeltaError::damaged("a delta of version 1", format_args!("{version}")));
    }
    let mut decoder = Decoder {
        bases,
        limits,
        receiver,
        parsed: Parsed::default(),
        writer: Writer::default(),
        hasher: blake3::Hasher::new(),
        decoded: Decoded::default(),
    };
    loop {
        match take_number(input)? {
            0 => break,
            items => decoder.segment(input, items)?,
        }
    }
    if decoder.parsed.context.left > 0 {
        return Err(DeltaError::damaged("the rest of a target", "the end"));
    }
    let mut hash = [0; 32];
    input.read_exact(&mut hash).map_err(DeltaError::Read)?;
    if checked && decoder.hasher.finalize() != hash {
        return Err(DeltaError::Mismatch);
    }
    Ok(decoder.decoded)
}

struct Decoder<'b, 'r> {
    bases: &'b dyn Bases,
    limits: Limits,
    receiver: &'r mut dyn Receiver,
    parsed: Parsed,
    writer: Writer<'b>,
    hasher: blake3::Hasher,
    decoded: Decoded,
}

/// The position up to which operations were read.
#[derive(Default)]
struct Parsed {
    context: Context,
    targets: u64,
    bytes: u64,
}

/// The target that is being written.
#[derive(Default)]
struct Writer<'b> {
    header: Header,
    views: Vec<View<'b>>,
    left: u64,
    written: u64,
    hasher: blake3::Hasher,
    /// The bytes of an archive, until it is complete.
    archive: Vec<u8>,
}

impl<'b> Decoder<'b, '_> {
    fn segment(&mut self, input: &mut dyn Read, items: u64) -> Result<(), DeltaError> {
        let len = take_number(input)?;
        DeltaError::at_most("bytes of columns", COLUMNS_BYTES_MAX, len)?;
        let mut encoded = Vec::new();
        Read::take(&mut *input, len).read_to_end(&mut encoded).map_err(DeltaError::Read)?;
        if encoded.len() as u64 != len {
            return Err(DeltaError::damaged("whole columns", "the end of the stream"));
        }
        let mut columns = Reader::decode(&encoded)?;
        drop(encoded);
        let (mut parsed, mut ranges, mut literals) = (Vec::new(), Ranges::default(), 0u64);
        let (mut names, mut ops) = (Names::default(), 0);
        // A segment ends after the header or piece that fills it, and after the target that fills it.
        DeltaError::at_most("items of a segment", SEGMENT_ITEMS + 2, items)?;
        let mut members = 0;
        for _ in 0..items {
            let item = self.item(&mut columns, &mut names, &mut ranges, &mut ops)?;
            match &item {
                Item::Piece(len, copies) => {
                    literals += (len - copies.iter().map(|copy| copy.len).sum::<usize>()) as u64;
                }
                Item::Header(header) => members += header.members.len(),
            }
            let members_max = SEGMENT_MEMBERS + MEMBERS_MAX;
            DeltaError::at_most("members of archives in a segment", members_max as u64, members as u64)?;
            parsed.push(item);
        }
        if !columns.is_done() {
            return Err(DeltaError::damaged("as many operations as are used", "more"));
        }
        drop(columns);
        if literals == 0 {
            return self.items(parsed, &mut io::empty());
        }
        let prefix = ranges.read(self.bases)?;
        let mut chunks = Chunks { input, left: 0, done: false };
        let unreadable = |e: io::Error| DeltaError::damaged("literals that zstd can read", e);
        let mut frame = zstd::stream::read::Decoder::with_ref_prefix(BufReader::new(&mut chunks), &prefix)
            .map_err(unreadable)?
            .single_frame();
        frame.window_log_max(WINDOW_LOG_MAX).map_err(unreadable)?;
        self.items(parsed, &mut frame)?;
        if frame.read(&mut [0]).map_err(unreadable)? != 0 {
            return Err(DeltaError::damaged("as many literals as are used", "more"));
        }
        drop(frame);
        if chunks.done || chunks.read(&mut [0]).map_err(DeltaError::Read)? == 0 {
            Ok(())
        } else {
            Err(DeltaError::damaged("the end of the literals", "more"))
        }
    }

    /// Reads the next item, and verifies it.
    fn item(
        &mut self,
        columns: &mut Reader,
        known: &mut Names,
        ranges: &mut Ranges,
        ops: &mut usize,
    ) -> Result<Item, DeltaError> {
        let parsed = &mut self.parsed;
        if parsed.context.left > 0 {
            let (len, last) = parsed.context.piece();
            let copies = take_piece(columns, &parsed.context, len, ops)?;
            let context = &mut parsed.context;
            ranges.add(&context.names, &context.sizes, len, last, context.place, &copies);
            context.advance(len, &copies);
            return Ok(Item::Piece(len, copies));
        }
        let target = parsed.targets;
        parsed.targets += 1;
        DeltaError::at_most("targets", self.limits.targets_max, parsed.targets)?;
        let mut header = Header::take_bases(columns, known, self.receiver.hint(target))?;
        let views = View::open_all(self.bases, &header.bases, header.form)?;
        header.take_size(columns, views.first().map_or(0, |view| view.size))?;
        parsed.bytes = parsed.bytes.saturating_add(header.size.max(header.content_size));
        DeltaError::at_most("bytes of targets", self.limits.bytes_max, parsed.bytes)?;
        parsed.context = Context {
            names: names(&header.bases, header.form).collect(),
            sizes: views.iter().map(|view| view.size).collect(),
            left: header.size,
            ..Context::default()
        };
        Ok(Item::Header(header))
    }

    fn items(&mut self, items: Vec<Item>, literals: &mut dyn Read) -> Result<(), DeltaError> {
        for item in items {
            match item {
                Item::Header(header) => {
                    let target = self.decoded.targets;
                    let begun = self.receiver.begin(target, header.content_size);
                    begun.map_err(|source| DeltaError::Receive { target, source })?;
                    let views = View::open_all(self.bases, &header.bases, header.form)?;
                    self.writer = Writer { left: header.size, header, views, ..Writer::default() };
                }
                Item::Piece(len, copies) => self.piece(len, &copies, literals)?,
            }
            if self.writer.left == 0 {
                self.end_target()?;
            }
        }
        Ok(())
    }

    fn piece(&mut self, len: usize, copies: &[CopyOp], literals: &mut dyn Read) -> Result<(), DeltaError> {
        let mut buffer = vec![0; BUFFER_BYTES.min(len)];
        let mut at = 0;
        for copy in copies {
            self.literals(copy.at - at, &mut buffer, literals)?;
            let mut done = 0;
            while done < copy.len {
                let part = buffer.len().min(copy.len - done);
                self.writer.views[copy.view].read_exact(copy.offset + done as u64, &mut buffer[..part])?;
                self.give(&buffer[..part])?;
                done += part;
            }
            at = copy.end();
        }
        self.literals(len - at, &mut buffer, literals)?;
        self.writer.left -= len as u64;
        Ok(())
    }

    fn literals(&mut self, len: usize, buffer: &mut [u8], literals: &mut dyn Read) -> Result<(), DeltaError> {
        let mut left = len;
        while left > 0 {
            let part = buffer.len().min(left);
            let read = literals.read_exact(&mut buffer[..part]);
            read.map_err(|e| DeltaError::damaged("literals that zstd can read", e))?;
            self.give(&buffer[..part])?;
            left -= part;
        }
        Ok(())
    }

    /// Takes the next bytes of the target, or of the view of its archive.
    fn give(&mut self, bytes: &[u8]) -> Result<(), DeltaError> {
        if self.writer.header.form == Form::AsIs {
            return self.write(bytes);
        }
        self.writer.archive.extend_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DeltaError> {
        let (target, writer) = (self.decoded.targets, &mut self.writer);
        writer.written += bytes.len() as u64;
        if writer.written > writer.header.content_size {
            return Err(DeltaError::Deflate { target, found: "more bytes than it had".to_owned() });
        }
        writer.hasher.update(bytes);
        self.receiver.write(bytes).map_err(|source| DeltaError::Receive { target, source })
    }

    fn end_target(&mut self) -> Result<(), DeltaError> {
        let target = self.decoded.targets;
        if self.writer.header.form != Form::AsIs {
            let archive = std::mem::take(&mut self.writer.archive);
            let members = std::mem::take(&mut self.writer.header.members);
            zip::deflate_again(&archive, &members, &mut |bytes| self.write(bytes))?;
        }
        let (size, written) = (self.writer.header.content_size, self.writer.written);
        if written != size {
            return Err(DeltaError::Deflate { target, found: format!("{written} bytes, not {size}") });
        }
        let hash = self.writer.hasher.finalize();
        self.hasher.update(&size.to_le_bytes());
        self.hasher.update(hash.as_bytes());
        self.decoded.targets += 1;
        self.decoded.target_bytes += size;
        self.writer = Writer::default();
        self.receiver.end(target, *hash.as_bytes()).map_err(|source| DeltaError::Receive { target, source })
    }
}

/// The frame of the literals without the lengths between its chunks. It ends at a length of 0.
struct Chunks<'i> {
    input: &'i mut dyn Read,
    left: u64,
    done: bool,
}

impl Read for Chunks<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.done {
            self.left = take_number(self.input).map_err(io::Error::other)?;
            self.done = self.left == 0;
        }
        if self.done || buf.is_empty() {
            return Ok(0);
        }
        let len = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.input.read(&mut buf[..len])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ends within its literals"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

fn take_byte(input: &mut dyn Read) -> Result<u8, DeltaError> {
    let mut byte = [0];
    input.read_exact(&mut byte).map_err(DeltaError::Read)?;
    Ok(byte[0])
}

fn take_number(input: &mut dyn Read) -> Result<u64, DeltaError> {
    let mut bytes = Vec::new();
    loop {
        bytes.push(take_byte(input)?);
        if bytes.last().is_some_and(|&byte| byte < 0x80) || bytes.len() == 10 {
            return super::varint::take(&mut &bytes[..]);
        }
    }
}
