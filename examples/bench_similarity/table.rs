//! What each found, against the truth.

use crate::corpus::File;
use crate::oracle::{Share, Truth};
use crate::ours::MIN;
use std::collections::HashMap;

/// A query or a content under this is small.
const SMALL_BYTES: usize = 2048;

/// One tool, or one way to ask it.
#[derive(Default)]
pub struct Row {
    pub name: String,
    pub settings: String,
    /// Of each query, the contents found and what the tool says of them.
    pub found: Vec<HashMap<usize, f64>>,
    /// Whether it says which share of the query they have.
    pub estimates: bool,
    pub sketch_mb_s: Option<f64>,
    pub latencies_us: Vec<f64>,
    /// Seconds, and pairs.
    pub all_pairs: Option<(f64, u64)>,
    /// Bytes of rows to a unique byte.
    pub index_share: Option<f64>,
    pub peak_mb: Option<f64>,
}

/// The part of the true pairs that is found.
fn recall(row: &Row, truth: &Truth, is_wanted: &dyn Fn(usize, usize, &Share) -> bool) -> f64 {
    let (mut wanted, mut found) = (0u64, 0u64);
    for (query, of_query) in truth.iter().enumerate() {
        for (other, _) in of_query.iter().filter(|(other, share)| is_wanted(query, **other, share)) {
            wanted += 1;
            found += u64::from(row.found[query].contains_key(other));
        }
    }
    found as f64 / wanted as f64
}

/// The same, each query counting as one; those without a true pair not at all.
fn recall_of_queries(row: &Row, truth: &Truth) -> f64 {
    let parts = truth.iter().zip(&row.found).filter_map(|(truth, found)| {
        let wanted: Vec<_> =
            truth.iter().filter(|(_, share)| share.of_64 >= MIN).map(|(other, _)| other).collect();
        let hits = wanted.iter().filter(|other| found.contains_key(other)).count();
        (!wanted.is_empty()).then(|| hits as f64 / wanted.len() as f64)
    });
    let parts: Vec<f64> = parts.collect();
    parts.iter().sum::<f64>() / parts.len() as f64
}

/// Mean error of the estimates of true pairs at a quarter and more, and their mean excess.
fn error(row: &Row, truth: &Truth) -> (f64, f64) {
    let (mut count, mut error, mut excess) = (0.0, 0.0, 0.0);
    for (found, truth) in row.found.iter().zip(truth) {
        for (other, estimate) in found {
            let Some(share) = truth.get(other).filter(|share| share.of_32 >= MIN) else { continue };
            count += 1.0;
            error += (estimate - share.of_32).abs();
            excess += estimate - share.of_32;
        }
    }
    (error / count, excess / count)
}

/// Mean error and excess by length of the query.
pub fn print_errors(row: &Row, files: &[File], queries: &[usize], truth: &Truth) {
    println!("\nerror and excess of {} by bytes of the query, pairs:", row.name);
    for (from, to) in [(0, 1 << 10), (1 << 10, 4 << 10), (4 << 10, 32 << 10), (32 << 10, usize::MAX)] {
        let is_of = |query: &usize| (from..to).contains(&files[queries[*query]].bytes.len());
        let chosen: Vec<usize> = (0..queries.len()).filter(is_of).collect();
        let part = Row { found: chosen.iter().map(|&q| row.found[q].clone()).collect(), ..Row::default() };
        let truth: Truth = chosen.iter().map(|&query| truth[query].clone()).collect();
        let pairs = truth.iter().flat_map(HashMap::values).filter(|share| share.of_32 >= MIN).count();
        let (error, excess) = error(&part, &truth);
        println!("  from {from:>6}: {error:.3} {excess:+.3}, {pairs}");
    }
}

pub fn print(rows: &[Row], files: &[File], queries: &[usize], truth: &Truth) {
    println!(
        "\n{:<20} | recall, pieces of 64 B              | of 32 B and more   | small       | found, of them true | error, excess | index % | MB/s | p50 us, p99 us   | all pairs          | peak",
        ""
    );
    println!(
        "{:<20} |   25%    50%    80% by query    raw |   25%    50%    80% | asked  had  |                     |               |         |      |                  |                    |",
        ""
    );
    for row in rows {
        if row.found.is_empty() {
            println!("{:<20} | not run: {}", row.name, row.settings);
            continue;
        }
        let of_64 = |min: f64| recall(row, truth, &|_, _, share| share.of_64 >= min);
        let of_32 = |min: f64| recall(row, truth, &|_, _, share| share.of_32 >= min);
        let is_small = |file: usize| files[file].bytes.len() < SMALL_BYTES;
        let raw = recall(row, truth, &|_, _, share| share.raw >= MIN);
        let asked = recall(row, truth, &|query, _, share| share.of_64 >= MIN && is_small(queries[query]));
        let had = recall(row, truth, &|_, other, share| share.of_64 >= MIN && is_small(other));
        let found: usize = row.found.iter().map(HashMap::len).sum();
        let is_true =
            |(query, other): (usize, &usize)| truth[query].get(other).is_some_and(|s| s.of_32 >= MIN);
        let right = row.found.iter().enumerate().flat_map(|(q, found)| found.keys().map(move |o| (q, o)));
        let right = right.filter(|&pair| is_true(pair)).count();
        let mut latencies = row.latencies_us.clone();
        latencies.sort_by(f64::total_cmp);
        let at = |part: usize| {
            latencies.get(latencies.len() * part / 100).map_or("-".into(), |us| format!("{us:.0}"))
        };
        let (error, excess) = error(row, truth);
        println!(
            "{:<20} | {:.4} {:.4} {:.4} {:.4}   {:.4} | {:.4} {:.4} {:.4} | {:.3} {:.3} | {:>9} {:>9.3} | {:<13} | {:>7} | {:>4} | {:>7} {:>8} | {:>18} | {:>5}",
            row.name,
            of_64(0.25),
            of_64(0.5),
            of_64(0.8),
            recall_of_queries(row, truth),
            raw,
            of_32(0.25),
            of_32(0.5),
            of_32(0.8),
            asked,
            had,
            found,
            right as f64 / found as f64,
            if row.estimates { format!("{error:.3} {excess:+.3}") } else { "-".into() },
            row.index_share.map_or("-".into(), |share| format!("{:.2}", share * 100.0)),
            row.sketch_mb_s.map_or("-".into(), |speed| format!("{speed:.0}")),
            at(50),
            at(99),
            row.all_pairs.map_or("-".into(), |(s, pairs)| format!("{pairs} in {s:.1} s")),
            row.peak_mb.map_or("-".into(), |mb| format!("{mb:.0} MB")),
        );
    }
    println!();
    rows.iter()
        .filter(|row| !row.found.is_empty())
        .for_each(|row| println!("{}: {}", row.name, row.settings));
}

/// Recall of pairs that are true without templates, at 25, 50 and 80%.
pub fn print_own(rows: &[Row], truth: &Truth) {
    println!("\nrecall without templates at 25, 50, 80%:");
    for row in rows.iter().filter(|row| !row.found.is_empty()) {
        let at =
            [0.25, 0.5, 0.8].map(|min| format!("{:.4}", recall(row, truth, &|_, _, share| share.own >= min)));
        println!("  {:<20} {}", row.name, at.join(" "));
    }
}

/// What was not found, evenly of all, and how it is spread over queries.
pub fn print_misses(row: &Row, files: &[File], queries: &[usize], truth: &Truth, count: usize) {
    let mut misses = Vec::new();
    for (query, of_query) in truth.iter().enumerate() {
        let missed = of_query
            .iter()
            .filter(|(other, share)| share.of_64 >= MIN && !row.found[query].contains_key(other));
        misses.extend(missed.map(|(&other, share)| (query, other, *share)));
    }
    misses.sort_unstable_by_key(|&(query, other, _)| (query, other));
    if count > 0 {
        println!(
            "\n{} pairs of {} queries missed by {}",
            misses.len(),
            misses.chunk_by(|a, b| a.0 == b.0).count(),
            row.name
        );
    }
    for (query, other, share) in misses.iter().step_by(misses.len().div_ceil(count.max(1)).max(1)).take(count)
    {
        let (one, other) = (&files[queries[*query]], &files[*other]);
        println!(
            "{:.2} {:.2} of {:>8} B in {:>8} B: {} <- {}",
            share.of_64,
            share.of_32,
            one.bytes.len(),
            other.bytes.len(),
            one.path.display(),
            other.path.display()
        );
    }
}
