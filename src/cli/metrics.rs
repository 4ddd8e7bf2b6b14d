//! The state of an overlay for Prometheus. `docs/metrics.md` lists the metrics.

use super::error::CliError;
use super::output::Output;
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response, StatusReport};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Print sizes, ratio, queue and damage for Prometheus
#[derive(clap::Args)]
#[command(
    after_help = "With --textfile for the textfile collector of node_exporter: the file is replaced as a whole.\n\
    Example: dedupctl metrics /data --textfile /var/lib/prometheus/node-exporter/dedupfs-data.prom"
)]
pub(super) struct Metrics {
    /// Any path in the overlay; by default the current directory
    path: Option<PathBuf>,
    /// Write to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
}

impl Metrics {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (session, _) = Session::open(find(global, self.path.as_deref())?, Work::Ask, out)?;
        let report = match session.ask(Request::Status, out)? {
            Response::Status(report) => report,
            other => return Err(unexpected(&other)),
        };
        match (&self.textfile, global.json) {
            (Some(file), _) => replace(file, &text(&report)?)?,
            (None, true) => out.result(&report, |_| String::new())?,
            (None, false) => out.raw(text(&report)?.as_bytes())?,
        }
        Ok(Outcome::Clean)
    }
}

/// Replaces a file atomically, so that a scraper never sees half of it.
fn replace(file: &Path, text: &str) -> Result<(), CliError> {
    let error = |e: std::io::Error| CliError::io("write", file, &e);
    let name = file.file_name().ok_or_else(|| {
        CliError::new(format!("{}: not a file name", file.display())).hint("name a file that ends in .prom")
    })?;
    let mut new = name.to_owned();
    new.push(".new");
    let new = file.with_file_name(new);
    std::fs::File::create(&new).and_then(|mut new| new.write_all(text.as_bytes())).map_err(error)?;
    std::fs::rename(&new, file).map_err(error)
}

fn text(report: &StatusReport) -> Result<String, CliError> {
    let labels = [
        (Cow::Borrowed("root"), Cow::Owned(report.root.clone())),
        (Cow::Borrowed("store"), Cow::Owned(report.store_id.clone())),
    ];
    let mut registry = Registry::with_prefix_and_labels("dedupfs", labels.into_iter());
    registry.register_collector(Box::new(Gauges(gauges(report))));
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|e| CliError::new(format!("write metrics: {e}")))?;
    Ok(text)
}

/// Name without the prefix, description and value.
type Gauge = (&'static str, &'static str, f64);

fn gauges(report: &StatusReport) -> Vec<Gauge> {
    let flag = |set: bool| f64::from(u8::from(set));
    vec![
        ("mounted", "1 if a daemon has the overlay mounted", flag(report.mounted)),
        ("read_only", "1 if nothing may be changed", flag(report.read_only)),
        ("files", "Files known", report.files as f64),
        ("logical_bytes", "Bytes in files", report.logical_bytes as f64),
        ("unique_bytes", "Bytes of distinct chunks", report.unique_bytes as f64),
        ("stored_bytes", "Bytes of packs on disk", report.stored_bytes as f64),
        ("index_bytes", "Bytes of the index on disk", report.index_bytes as f64),
        ("index_share", "Bytes of the index by bytes of distinct chunks", report.index_share),
        ("not_indexed_files", "Files not in the similarity index by setting", report.not_indexed as f64),
        ("chunks", "Distinct chunks", report.chunks as f64),
        ("pending_files", "Closed files that wait for conversion", report.pending as f64),
        (
            "resting_files",
            "Closed files that rest because programs write them repeatedly",
            report.resting as f64,
        ),
        (
            "kept_plain_files",
            "Files that stay plain because programs rewrite them repeatedly as a whole",
            report.kept_plain as f64,
        ),
        (
            "hot_files",
            "Hot files: plain for a while because they are read repeatedly",
            report.hot_files as f64,
        ),
        ("hot_bytes", "Bytes of hot files on disk", report.hot_bytes as f64),
        ("damaged", "Damage seen since the store was opened", report.damaged as f64),
        ("index_behind", "1 if the index may not know every file", flag(report.behind)),
        ("memory_bytes", "Resident memory of the process that answers", report.memory as f64),
    ]
}

#[derive(Debug)]
struct Gauges(Vec<Gauge>);

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, value) in &self.0 {
            let gauge = ConstGauge::new(*value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_lists_every_metric_and_the_dashboard_shows_no_other() {
        let listed = include_str!("../../docs/metrics.md");
        let listed: Vec<&str> =
            listed.lines().filter_map(|line| line.strip_prefix("| `dedupfs_")?.split('`').next()).collect();
        let report = StatusReport::default();
        let ours: Vec<&str> = gauges(&report).iter().map(|(name, ..)| *name).collect();
        assert_eq!(ours, listed);
        let dashboard = include_str!("../../systemd/grafana.json");
        let shown = dashboard.split("dedupfs_").skip(1);
        for name in shown.map(|text| text.split(|c: char| !c.is_ascii_lowercase() && c != '_').next()) {
            assert!(name.is_some_and(|name| ours.contains(&name)), "{name:?} in the dashboard");
        }
    }
}
