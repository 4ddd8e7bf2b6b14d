use super::error::CliError;
use super::host::{check_host, parse_host};
use super::met::Met;
use super::names::Names;
use super::output::{Output, plain, table};
use super::session::find;
use super::{CliResult, Global, Outcome};
use crate::control::Found;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Manage names of peers for `dedupctl sync`
#[derive(clap::Args)]
#[command(after_help = "Example: dedupctl remote add office ann@server:/data\n         dedupctl sync office")]
pub(super) struct Remote {
    #[command(subcommand)]
    action: Option<Action>,
    /// Like PATH
    #[arg(long, global = true, value_name = "PATH", hide_short_help = true)]
    at: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Name a peer
    #[command(after_help = "Example: dedupctl remote add office ann@server:/data")]
    Add {
        /// The name
        name: String,
        /// A directory, HOST:DIR or USER@HOST:DIR
        peer: String,
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
        /// Move the name to this peer, and to the copy that is there now
        #[arg(long)]
        replace: bool,
    },
    /// List names and peers
    #[command(after_help = "Example: dedupctl remote list")]
    List {
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
    },
    /// Remove a name
    #[command(after_help = "Example: dedupctl remote remove office")]
    Remove {
        /// The name
        name: String,
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
    },
}

/// Names of peers, in `remotes.toml` in the sync state.
pub(super) struct Remotes(Names);

#[derive(Serialize)]
struct Row {
    name: String,
    peer: String,
    /// The device that was met there; `None` before the first sync.
    device: Option<String>,
}

#[derive(Serialize)]
struct RemotesReport {
    remotes: Vec<Row>,
}

impl Remotes {
    pub(super) fn of(found: &Found) -> Result<Remotes, CliError> {
        Ok(Remotes(Names::open(found, "remotes.toml")?))
    }

    /// Returns the peer of that name, or the name itself if it names none.
    pub(super) fn resolve(&self, name: &str) -> String {
        self.0.rows.get(name).map_or(name, String::as_str).to_owned()
    }
}

/// Checks that a name is no directory, no host and no option.
fn check_name(name: &str) -> Result<(), CliError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.starts_with(['-', '.']) || !name.bytes().all(plain) {
        let message = format!("{name:?}: expected a name of letters, digits, `-`, `_` and `.`");
        return Err(CliError::new(message).hint("give a name like office or usb-disk"));
    }
    Ok(())
}

impl Remote {
    fn path(&self) -> Option<&Path> {
        let path = match &self.action {
            Some(Action::Add { path, .. } | Action::List { path } | Action::Remove { path, .. }) => {
                path.as_deref()
            }
            None => None,
        };
        path.or(self.at.as_deref())
    }

    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let found = find(global, self.path())?;
        let (mut remotes, mut met) = (Remotes::of(&found)?.0, Met::of(&found)?);
        drop(found);
        match &self.action {
            Some(Action::Add { name, peer, replace, .. }) => {
                check_name(name)?;
                if let Some((host, dir)) = parse_host(peer).filter(|_| !Path::new(peer).exists()) {
                    check_host(peer, host, dir)?;
                }
                // A relative path must work from every directory.
                let local = !peer.contains(':') || Path::new(peer).exists();
                let absolute =
                    std::path::absolute(peer).map_err(|e| CliError::io("find", peer.as_ref(), &e))?;
                let peer = if local { absolute.to_string_lossy().into_owned() } else { peer.clone() };
                if let Some(other) = remotes.rows.get(name).filter(|other| **other != peer && !replace) {
                    let message = format!("{name}: is the name of {other}");
                    return Err(CliError::new(message).hint("give another name, or `--replace` it"));
                }
                if *replace {
                    met.forget(&peer)?;
                }
                remotes.rows.insert(name.clone(), peer);
                remotes.save()?;
            }
            Some(Action::Remove { name, .. }) => {
                let Some(peer) = remotes.rows.remove(name) else {
                    return Err(CliError::new(format!("{name}: no such remote"))
                        .hint("`dedupctl remote list` shows them"));
                };
                remotes.save()?;
                met.forget(&peer)?;
            }
            Some(Action::List { .. }) | None => {}
        }
        let row = |(name, peer): (&String, &String)| Row {
            name: name.clone(),
            peer: peer.clone(),
            device: met.at(peer).map(str::to_owned),
        };
        let report = RemotesReport { remotes: remotes.rows.iter().map(row).collect() };
        out.result(&report, |report| {
            let rows: Vec<_> =
                report.remotes.iter().map(|row| vec![plain(&row.name), plain(&row.peer)]).collect();
            table(&rows, &[])
        })?;
        Ok(Outcome::Clean)
    }
}
