//! Encoding of history values: numbers as LEB128, byte strings by their length. One value has one encoding.

use crate::backing::stub::Time;
use crate::overlay::{Meta, Xattr};
use crate::recipe::{put_varint, take_varint};

/// Limit of one file's xattrs, whatever a document claims.
const XATTRS_MAX: u64 = 4096;

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_time(out: &mut Vec<u8>, time: Time) {
    // Zigzag: small numbers also before 1970.
    put_varint(out, (time.sec << 1 ^ time.sec >> 63) as u64);
    put_varint(out, time.nsec.into());
}

pub(super) fn put_meta(out: &mut Vec<u8>, meta: &Meta) {
    for number in [meta.mode, meta.uid, meta.gid] {
        put_varint(out, number.into());
    }
    put_time(out, meta.mtime);
    match &meta.xattrs {
        None => put_varint(out, 0),
        Some(xattrs) => {
            put_varint(out, xattrs.len() as u64 + 1);
            for (name, value) in xattrs {
                put_bytes(out, name);
                put_bytes(out, value);
            }
        }
    }
}

/// Reads the output of the functions above. Each method returns `None` for anything else.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn number(&mut self) -> Option<u64> {
        take_varint(&mut self.0)
    }

    pub(super) fn number32(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    pub(super) fn time(&mut self) -> Option<Time> {
        let zigzag = self.number()?;
        let sec = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let nsec = self.number32().filter(|nsec| *nsec < 1_000_000_000)?;
        Some(Time { sec, nsec })
    }

    pub(super) fn meta(&mut self) -> Option<Meta> {
        let mode = self.number32().filter(|mode| *mode <= 0o7777)?;
        let (uid, gid) = (self.number32()?, self.number32()?);
        let mtime = self.time()?;
        let count = self.number().filter(|count| *count <= XATTRS_MAX)?;
        let xattrs = match count {
            0 => None,
            _ => Some((1..count).map(|_| self.xattr()).collect::<Option<Vec<_>>>()?),
        };
        Some(Meta { mode, uid, gid, mtime, xattrs })
    }

    fn xattr(&mut self) -> Option<Xattr> {
        Some((self.bytes()?.to_vec(), self.bytes()?.to_vec()))
    }

    pub(super) fn ended(&self) -> bool {
        self.0.is_empty()
    }
}
