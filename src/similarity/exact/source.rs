//! Sources of bytes, and their common ends.

use std::io;

/// Shorter matches say nothing.
pub const MATCH_BYTES_MIN: usize = 32;

pub(super) const STEP_BYTES: u64 = 128 << 10;

/// Bytes that can be read at any offset.
pub trait Source {
    /// Returns their number.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first offset, from `offset` on, at which a byte may not be zero; the end if there is none. Bytes before it
    /// need not be read.
    fn data_from(&self, offset: u64) -> u64 {
        offset
    }

    /// Fills some of `buf`, as [`std::os::unix::fs::FileExt::read_at`] does; 0 means the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

impl Source for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Returns the length of the common start of two slices.
pub(super) fn common_start(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut at = 0;
    // Slices are compared as by memcmp.
    while at + 256 <= len && a[at..at + 256] == b[at..at + 256] {
        at += 256;
    }
    while let (Some(x), Some(y)) = (a[at..].first_chunk(), b[at..].first_chunk()) {
        let differs = u128::from_le_bytes(*x) ^ u128::from_le_bytes(*y);
        if differs != 0 {
            return at + differs.trailing_zeros() as usize / 8;
        }
        at += 16;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

pub(super) fn common_end(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[a.len() - len..], &b[b.len() - len..]);
    let mut left = len;
    while let (Some(x), Some(y)) = (a[..left].last_chunk(), b[..left].last_chunk()) {
        let differs = u128::from_le_bytes(*x) ^ u128::from_le_bytes(*y);
        if differs != 0 {
            return len - left + differs.leading_zeros() as usize / 8;
        }
        left -= 16;
    }
    let rest = a[..left].iter().rev().zip(b[..left].iter().rev());
    len - left + rest.take_while(|(a, b)| a == b).count()
}

pub(super) fn read_exact_at(source: &dyn Source, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        match source.read_at(offset, buf) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                offset += n as u64;
                buf = &mut buf[n..];
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(super) fn common_prefix(a: &dyn Source, b: &dyn Source) -> io::Result<u64> {
    let end = a.len().min(b.len());
    let step = end.min(STEP_BYTES);
    let (mut a_buf, mut b_buf) = (vec![0; step as usize], vec![0; step as usize]);
    let mut at = 0;
    while at < end {
        let len = step.min(end - at) as usize;
        read_exact_at(a, at, &mut a_buf[..len])?;
        read_exact_at(b, at, &mut b_buf[..len])?;
        let same = common_start(&a_buf[..len], &b_buf[..len]);
        at += same as u64;
        if same < len {
            break;
        }
    }
    Ok(at)
}

/// Returns the length of the common suffix of the bytes after the prefix.
pub(super) fn common_suffix(a: &dyn Source, b: &dyn Source, prefix: u64) -> io::Result<u64> {
    let end = a.len().min(b.len()) - prefix;
    let step = end.min(STEP_BYTES);
    let (mut a_buf, mut b_buf) = (vec![0; step as usize], vec![0; step as usize]);
    let mut length = 0;
    while length < end {
        let len = step.min(end - length) as usize;
        read_exact_at(a, a.len() - length - len as u64, &mut a_buf[..len])?;
        read_exact_at(b, b.len() - length - len as u64, &mut b_buf[..len])?;
        let same = common_end(&a_buf[..len], &b_buf[..len]);
        length += same as u64;
        if same < len {
            break;
        }
    }
    Ok(length)
}
