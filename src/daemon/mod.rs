//! The process behind a mount, from opening the store to closing it cleanly.
//!
//! Start: clear a dead mount -> checks -> create the store if there is none -> open (and lock) it -> the
//! overlay's threads -> bind the control socket -> mount -> `daemon.json` -> serve the control socket ->
//! report to the caller. End, by a signal, a request or an outside unmount: no more requests -> unmount
//! (nothing is written any more) -> finish running conversions -> write the index -> close the store.
//!
//! A failure on the way leaves nothing mounted. Nothing here reads arguments or the environment, or prints.

mod error;
mod process;
mod schedule;
mod serve;

pub use error::DaemonError;
pub use process::{Refuse, raise_limits};
pub use serve::Serving;

use crate::chunk::ChunkParams;
use crate::config::Config;
use crate::control::{self, DaemonInfo, Found, Server};
use crate::fuse::{self, MountOptions, Mounted};
use crate::overlay::Background;
use crate::repo::{DAEMON, InitOptions, Layout, OpenOptions, Opening, Repo, RepoError};
use crate::tree::Dedup;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum of threads that answer the kernel.
const FUSE_THREADS_MIN: usize = 4;
/// Time for the current holder of the store to end.
const ENDING: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(100);

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// The backing directory.
    pub dir: PathBuf,
    /// The mount point; by default the directory itself.
    pub mountpoint: Option<PathBuf>,
    /// The store, if not in the directory.
    pub store: Option<PathBuf>,
    /// When files are converted; by default as the store's settings say.
    pub dedup: Option<Dedup>,
    /// Only index files: a private mount for a while, not one that the user asked for.
    pub index_only: bool,
    /// The process that needs this mount: when it ends, the mount and its mount point are removed.
    pub mounted_for: Option<u32>,
    /// Create the store even if that needs consent ([`InitOptions::force_root`]).
    pub force_root: bool,
    /// `HOME` of the user.
    pub home: Option<PathBuf>,
    /// Refuse all changes.
    pub read_only: bool,
    /// Admit other users.
    pub allow_other: bool,
    /// Let the kernel do the I/O of plain files.
    pub passthrough: bool,
    /// Approximate memory limit for everything that is bounded.
    pub memory_bytes: Option<u64>,
    /// Bytes of decoded chunks in memory: overrides their part of `memory_bytes`.
    pub cache_bytes: Option<u64>,
    /// Operations that the kernel refuses in this mount.
    pub refuse: Refuse,
    /// `XDG_RUNTIME_DIR` of the user.
    pub user_runtime: Option<PathBuf>,
}

/// A mounted overlay with all its servers.
pub struct Daemon {
    repo: Arc<Repo>,
    background: Background,
    mounted: Arc<Mounted>,
    server: Server,
    mountpoint: PathBuf,
    /// See [`Options::mounted_for`].
    client: Option<OwnedFd>,
}

/// Steps of the start that may take long or that the caller takes part in.
pub enum Starting<'a> {
    /// The store was created.
    Created(&'a Layout),
    /// The disk is full: the overlay is mounted read-only.
    Full(&'a RepoError),
    /// The index is catching up with the packs.
    Opening(Opening),
    /// The store is open and nothing is mounted: the last chance to open files next to it.
    Opened(&'a Repo),
}

impl Daemon {
    /// Mounts. When this returns, the mount answers; call [`Daemon::serve`] next.
    pub fn start(options: &Options, told: &mut dyn FnMut(Starting<'_>)) -> Result<Daemon, DaemonError> {
        let client = options.mounted_for.map(process::watched).transpose()?;
        let mountpoint = options.mountpoint.as_deref().unwrap_or(&options.dir);
        for path in [mountpoint, &options.dir] {
            if fuse::clear_dead_mount(path)? {
                tracing::info!("{}: a dead mount was cleared", path.display());
            }
        }
        let mountpoint = check(&options.dir, mountpoint, options.store.as_deref())?;
        let layout = find_or_init(options, told)?;
        if mountpoint.starts_with(&layout.state) {
            let found = format!("it lies in the store {}", layout.state.display());
            return Err(DaemonError::unsuitable(&mountpoint, "a mount point outside the store", found));
        }
        process::limit_arenas();
        process::raise_limits();
        process::expect_descriptors()?;
        process::clear_umask();
        let open = OpenOptions {
            dedup: options.dedup,
            convert: !options.index_only,
            read_only: options.read_only,
            memory_bytes: options.memory_bytes,
            cache_bytes: options.cache_bytes,
            rebuild: false,
            give_up_index: false,
        };
        let mut options = options.clone();
        let repo = match open_store(&layout, &open, told) {
            Err(DaemonError::Repo(full @ RepoError::NoRoom { .. })) if !options.read_only => {
                options.read_only = true;
                told(Starting::Full(&full));
                open_store(&layout, &OpenOptions { read_only: true, ..open }, told)?
            }
            opened => opened?,
        };
        told(Starting::Opened(&repo));
        let background = repo.overlay().start();
        match mount(&options, &repo, &mountpoint) {
            Ok((server, mounted)) => Ok(Daemon {
                repo: Arc::new(repo),
                background,
                mounted: Arc::new(mounted),
                server,
                mountpoint,
                client,
            }),
            Err(error) => {
                if let Err(e) = repo.close(background.stop()) {
                    tracing::warn!("{e}");
                }
                Err(error)
            }
        }
    }

    /// Returns the mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

/// Opens the store. Waits for one that is in use: an unmount is visible before its daemon has ended.
fn open_store(
    layout: &Layout,
    options: &OpenOptions,
    told: &mut dyn FnMut(Starting<'_>),
) -> Result<Repo, DaemonError> {
    let end = Instant::now() + ENDING;
    loop {
        match Repo::open(layout, options, &mut |step| told(Starting::Opening(step))) {
            Err(e @ RepoError::Locked { .. }) => {
                // A daemon that is ending has no mount any more, or does not listen any more.
                if let Ok(Found::Daemon { info, .. }) = control::find(&layout.root)
                    && control::daemon_at(&info.mountpoint).is_ok_and(|there| there.as_ref() == Some(&info))
                {
                    let DaemonInfo { root, mountpoint, pid, .. } = info;
                    return Err(DaemonError::Mounted { dir: root, mountpoint, pid });
                }
                if Instant::now() > end {
                    return Err(e.into());
                }
                std::thread::sleep(RETRY);
            }
            opened => return Ok(opened?),
        }
    }
}

/// Binds the control socket and mounts. After an error nothing is mounted.
fn mount(options: &Options, repo: &Repo, mountpoint: &Path) -> Result<(Server, Mounted), DaemonError> {
    let root = &repo.layout().root;
    let server = Server::bind(&control::runtime_dir(options.user_runtime.as_deref())?, repo.id())?;
    let info = DaemonInfo {
        socket: server.path().to_owned(),
        root: root.clone(),
        mountpoint: mountpoint.to_owned(),
        store: repo.id().to_string(),
        pid: std::process::id(),
    };
    let info = serde_json::to_vec(&info).map_err(|e| DaemonError::Text(e.to_string()))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mount = MountOptions {
        mountpoint: mountpoint.to_owned(),
        read_only: options.read_only,
        allow_other: options.allow_other,
        passthrough: options.passthrough,
        in_place: mountpoint == root,
        control_info: info.clone(),
        threads: cores.max(FUSE_THREADS_MIN),
    };
    let mounted = fuse::mount(repo.overlay().clone(), repo.history().clone(), mount)?;
    if let Err(e) = options.refuse.apply(mountpoint, options.read_only) {
        let _ = mounted.unmount(true);
        let message = format!("{}: nosuid, nodev, noexec: {e}", mountpoint.display());
        return Err(DaemonError::Text(message));
    }
    // Only needed to find the daemon from the bare directory: a failure here is not fatal.
    if let Err(e) = repo.write_state_file(DAEMON, &info)
        && !options.read_only
    {
        tracing::warn!("{e}");
    }
    Ok((server, mounted))
}

fn find_or_init(options: &Options, told: &mut dyn FnMut(Starting<'_>)) -> Result<Layout, DaemonError> {
    let wanted = options.store.as_deref();
    let found = match Layout::of(&options.dir) {
        // `init` checks whether the given store is the right one.
        Err(RepoError::PointerMissing { .. }) if wanted.is_some() && !options.read_only => None,
        found => found?,
    };
    if let Some(layout) = found {
        return match wanted.map(|store| store.canonicalize()) {
            Some(Ok(store)) if store != layout.state => {
                Err(DaemonError::OtherStore { dir: layout.root, wanted: store, found: layout.state })
            }
            Some(Err(_)) => Err(DaemonError::OtherStore {
                dir: layout.root,
                wanted: wanted.map(Path::to_owned).unwrap_or_default(),
                found: layout.state,
            }),
            _ => Ok(layout),
        };
    }
    if options.read_only {
        return Err(RepoError::NoStore { path: options.dir.clone() }.into());
    }
    let init = InitOptions {
        chunk: ChunkParams::default(),
        config: Config::default(),
        force_root: options.force_root,
        home: options.home.clone(),
    };
    let layout = Repo::init(&options.dir, wanted, &init)?;
    told(Starting::Created(&layout));
    Ok(layout)
}

/// Checks for everything that makes mounting impossible, before any change. Returns the mount point's
/// canonical path.
fn check(dir: &Path, mountpoint: &Path, store: Option<&Path>) -> Result<PathBuf, DaemonError> {
    fuse::check_available(rustix::process::geteuid().is_root())?;
    let canonical = |path: &Path, expected: &'static str| {
        let found = path.canonicalize().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => DaemonError::unsuitable(path, expected, "nothing of that name"),
            _ => DaemonError::unsuitable(path, expected, e.to_string()),
        })?;
        match found.metadata() {
            Ok(stat) if stat.is_dir() => Ok(found),
            Ok(_) => Err(DaemonError::unsuitable(path, expected, "a file")),
            Err(e) => Err(DaemonError::unsuitable(path, expected, e.to_string())),
        }
    };
    let root = canonical(dir, "a directory to overlay")?;
    if let Some(info) = control::daemon_at(&root)? {
        return Err(match info.root == root || info.mountpoint == root {
            true => DaemonError::Mounted { dir: root, mountpoint: info.mountpoint, pid: info.pid },
            false => RepoError::Nested { path: root, outer: info.mountpoint }.into(),
        });
    }
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK;
    if let Err(e) = rustix::fs::access(&root, access) {
        return Err(RepoError::io("read directory", &root, e).into());
    }
    // The hidden directory of a mounted overlay is not visible from inside: ask its daemon.
    let around = store.and_then(|store| store.ancestors().find(|dir| dir.exists()));
    if let (Some(store), Some(around)) = (store, around)
        && let Some(info) = control::daemon_at(around)?
    {
        return Err(RepoError::Nested { path: store.to_owned(), outer: info.mountpoint }.into());
    }
    let mountpoint = canonical(mountpoint, "a directory to mount on")?;
    if let Some(info) = control::daemon_at(&mountpoint)? {
        return Err(DaemonError::Mounted { dir: mountpoint, mountpoint: info.mountpoint, pid: info.pid });
    }
    let overlap = format!("{} and it overlap", root.display());
    if mountpoint != root && (mountpoint.starts_with(&root) || root.starts_with(&mountpoint)) {
        let expected = "a mount point that is DIR itself or apart from it";
        return Err(DaemonError::unsuitable(&mountpoint, expected, overlap));
    }
    if mountpoint != root && store.is_some_and(|store| store.starts_with(&mountpoint)) {
        let expected = "a mount point that does not hide the store";
        return Err(DaemonError::unsuitable(&mountpoint, expected, "the store in it"));
    }
    if let Some(Ok(store)) = store.map(Path::canonicalize)
        && mountpoint.starts_with(&store)
    {
        return Err(DaemonError::unsuitable(
            &mountpoint,
            "a mount point outside the store",
            "it lies in the store",
        ));
    }
    Ok(mountpoint)
}
