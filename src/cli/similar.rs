use super::error::CliError;
use super::output::{Output, plain, share, size, table};
use super::session::{Session, Work, find_for_file, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response, SimilarReport};
use crate::overlay::{Ranking, SimilarOptions};
use std::path::PathBuf;

/// Files that resemble one: the same, contained in it, containing it, or sharing parts
#[derive(clap::Args)]
#[command(
    after_help = "Shares are of the file asked about (CONTAINS), of the file found (CONTAINED) and of both \
    together (RESEMBLES).\nExample: dedupctl similar ~/Downloads/report.odt --store /data --min 0.5"
)]
pub(super) struct Similar {
    /// The file; it may lie outside the overlay
    file: PathBuf,
    /// How to find candidates
    #[arg(long, value_name = "METHOD", default_value = "default")]
    method: Method,
    /// Smallest share, 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0.25", value_parser = parse_share)]
    min: f64,
    /// At most so many files
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// What to rank by, and to apply --min to
    #[arg(long, value_name = "FIGURE", default_value = "containment")]
    by: By,
    /// Skip verification: figures are estimates from the index
    #[arg(long)]
    estimate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    /// The production default
    Default,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Containment,
    Resemblance,
    Bytes,
}

impl Similar {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let Method::Default = self.method;
        let stat = self.file.metadata().map_err(|e| CliError::io("open", &self.file, &e))?;
        if !stat.is_file() {
            let message = format!("{}: expected a regular file", self.file.display());
            return Err(CliError::new(message).hint("name one file, not a directory or a device"));
        }
        let (found, path, outside) = find_for_file(global, &self.file)?;
        let (session, _) = Session::open(found, Work::Ask, out)?;
        let by = match self.by {
            By::Containment => Ranking::Containment,
            By::Resemblance => Ranking::Resemblance,
            By::Bytes => Ranking::Bytes,
        };
        let options = SimilarOptions { min: self.min, limit: self.limit, by, estimate: self.estimate };
        match session.ask(Request::Similar { path, outside, options }, out)? {
            Response::Similar(report) => out.result(&report, text)?,
            other => return Err(unexpected(&other)),
        }
        Ok(Outcome::Clean)
    }
}

fn text(report: &SimilarReport) -> String {
    if report.matches.is_empty() {
        return "no similar files\n".to_owned();
    }
    let head = ["CONTAINS", "CONTAINED", "RESEMBLES", "COMMON", "SIZE", "FILE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.matches.iter().map(|found| {
        let mark = match (found.identical, found.verified) {
            (true, _) => " (identical)",
            (false, true) => "",
            (false, false) => " (estimate)",
        };
        vec![
            share(found.containment),
            share(found.contained_in),
            share(found.resemblance),
            size(found.bytes_common),
            size(found.size),
            plain(&found.path) + mark,
        ]
    }));
    table(&rows, &[0, 1, 2, 3, 4])
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}
