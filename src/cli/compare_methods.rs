use super::methods::readable;
use super::output::{Output, share, size, table};
use super::{CliResult, Global, Outcome};
use crate::admin::{Progress, Unit};
use crate::config::parse_size;
use crate::query::compare::{CompareOptions, Comparison, compare};
use std::path::PathBuf;

/// Measure similarity methods against the truth
#[derive(clap::Args)]
#[command(
    after_help = "Some files are compared byte by byte with all others, which takes a while; that is the truth. \
    RECALL is the share of the files that have 25, 50 or 80 percent of the one asked about which a method lists with \
    at least half of that; PRECISION the share of what it lists with 25 percent or more, either way round, that is \
    so. A method that measures a distance lists what it finds. If the defaults of a method do not suit the sizes of the \
    files, it has a second row with parameters that do.\n\
    Example: dedupctl compare-methods ~/src"
)]
pub(super) struct CompareMethods {
    /// The directory
    path: PathBuf,
    /// Number of query files
    #[arg(long, value_name = "N", default_value_t = 20)]
    queries: usize,
    /// Seed of their choice
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Limit of bytes to read: they stay in memory
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    most: u64,
    /// Write an HTML page to FILE; it needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl CompareMethods {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let options = CompareOptions { queries: self.queries, seed: self.seed, bytes_max: self.most };
        let mut meter = out.meter();
        let comparison = compare(&readable(&self.path), &options, &mut |what, done, total| {
            meter.show(&Progress { what: what.into(), done, total, unit: Unit::Files });
        });
        drop(meter);
        let comparison = comparison?;
        if comparison.left_out > 0 {
            out.note(&format!("{} files left out: unreadable, or beyond --most", comparison.left_out));
        }
        if let Some(file) = &self.html {
            let about = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
            super::pages::write(
                &super::pages::comparison(&comparison, about.display().to_string()),
                file,
                out,
            )?;
        }
        if self.html.is_none() || global.json {
            out.result(&comparison, text)?;
        }
        Ok(Outcome::Clean)
    }
}

fn text(comparison: &Comparison) -> String {
    let Comparison { contents, bytes, queries, seed, pairs, methods, .. } = comparison;
    let [smallest, median, largest] = comparison.sizes.map(size);
    let text = format!(
        "{contents} different contents, {} (from {smallest} to {largest}, median {median}); {queries} asked about (seed {seed}); \
        {} have 25%, {} have 50%, {} have 80% of one\n\n",
        size(*bytes),
        pairs[0],
        pairs[1],
        pairs[2]
    );
    let head = ["METHOD", "25%", "50%", "80%", "PRECISION", "INDEX", "MiB/s", "QUERY ms", "PARAMETERS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(methods.iter().map(|standing| {
        let cell = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), share);
        let [low, half, high] = standing.recall();
        vec![
            standing.method.clone(),
            cell(low),
            cell(half),
            cell(high),
            cell(standing.precision),
            share(standing.index_share),
            format!("{:.0}", standing.mib_per_s),
            format!("{:.2}", standing.query_ms),
            standing.parameters.clone(),
        ]
    }));
    let advice = match &comparison.recommendation {
        Some(recommendation) => recommendation.sentence() + "\n",
        None => {
            "no recommendation: no file has a quarter of another, or every method lists too many wrong ones\n"
                .to_owned()
        }
    };
    text + &table(&rows, &[1, 2, 3, 4, 5, 6, 7]) + "\n" + &advice
}
