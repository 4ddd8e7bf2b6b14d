use super::error::CliError;
use super::file_version::FileVersion;
use super::output::{Output, plain, size};
use super::session::{Session, Work, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response, RestoreReport, RestoreRequest, To};
use std::path::PathBuf;

/// Restore a version of a file
#[derive(clap::Args)]
#[command(
    after_help = "A restore in place first saves the present content as a version, then replaces it atomically. \
    Without @N it restores the last version; for a removed file, its last content.\n\
    Example: dedupctl restore thesis.tex@3\n\
    Example: dedupctl restore thesis.tex@3 -o old.tex"
)]
pub(super) struct Restore {
    /// The file, and its version number (see `dedupctl log`)
    #[arg(value_name = "FILE@N")]
    file: PathBuf,
    /// Write it to this new file instead
    #[arg(short = 'o', long, value_name = "OUT")]
    output: Option<PathBuf>,
}

impl Restore {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let file = FileVersion::of(&self.file);
        let to = self.output.as_deref().map(std::path::absolute).transpose();
        let to = to.map_err(|e| CliError::new(format!("-o: {e}")))?;
        let (session, path) = Session::open(file.find(global)?, Work::Change, out)?;
        let request = RestoreRequest { path, n: file.n, to: to.map(To) };
        match session.ask(Request::Restore(request), out)? {
            Response::Restore(report) => out.result(&report, text)?,
            other => return Err(unexpected(&other)),
        }
        Ok(Outcome::Clean)
    }
}

fn text(report: &RestoreReport) -> String {
    format!(
        "version {} of {}, {}: {}\n",
        report.n,
        plain(&report.path),
        size(report.bytes),
        plain(&report.to)
    )
}
