//! The tree that is copied.

use crate::backing::open_path;
use crate::backing::types::Kind;
use crate::contents::OverlayError;
use crate::overlay::Overlay;
use rustix::fs::CWD;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Result of copying one entry.
pub type Result<T> = std::result::Result<T, OverlayError>;

/// The tree to copy.
pub struct Tree<'a> {
    /// The top: a directory or a file.
    pub(super) top: OwnedFd,
    /// Its own name, for a file.
    pub(super) name: OsString,
    /// Reads stubs; none for a mount.
    pub(super) overlay: Option<&'a Overlay>,
    /// Position of the starting directory below the overlay's root.
    pub(super) below_root: PathBuf,
    pub(super) dev: u64,
}

impl<'a> Tree<'a> {
    /// Returns the tree that a mount shows at `path`, which must not be a symlink.
    pub fn mounted(path: &Path) -> Result<Tree<'a>> {
        let top = open_path(CWD, path.as_os_str()).map_err(|e| OverlayError::io("open", path, e))?;
        Tree::new(top, path, None, PathBuf::new())
    }

    /// Returns the tree at `path` below the root of an unmounted overlay.
    pub fn bare(overlay: &'a Overlay, path: &Path) -> Result<Tree<'a>> {
        let found = overlay.backing().resolve_named("open", path)?;
        let below_root = match found.kind() {
            Kind::Directory => path,
            _ => path.parent().unwrap_or(Path::new("")),
        };
        Tree::new(found.into_parts().0, path, Some(overlay), below_root.to_owned())
    }

    fn new(top: OwnedFd, path: &Path, overlay: Option<&'a Overlay>, below_root: PathBuf) -> Result<Tree<'a>> {
        let dev = rustix::fs::fstat(&top)?.st_dev;
        let name = path.file_name().unwrap_or_default().to_owned();
        Ok(Tree { top, name, overlay, below_root, dev })
    }
}
