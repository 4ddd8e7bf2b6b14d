use super::error::CliError;
use super::output::Output;
use super::session::{find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response, UnmountReport};
use crate::control::{self, ControlError, Found};
use crate::fuse;
use serde::Serialize;
use std::path::PathBuf;

/// Wait for running conversions, then unmount
#[derive(clap::Args)]
#[command(
    after_help = "Returns when the daemon has ended and the store is closed.\nExample: dedupctl unmount /mnt/data"
)]
pub(super) struct Unmount {
    /// Any path in the mounted overlay
    path: PathBuf,
    /// Also end it if other mount namespaces (containers, sandboxes) hold a copy of the mount
    #[arg(long)]
    lazy: bool,
}

#[derive(Serialize)]
struct Unmounted {
    unmounted: PathBuf,
    /// Work that the daemon could not finish before.
    unfinished: Option<String>,
    /// Processes in other mount namespaces that hold it: the daemon keeps serving them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held_by: Vec<String>,
}

impl Unmount {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (mountpoint, UnmountReport { unfinished, held_by }) = match control::daemon_at(&self.path) {
            // Its daemon is gone: there is nothing to wait for.
            Err(ControlError::DeadMount(path)) => {
                fuse::clear_dead_mount(&path).map_err(|e| CliError::new(e.to_string()))?;
                (path, UnmountReport::default())
            }
            _ => self.ask(global, out)?,
        };
        let text = format!("{}: unmounted\n", mountpoint.display());
        let held = (!held_by.is_empty()).then(|| {
            let path = mountpoint.display();
            format!(
                "{path}: other mount namespaces hold a copy of the mount, and its daemon keeps serving them: {}. It ends with these \
                 processes, or by `dedupctl unmount --lazy {path}`",
                held_by.join(", ")
            )
        });
        out.result(&Unmounted { unmounted: mountpoint, unfinished: unfinished.clone(), held_by }, |_| text)?;
        let notes: Vec<String> = unfinished.into_iter().chain(held).collect();
        notes.iter().for_each(|note| out.note(note));
        Ok(if notes.is_empty() { Outcome::Clean } else { Outcome::Findings })
    }

    fn ask(&self, global: &Global, out: &Output) -> Result<(PathBuf, UnmountReport), CliError> {
        let (mut client, info) = match find(global, Some(&self.path))? {
            Found::Daemon { client, info, .. } => (client, info),
            Found::Direct { layout, .. } => {
                let message = format!("{}: not mounted", layout.root.display());
                let hint = format!("there is nothing to do; `dedupfs {}` mounts it", layout.root.display());
                return Err(CliError::new(message).hint(hint));
            }
        };
        let mut meter = out.meter();
        let request = Request::Unmount { lazy: self.lazy };
        let report = match client.ask(&request, &mut |step| meter.show(&step)) {
            Ok(Response::Unmount(report)) => report,
            Ok(other) => return Err(unexpected(&other)),
            Err(ControlError::Ended) => UnmountReport::default(),
            Err(e) => return Err(e.into()),
        };
        drop(meter);
        if !report.held_by.is_empty() {
            return Ok((info.mountpoint, report));
        }
        client.wait_gone();
        // It does not matter how the daemon ended, only whether the mount is gone.
        match control::daemon_at(&info.mountpoint) {
            Ok(Some(other)) if other.pid == info.pid => Err(ControlError::Ended.into()),
            Err(e @ ControlError::DeadMount(_)) => Err(e.into()),
            _ => Ok((info.mountpoint, report)),
        }
    }
}
