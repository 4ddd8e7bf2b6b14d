use super::error::CliError;
use super::methods::{self, ByMethod, GroupsOptions, MIN_DEFAULT, Question, SHOWN, Saving};
use super::output::{Output, ROWS, more, plain, share, size, table};
use super::parse::parse_share;
use super::session::{Session, Work, find, unexpected};
use super::similar_rows::not_indexed;
use super::{CliResult, Global, Outcome};
use crate::admin::text::shown;
use crate::admin::{Request, Response};
use crate::config::parse_size;
use crate::query::{Group, GroupOptions, Groups as Found};
use crate::similarity::groups::{MEMORY_BYTES_MIN, SHARE_MIN};
use std::path::{Path, PathBuf};

/// Compare all files: identical files, similar groups
#[derive(clap::Args)]
#[command(
    after_help = "Identical files come first. A group has a representative, and every other member resembles it. \
    CONTAINED is the share of the member that is also in the representative, CONTAINS the share of the representative \
    that is also in the member. No file is in a group only because it resembles another member. SAVABLE counts the \
    members' bytes that the representative has.\nResults are saved, so that another run with a different --min is quick.\n\
    Example: dedupctl groups --min 0.5 --suffix .html /data/docs\n\
    Example: dedupctl groups --html groups.html ~/docs\n\n\
    --method chunk-graph shows identical files, then clusters of files that links connect, then pairs. --method sif shows \
    each file with similar ones; with --interesting it shows sets whose files all have much in common.\n\
    Example: dedupctl groups --method chunk-graph --in ~/docs --save docs.chunks --pairs\n\
    Example: dedupctl groups --method chunk-graph --from docs.chunks --min 0.5 --template 1 --tables tables\n\
    Example: dedupctl groups --method sif --in 1.0 --against 1.1\n\
    Example: dedupctl groups --method winnow --pairs --in homework --base handout.c --view auto"
)]
pub(super) struct Groups {
    /// A directory or file of the overlay; by default the current directory
    path: Option<PathBuf>,
    #[command(flatten)]
    by_method: ByMethod,
    /// Smallest share of one file that another contains, 0.1 to 1, with another --method 0 to 1 [default: 0.25;
    /// with sif 0.5, as its paper; with winnow --pairs 0]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    min: Option<f64>,
    /// Limit of sets and groups [default: 20 in a table, else all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    indexed: Indexed,
    #[command(flatten)]
    saving: Saving,
    #[command(flatten)]
    pairs: Pairs,
    #[command(flatten)]
    of_method: GroupsOptions,
}

#[derive(clap::Args)]
#[group(id = "chunk-graph winnow")]
#[command(next_help_heading = "With --method chunk-graph or winnow")]
struct Pairs {
    /// Show pairs. With chunk-graph additionally, those with the most common bytes first; with winnow instead
    /// of groups, those with the most common fingerprints first
    #[arg(long)]
    pairs: bool,
}

#[derive(clap::Args)]
#[group(id = "default chunk-graph sif")]
struct Memory {
    /// Memory for comparing [default: a quarter of the store's; with another --method 256 MiB]
    #[arg(long = "memory", value_name = "SIZE", value_parser = parse_memory)]
    bytes: Option<u64>,
}

/// Options of the default index only.
#[derive(clap::Args)]
#[group(id = "default")]
struct Indexed {
    /// Only identical files
    #[arg(long)]
    identical: bool,
    /// Skip files shorter than this
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    min_size: u64,
    /// Only files whose names end in this. Can be repeated
    #[arg(long, value_name = "SUFFIX")]
    suffix: Vec<String>,
    /// Skip verification: figures are estimates from the index
    #[arg(long)]
    estimate: bool,
    /// Verify until this many bytes have been compared; the rest is estimated
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    verify: u64,
    /// Compare everything again, without saved results
    #[arg(long)]
    anew: bool,
    /// Print comma-separated rows, one for each file
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Write an HTML page to FILE, with a map and a sortable table; it needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Groups {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        if let Some(chosen) = self.by_method.method() {
            let question = Question {
                by_method: &self.by_method,
                chosen: &chosen,
                path: self.path.as_deref(),
                saving: &self.saving,
                pairs: self.pairs.pairs,
                min: self.min.unwrap_or_else(|| methods::min_default(&chosen, self.pairs.pairs)),
                limit: self.limit,
                memory: self.memory.bytes,
                global,
            };
            return self.of_method.report(&question, out);
        }
        let indexed = &self.indexed;
        let min = self.min.unwrap_or(MIN_DEFAULT);
        if min < SHARE_MIN {
            let message = format!("--min {min}: expected a share from {SHARE_MIN} to 1");
            return Err(CliError::new(message).hint("--method winnow has no such bound"));
        }
        let about = self.path.as_deref().unwrap_or(Path::new(".")).to_owned();
        let (session, path) = Session::open(find(global, self.path.as_deref())?, Work::Ask, out)?;
        let all = global.json || indexed.csv || indexed.html.is_some();
        let options = GroupOptions {
            min,
            limit: self.limit.or((!all).then_some(SHOWN)),
            identical: indexed.identical,
            estimate: indexed.estimate,
            verify_bytes: indexed.verify,
            size_min: indexed.min_size,
            suffixes: indexed.suffix.clone(),
            memory_bytes: self.memory.bytes,
            anew: indexed.anew,
        };
        let report = match session.ask(Request::Groups { path, options }, out)? {
            Response::Groups(report) => report,
            other => return Err(unexpected(&other)),
        };
        if report.omitted > 0 {
            out.note(&format!("{} rows left out: the report would be too long; see --limit", report.omitted));
        }
        if report.suppressed_features > 0 {
            out.note(&format!(
                "{} features were not followed, since very many files have them: headers, licences, templates",
                report.suppressed_features
            ));
        }
        if let Some(file) = &indexed.html {
            let about = std::path::absolute(&about).unwrap_or(about);
            let about = format!("{}, {} of one in another or more", about.display(), share(min));
            super::pages::write(&super::pages::groups(&report, about), file, out)?;
        }
        match (indexed.csv, &indexed.html) {
            (true, _) => out.raw(csv(&report).as_bytes())?,
            (false, Some(_)) if !global.json => {}
            (false, _) => out.result(&report, text)?,
        }
        Ok(Outcome::Clean)
    }
}

fn text(report: &Found) -> String {
    let mut text = String::new();
    if report.identical_sets > 0 {
        text += &format!(
            "identical: {} sets of {} files, {} redundant\n",
            report.identical_sets,
            report.identical_files,
            size(report.identical_bytes)
        );
        for set in &report.identical {
            let count = set.paths.len() as u64;
            let (one, redundant) = (size(set.size), size((count - 1) * set.size));
            text += &format!("\n{count} copies of {one}, {redundant} redundant\n");
            set.paths.iter().take(ROWS).for_each(|path| text += &format!("  {}\n", plain(&shown(path))));
            text += &more(set.paths.len());
        }
        text += "\n";
    }
    if report.estimated_groups > 0 {
        text += &format!(
            "similar: about {} groups of {} contents, about {} savable\n",
            report.estimated_groups,
            report.estimated_members,
            size(report.estimated_bytes)
        );
        report.groups.iter().for_each(|group| text += &group_text(group));
    }
    if text.is_empty() {
        "no identical or similar files\n".clone_into(&mut text);
    }
    text + &not_indexed(report.not_indexed)
}

fn group_text(group: &Group) -> String {
    let mut text = format!(
        "\n#{}: {} contents, {}, {} savable\n",
        group.id,
        group.members.len(),
        size(group.bytes),
        size(group.savable_bytes)
    );
    let head = ["  CONTAINED", "CONTAINS", "RESEMBLES", "COMMON", "SIZE", "FILE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (i, member) in group.members.iter().take(ROWS).enumerate() {
        let mark = match (i, member.verified) {
            (0, _) => " (representative)",
            (_, true) => "",
            (_, false) => " (estimate)",
        };
        let copies = if member.copies > 1 { format!(" (x {})", member.copies) } else { String::new() };
        rows.push(vec![
            share(member.containment),
            share(member.contained_in),
            share(member.resemblance),
            size(member.bytes_common),
            size(member.size),
            plain(&shown(&member.path)) + &copies + mark,
        ]);
    }
    text += &table(&rows, &[0, 1, 2, 3, 4]);
    text + &more(group.members.len())
}

fn csv(report: &Found) -> String {
    let mut text =
        "kind,id,path,size,copies,containment,contained_in,resemblance,bytes_common,verified\n".to_owned();
    for (id, set) in (1..).zip(&report.identical) {
        for path in &set.paths {
            text +=
                &format!("identical,{id},{},{},1,1,1,1,{},true\n", quoted(&shown(path)), set.size, set.size);
        }
    }
    for group in &report.groups {
        for (i, member) in group.members.iter().enumerate() {
            let kind = if i == 0 { "representative" } else { "member" };
            text += &format!(
                "{kind},{},{},{},{},{},{},{},{},{}\n",
                group.id,
                quoted(&shown(&member.path)),
                member.size,
                member.copies,
                member.containment,
                member.contained_in,
                member.resemblance,
                member.bytes_common,
                member.verified
            );
        }
    }
    text
}

/// Formats a field as in RFC 4180.
fn quoted(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let enough = (bytes >= MEMORY_BYTES_MIN as u64).then_some(bytes);
    enough.ok_or_else(|| format!("expected {MEMORY_BYTES_MIN} bytes or more"))
}
