use super::output::{Output, plain, size, table};
use super::parse::parse_share;
use super::session::{Session, Work, find, find_for_file, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response, TemplateReport, TemplateRequest};
use crate::control::Found;
use std::path::PathBuf;

/// Manage boilerplate that `similar` ignores
#[derive(clap::Args)]
#[command(
    after_help = "A template is a passage of 64 bytes or more. Parts of a file that it covers, in substrings of 32 bytes or \
    more, count neither as common nor in the file's size. Identical files are still found, and stored data does not \
    change.\n\
    Example: dedupctl template learn --dry-run /data\n\
    Example: dedupctl template add gpl header.c --range 0..780"
)]
pub(super) struct Template {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the templates
    #[command(after_help = "Example: dedupctl template list")]
    List {
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
    },
    /// Add a file, or a part of it, as boilerplate; replaces one of the same name
    Add {
        /// Its name: letters, digits, `-`, `_` and `.`
        name: String,
        /// The file; it may be outside the overlay
        file: PathBuf,
        /// Only these bytes: from the first to before the second
        #[arg(long, value_name = "FROM..TO", value_parser = parse_range)]
        range: Option<(u64, u64)>,
    },
    /// Find passages that many files share, and save them as templates
    Learn {
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
        /// Smallest share of the files with a passage; identical files count once
        #[arg(long, value_name = "SHARE", default_value = "0.05", value_parser = parse_share)]
        share: f64,
        /// Smallest number of files with a passage
        #[arg(long, value_name = "N", default_value_t = 20)]
        min_files: u64,
        /// Only print them
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove a template, marked or learned
    #[command(after_help = "Example: dedupctl template remove gpl")]
    Remove {
        /// Its name
        name: String,
        /// A path of the overlay; by default the current directory
        path: Option<PathBuf>,
    },
}

impl Template {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (found, request): (Found, _) = match &self.action {
            Action::List { path } => (find(global, path.as_deref())?, TemplateRequest::List),
            Action::Add { name, file, range } => {
                let (found, path, outside) = find_for_file(global, file)?;
                (found, TemplateRequest::Add { name: name.clone(), path, outside, range: *range })
            }
            Action::Learn { path, share, min_files, dry_run } => {
                let (share, files_min, dry_run) = (*share, *min_files, *dry_run);
                (find(global, path.as_deref())?, TemplateRequest::Learn { share, files_min, dry_run })
            }
            Action::Remove { name, path } => {
                (find(global, path.as_deref())?, TemplateRequest::Remove { name: name.clone() })
            }
        };
        let (session, _) = Session::open(found, Work::Ask, out)?;
        match session.ask(Request::Template(request), out)? {
            Response::Template(report) => out.result(&report, |report| self.text(report))?,
            other => return Err(unexpected(&other)),
        }
        Ok(Outcome::Clean)
    }

    fn text(&self, report: &TemplateReport) -> String {
        if report.templates.is_empty() {
            let none = match self.action {
                Action::Learn { .. } => "no passages that enough files have\n",
                _ => "no templates\n",
            };
            return none.to_owned();
        }
        let head = ["SIZE", "FILES", "ORIGIN", "NAME", "BEGINS"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(report.templates.iter().map(|template| {
            vec![
                size(template.bytes),
                template.files.map_or_else(|| "-".to_owned(), |files| files.to_string()),
                template.origin.clone(),
                plain(&template.name),
                plain(&template.begins),
            ]
        }));
        let done = match &self.action {
            Action::List { .. } => "",
            Action::Add { .. } => "added\n",
            Action::Learn { dry_run: true, .. } => "without --dry-run these are kept as templates\n",
            Action::Learn { .. } => "learned; `dedupctl template remove NAME` undoes it\n",
            Action::Remove { .. } => "removed\n",
        };
        table(&rows, &[0, 1]) + done
    }
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parts.filter(|(from, to)| from < to).ok_or_else(|| "expected two ascending numbers: 0..780".to_owned())
}
