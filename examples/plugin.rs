//! Deduplication and `similar` under another filesystem: a flat directory kept in memory, whose files'
//! bytes are dedupfs contents. The xattr `user.similar` of a file lists similar files. Removed files are forgotten, `fsync` makes
//! contents durable, and a collection gives back the space of contents without files.
//!
//! `cargo run --example plugin` mounts it on a directory of its own, uses it, and checks the results.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example stops at the first error, and prints"
)]

use dedupfs::chunk::ChunkParams;
use dedupfs::id::RecipeId;
use dedupfs::overlay::{Contents, SimilarOptions};
use fuser::*;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

const TTL: Duration = Duration::from_secs(1);

/// A file has bytes while it is written, and a content when it is closed.
enum File {
    Open(Vec<u8>),
    Closed(RecipeId),
    Removed,
}

/// Inode `i + 2` is the i-th file ever made.
type Files = Mutex<Vec<(String, File)>>;

struct Flat {
    contents: Arc<Contents>,
    files: Arc<Files>,
}

/// The contents that files have.
fn needed(files: &Files) -> Vec<RecipeId> {
    let files = files.lock().unwrap();
    files.iter().filter_map(|(_, file)| if let File::Closed(id) = file { Some(*id) } else { None }).collect()
}

impl Flat {
    fn find(&self, name: &OsStr) -> Option<u64> {
        let files = self.files.lock().unwrap();
        let is_named =
            |(other, file): &(String, File)| name == OsStr::new(other) && !matches!(file, File::Removed);
        files.iter().position(is_named).map(|i| i as u64 + 2)
    }

    fn attr(&self, ino: u64) -> Option<FileAttr> {
        let size = match ino {
            1 => 0,
            _ => match &self.files.lock().unwrap().get(ino as usize - 2)?.1 {
                File::Open(bytes) => bytes.len() as u64,
                File::Closed(id) => self.contents.size(id).ok()?,
                File::Removed => return None,
            },
        };
        let (kind, perm) =
            if ino == 1 { (FileType::Directory, 0o755) } else { (FileType::RegularFile, 0o644) };
        let time = UNIX_EPOCH;
        Some(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Flat {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(name).and_then(|ino| self.attr(ino)) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        for (i, (name, file)) in self.files.lock().unwrap().iter().enumerate().skip(offset as usize) {
            if matches!(file, File::Removed) {
                continue;
            }
            if reply.add(INodeNo(i as u64 + 2), i as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn create(&self, _: &Request, _: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let mut files = self.files.lock().unwrap();
        files.push((name.to_string_lossy().into_owned(), File::Open(Vec::new())));
        let ino = files.len() as u64 + 1;
        drop(files);
        let attr = self.attr(ino).expect("it was made just now");
        reply.created(&TTL, &attr, Generation(0), FileHandle(1), FopenFlags::FOPEN_DIRECT_IO);
    }

    #[rustfmt::skip]
    fn write(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, data: &[u8], _: WriteFlags, _: OpenFlags, _: Option<LockOwner>, reply: ReplyWrite) {
        match &mut self.files.lock().unwrap()[ino.0 as usize - 2].1 {
            File::Open(bytes) if bytes.len() as u64 == offset => bytes.extend_from_slice(data),
            _ => return reply.error(Errno::EPERM),
        }
        reply.written(data.len() as u32);
    }

    #[rustfmt::skip]
    fn release(&self, _: &Request, ino: INodeNo, _: FileHandle, _: OpenFlags, _: Option<LockOwner>, _: bool, reply: ReplyEmpty) {
        let file = &mut self.files.lock().unwrap()[ino.0 as usize - 2].1;
        if let File::Open(bytes) = file {
            match self.contents.put(&bytes[..]) {
                Ok(id) => *file = File::Closed(id),
                Err(_) => return reply.error(Errno::EIO),
            }
        }
        reply.ok();
    }

    #[rustfmt::skip]
    fn read(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, size: u32, _: OpenFlags, _: Option<LockOwner>, reply: ReplyData) {
        let mut buffer = vec![0; size as usize];
        match &self.files.lock().unwrap()[ino.0 as usize - 2].1 {
            File::Closed(id) => match self.contents.read_at(id, offset, &mut buffer) {
                Ok(len) => reply.data(&buffer[..len]),
                Err(_) => reply.error(Errno::EIO),
            },
            File::Open(_) => reply.error(Errno::EBUSY),
            File::Removed => reply.error(Errno::ENOENT),
        }
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(ino) = self.find(name) else { return reply.error(Errno::ENOENT) };
        let mut files = self.files.lock().unwrap();
        let removed = std::mem::replace(&mut files[ino as usize - 2].1, File::Removed);
        if let File::Closed(id) = removed
            && !files.iter().any(|(_, file)| matches!(file, File::Closed(other) if *other == id))
            && self.contents.forget(&id).is_err()
        {
            return reply.error(Errno::EIO);
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.contents.sync() {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let files = self.files.lock().unwrap();
        let Some((_, File::Closed(id))) = files.get((ino.0 as usize).wrapping_sub(2)) else {
            return reply.error(Errno::ENODATA);
        };
        if name != "user.similar" {
            return reply.error(Errno::ENODATA);
        }
        let Ok(similar) = self.contents.similar(id, &SimilarOptions::default()) else {
            return reply.error(Errno::EIO);
        };
        let mut names = BTreeMap::new();
        for (other, shares) in similar {
            let same = files.iter().filter(|(_, file)| matches!(file, File::Closed(id) if *id == other));
            names.extend(same.map(|(name, _)| (name.clone(), shares.containment)));
        }
        let text =
            names.iter().map(|(name, share)| format!("{name} {:.0}%\n", 100.0 * share)).collect::<String>();
        if size == 0 { reply.size(text.len() as u32) } else { reply.data(text.as_bytes()) }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (store, mnt) = (dir.path().join("store"), dir.path().join("mnt"));
    std::fs::create_dir(&mnt)?;
    let chunks = ChunkParams::with_average(4096)?;
    let contents = Arc::new(Contents::builder().chunks(chunks).memory(64 << 20).open(&store)?);
    let files = Arc::new(Files::default());
    let flat = Flat { contents: contents.clone(), files: files.clone() };
    let session = spawn_mount(flat, &mnt, &Config::default())?;

    let original: String =
        (0..20_000u32).map(|i| format!("{} ", i.wrapping_mul(2_654_435_761) % 99_991)).collect();
    let edited = original.replacen("1 ", "one ", 20).replacen("2 ", "two ", 1);
    for (name, text) in
        [("original", &original), ("edited", &edited), ("half", &original[..50_000].to_owned())]
    {
        std::fs::write(mnt.join(name), text)?;
        assert_eq!(&std::fs::read_to_string(mnt.join(name))?, text);
    }
    std::fs::write(mnt.join("other"), (0..20_000u32).map(|i| (i * 7919).to_string()).collect::<String>())?;
    let mut value = [0; 1000];
    let len = rustix::fs::getxattr(mnt.join("original"), "user.similar", &mut value[..])?;
    let similar = std::str::from_utf8(&value[..len])?;
    println!("`original` resembles:\n{similar}");
    let names: Vec<_> = similar.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["edited", "half"]);

    // A removed file resembles nothing, and a collection gives back its space. `half` shares its chunks with `original`.
    std::fs::File::open(mnt.join("original"))?.sync_all()?;
    std::fs::remove_file(mnt.join("edited"))?;
    std::fs::remove_file(mnt.join("other"))?;
    let len = rustix::fs::getxattr(mnt.join("original"), "user.similar", &mut value[..])?;
    assert_eq!(std::str::from_utf8(&value[..len])?.split(' ').next(), Some("half"));
    let done = contents.gc(|| Ok(needed(&files)))?;
    println!("collected: {done:?}");
    assert_eq!(&std::fs::read_to_string(mnt.join("original"))?, &original);
    session.umount_and_join()?;
    Ok(())
}
