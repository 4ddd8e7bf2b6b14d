//! A collection: the chunks of many files, saved. Analyses with other thresholds or templates read this and not the
//! files. Measured on documents it had 2% of their size at chunks of 1,000 bytes and 10% at 100.
//!
//! A header: magic, target of the chunks, number of files, CRC-32 of those. Then a record for each file: length and
//! CRC-32 of the rest of the record, length of the name, name, chunks as [`ChunkList::encode`] writes them. Numbers are 4 bytes,
//! little-endian.
//!
//! Invariants: files have the numbers in which they were added. Reading a collection that was not finished, was cut or was
//! changed is an error.

use super::error::io as failed;
use super::{ChunkList, GraphError};
use crate::similarity::scratch;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"dfschnk1";
const HEADER_BYTES: usize = 8 + 4 + 4 + 4;
const FRONT_BYTES: usize = 8;
const BUFFER_BYTES: usize = 256 << 10;

fn header(target: u32, files: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&target.to_le_bytes());
    bytes.extend_from_slice(&files.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("the caller has 4 bytes there"))
}

/// Saves a collection.
#[derive(Debug)]
pub struct CollectionWriter {
    path: PathBuf,
    target: u32,
    files: u32,
    out: BufWriter<File>,
}

impl CollectionWriter {
    /// Starts a collection of files cut at chunks of about `target` bytes. A file at `path` is replaced.
    pub fn create(path: &Path, target: u32) -> Result<CollectionWriter, GraphError> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(path);
        CollectionWriter::on(file.map_err(failed("create", path))?, path, target)
    }

    /// Starts a collection that is not saved: its file is in `dir` and has no name.
    pub fn nameless(dir: &Path, target: u32) -> Result<CollectionWriter, GraphError> {
        let file = scratch::nameless(dir).map_err(failed("create a file of work in", dir))?;
        CollectionWriter::on(file, dir, target)
    }

    fn on(file: File, path: &Path, target: u32) -> Result<CollectionWriter, GraphError> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        // Space for the header; the file is no collection before the header is written.
        out.write_all(&[0; HEADER_BYTES]).map_err(failed("write", path))?;
        Ok(CollectionWriter { path: path.to_owned(), target, files: 0, out })
    }

    /// Adds a file and returns its number.
    pub fn add(&mut self, name: &OsStr, list: &ChunkList) -> Result<u32, GraphError> {
        let number = self.files;
        self.files = number.checked_add(1).ok_or(GraphError::TooMany)?;
        let mut body = (name.len() as u32).to_le_bytes().to_vec();
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&list.encode());
        let len = u32::try_from(body.len()).map_err(|_| GraphError::TooMany)?;
        let mut write = || {
            self.out.write_all(&len.to_le_bytes())?;
            self.out.write_all(&crc32fast::hash(&body).to_le_bytes())?;
            self.out.write_all(&body)
        };
        write().map_err(failed("write", &self.path))?;
        Ok(number)
    }

    /// Completes the collection.
    pub fn finish(self) -> Result<Collection, GraphError> {
        let CollectionWriter { path, target, files, out } = self;
        let file = out.into_inner().map_err(|e| failed("write", &path)(e.into_error()))?;
        file.write_all_at(&header(target, files), 0).map_err(failed("write", &path))?;
        Collection::read(file, &path)
    }
}

/// Reads with a position of its own, so that several readers can run at the same time.
struct ReadAt<'a> {
    file: &'a File,
    at: u64,
}

impl Read for ReadAt<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// A saved collection.
#[derive(Debug)]
pub struct Collection {
    path: PathBuf,
    file: File,
    target: u32,
    files: u32,
    len: u64,
}

impl Collection {
    /// Opens a file that a [`CollectionWriter`] has finished.
    pub fn open(path: &Path) -> Result<Collection, GraphError> {
        Collection::read(File::open(path).map_err(failed("open", path))?, path)
    }

    fn read(file: File, path: &Path) -> Result<Collection, GraphError> {
        let len = file.metadata().map_err(failed("open", path))?.len();
        let mut bytes = [0; HEADER_BYTES];
        let damaged =
            GraphError::Damaged { path: path.to_owned(), expected: "the header of a finished collection" };
        match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Err(damaged),
            Err(e) => return Err(failed("read", path)(e)),
        }
        let (target, files) = (number(&bytes, 8), number(&bytes, 12));
        if bytes[..] != header(target, files)[..] {
            return Err(damaged);
        }
        Ok(Collection { path: path.to_owned(), file, target, files, len })
    }

    /// How many files it has.
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Returns the target length of chunks in bytes.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Its own size in bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Calls `visit` with each file's number, name and chunks, in order.
    pub fn each(
        &self,
        visit: &mut dyn FnMut(u32, &OsStr, ChunkList) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        let mut input = BufReader::with_capacity(BUFFER_BYTES, ReadAt { file: &self.file, at: 0 });
        let mut take = |bytes: &mut [u8]| match input.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(self.damaged("more files")),
            Err(e) => Err(failed("read", &self.path)(e)),
        };
        take(&mut [0; HEADER_BYTES])?;
        let mut left = self.len - HEADER_BYTES as u64;
        let mut body = Vec::new();
        for at in 0..self.files {
            let mut front = [0; FRONT_BYTES];
            take(&mut front)?;
            let len = number(&front, 0);
            left = left.saturating_sub(FRONT_BYTES as u64);
            // Checked before memory is allocated for it.
            left = left.checked_sub(len.into()).ok_or_else(|| self.damaged("more files"))?;
            body.resize(len as usize, 0);
            take(&mut body)?;
            if crc32fast::hash(&body) != number(&front, 4) || body.len() < 4 {
                return Err(self.damaged("a file's chunks as they were written"));
            }
            let (name, list) = (number(&body, 0) as usize, &body[4..]);
            let (name, list) =
                list.split_at_checked(name).ok_or_else(|| self.damaged("a name within its file's record"))?;
            let list = ChunkList::decode(list).map_err(|expected| self.damaged(expected))?;
            visit(at, OsStr::from_bytes(name), list)?;
        }
        if left > 0 {
            return Err(self.damaged("nothing after the last file"));
        }
        Ok(())
    }

    /// Returns the names of some files. One pass over all.
    pub fn names(&self, wanted: &mut dyn Iterator<Item = u32>) -> Result<HashMap<u32, OsString>, GraphError> {
        let mut names: HashMap<u32, OsString> = wanted.map(|file| (file, OsString::new())).collect();
        self.each(&mut |file, name, _| {
            if let Some(wanted) = names.get_mut(&file) {
                *wanted = name.to_owned();
            }
            Ok(())
        })?;
        Ok(names)
    }

    fn damaged(&self, expected: &'static str) -> GraphError {
        GraphError::Damaged { path: self.path.clone(), expected }
    }
}
