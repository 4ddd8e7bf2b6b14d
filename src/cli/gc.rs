use super::error::CliError;
use super::output::{Output, size};
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{GcReport, Request, Response};
use std::path::PathBuf;

/// Free data that no file needs
#[derive(clap::Args)]
#[command(after_help = "Runs during a mount without blocking it, and may be interrupted at any time.\n\
    The daemon of a mounted overlay collects garbage on its own when a quarter of the data is no longer needed.\n\
    Example: dedupctl gc --dry-run /data")]
pub(super) struct Gc {
    /// A path of the overlay; by default the current directory
    path: Option<PathBuf>,
    /// Only print how much it would free
    #[arg(long)]
    dry_run: bool,
}

impl Gc {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let work = if self.dry_run { Work::Change } else { Work::Collect };
        let (session, _) = Session::open(find(global, self.path.as_deref())?, work, out)?;
        let report = match session.ask(Request::Gc { dry_run: self.dry_run }, out)? {
            Response::Gc(report) => report,
            other => return Err(unexpected(&other)),
        };
        if report.packs_damaged > 0 {
            out.note(&format!(
                "{} packs are damaged and were left as they are; see `dedupctl check`",
                report.packs_damaged
            ));
        }
        if report.packs_no_room > 0 {
            out.note(&format!(
                "{} packs were left as they are, because there is no room to copy their needed data; make room on that \
                 filesystem and run this again",
                report.packs_no_room
            ));
        }
        if report.unknown > 0 {
            out.note(&format!(
                "the records of {} files are invalid, so gc may keep more than needed; see `dedupctl check`",
                report.unknown
            ));
        }
        if report.kept_for_history_bytes > 0 {
            out.note(&format!(
                "{} are kept for {} versions and {} snapshots; `dedupctl snapshot remove` and [history] in config.toml \
                 (keep = \"none\" for no versions) free them",
                size(report.kept_for_history_bytes),
                report.versions,
                report.snapshots
            ));
        }
        if report.thinned > 0 {
            out.note(&format!(
                "{} versions and snapshots without a name were given up, as the history may take no more room (`max` in \
                 [history] of config.toml)",
                report.thinned
            ));
        }
        if report.unreadable > 0 {
            out.note(&format!(
                "{} versions or directories of snapshots cannot be read, so nothing that was stored when that was found is \
                 given back; see `dedupctl check`, and the log for which",
                report.unreadable
            ));
        }
        out.result(&report, text)?;
        Ok::<_, CliError>(if report.packs_damaged == 0 && report.unreadable == 0 {
            Outcome::Clean
        } else {
            Outcome::Findings
        })
    }
}

fn text(report: &GcReport) -> String {
    let GcReport { reclaimed_bytes, kept_bytes, left_bytes, copied_bytes, packs, .. } = *report;
    let verb = if report.dry_run { "to be reclaimed" } else { "reclaimed" };
    format!(
        "{} {verb} from {packs} packs ({} copied), {} kept, {} of it for history, {} of it unused\n",
        size(reclaimed_bytes),
        size(copied_bytes),
        size(kept_bytes),
        size(report.kept_for_history_bytes),
        size(left_bytes)
    )
}
