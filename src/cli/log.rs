use super::file_version::find_gone;
use super::output::{Output, plain, size, table};
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{HistoryUse, LogReport, Request, Response};
use crate::convert::snapshots_fill_disk;
use std::path::PathBuf;

/// List versions of a file, or the space of all versions
#[derive(clap::Args)]
#[command(
    after_help = "Follows the file through renames, and knows files that are gone. Versions are numbered from 1; a \
    number stays when older versions are given up by the rules of [history] in config.toml.\n\
    Example: dedupctl log thesis.tex\n\
    Example: dedupctl restore thesis.tex@3\n\
    Example: dedupctl log"
)]
pub(super) struct Log {
    /// The file; it may be removed. Without it: the space of all versions and snapshots
    file: Option<PathBuf>,
}

impl Log {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (session, path) = match &self.file {
            Some(file) => Session::open(find_gone(global, file)?, Work::Change, out)?,
            None => (Session::open(find(global, None)?, Work::Change, out)?.0, PathBuf::new()),
        };
        match session.ask(Request::Log { path }, out)? {
            Response::Log(report) => {
                out.result(&report, text)?;
                if report.kept_plain {
                    out.note(&format!(
                        "{} is kept plain: it is rewritten as a whole again and again. Its next version is made once it was left \
                         alone for a while; `dedupctl snapshot create` keeps it as it is now",
                        plain(&report.path)
                    ));
                }
                if report.history.snapshots_fill_disk {
                    out.note(&snapshots_fill_disk(&size(report.history.named_snapshots_bytes)));
                }
            }
            other => return Err(unexpected(&other)),
        }
        Ok(Outcome::Clean)
    }
}

/// Describes the space of versions and snapshots.
pub(super) fn history(use_: &HistoryUse) -> String {
    format!(
        "{bytes} of at most {max} for versions, {named} for snapshots with a name",
        bytes = size(use_.bytes),
        max = size(use_.max_bytes),
        named = size(use_.named_snapshots_bytes)
    )
}

fn text(report: &LogReport) -> String {
    if report.path.is_empty() {
        return history(&report.history) + "\n";
    }
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
