//! Writes a delta.

use super::columns::Columns;
use super::header::{Form, Header, Names};
use super::matcher::Matcher;
use super::prefix::Ranges;
use super::segment::{Context, put_piece};
use super::source::read_full;
use super::view::View;
use super::{
    BASES_MAX, BaseId, Bases, DeltaError, PIECE_BYTES_MAX, ReadAt, SEGMENT_ITEMS, SEGMENT_LITERAL_BYTES,
    SEGMENT_MEMBERS, SEGMENT_OPS, SEGMENT_PREFIX_BYTES, VERSION, WINDOW_LOG_MAX, varint, zip,
};
use std::io::Write;

/// Bytes of the literals' frame that follow one length.
const CHUNK_BYTES: usize = 64 << 10;

/// The compression level of the literals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// zstd's level 9.
    #[default]
    Normal,
    /// zstd's level 19: some percent smaller, but many times slower; for slow links.
    Slow,
}

/// Options of an encoder. The decoder does not need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The compression level of the literals.
    pub level: Level,
    /// Whether zip archives are inflated. Must be false if the receiver could not deflate their members to the same
    /// bytes.
    pub archives: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { level: Level::Normal, archives: true }
    }
}

/// Sizes of an encoded delta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Number of targets.
    pub targets: u64,
    /// Bytes of all targets.
    pub target_bytes: u64,
    /// Bytes that are copied from bases. For archives, inflated bytes count.
    pub copied_bytes: u64,
    /// Number of copies.
    pub copies: u64,
    /// Bytes that are literals, before compression.
    pub literal_bytes: u64,
    /// Bytes of operations in the stream.
    pub operation_bytes: u64,
    /// Bytes of the stream.
    pub stream_bytes: u64,
}

/// Writes a delta, target by target.
pub struct Encoder<'b, W: Write> {
    bases: &'b dyn Bases,
    options: Options,
    out: W,
    segment: Segment,
    summary: Encoded,
    hasher: blake3::Hasher,
}

/// A segment that was not written yet.
#[derive(Default)]
struct Segment {
    items: u64,
    ops: usize,
    members: usize,
    columns: Columns,
    names: Names,
    ranges: Ranges,
    literals: Vec<u8>,
}

impl<'b, W: Write> Encoder<'b, W> {
    /// Begins a delta against `bases` that is written to `out`.
    pub fn new(bases: &'b dyn Bases, options: Options, out: W) -> Result<Encoder<'b, W>, DeltaError> {
        let mut encoder = Encoder {
            bases,
            options,
            out,
            segment: Segment::default(),
            summary: Encoded::default(),
            hasher: blake3::Hasher::new(),
        };
        encoder.write(&[VERSION])?;
        Ok(encoder)
    }

    /// Adds the next target. `bases` are at most [`BASES_MAX`] contents that resemble it, the most similar first (see
    /// [`super::choose()`]). `hint` is a base that the receiver expects for this target, such as the older content of
    /// the same path; it costs no bytes to name that one.
    pub fn add(
        &mut self,
        content: &dyn ReadAt,
        hint: Option<BaseId>,
        bases: &[BaseId],
    ) -> Result<(), DeltaError> {
        DeltaError::at_most("bases of a target", BASES_MAX as u64, bases.len() as u64)?;
        let target = self.summary.targets;
        let size = content.size();
        let failed = |source| DeltaError::Target { target, source };
        let changed = |found| DeltaError::Changed { target, expected: size, found };
        let mut hasher = blake3::Hasher::new();
        let mut archive = None;
        if self.options.archives && size <= zip::ARCHIVE_BYTES_MAX {
            let mut head = [0; 4];
            read_full(content, 0, &mut head).map_err(failed)?;
            if zip::looks_like(&head) {
                let mut bytes = vec![0; size as usize];
                let read = read_full(content, 0, &mut bytes).map_err(failed)?;
                if read < bytes.len() {
                    return Err(changed(read as u64));
                }
                hasher.update(&bytes);
                archive = zip::target(&bytes);
                if archive.is_none() {
                    hasher = blake3::Hasher::new();
                }
            }
        }
        let (form, members, view) = match archive {
            None => (Form::AsIs, Vec::new(), None),
            Some(archive) => {
                let form = if archive.others { Form::MembersBesideAsIs } else { Form::Members };
                (form, archive.members, Some(archive.view))
            }
        };
        let view_size = view.as_ref().map_or(size, |view| view.len() as u64);
        let header = Header { form, bases: bases.to_vec(), size: view_size, content_size: size, members };
        let views = View::open_all(self.bases, bases, form)?;
        header.put_bases(&mut self.segment.columns, &mut self.segment.names, hint);
        header.put_size(&mut self.segment.columns, views.first().map_or(0, |view| view.size));
        self.segment.items += 1;
        self.segment.members += header.members.len();
        let mut context = Context {
            names: views.iter().map(|view| view.name).collect(),
            sizes: views.iter().map(|view| view.size).collect(),
            left: view_size,
            ..Context::default()
        };
        let mut matcher = if view_size > 0 { Some(Matcher::new(&views)?) } else { None };
        let mut buffer = Vec::new();
        while let (len @ 1.., last) = context.piece() {
            let at = view_size - context.left;
            let piece = match &view {
                Some(view) => &view[at as usize..at as usize + len],
                None => {
                    buffer.resize(len, 0);
                    let read = read_full(content, at, &mut buffer).map_err(failed)?;
                    if read < len {
                        return Err(changed(at + read as u64));
                    }
                    hasher.update(&buffer);
                    &buffer[..]
                }
            };
            let copies = match &mut matcher {
                Some(matcher) => matcher.piece(piece, last)?,
                None => Vec::new(),
            };
            self.segment.items += 1;
            self.segment.ops += copies.len();
            put_piece(&mut self.segment.columns, &context, len, &copies);
            self.segment.ranges.add(&context.names, &context.sizes, len, last, context.place, &copies);
            let before = self.segment.literals.len();
            let mut done = 0;
            for copy in &copies {
                self.segment.literals.extend_from_slice(&piece[done..copy.at]);
                done = copy.end();
            }
            self.segment.literals.extend_from_slice(&piece[done..]);
            let literals = (self.segment.literals.len() - before) as u64;
            self.summary.literal_bytes += literals;
            self.summary.copied_bytes += len as u64 - literals;
            self.summary.copies += copies.len() as u64;
            context.advance(len, &copies);
            if self.segment.is_full() {
                self.end_segment()?;
            }
        }
        self.summary.targets += 1;
        self.summary.target_bytes += size;
        self.hasher.update(&size.to_le_bytes());
        self.hasher.update(hasher.finalize().as_bytes());
        if self.segment.is_full() { self.end_segment() } else { Ok(()) }
    }

    /// Ends the delta. Returns its sizes, and the writer.
    pub fn finish(mut self) -> Result<(Encoded, W), DeltaError> {
        if self.segment.items > 0 {
            self.end_segment()?;
        }
        let hash = self.hasher.finalize();
        self.write(&[0])?;
        self.write(hash.as_bytes())?;
        self.out.flush().map_err(DeltaError::Write)?;
        Ok((self.summary, self.out))
    }

    fn end_segment(&mut self) -> Result<(), DeltaError> {
        let segment = std::mem::take(&mut self.segment);
        let columns = segment.columns.encode().map_err(DeltaError::Write)?;
        let mut head = Vec::new();
        varint::put(&mut head, segment.items);
        varint::put(&mut head, columns.len() as u64);
        self.summary.operation_bytes += (head.len() + columns.len()) as u64;
        self.write(&head)?;
        self.write(&columns)?;
        if segment.literals.is_empty() {
            return Ok(());
        }
        let prefix = segment.ranges.read(self.bases)?;
        let level = match self.options.level {
            Level::Normal => 9,
            Level::Slow => 19,
        };
        let frame = compress(&segment.literals, &prefix, level).map_err(DeltaError::Write)?;
        for chunk in frame.chunks(CHUNK_BYTES) {
            let mut len = Vec::new();
            varint::put(&mut len, chunk.len() as u64);
            self.write(&len)?;
            self.write(chunk)?;
        }
        self.write(&[0])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DeltaError> {
        self.summary.stream_bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(DeltaError::Write)
    }
}

impl Segment {
    fn is_full(&self) -> bool {
        self.literals.len() >= SEGMENT_LITERAL_BYTES
            || self.ops >= SEGMENT_OPS
            || self.items >= SEGMENT_ITEMS
            || self.members >= SEGMENT_MEMBERS
            || self.ranges.bytes() >= SEGMENT_PREFIX_BYTES as u64
            || self.columns.bytes() >= PIECE_BYTES_MAX / 2
    }
}

fn compress(literals: &[u8], prefix: &[u8], level: i32) -> std::io::Result<Vec<u8>> {
    let mut encoder = zstd::stream::write::Encoder::with_ref_prefix(Vec::new(), level, prefix)?;
    let reach = (literals.len() + prefix.len()).next_power_of_two().ilog2();
    encoder.window_log(reach.clamp(17, WINDOW_LOG_MAX))?;
    // Otherwise zstd finds no matches beyond the tables of this level.
    encoder.long_distance_matching(reach > 22)?;
    encoder.set_pledged_src_size(Some(literals.len() as u64))?;
    encoder.include_contentsize(false)?;
    encoder.write_all(literals)?;
    encoder.finish()
}
