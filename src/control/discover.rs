//! Discovery of the store that a path belongs to, and of its daemon.
//!
//! A mounted overlay answers an xattr. The answer counts only on a FUSE filesystem: on others any user can
//! set one. For a bare directory, discovery walks up to `.dedupfs`, which contains `daemon.json` while the
//! overlay is mounted elsewhere. A socket without a listener means that there is no daemon.

use super::{CONTROL_XATTR, Client, ControlError, DaemonInfo};
use crate::repo::{DAEMON, Layout};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;
const INFO_BYTES_MAX: usize = 64 << 10;

/// A store, and a path in its overlay.
pub enum Found {
    /// A daemon has it.
    Daemon {
        /// A connection.
        client: Client,
        /// The daemon's own description.
        info: DaemonInfo,
        /// The path below the root.
        path: PathBuf,
    },
    /// No process has it open.
    Direct {
        /// Its location.
        layout: Layout,
        /// The path below the root.
        path: PathBuf,
    },
}

/// Returns the daemon whose mount shows `path`, if any.
pub fn daemon_at(path: &Path) -> Result<Option<DaemonInfo>, ControlError> {
    match rustix::fs::statfs(path) {
        Ok(stat) if stat.f_type == FUSE_MAGIC => {}
        Ok(_) => return Ok(None),
        Err(e) if is_dead(e) => return Err(dead_mount(path)),
        Err(e) => return Err(ControlError::io("find", path, e)),
    }
    let mut value = vec![0; INFO_BYTES_MAX];
    match rustix::fs::getxattr(path, CONTROL_XATTR, &mut value[..]) {
        Ok(len) => match serde_json::from_slice(&value[..len]) {
            Ok(info) => Ok(Some(info)),
            Err(e) => Err(ControlError::Protocol(e.to_string())),
        },
        Err(e) if is_dead(e) => Err(dead_mount(path)),
        // Another FUSE filesystem.
        Err(_) => Ok(None),
    }
}

/// Returns the store of `path`, which is in a mounted overlay or in a bare directory.
pub fn find(path: &Path) -> Result<Found, ControlError> {
    let here = canonical(path)?;
    if let Some(info) = daemon_at(&here)? {
        let below = below(&here, &info.mountpoint).or_else(|_| below(&here, &info.root))?;
        return match Client::connect(&info)? {
            Some(client) => Ok(Found::Daemon { client, info, path: below }),
            None => Err(ControlError::Ended),
        };
    }
    match Layout::around(&here)? {
        Some(layout) => in_layout(layout, Some(&here)),
        None => Err(ControlError::NoStore(here)),
    }
}

/// Returns the store that `store` names, and the place in it that `path` means.
pub fn find_store(store: &Path, path: Option<&Path>) -> Result<Found, ControlError> {
    let path = path.map(canonical).transpose()?;
    let named = match Layout::named(store) {
        Ok(Some(layout)) => layout,
        // The root of a mounted overlay, named instead of the hidden directory.
        Ok(None) => return find(path.as_deref().unwrap_or(store)),
        Err(e) => match store.parent() {
            // `DIR/.dedupfs`, which a mount over DIR hides.
            Some(parent) if daemon_at(parent).is_ok_and(|info| info.is_some()) => return find(parent),
            _ => return Err(e.into()),
        },
    };
    in_layout(named, path.as_deref())
}

fn in_layout(layout: Layout, path: Option<&Path>) -> Result<Found, ControlError> {
    let info = std::fs::read(layout.file(DAEMON)).ok();
    let info = info.and_then(|bytes| serde_json::from_slice::<DaemonInfo>(&bytes).ok());
    if let Some(info) = info
        && let Some(client) = Client::connect(&info)?
    {
        let path = match path {
            Some(path) => below(path, &info.mountpoint).or_else(|_| below(path, &layout.root))?,
            None => PathBuf::new(),
        };
        return Ok(Found::Daemon { client, info, path });
    }
    let path = match path {
        // The state directory stands for the whole overlay.
        Some(path) if path.starts_with(&layout.state) => PathBuf::new(),
        Some(path) => below(path, &layout.root)?,
        None => PathBuf::new(),
    };
    Ok(Found::Direct { layout, path })
}

/// Whether this is the answer of a mount without a daemon; a request that was waiting at its end gets the
/// second one.
fn is_dead(error: Errno) -> bool {
    matches!(error, Errno::NOTCONN | Errno::CONNABORTED)
}

/// Returns the mount point: the uppermost directory that does not answer. Attributes may come from the
/// kernel's cache, but statfs always reaches the daemon.
fn dead_mount(path: &Path) -> ControlError {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_dead = |dir: &&Path| matches!(rustix::fs::statfs(*dir), Err(Errno::NOTCONN));
    let mountpoint = path.ancestors().take_while(is_dead).last().unwrap_or(&path);
    ControlError::DeadMount(mountpoint.to_owned())
}

fn below(path: &Path, root: &Path) -> Result<PathBuf, ControlError> {
    match path.strip_prefix(root) {
        Ok(path) => Ok(path.to_owned()),
        Err(_) => Err(ControlError::Outside { path: path.to_owned(), root: root.to_owned() }),
    }
}

fn canonical(path: &Path) -> Result<PathBuf, ControlError> {
    path.canonicalize().map_err(|e| match Errno::from_io_error(&e) {
        Some(e) if is_dead(e) => dead_mount(path),
        _ => ControlError::io("find", path, e),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Server;
    use super::*;
    use crate::id::StoreId;
    use crate::repo::{InitOptions, Repo};

    fn direct(found: Found) -> (PathBuf, PathBuf) {
        match found {
            Found::Direct { layout, path } => (layout.root, path),
            Found::Daemon { info, .. } => panic!("{info:?}"),
        }
    }

    #[test]
    fn a_bare_directory_is_found_from_any_path_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let sub = root.join("a/b");
        std::fs::create_dir_all(&sub).unwrap();
        assert!(matches!(find(&sub), Err(ControlError::NoStore(_))));
        let layout = Repo::init(&root, None, &InitOptions::default()).unwrap();
        assert_eq!(direct(find(&sub).unwrap()), (root.clone(), "a/b".into()));
        assert_eq!(direct(find(&root).unwrap()), (root.clone(), "".into()));
        assert_eq!(direct(find(&layout.file("packs")).unwrap()), (root.clone(), "".into()));
        assert_eq!(direct(find_store(&layout.state, None).unwrap()), (root.clone(), "".into()));
        assert_eq!(direct(find_store(&root, Some(&sub)).unwrap()), (root.clone(), "a/b".into()));
        assert!(find(&root.join("missing")).is_err());
    }

    #[test]
    fn a_daemon_is_used_while_it_listens() {
        let dir = tempfile::tempdir().unwrap();
        let (runtime, mount) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path().canonicalize().unwrap();
        let layout = Repo::init(&root, None, &InitOptions::default()).unwrap();
        let server = Server::bind(runtime.path(), StoreId([1; 16])).unwrap();
        let mountpoint = mount.path().canonicalize().unwrap();
        let socket = server.path().to_owned();
        let info = DaemonInfo { socket, root: root.clone(), mountpoint, store: "01".into(), pid: 1 };
        std::fs::write(layout.file(DAEMON), serde_json::to_vec(&info).unwrap()).unwrap();
        std::fs::create_dir(root.join("a")).unwrap();
        match find(&root.join("a")).unwrap() {
            Found::Daemon { info: found, path, .. } => assert_eq!((found, path), (info, "a".into())),
            Found::Direct { .. } => panic!("the daemon was not seen"),
        }
        drop(server);
        assert_eq!(direct(find(&root.join("a")).unwrap()), (root, "a".into()));
        std::fs::write(layout.file(DAEMON), "nonsense").unwrap();
        assert!(find(dir.path()).is_ok());
    }

    #[test]
    fn an_xattr_of_another_filesystem_is_not_believed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let json = br#"{"socket":"/s","root":"/","mountpoint":"/","store":"","pid":1}"#;
        let _ = rustix::fs::setxattr(file.path(), CONTROL_XATTR, json, rustix::fs::XattrFlags::empty());
        assert_eq!(daemon_at(file.path()).unwrap(), None);
    }
}
