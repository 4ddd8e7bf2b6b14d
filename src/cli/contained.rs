use super::error::CliError;
use super::output::{Output, plain, share, size, table};
use super::session::{Session, Work, find, find_for_file, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::text::shown;
use crate::admin::{ContainedReport, FileRef, Request, Response};
use crate::config::parse_size;
use crate::control::Found;
use std::path::{Path, PathBuf};

/// Rows of each table shown to people; `--json` has all.
const ROWS_SHOWN: usize = 50;

/// Show how much of a directory is also elsewhere
#[derive(clap::Args)]
#[command(
    after_help = "Names do not matter: a file is contained as far as files of the other directory have its bytes, in \
    substrings of 32 bytes or more. Exit code 1 says that something is not contained.\n\
    Example: dedupctl contained ~/old-backup /data/archive\n\
    Example: dedupctl contained /data/incoming"
)]
pub(super) struct Contained {
    /// The directory or file in question; it may be outside the overlay
    tree: PathBuf,
    /// The directory that may contain it; by default the rest of the overlay. It may be outside too, if the
    /// first path or --store leads to a store
    holder: Option<PathBuf>,
    /// Limit of compared bytes; beyond it figures are lower bounds, and the report says so
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    budget: u64,
}

impl Contained {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        // Before the search for a store: a missing path is the more likely mistake.
        for path in std::iter::once(&self.tree).chain(&self.holder) {
            path.metadata().map_err(|e| CliError::io("find", path, &e))?;
        }
        let found = self.find(global)?;
        let tree = place(&found, &self.tree)?;
        let holder = self.holder.as_deref().map(|path| place(&found, path)).transpose()?;
        let (session, _) = Session::open(found, Work::Ask, out)?;
        let request = Request::Contained { tree, holder, budget_bytes: self.budget };
        let report = match session.ask(request, out)? {
            Response::Contained(report) => report,
            other => return Err(unexpected(&other)),
        };
        out.result(&report, |report| self.text(report))?;
        if report.errors > 0 {
            out.note(&format!("{} files could not be read and are left out", report.errors));
        }
        let whole = report.contained_bytes == report.bytes && report.errors == 0;
        Ok(if whole { Outcome::Clean } else { Outcome::Findings })
    }

    /// Finds the store of either path, else the one given, else that of the current directory.
    fn find(&self, global: &Global) -> Result<Found, CliError> {
        let first = find_for_file(global, &self.tree);
        match (&self.holder, first) {
            (_, Ok((found, _, false))) => Ok(found),
            (Some(holder), _) => Ok(find_for_file(global, holder)?.0),
            (None, _) => find(global, None),
        }
    }

    fn text(&self, report: &ContainedReport) -> String {
        let mut text = String::new();
        let missing = |bytes: u64, contained: u64| size(bytes - contained);
        let lacking: Vec<_> =
            report.directories.iter().filter(|dir| dir.contained_bytes < dir.bytes).collect();
        if !lacking.is_empty() {
            let mut rows = vec![["CONTAINED", "MISSING", "SIZE", "DIRECTORY"].map(str::to_owned).to_vec()];
            rows.extend(lacking.iter().take(ROWS_SHOWN).map(|dir| {
                vec![
                    share(dir.share),
                    missing(dir.bytes, dir.contained_bytes),
                    size(dir.bytes),
                    plain(&dir.path),
                ]
            }));
            text.push_str(&(table(&rows, &[0, 1, 2]) + &more(lacking.len()) + "\n"));
        }
        let lacking: Vec<_> = report.files.iter().filter(|file| file.contained_bytes < file.size).collect();
        if !lacking.is_empty() {
            let heads = ["CONTAINED", "MISSING", "SIZE", "FILE", "MOSTLY IN"];
            let mut rows = vec![heads.map(str::to_owned).to_vec()];
            rows.extend(lacking.iter().take(ROWS_SHOWN).map(|file| {
                let mark = if file.unfinished { " (unfinished)" } else { "" };
                vec![
                    share(file.share),
                    missing(file.size, file.contained_bytes),
                    size(file.size),
                    plain(&shown(&file.path)) + mark,
                    file.holder.as_deref().map_or_else(|| "-".to_owned(), |path| plain(&shown(path))),
                ]
            }));
            text.push_str(&(table(&rows, &[0, 1, 2]) + &more(lacking.len()) + "\n"));
        }
        let files = report.directories.first().map_or(0, |dir| dir.files);
        text.push_str(&format!(
            "{contained} of {bytes} are contained ({share}): {identical} of {files} files are identical to one of {}\n",
            report.holder_files,
            contained = size(report.contained_bytes),
            bytes = size(report.bytes),
            share = share(report.share),
            identical = report.identical,
        ));
        text.push_str(&format!("{} compared, of at most {}", size(report.compared_bytes), size(self.budget)));
        text.push_str(&match report.unfinished {
            0 => "\n".to_owned(),
            files => {
                format!("; {files} files were not compared with all candidates: --budget SIZE raises it\n")
            }
        });
        text
    }
}

fn more(all: usize) -> String {
    match all.saturating_sub(ROWS_SHOWN) {
        0 => String::new(),
        left => format!("... and {left} more rows: --json has all\n"),
    }
}

/// Returns the location of a path, relative to the store's root if it is inside.
fn place(found: &Found, path: &Path) -> Result<FileRef, CliError> {
    let absolute = path.canonicalize().map_err(|e| CliError::io("find", path, &e))?;
    let below = match found {
        Found::Daemon { info, .. } => {
            absolute.strip_prefix(&info.mountpoint).or_else(|_| absolute.strip_prefix(&info.root))
        }
        Found::Direct { layout, .. } => absolute.strip_prefix(&layout.root),
    };
    Ok(match below {
        Ok(path) => FileRef { path: path.to_owned(), outside: false },
        Err(_) => FileRef { path: absolute, outside: true },
    })
}
