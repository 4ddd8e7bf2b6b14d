//! Zip archives (docx, odt, jar, epub): their members in order of names, each through its own view, so that
//! compression, times and order in the file do not matter.
//!
//! An archive without its directory is read from the start, as far as its members state their lengths.

use super::gzip::Damaged;
use super::stream::{BUFFER_BYTES, Inner, Input, Metered, Sink};
use std::cell::Cell;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::rc::Rc;
use zip::ZipArchive;
use zip::read::read_zipfile_from_stream;

/// Byte limit for directories of archives: they take about ten times as much memory.
pub const DIRECTORY_BYTES_MAX: u64 = 4 << 20;

pub(super) fn write(input: &mut dyn Input, sink: &mut Sink<'_>, inner: Inner<'_>) {
    let left = Rc::new(Cell::new(DIRECTORY_BYTES_MAX));
    let counted = Counted { inner: BufReader::with_capacity(BUFFER_BYTES, &mut *input), left: left.clone() };
    match ZipArchive::new(counted) {
        Ok(mut archive) => {
            // The decoded size bounds members.
            left.set(u64::MAX);
            write_members(&mut archive, sink, inner);
        }
        Err(_) => {
            sink.is_partial();
            if input.rewind().is_ok() {
                write_stream(&mut BufReader::with_capacity(BUFFER_BYTES, input), sink, inner);
            }
        }
    }
}

fn write_members<R: Read + Seek>(archive: &mut ZipArchive<R>, sink: &mut Sink<'_>, inner: Inner<'_>) {
    let name = |i| archive.name_for_index(i)?.ok().map(|name| (name.into_owned(), i));
    let mut members: Vec<_> = (0..archive.len()).filter_map(name).collect();
    members.retain(|(name, _)| !name.ends_with('/'));
    members.sort();
    for (_, i) in members {
        match archive.by_index(i) {
            Ok(mut member) => write_member(&mut member, sink, inner),
            // Encrypted, compressed with an unknown method, or not at the stated place.
            Err(_) => sink.is_partial(),
        }
        if sink.is_done() {
            return;
        }
    }
}

fn write_stream(input: &mut dyn Read, sink: &mut Sink<'_>, inner: Inner<'_>) {
    let mut input = input;
    while let Ok(Some(mut member)) = read_zipfile_from_stream(&mut input) {
        if !member.is_dir() {
            write_member(&mut member, sink, inner);
        }
        if sink.is_done() {
            return;
        }
    }
}

fn write_member(member: &mut dyn Read, sink: &mut Sink<'_>, inner: Inner<'_>) {
    let decoded = Metered::new(Damaged::new(member), sink);
    let mut decoded = BufReader::with_capacity(BUFFER_BYTES, decoded);
    inner(&mut decoded, sink);
    let metered = decoded.into_inner();
    if metered.ended() || metered.inner.seen {
        sink.is_partial();
    }
}

/// Byte limit for reading the directory: the file claims the number of members.
struct Counted<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(len as u64);
        self.left.set(left.ok_or_else(|| io::Error::other("the directory of the archive is too long"))?);
        Ok(len)
    }
}

impl<R: Seek> Seek for Counted<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}
