//! What a report says as a page: see [`crate::page`].

use super::error::CliError;
use super::output::{Output, share, size};
use crate::admin::GroupsReport;
use crate::overlay::compare::Comparison;
use crate::page::{Bar, Column, Figure, Kind, Page, Part, Picture, Set, Table, Values};
use std::path::Path;

/// Writes a page to a file; what is there is replaced once the new one is whole.
pub(super) fn write(page: &Page, path: &Path, out: &Output) -> Result<(), CliError> {
    let made = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M %Z").to_string();
    let html = page.html(&made).map_err(|e| CliError::io("make", path, &e))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = std::fs::write(&new, html).and_then(|()| std::fs::rename(&new, path));
    if let Err(e) = written {
        let _ = std::fs::remove_file(&new);
        return Err(CliError::io("write", path, &e));
    }
    out.note(&format!("{} is to be opened in a browser", path.display()));
    Ok(())
}

fn figure(label: &str, value: String) -> Figure {
    Figure { label: label.to_owned(), value }
}

/// Sets of the same files, and groups of similar ones.
pub(super) fn groups(report: &GroupsReport, about: String) -> Page {
    let rows = report.identical.iter().map(|set| set.paths.len()).sum::<usize>()
        + report.groups.iter().map(|group| group.members.len()).sum::<usize>();
    let (mut files, mut kinds) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    let (mut numbers, mut sizes) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    let (mut copies, mut common) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    let mut shares = [const { Vec::new() }; 3];
    let (mut first, mut sets) = (Vec::with_capacity(rows), Vec::new());
    for (id, set) in (1..).zip(&report.identical) {
        let from = files.len();
        for (i, path) in set.paths.iter().enumerate() {
            files.push(path.clone());
            kinds.push("same".to_owned());
            numbers.push(id);
            sizes.push(set.size);
            copies.push(1);
            common.push(set.size);
            shares.iter_mut().for_each(|shares| shares.push(Some(1.0)));
            first.push(i == 0);
        }
        let name = set.paths.first().cloned().unwrap_or_default();
        let saves = set.size * (set.paths.len() as u64).saturating_sub(1);
        sets.push(Set { name, from, to: files.len(), saves, same: true });
    }
    for group in &report.groups {
        let from = files.len();
        for (i, member) in group.members.iter().enumerate() {
            files.push(member.path.clone());
            kinds.push(match (i, member.verified) {
                (0, _) => "representative".to_owned(),
                (_, true) => "similar".to_owned(),
                (_, false) => "similar, estimated".to_owned(),
            });
            numbers.push(group.id);
            sizes.push(member.size);
            copies.push(member.copies);
            common.push(member.bytes_common);
            let figures = [member.containment, member.contained_in, member.resemblance];
            shares.iter_mut().zip(figures).for_each(|(shares, share)| shares.push(Some(share)));
            first.push(i == 0);
        }
        let name = group.representative.clone();
        sets.push(Set { name, from, to: files.len(), saves: group.savable_bytes, same: false });
    }
    let column = |name, help, values| Column { name, help, values };
    let [contained, contains, resembles] = shares.map(Values::Share);
    let columns = vec![
        column("File", "Where it is in the overlay", Values::Text(files)),
        column("Kind", "Same to the byte, or similar to a representative", Values::Text(kinds)),
        column("Set", "Number of the set or group", Values::Number(numbers)),
        column("Size", "Of the file", Values::Bytes(sizes)),
        column("Contained", "Share of the file that is in the representative", contained),
        column("Contains", "Share of the representative that is in the file", contains),
        column("Resembles", "Bytes in common over bytes in either", resembles),
        column("Common", "Bytes of the file that are in the representative", Values::Bytes(common)),
        column("Copies", "Files with the same bytes", Values::Number(copies)),
    ];
    let mut notes = Vec::new();
    if report.behind {
        notes.push("Files may be missing: the index does not know all of them yet.".to_owned());
    }
    if report.omitted > 0 {
        notes.push(format!("{} rows are left out: the report would be too long.", report.omitted));
    }
    let listed: u64 = report.groups.iter().map(|group| group.bytes).sum();
    Page {
        title: "Files that are the same or alike".to_owned(),
        about,
        figures: vec![
            figure("contents compared", report.contents.to_string()),
            figure("sets of the same files", report.identical_sets.to_string()),
            figure("too often", size(report.identical_bytes)),
            figure("groups of similar files", report.estimated_groups.to_string()),
            figure("savable in groups", size(report.estimated_bytes)),
        ],
        notes,
        pictures: savings(report, listed).into_iter().collect(),
        table: Table { title: "Files".to_owned(), columns, sets, size: 3, darkness: 4, first },
    }
}

/// What listed files take, and how much of that is there more than once.
fn savings(report: &GroupsReport, listed: u64) -> Option<Picture> {
    let savable: u64 = report.groups.iter().map(|group| group.savable_bytes).sum();
    let same: u64 = report.identical.iter().map(|set| set.size * (set.paths.len() as u64).max(1)).sum();
    let too_often: u64 =
        report.identical.iter().map(|set| set.size * (set.paths.len() as u64).saturating_sub(1)).sum();
    let bar = |label: &str, all: u64, saved: u64, kind, told: &str| {
        let part = |kind, bytes: u64, told: &str| Part {
            kind,
            share: bytes as f64 / all as f64,
            label: format!("{} {told}", size(bytes)),
        };
        let parts = vec![part(Kind::Once, all - saved.min(all), "once"), part(kind, saved.min(all), told)];
        (all > 0).then(|| Bar { label: format!("{label}, {}", size(all)), parts })
    };
    let bars: Vec<Bar> = [
        bar("the same", same, too_often, Kind::Same, "too often"),
        bar("similar", listed, savable, Kind::Saved, "in common"),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!bars.is_empty()).then(|| Picture { title: "What is there more than once".to_owned(), bars })
}

/// Methods side by side.
pub(super) fn comparison(comparison: &Comparison, about: String) -> Page {
    let standings = &comparison.standings;
    let measure = |title: &str, figure: &dyn Fn(usize) -> Option<f64>| Picture {
        title: title.to_owned(),
        bars: standings
            .iter()
            .enumerate()
            .map(|(i, standing)| {
                let label = figure(i).map_or_else(|| "does not measure it".to_owned(), share);
                let part = Part { kind: Kind::Mark, share: figure(i).unwrap_or(0.0), label };
                Bar { label: standing.method.clone(), parts: vec![part] }
            })
            .collect(),
    };
    let column = |name, help, values| Column { name, help, values };
    let all =
        |figure: &dyn Fn(usize) -> Option<f64>| Values::Share((0..standings.len()).map(figure).collect());
    let text = |text: &dyn Fn(usize) -> String| Values::Text((0..standings.len()).map(text).collect());
    let decimal = |figure: &dyn Fn(usize) -> f64| Values::Decimal((0..standings.len()).map(figure).collect());
    let recall = |at: usize| move |i: usize| standings[i].recall[at];
    let columns = vec![
        column("Method", "", text(&|i| standings[i].method.clone())),
        column("25%", "Recall of contents that have 25 percent of the one asked about", all(&recall(0))),
        column("50%", "Recall of those that have half", all(&recall(1))),
        column("80%", "Recall of those that have 80 percent", all(&recall(2))),
        column("Precision", "Share of what is listed that is so", all(&|i| standings[i].precision)),
        column("Index", "Bytes of the index by bytes of contents", all(&|i| Some(standings[i].index_share))),
        column("MB/s", "Of processor time", decimal(&|i| standings[i].megabytes_per_second)),
        column("Query, ms", "Of processor time", decimal(&|i| standings[i].query_ms)),
        column("Parameters", "What it was run with", text(&|i| standings[i].parameters.clone())),
    ];
    let left_out = (comparison.left_out > 0)
        .then(|| format!("{} files were left out: unreadable, or beyond --most.", comparison.left_out));
    Page {
        title: "Methods of finding similar files, against the truth".to_owned(),
        about,
        figures: vec![
            figure("different contents", comparison.contents.to_string()),
            figure("bytes", size(comparison.bytes)),
            figure("asked about", format!("{} (seed {})", comparison.queries, comparison.seed)),
            figure("pairs with 25, 50, 80%", comparison.pairs.map(|n| n.to_string()).join(", ")),
        ],
        notes: left_out.into_iter().collect(),
        pictures: vec![
            measure("Found of what has 25 percent", &recall(0)),
            measure("Found of what has half", &recall(1)),
            measure("Found of what has 80 percent", &recall(2)),
            measure("Of what is listed, so much is so", &|i| standings[i].precision),
        ],
        table: Table {
            title: "Figures".to_owned(),
            columns,
            sets: Vec::new(),
            size: 0,
            darkness: 0,
            first: vec![false; standings.len()],
        },
    }
}
