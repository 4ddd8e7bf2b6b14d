//! `--method`: one of the published methods in place of the default, on the files of a directory.

use super::error::CliError;
use super::output::{Output, plain, share, size, table};
use super::session::find;
use super::{CliResult, Global, Outcome};
use crate::admin::{Progress, Unit, text::shown};
use crate::control::Found;
use crate::overlay::OverlayError;
use crate::overlay::methods::{LikeGroup, NamedMatch, Tree, of_reference};
use crate::similarity::methods::simhash::{self, SimHash};
use crate::similarity::methods::{self, AnyMethod, Likeness, Method};
use clap::error::ErrorKind;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What users call the index that is always kept.
const DEFAULT: &str = "default";

#[derive(clap::Args)]
pub(super) struct ByMethod {
    /// How to find candidates: `default` asks the index that is always kept; the others are of published papers, and
    /// read every file of the directory first (see `dedupctl compare-methods`)
    #[arg(long, value_name = "METHOD", default_value = DEFAULT, value_parser = parse_method)]
    method: String,
    /// With another --method: look at the files below this directory, in an overlay or not [default: the mounted overlay]
    #[arg(long = "in", value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What is read can be saved, and looked at again with another threshold.
#[derive(clap::Args)]
#[group(id = "chunk-graph sif")]
#[command(next_help_heading = "With --method chunk-graph or sif")]
pub(super) struct Saving {
    /// Save what was made of the files here, so that --from need not read them again
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
    /// Look at what was saved, not at files
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "dir", "path"])]
    pub(super) from: Option<PathBuf>,
}

/// Refuses options that are not of the chosen method. Each struct of options that only some methods have is a group of
/// the parser, called by the names of these methods.
pub(super) fn check_options(parser: &clap::Command, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let Some(command) = parser.find_subcommand(name) else { return Ok(()) };
    let Ok(Some(method)) = matches.try_get_one::<String>("method") else { return Ok(()) };
    let known = known();
    for group in command.get_groups() {
        let of: Vec<&str> = group.get_id().as_str().split(' ').collect();
        if of.contains(&method.as_str()) || !of.iter().all(|of| known.contains(of)) {
            continue;
        }
        let given = matches.get_many::<clap::Id>(group.get_id().as_str()).and_then(|mut ids| ids.next());
        if let Some(id) = given {
            let long = command.get_arguments().find(|arg| arg.get_id() == id).and_then(|arg| arg.get_long());
            let of = of.join(" or ");
            let message =
                format!("--{} is an option of --method {of}, not of {method}", long.unwrap_or(id.as_str()));
            return Err(command.clone().error(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct LikenessReport {
    containment: Option<f64>,
    contained_in: Option<f64>,
    resemblance: Option<f64>,
    distance: Option<f64>,
}

impl From<Likeness> for LikenessReport {
    fn from(of: Likeness) -> LikenessReport {
        let Likeness { containment, contained_in, resemblance, distance } = of;
        LikenessReport { containment, contained_in, resemblance, distance }
    }
}

#[derive(Serialize)]
pub(super) struct FileReport {
    path: String,
    size: u64,
    identical: bool,
    likeness: LikenessReport,
}

impl FileReport {
    pub(super) fn of(path: &Path, size: u64, identical: bool, likeness: Likeness) -> FileReport {
        FileReport { path: shown(path), size, identical, likeness: likeness.into() }
    }

    fn cells(&self) -> Vec<String> {
        let LikenessReport { containment, contained_in, resemblance, distance } = &self.likeness;
        let cell = |figure: &Option<f64>| figure.map_or_else(|| "-".to_owned(), share);
        let mark = match (self.identical, distance) {
            (true, _) => " (identical)",
            (false, Some(0.0)) => " (the same counts, other bytes)",
            _ => "",
        };
        vec![
            cell(containment),
            cell(contained_in),
            cell(resemblance),
            distance.map_or_else(|| "-".to_owned(), |distance| distance.to_string()),
            size(self.size),
            plain(&self.path) + mark,
        ]
    }
}

const HEAD: [&str; 6] = ["CONTAINS", "CONTAINED", "RESEMBLES", "DISTANCE", "SIZE", "FILE"];

#[derive(Serialize)]
struct SimilarByMethod {
    query: String,
    method: &'static str,
    parameters: String,
    matches: Vec<FileReport>,
    unreadable: usize,
}

#[derive(Serialize)]
struct GroupsByMethod {
    method: &'static str,
    parameters: String,
    min: f64,
    /// In each the first is compared with the others.
    groups: Vec<Vec<FileReport>>,
    unreadable: usize,
}

impl ByMethod {
    /// The method, if it is not the default.
    pub(super) fn method(&self) -> Option<Arc<dyn AnyMethod>> {
        methods::named(&self.method)
    }

    pub(super) fn similar(
        &self,
        method: Arc<dyn AnyMethod>,
        file: &Path,
        min: f64,
        limit: usize,
        global: &Global,
        out: &Output,
    ) -> CliResult {
        let dir = self.dir_or_mountpoint(Some(file), global)?;
        if method.name() == SimHash::NAME {
            out.note(simhash::HELP);
        }
        let tree = read(&dir, method.clone(), out)?;
        let matches = tree.similar(file, min, limit).map_err(failed)?;
        let of = |found: NamedMatch| FileReport::of(&found.path, found.size, found.identical, found.likeness);
        let report = SimilarByMethod {
            query: shown(file),
            method: method.name(),
            parameters: method.settings(),
            matches: matches.into_iter().map(of).collect(),
            unreadable: tree.unreadable().len(),
        };
        out.result(&report, |report| match report.matches.is_empty() {
            true => "no similar files\n".to_owned(),
            false => rows(&report.matches),
        })?;
        Ok(outcome(tree.unreadable(), out))
    }

    /// The directory whose groups are asked for.
    pub(super) fn groups_dir(&self, path: Option<&Path>, global: &Global) -> Result<PathBuf, CliError> {
        match (&self.dir, path) {
            (None, Some(path)) => Ok(path.to_owned()),
            _ => self.dir_or_mountpoint(path, global),
        }
    }

    pub(super) fn groups(
        &self,
        method: Arc<dyn AnyMethod>,
        dir: &Path,
        min: f64,
        limit: Option<usize>,
        out: &Output,
    ) -> CliResult {
        let tree = read(dir, method.clone(), out)?;
        let mut groups = tree.groups(min).map_err(failed)?;
        groups.truncate(limit.unwrap_or(usize::MAX));
        let report = GroupsByMethod {
            method: method.name(),
            parameters: method.settings(),
            min,
            groups: groups.iter().map(group).collect(),
            unreadable: tree.unreadable().len(),
        };
        // The report of Manber's figure 3.
        out.result(&report, |report| {
            let least = (report.min * 100.0).round();
            let mut text =
                format!("The following groups of files are similar. Minimum similarity = {least}%\n");
            for (group, files) in groups.iter().zip(&report.groups) {
                text.push('\n');
                let copies = group.reference.paths.len();
                for (at, file) in files.iter().enumerate() {
                    let figure = match at {
                        0 => "R100".to_owned(),
                        _ if at < copies => format!("{:>6}", 100),
                        _ => format!("{:>6}", percent(group, at - copies)),
                    };
                    text += &format!("{figure} {} {}\n", plain(&file.path), file.size);
                }
            }
            if report.groups.is_empty() { "no similar files\n".to_owned() } else { text }
        })?;
        Ok(outcome(tree.unreadable(), out))
    }

    fn dir_or_mountpoint(&self, path: Option<&Path>, global: &Global) -> Result<PathBuf, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        match find(global, path) {
            Ok(Found::Daemon { info, .. }) => Ok(info.mountpoint),
            Ok(Found::Direct { .. }) => {
                let message = format!("--method {}: the overlay is not mounted", self.method);
                Err(CliError::new(message).hint("mount it, or name a directory with --in"))
            }
            Err(e) => {
                Err(e.hint(format!("--method {} looks at a directory: name one with --in", self.method)))
            }
        }
    }
}

/// The reference under all its names, then the members under theirs.
fn group(group: &LikeGroup) -> Vec<FileReport> {
    let whole = Likeness { containment: Some(1.0), contained_in: Some(1.0), ..Likeness::default() };
    let LikeGroup { reference, members } = group;
    let same = reference.paths.iter().map(|path| FileReport::of(path, reference.size, true, whole));
    let alike = members.iter().flat_map(|(likeness, named)| {
        named.paths.iter().map(|path| FileReport::of(path, named.size, false, *likeness))
    });
    same.chain(alike).collect()
}

/// Of the file at that place after the reference's names.
fn percent(group: &LikeGroup, at: usize) -> u64 {
    let files = group.members.iter().flat_map(|(likeness, named)| named.paths.iter().map(move |_| likeness));
    files.skip(at).map(|likeness| (of_reference(likeness) * 100.0).round() as u64).next().unwrap_or(0)
}

fn rows(files: &[FileReport]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(files.iter().map(FileReport::cells));
    table(&rows, &[0, 1, 2, 3, 4])
}

fn read(dir: &Path, method: Arc<dyn AnyMethod>, out: &Output) -> Result<Tree, CliError> {
    reading(out, |progress| Tree::read(dir, method, progress))
}

/// Shows how far reading has come.
pub(super) fn reading<T>(
    out: &Output,
    read: impl FnOnce(&mut dyn FnMut(u64, u64) -> bool) -> Result<T, OverlayError>,
) -> Result<T, CliError> {
    let mut meter = out.meter();
    let mut show = |files, _| {
        meter.show(&Progress { what: "reading".into(), done: files, total: 0, unit: Unit::Files });
        true
    };
    read(&mut show).map_err(failed)
}

/// Tells which files could not be read.
pub(super) fn outcome(unreadable: &[(PathBuf, String)], out: &Output) -> Outcome {
    for (path, reason) in unreadable {
        out.note(&format!("{}: {reason}: left out", path.display()));
    }
    if unreadable.is_empty() { Outcome::Clean } else { Outcome::Findings }
}

pub(super) fn failed(e: OverlayError) -> CliError {
    match e {
        OverlayError::Io { operation, path, source } => CliError::io(operation, &path, &source),
        other => CliError::new(other.to_string()),
    }
}

fn parse_method(name: &str) -> Result<String, String> {
    let known = known();
    if known.contains(&name) { Ok(name.to_owned()) } else { Err(format!("expected {}", known.join(", "))) }
}

fn known() -> Vec<&'static str> {
    [DEFAULT].into_iter().chain(methods::all().iter().map(|method| method.name())).collect()
}
