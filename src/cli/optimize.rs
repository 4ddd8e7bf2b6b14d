use super::error::CliError;
use super::output::{Output, size};
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{OptimizeReport, OptimizeRequest, Request, Response};
use crate::config::parse_size;
use crate::store::RegroupOptions;
use std::path::PathBuf;

/// Group similar chunks so that they compress better
#[derive(clap::Args)]
#[command(
    after_help = "Runs during a mount at low priority, and may be interrupted at any time: the next run continues.\n\
    Run `dedupctl gc` first, so that no garbage is grouped.\n\
    Example: dedupctl optimize --dry-run /data"
)]
pub(super) struct Optimize {
    /// A path of the overlay; by default the current directory
    path: Option<PathBuf>,
    /// balanced: small groups; cold: large groups, smaller and slower to read
    #[arg(long, value_name = "TIER", default_value = "balanced")]
    tier: Tier,
    /// zstd level, 1 to 22; groups above 1MiB use LZMA from 19 on, smaller and slower to read [default: 15;
    /// cold: 19]
    #[arg(long, value_name = "N")]
    level: Option<i32>,
    /// Limit of decoded bytes in a group, twice as many for long chunks; a read decodes at most two, above
    /// 1MiB one [default: 16KiB; cold: 16MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    group_size: Option<u64>,
    /// Limit of bytes to which deflate streams in zip, gzip, PDF and ELF files are inflated at a time, so
    /// that versions of them share content; a read deflates all of that again. 0 skips such files [default:
    /// 0; cold: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    archive_size: Option<u64>,
    /// Only predict the gain, from a sample of a large store
    #[arg(long)]
    dry_run: bool,
}

/// The cost of a read.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Tier {
    Balanced,
    Cold,
}

impl Optimize {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let tier = match self.tier {
            Tier::Balanced => RegroupOptions::default(),
            Tier::Cold => RegroupOptions::cold(),
        };
        let group_bytes = self.group_size.unwrap_or(tier.group_bytes.into());
        let group_bytes = u32::try_from(group_bytes)
            .map_err(|_| CliError::new(format!("groups of {group_bytes} bytes: expected 4 KiB to 16 MiB")))?;
        let archive_bytes = self.archive_size.unwrap_or(tier.archive_bytes.into());
        let archive_bytes = u32::try_from(archive_bytes).map_err(|_| {
            CliError::new(format!(
                "archives inflated to {archive_bytes} bytes: expected 64 KiB to 8 MiB, or 0"
            ))
        })?;
        let (session, _) = Session::open(find(global, self.path.as_deref())?, Work::Change, out)?;
        let level = self.level.unwrap_or(tier.level);
        let request = OptimizeRequest { dry_run: self.dry_run, level, group_bytes, archive_bytes };
        let report = match session.ask(Request::Optimize(request), out)? {
            Response::Optimize(report) => report,
            other => return Err(unexpected(&other)),
        };
        if report.packs_damaged > 0 {
            out.note(&format!(
                "{} packs are damaged and were left as they are; see `dedupctl check`",
                report.packs_damaged
            ));
        }
        out.result(&report, text)?;
        Ok::<_, CliError>(if report.packs_damaged == 0 { Outcome::Clean } else { Outcome::Findings })
    }
}

fn text(report: &OptimizeReport) -> String {
    let OptimizeReport { bytes_before, bytes_after, chunks, deltas, inflated, .. } = *report;
    let verb = if report.dry_run { "to be grouped" } else { "grouped" };
    format!(
        "{chunks} chunks {verb} ({deltas} as deltas, {inflated} inflated): {} -> {}, the store {} -> {}\n",
        size(report.chunk_bytes_before),
        size(report.chunk_bytes_after),
        size(bytes_before),
        size(bytes_after)
    )
}
