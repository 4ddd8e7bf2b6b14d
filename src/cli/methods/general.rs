//! The answers of every method: files like one, and groups of files.

use super::super::error::CliError;
use super::super::output::{Output, plain, share, size, table};
use super::super::session::unexpected;
use super::super::{CliResult, Global};
use super::by_method::{Asked, ByMethod};
use super::question::Question;
use super::reading::{found_all, outcome, reading};
use super::winnow::WinnowAsked;
use crate::admin::text::shown;
use crate::admin::{GroupsByMethod, MethodGroup, NotKnown, Request, Response, SimilarByMethod};
use crate::contents::Look;
use crate::query::methods::{MatchWithPaths, Tree, of_reference};
use crate::similarity::methods::{AnyMethod, Chosen};
use std::path::Path;
use std::sync::Arc;

const HEAD: [&str; 6] = ["CONTAINS", "CONTAINED", "RESEMBLES", "DISTANCE", "SIZE", "FILE"];

/// Shows files like one.
pub(in crate::cli) fn similar(
    by_method: &ByMethod,
    chosen: &Chosen,
    file: &Path,
    (min, limit): (f64, usize),
    winnow: &WinnowAsked,
    global: &Global,
    out: &Output,
) -> CliResult {
    if let Some(note) = chosen.note() {
        out.note(note);
    }
    let method = chosen.any();
    let request =
        |file, winnow| Request::SimilarByMethod { file, method: chosen.clone(), min, limit, winnow };
    let asked = by_method.ask_about(file, winnow, request, global, out)?;
    let report = match asked {
        Asked::Answered(response) => match *response {
            Response::SimilarByMethod(report) => report,
            other => return Err(unexpected(&other)),
        },
        Asked::Read(dir) => {
            let query = winnow.query(chosen)?;
            let tree = read(&dir, method.clone(), winnow.look, out)?;
            let matches = match &query {
                None => tree.similar(file, min, limit)?,
                Some(query) => tree.similar_as(file, query, min, limit)?,
            };
            SimilarByMethod {
                query: shown(file),
                method: method.name().to_owned(),
                parameters: query.map_or_else(|| method.description(), |query| query.parameters()),
                matches: matches.files,
                below_min: matches.below_min,
                unreadable: tree.unreadable().len() as u64,
                not_known: NotKnown::default(),
            }
        }
    };
    by_method.say(&report.not_known, out);
    out.result(&report, |report| {
        let text = match report.matches.is_empty() {
            true => "no similar files\n".to_owned(),
            false => rows(&report.matches),
        };
        text + &below(["file has", "files have"], report.below_min, min)
    })?;
    Ok(found_all(report.unreadable))
}

/// Shows groups of files like each other.
pub(super) fn groups(question: &Question<'_>, winnow: &WinnowAsked, out: &Output) -> CliResult {
    let &Question { by_method, chosen, path, min, limit, global, .. } = question;
    let method = chosen.any();
    let request = |path, base| Request::GroupsByMethod { path, method: chosen.clone(), min, base };
    let mut report = match by_method.ask_or_read(path, winnow, request, global, out)? {
        Asked::Answered(response) => match *response {
            Response::GroupsByMethod(report) => report,
            other => return Err(unexpected(&other)),
        },
        Asked::Read(dir) => {
            let base = winnow.base(chosen)?;
            let tree = read(&dir, method.clone(), winnow.look, out)?;
            let found = tree.groups_excluding(&base, min)?;
            GroupsByMethod {
                method: method.name().to_owned(),
                parameters: method.description(),
                min,
                groups: (1..)
                    .zip(&found.groups)
                    .map(|(id, group)| MethodGroup::of(id, group.files()))
                    .collect(),
                below_min: found.below_min,
                omitted: 0,
                unreadable: tree.unreadable().len() as u64,
                not_known: NotKnown::default(),
            }
        }
    };
    by_method.say(&report.not_known, out);
    if report.omitted > 0 {
        out.note(&format!("{} groups left out: the report would be too long", report.omitted));
    }
    report.groups.truncate(limit.unwrap_or(usize::MAX));
    out.result(&report, figure_3)?;
    Ok(found_all(report.unreadable))
}

/// Formats the report of Manber's figure 3: with the share of the first file that is in each, or with the distance if the
/// method measures that.
fn figure_3(report: &GroupsByMethod) -> String {
    let left = below(["pair of files has", "pairs of files have"], report.below_min, report.min);
    if report.groups.is_empty() {
        return "no similar files\n".to_owned() + &left;
    }
    let members = || report.groups.iter().flat_map(|group| &group.members);
    let measures_distance = members().any(|file| file.likeness.distance.is_some());
    let mut text = match measures_distance {
        true => "The following groups of files are similar. The figure is the distance, for each byte\n"
            .to_owned(),
        false => {
            let least = (report.min * 100.0).round();
            format!("The following groups of files are similar. Minimum similarity = {least}%\n")
        }
    };
    for group in &report.groups {
        text.push('\n');
        for (at, file) in group.members.iter().enumerate() {
            let figure = match (at, file.likeness.distance) {
                (0, _) if measures_distance => "R".to_owned() + &" ".repeat(7),
                (0, _) => "R100".to_owned(),
                (_, Some(distance)) => format!("{distance:>8.6}"),
                (_, None) if measures_distance => format!("{:>8}", "same"),
                (_, None) => format!("{:>6}", (of_reference(&file.likeness.swapped()) * 100.0).round()),
            };
            text += &format!("{figure} {} {}\n", plain(&shown(&file.path)), file.size);
        }
    }
    text + &left
}

/// Says how many more there are with less in common than wanted. `one` and `several` name them.
pub(super) fn below([one, several]: [&str; 2], count: u64, min: f64) -> String {
    let what = match count {
        0 => return String::new(),
        1 => one,
        _ => several,
    };
    format!("\n{count} more {what} less than {} in common (--min shows more)\n", share(min))
}

fn rows(files: &[MatchWithPaths]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(files.iter().map(cells));
    table(&rows, &[0, 1, 2, 3, 4])
}

fn cells(file: &MatchWithPaths) -> Vec<String> {
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
        plain(&shown(&file.path)) + mark,
    ]
}

/// Reads the files of a directory.
pub(super) fn read(
    dir: &Path,
    method: Arc<dyn AnyMethod>,
    look: Option<Look>,
    out: &Output,
) -> Result<Tree, CliError> {
    let roots = [(dir, Path::new(""))];
    let tree = reading(out, |progress| Tree::read_all(&roots, method, look, progress))?;
    outcome(tree.unreadable(), out);
    Ok(tree)
}
