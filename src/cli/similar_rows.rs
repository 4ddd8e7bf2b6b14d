//! The answer of `similar` on one screen: the first files of each kind (versions, containers, contained ones, others).

use super::output::{ROWS, plain, share, size, table};
use crate::admin::text::shown;
use crate::contents::Shares;
use crate::query::{Match, Matches};
use crate::view::View;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Rows of each kind if there are more than one screen takes.
const ROWS_OF_KIND: usize = 4;
const HEAD: [&str; 6] = ["CONTAINS", "CONTAINED", "RESEMBLES", "COMMON", "SIZE", "FILE"];

/// The relation of a file found to the queried one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Version,
    Container,
    Contained,
    Part,
}

impl Kind {
    /// Half of all bytes in common make a version; four fifths of one file make it contained.
    fn of(shares: &Shares) -> Kind {
        match shares {
            Shares { resemblance: 0.5.., .. } => Kind::Version,
            Shares { containment: 0.8.., .. } => Kind::Container,
            Shares { contained_in: 0.8.., .. } => Kind::Contained,
            _ => Kind::Part,
        }
    }

    fn title(self, files: usize) -> String {
        let [one, several] = match self {
            Kind::Version => ["is a likely version", "are likely versions"],
            Kind::Container => ["contains it", "contain it"],
            Kind::Contained => ["is contained in it", "are contained in it"],
            Kind::Part => ["shares parts with it", "share parts with it"],
        };
        format!("{files} {}\n", if files == 1 { one } else { several })
    }
}

/// A row: a file, and how many further ones are its versions.
struct Row<'a> {
    found: &'a Match,
    further: usize,
}

/// Formats the answer; `all` shows every file in a row of its own.
pub(super) fn text(report: &Matches, all: bool) -> String {
    let mut text = match report.matches.is_empty() {
        true => "no similar files\n".to_owned(),
        false => String::new(),
    };
    let (same, alike): (Vec<_>, Vec<_>) = report.matches.iter().partition(|found| found.shares.identical);
    let mut hidden = 0;
    if !same.is_empty() {
        text += &format!("{} identical, of {}\n", report.identical, size(same[0].size));
        let rows = if all { same.len() } else { same.len().min(ROWS) };
        same[..rows].iter().for_each(|found| text += &format!("  {}\n", plain(&shown(&found.path))));
        hidden += same.len() - rows;
        let left = report.identical.saturating_sub(same.len());
        if left > 0 {
            text += &format!("  ... and {left} more: --limit N shows more\n");
        }
    }
    let mut kinds: BTreeMap<Kind, Vec<Row<'_>>> = BTreeMap::new();
    for found in alike {
        let rows = kinds.entry(Kind::of(&found.shares)).or_default();
        match rows.iter_mut().find(|row| !all && are_versions(&row.found.path, &found.path)) {
            Some(row) => row.further += 1,
            None => rows.push(Row { found, further: 0 }),
        }
    }
    let fits = all || kinds.values().map(Vec::len).sum::<usize>() <= ROWS;
    for (kind, rows) in &kinds {
        let most = if fits { rows.len() } else { rows.len().min(ROWS_OF_KIND) };
        if kinds.len() > 1 {
            let files: usize = rows.iter().map(|row| 1 + row.further).sum();
            text += &kind.title(files);
        }
        let cells = rows[..most].iter().map(cells);
        let rows_shown: Vec<_> = std::iter::once(HEAD.map(str::to_owned).to_vec()).chain(cells).collect();
        text += &table(&rows_shown, &[0, 1, 2, 3, 4]);
        hidden += rows[most..].iter().map(|row| 1 + row.further).sum::<usize>();
    }
    if hidden > 0 {
        text += &format!("and {hidden} more: --all shows every file\n");
    }
    if report.suppressed_bytes > 0 {
        let covered = size(report.suppressed_bytes);
        text +=
            &format!("{covered} are of templates or padding and do not count (--no-templates counts them)\n");
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

/// Whether two files are one path in several versions: the paths differ only in the numbers of directories.
fn are_versions(a: &Path, b: &Path) -> bool {
    a.file_name() == b.file_name() && without_numbers(a) == without_numbers(b)
}

fn without_numbers(path: &Path) -> String {
    let dir = path.parent().map(PathBuf::from).unwrap_or_default();
    let (mut text, mut is_number) = (String::new(), false);
    for c in shown(&dir).chars() {
        let goes_on = c.is_ascii_digit() || is_number && c == '.';
        if !goes_on {
            text.push(c);
        } else if !is_number {
            text.push('#');
        }
        is_number = goes_on;
    }
    text
}

fn cells(row: &Row<'_>) -> Vec<String> {
    let Row { found, further } = row;
    let seen = match (found.query_view, found.view) {
        (View::Raw, View::Raw) => String::new(),
        (query, found) if query == found => format!(" (as {})", found.name()),
        (query, found) => format!(" (as {}, asked as {})", found.name(), query.name()),
    };
    let mark = if found.shares.verified { "" } else { " (estimate)" };
    let versions = if *further > 0 { format!(" (and {further} other versions)") } else { String::new() };
    vec![
        share(found.shares.containment),
        share(found.shares.contained_in),
        share(found.shares.resemblance),
        size(found.shares.bytes_common),
        size(found.size),
        plain(&shown(&found.path)) + &seen + mark + &versions,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, containment: f64, contained_in: f64) -> Match {
        let resemblance = 1.0 / (1.0 / containment + 1.0 / contained_in - 1.0);
        let shares = Shares {
            containment,
            contained_in,
            resemblance,
            bytes_common: 1000,
            bytes_suppressed: 0,
            identical: false,
            verified: true,
        };
        let absolute = PathBuf::new();
        Match { path: path.into(), absolute, size: 2000, shares, query_view: View::Raw, view: View::Raw }
    }

    fn report(matches: Vec<Match>) -> Matches {
        Matches { matches, ..Matches::default() }
    }

    #[test]
    fn one_screen_has_the_first_of_each_kind() {
        let mut all: Vec<_> = (0..40).map(|at| found(&format!("r/4.17.{at}/lodash.js"), 0.9, 0.9)).collect();
        all.extend((0..9).map(|at| found(&format!("fork{at}x/{at}.js"), 0.8, 0.7)));
        all.extend((0..9).map(|at| found(&format!("bundle{at}.js"), 0.95, 0.2)));
        all.extend((0..9).map(|at| found(&format!("part{at}.js"), 0.1, 0.9)));
        all.push(found("other.js", 0.3, 0.3));
        let report = report(all);
        let short = text(&report, false);
        for line in
            ["49 are likely versions", "9 contain it", "9 are contained in it", "1 shares parts with it"]
        {
            assert!(short.lines().any(|other| other == line), "{line}: {short}");
        }
        assert!(short.contains("r/4.17.0/lodash.js (and 39 other versions)"), "{short}");
        assert!(short.ends_with("and 16 more: --all shows every file\n"), "{short}");
        assert!(short.lines().count() <= 24, "{short}");
        let long = text(&report, true);
        assert!(report.matches.iter().all(|found| long.contains(found.path.to_str().unwrap())), "{long}");
        assert!(!long.contains("--all") && !long.contains("other versions"), "{long}");
    }

    #[test]
    fn few_files_of_one_kind_are_one_table() {
        let short = text(&report((0..10).map(|at| found(&format!("{at}.js"), 0.9, 0.9)).collect()), false);
        assert!(short.starts_with("CONTAINS") && short.lines().count() == 11, "{short}");
        assert_eq!(text(&report(Vec::new()), false), "no similar files\n");
    }
}
