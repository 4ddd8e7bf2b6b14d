use super::error::CliError;
use super::file_version::{FileVersion, find_gone};
use super::output::{Output, plain, size, table};
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{DiffReport, Request, Response, Side};
use crate::control::{ControlError, Found};
use std::path::{Path, PathBuf};

/// Regions shown by default; scripts get all.
const SHOWN: usize = 20;
/// Bytes of either side that a page shows.
pub(super) const PAGE_BYTES: u64 = 256 << 10;

/// Show which bytes two files or versions share
#[derive(clap::Args)]
#[command(
    after_help = "Exit code 1: they differ. Bytes are shared from 32 in a row on, wherever they are in either.\n\
    Example: dedupctl diff report.odt@2 report.odt\n\
    Example: dedupctl diff report.odt@1 report.odt@2 --json\n\
    Example: dedupctl diff homework/ann.c homework/bob.c --html both.html"
)]
pub(super) struct Diff {
    /// The first: a file, or FILE@N
    a: PathBuf,
    /// The second
    b: PathBuf,
    /// Limit of regions; the longest are kept [default: 20 in a table, else all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Write an HTML page to FILE: both side by side, with common parts marked; it needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Diff {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (a, first) = side(global, &self.a)?;
        let (b, second) = side(global, &self.b)?;
        let found = match first.or(second) {
            Some(found) => found,
            None => find(global, None)?,
        };
        let (session, _) = Session::open(found, Work::Change, out)?;
        let all = global.json || self.html.is_some();
        let limit = self.limit.unwrap_or(if all { usize::MAX } else { SHOWN });
        let excerpt_bytes = if self.html.is_some() { PAGE_BYTES } else { 0 };
        let mut report = match session.ask(Request::Diff { a, b, limit, excerpt_bytes }, out)? {
            Response::Diff(report) => report,
            other => return Err(unexpected(&other)),
        };
        if let (Some(file), Some(excerpts)) = (&self.html, report.excerpts.take()) {
            super::pages::write(&super::pages::diff(&report, excerpts), file, out)?;
        }
        if global.json || self.html.is_none() {
            out.result(&report, text)?;
        }
        Ok(if report.identical { Outcome::Clean } else { Outcome::Findings })
    }
}

fn side(global: &Global, given: &Path) -> Result<(Side, Option<Found>), CliError> {
    let file = FileVersion::of(given);
    let inside = match file.n {
        Some(_) => Some(find_gone(global, &file.path)?),
        None => match (&global.store, crate::control::find(given)) {
            (Some(_), _) => Some(find(global, Some(given))?),
            (None, Ok(found)) => Some(found),
            (None, Err(ControlError::Outside { .. } | ControlError::NoStore(_))) => None,
            (None, Err(e)) => return Err(e.into()),
        },
    };
    Ok(match inside {
        Some(found) => {
            let (Found::Daemon { path, .. } | Found::Direct { path, .. }) = &found;
            (Side { path: path.clone(), outside: false, n: file.n }, Some(found))
        }
        None => {
            let path = given.canonicalize().map_err(|e| CliError::io("find", given, &e))?;
            (Side { path, outside: true, n: None }, None)
        }
    })
}

fn text(report: &DiffReport) -> String {
    let (a, b) = (plain(&report.a), plain(&report.b));
    if report.identical {
        return format!("{a} and {b} are the same: {}\n", size(report.a_size));
    }
    let mut text = format!(
        "{a_common} of {a_size} of {a}, {b_common} of {b_size} of {b} are shared\n",
        a_common = size(report.bytes_common),
        a_size = size(report.a_size),
        b_common = size(report.b_bytes_common),
        b_size = size(report.b_size)
    );
    let mut rows = vec![["in the first", "in the second", "bytes"].map(str::to_owned).to_vec()];
    for region in &report.regions {
        rows.push([region.a_offset, region.b_offset, region.length].map(|n| n.to_string()).to_vec());
    }
    if !report.regions.is_empty() {
        text += &table(&rows, &[0, 1, 2]);
    }
    if report.omitted > 0 {
        text += &format!("and {} shorter regions: --limit N shows more\n", report.omitted);
    }
    text
}
