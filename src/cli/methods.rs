//! `--method`: a published method instead of the default; uses the overlay's saved index if there is one,
//! otherwise reads the files of a directory.

use super::error::CliError;
use super::method_index::MethodIndex;
use super::output::{Output, plain, share, size, table};
use super::session::{Session, Work, find, find_for_file, unexpected};
use super::winnow::WinnowAsked;
use super::{CliResult, Global, Outcome};
use crate::admin::text::shown;
use crate::admin::{
    FileByMethod, FileRef, GroupsByMethod, NotKnown, PairByMethod, PairsByMethod, Progress, Request,
    Response, SimilarByMethod, Unit,
};
use crate::contents::{Look, OverlayError};
use crate::control::Found;
use crate::query::methods::{Tree, of_reference};
use crate::similarity::methods::simhash::{self, SimHash};
use crate::similarity::methods::winnow::{Base, PairOptions, Winnow};
use crate::similarity::methods::{AnyMethod, BadMethod, Chosen, Method, names};
use clap::error::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Users' name of the default index.
const DEFAULT: &str = "default";

#[derive(clap::Args)]
pub(super) struct ByMethod {
    /// How to find files: `default` asks the index that is always kept; the others are of published papers (see `dedupctl
    /// compare-methods`), and ask theirs if `methods` in config.toml has it kept, else read every file first. Parameters
    /// follow a colon:
    /// sif:zeros=8,bits=30;
    /// winnow:k=50,w=100,select=robust (t=w+k-1 bytes in common are found for sure, and t may stand for k or w);
    /// chunk-graph:target=256;
    /// simhash:key=skew,extension=yes,tolerance=0.01,size=0.05,tolerance.ps=0.001
    #[arg(long, value_name = "METHOD", default_value = DEFAULT, value_parser = parse_method)]
    method: String,
    /// With another --method: read the files below this directory, in an overlay or not [default: use the
    /// overlay]
    #[arg(long = "in", value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Options to save results, and to analyse them again with another threshold.
#[derive(clap::Args)]
#[group(id = "chunk-graph sif")]
#[command(next_help_heading = "With --method chunk-graph or sif")]
pub(super) struct Saving {
    /// Save the results here, so that --from need not read the files again
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
    /// Use saved results, not files
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "dir", "path"])]
    pub(super) from: Option<PathBuf>,
}

/// Refuses options of other methods. Each struct of options that only some methods have is a group of the
/// parser, named after these methods.
pub(super) fn check_options(parser: &clap::Command, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let Some(command) = parser.find_subcommand(name) else { return Ok(()) };
    let Ok(Some(method)) = matches.try_get_one::<String>("method") else { return Ok(()) };
    let (known, chosen) = (known(), method);
    let method = chosen.split(':').next().unwrap_or_default();
    for group in command.get_groups() {
        let of: Vec<&str> = group.get_id().as_str().split(' ').collect();
        if of.contains(&method) || !of.iter().all(|of| known.contains(of)) {
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

const HEAD: [&str; 6] = ["CONTAINS", "CONTAINED", "RESEMBLES", "DISTANCE", "SIZE", "FILE"];

impl ByMethod {
    /// Returns the method, if it is not the default.
    pub(super) fn method(&self) -> Option<Chosen> {
        self.method.parse().ok()
    }

    pub(super) fn similar(
        &self,
        chosen: Chosen,
        file: &Path,
        (min, limit): (f64, usize),
        winnow: &WinnowAsked,
        global: &Global,
        out: &Output,
    ) -> CliResult {
        if chosen.name() == SimHash::NAME {
            out.note(simhash::HELP);
        }
        let method = chosen.any();
        let kept = match &self.dir {
            Some(dir) => Asked::Read(dir.clone()),
            None => {
                let (found, path, outside) = find_for_file(global, file).map_err(|e| self.no_overlay(e))?;
                match winnow.look {
                    Some(_) => Asked::Read(self.mounted(&found)?),
                    None => {
                        let (file, method) = (FileRef { path, outside }, chosen.clone());
                        let winnow = winnow.request(&found)?;
                        let request = Request::SimilarByMethod { file, method, min, limit, winnow };
                        self.ask(found, request, out)?
                    }
                }
            }
        };
        let report = match kept {
            Asked::Answered(response) => match *response {
                Response::SimilarByMethod(report) => report,
                other => return Err(unexpected(&other)),
            },
            Asked::Read(dir) => {
                let winnowing = chosen.of::<Winnow>().filter(|_| !winnow.is_plain());
                let query = winnowing.map(|winnowing| winnow.query(winnowing)).transpose()?;
                let tree = read(&dir, method.clone(), winnow.look, out)?;
                let matches = match &query {
                    None => tree.similar(file, min, limit),
                    Some(query) => tree.similar_as(file, query, min, limit),
                };
                let matches = matches.map_err(failed)?;
                SimilarByMethod {
                    query: shown(file),
                    method: method.name().to_owned(),
                    parameters: query.map_or_else(|| method.description(), |query| query.parameters()),
                    matches: matches.iter().map(FileByMethod::of_match).collect(),
                    unreadable: tree.unreadable().len() as u64,
                    not_known: NotKnown::default(),
                }
            }
        };
        self.say(&report.not_known, out);
        out.result(&report, |report| match report.matches.is_empty() {
            true => "no similar files\n".to_owned(),
            false => rows(&report.matches),
        })?;
        Ok(found_all(report.unreadable))
    }

    /// Returns the content of the overlay's index, for a method with its own report; `None` if files must be
    /// read.
    pub(super) fn kept(
        &self,
        chosen: &Chosen,
        path: Option<&Path>,
        global: &Global,
        out: &Output,
    ) -> Result<Option<MethodIndex>, CliError> {
        let Some(found) = (match self.dir {
            Some(_) => None,
            // Outside of an overlay, files are read; if that is not possible, that code reports the error.
            None => find(global, path).ok(),
        }) else {
            return Ok(None);
        };
        match MethodIndex::open(found, chosen, out)? {
            Ok(kept) => {
                self.say(&kept.not_known, out);
                Ok(Some(kept))
            }
            Err(has) => {
                out.note(&format!("{}: every file is read; {}", none_kept(chosen, has), enable(chosen)));
                Ok(None)
            }
        }
    }

    /// Returns the directory to read for a method with its own report.
    pub(super) fn groups_dir(&self, path: Option<&Path>, global: &Global) -> Result<PathBuf, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        match (find(global, path), path) {
            (Ok(Found::Daemon { info, path, .. }), _) => Ok(info.mountpoint.join(path)),
            (Ok(Found::Direct { .. }), _) => {
                let message = format!("--method {}: the overlay is not mounted", self.method);
                Err(CliError::new(message).hint("mount it, or name a directory with --in"))
            }
            // A directory outside of any overlay.
            (Err(_), Some(dir)) => Ok(dir.to_owned()),
            (Err(e), None) => Err(self.no_overlay(e)),
        }
    }

    pub(super) fn groups(
        &self,
        chosen: Chosen,
        path: Option<&Path>,
        (min, limit): (f64, Option<usize>),
        winnow: &WinnowAsked,
        global: &Global,
        out: &Output,
    ) -> CliResult {
        let method = chosen.any();
        let request = |path, base| Request::GroupsByMethod { path, method: chosen.clone(), min, base };
        let mut report = match self.ask_or_read(path, winnow, request, global, out)? {
            Asked::Answered(response) => match *response {
                Response::GroupsByMethod(report) => report,
                other => return Err(unexpected(&other)),
            },
            Asked::Read(dir) => {
                let winnowing = chosen.of::<Winnow>();
                let base =
                    winnowing.map_or_else(|| Ok(Base::default()), |winnowing| winnow.base(&winnowing))?;
                let tree = read(&dir, method.clone(), winnow.look, out)?;
                let groups = tree.groups_excluding(&base, min).map_err(failed)?;
                GroupsByMethod {
                    method: method.name().to_owned(),
                    parameters: method.description(),
                    min,
                    groups: groups.iter().map(FileByMethod::of_group).collect(),
                    omitted: 0,
                    unreadable: tree.unreadable().len() as u64,
                    not_known: NotKnown::default(),
                }
            }
        };
        self.say(&report.not_known, out);
        if report.omitted > 0 {
            out.note(&format!("{} groups left out: the report would be too long", report.omitted));
        }
        report.groups.truncate(limit.unwrap_or(usize::MAX));
        out.result(&report, figure_3)?;
        Ok(found_all(report.unreadable))
    }

    /// Returns pairs by winnowing, those with the most common fingerprints first.
    pub(super) fn pairs(
        &self,
        chosen: Chosen,
        path: Option<&Path>,
        (min, limit): (f64, usize),
        winnow: &WinnowAsked,
        global: &Global,
        out: &Output,
    ) -> CliResult {
        let winnowing = chosen.of::<Winnow>().unwrap_or_default();
        let request = |path, base| Request::PairsByMethod { path, method: chosen.clone(), min, limit, base };
        let report = match self.ask_or_read(path, winnow, request, global, out)? {
            Asked::Answered(response) => match *response {
                Response::PairsByMethod(report) => report,
                other => return Err(unexpected(&other)),
            },
            Asked::Read(dir) => {
                let base = winnow.base(&winnowing)?;
                let tree = read(&dir, Arc::new(winnowing), winnow.look, out)?;
                let options = PairOptions { score_min: min, limit, ..PairOptions::default() };
                let pairs = tree.pairs(&base, &options).map_err(failed)?;
                PairsByMethod {
                    method: Winnow::NAME.to_owned(),
                    parameters: winnowing.described(),
                    min,
                    pairs: pairs.iter().map(PairByMethod::of).collect(),
                    unreadable: tree.unreadable().len() as u64,
                    not_known: NotKnown::default(),
                }
            }
        };
        self.say(&report.not_known, out);
        out.result(&report, pairs_text)?;
        Ok(found_all(report.unreadable))
    }

    /// Asks an overlay's index about files at or below `path`, or returns the directory to read.
    fn ask_or_read(
        &self,
        path: Option<&Path>,
        winnow: &WinnowAsked,
        request: impl FnOnce(PathBuf, Vec<FileRef>) -> Request,
        global: &Global,
        out: &Output,
    ) -> Result<Asked, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(Asked::Read(dir.clone()));
        }
        let look = winnow.look;
        match (find(global, path), path) {
            (Ok(found), Some(dir)) if look.is_some() && self.mounted(&found).is_err() => {
                Ok(Asked::Read(dir.to_owned()))
            }
            (Ok(found), _) if look.is_some() => {
                let Found::Daemon { path, .. } = &found else { return self.mounted(&found).map(Asked::Read) };
                let below = path.clone();
                Ok(Asked::Read(self.mounted(&found)?.join(below)))
            }
            (Ok(found), given) => {
                let below = match &found {
                    Found::Daemon { path, .. } | Found::Direct { path, .. } => path.clone(),
                };
                let request = request(below, winnow.request(&found)?.base);
                match (self.ask(found, request, out), given) {
                    (Ok(Asked::Read(_)), Some(dir)) => Ok(Asked::Read(dir.to_owned())),
                    (asked, _) => asked,
                }
            }
            // A directory outside of any overlay.
            (Err(_), Some(dir)) => Ok(Asked::Read(dir.to_owned())),
            (Err(e), None) => Err(self.no_overlay(e)),
        }
    }

    /// Returns the path at which the files of an overlay can be read.
    fn mounted(&self, found: &Found) -> Result<PathBuf, CliError> {
        match found {
            Found::Daemon { info, .. } => Ok(info.mountpoint.clone()),
            Found::Direct { .. } => {
                let message = format!("--method {}: the overlay is not mounted", self.method);
                Err(CliError::new(message).hint("mount it, or name a directory with --in"))
            }
        }
    }

    /// Asks an overlay's saved index, or returns the directory to read instead.
    fn ask(&self, found: Found, request: Request, out: &Output) -> Result<Asked, CliError> {
        let mountpoint = self.mounted(&found).ok();
        let (session, _) = Session::open(found, Work::Ask, out)?;
        match (session.ask(request, out)?, mountpoint, self.method()) {
            (Response::NotKept(has), Some(dir), Some(chosen)) => {
                out.note(&format!("{}: every file is read; {}", none_kept(&chosen, has), enable(&chosen)));
                Ok(Asked::Read(dir))
            }
            (Response::NotKept(has), None, Some(chosen)) => {
                let message = format!("{}, and the overlay is not mounted", none_kept(&chosen, has));
                let hint = format!("{}; or mount it, or name a directory with --in", enable(&chosen));
                Err(CliError::new(message).hint(hint))
            }
            (response, ..) => Ok(Asked::Answered(Box::new(response))),
        }
    }

    fn no_overlay(&self, e: CliError) -> CliError {
        e.hint(format!("--method {} needs an overlay or a directory: name one with --in", self.method))
    }

    /// Reports the files that the index lacks.
    fn say(&self, not: &NotKnown, out: &Output) {
        if not.files > 0 {
            let (name, files) = (&self.method, not.files);
            let more = if not.behind { " or more" } else { "" };
            out.note(&format!(
                "{files} files{more} are not in the index of {name} yet; `dedupctl scan` takes them in"
            ));
        }
    }
}

/// Describes the missing index.
fn none_kept(chosen: &Chosen, has: Option<String>) -> String {
    let name = chosen.name();
    match has {
        None => format!("no index of {name} is kept"),
        Some(has) => {
            let wanted = chosen.any().settings();
            format!("the saved index of {name} was made with {has}, not with {wanted}")
        }
    }
}

fn enable(chosen: &Chosen) -> String {
    format!("methods = [\"{chosen}\"] in the store's config.toml keeps its index from the next mount on")
}

/// Result of asking an overlay's saved index.
enum Asked {
    Answered(Box<Response>),
    /// There is no index: read the files of this directory.
    Read(PathBuf),
}

fn pairs_text(report: &PairsByMethod) -> String {
    if report.pairs.is_empty() {
        return "no similar files\n".to_owned();
    }
    let head = ["FINGERPRINTS", "SHARE OF A", "SHARE OF B", "A", "B"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.pairs.iter().map(|pair| {
        let copies = if pair.copies > 0 { format!(" (and {} copies)", pair.copies) } else { String::new() };
        let shares = [share(pair.containment), share(pair.contained_in)];
        let [of_a, of_b] = shares;
        vec![pair.common.to_string(), of_a, of_b, plain(&pair.a), plain(&pair.b) + &copies]
    }));
    table(&rows, &[0, 1, 2]) + "\n`dedupctl regions A B` shows the common parts of two files\n"
}

/// Formats the report of Manber's figure 3.
fn figure_3(report: &GroupsByMethod) -> String {
    if report.groups.is_empty() {
        return "no similar files\n".to_owned();
    }
    let least = (report.min * 100.0).round();
    let mut text = format!("The following groups of files are similar. Minimum similarity = {least}%\n");
    for files in &report.groups {
        text.push('\n');
        for (at, file) in files.iter().enumerate() {
            let figure = match at {
                0 => "R100".to_owned(),
                _ => format!("{:>6}", (of_reference(&file.likeness) * 100.0).round()),
            };
            text += &format!("{figure} {} {}\n", plain(&file.path), file.size);
        }
    }
    text
}

fn rows(files: &[FileByMethod]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(files.iter().map(cells));
    table(&rows, &[0, 1, 2, 3, 4])
}

fn cells(file: &FileByMethod) -> Vec<String> {
    let cell = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), share);
    let mark = match (file.identical, file.likeness.distance) {
        (true, _) => " (identical)",
        (false, Some(0.0)) => " (the same counts, other bytes)",
        _ => "",
    };
    vec![
        cell(file.likeness.containment),
        cell(file.likeness.contained_in),
        cell(file.likeness.resemblance),
        file.likeness.distance.map_or_else(|| "-".to_owned(), |distance| distance.to_string()),
        size(file.size),
        plain(&file.path) + mark,
    ]
}

fn read(dir: &Path, method: Arc<dyn AnyMethod>, look: Option<Look>, out: &Output) -> Result<Tree, CliError> {
    let roots = [(dir, Path::new(""))];
    let tree = reading(out, |progress| Tree::read_all(&roots, method, look, progress))?;
    outcome(tree.unreadable(), out);
    Ok(tree)
}

/// Shows the progress of reading.
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

/// Reports unreadable files.
pub(super) fn outcome(unreadable: &[(PathBuf, String)], out: &Output) -> Outcome {
    for (path, reason) in unreadable {
        out.note(&format!("{}: {reason}: left out", path.display()));
    }
    if unreadable.is_empty() { Outcome::Clean } else { Outcome::Findings }
}

/// Returns the outcome for this many unreadable files.
fn found_all(unreadable: u64) -> Outcome {
    if unreadable == 0 { Outcome::Clean } else { Outcome::Findings }
}

pub(super) fn failed(e: OverlayError) -> CliError {
    match e {
        OverlayError::Io { operation, path, source } => CliError::io(operation, &path, &source),
        other => CliError::new(other.to_string()),
    }
}

fn parse_method(text: &str) -> Result<String, String> {
    match text.parse::<Chosen>() {
        _ if text == DEFAULT => Ok(text.to_owned()),
        Ok(_) => Ok(text.to_owned()),
        Err(BadMethod::Unknown(_)) => Err(format!("expected {}", known().join(", "))),
        Err(e) => Err(e.to_string()),
    }
}

fn known() -> Vec<&'static str> {
    [DEFAULT].into_iter().chain(names()).collect()
}
