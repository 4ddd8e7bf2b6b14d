//! The proof that a file lies in the tree of this store, required before its bytes are removed.
//!
//! A conversion empties a file, because its content is in the store. For a file outside the tree, that would take the
//! file away from every program that uses it. So a conversion needs an [`Inside`], whatever its descriptor came from (a
//! path, an inode number or a file handle). There is one way to get one:
//!
//! 1. The file has a name and lies on the device of the root.
//! 2. The path that the kernel reports for it, or else one that the catalog knows, is opened again: from the root's
//!    descriptor, beneath the root, through no symlink and across no mount.
//! 3. The file found there is this inode.
//!
//! A program that writes to a stub cannot wait for a name that is just changing, and an unlinked file has none. So
//! [`Tree::not_outside`] lets a stub be emptied or written back unless it certainly lies elsewhere: its content is a
//! recipe of this store, and a write-back restores it.
//!
//! Cost: one `readlink`, one `openat2` and two `fstat` a file, O(length of the path); the `openat2` and one `fstat` if a path is
//! known at which the file still is. The path of the root is read again only if the file is not found below the last one.

mod inside;

use crate::backing::{self, Identity};
use crate::catalog::Finder;
use crate::contents::error::{OverlayError, Result};
use crate::tree::Tree;
use crate::tree::inode::Inode;
pub(crate) use inside::Inside;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Attempts to find a file that is being renamed.
const TRIES: usize = 4;

/// Why a file was not proven to lie in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// Its path is elsewhere, or its device is another.
    Outside,
    /// It lies below another mount in the tree.
    Mount,
    /// It has no name.
    Nameless,
    /// No name of it was found: it is being renamed, or a directory cannot be searched.
    NotFound,
}

impl Tree {
    /// Proves that `file`, which is `inode`, lies in the tree.
    pub(crate) fn prove_inside<'a>(
        &self,
        inode: &Inode,
        file: &'a impl AsFd,
        finder: &mut Finder<'_>,
    ) -> std::result::Result<Inside<'a>, Doubt> {
        let stat = rustix::fs::fstat(file).map_err(|_| Doubt::NotFound)?;
        self.prove_inside_at(inode, file, &stat, None, finder)
    }

    /// As [`Tree::prove_inside`] for a file with the attributes `stat`. `known` is a path at which it was found before: it is
    /// tried first.
    pub(crate) fn prove_inside_at<'a>(
        &self,
        inode: &Inode,
        file: &'a impl AsFd,
        stat: &Stat,
        known: Option<&Path>,
        finder: &mut Finder<'_>,
    ) -> std::result::Result<Inside<'a>, Doubt> {
        let fd = file.as_fd();
        let path = Some(self.locate(inode, fd, stat, known, finder)?);
        Ok(Inside { fd, path })
    }

    /// The same for a stub or hybrid file that a program is about to change: refuses only files that certainly lie elsewhere.
    pub(crate) fn not_outside<'a>(&self, inode: &Inode, file: &'a impl AsFd) -> Result<Inside<'a>> {
        match self.prove_inside(inode, file, &mut self.catalog.finder(&self.backing)) {
            Err(Doubt::Outside) => {
                self.log_outside(inode);
                Err(self.refused(inode, Doubt::Outside))
            }
            Ok(inside) => Ok(inside),
            Err(Doubt::Mount | Doubt::Nameless | Doubt::NotFound) => {
                Ok(Inside { fd: file.as_fd(), path: None })
            }
        }
    }

    /// Returns the error that a file stays as it is.
    pub(crate) fn refused(&self, inode: &Inode, doubt: Doubt) -> OverlayError {
        let why = match doubt {
            Doubt::Outside => "outside this overlay",
            Doubt::Mount => "below another mount",
            Doubt::Nameless => "without a name",
            Doubt::NotFound => "at an unknown path; try again",
        };
        let reason = format!("dedupfs leaves it as it is, because it lies {why}");
        OverlayError::Unreadable { path: self.name_of(inode).into(), reason }
    }

    /// Logs that a file outside the tree would have been changed.
    pub(crate) fn log_outside(&self, inode: &Inode) {
        let path = inode.path_fd().and_then(backing::path_of);
        let path = path.map_or_else(|_| self.name_of(inode), |path| path.display().to_string());
        tracing::error!(
            "{path}: it lies outside this overlay, so dedupfs leaves it as it is; \
             please report how dedupfs came to it"
        );
    }

    fn locate(
        &self,
        inode: &Inode,
        fd: BorrowedFd<'_>,
        stat: &Stat,
        known: Option<&Path>,
        finder: &mut Finder<'_>,
    ) -> std::result::Result<PathBuf, Doubt> {
        let identity = backing::identity(stat);
        if identity.dev != self.backing.identity().dev {
            return Err(Doubt::Outside);
        }
        if stat.st_nlink == 0 {
            return Err(Doubt::Nameless);
        }
        if let Some(path) = known.filter(|path| self.is_beneath(path, identity) == Ok(true)) {
            return Ok(path.to_owned());
        }
        let (mut doubt, mut elsewhere) = (Doubt::NotFound, None);
        if let Ok(path) = backing::path_of(fd)
            && let Some(path) = self.backing.below_last_root(&path)
            && self.is_beneath(path, identity) == Ok(true)
        {
            return Ok(path.to_owned());
        }
        // The file or the root was renamed meanwhile.
        for _ in 0..TRIES {
            let Ok(root) = self.backing.root_path() else { break };
            let Ok(path) = backing::path_of(fd) else { break };
            let Ok(relative) = path.strip_prefix(&root) else {
                elsewhere = Some(path);
                break;
            };
            match self.is_beneath(relative, identity) {
                Ok(true) => return Ok(relative.to_owned()),
                Err(Errno::XDEV) => doubt = Doubt::Mount,
                Ok(false) | Err(_) => {}
            }
        }
        let mut names = Vec::new();
        if finder.paths_of(inode.file_id(), &mut names).is_ok()
            && let Some(name) = names.into_iter().find(|name| self.is_beneath(name, identity) == Ok(true))
        {
            return Ok(name);
        }
        let is_there = |path: &Path| {
            let stat = backing::stat_at(rustix::fs::CWD, path.as_os_str());
            stat.is_ok_and(|stat| backing::identity(&stat) == identity)
        };
        Err(if elsewhere.is_some_and(|path| is_there(&path)) { Doubt::Outside } else { doubt })
    }

    /// Whether the file with that identity is at `path` beneath the root.
    fn is_beneath(&self, path: &Path, identity: Identity) -> rustix::io::Result<bool> {
        Ok(backing::identity(&self.backing.stat(path)?) == identity)
    }
}

#[cfg(test)]
mod tests {
    use crate::backing::resolved::Resolved;
    use crate::overlay::testing::World;
    use crate::tree::inode::Content;
    use crate::tree::proof::*;
    use std::ffi::OsStr;
    use std::sync::Arc;

    /// An inode of a file outside the root, as a path that leads out of the root gives it.
    fn enter(world: &World, path: &Path) -> Arc<Inode> {
        let fd = backing::open_path(rustix::fs::CWD, path.as_os_str()).unwrap();
        world.overlay.tree.inodes.enter(&world.overlay.tree.backing, Resolved::unconfined(fd), 1).unwrap()
    }

    fn doubt_about(world: &World, inode: &Inode) -> Option<Doubt> {
        let fd = inode.path_fd().unwrap();
        let mut finder = world.overlay.tree.catalog.finder(&world.overlay.tree.backing);
        world.overlay.tree.prove_inside(inode, &*fd, &mut finder).err()
    }

    #[test]
    fn a_conversion_leaves_a_file_outside_the_root_alone() {
        let world = World::new();
        // Beside the root, so on its filesystem.
        let outside = world.temp.path().join("outside");
        let bytes = vec![7; 50_000];
        std::fs::write(&outside, &bytes).unwrap();
        let inode = enter(&world, &outside);
        assert!(inode.is_root_fs_file(), "else it is not converted anyway");
        assert_eq!(doubt_about(&world, &inode), Some(Doubt::Outside));
        world.commit(&inode);
        assert!(std::fs::read(&outside).unwrap() == bytes);
        assert_eq!(backing::get_xattr(inode.path_fd().unwrap(), OsStr::new("user.dedupfs")), Ok(None));
        assert!(!inode.lock().queued, "it is not tried again");
    }

    /// A record of this store on a file outside, as a conversion without the proof left it.
    #[test]
    fn an_interrupted_write_back_outside_the_root_is_left_alone() {
        let world = World::new();
        let inside = world.stub("file", &vec![8; 50_000]);
        let Some(Content::Stub(stub)) = inside.lock().content else { panic!("no stub") };
        let outside = world.temp.path().join("outside");
        std::fs::write(&outside, "some bytes").unwrap();
        let inode = enter(&world, &outside);
        let record = stub.stamped(crate::backing::stub::State::Hydrating);
        world.overlay.tree.write_record(&inode, &record).unwrap();
        let state = world.overlay.tree.lock_loaded(&inode).unwrap();
        assert!(matches!(state.content, Some(Content::Stub(_))));
        drop(state);
        assert_eq!(std::fs::read(&outside).unwrap(), b"some bytes");
        let state = world.overlay.tree.lock_loaded(&inode).unwrap();
        assert!(world.overlay.tree.make_plain(&inode, state).is_err());
        assert_eq!(std::fs::read(&outside).unwrap(), b"some bytes");
    }

    #[test]
    fn every_name_proves_a_file_and_no_name_does_not() {
        let world = World::new();
        let root = world.overlay.tree.backing.root_path().unwrap();
        std::fs::create_dir(root.join("dir")).unwrap();
        std::fs::write(root.join("dir/one"), "x").unwrap();
        let inode = world.inode("dir/one");
        assert_eq!(doubt_about(&world, &inode), None);
        std::fs::rename(root.join("dir"), root.join("moved")).unwrap();
        assert_eq!(doubt_about(&world, &inode), None, "the kernel follows a rename");
        // The name by which it was opened goes; the catalog does not know the other yet.
        std::fs::hard_link(root.join("moved/one"), root.join("two")).unwrap();
        std::fs::remove_file(root.join("moved/one")).unwrap();
        assert_eq!(doubt_about(&world, &inode), Some(Doubt::NotFound));
        world
            .overlay
            .tree
            .catalog
            .place(&world.overlay.tree.backing, inode.file_id(), Path::new("two"))
            .unwrap();
        assert_eq!(doubt_about(&world, &inode), None);
        std::fs::remove_file(root.join("two")).unwrap();
        assert_eq!(doubt_about(&world, &inode), Some(Doubt::Nameless));
    }

    /// Another directory lies at the old path of the root: its files are outside, also under a name that the tree has. Seen to fail
    /// (a path for the file outside) if a name alone counts as the same file.
    #[test]
    fn the_root_may_be_renamed() {
        let world = World::new();
        let root = world.overlay.tree.backing.root_path().unwrap();
        std::fs::write(root.join("file"), "x").unwrap();
        let inode = world.inode("file");
        let path = || world.overlay.tree.backing.relative_path(inode.path_fd().unwrap()).unwrap();
        assert_eq!((path().as_deref(), doubt_about(&world, &inode)), (Some(Path::new("file")), None));
        std::fs::rename(&root, world.temp.path().join("moved")).unwrap();
        assert_eq!(doubt_about(&world, &inode), None);
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("file"), "y").unwrap();
        let outside = enter(&world, &root.join("file"));
        let path_outside = || world.overlay.tree.backing.relative_path(outside.path_fd().unwrap()).unwrap();
        for _ in 0..2 {
            assert_eq!((path_outside(), doubt_about(&world, &outside)), (None, Some(Doubt::Outside)));
            assert_eq!((path().as_deref(), doubt_about(&world, &inode)), (Some(Path::new("file")), None));
        }
    }

    #[test]
    fn a_known_path_proves_only_the_file_that_is_there() {
        let world = World::new();
        let root = world.overlay.tree.backing.root_path().unwrap();
        std::fs::write(root.join("one"), "x").unwrap();
        std::fs::write(world.temp.path().join("outside"), "x").unwrap();
        let (inside, outside) = (world.inode("one"), enter(&world, &world.temp.path().join("outside")));
        let prove = |inode: &Inode| {
            let fd = inode.path_fd().unwrap();
            let stat = rustix::fs::fstat(&fd).unwrap();
            let mut finder = world.overlay.tree.catalog.finder(&world.overlay.tree.backing);
            let known = Some(Path::new("one"));
            let proven = world.overlay.tree.prove_inside_at(inode, &*fd, &stat, known, &mut finder);
            proven.map(Inside::into_path)
        };
        assert_eq!(prove(&inside), Ok(Some("one".into())));
        assert_eq!(prove(&outside), Err(Doubt::Outside));
        std::fs::rename(root.join("one"), root.join("two")).unwrap();
        std::fs::write(root.join("one"), "another").unwrap();
        assert_eq!(prove(&inside), Ok(Some("two".into())), "it is found where it is now");
        std::fs::rename(root.join("two"), world.temp.path().join("away")).unwrap();
        assert_eq!(prove(&inside), Err(Doubt::Outside), "it left the tree");
    }

    #[test]
    fn a_symlink_and_a_way_up_prove_nothing() {
        let world = World::new();
        let root = world.overlay.tree.backing.root_path().unwrap();
        std::fs::write(world.temp.path().join("outside"), "x").unwrap();
        std::os::unix::fs::symlink("..", root.join("up")).unwrap();
        let identity = backing::identity(&rustix::fs::stat(world.temp.path().join("outside")).unwrap());
        for path in ["up/outside", "../outside", "/proc/self/root"] {
            assert_ne!(world.overlay.tree.is_beneath(Path::new(path), identity), Ok(true), "{path}");
        }
    }

    /// Prints what a proof costs: `cargo test --lib what_a_proof_costs -- --ignored --nocapture`.
    #[test]
    #[ignore = "it measures"]
    #[allow(clippy::print_stdout, reason = "it is asked for")]
    fn what_a_proof_costs() {
        let world = World::new();
        let root = world.overlay.tree.backing.root_path().unwrap();
        std::fs::create_dir_all(root.join("a/b/c/d")).unwrap();
        std::fs::write(root.join("a/b/c/d/file"), "x").unwrap();
        let inode = world.inode("a/b/c/d/file");
        let start = std::time::Instant::now();
        (0..10_000).for_each(|_| assert_eq!(doubt_about(&world, &inode), None));
        println!("{:?} each", start.elapsed() / 10_000);
    }
}
