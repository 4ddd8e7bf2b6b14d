//! The program `dedupfs`.

use super::background::{self, Ready};
use super::error::CliError;
use super::home::home;
use super::output::size;
use super::{CliResult, Outcome, logging, mount_options, remount, service};
use crate::config::{parse_dedup, parse_size};
use crate::daemon::{Daemon, Options, Refuse, Serving, Starting};
use crate::repo::LOG;
use crate::tree::Dedup;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval of progress reports during a long start.
const OPENING_INTERVAL: Duration = Duration::from_secs(3);

/// Mounts a deduplicating overlay of a directory.
///
/// Without MOUNTPOINT it mounts over DIR itself, so that applications notice nothing. The first mount
/// prepares DIR. Programs that had DIR as working directory before still see the bare directory.
#[derive(clap::Parser)]
#[command(name = "dedupfs", version)]
#[command(after_help = "Example: dedupfs /data\n         dedupfs /data /mnt/data -o ro,allow_other\n\
    In fstab: /data /mnt/data fuse.dedupfs noauto,dedup=idle:10m 0 0\n\
    End it with `dedupctl unmount /data`, umount or fusermount3 -u.")]
pub(super) struct Mount {
    /// The directory to overlay
    dir: PathBuf,
    /// The mount point; by default DIR itself
    mountpoint: Option<PathBuf>,
    /// Options in the style of mount(8), separated by commas
    #[arg(short = 'o', value_name = "OPTS", action = clap::ArgAction::Append)]
    options: Vec<String>,
    /// Stay in the foreground and log to stderr
    #[arg(long, short)]
    foreground: bool,
    /// Keep the store in this directory instead of DIR/.dedupfs
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// When files move into the store: on-close, idle:TIME (like idle:10m) or off
    #[arg(long, value_name = "POLICY", value_parser = parse_dedup)]
    dedup: Option<Dedup>,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Admit other users, as far as modes and owners allow (always for root)
    #[arg(long)]
    allow_other: bool,
    /// Do all I/O in the daemon, instead of leaving plain files to the kernel
    #[arg(long)]
    no_passthrough: bool,
    /// Total memory for caches and buffers [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Memory for decoded data [default: a quarter of --memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_bytes: Option<u64>,
    /// Allow a system directory, another user's home, or a directory with mounts below
    #[arg(long)]
    force_root: bool,
    /// This is the background process; it reports on stdout when it is ready
    #[arg(long, hide = true)]
    background_child: bool,
    /// Only index files: a private mount for a sync
    #[arg(long, hide = true)]
    index_only: bool,
    /// Unmount when this process ends, and remove the mount point
    #[arg(long, hide = true, value_name = "PID")]
    mounted_for: Option<u32>,
    /// Flags that mount(8) gives to its helpers
    #[arg(short = 'n', hide = true)]
    _no_mtab: bool,
    #[arg(short = 's', hide = true)]
    _sloppy: bool,
    #[arg(short = 'v', hide = true)]
    _verbose: bool,
    #[arg(short = 't', hide = true, value_name = "TYPE")]
    _type: Option<String>,
}

impl Mount {
    pub(super) fn run(&self, args: &[OsString]) -> CliResult {
        if remount::is_asked(&self.options) {
            return remount::run(self.mountpoint.as_ref().unwrap_or(&self.dir), &self.options);
        }
        let options = self.options()?;
        if !self.foreground && !self.background_child {
            return background::launch(args.get(1..).unwrap_or_default());
        }
        logging::start("warn,dedupfs=info,fuser=error", false);
        // The daemon must not keep the caller's directory busy.
        std::env::set_current_dir("/").map_err(|e| CliError::io("enter", "/".as_ref(), &e))?;
        let ready = if self.background_child { Some(background::detach()?) } else { None };
        let result = serve(&options, ready.as_ref());
        match (result, &ready) {
            (Err(error), Some(ready)) if !ready.told() => {
                // The parent prints it.
                ready.failed(&error);
                Err(CliError { silent: true, ..error })
            }
            (result, _) => result,
        }
    }

    /// Flags and `-o` together, with absolute paths. Flags win.
    pub(super) fn options(&self) -> Result<Options, CliError> {
        let absolute = |path: &PathBuf| std::path::absolute(path).map_err(|e| CliError::io("find", path, &e));
        let mut options = Options {
            dir: absolute(&self.dir)?,
            mountpoint: self.mountpoint.as_ref().map(absolute).transpose()?,
            store: None,
            dedup: None,
            index_only: self.index_only,
            mounted_for: self.mounted_for,
            force_root: self.force_root,
            home: home(),
            read_only: false,
            allow_other: false,
            passthrough: true,
            memory_bytes: None,
            cache_bytes: None,
            refuse: Refuse::default(),
            user_runtime: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        };
        for list in &self.options {
            mount_options::apply(list, &mut options)?;
        }
        options.store = self.store.clone().or(options.store).as_ref().map(absolute).transpose()?;
        options.dedup = self.dedup.or(options.dedup);
        options.read_only |= self.read_only;
        options.allow_other |= self.allow_other;
        options.passthrough &= !self.no_passthrough;
        options.memory_bytes = self.memory.or(options.memory_bytes);
        options.cache_bytes = self.cache_bytes.or(options.cache_bytes);
        Ok(options)
    }
}

fn serve(options: &Options, ready: Option<&Ready>) -> CliResult {
    let mut log = None;
    let mut told = Instant::now();
    let daemon = Daemon::start(options, &mut |step| match step {
        Starting::Created(layout) => tracing::info!("a new store was made in {}", layout.state.display()),
        Starting::Full(error) => tracing::warn!(
            "{error}; mounted read-only: unmount it, make room on that filesystem or run `dedupctl gc`, and mount it again"
        ),
        Starting::Opening(step) => {
            if told.elapsed() > OPENING_INTERVAL {
                told = Instant::now();
                let text = format!("reading packs: {} of {}", size(step.done_bytes), size(step.total_bytes));
                tracing::info!("{text}");
                service::starting(&text);
            }
        }
        Starting::Opened(repo) => {
            if ready.is_some() && !repo.read_only() {
                log = background::open_log(&repo.state_file(LOG));
            }
        }
    })?;
    let mountpoint = daemon.mountpoint().to_owned();
    daemon.serve(|serving| match serving {
        Serving::Ready => {
            if let Some(ready) = ready {
                ready.mounted(&mountpoint, log.take());
            }
            service::ready(&mountpoint);
        }
        Serving::Ending => service::ending(),
    })?;
    Ok(Outcome::Clean)
}
