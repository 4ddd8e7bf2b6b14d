//! Where deflate streams begin.

const ZIP: &[u8] = b"PK\x03\x04";
const GZIP: &[u8] = &[0x1f, 0x8b, 8];
/// Of a zip archive's local file header, without the name.
pub const ZIP_HEADER_BYTES: usize = 30;
/// Of a gzip header, without what its flags say (RFC 1952).
const GZIP_HEADER_BYTES: usize = 10;
/// Checksum and length, behind a gzip stream.
const GZIP_TRAILER_BYTES: usize = 8;

/// Whether these first bytes of a file could begin a zip archive.
pub fn looks_like_zip(head: &[u8]) -> bool {
    head.starts_with(ZIP)
}

/// Whether these first bytes of a file could begin a zip archive or a gzip file.
pub fn looks_like(head: &[u8]) -> bool {
    looks_like_zip(head) || head.starts_with(GZIP)
}

/// Places in a file where a deflate stream may begin. In a zip archive that is behind each local file header whose method
/// is 8: its directory is not asked, so that any bytes have places that are well defined.
pub struct Starts<'a> {
    file: &'a [u8],
    at: usize,
    gzip: bool,
}

impl<'a> Starts<'a> {
    /// Of a gzip file if it begins like one, else as of a zip archive.
    pub fn new(file: &'a [u8]) -> Starts<'a> {
        Starts { file, at: 0, gzip: file.starts_with(GZIP) }
    }

    /// As of a zip archive, whatever it is.
    pub fn zip(file: &'a [u8]) -> Starts<'a> {
        Starts { file, at: 0, gzip: false }
    }

    /// Goes on behind a stream that ended here.
    pub fn go_on_at(&mut self, end: usize) {
        self.at = if self.gzip { end.saturating_add(GZIP_TRAILER_BYTES) } else { end };
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
}

impl Iterator for Starts<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.gzip { self.next_gzip() } else { self.next_zip() }
    }
}

fn number(header: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes([*header.get(at)?, *header.get(at + 1)?])))
}

/// Where the data begins behind a local file header of a deflated, unencrypted member.
fn zip_data_start(header: &[u8]) -> Option<usize> {
    let (flags, method) = (number(header, 6)?, number(header, 8)?);
    let start = ZIP_HEADER_BYTES + number(header, 26)? + number(header, 28)?;
    (method == 8 && flags & 1 == 0 && start < header.len()).then_some(start)
}

/// Where the data begins behind a gzip header.
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
