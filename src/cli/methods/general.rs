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
use crate::admin::{GroupsByMethod, NotKnown, Request, Response, SimilarByMethod};
use crate::contents::Look;
use crate::query::methods::{LikeGroup, MatchWithPaths, Tree, of_reference};
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
                None => tree.similar(file, min, limit),
                Some(query) => tree.similar_as(file, query, min, limit),
            };
            SimilarByMethod {
                query: shown(file),
                method: method.name().to_owned(),
                parameters: query.map_or_else(|| method.description(), |query| query.parameters()),
                matches: matches?,
                unreadable: tree.unreadable().len() as u64,
                not_known: NotKnown::default(),
            }
        }
    };
    by_method.say(&report.not_known, out);
    out.result(&report, |report| match report.matches.is_empty() {
        true => "no similar files\n".to_owned(),
        false => rows(&report.matches),
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
            let groups = tree.groups_excluding(&base, min)?;
            GroupsByMethod {
                method: method.name().to_owned(),
                parameters: method.description(),
                min,
                groups: groups.iter().map(LikeGroup::files).collect(),
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
            text += &format!("{figure} {} {}\n", plain(&shown(&file.path)), file.size);
        }
    }
    text
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
