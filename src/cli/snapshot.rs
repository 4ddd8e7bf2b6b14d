use super::error::CliError;
use super::file_version::find_gone;
use super::output::{Output, plain, size, table};
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response, SnapshotReport, SnapshotRequest, SnapshotRow, To};
use crate::control::Found;
use std::path::{Path, PathBuf};

/// Create, list, show, compare, restore, remove snapshots
#[derive(clap::Args)]
#[command(
    after_help = "Snapshots can be looked into in the mount too, below the hidden directory .snapshots/ID/ at its root. \
    One without a name is kept as long as the rules of [history] in config.toml say; a name keeps it until it is removed.\n\
    The daemon takes snapshots by itself if [history] has a schedule: snapshots = \"hourly:24 daily:7 weekly:4\".\n\
    Example: dedupctl snapshot create --name before-upgrade\n\
    Example: dedupctl snapshot restore before-upgrade etc/hosts\n\
    Example: dedupctl snapshot diff before-upgrade"
)]
pub(super) struct Snapshots {
    #[command(subcommand)]
    what: What,
    /// A path of the overlay, for commands without PATH; by default the current directory
    #[arg(long, global = true, value_name = "PATH")]
    at: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum What {
    /// Take a snapshot of the present tree
    Create {
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
        /// A name that finds it, and keeps it until it is removed
        #[arg(long, default_value = "", hide_default_value = true)]
        name: String,
        /// Examine the metadata of all files, even if the changes are known
        #[arg(long)]
        walk: bool,
    },
    /// List snapshots
    #[command(after_help = "Example: dedupctl snapshot list /data")]
    List {
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
    },
    /// List a directory of a snapshot
    #[command(after_help = "Example: dedupctl snapshot show before-upgrade etc")]
    Show {
        /// Its name, or the first digits of its id
        id: String,
        /// File or directory, as a path in the overlay
        path: Option<PathBuf>,
    },
    /// Compare two snapshots, or one with the present tree
    Diff {
        /// The first
        a: String,
        /// The second; by default the present tree
        b: Option<String>,
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
    },
    /// Restore a snapshot, or a directory or file of it
    Restore {
        /// Its name, or the first digits of its id
        id: String,
        /// File or directory, as a path in the overlay; by default all of it
        path: Option<PathBuf>,
        /// Write it to this path, which must not exist, and change nothing in place
        #[arg(short = 'o', long, value_name = "OUT")]
        output: Option<PathBuf>,
        /// In place: remove files that the snapshot lacks (`log` and `restore` can bring them back)
        #[arg(long, conflicts_with = "output")]
        delete: bool,
    },
    /// Remove a snapshot
    #[command(after_help = "Example: dedupctl snapshot remove before-upgrade")]
    Remove {
        /// Its name, or the first digits of its id
        id: String,
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
    },
}

impl Snapshots {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let here = |path: &Option<PathBuf>| find(global, path.as_deref().or(self.at.as_deref()));
        let inside = |path: Option<&Path>| match path {
            Some(path) => inside(global, path),
            None => Ok((here(&None)?, PathBuf::new())),
        };
        let (found, work, request) = match &self.what {
            What::Create { path, name, walk } => {
                (here(path)?, Work::Change, SnapshotRequest::Create { name: name.clone(), walk: *walk })
            }
            What::List { path } => (here(path)?, Work::Ask, SnapshotRequest::List),
            What::Show { id, path } => {
                let (found, path) = inside(path.as_deref())?;
                (found, Work::Ask, SnapshotRequest::Show { id: id.clone(), path })
            }
            What::Diff { a, b, path } => {
                let request = SnapshotRequest::Diff { a: a.clone(), b: b.clone() };
                (here(path)?, if b.is_none() { Work::Change } else { Work::Ask }, request)
            }
            What::Restore { id, path, output, delete } => {
                let (found, path) = inside(path.as_deref())?;
                let to = output.as_deref().map(std::path::absolute).transpose();
                let to = to.map_err(|e| CliError::new(format!("-o: {e}")))?.map(To);
                let request = SnapshotRequest::Restore { id: id.clone(), path, to, delete: *delete };
                (found, Work::Change, request)
            }
            What::Remove { id, path } => (here(path)?, Work::Ask, SnapshotRequest::Remove { id: id.clone() }),
        };
        let (session, _) = Session::open(found, work, out)?;
        let report = match session.ask(Request::Snapshot(request), out)? {
            Response::Snapshot(report) => report,
            other => return Err(unexpected(&other)),
        };
        out.result(&report, |report| self.text(report))?;
        let failed = report.restored.as_ref().is_some_and(|done| !done.errors.is_empty());
        let differs = report.differences.as_ref().is_some_and(|rows| !rows.is_empty());
        Ok(if failed || differs { Outcome::Findings } else { Outcome::Clean })
    }

    fn text(&self, report: &SnapshotReport) -> String {
        match &self.what {
            What::Create { .. } => match report.snapshots.first() {
                Some(row) => {
                    let kept = if row.name.is_empty() { ", kept by the rules" } else { "" };
                    let open = match row.open {
                        0 => String::new(),
                        open => format!("; {open} files were being written to"),
                    };
                    format!("{}: {} files, {}{kept}{open}\n", row.id, row.files, size(row.bytes))
                }
                None => String::new(),
            },
            What::List { .. } => list(&report.snapshots),
            What::Show { .. } => {
                let rows: Vec<_> = report
                    .entries
                    .iter()
                    .map(|row| {
                        let bytes = if row.kind == "file" { size(row.size) } else { String::new() };
                        vec![row.kind.clone(), row.mode.clone(), bytes, time(&row.mtime), plain(&row.name)]
                    })
                    .collect();
                table(&rows, &[2])
            }
            What::Diff { .. } => {
                let rows = report.differences.iter().flatten();
                rows.map(|row| format!("{:<10}  {}\n", row.how, plain(&row.path))).collect()
            }
            What::Restore { .. } => match &report.restored {
                Some(done) => {
                    let errors: String =
                        done.errors.iter().map(|error| format!("not restored: {}\n", plain(error))).collect();
                    format!(
                        "{} files restored, {}; {} were as they were, {} removed: {}\n{errors}",
                        done.files,
                        size(done.bytes),
                        done.unchanged,
                        done.removed,
                        plain(&done.to)
                    )
                }
                None => String::new(),
            },
            What::Remove { .. } => {
                "removed; `dedupctl gc` frees the content that only it needed\n".to_owned()
            }
        }
    }
}

/// Returns the overlay of a path that may not exist any more, and the path in it.
fn inside(global: &Global, path: &Path) -> Result<(Found, PathBuf), CliError> {
    let found = find_gone(global, path)?;
    let (Found::Daemon { path, .. } | Found::Direct { path, .. }) = &found;
    let path = path.clone();
    Ok((found, path))
}

fn list(snapshots: &[SnapshotRow]) -> String {
    if snapshots.is_empty() {
        return "no snapshots\n".to_owned();
    }
    let mut rows = vec![["id", "time", "files", "bytes", "machine", "name"].map(str::to_owned).to_vec()];
    for row in snapshots {
        let name = plain(&row.name);
        rows.push(vec![
            row.id.clone(),
            time(&row.time),
            row.files.to_string(),
            size(row.bytes),
            plain(&row.machine),
            name,
        ]);
    }
    table(&rows, &[2, 3])
}

fn time(text: &str) -> String {
    text.get(..19).unwrap_or(text).replace('T', " ")
}
