//! A question of `groups --method`, for methods with a report of their own.

use super::super::output::Output;
use super::super::{CliResult, Global};
use super::by_method::ByMethod;
use super::index::MethodIndex;
use crate::config::parse_size;
use crate::similarity::methods::Chosen;
use std::path::{Path, PathBuf};

/// Groups in a table by default; scripts get all.
pub(in crate::cli) const SHOWN: usize = 20;
/// Default memory.
const MEMORY_BYTES: usize = 256 << 20;

/// Options to save results, and to analyse them again with other thresholds.
#[derive(clap::Args)]
#[group(id = "chunk-graph sif")]
#[command(next_help_heading = "With --method chunk-graph or sif")]
pub(in crate::cli) struct Saving {
    /// Save the results here, so that --from need not read the files again
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
    /// Use saved results, not files
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "dir", "path"])]
    pub(super) from: Option<PathBuf>,
    /// Only files with at least this much in common, in addition to --min: bytes with chunk-graph,
    /// fingerprints with sif [default: 1]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    min_common: Option<u64>,
}

impl Saving {
    /// Returns the least that two files have in common.
    pub(super) fn min_common(&self) -> u64 {
        self.min_common.unwrap_or(1)
    }
}

/// A report of `groups` that one method has.
pub(super) trait OwnReport {
    /// Answers the question; `None` if the user chose another method, or if the general report is meant.
    fn report(&self, question: &Question<'_>, out: &Output) -> Option<CliResult>;
}

/// The options of `groups` that do not belong to one method.
pub(in crate::cli) struct Question<'a> {
    pub(in crate::cli) by_method: &'a ByMethod,
    pub(in crate::cli) chosen: &'a Chosen,
    pub(in crate::cli) path: Option<&'a Path>,
    pub(in crate::cli) saving: &'a Saving,
    /// Whether to show pairs.
    pub(in crate::cli) pairs: bool,
    pub(in crate::cli) min: f64,
    pub(in crate::cli) limit: Option<usize>,
    pub(in crate::cli) memory: Option<u64>,
    pub(in crate::cli) global: &'a Global,
}

/// The source of the files in a report.
pub(super) enum Source<'a> {
    /// Saved results.
    Saved(&'a Path),
    /// The overlay's index.
    Index(MethodIndex),
    /// A directory to read.
    Files(PathBuf),
}

impl Question<'_> {
    /// Returns the maximum number of rows; scripts get all.
    pub(super) fn shown(&self) -> usize {
        self.limit.unwrap_or(if self.global.json { usize::MAX } else { SHOWN })
    }

    /// Memory for sorting and comparing.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory.map_or(MEMORY_BYTES, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Opens the source of `method`, and has `report` use it. `indexed` says whether a saved index can answer.
    pub(super) fn answer(
        &self,
        method: &Chosen,
        indexed: bool,
        out: &Output,
        report: impl FnOnce(&Source<'_>) -> CliResult,
    ) -> CliResult {
        if let Some(file) = &self.saving.from {
            return report(&Source::Saved(file));
        }
        let index = match indexed {
            true => self.by_method.kept(method, self.path, self.global, out)?,
            false => None,
        };
        let Some(index) = index else {
            return report(&Source::Files(self.by_method.groups_dir(self.path, self.global)?));
        };
        let source = Source::Index(index);
        let outcome = report(&source);
        let closed = match source {
            Source::Index(index) => index.close(),
            Source::Saved(_) | Source::Files(_) => Ok(()),
        };
        let outcome = outcome?;
        closed?;
        Ok(outcome)
    }
}
