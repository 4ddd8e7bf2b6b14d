//! Staging of arriving contents in the directory [`STAGING`] in the root, so that a rename puts them in place. It is
//! never part of a tree.
//!
//! | name | content |
//! | --- | --- |
//! | 64 hex digits | a whole content, verified; durable before any step of the sync. After an interruption it is verified again |
//! | the same with `.part` | a part left by an interrupted attempt: chunks are read from it |
//! | the same with `.new` | a content that is being written |
//! | `swap-`, 16 hex digits and a number | an entry on its way into the tree, or just taken out of it, until it is examined again |
//!
//! With [`Staging::direct`], contents are staged below the mount: most calls then need no answer of the daemon. The kernel
//! remembers names that a mount was asked for, and does not see what happens to them below it. So
//!
//! - names of contents are used only below the mount; a content that goes into the tree first gets a name of the third kind;
//! - each of these names is used only once;
//! - an entry that came out of the tree is removed through the mount.

use super::attributes::Values;
use super::attributes::acl::{ACCESS_XATTR, DEFAULT_XATTR};
use super::content::{Cutter, Tag};
use super::error;
use super::error::SyncError;
use super::print::ino;
use super::tree::{ContentId, STAGING, Time, TreePath, join, shown, split};
use super::unfit::Xattrs;
use super::waiting::Left;
use crate::beneath::{Parents, Root};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The owner of files that this process creates, if it may set owners. The staging has no set-group-id bit.
const ROOT: (u32, u32) = (0, 0);

/// Size of the pieces that are checked for zeros.
const HOLE_BYTES: usize = 64 << 10;

/// See the module.
#[derive(Default)]
pub struct Staging {
    /// The overlaid directory below its mount, if contents are staged there.
    pub direct: Option<Arc<Root>>,
    /// The place of each chunk: number of the base, offset, length.
    chunks: HashMap<Tag, (u32, u64, u32)>,
    bases: Vec<TreePath>,
    begun: Option<(ContentId, Begun)>,
    /// The metadata of the one file that each content becomes, if they are known before the content arrives.
    pub expected: HashMap<ContentId, Expected>,
    /// The common beginning of the swap names of this sync, and the number of the last one.
    swaps: Option<(String, u64)>,
    /// Contents with a part from an interrupted attempt.
    parts: BTreeSet<ContentId>,
    /// Whole contents that are not durable yet.
    unsynced: BTreeSet<ContentId>,
    parents: Parents,
    /// Whole contents with their final metadata.
    pub prepared: BTreeMap<ContentId, Prepared>,
}

/// A content that arrives: a small one gets a file only when it is complete.
enum Begun {
    Memory(Vec<u8>),
    File(File),
}

/// Maximum length in bytes of a content that arrives in memory.
const SMALL_BYTES: usize = 64 << 10;

/// The metadata that a content gets when it is written.
pub struct Expected {
    /// Permission bits.
    pub mode: u16,
    /// Time.
    pub mtime: Time,
    /// The ids of user and group, if they are set.
    pub owner: Option<(u32, u32)>,
    /// Xattrs as the tree has them; none of them needs a call of its own.
    pub xattrs: Values,
    /// The permission bits that it gets here.
    pub mode_here: u16,
}

/// The metadata that a whole content has got.
pub struct Prepared {
    /// Whether it is durable with them.
    pub synced: bool,
    /// Inode number.
    pub ino: u64,
    /// Permission bits.
    pub mode: u16,
    /// Time.
    pub mtime: Time,
    /// Xattrs.
    pub xattrs: Values,
    /// Those of them that did not fit.
    pub unfit: Option<(Xattrs, Errno)>,
    /// Owner and ACL, if they could not be set.
    pub waiting: Left,
}

/// Returns the path of a name in the staging directory.
pub fn staged(name: &str) -> TreePath {
    join(STAGING.as_bytes(), name.as_bytes())
}

/// Returns the path of a whole content.
pub fn whole(content: ContentId) -> TreePath {
    staged(&content.to_string())
}

/// Returns whether a content is staged.
pub fn has(root: &Root, content: ContentId) -> Result<bool, SyncError> {
    let path = whole(content);
    Ok(root.stat(&path).map_err(|e| error::on("look at", &path, e))?.is_some())
}

/// Returns whether an interrupted attempt has left a part of a content.
pub fn has_part(root: &Root, content: ContentId) -> Result<bool, SyncError> {
    let path = staged(&format!("{content}.part"));
    Ok(root.stat(&path).map_err(|e| error::on("look at", &path, e))?.is_some())
}

/// Returns the paths of all staged entries; `None` if the directory does not exist.
fn all(root: &Root) -> Result<Option<Vec<TreePath>>, SyncError> {
    match root.list(STAGING.as_bytes()) {
        Ok(names) => Ok(Some(names.iter().map(|name| join(STAGING.as_bytes(), name)).collect())),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(error::on("read", STAGING.as_bytes(), e)),
    }
}

/// Returns whether anything is staged.
pub fn has_any(root: &Root) -> Result<bool, SyncError> {
    Ok(all(root)?.is_some_and(|paths| !paths.is_empty()))
}

/// Returns the entries that an interrupted sync left on their way into or out of the tree.
pub fn swaps(root: &Root) -> Result<Vec<TreePath>, SyncError> {
    let mut swaps = all(root)?.unwrap_or_default();
    let begin = staged("swap-");
    swaps.retain(|path| path.starts_with(&begin));
    Ok(swaps)
}

/// Returns the regular files in a directory and below it; empty for other entries.
pub fn files_below(root: &Root, path: &TreePath) -> Result<Vec<TreePath>, SyncError> {
    let (mut files, mut next) = (Vec::new(), vec![path.clone()]);
    while let Some(dir) = next.pop() {
        let names = match root.list(&dir) {
            Ok(names) => names,
            Err(Errno::NOTDIR | Errno::LOOP) => continue,
            Err(e) => return Err(error::on("read", &dir, e)),
        };
        for name in names {
            let path = join(&dir, &name);
            let stat = root.stat(&path).map_err(|e| error::on("look at", &path, e))?;
            match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                Some(FileType::Directory) => next.push(path),
                Some(FileType::RegularFile) => files.push(path),
                _ => {}
            }
        }
    }
    Ok(files)
}

/// Returns the hash of a regular file; `None` for other entries.
pub fn hash(root: &Root, path: &TreePath) -> Result<Option<ContentId>, SyncError> {
    let Ok(fd) = root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) else {
        return Ok(None);
    };
    let file = File::from(fd);
    let io = |e| SyncError::io("read", shown(path), e);
    if !file.metadata().map_err(io)?.is_file() {
        return Ok(None);
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file).map_err(io)?;
    Ok(Some(ContentId(*hasher.finalize().as_bytes())))
}

/// Makes the directory.
fn make(root: &Root) -> Result<(), SyncError> {
    match root.make_dir(STAGING.as_bytes(), Mode::from_raw_mode(0o700)) {
        Ok(()) => {
            inherit_nothing(root);
            Ok(())
        }
        Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(error::on("make", STAGING.as_bytes(), e)),
    }
}

/// Files in the staging must not inherit the default ACL or the group of the root.
fn inherit_nothing(root: &Root) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(dir) = root.open_at(STAGING.as_bytes(), flags, Mode::empty()) else { return };
    // Without a default ACL, or without ACLs at all, there is nothing to remove.
    let _ = rustix::fs::fremovexattr(&dir, DEFAULT_XATTR);
    let _ = rustix::fs::fremovexattr(&dir, ACCESS_XATTR);
    let _ = rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o700));
}

/// Writes `bytes`, and skips zeros, so that holes stay holes. The caller must set the length if the file ends with
/// zeros.
fn write_with_holes(to: &mut File, bytes: &[u8]) -> io::Result<()> {
    bytes.chunks(HOLE_BYTES).try_for_each(|part| match part.iter().all(|byte| *byte == 0) {
        true => to.seek_relative(part.len() as i64),
        false => to.write_all(part),
    })
}

/// Copies a file into an empty one. Returns its hash.
pub fn copy_with_holes(from: &mut File, to: &mut File) -> io::Result<ContentId> {
    let (mut hasher, mut buffer, mut size) = (blake3::Hasher::new(), vec![0; 1 << 20], 0);
    loop {
        let len = from.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        hasher.update(&buffer[..len]);
        write_with_holes(to, &buffer[..len])?;
        size += len as u64;
    }
    to.set_len(size)?;
    Ok(ContentId(*hasher.finalize().as_bytes()))
}

/// Returns the content of a name in the staging directory with this suffix.
fn content_of(path: &[u8], suffix: &[u8]) -> Option<ContentId> {
    let name = path.strip_prefix(STAGING.as_bytes())?.strip_prefix(b"/")?.strip_suffix(suffix)?;
    let hex = std::str::from_utf8(name).ok().filter(|hex| hex.len() == 64)?;
    let mut id = [0; 32];
    for (byte, digits) in id.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(ContentId(id))
}

impl Staging {
    /// Returns the root for contents.
    pub fn place<'a>(&'a self, root: &'a Root) -> &'a Root {
        self.direct.as_deref().unwrap_or(root)
    }

    /// Creates a file below [`Staging::place`]; the directory itself through the mount, so that the kernel knows it.
    fn create(&self, root: &Root, path: &TreePath) -> Result<File, SyncError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let open = || self.place(root).open_at(path, flags, Mode::from_raw_mode(0o600)).map(File::from);
        let opened = match open() {
            Err(Errno::NOENT) => {
                make(root)?;
                open()
            }
            opened => opened,
        };
        opened.map_err(|e| error::on("create", path, e))
    }

    /// Keeps the remains of interrupted attempts: a content that was being written becomes a part.
    pub fn recover(&mut self, root: &Root) -> Result<(), SyncError> {
        let direct = self.direct.clone();
        let root = direct.as_deref().unwrap_or(root);
        for path in all(root)?.unwrap_or_default() {
            if let Some(stem) = path.strip_suffix(b".new") {
                let part = [stem, b".part"].concat();
                let size = |path: &[u8]| root.stat(path).ok().flatten().map_or(0, |stat| stat.st_size);
                let done = match size(&path) >= size(&part) {
                    true => root.rename(&path, &part, RenameFlags::empty()),
                    false => root.remove(&path, false),
                };
                done.map_err(|e| error::on("rename", &path, e))?;
            }
            if let Some(content) = content_of(&path, b"") {
                self.verify(root, &path, content)?;
            }
        }
        let all = all(root)?.unwrap_or_default();
        self.parts = all.iter().filter_map(|path| content_of(path, b".part")).collect();
        Ok(())
    }

    /// Verifies a content that an interrupted attempt left as whole: after a power cut it may not be. Then it becomes a part.
    fn verify(&mut self, root: &Root, path: &TreePath, content: ContentId) -> Result<(), SyncError> {
        if !rustix::process::geteuid().is_root() {
            // It may have got the mode of its file already. Root may read it in any case.
            let (dir, name) = self.parents.of(root, path).map_err(|e| error::on("open", path, e))?;
            let _ = rustix::fs::chmodat(dir, name, Mode::from_raw_mode(0o600), AtFlags::empty());
        }
        let done = match hash(root, path) {
            Ok(Some(found)) if found == content => {
                self.unsynced.insert(content);
                return Ok(());
            }
            Ok(_) => root.rename(path, &[path, &b".part"[..]].concat(), RenameFlags::empty()),
            // It cannot be read.
            Err(_) => root.remove_all(path),
        };
        done.map_err(|e| error::on("clean up", path, e))
    }

    /// Returns whether an interrupted attempt has left a part of a content.
    pub fn has_part_of(&self, content: ContentId) -> bool {
        self.parts.contains(&content)
    }

    /// Returns the number of whole contents that are not durable yet.
    pub fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Makes them durable one by one.
    pub fn sync_each(&mut self, root: &Root) -> Result<(), SyncError> {
        let direct = self.direct.clone();
        let root = direct.as_deref().unwrap_or(root);
        for content in std::mem::take(&mut self.unsynced) {
            let path = whole(content);
            if self.prepared.get(&content).is_some_and(|prepared| prepared.synced) {
                continue;
            }
            match root.open_at(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
                Ok(file) => rustix::fs::fsync(file).map_err(|e| error::on("sync", &path, e))?,
                // The step that needs it is skipped.
                Err(Errno::NOENT) => {}
                Err(e) => return Err(error::on("open", &path, e)),
            }
        }
        root.sync_dir(STAGING.as_bytes()).map_err(|e| error::on("sync", STAGING.as_bytes(), e))
    }

    /// Notes that the filesystem was synced.
    pub fn are_synced(&mut self) {
        self.unsynced.clear();
    }

    /// Names the content that was begun as `begun`, and is complete.
    fn name_whole(&mut self, root: &Root, begun: ContentId, content: ContentId) -> Result<(), SyncError> {
        let new = staged(&format!("{begun}.new"));
        let place = self.direct.as_deref().unwrap_or(root);
        let done = self.parents.rename(place, &new, &whole(content), RenameFlags::empty());
        done.map_err(|e| error::on("rename", &new, e))?;
        self.has_whole(root, content)
    }

    /// Renames below `place` within the directory.
    pub fn rename(&mut self, place: &Root, from: &TreePath, to: &TreePath) -> Result<(), Errno> {
        self.parents.rename(place, from, to, RenameFlags::NOREPLACE)
    }

    /// Notes that a content is whole.
    fn has_whole(&mut self, root: &Root, content: ContentId) -> Result<(), SyncError> {
        self.unsynced.insert(content);
        if !self.parts.remove(&content) {
            return Ok(());
        }
        let part = staged(&format!("{content}.part"));
        match self.place(root).remove(&part, false) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(error::on("remove", &part, e)),
        }
    }

    /// Copies a content from a file of the tree. Returns false if the file does not have this content any more.
    pub fn copy(&mut self, root: &Root, content: ContentId, from: &TreePath) -> Result<bool, SyncError> {
        let fd = match root.open_at(from, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) => fd,
            Err(_) => return Ok(false),
        };
        let new = staged(&format!("{content}.new"));
        let mut to = self.create(root, &new)?;
        let copied = copy_with_holes(&mut File::from(fd), &mut to);
        match copied.map_err(|e| SyncError::io("copy", shown(from), e))? == content {
            true => self.name_whole(root, content, content).map(|()| true),
            false => Ok(false),
        }
    }

    /// Stages the content of a file that lies in the directory, and was on its way into the tree. The daemon may have converted it
    /// meanwhile, so below the mount it is copied.
    pub fn take_back(&mut self, root: &Root, content: ContentId, from: &TreePath) -> Result<(), SyncError> {
        if self.direct.is_none() {
            let done = root.rename(from, &whole(content), RenameFlags::empty());
            return done.map_err(|e| error::on("rename", from, e));
        }
        if self.copy(root, content, from)? {
            root.remove(from, false).map_err(|e| error::on("remove", from, e))?;
        }
        Ok(())
    }

    /// Returns the chunks of the file at `from`, and of a part that is left of `content`; at most `most`.
    pub fn chunks_of(
        &mut self,
        root: &Root,
        content: ContentId,
        from: &TreePath,
        most: usize,
    ) -> Result<Vec<Tag>, SyncError> {
        let mut tags = Vec::new();
        for base in [staged(&format!("{content}.part")), from.clone()] {
            let Ok(fd) =
                self.place_of(root, &base).open_at(&base, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            else {
                continue;
            };
            let file = File::from(fd);
            let Some(meta) = file.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
            let number = self.bases.len() as u32;
            let mut cutter = Cutter::new(file, meta.len());
            let mut at = 0;
            while tags.len() < most {
                let chunk = cutter.next_chunk().map_err(|e| SyncError::io("read", shown(&base), e))?;
                if chunk.is_empty() {
                    break;
                }
                let tag = Tag::of(chunk);
                self.chunks.entry(tag).or_insert((number, at, chunk.len() as u32));
                tags.push(tag);
                at += chunk.len() as u64;
            }
            self.bases.push(base);
        }
        tags.sort();
        tags.dedup();
        Ok(tags)
    }

    /// Returns the root for an entry of the tree, or a part of a content.
    fn place_of<'a>(&'a self, root: &'a Root, path: &[u8]) -> &'a Root {
        if split(path).0 == STAGING.as_bytes() { self.place(root) } else { root }
    }

    /// Begins a content that arrives.
    pub fn begin(&mut self, content: ContentId) {
        self.begun = Some((content, Begun::Memory(Vec::new())));
    }

    /// Appends bytes to it.
    pub fn write(&mut self, root: &Root, bytes: &[u8]) -> Result<(), SyncError> {
        let (content, mut begun) = self.begun.take().expect("a content was begun");
        let done = self.append(root, content, &mut begun, bytes);
        self.begun = Some((content, begun));
        done
    }

    fn append(
        &self,
        root: &Root,
        content: ContentId,
        begun: &mut Begun,
        bytes: &[u8],
    ) -> Result<(), SyncError> {
        let io = |e| SyncError::io("write", format!("{STAGING}/{content}"), e);
        match begun {
            Begun::Memory(all) if all.len() + bytes.len() <= SMALL_BYTES => all.extend_from_slice(bytes),
            Begun::Memory(all) => {
                let mut file = self.create(root, &staged(&format!("{content}.new")))?;
                // `finish` sets the length.
                write_with_holes(&mut file, all)
                    .and_then(|()| write_with_holes(&mut file, bytes))
                    .map_err(io)?;
                *begun = Begun::File(file);
            }
            Begun::File(file) => write_with_holes(file, bytes).map_err(io)?,
        }
        Ok(())
    }

    /// Reads a chunk that this side announced.
    pub fn chunk(&mut self, root: &Root, tag: Tag) -> Result<Vec<u8>, SyncError> {
        let changed = || SyncError::Changed("a file was changed while it was used for the sync".to_owned());
        let (base, at, len) = *self.chunks.get(&tag).ok_or_else(changed)?;
        let path = &self.bases[base as usize];
        let stale = || SyncError::Stale(len);
        let fd =
            self.place_of(root, path).open_at(path, OFlags::RDONLY, Mode::empty()).map_err(|_| stale())?;
        let mut bytes = vec![0; len as usize];
        File::from(fd).read_exact_at(&mut bytes, at).map_err(|_| stale())?;
        if Tag::of(&bytes) == tag { Ok(bytes) } else { Err(stale()) }
    }

    /// Gives up the content that was begun.
    pub fn discard(&mut self, root: &Root) -> Result<(), SyncError> {
        let Some((content, begun)) = self.begun.take() else { return Ok(()) };
        match begun {
            Begun::Memory(_) => return Ok(()),
            Begun::File(file) => drop(file),
        }
        let new = staged(&format!("{content}.new"));
        match self.place(root).remove(&new, false) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(error::on("remove", &new, e)),
        }
    }

    /// Ends the content that was begun, which is `content`.
    pub fn finish(&mut self, root: &Root, content: ContentId) -> Result<(), SyncError> {
        let (id, begun) = self.begun.as_mut().expect("a content was begun");
        let io = |e| SyncError::io("write", format!("{STAGING}/{content}"), e);
        match begun {
            Begun::Memory(all) => {
                let all = std::mem::take(all);
                self.write_small(root, content, &all)?;
            }
            Begun::File(file) => {
                file.stream_position().and_then(|len| file.set_len(len)).map_err(io)?;
                let begun = *id;
                self.name_whole(root, begun, content)?;
            }
        }
        self.begun = None;
        Ok(())
    }

    /// Writes a whole content under its name at once. If this is interrupted, the next sync finds another hash.
    fn write_small(&mut self, root: &Root, content: ContentId, all: &[u8]) -> Result<(), SyncError> {
        let path = whole(content);
        let mut file = self.create(root, &path)?;
        let written = write_with_holes(&mut file, all).and_then(|()| match all.last() {
            Some(0) => file.set_len(all.len() as u64),
            _ => Ok(()),
        });
        if let Err(e) = written {
            // Without its end it must not be taken for the content.
            let _ = self.place(root).remove(&path, false);
            return Err(SyncError::io("write", format!("{STAGING}/{content}"), e));
        }
        if let Err(e) = self.set_expected(content, &file) {
            tracing::debug!("{content}: gets its metadata later: {e}");
        }
        self.has_whole(root, content)
    }

    /// Gives a content the owner, mode and time of the file that it becomes.
    fn set_expected(&mut self, content: ContentId, file: &File) -> io::Result<()> {
        let Some(expected) = self.expected.remove(&content) else { return Ok(()) };
        let Expected { mode, mtime, owner, xattrs, mode_here } = expected;
        if let Some((uid, gid)) = owner.filter(|owner| *owner != ROOT) {
            rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode_here.into()))?;
        let time = |(tv_sec, nsec): Time| Timespec { tv_sec, tv_nsec: nsec.into() };
        let atime = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = Timestamps { last_access: atime, last_modification: time(mtime) };
        rustix::fs::futimens(file, &times)?;
        let ino = ino(&rustix::fs::fstat(file)?);
        let (unfit, waiting) = (None, Left::default());
        self.prepared.insert(content, Prepared { synced: false, ino, mode, mtime, xattrs, unfit, waiting });
        Ok(())
    }

    /// Returns a free name for an entry that is taken out of the tree or put into it.
    pub fn swap_name(&mut self, root: &Root) -> Result<TreePath, SyncError> {
        if self.swaps.is_none() {
            make(root)?;
            let mut drawn = [0; 8];
            rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())
                .map_err(|e| error::on("name an entry of", STAGING.as_bytes(), e))?;
            self.swaps = Some((format!("swap-{:016x}-", u64::from_le_bytes(drawn)), 0));
        }
        let (begin, last) = self.swaps.as_mut().expect("just set");
        *last += 1;
        Ok(staged(&format!("{begin}{last}")))
    }

    /// Removes the directory if it is empty.
    pub fn clear_if_empty(&mut self, root: &Root) -> Result<(), SyncError> {
        self.parents = Parents::default();
        match root.remove(STAGING.as_bytes(), true) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(e) => Err(error::on("remove", STAGING.as_bytes(), e)),
        }
    }

    /// Removes everything, and the directory.
    pub fn clear(&mut self, root: &Root) -> Result<(), SyncError> {
        let direct = self.direct.clone();
        let Some(paths) = all(root)? else { return Ok(()) };
        for path in paths {
            root.remove_all(&path).map_err(|e| error::on("remove", &path, e))?;
        }
        root.remove(STAGING.as_bytes(), true).map_err(|e| error::on("remove", STAGING.as_bytes(), e))?;
        *self = Staging { direct, ..Staging::default() };
        Ok(())
    }
}
