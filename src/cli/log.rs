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
        let (session, path) = Session::open(find_gone(global, &self.file)?, Work::Change, out)?;
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
        let time = short_time(&row.time);
        rows.push(vec![row.n.to_string(), time, size(row.size), row.mode.clone(), plain(&row.machine), then]);
    }
    if report.versions.is_empty() {
        return format!("{}: no versions are kept\n{}", plain(&report.path), snapshots(report));
    }
    table(&rows, &[0, 2])
}

fn short_time(time: &str) -> String {
    time.get(..19).unwrap_or(time).replace('T', " ")
}

fn snapshots(report: &LogReport) -> String {
    if report.snapshots.is_empty() {
        return String::new();
    }
    let mut rows = vec![["snapshot", "time", "size", "name"].map(str::to_owned).to_vec()];
    for row in &report.snapshots {
        rows.push(vec![row.id.clone(), short_time(&row.time), size(row.size), plain(&row.name)]);
    }
    let hint = "hint: `dedupctl snapshot restore SNAPSHOT FILE` brings it back\n";
    format!("It is in {} snapshots:\n{}{hint}", report.snapshots.len(), table(&rows, &[2]))
}
