//! Counts files and their bytes, for progress reports.

use super::Tree;
use crate::backing;
use crate::backing::resolved::Directory;
use crate::backing::stub::{RECORD_LEN, Stub, XATTR};
use crate::backing::types::Kind;
use crate::contents::error::Result;
use rustix::fs::{FileType, RawDir, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl Tree {
    /// Calls `count` with the length of every regular file at or below `path` (below the root). Does not enter other mounts.
    /// Approximate: a file that cannot be read counts as empty, and a hybrid one has the length of its base.
    ///
    /// One `stat` a file, and one `lgetxattr` for a stub: enters no inode. Fails with ECANCELED if the overlay is stopped
    /// meanwhile.
    pub(crate) fn count_files(&self, path: &Path, count: &mut dyn FnMut(u64)) -> Result<()> {
        if path.as_os_str().is_empty() {
            return self.count_below(&self.backing.directory()?, true, count);
        }
        let found = self.backing.resolve_named("open", path)?;
        match found.kind() {
            Kind::Directory => match found.open_dir() {
                Ok(dir) => self.count_below(&dir, false, count),
                Err(_) => Ok(()),
            },
            Kind::File => {
                let read =
                    |record: &mut [u8]| rustix::fs::getxattr(backing::proc_path(&found), XATTR, record);
                count(self.length_of(found.stat(), read));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn count_below(&self, dir: &Directory, is_root: bool, count: &mut dyn FnMut(u64)) -> Result<()> {
        for name in self.count_in(dir, is_root, count) {
            if self.ticks.stopped() {
                return Err(Errno::CANCELED.into());
            }
            if let Ok(inner) = dir.inner(&name) {
                self.count_below(&inner, false, count)?;
            }
        }
        Ok(())
    }

    /// Counts the files in a directory; returns the names of the directories in it.
    fn count_in(&self, dir: &Directory, is_root: bool, count: &mut dyn FnMut(u64)) -> Vec<OsString> {
        let mut dirs = Vec::new();
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut entries = RawDir::new(dir.as_fd(), buffer.spare_capacity_mut());
        let length = |name: &OsStr| {
            let stat = backing::stat_at(dir, name).ok();
            let path = || [backing::proc_path(dir).as_bytes(), b"/", name.as_bytes()].concat();
            stat.map_or(0, |stat| {
                self.length_of(&stat, |record| rustix::fs::lgetxattr(path(), XATTR, record))
            })
        };
        while let Some(Ok(entry)) = entries.next() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || is_root && backing::is_hidden(name) {
                continue;
            }
            let kind = match entry.file_type() {
                // Some filesystems do not say.
                FileType::Unknown => dir.child(name).ok().map(|found| found.kind()),
                FileType::Directory => Some(Kind::Directory),
                FileType::RegularFile => Some(Kind::File),
                _ => None,
            };
            match kind {
                Some(Kind::Directory) => dirs.push(name.to_owned()),
                Some(Kind::File) => count(length(name)),
                _ => {}
            }
        }
        dirs
    }

    /// Returns the length of a file with these attributes; `read` reads its record. Only a stub and some hybrid files are empty.
    fn length_of(&self, stat: &Stat, read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> u64 {
        let mut record = [0; RECORD_LEN];
        if stat.st_size == 0
            && read(&mut record) == Ok(RECORD_LEN)
            && let Ok(stub) = Stub::decode(&record, &self.key)
        {
            return stub.size;
        }
        stat.st_size as u64
    }
}

#[cfg(test)]
mod tests {
    use crate::overlay::testing::World;
    use std::path::Path;

    #[test]
    fn files_and_their_bytes_are_counted() {
        let world = World::new();
        let root = world.overlay.tree.backing.root_path().unwrap();
        std::fs::create_dir_all(root.join("dir/inner")).unwrap();
        std::fs::write(root.join("dir/plain"), vec![1; 700]).unwrap();
        std::fs::write(root.join("dir/inner/empty"), "").unwrap();
        std::os::unix::fs::symlink("plain", root.join("dir/link")).unwrap();
        world.stub("dir/inner/stub", &vec![7; 50_000]);
        let counted = |path: &str| {
            let mut all = (0, 0);
            let mut count = |bytes| all = (all.0 + 1, all.1 + bytes);
            world.overlay.tree.count_files(Path::new(path), &mut count).map(|()| all)
        };
        assert_eq!(counted("").unwrap(), (3, 50_700));
        assert_eq!(counted("dir").unwrap(), (3, 50_700));
        assert_eq!(counted("dir/inner/stub").unwrap(), (1, 50_000));
        assert_eq!(counted("dir/link").unwrap(), (0, 0));
        assert!(counted("nowhere").is_err());
        assert!(counted("../outside").is_err());
    }
}
