//! `--method`: the published methods. Each has its options, and its report if it has one of its own, in one file.

mod by_method;
mod chunk_graph;
mod general;
mod index;
mod pairs;
mod question;
mod reading;
mod sif;
mod winnow;

pub(super) use by_method::{ByMethod, check_options};
pub(super) use general::similar;
pub(super) use question::{Question, SHOWN, Saving};
pub(super) use reading::readable;
pub(super) use winnow::WinnowOptions;

use super::CliResult;
use super::output::Output;
use crate::similarity::methods::sif::{SHARE_DEFAULT, Sif};
use crate::similarity::methods::winnow::Winnow;
use crate::similarity::methods::{Chosen, Method};
use chunk_graph::ChunkGraphOptions;
use question::OwnReport;
use sif::SifOptions;
use winnow::WinnowGroups;

/// Smallest share by default.
pub(super) const MIN_DEFAULT: f64 = 0.25;

/// Returns the smallest share that `groups` shows by default. Pairs of winnowing are ranked by what they have in common, so
/// that all are shown: a share would break its guarantee, which is in bytes.
pub(super) fn min_default(chosen: &Chosen, pairs: bool) -> f64 {
    match chosen.name() {
        Sif::NAME => SHARE_DEFAULT,
        Winnow::NAME if pairs => 0.0,
        _ => MIN_DEFAULT,
    }
}

/// The options of `groups` that one method has.
#[derive(clap::Args)]
#[group(skip)]
pub(super) struct GroupsOptions {
    #[command(flatten)]
    winnow: WinnowGroups,
    #[command(flatten)]
    chunk_graph: ChunkGraphOptions,
    #[command(flatten)]
    sif: SifOptions,
}

impl GroupsOptions {
    /// Shows the report of the chosen method.
    pub(super) fn report(&self, question: &Question<'_>, out: &Output) -> CliResult {
        let own: [&dyn OwnReport; 3] = [&self.winnow, &self.chunk_graph, &self.sif];
        let report = own.iter().find_map(|own| own.report(question, out));
        report.unwrap_or_else(|| general::groups(question, &self.winnow.asked(), out))
    }
}
