//! Positions where deflate streams begin.

use object::{CompressionFormat, Object, ObjectSection};

const ZIP: &[u8] = b"PK\x03\x04";
const ELF: &[u8] = b"\x7fELF";
const PDF: &[u8] = b"%PDF-";
/// The keyword and line end before a PDF stream.
const PDF_STREAM: &[u8] = b"stream";
const GZIP: &[u8] = &[0x1f, 0x8b, 8];
/// Length of a zip archive's local file header, without the name.
pub const ZIP_HEADER_BYTES: usize = 30;
/// Length of a gzip header, without its optional fields (RFC 1952).
const GZIP_HEADER_BYTES: usize = 10;
/// Length of checksum and size after a gzip stream.
const GZIP_TRAILER_BYTES: usize = 8;

/// Whether these first bytes could begin a zip archive.
pub fn looks_like_zip(head: &[u8]) -> bool {
    head.starts_with(ZIP)
}

/// Whether these first bytes could begin a file with deflate streams.
pub fn looks_like(head: &[u8]) -> bool {
    Form::of(head).is_some()
}

/// Format of the file.
enum Form {
    Zip,
    Gzip,
    Pdf,
    /// The remaining starts of its compressed sections, in order.
    Elf(std::vec::IntoIter<usize>),
}

impl Form {
    /// Detects the format by the first bytes; for ELF, which needs the whole file, without sections.
    fn of(head: &[u8]) -> Option<Form> {
        match head {
            _ if looks_like_zip(head) => Some(Form::Zip),
            _ if head.starts_with(GZIP) => Some(Form::Gzip),
            _ if head.starts_with(PDF) => Some(Form::Pdf),
            _ if head.starts_with(ELF) => Some(Form::Elf(Vec::new().into_iter())),
            _ => None,
        }
    }
}

/// Positions in a file where a deflate stream may begin. In a zip archive: behind each local file header with
/// method 8 (the directory is not used, so that positions are well defined for any bytes). In a PDF: behind
/// each `stream` with a zlib header. In an ELF file (library, program, debug symbols): in each section that
/// zlib compressed.
pub struct Starts<'a> {
    file: &'a [u8],
    at: usize,
    form: Form,
}

impl<'a> Starts<'a> {
    /// Uses the format that the first bytes suggest, or else zip.
    pub fn new(file: &'a [u8]) -> Starts<'a> {
        let form = match Form::of(file) {
            Some(Form::Elf(_)) => Form::Elf(sections(file).into_iter()),
            form => form.unwrap_or(Form::Zip),
        };
        Starts { file, at: 0, form }
    }

    /// Treats the file as a zip archive.
    pub fn zip(file: &'a [u8]) -> Starts<'a> {
        Starts { file, at: 0, form: Form::Zip }
    }

    /// Continues behind a stream that ended here.
    pub fn go_on_at(&mut self, end: usize) {
        self.at = if let Form::Gzip = self.form { end.saturating_add(GZIP_TRAILER_BYTES) } else { end };
    }

    fn next_gzip(&mut self) -> Option<usize> {
        let header = self.file.get(self.at..).filter(|rest| rest.starts_with(GZIP))?;
        let start = self.at + gzip_data_start(header)?;
        self.at = self.file.len();
        Some(start)
    }

    fn next_zip(&mut self) -> Option<usize> {
        while let Some(found) = memchr::memmem::find(self.file.get(self.at..)?, ZIP) {
            let header = self.at + found;
            self.at = header + ZIP.len();
            if let Some(data) = zip_data_start(&self.file[header..]) {
                return Some(header + data);
            }
        }
        None
    }

    fn next_pdf(&mut self) -> Option<usize> {
        while let Some(found) = memchr::memmem::find(self.file.get(self.at..)?, PDF_STREAM) {
            self.at += found + PDF_STREAM.len();
            let rest = &self.file[self.at..];
            let line = [&b"\r\n"[..], b"\n"].into_iter().find(|end| rest.starts_with(end));
            if let Some(data) =
                line.and_then(|end| zlib_data_start(&rest[end.len()..]).map(|data| end.len() + data))
            {
                return Some(self.at + data);
            }
        }
        None
    }
}

impl Iterator for Starts<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match &mut self.form {
            Form::Zip => self.next_zip(),
            Form::Gzip => self.next_gzip(),
            Form::Pdf => self.next_pdf(),
            Form::Elf(sections) => sections.find(|start| *start >= self.at),
        }
    }
}

/// Returns the data starts of sections that zlib compressed, in order; none if it is not an ELF file.
fn sections(file: &[u8]) -> Vec<usize> {
    let Ok(elf) = object::File::parse(file) else { return Vec::new() };
    let ranges = elf.sections().filter_map(|section| section.compressed_file_range().ok());
    let zlib = ranges.filter(|range| range.format == CompressionFormat::Zlib);
    let mut found: Vec<usize> = zlib
        .filter_map(|range| {
            let start = usize::try_from(range.offset).ok()?;
            Some(start + zlib_data_start(file.get(start..)?)?)
        })
        .collect();
    found.sort_unstable();
    found
}

/// Returns the data start behind a zlib header (RFC 1950) without a dictionary.
fn zlib_data_start(bytes: &[u8]) -> Option<usize> {
    let [cmf, flg, _, ..] = bytes else { return None };
    let is_header = cmf & 15 == 8 && cmf >> 4 <= 7 && flg & 32 == 0;
    (is_header && u16::from_be_bytes([*cmf, *flg]) % 31 == 0).then_some(2)
}

fn number(header: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes([*header.get(at)?, *header.get(at + 1)?])))
}

/// Returns the data start behind the local file header of a deflated, unencrypted member.
fn zip_data_start(header: &[u8]) -> Option<usize> {
    let (flags, method) = (number(header, 6)?, number(header, 8)?);
    let start = ZIP_HEADER_BYTES + number(header, 26)? + number(header, 28)?;
    (method == 8 && flags & 1 == 0 && start < header.len()).then_some(start)
}

/// Returns the data start behind a gzip header.
fn gzip_data_start(header: &[u8]) -> Option<usize> {
    let flags = *header.get(3)?;
    let mut at = GZIP_HEADER_BYTES;
    if flags & 4 != 0 {
        at += 2 + number(header, at)?;
    }
    // A name, a comment.
    for flag in [8, 16] {
        if flags & flag != 0 {
            at += memchr::memchr(0, header.get(at..)?)? + 1;
        }
    }
    if flags & 2 != 0 {
        at += 2;
    }
    (at < header.len()).then_some(at)
}
