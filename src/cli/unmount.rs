use super::error::CliError;
use super::output::Output;
use super::session::find;
use super::{CliResult, Global, Outcome};
use crate::admin::Request;
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
}

impl Unmount {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let mountpoint = match control::daemon_at(&self.path) {
            // Its daemon is gone: there is nothing to wait for.
            Err(ControlError::DeadMount(path)) => {
                fuse::clear_dead_mount(&path).map_err(|e| CliError::new(e.to_string()))?;
                path
            }
            _ => self.ask(global, out)?,
        };
        let text = format!("{}: unmounted\n", mountpoint.display());
        out.result(&Unmounted { unmounted: mountpoint }, |_| text)?;
        Ok(Outcome::Clean)
    }

    fn ask(&self, global: &Global, out: &Output) -> Result<PathBuf, CliError> {
        let (mut client, info) = match find(global, Some(&self.path))? {
            Found::Daemon { client, info, .. } => (client, info),
            Found::Direct { layout, .. } => {
                let message = format!("{}: not mounted", layout.root.display());
                let hint = format!("there is nothing to do; `dedupfs {}` mounts it", layout.root.display());
                return Err(CliError::new(message).hint(hint));
            }
        };
        let mut meter = out.meter();
        match client.ask(&Request::Unmount, &mut |step| meter.show(&step)) {
            Ok(_) | Err(ControlError::Ended) => {}
            Err(e) => return Err(e.into()),
        }
        drop(meter);
        client.wait_gone();
        // However the daemon ended: what counts is whether the mount is gone.
        match control::daemon_at(&info.mountpoint) {
            Ok(Some(other)) if other.pid == info.pid => Err(ControlError::Ended.into()),
            Err(e @ ControlError::DeadMount(_)) => Err(e.into()),
            _ => Ok(info.mountpoint),
        }
    }
}
