use super::error::CliError;
use super::output::{Output, plain, size};
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response};
use crate::control::Found;
use crate::repo::Layout;
use std::path::PathBuf;

const LEFT_PLAIN: &str = "files stay plain if a rule says so, while they are still written, or if the user of the daemon may not write \
                          them, as the objects of git";

/// Index existing files, and convert them by policy
#[derive(clap::Args)]
#[command(
    after_help = "Only a mounted overlay converts files. Without a mount, `scan` indexes them and they stay as they are.\n\
    A scan that was interrupted goes on where it was.\nExample: dedupctl scan /data/photos"
)]
pub(super) struct Scan {
    /// File or directory; by default the current directory
    path: Option<PathBuf>,
    /// Convert files without a mount: they look empty until the overlay is mounted
    #[arg(long)]
    offline: bool,
    /// With --offline: do not ask
    #[arg(long, requires = "offline")]
    yes: bool,
}

impl Scan {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let found = find(global, self.path.as_deref())?;
        let (root, work) = match &found {
            Found::Direct { layout, .. } if self.offline => {
                self.ask(layout, out)?;
                (None, Work::Convert)
            }
            Found::Direct { layout, .. } => (Some(layout.root.clone()), Work::Change),
            Found::Daemon { .. } => (None, Work::Change),
        };
        let (session, path) = Session::open(found, work, out)?;
        let plain_root = root.filter(|_| session.withholds());
        let report = match session.ask(Request::Scan { path }, out)? {
            Response::Scan(report) => report,
            other => return Err(unexpected(&other)),
        };
        // Files that could not be read are not among the files.
        let left_plain = report.files.saturating_sub(report.converted + report.skipped);
        out.result(&report, |report| {
            let left = if left_plain > 0 { format!("{left_plain} left plain, ") } else { String::new() };
            format!(
                "{} files, {}: {} converted, {} skipped, {left}{} errors\n",
                report.files,
                size(report.bytes),
                report.converted,
                report.skipped,
                report.errors
            )
        })?;
        if let Some(root) = plain_root {
            out.note(&format!(
                "the files stay plain, because only a mounted overlay converts them. `dedupfs {0}` mounts it, and converts them in the \
                 background; `dedupctl scan --offline {0}` converts them now",
                plain(&root.to_string_lossy())
            ));
        } else if left_plain > 0 {
            out.note(LEFT_PLAIN);
        }
        Ok::<_, CliError>(if report.errors == 0 { Outcome::Clean } else { Outcome::Findings })
    }

    /// Returns once the user has agreed to files that look empty.
    fn ask(&self, layout: &Layout, out: &Output) -> Result<(), CliError> {
        if self.yes {
            return Ok(());
        }
        let root = plain(&layout.root.to_string_lossy());
        let warning = format!(
            "The files of {root} move into the store {}, and look empty until `dedupfs {root}` mounts the overlay.",
            plain(&layout.state.to_string_lossy())
        );
        match out.confirm(&warning)? {
            Some(true) => Ok(()),
            Some(false) => Err(CliError::new(format!("{root}: not converted, as you said"))),
            None => Err(CliError::new(format!("{root}: not converted: {warning}")).hint(
                "this needs a yes, and stdin is no terminal: give --yes, or mount the overlay instead",
            )),
        }
    }
}
