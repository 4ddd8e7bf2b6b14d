use super::error::CliError;
use super::output::Output;
use super::session::{find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response};
use crate::control::{self, ControlError, Found};
use crate::fuse;
use serde::Serialize;
use std::path::PathBuf;

/// Wait for conversions in flight, then unmount
#[derive(clap::Args)]
#[command(
    after_help = "Returns when the daemon has ended and the store is closed.\nExample: dedupctl unmount /mnt/data"
)]
pub(super) struct Unmount {
    /// Any path in the mounted overlay
    path: PathBuf,
}

#[derive(Serialize)]
struct Unmounted {
    unmounted: PathBuf,
    /// What the daemon could not finish before.
    unfinished: Option<String>,
}

impl Unmount {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (mountpoint, unfinished) = match control::daemon_at(&self.path) {
            // Its daemon is gone: there is nothing to wait for.
            Err(ControlError::DeadMount(path)) => {
                fuse::clear_dead_mount(&path).map_err(|e| CliError::new(e.to_string()))?;
                (path, None)
            }
            _ => self.ask(global, out)?,
        };
        let text = format!("{}: unmounted\n", mountpoint.display());
        out.result(&Unmounted { unmounted: mountpoint, unfinished: unfinished.clone() }, |_| text)?;
        Ok(match unfinished {
            Some(unfinished) => {
                out.note(&unfinished);
                Outcome::Findings
            }
            None => Outcome::Clean,
        })
    }

    fn ask(&self, global: &Global, out: &Output) -> Result<(PathBuf, Option<String>), CliError> {
        let (mut client, info) = match find(global, Some(&self.path))? {
            Found::Daemon { client, info, .. } => (client, info),
            Found::Direct { layout, .. } => {
                let message = format!("{}: not mounted", layout.root.display());
                let hint = format!("there is nothing to do; `dedupfs {}` mounts it", layout.root.display());
                return Err(CliError::new(message).hint(hint));
            }
        };
        let mut meter = out.meter();
        let unfinished = match client.ask(&Request::Unmount, &mut |step| meter.show(&step)) {
            Ok(Response::Unmount(report)) => report.unfinished,
            Ok(other) => return Err(unexpected(&other)),
            Err(ControlError::Ended) => None,
            Err(e) => return Err(e.into()),
        };
        drop(meter);
        client.wait_gone();
        // However the daemon ended: what counts is whether the mount is gone.
        match control::daemon_at(&info.mountpoint) {
            Ok(Some(other)) if other.pid == info.pid => Err(ControlError::Ended.into()),
            Err(e @ ControlError::DeadMount(_)) => Err(e.into()),
            _ => Ok((info.mountpoint, unfinished)),
        }
    }
}
