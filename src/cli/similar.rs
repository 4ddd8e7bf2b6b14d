use super::error::CliError;
use super::methods::{self, ByMethod, WinnowOptions};
use super::output::Output;
use super::parse::{parse_look, parse_share};
use super::session::{Session, Work, find_for_file, unexpected};
use super::similar_rows::text;
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response};
use crate::config::parse_size;
use crate::contents::{Filter, Look, Ranking, SimilarOptions};
use std::path::PathBuf;

/// Find files that are identical to one, or share parts
#[derive(clap::Args)]
#[command(
    after_help = "Shares are of the file asked about (CONTAINS), of the file found (CONTAINED) and of both \
    together (RESEMBLES). Likely versions have half of all bytes in common; a file that contains the other has four fifths of it. \
    A table shows the first of each kind, and versions of one path in one row; --json has all. Padding, and what templates cover (see `dedupctl template`), count in none of them.\n\
    Example: dedupctl similar ~/Downloads/report.odt --store /data --min 0.5\n\
    Example: dedupctl similar main.c --same-suffix --not 'old/**' --size-ratio 0.5\n\
    Example: dedupctl similar ann.c --method winnow --in homework --base handout.c"
)]
pub(super) struct Similar {
    /// The file; it may be outside the overlay
    file: PathBuf,
    #[command(flatten)]
    by_method: ByMethod,
    /// Smallest share, 0 to 1 [default: 0.25; with sif 0.5, as its paper]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    min: Option<f64>,
    /// Limit of files
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    indexed: Indexed,
    #[command(flatten)]
    viewed: Viewed,
    #[command(flatten)]
    winnow: WinnowOptions,
}

#[derive(clap::Args)]
#[group(id = "default winnow")]
struct Viewed {
    /// How to read the files: `auto` selects the view that suits FILE (with winnow, each file). By default as
    /// raw bytes, and except with winnow also the content of archives and compressed files
    #[arg(long, value_name = "VIEW", value_parser = parse_look)]
    view: Option<Look>,
}

/// Options of the default index only.
#[derive(clap::Args)]
#[group(id = "default")]
struct Indexed {
    /// Rank by this. With `resemblance`, --min applies to it; otherwise to the larger of both containments
    #[arg(long, value_name = "FIGURE", default_value = "mean")]
    by: Ranking,
    /// Skip verification: figures are estimates from the index
    #[arg(long)]
    estimate: bool,
    /// Only files whose path below the root matches; `*.c` matches names in any directory. Can be repeated
    #[arg(long, value_name = "GLOB", value_parser = parse_glob)]
    path: Vec<String>,
    /// No files whose path matches. Can be repeated
    #[arg(long, value_name = "GLOB", value_parser = parse_glob)]
    not: Vec<String>,
    /// Only files with the same extension: `.c`
    #[arg(long)]
    same_suffix: bool,
    /// Only files of at least this size
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    min_size: u64,
    /// Only files of at most this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Only pairs whose shorter file is at least this share of the longer, 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_share)]
    size_ratio: f64,
    /// Only files with at least this many common bytes
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = parse_size)]
    min_common: u64,
    /// Also count padding and template bytes
    #[arg(long)]
    no_templates: bool,
    /// Show every file in a row of its own, not only the first of each kind
    #[arg(long)]
    all: bool,
}

impl Similar {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let stat = self.file.metadata().map_err(|e| CliError::io("open", &self.file, &e))?;
        if !stat.is_file() {
            let message = format!("{}: expected a regular file", self.file.display());
            return Err(CliError::new(message).hint("name one file, not a directory or a device"));
        }
        if let Some(chosen) = self.by_method.method() {
            let min = self.min.unwrap_or_else(|| methods::min_default(&chosen, false));
            let (bounds, winnow) = ((min, self.limit), self.winnow.asked(self.viewed.view));
            return methods::similar(&self.by_method, &chosen, &self.file, bounds, &winnow, global, out);
        }
        let indexed = &self.indexed;
        let (found, path, outside) = find_for_file(global, &self.file)?;
        let (session, _) = Session::open(found, Work::Ask, out)?;
        let filter = Filter {
            paths: indexed.path.clone(),
            not: indexed.not.clone(),
            same_suffix: indexed.same_suffix,
            size_min: indexed.min_size,
            size_max: indexed.max_size,
            size_ratio: indexed.size_ratio,
        };
        let options = SimilarOptions {
            min: self.min.unwrap_or(methods::MIN_DEFAULT),
            limit: self.limit,
            by: indexed.by,
            estimate: indexed.estimate,
            common_min: indexed.min_common,
            templates: !indexed.no_templates,
            filter,
            look: self.viewed.view.unwrap_or_default(),
        };
        match session.ask(Request::Similar { path, outside, options }, out)? {
            Response::Similar(report) => out.result(&report, |report| text(report, indexed.all))?,
            other => return Err(unexpected(&other)),
        }
        Ok(Outcome::Clean)
    }
}

fn parse_glob(text: &str) -> Result<String, String> {
    Filter::check_pattern(text).map(|()| text.to_owned())
}
