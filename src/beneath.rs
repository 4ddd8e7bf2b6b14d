//! System calls on untrusted paths: from a peer, a client of the control socket, or a stored snapshot.
//!
//! Invariants: no call leaves the root, follows a symlink or crosses into another mount, whatever other
//! processes rename meanwhile. The kernel guarantees it (`openat2`). A path that leads out gives EXDEV, a
//! symlink ELOOP.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Limit of a path in one call; the kernel accepts 4096 bytes.
const STEP_BYTES_MAX: usize = 4000;

/// A directory that confines paths.
pub struct Root {
    fd: OwnedFd,
}

const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens `name` in `dir`, one component: never in another mount, and a symlink as itself.
pub fn open_child(dir: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if is_name(name) {
        rustix::fs::openat2(dir, name, flags, Mode::empty(), WITHIN)
    } else {
        Err(Errno::XDEV)
    }
}

/// Whether `name` is a valid directory entry.
pub fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

/// Splits a path into its directory (empty for the root) and its last component.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Joins a directory's path and a name.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

impl Root {
    /// Opens the directory at `path`, which the user named: symlinks are followed here.
    pub fn open(path: &Path) -> Result<Root, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Root { fd: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Duplicates the descriptor of the root.
    pub fn try_clone(&self) -> std::io::Result<Root> {
        Ok(Root { fd: self.fd.try_clone()? })
    }

    /// Opens `path`.
    pub fn open_at(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut dir: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > STEP_BYTES_MAX {
            let cut =
                rest[..STEP_BYTES_MAX].iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
            let from = dir.as_ref().unwrap_or(&self.fd);
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            dir = Some(rustix::fs::openat2(from, &rest[..cut], flags, Mode::empty(), WITHIN)?);
            rest = &rest[cut + 1..];
        }
        let rest = if rest.is_empty() { b"." } else { rest };
        rustix::fs::openat2(dir.as_ref().unwrap_or(&self.fd), rest, flags, mode, WITHIN)
    }

    /// Returns the directory of `path`, and its name there.
    pub fn parent<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8]), Errno> {
        let (dir, name) = split(path);
        Ok((self.open_at(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
    }

    /// Returns the attributes of `path` (of a symlink itself); `None` if it or its directory does not exist.
    pub fn stat(&self, path: &[u8]) -> Result<Option<Stat>, Errno> {
        if path.is_empty() {
            return rustix::fs::fstat(&self.fd).map(Some);
        }
        let found = self
            .parent(path)
            .and_then(|(dir, name)| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW));
        match found {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Renames, with `flags`.
    pub fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<(), Errno> {
        let ((from_dir, from), (to_dir, to)) = (self.parent(from)?, self.parent(to)?);
        rustix::fs::renameat_with(from_dir, from, to_dir, to, flags)
    }

    /// Creates the directory at `path` and its missing parents.
    pub fn make_dirs(&self, path: &[u8]) -> Result<(), Errno> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]).filter(|end| *end > 0) {
            match self.make_dir(&path[..end], Mode::from_raw_mode(0o777)) {
                Err(Errno::EXIST) => {}
                made => made?,
            }
        }
        Ok(())
    }

    /// Creates one directory.
    pub fn make_dir(&self, path: &[u8], mode: Mode) -> Result<(), Errno> {
        let (dir, name) = self.parent(path)?;
        rustix::fs::mkdirat(dir, name, mode)
    }

    /// Adds a hard link `to` for `from`.
    pub fn link(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        let ((from_dir, from), (to_dir, to)) = (self.parent(from)?, self.parent(to)?);
        rustix::fs::linkat(from_dir, from, to_dir, to, AtFlags::empty())
    }

    /// Removes a file, or an empty directory.
    pub fn remove(&self, path: &[u8], dir: bool) -> Result<(), Errno> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::unlinkat(parent, name, if dir { AtFlags::REMOVEDIR } else { AtFlags::empty() })
    }

    /// Removes `path`, if it exists, with everything below it.
    pub fn remove_all(&self, path: &[u8]) -> Result<(), Errno> {
        let is_dir = |path: &[u8]| {
            Ok::<_, Errno>(
                self.stat(path)?.map(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            )
        };
        let mut all = vec![path.to_vec()];
        while let Some(path) = all.pop() {
            let Some(dir) = is_dir(&path)? else { continue };
            if !dir {
                self.remove(&path, false)?;
                continue;
            }
            let names = self.list(&path)?;
            if names.is_empty() {
                self.remove(&path, true)?;
                continue;
            }
            all.push(path.clone());
            all.extend(names.iter().map(|name| join(&path, name)));
        }
        Ok(())
    }

    /// Returns the names in a directory.
    pub fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let dir = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }

    /// Makes the names in the directory at `path` durable.
    pub fn sync_dir(&self, path: &[u8]) -> Result<(), Errno> {
        match self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(dir) => rustix::fs::fsync(dir),
            // It was removed; its parent directory records that.
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Returns the root's descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for Root {
    fn from(fd: OwnedFd) -> Root {
        Root { fd }
    }
}

/// The directories of paths that were used last, so that the next path in one of them needs no look-up. They are those of the
/// time when they were opened, wherever they are now: a caller that moves directories itself makes a new one.
#[derive(Default)]
pub struct Parents(Vec<(Vec<u8>, OwnedFd)>);

/// Number of directories that are kept open: for a rename between two, and one more.
const PARENTS_MAX: usize = 3;

impl Parents {
    /// As [`Root::parent`].
    pub fn of<'a>(&mut self, root: &Root, path: &'a [u8]) -> Result<(BorrowedFd<'_>, &'a [u8]), Errno> {
        let (dir, name) = split(path);
        if !is_name(name) {
            return Err(Errno::XDEV);
        }
        let known = self.0.iter().position(|(known, _)| known == dir);
        match known {
            // The one used last is the first.
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                let fd = root.open_at(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                self.0.truncate(PARENTS_MAX - 1);
                self.0.insert(0, (dir.to_vec(), fd));
            }
        }
        Ok((self.0[0].1.as_fd(), name))
    }

    /// As [`Root::stat`].
    pub fn stat(&mut self, root: &Root, path: &[u8]) -> Result<Option<Stat>, Errno> {
        let found = self.of(root, path);
        match found.and_then(|(dir, name)| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// As [`Root::rename`].
    pub fn rename(&mut self, root: &Root, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<(), Errno> {
        self.of(root, from)?;
        self.of(root, to)?;
        // The two used last.
        let fd = |path: &[u8]| self.0.iter().find(|(dir, _)| dir == split(path).0).map(|(_, fd)| fd);
        let (from_dir, to_dir) = fd(from).zip(fd(to)).ok_or(Errno::NOENT)?;
        rustix::fs::renameat_with(from_dir, split(from).1, to_dir, split(to).1, flags)
    }
}

/// Reads attributes of paths in sequence; keeps the last directory open, so that the next path in it is
/// cheaper.
#[derive(Default)]
pub struct Stats(Option<(Vec<u8>, OwnedFd)>);

impl Stats {
    /// Like [`Root::stat`].
    pub fn stat(&mut self, root: &Root, path: &[u8]) -> Result<Option<Stat>, Errno> {
        let (dir, name) = split(path);
        if self.0.as_ref().is_none_or(|(last, _)| last != dir) {
            self.0 = match root.open_at(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
                Ok(fd) => Some((dir.to_vec(), fd)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(e) => return Err(e),
            };
        }
        let Some((_, fd)) = &self.0 else { return Ok(None) };
        match rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Returns the target of a symlink.
pub fn read_link(root: &Root, path: &[u8]) -> Result<Vec<u8>, Errno> {
    let (dir, name) = root.parent(path)?;
    Ok(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_or_moved_behind_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        let root = Root::open(&dir.path().join("tree")).unwrap();
        root.make_dirs(b"a/b/c").unwrap();
        root.make_dirs(b"a/b/c").unwrap();
        root.make_dirs(b"").unwrap();
        std::os::unix::fs::symlink(&outside, dir.path().join("tree/a/away")).unwrap();
        assert_eq!(root.make_dirs(b"a/away/x"), Err(Errno::NOTDIR));
        assert_eq!(root.make_dirs(b"../x"), Err(Errno::XDEV));
        assert_eq!(root.make_dirs(outside.join("x").as_os_str().as_encoded_bytes()), Err(Errno::XDEV));
        assert_eq!(root.rename(b"a/b", b"a/away/b", RenameFlags::empty()), Err(Errno::NOTDIR));
        assert_eq!(root.link(b"a/away", b"../away"), Err(Errno::XDEV));
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}
