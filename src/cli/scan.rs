use super::error::CliError;
use super::output::{Output, size};
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response};
use std::path::PathBuf;

/// Index, and by policy convert, what is already there
#[derive(clap::Args)]
#[command(
    after_help = "A scan that was interrupted goes on where it was.\nExample: dedupctl scan /data/photos"
)]
pub(super) struct Scan {
    /// File or directory; by default the current directory
    path: Option<PathBuf>,
}

impl Scan {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (session, path) = Session::open(find(global, self.path.as_deref())?, Work::Convert, out)?;
        let report = match session.ask(Request::Scan { path }, out)? {
            Response::Scan(report) => report,
            other => return Err(unexpected(&other)),
        };
        out.result(&report, |report| {
            format!(
                "{} files, {}: {} converted, {} skipped, {} errors\n",
                report.files,
                size(report.bytes),
                report.converted,
                report.skipped,
                report.errors
            )
        })?;
        Ok::<_, CliError>(if report.errors == 0 { Outcome::Clean } else { Outcome::Findings })
    }
}
