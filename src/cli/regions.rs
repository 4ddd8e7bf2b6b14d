use super::error::CliError;
use super::methods::readable;
use super::output::{Output, plain, share};
use super::{CliResult, Global, Outcome};
use crate::query::methods::regions::{Passage, SideBySide, side_by_side};
use crate::similarity::methods::winnow::Winnow;
use crate::view::View;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Regions shown by default; scripts get all.
const SHOWN: usize = 20;
/// Width of the text on either side, in characters.
const WIDTH: usize = 56;
/// Maximum bytes of a line that are read.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Show common parts of two files, with line numbers
#[derive(clap::Args)]
#[command(
    after_help = "Uses winnowing, like MOSS: a front end reads each file according to its type and leaves out details that \
    do not distinguish files (case and spaces of text, names and comments of source code, tags of HTML). Common parts of \
    at least K+W-1 bytes of the rest are always found, parts of less than K bytes never.\n\
    Example: dedupctl regions homework/ann.c homework/bob.c --base handout.c"
)]
pub(super) struct Regions {
    /// The first file
    a: PathBuf,
    /// The second
    b: PathBuf,
    /// Ignore everything that this file contains, such as a handout. Can be repeated
    #[arg(long, value_name = "FILE")]
    base: Vec<PathBuf>,
    /// Shortest common part to find, in bytes after the front end
    #[arg(long, value_name = "K", default_value_t = 30)]
    k: u32,
    /// Keep one of this many hashes
    #[arg(long, value_name = "W", default_value_t = 20)]
    w: u32,
    /// Instead of W: find every common part of this many bytes, with W = T-K+1
    #[arg(long, value_name = "T", conflicts_with = "w")]
    t: Option<u32>,
    /// Read both through this view: raw, text, html, source, postscript, pdf, archive or gzip
    #[arg(long, value_name = "VIEW", value_parser = parse_view)]
    view: Option<View>,
    /// Lines of each region to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    lines: u64,
    /// Limit of regions, the longest first [default: 20 in a table, else all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

#[derive(Serialize)]
struct RegionsReport {
    a: String,
    b: String,
    #[serde(flatten)]
    side_by_side: SideBySide,
}

impl Regions {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let winnow = match self.t {
            None => Winnow::new(self.k, self.w, true),
            Some(t) => Winnow::with_guarantee(self.k, t, true),
        };
        let winnow = winnow.map_err(CliError::new)?;
        let [a, b] = [&self.a, &self.b].map(|path| readable(path));
        let base: Vec<PathBuf> = self.base.iter().map(|path| readable(path)).collect();
        let mut side_by_side = side_by_side(&a, &b, self.view, &winnow, &base)?;
        let found = side_by_side.passages.len();
        side_by_side.passages.truncate(self.limit.unwrap_or(if global.json { usize::MAX } else { SHOWN }));
        let left = found - side_by_side.passages.len();
        if left > 0 {
            out.note(&format!("{left} shorter regions left out: --limit N shows more"));
        }
        let passages = &side_by_side.passages;
        let of_a = self.read_lines(&a, &mut passages.iter().map(|passage| passage.a))?;
        let of_b = self.read_lines(&b, &mut passages.iter().map(|passage| passage.b))?;
        let [a, b] = [&self.a, &self.b].map(|path| crate::admin::text::shown(path));
        let report = RegionsReport { a, b, side_by_side };
        out.result(&report, |report| self.text(report, [&of_a, &of_b]))?;
        Ok(Outcome::Clean)
    }

    fn text(&self, report: &RegionsReport, lines: [&BTreeMap<u64, String>; 2]) -> String {
        let SideBySide { views, shares, passages } = &report.side_by_side;
        let [a, b] = [plain(&report.a), plain(&report.b)];
        let Some((a_share, b_share)) = shares else {
            return format!("too short to compare: {} bytes are needed\n", self.k);
        };
        let mut text = format!(
            "{a_share} of {a} (as {}), {b_share} of {b} (as {})\n",
            views[0].name(),
            views[1].name(),
            a_share = share(*a_share),
            b_share = share(*b_share)
        );
        for Passage { a: of_a, b: of_b, prints, bytes } in passages {
            text += &format!(
                "\nlines {}-{} and {}-{}: {bytes} bytes, {prints} fingerprints\n",
                of_a.0, of_a.1, of_b.0, of_b.1
            );
            if views.iter().any(|view| view.hides_bytes()) {
                continue;
            }
            let rows = (of_a.1 - of_a.0).max(of_b.1 - of_b.0) + 1;
            for at in 0..rows.min(self.lines) {
                let side = |(first, last): (u64, u64), lines: &BTreeMap<u64, String>| {
                    let line = lines.get(&(first + at)).filter(|_| first + at <= last);
                    line.map_or_else(String::new, |line| format!("{:>5}  {line}", first + at))
                };
                let row = format!("{:<1$}  {2}", side(*of_a, lines[0]), WIDTH + 7, side(*of_b, lines[1]));
                text += row.trim_end();
                text += "\n";
            }
            if rows > self.lines {
                text += &format!("  and {} more lines: --lines N shows more\n", rows - self.lines);
            }
        }
        if passages.is_empty() { text + "nothing in common\n" } else { text }
    }

    /// Reads the first lines of each region, shortened to the shown width.
    fn read_lines(
        &self,
        path: &Path,
        regions: &mut dyn Iterator<Item = (u64, u64)>,
    ) -> Result<BTreeMap<u64, String>, CliError> {
        let wanted: BTreeSet<u64> =
            regions.flat_map(|(first, last)| first..=last.min(first.saturating_add(self.lines))).collect();
        let file = File::open(path).map_err(|e| CliError::io("open", path, &e))?;
        let (mut input, mut lines) = (BufReader::new(file), BTreeMap::new());
        let end = wanted.last().copied().unwrap_or(0);
        let (mut number, mut goes_on) = (0, false);
        while number <= end {
            let mut line = Vec::new();
            let read = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            if read.map_err(|e| CliError::io("read", path, &e))? == 0 {
                break;
            }
            let begins = !goes_on;
            goes_on = !line.ends_with(b"\n");
            number += u64::from(begins);
            if begins && wanted.contains(&number) {
                let text = String::from_utf8_lossy(&line).trim_end().replace('\t', "    ");
                lines.insert(number, plain(&text.chars().take(WIDTH).collect::<String>()));
            }
        }
        Ok(lines)
    }
}

fn parse_view(name: &str) -> Result<View, String> {
    let known = || View::ALL.map(View::name).join(", ");
    name.parse().map_err(|()| format!("expected raw, {}", known()))
}
