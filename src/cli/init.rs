use super::error::CliError;
use super::home::home;
use super::output::{Output, plain, size};
use super::{CliResult, Global, Outcome};
use crate::chunk::ChunkParams;
use crate::config::{Config, dedup_text, parse_dedup, parse_size};
use crate::control;
use crate::repo::{self, InitOptions, Repo};
use crate::tree::Dedup;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Create the store of a directory without mounting it
#[derive(clap::Args)]
#[command(
    after_help = "The files in DIR stay as they are. `dedupctl scan DIR` indexes them; `dedupfs DIR` mounts the overlay \
    and converts files.\n\
    Example: dedupctl init /data --chunk-avg 8KiB"
)]
pub(super) struct Init {
    /// The directory to overlay
    dir: PathBuf,
    /// Average size of chunks, a power of two; it cannot be changed later
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = parse_size)]
    chunk_avg: u64,
    /// When files move into the store: on-close, idle:TIME or off
    #[arg(long, value_name = "POLICY", value_parser = parse_dedup)]
    dedup: Option<Dedup>,
    /// Total memory for caches and buffers of a mount [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Memory for decoded data of a mount [default: a quarter of --memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_bytes: Option<u64>,
    /// Allow a system directory, another user's home, or a directory with mounts below
    #[arg(long)]
    force_root: bool,
}

#[derive(Serialize)]
struct Created {
    root: PathBuf,
    store: PathBuf,
    chunk_avg: u64,
    policy: String,
}

impl Init {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let chunk = ChunkParams::with_average(self.chunk_avg).map_err(|e| CliError::new(e.to_string()))?;
        for path in
            [Some(self.dir.as_path()), global.store.as_deref().and_then(Path::parent)].into_iter().flatten()
        {
            if let Ok(Some(info)) = control::daemon_at(path) {
                let message = format!(
                    "{}: lies in the overlay mounted at {}",
                    path.display(),
                    info.mountpoint.display()
                );
                return Err(
                    CliError::new(message).hint("that has its store already, and overlays cannot be nested")
                );
            }
        }
        let mut dedup = self.dedup;
        if dedup != Some(Dedup::Off) && self.dir.is_dir() && !repo::keeps_xattrs(&self.dir) {
            out.note("this filesystem keeps no user xattrs: files stay as they are and are only indexed");
            dedup = Some(Dedup::Off);
        }
        let options = InitOptions {
            chunk,
            config: Config {
                dedup,
                memory_bytes: self.memory,
                cache_bytes: self.cache_bytes,
                ..Config::default()
            },
            force_root: self.force_root,
            home: home(),
        };
        let layout = Repo::init(&self.dir, global.store.as_deref(), &options)?;
        let policy = dedup_text(dedup.unwrap_or(Dedup::OnClose));
        let created = Created { root: layout.root, store: layout.state, chunk_avg: self.chunk_avg, policy };
        out.result(&created, |created| {
            format!(
                "store of {} created in {}: chunks of {} on average, policy {}\n",
                plain(&created.root.to_string_lossy()),
                plain(&created.store.to_string_lossy()),
                size(created.chunk_avg),
                created.policy
            )
        })?;
        Ok(Outcome::Clean)
    }
}
