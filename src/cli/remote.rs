use super::error::CliError;
use super::output::{Output, plain, table};
use super::replica::memory_of;
use super::session::find;
use super::sync::{check_host, parse_host};
use super::{CliResult, Global, Outcome};
use crate::control::Found;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Name the peers of `dedupctl sync`
#[derive(clap::Args)]
#[command(after_help = "Example: dedupctl remote add office ann@server:/data\n         dedupctl sync office")]
pub(super) struct Remote {
    #[command(subcommand)]
    action: Option<Action>,
    /// A path of the overlay; by default the current directory
    #[arg(long, global = true, value_name = "PATH")]
    at: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Give a peer a name
    #[command(after_help = "Example: dedupctl remote add office ann@server:/data")]
    Add {
        /// The name
        name: String,
        /// A directory, HOST:DIR or USER@HOST:DIR
        peer: String,
        /// Give the name to this peer, though another has it
        #[arg(long)]
        replace: bool,
    },
    /// Show names and peers
    #[command(after_help = "Example: dedupctl remote list")]
    List,
    /// Forget a name
    #[command(after_help = "Example: dedupctl remote remove office")]
    Remove {
        /// The name
        name: String,
    },
}

/// Names of peers, in `remotes.toml` beside what syncs remember.
pub(super) struct Remotes {
    file: PathBuf,
    _state: Option<OwnedFd>,
    names: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    peer: String,
}

#[derive(Serialize)]
struct RemotesReport {
    remotes: Vec<Row>,
}

impl Remotes {
    pub(super) fn of(found: &Found) -> Result<Remotes, CliError> {
        let (memory, _state) = memory_of(found)?;
        let file = memory.join("remotes.toml");
        let names = match std::fs::read_to_string(&file) {
            Ok(text) => toml::from_str(&text).map_err(|e| {
                CliError::new(format!("remotes.toml: {}", e.to_string().trim_end()))
                    .hint("correct it, or remove it")
            })?,
            Err(e) if e.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(CliError::io("read", &file, &e)),
        };
        Ok(Remotes { file, _state, names })
    }

    /// The peer of that name, or else the name itself.
    pub(super) fn resolve(&self, name: &str) -> String {
        self.names.get(name).map_or(name, String::as_str).to_owned()
    }

    fn save(&self) -> Result<(), CliError> {
        let text = toml::to_string(&self.names).map_err(|e| CliError::new(e.to_string()))?;
        let new = self.file.with_extension("toml.new");
        let write = || {
            std::fs::create_dir_all(self.file.parent().unwrap_or(&self.file))?;
            let mut file = std::fs::File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            std::fs::rename(&new, &self.file)
        };
        write().map_err(|e| CliError::io("write", &self.file, &e))
    }
}

/// A name that is no directory, no host and no option.
fn check_name(name: &str) -> Result<(), CliError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.starts_with(['-', '.']) || !name.bytes().all(plain) {
        let message = format!("{name:?}: expected a name of letters, digits, `-`, `_` and `.`");
        return Err(CliError::new(message).hint("give a name like office or usb-disk"));
    }
    Ok(())
}

impl Remote {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let mut remotes = Remotes::of(&find(global, self.at.as_deref())?)?;
        match &self.action {
            Some(Action::Add { name, peer, replace }) => {
                check_name(name)?;
                if let Some((host, dir)) = parse_host(peer).filter(|_| !std::path::Path::new(peer).exists()) {
                    check_host(peer, host, dir)?;
                }
                // What is named from here is meant from everywhere.
                let local = !peer.contains(':') || std::path::Path::new(peer).exists();
                let absolute =
                    std::path::absolute(peer).map_err(|e| CliError::io("find", peer.as_ref(), &e))?;
                let peer = if local { absolute.to_string_lossy().into_owned() } else { peer.clone() };
                if let Some(other) = remotes.names.get(name).filter(|other| **other != peer && !replace) {
                    let message = format!("{name}: is the name of {other}");
                    return Err(CliError::new(message).hint("give another name, or `--replace` it"));
                }
                remotes.names.insert(name.clone(), peer);
                remotes.save()?;
            }
            Some(Action::Remove { name }) => {
                if remotes.names.remove(name).is_none() {
                    return Err(CliError::new(format!("{name}: no such remote"))
                        .hint("`dedupctl remote list` shows them"));
                }
                remotes.save()?;
            }
            Some(Action::List) | None => {}
        }
        let row = |(name, peer): (&String, &String)| Row { name: name.clone(), peer: peer.clone() };
        let report = RemotesReport { remotes: remotes.names.iter().map(row).collect() };
        out.result(&report, |report| {
            let rows: Vec<_> =
                report.remotes.iter().map(|row| vec![plain(&row.name), plain(&row.peer)]).collect();
            table(&rows, &[])
        })?;
        Ok(Outcome::Clean)
    }
}
