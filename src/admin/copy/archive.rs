//! A tree as a tar archive in the pax interchange format (POSIX.1-2001), written to a stream.
//!
//! In addition to a ustar header, pax records keep names that are long or not ASCII, times to the nanosecond,
//! lengths of 8 GiB and more, xattrs (`SCHILY.xattr.NAME`), ACLs as text (`SCHILY.acl.access`,
//! `SCHILY.acl.default`; users and groups by number) and holes (`GNU.sparse`, version 1.0), in the form that
//! GNU tar, bsdtar and Python read. Files with several names are links to the first. Archives cannot contain
//! sockets.
//!
//! A header states the length of the content, so a file is begun only after its content was read once: short
//! contents stay in memory meanwhile, long ones are read twice. If a read still fails, the archive ends
//! there, without the end mark.

use super::{Content, Item, Result, Sink, Step};
use crate::backing::types::Kind;
use rustix::io::Errno;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// Archives end at a multiple of this.
const RECORD: u64 = 20 * BLOCK as u64;
/// Contents up to this size stay in memory while they are read.
const SHORT_BYTES: u64 = 8 << 20;
/// A file in more pieces is written with its holes as zeros.
const PIECES_MAX: usize = 64 << 10;
/// Maximum of an octal field in a header.
const OCTAL_MAX: u64 = 0o77_777_777_777;
const NAME_BYTES_MAX: usize = 100;

/// Gets a piece of content with its offset.
type Take<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Writes an archive.
pub struct TarSink<W: Write> {
    out: W,
    written: u64,
    /// The error that ended the archive.
    broken: Option<io::Error>,
    /// Skipped sockets.
    pub sockets: u64,
}

impl<W: Write> TarSink<W> {
    /// Creates a sink that writes to `out`.
    pub fn new(out: W) -> TarSink<W> {
        TarSink { out, written: 0, broken: None, sockets: 0 }
    }

    /// Ends the archive. Returns the error that ended it earlier.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(e) = self.broken.take() {
            return Err(e);
        }
        let end = (self.written + 2 * BLOCK as u64).next_multiple_of(RECORD);
        io::copy(&mut io::Read::take(io::repeat(0), end - self.written), &mut self.out)?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Writes, or ends the work with an error.
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match self.out.write_all(bytes) {
            Ok(()) => {
                self.written += bytes.len() as u64;
                Ok(())
            }
            Err(e) => self.give_up(e),
        }
    }

    fn give_up<T>(&mut self, error: io::Error) -> Result<T> {
        self.broken.get_or_insert(error);
        Err(Errno::CANCELED.into())
    }

    fn pad(&mut self) -> Result<()> {
        let over = (self.written % BLOCK as u64) as usize;
        if over == 0 { Ok(()) } else { self.put(&[0; BLOCK][over..]) }
    }

    /// Writes the headers of an entry. `len` bytes follow; `holes` is the length of a sparse file.
    fn head(
        &mut self,
        item: &Item<'_>,
        kind: EntryType,
        len: u64,
        link: Option<&[u8]>,
        holes: Option<u64>,
    ) -> Result<()> {
        let name = name_of(item.path, kind == EntryType::Directory);
        let mut records = Records::default();
        let mut header = header_of(item, kind, len);
        let short =
            records.name(if holes.is_some() { "GNU.sparse.name" } else { "path" }, &name, holes.is_some());
        set_bytes(&mut header.as_mut_bytes()[..NAME_BYTES_MAX], short);
        if let Some(link) = link {
            let short = records.name("linkpath", link, false);
            set_bytes(&mut header.as_mut_bytes()[157..157 + NAME_BYTES_MAX], short);
        }
        if let Some(size) = holes {
            records.add("GNU.sparse.major", b"1");
            records.add("GNU.sparse.minor", b"0");
            records.add("GNU.sparse.realsize", size.to_string().as_bytes());
        }
        if len > OCTAL_MAX {
            records.add("size", len.to_string().as_bytes());
        }
        let (sec, nsec) = (item.stat.st_mtime, item.stat.st_mtime_nsec as u32);
        if nsec != 0 || sec < 0 || sec as u64 > OCTAL_MAX {
            records.add("mtime", time_text(sec, nsec).as_bytes());
        }
        if kind != EntryType::Link {
            for (name, value) in item.xattrs {
                let acl = match name.as_bytes() {
                    b"system.posix_acl_access" => Some("SCHILY.acl.access"),
                    b"system.posix_acl_default" => Some("SCHILY.acl.default"),
                    _ => None,
                };
                match acl.and_then(|key| Some((key, acl_text(value)?))) {
                    Some((key, text)) => records.add(key, text.as_bytes()),
                    None => records.add_bytes(&[b"SCHILY.xattr.", name.as_bytes()].concat(), value),
                }
            }
        }
        if !records.0.is_empty() {
            let mut extra = Header::new_ustar();
            extra.set_entry_type(EntryType::XHeader);
            set_bytes(&mut extra.as_mut_bytes()[..NAME_BYTES_MAX], b"./PaxHeaders/x");
            extra.set_mode(0o600);
            extra.set_size(records.0.len() as u64);
            extra.set_uid(0);
            extra.set_gid(0);
            extra.set_mtime(0);
            extra.set_cksum();
            self.put(extra.as_bytes())?;
            self.put(&records.0)?;
            self.pad()?;
        }
        header.set_cksum();
        self.put(header.as_bytes())
    }

    /// Writes a file with data at `pieces`, from the output of `read`.
    fn body(
        &mut self,
        item: &Item<'_>,
        size: u64,
        pieces: &[(u64, u64)],
        read: &mut dyn FnMut(Take<'_>) -> Result<()>,
    ) -> Result<()> {
        let data: u64 = pieces.iter().map(|(_, len)| len).sum();
        let sparse = data < size && pieces.len() <= PIECES_MAX;
        if sparse {
            let mut map = format!("{}\n", pieces.len() + 1);
            for (at, len) in pieces.iter().chain([&(size, 0)]) {
                map.push_str(&format!("{at}\n{len}\n"));
            }
            let mut map = map.into_bytes();
            map.resize(map.len().next_multiple_of(BLOCK), 0);
            self.head(item, EntryType::Regular, map.len() as u64 + data, None, Some(size))?;
            self.put(&map)?;
        } else {
            self.head(item, EntryType::Regular, size, None, None)?;
        }
        let end = self.written + if sparse { data } else { size };
        let begin = end - if sparse { data } else { size };
        let done = read(&mut |at, bytes| {
            if !sparse {
                let zeros = (begin + at).saturating_sub(self.written);
                self.zeros(zeros)?;
            }
            if self.written + bytes.len() as u64 > end {
                return self.give_up(io::Error::other(format!("{}: it grew meanwhile", item.path.display())));
            }
            self.put(bytes)
        });
        if let Err(e) = done {
            return self.give_up(io::Error::other(format!("{}: {e}", item.path.display())));
        }
        if !sparse {
            self.zeros(end - self.written)?;
        }
        if self.written != end {
            return self.give_up(io::Error::other(format!("{}: it changed meanwhile", item.path.display())));
        }
        self.pad()
    }

    fn zeros(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            let len = count.min(64 << 10);
            self.put(&vec![0; len as usize])?;
            count -= len;
        }
        Ok(())
    }
}

impl<W: Write> Sink for TarSink<W> {
    fn enter(&mut self, item: &Item<'_>) -> Result<()> {
        self.head(item, EntryType::Directory, 0, None, None)
    }

    fn leave(&mut self, _: &Item<'_>) -> Result<()> {
        Ok(())
    }

    fn file(&mut self, item: &Item<'_>, content: &Content<'_>, step: Step<'_>) -> Result<()> {
        let size = content.size();
        let (mut pieces, mut kept) = (Vec::<(u64, u64)>::new(), Vec::new());
        // Everything is read before anything is written.
        content.read(&mut |at, bytes| {
            let many = pieces.len() > PIECES_MAX;
            match pieces.last_mut() {
                Some((from, len)) if *from + *len == at => *len += bytes.len() as u64,
                // More pieces than can be written as such.
                Some(_) if many => {}
                _ => pieces.push((at, bytes.len() as u64)),
            }
            if size <= SHORT_BYTES {
                kept.push((at, bytes.to_vec()));
            }
            if step(bytes.len() as u64) { Ok(()) } else { Err(Errno::CANCELED.into()) }
        })?;
        match size <= SHORT_BYTES {
            true => self.body(item, size, &pieces, &mut |take| {
                kept.iter().try_for_each(|(at, bytes)| take(*at, bytes))
            }),
            false => self.body(item, size, &pieces, &mut |take| content.read(take)),
        }
    }

    fn link(&mut self, item: &Item<'_>, first: &Path) -> Result<()> {
        self.head(item, EntryType::Link, 0, Some(&name_of(first, false)), None)
    }

    fn special(&mut self, item: &Item<'_>) -> Result<()> {
        let kind = match item.kind {
            Kind::Symlink => EntryType::Symlink,
            Kind::Fifo => EntryType::Fifo,
            Kind::CharDevice => EntryType::Char,
            Kind::BlockDevice => EntryType::Block,
            Kind::File | Kind::Directory | Kind::Socket => {
                self.sockets += 1;
                return Ok(());
            }
        };
        self.head(item, kind, 0, item.target.map(|target| target.as_os_str().as_bytes()), None)
    }
}

/// Returns a name in the form of `tar -C TOP .`.
fn name_of(path: &Path, is_dir: bool) -> Vec<u8> {
    let mut name = [b"./", path.as_os_str().as_bytes()].concat();
    if is_dir && !name.ends_with(b"/") {
        name.push(b'/');
    }
    name
}

fn header_of(item: &Item<'_>, kind: EntryType, len: u64) -> Header {
    let stat = item.stat;
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(len);
    if matches!(kind, EntryType::Char | EntryType::Block) {
        // Numbers beyond these fields exceed the kernel's limits too.
        let _ = header.set_device_major(rustix::fs::major(stat.st_rdev));
        let _ = header.set_device_minor(rustix::fs::minor(stat.st_rdev));
    }
    header
}

fn set_bytes(field: &mut [u8], bytes: &[u8]) {
    field.fill(0);
    let len = bytes.len().min(field.len());
    field[..len].copy_from_slice(&bytes[..len]);
}

/// Extended records: `LENGTH KEY=VALUE\n`, with the decimal length of the whole record.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    fn add(&mut self, key: &str, value: &[u8]) {
        self.add_bytes(key.as_bytes(), value);
    }

    fn add_bytes(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len = rest + len.to_string().len();
        }
        self.0.extend_from_slice(format!("{len} ").as_bytes());
        self.0.extend_from_slice(key);
        self.0.push(b'=');
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }

    /// Returns the header's form of a name. A name that does not fit, or is not ASCII, goes into a record. A
    /// non-text name is in the header unchanged if it fits.
    fn name<'a>(&mut self, key: &str, name: &'a [u8], always: bool) -> &'a [u8] {
        let text = std::str::from_utf8(name).is_ok();
        if always || name.len() > NAME_BYTES_MAX || (text && !name.is_ascii()) {
            self.add(key, name);
        }
        name
    }
}

/// Formats seconds with nine decimals; before 1970 the fraction counts downwards.
fn time_text(sec: i64, nsec: u32) -> String {
    match (sec < 0 && nsec > 0, nsec) {
        (_, 0) => sec.to_string(),
        (true, _) => format!("-{}.{:09}", -(sec + 1), 1_000_000_000 - nsec),
        (false, _) => format!("{sec}.{nsec:09}"),
    }
}

/// Formats a POSIX ACL from the kernel's bytes; `None` if their form is unknown.
fn acl_text(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != 2 || entries.len() % 8 != 0 {
        return None;
    }
    let mut text = Vec::new();
    for entry in entries.chunks_exact(8) {
        let (tag, perm) =
            (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]]));
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let who = match tag {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        let right = |bit: u16, letter: char| if perm & bit != 0 { letter } else { '-' };
        text.push(format!("{who}:{}{}{}", right(4, 'r'), right(2, 'w'), right(1, 'x')));
    }
    Some(text.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_themselves() {
        for len in [0, 1, 88, 89, 90, 91, 92, 900, 990, 991, 992, 993, 9_990] {
            let mut records = Records::default();
            records.add("key", &vec![b'v'; len]);
            let text = records.0;
            let said = text.split(|&b| b == b' ').next().unwrap();
            assert_eq!(std::str::from_utf8(said).unwrap().parse::<usize>().unwrap(), text.len(), "{len}");
        }
    }

    #[test]
    fn times_before_1970_count_downwards() {
        assert_eq!(time_text(-1_000, 999_999_999), "-999.000000001");
        assert_eq!(time_text(-1, 1), "-0.999999999");
        assert_eq!(time_text(-5, 0), "-5");
        assert_eq!(time_text(5, 7), "5.000000007");
    }

    #[test]
    fn acls_are_text() {
        let mut acl = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in [(1u16, 6u16, u32::MAX), (2, 4, 4711), (4, 5, u32::MAX), (0x20, 0, u32::MAX)] {
            acl.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        assert_eq!(acl_text(&acl).unwrap(), "user::rw-,user:4711:r--,group::r-x,other::---");
        assert_eq!(acl_text(&acl[..acl.len() - 1]), None);
        assert_eq!(acl_text(b""), None);
    }
}
