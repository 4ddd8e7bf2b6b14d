//! A directory as a replica of a sync: an existing mount, or a private mount for the duration of the sync.

use super::attributes::Attributes;
use super::error::CliError;
use super::leftovers::{self, TEMPORARY};
use super::old_contents::StoreOldContents;
use super::program::Program;
use crate::backing::STATE_DIR;
use crate::config::Config;
use crate::control::{self, ControlError, DaemonInfo, Found};
use crate::repo::{InitOptions, Layout, Repo};
use crate::sync::Local;
use crate::sync::accounts::NameMap;
use crate::sync::group::Groups;
use crate::sync::owners::Owners;
use crate::sync::proto::{NEW_DIRECTORY, NEW_OVERLAY};
use crate::sync::rules::Rules;
use crate::sync::scan::Report;
use crate::sync::selection::Selection;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time to wait until the private mount of another sync is gone.
const OTHERS: Duration = Duration::from_secs(15);
/// Name of the sync state in a state directory.
const SYNC: &str = "sync";

/// A mounted overlay, and its sync state.
pub(super) struct Mounted {
    /// Its files.
    pub tree: PathBuf,
    /// `.dedupfs/sync`.
    pub memory: PathBuf,
    /// Its daemon.
    info: DaemonInfo,
    /// The overlaid directory and its store's state directory, below the mount.
    backing: PathBuf,
    state: PathBuf,
    /// Keeps them in reach.
    _fd: Option<OwnedFd>,
    temporary: bool,
}

/// Returns the directory with the sync state of the overlay around `path`, without mounting it.
pub(super) fn memory_of(found: &Found) -> Result<(PathBuf, Option<OwnedFd>), CliError> {
    match found {
        Found::Direct { layout, .. } => Ok((layout.file(SYNC), None)),
        Found::Daemon { info, .. } => {
            let below = below_mount(info)?;
            Ok((below.state.join(SYNC), below._fd))
        }
    }
}

/// Directories that a mount over its own directory hides.
struct Below {
    backing: PathBuf,
    state: PathBuf,
    /// Keeps it in reach.
    _fd: Option<OwnedFd>,
}

fn below_mount(info: &DaemonInfo) -> Result<Below, CliError> {
    if info.mountpoint != info.root
        && let Some(Layout { root, state }) = Layout::of(&info.root)?
    {
        return Ok(Below { backing: root, state, _fd: None });
    }
    // The mount hides the directory, but the daemon opened it before. The kernel gives its user and root access
    // through this.
    let fds = PathBuf::from(format!("/proc/{}/fd", info.pid));
    let list = std::fs::read_dir(&fds).map_err(|e| CliError::io("look into", &fds, &e))?;
    for fd in list.flatten().map(|entry| entry.path()) {
        if std::fs::read_link(&fd).is_ok_and(|target| target == info.root) {
            let Ok(root) =
                rustix::fs::open(&fd, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            else {
                continue;
            };
            let backing = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
            let inside = backing.join(STATE_DIR);
            if inside.join("format.toml").exists() {
                return Ok(Below { backing, state: inside, _fd: Some(root) });
            }
            // The store is elsewhere.
            if let Some(state) = Layout::store_elsewhere(&inside)? {
                return Ok(Below { backing, state, _fd: Some(root) });
            }
        }
    }
    let message = format!("{}: its state directory is not in reach", info.root.display());
    Err(CliError::new(message).hint("run this as the user whose daemon it is, or as root"))
}

/// Opens the overlay around `path`. One that is not mounted is mounted privately until [`Mounted::end`]. With `init`,
/// a directory that is no overlay becomes one, and a missing directory is created.
pub(super) fn open(path: &Path, init: Option<&InitOptions>) -> Result<Mounted, CliError> {
    let make = init.is_some();
    if let Some(init) = init.filter(|_| !path.exists()) {
        match control::find(parent_of(path)) {
            Ok(_) => return Err(inside(path)),
            Err(_) if parent_of(path).is_dir() => {
                std::fs::create_dir(path).map_err(|e| CliError::io("make", path, &e))?;
                if let Err(e) = Repo::check_directory(path, init) {
                    let _ = std::fs::remove_dir(path);
                    return Err(e.into());
                }
            }
            Err(_) => {}
        }
    }
    let root = match find_settled(path) {
        Ok(Found::Daemon { info, path: below, .. }) => {
            if is_private(&info.mountpoint) {
                let message = format!("{}: another sync has it mounted for itself", path.display());
                return Err(CliError::new(message).hint("run this again when that has ended"));
            }
            check_root(path, &below, make)?;
            return of_daemon(&info);
        }
        Ok(Found::Direct { layout, path: below }) => {
            check_root(path, &below, make)?;
            layout.root
        }
        Err(e) => match (e, init) {
            (ControlError::NoStore(_), Some(init)) => Repo::init(path, None, init)?.root,
            (e, _) => return Err(e.into()),
        },
    };
    let base = runtime_dir()?;
    let mountpoint = base.join(format!("{TEMPORARY}{}", std::process::id()));
    std::fs::create_dir(&mountpoint).map_err(|e| CliError::io("make", &mountpoint, &e))?;
    let mounted = mount(&root, &mountpoint);
    if mounted.is_err() {
        let _ = std::fs::remove_dir(&mountpoint);
    }
    mounted
}

/// Opens the overlay around `path`, which must be mounted already: changes are seen through a mount only.
pub(super) fn open_mounted(path: &Path) -> Result<Mounted, CliError> {
    match find_settled(path)? {
        Found::Daemon { info, .. } if !is_private(&info.mountpoint) => of_daemon(&info),
        _ => {
            let message =
                format!("{}: not mounted, and changes are seen through a mount only", path.display());
            let command =
                format!("mount it with `dedupfs {0} {0}`, or sync without `--watch`", path.display());
            Err(CliError::new(message).hint(command))
        }
    }
}

/// A directory that a real sync would create, or turn into an overlay, as a dry run sees it.
pub(super) struct Plain {
    tree: PathBuf,
    feature: &'static str,
}

impl Plain {
    /// Returns `None` if `path` is in an overlay.
    pub(super) fn find(path: &Path, init: &InitOptions) -> Result<Option<Plain>, CliError> {
        if path.exists() {
            let plain = || Plain { tree: path.to_owned(), feature: NEW_OVERLAY };
            return match control::find(path) {
                Ok(_) => Ok(None),
                Err(ControlError::NoStore(_)) => {
                    Repo::check_directory(path, init)?;
                    Ok(Some(plain()))
                }
                Err(e) => Err(e.into()),
            };
        }
        match control::find(parent_of(path)) {
            Err(ControlError::NoStore(_)) if parent_of(path).is_dir() => {}
            Ok(_) => return Err(inside(path)),
            // A real sync could not create it.
            Err(_) => return Ok(None),
        }
        let base = runtime_dir()?;
        let tree = base.join(format!("{TEMPORARY}{}", std::process::id()));
        std::fs::create_dir(&tree).map_err(|e| CliError::io("make", &tree, &e))?;
        Ok(Some(Plain { tree, feature: NEW_DIRECTORY }))
    }

    pub(super) fn replica<'a>(
        &self,
        force: bool,
        attributes: Attributes,
        report: Box<Report<'a>>,
    ) -> Result<Local<'a>, CliError> {
        let sees = attributes.sees(&self.tree, None, &Config::default())?;
        let owners = Arc::new(Owners::new(sees, &NameMap::new()));
        let rules = Rules { owners, ..Rules::default() };
        let nothing = self.tree.join(STATE_DIR).join(SYNC);
        let mut local = Local::look_at(&self.tree, &nothing, "", &rules, force, None, report)?;
        local.features = vec![self.feature.to_owned()];
        Ok(local)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.feature == NEW_DIRECTORY {
            let _ = std::fs::remove_dir(&self.tree);
        }
    }
}

/// Returns whether a mount ends with a process. Another user of it would be left with an empty directory.
fn is_private(mountpoint: &Path) -> bool {
    mountpoint.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY))
}

/// Finds like [`control::find`], after a private mount of another sync is gone.
fn find_settled(path: &Path) -> Result<Found, ControlError> {
    let until = Instant::now() + OTHERS;
    loop {
        match control::find(path)? {
            Found::Daemon { info, .. } if is_private(&info.mountpoint) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            found => return Ok(found),
        }
    }
}

/// Returns the directory for private mounts; clears leftovers first.
fn runtime_dir() -> Result<PathBuf, CliError> {
    let base = control::runtime_dir(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).as_deref())?;
    leftovers::clear(&base);
    Ok(base)
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses a path inside an overlay, since the peer would be another directory than the user named.
fn check_root(path: &Path, below: &Path, make: bool) -> Result<(), CliError> {
    match make && !below.as_os_str().is_empty() {
        true => Err(inside(path)),
        false => Ok(()),
    }
}

fn inside(path: &Path) -> CliError {
    let message = format!("{}: lies inside an overlay, and only a whole one can be synced", path.display());
    CliError::new(message).hint("give the overlay's root, or a directory outside of overlays")
}

fn mount(root: &Path, mountpoint: &Path) -> Result<Mounted, CliError> {
    let mut command = Program::Dedupfs.command();
    // However this process ends, the mount does not stay.
    command.arg("--index-only").arg("--mounted-for").arg(std::process::id().to_string());
    command.arg(root).arg(mountpoint).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status();
    let status = status.map_err(|e| CliError::io("start", Path::new(command.get_program()), &e))?;
    if !status.success() {
        return Err(CliError::new(format!("{}: could not be mounted for the sync", root.display())));
    }
    match control::daemon_at(mountpoint)? {
        Some(info) => of_daemon(&info),
        None => Err(CliError::new(format!("{}: its mount is gone", root.display()))),
    }
}

fn of_daemon(info: &DaemonInfo) -> Result<Mounted, CliError> {
    let Below { backing, state, _fd } = below_mount(info)?;
    Ok(Mounted {
        tree: info.mountpoint.clone(),
        memory: state.join(SYNC),
        info: info.clone(),
        backing,
        state,
        _fd,
        temporary: is_private(&info.mountpoint),
    })
}

impl Mounted {
    /// Returns its daemon.
    pub(super) fn daemon(&self) -> &DaemonInfo {
        &self.info
    }

    /// Its tree as a replica; with `dry` one that is only compared.
    pub(super) fn replica<'a>(
        &self,
        force: bool,
        dry: bool,
        attributes: Attributes,
        report: Box<Report<'a>>,
    ) -> Result<Local<'a>, CliError> {
        let (info, backing, state) = (self.info.clone(), self.backing.clone(), self.state.clone());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let disk = rustix::fs::open(&backing, flags, Mode::empty());
        let disk = disk.map_err(|e| CliError::io("open", &self.info.root, &e.into()))?.into();
        let past = Box::new(StoreOldContents { info, backing, state, disk });
        let open = if dry { Local::look_at } else { Local::open };
        let rules = self.rules(Some(attributes))?;
        Ok(open(&self.tree, &self.memory, &self.info.store, &rules, force, Some(past), report)?)
    }

    /// Returns the groups in its settings.
    pub(super) fn groups(&self) -> Result<Groups, CliError> {
        self.rules(None).map(|rules| rules.groups)
    }

    /// Returns its settings for syncs; with `attributes`, also those for owners and ACLs.
    fn rules(&self, attributes: Option<Attributes>) -> Result<Rules, CliError> {
        let path = self.state.join("config.toml");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(CliError::io("read", &path, &e)),
        };
        let config = Config::parse(&text).map_err(|e| CliError::new(format!("{}: {e}", path.display())))?;
        let wrong = |e: &dyn std::fmt::Display| CliError::new(format!("{}: {e}", path.display()));
        let sees = attributes.map(|attributes| attributes.sees(&self.tree, Some(self.info.pid), &config));
        let owners = Arc::new(Owners::new(sees.transpose()?.unwrap_or_default(), &config.owners));
        let groups = Groups::of(config.groups).map_err(|e| wrong(&e))?;
        let selection =
            Selection::of(config.sync_only.as_deref(), &config.sync_not).map_err(|e| wrong(&e))?;
        Ok(Rules { groups, selection, owners })
    }

    /// Returns whether the mount ends with the sync.
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary
    }

    /// Ends the private mount.
    pub(super) fn end(&mut self) {
        if !std::mem::take(&mut self.temporary) {
            return;
        }
        let mut command = Program::Dedupctl.command();
        command.arg("unmount").arg(&self.tree).stdin(Stdio::null()).stdout(Stdio::null());
        if command.status().is_ok_and(|status| status.success()) {
            let _ = std::fs::remove_dir(&self.tree);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.end();
    }
}
