//! One deflate stream (RFC 1951).

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

const BUFFER_BYTES: usize = 32 << 10;

/// A level of zlib, 1 to 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(u8);

impl Level {
    /// The level that zlib uses for -1.
    pub const DEFAULT: Level = Level(6);

    /// Returns `None` if it is not a level.
    pub fn of(level: u8) -> Option<Level> {
        (1..=9).contains(&level).then_some(Level(level))
    }

    /// 1 to 9.
    pub fn number(self) -> u8 {
        self.0
    }
}

/// Appends the inflated bytes of `deflated`. Returns the length of the stream; `None` if it does not end, or
/// exceeds `room` bytes: then some bytes may have been appended.
pub fn inflate_into(deflated: &[u8], plain: &mut Vec<u8>, room: usize) -> Option<usize> {
    let mut stream = Decompress::new(false);
    let mut buffer = vec![0; BUFFER_BYTES];
    let start = plain.len();
    loop {
        let (read, written) = (stream.total_in(), stream.total_out());
        let status =
            stream.decompress(&deflated[read as usize..], &mut buffer, FlushDecompress::None).ok()?;
        let got = (stream.total_out() - written) as usize;
        if plain.len() - start + got > room {
            return None;
        }
        plain.extend_from_slice(&buffer[..got]);
        match status {
            Status::StreamEnd => return Some(stream.total_in() as usize),
            _ if got == 0 && stream.total_in() == read => return None,
            _ => {}
        }
    }
}

/// Deflates like zlib. Keeps about 270 KiB for each level that was used.
#[derive(Default)]
pub struct Deflater {
    streams: [Option<Compress>; 10],
    buffer: Vec<u8>,
}

impl Deflater {
    /// Deflates `plain`, and passes the bytes to `give` piece by piece; an error of `give` ends it.
    pub fn deflate<E>(
        &mut self,
        plain: &[u8],
        level: Level,
        give: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let stream = &mut self.streams[usize::from(level.0)];
        let stream = stream.get_or_insert_with(|| Compress::new(Compression::new(u32::from(level.0)), false));
        stream.reset();
        self.buffer.resize(BUFFER_BYTES, 0);
        loop {
            let (read, written) = (stream.total_in() as usize, stream.total_out());
            let status = stream.compress(&plain[read..], &mut self.buffer, FlushCompress::Finish);
            let status = status.expect("memory can be deflated");
            give(&self.buffer[..(stream.total_out() - written) as usize])?;
            if status == Status::StreamEnd {
                return Ok(());
            }
        }
    }

    /// Returns the level at which `plain` deflates to exactly `deflated`; tries `likely` first.
    pub fn level_of(&mut self, plain: &[u8], deflated: &[u8], likely: Level) -> Option<Level> {
        let others = (1..=9).rev().map(Level).filter(|level| *level != likely);
        std::iter::once(likely).chain(others).find(|level| self.deflates_to(plain, *level, deflated))
    }

    fn deflates_to(&mut self, plain: &[u8], level: Level, deflated: &[u8]) -> bool {
        let mut left = deflated;
        let same = self.deflate(plain, level, &mut |bytes| {
            left = left.strip_prefix(bytes).ok_or(())?;
            Ok::<_, ()>(())
        });
        same.is_ok() && left.is_empty()
    }
}
