use super::error::CliError;
use super::methods::{self, ByMethod, WinnowOptions};
use super::output::{Output, plain, share, size, table};
use super::parse::{parse_look, parse_share};
use super::session::{Session, Work, find_for_file, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::text::shown;
use crate::admin::{Request, Response};
use crate::config::parse_size;
use crate::contents::{Filter, Look, Ranking, SimilarOptions};
use crate::query::Matches;
use crate::view::View;
use std::path::PathBuf;

/// Find files that are identical to one, or share parts
#[derive(clap::Args)]
#[command(
    after_help = "Shares are of the file asked about (CONTAINS), of the file found (CONTAINED) and of both \
    together (RESEMBLES). Padding, and what templates cover (see `dedupctl template`), count in none of them.\n\
    Example: dedupctl similar ~/Downloads/report.odt --store /data --min 0.5\n\
    Example: dedupctl similar main.c --same-suffix --not 'old/**' --size-ratio 0.5\n\
    Example: dedupctl similar ann.c --method winnow --in homework --base handout.c"
)]
pub(super) struct Similar {
    /// The file; it may be outside the overlay
    file: PathBuf,
    #[command(flatten)]
    by_method: ByMethod,
    /// Smallest share, 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0.25", value_parser = parse_share)]
    min: f64,
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
}

impl Similar {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let stat = self.file.metadata().map_err(|e| CliError::io("open", &self.file, &e))?;
        if !stat.is_file() {
            let message = format!("{}: expected a regular file", self.file.display());
            return Err(CliError::new(message).hint("name one file, not a directory or a device"));
        }
        if let Some(chosen) = self.by_method.method() {
            let (bounds, winnow) = ((self.min, self.limit), self.winnow.asked(self.viewed.view));
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
            min: self.min,
            limit: self.limit,
            by: indexed.by,
            estimate: indexed.estimate,
            common_min: indexed.min_common,
            templates: !indexed.no_templates,
            filter,
            look: self.viewed.view.unwrap_or_default(),
        };
        match session.ask(Request::Similar { path, outside, options }, out)? {
            Response::Similar(report) => out.result(&report, text)?,
            other => return Err(unexpected(&other)),
        }
        Ok(Outcome::Clean)
    }
}

fn text(report: &Matches) -> String {
    let mut text = match report.matches.is_empty() {
        true => "no similar files\n".to_owned(),
        false => String::new(),
    };
    let (same, alike): (Vec<_>, Vec<_>) = report.matches.iter().partition(|found| found.shares.identical);
    if !same.is_empty() {
        text.push_str(&format!("{} identical, of {}\n", report.identical, size(same[0].size)));
        same.iter().for_each(|found| text.push_str(&format!("  {}\n", plain(&shown(&found.path)))));
        let left = report.identical.saturating_sub(same.len());
        if left > 0 {
            text.push_str(&format!("  ... and {left} more: --limit N shows more\n"));
        }
    }
    if !alike.is_empty() {
        let head = ["CONTAINS", "CONTAINED", "RESEMBLES", "COMMON", "SIZE", "FILE"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(alike.into_iter().map(|found| {
            let seen = match (found.query_view, found.view) {
                (View::Raw, View::Raw) => String::new(),
                (query, found) if query == found => format!(" (as {})", found.name()),
                (query, found) => format!(" (as {}, asked as {})", found.name(), query.name()),
            };
            let mark = if found.shares.verified { "" } else { " (estimate)" };
            vec![
                share(found.shares.containment),
                share(found.shares.contained_in),
                share(found.shares.resemblance),
                size(found.shares.bytes_common),
                size(found.size),
                plain(&shown(&found.path)) + &seen + mark,
            ]
        }));
        text.push_str(&table(&rows, &[0, 1, 2, 3, 4]));
    }
    if report.suppressed_bytes > 0 {
        let covered = size(report.suppressed_bytes);
        text.push_str(&format!(
            "{covered} are of templates or padding and do not count (--no-templates counts them)\n"
        ));
    }
    text + &not_indexed(report.not_indexed)
}

/// Says which files could not be found, as the settings leave them out of the index.
pub(super) fn not_indexed(files: u64) -> String {
    match files {
        0 => String::new(),
        files => format!(
            "{files} files are not in the index (`similarity = \"off\"`): only files that are the same to the byte are found\n"
        ),
    }
}

fn parse_glob(text: &str) -> Result<String, String> {
    Filter::check_pattern(text).map(|()| text.to_owned())
}
