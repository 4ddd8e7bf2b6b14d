//! Reports as HTML pages: see [`crate::page`].

use super::error::CliError;
use super::output::{Output, share, size};
use super::similar_rows::not_indexed;
use crate::admin::text::shown;
use crate::admin::{DiffReport, Excerpt};
use crate::page::{
    Bar, Column, Figure, Kind, MARKED_MAX, Page, Part, Picture, Piece, Set, Shared, SideBySide, Table, Values,
};
use crate::query::Groups;
use crate::query::compare::{Comparison, Recommendation};
use std::path::Path;

/// Writes a page to a file; replaces it only when the new one is complete.
pub(super) fn write(page: &Page, path: &Path, out: &Output) -> Result<(), CliError> {
    let html = page.html(&now()).map_err(|e| CliError::io("make", path, &e))?;
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

/// Returns the present time, for people.
pub(super) fn now() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%d %H:%M %Z").to_string()
}

pub(super) fn figure(label: &str, value: String) -> Figure {
    Figure { label: label.to_owned(), value }
}

/// Creates a table without sets.
pub(super) fn plain_table(title: &str, columns: Vec<Column>) -> Table {
    let title = title.to_owned();
    Table { title, columns, sets: Vec::new(), size: 0, darkness: 0, first: Vec::new(), link: None }
}

/// Creates the page of identical sets and similar groups.
pub(super) fn groups(report: &Groups, about: String) -> Page {
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
            files.push(shown(path));
            kinds.push("same".to_owned());
            numbers.push(id);
            sizes.push(set.size);
            copies.push(1);
            common.push(set.size);
            shares.iter_mut().for_each(|shares| shares.push(Some(1.0)));
            first.push(i == 0);
        }
        let name = set.paths.first().map(|path| shown(path)).unwrap_or_default();
        let saves = set.size * (set.paths.len() as u64).saturating_sub(1);
        sets.push(Set { name, from, to: files.len(), saves, same: true });
    }
    for group in &report.groups {
        let from = files.len();
        for (i, member) in group.members.iter().enumerate() {
            files.push(shown(&member.path));
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
        let name = shown(&group.representative);
        sets.push(Set { name, from, to: files.len(), saves: group.savable_bytes, same: false });
    }
    let column = |name, help, values| Column { name, help, values };
    let [contained, contains, resembles] = shares.map(Values::Share);
    let columns = vec![
        column("File", "Path in the overlay", Values::Text(files)),
        column("Kind", "Same to the byte, or similar to a representative", Values::Text(kinds)),
        column("Set", "Number of the set or group", Values::Number(numbers)),
        column("Size", "Size of the file", Values::Bytes(sizes)),
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
    if report.not_indexed > 0 {
        notes.push(not_indexed(report.not_indexed));
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
            figure("redundant", size(report.identical_bytes)),
            figure("groups of similar files", report.estimated_groups.to_string()),
            figure("savable in groups", size(report.estimated_bytes)),
        ],
        notes,
        pictures: savings(report, listed).into_iter().collect(),
        side_by_side: None,
        table: Some(Table {
            title: "Files".to_owned(),
            columns,
            sets,
            size: 3,
            darkness: 4,
            first,
            link: None,
        }),
    }
}

/// Creates the picture of the listed files' size, and the redundant part.
fn savings(report: &Groups, listed: u64) -> Option<Picture> {
    let savable: u64 = report.groups.iter().map(|group| group.savable_bytes).sum();
    let same: u64 = report.identical.iter().map(|set| set.size * (set.paths.len() as u64).max(1)).sum();
    let too_often: u64 =
        report.identical.iter().map(|set| set.size * (set.paths.len() as u64).saturating_sub(1)).sum();
    let bar = |label: &str, all: u64, saved: u64, kind, told: &str| {
        let part = |kind, bytes: u64, told: &str| Part {
            kind,
            share: bytes as f64 / all as f64,
            label: format!("{} {}", size(bytes), told),
        };
        let parts = vec![part(Kind::Once, all - saved.min(all), "once"), part(kind, saved.min(all), told)];
        (all > 0).then(|| Bar { label: format!("{label}, {}", size(all)), parts })
    };
    let bars: Vec<Bar> = [
        bar("the same", same, too_often, Kind::Same, "redundant"),
        bar("similar", listed, savable, Kind::Saved, "in common"),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!bars.is_empty()).then(|| Picture { title: "Redundant copies".to_owned(), bars })
}

/// Creates the page of two contents side by side.
pub(super) fn diff(report: &DiffReport, excerpts: [Vec<Excerpt>; 2]) -> Page {
    let DiffReport { a, b, a_size, b_size, regions, .. } = report;
    let bar = |name: &str, shared: u64, size_of: u64| {
        let part = |kind, bytes: u64, told: &str| Part {
            kind,
            share: bytes as f64 / size_of.max(1) as f64,
            label: format!("{} {}", size(bytes), told),
        };
        let parts = vec![part(Kind::Saved, shared, "shared"), part(Kind::Once, size_of - shared, "not")];
        Bar { label: name.to_owned(), parts }
    };
    let column = |name, help, values: &dyn Fn(usize) -> u64| Column {
        name,
        help,
        values: Values::Number((0..regions.len()).map(values).collect()),
    };
    let columns = vec![
        column("Region", "Its number above", &|i| i as u64 + 1),
        column("In the first", "Its start, in bytes", &|i| regions[i].a_offset),
        column("In the second", "Its start, in bytes", &|i| regions[i].b_offset),
        column("Bytes", "How many they are", &|i| regions[i].length),
    ];
    let piece = |Excerpt { offset, lines_before, bytes }| Piece { offset, lines_before, bytes };
    let side_by_side = SideBySide {
        names: [a.clone(), b.clone()],
        sizes: [*a_size, *b_size],
        pieces: excerpts.map(|pieces| pieces.into_iter().map(piece).collect()),
        shared: regions
            .iter()
            .map(|region| Shared { from: [region.a_offset, region.b_offset], length: region.length })
            .collect(),
    };
    let mut notes = Vec::new();
    if report.identical {
        notes.push("Both are the same to the byte.".to_owned());
    }
    if side_by_side.is_cut() {
        notes.push(
            "Not all is shown: long contents appear only around the ends of the longest regions.".to_owned(),
        );
    }
    if regions.len() > MARKED_MAX {
        notes.push(format!("The {MARKED_MAX} longest regions are marked; the table below has all."));
    }
    if report.omitted > 0 {
        notes.push(format!("{} shorter regions are left out: --limit N shows more.", report.omitted));
    }
    Page {
        title: format!("{a} and {b}"),
        about: "Common parts of at least 32 bytes, at any position".to_owned(),
        figures: vec![
            figure("share of the first", share(report.bytes_common as f64 / (*a_size).max(1) as f64)),
            figure("share of the second", share(report.b_bytes_common as f64 / (*b_size).max(1) as f64)),
            figure("shared", size(report.bytes_common)),
            figure("regions", (regions.len() as u64 + report.omitted).to_string()),
        ],
        notes,
        pictures: vec![Picture {
            title: "How much is shared".to_owned(),
            bars: vec![bar(a, report.bytes_common, *a_size), bar(b, report.b_bytes_common, *b_size)],
        }],
        side_by_side: Some(side_by_side),
        table: Some(plain_table("Regions", columns)),
    }
}

/// Creates the page of methods side by side.
pub(super) fn comparison(comparison: &Comparison, about: String) -> Page {
    let standings = &comparison.methods;
    let measure = |title: &str, figure: &dyn Fn(usize) -> Option<f64>| {
        // Without sufficiently similar files there is nothing to find.
        (0..standings.len()).any(|i| figure(i).is_some()).then(|| Picture {
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
        })
    };
    let column = |name, help, values| Column { name, help, values };
    let all =
        |figure: &dyn Fn(usize) -> Option<f64>| Values::Share((0..standings.len()).map(figure).collect());
    let text = |text: &dyn Fn(usize) -> String| Values::Text((0..standings.len()).map(text).collect());
    let decimal = |figure: &dyn Fn(usize) -> f64| Values::Decimal((0..standings.len()).map(figure).collect());
    let recall = |at: usize| move |i: usize| standings[i].recall()[at];
    let columns = vec![
        column("Method", "", text(&|i| standings[i].method.clone())),
        column("25%", "Recall of contents that have 25 percent of the query", all(&recall(0))),
        column("50%", "Recall of those that have half", all(&recall(1))),
        column("80%", "Recall of those that have 80 percent", all(&recall(2))),
        column("Precision", "Share of listed files that are correct", all(&|i| standings[i].precision)),
        column("Index", "Bytes of the index by bytes of contents", all(&|i| Some(standings[i].index_share))),
        column("MiB/s", "Processor time", decimal(&|i| standings[i].mib_per_s)),
        column("Query, ms", "Processor time", decimal(&|i| standings[i].query_ms)),
        column("Parameters", "Its parameters", text(&|i| standings[i].parameters.clone())),
    ];
    let left_out = (comparison.left_out > 0)
        .then(|| format!("{} files were left out: unreadable, or beyond --most.", comparison.left_out));
    let nothing = (comparison.pairs[0] == 0)
        .then(|| "No two of these files have a quarter in common: there is nothing to find.".to_owned());
    let recommended = comparison.recommendation.as_ref().map(Recommendation::sentence);
    let [smallest, median, largest] = comparison.sizes.map(size);
    Page {
        title: "Methods of finding similar files, against the truth".to_owned(),
        about,
        figures: vec![
            figure("different contents", comparison.contents.to_string()),
            figure("bytes", size(comparison.bytes)),
            figure("smallest, median, largest", format!("{smallest}, {median}, {largest}")),
            figure("asked about", format!("{} (seed {})", comparison.queries, comparison.seed)),
            figure("pairs with 25, 50, 80%", comparison.pairs.map(|n| n.to_string()).join(", ")),
        ],
        notes: left_out.into_iter().chain(nothing).chain(recommended).collect(),
        pictures: [
            measure("Recall at 25 percent", &recall(0)),
            measure("Recall at half", &recall(1)),
            measure("Recall at 80 percent", &recall(2)),
            measure("Precision", &|i| standings[i].precision),
        ]
        .into_iter()
        .flatten()
        .collect(),
        side_by_side: None,
        table: Some(plain_table("Figures", columns)),
    }
}
