//! The table of measured steps, with exponents, and the plot.

use crate::plot::{self, Line, Panel};
use crate::row::Row;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Less processor time than this is mostly of the measurement.
const SECONDS_MIN: f64 = 0.05;
/// `memory` in `config.toml` by default, and what a file may add to it.
const MEMORY: f64 = 256.0;
const MEMORY_OF_FILE: f64 = 200.0;
/// In the plot of time.
const PLOTTED: [&str; 8] =
    ["find", "scan, settle", "scan again", "snapshot create", "gc", "check", "groups", "export --to"];

/// The slope of a line through the logarithms; `None` without two points.
pub fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / logs.len() as f64;
    let (x, y) = (mean(&|log| log.0), mean(&|log| log.1));
    let (above, below) = (mean(&|log| (log.0 - x) * (log.1 - y)), mean(&|log| (log.0 - x).powi(2)));
    (below > 0.0).then(|| above / below)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Writes `scale.md` and `scale.svg` from `rows.tsv`: the last row of each number of files and step counts.
pub fn write(dir: &Path) {
    let mut rows: Vec<Row> = Vec::new();
    for row in fs::read_to_string(dir.join("rows.tsv")).unwrap().lines().filter_map(Row::parse) {
        rows.retain(|known| (known.files, &known.step) != (row.files, &row.step));
        rows.push(row);
    }
    let mut counts: Vec<u64> = rows.iter().map(|row| row.files).collect();
    counts.sort();
    counts.dedup();
    let mut steps: Vec<&str> = Vec::new();
    for row in &rows {
        if !steps.contains(&row.step.as_str()) {
            steps.push(&row.step);
        }
    }
    let table = table(&rows, &counts, &steps);
    print!("{table}");
    fs::write(dir.join("scale.md"), table).unwrap();
    fs::write(dir.join("scale.svg"), plot(&rows, &counts)).unwrap();
}

fn find<'a>(rows: &'a [Row], files: u64, step: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.files == files && row.step == step)
}

/// Seconds (processor seconds), peak and later MiB for each step and number of files.
fn table(rows: &[Row], counts: &[u64], steps: &[&str]) -> String {
    let mut text = "| step |".to_owned();
    counts.iter().for_each(|files| write!(text, " {files} files |").unwrap());
    text += " exponent |\n|";
    text += &" --- |".repeat(counts.len() + 2);
    for step in steps {
        write!(text, "\n| {step} |").unwrap();
        let mut points = Vec::new();
        for files in counts {
            let Some(row) = find(rows, *files, step) else {
                text += " not run |";
                continue;
            };
            let cut = if row.cut { "cut after " } else { "" };
            write!(text, " {cut}{:.1} s ({:.1}), {:.0}", row.seconds, row.processor(), mib(row.peak))
                .unwrap();
            if row.resident > 0 {
                write!(text, " / {:.0}", mib(row.resident)).unwrap();
            }
            write!(text, " MiB, {} fd |", row.descriptors).unwrap();
            if !row.cut && row.processor() >= SECONDS_MIN {
                points.push((*files as f64, row.processor()));
            }
        }
        match exponent(&points) {
            Some(exponent) => write!(text, " {exponent:.2} |").unwrap(),
            None => text += " |",
        }
    }
    for (name, of) in [("index", (|row| row.index) as fn(&Row) -> u64), ("packs", |row| row.packs)] {
        write!(text, "\n| {name}, bytes a file |").unwrap();
        for files in counts {
            let most = rows.iter().filter(|row| row.files == *files).max_by_key(|row| row.packs);
            write!(text, " {} |", most.map_or(0, of) / files).unwrap();
        }
        text += " |";
    }
    text + "\n"
}

/// Processor time of each step, and memory.
fn plot(rows: &[Row], counts: &[u64]) -> String {
    let points = |of: &dyn Fn(u64) -> Option<f64>| -> Vec<(f64, f64)> {
        counts.iter().filter_map(|files| Some((*files as f64, of(*files)?))).collect()
    };
    let time = PLOTTED.map(|step| Line {
        name: step.to_owned(),
        points: points(&|files| {
            find(rows, files, step).filter(|row| !row.cut).map(|row| row.processor().max(SECONDS_MIN))
        }),
    });
    let of = |files| rows.iter().filter(move |row| row.files == files);
    let most =
        |of_row: fn(&Row) -> u64| move |files| of(files).map(of_row).max().filter(|most| *most > 0).map(mib);
    let peak = points(&most(|row| row.peak));
    let after = points(&most(|row| row.resident));
    let allowed = points(&|files| Some(MEMORY + files as f64 * MEMORY_OF_FILE / f64::from(1 << 20)));
    let memory = [("peak", peak), ("2 s after a step", after), ("memory + 200 bytes a file", allowed)]
        .map(|(name, points)| Line { name: name.to_owned(), points });
    plot::svg(&[
        Panel { title: "processor time, s", lines: &time },
        Panel { title: "resident memory, MiB", lines: &memory },
    ])
}
