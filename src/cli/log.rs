use super::file_version::find_gone;
use super::output::{Output, plain, size, table};
use super::session::{Session, Work, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{LogReport, Request, Response};
use std::path::PathBuf;

/// Versions of a file
#[derive(clap::Args)]
#[command(
    after_help = "Follows the file through renames, and knows files that are gone. Versions are numbered from 1; a \
    number stays when older versions are given up by the rules of [history] in config.toml.\n\
    Example: dedupctl log thesis.tex\n\
    Example: dedupctl restore thesis.tex@3"
)]
pub(super) struct Log {
    /// The file; it may be gone
    file: PathBuf,
}

impl Log {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (session, path) = Session::open(find_gone(global, &self.file)?, Work::Convert, out)?;
        match session.ask(Request::Log { path }, out)? {
            Response::Log(report) => out.result(&report, text)?,
            other => return Err(unexpected(&other)),
        }
        Ok(Outcome::Clean)
    }
}

fn text(report: &LogReport) -> String {
    let mut rows = vec![["n", "time", "size", "mode", "machine", "name then"].map(str::to_owned).to_vec()];
    for row in &report.versions {
        let then = if row.path == report.path { String::new() } else { plain(&row.path) };
        let time = row.time.get(..19).unwrap_or(&row.time).replace('T', " ");
        rows.push(vec![row.n.to_string(), time, size(row.size), row.mode.clone(), plain(&row.machine), then]);
    }
    if report.versions.is_empty() {
        return format!("{}: no versions are kept\n", plain(&report.path));
    }
    table(&rows, &[0, 2])
}
