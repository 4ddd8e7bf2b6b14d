use super::error::CliError;
use super::output::{Output, plain, table};
use super::session::{Direct, Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{CheckReport, Request, Response};
use crate::control::Found;
use crate::overlay::Dedup;
use crate::repo::{Layout, OpenOptions};
use std::path::PathBuf;

/// Verify the store and the files that depend on it; never deletes anything
#[derive(clap::Args)]
#[command(after_help = "Exit code 1 says that there are findings.\nExample: dedupctl check --deep /data")]
pub(super) struct Check {
    /// File or directory whose content to check; by default all of the current directory's overlay
    path: Option<PathBuf>,
    /// Decode and hash every chunk too
    #[arg(long)]
    deep: bool,
    /// Make the index anew from the packs and the files first (not while mounted)
    #[arg(long)]
    rebuild: bool,
    /// Put right what can be (not while mounted): an index that does not fit the packs is made anew
    #[arg(long)]
    repair: bool,
    /// With --repair: only say what would be done
    #[arg(long, requires = "repair")]
    dry_run: bool,
}

impl Check {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let report = match find(global, self.path.as_deref())? {
            Found::Direct { layout, path } => self.check_direct(&layout, path, out)?,
            Found::Daemon { info, .. } if self.rebuild || (self.repair && !self.dry_run) => {
                let message =
                    format!("{}: the index cannot be replaced while mounted", info.mountpoint.display());
                return Err(CliError::new(message)
                    .hint(format!("`dedupctl unmount {}` first", info.mountpoint.display())));
            }
            found @ Found::Daemon { .. } => {
                let (session, path) = Session::open(found, Work::Ask, out)?;
                expect(session.ask(Request::Check { path, deep: self.deep }, out)?)?
            }
        };
        if self.repair && self.dry_run {
            let (index, rest): (Vec<_>, Vec<_>) =
                report.damaged.iter().partition(|found| found.kind == "index");
            out.note(&format!(
                "plan: {}; {} findings need the lost bytes again: writing the same content heals them",
                if index.is_empty() { "nothing to repair" } else { "make the index anew from the packs" },
                rest.len()
            ));
        }
        out.result(&report, text)?;
        Ok(if report.damaged.is_empty() { Outcome::Clean } else { Outcome::Findings })
    }

    fn check_direct(&self, layout: &Layout, path: PathBuf, out: &Output) -> Result<CheckReport, CliError> {
        let request = Request::Check { path, deep: self.deep };
        if self.rebuild {
            return rebuild(layout, request, out);
        }
        let direct = Direct::open(layout, &OpenOptions::default(), Work::Ask, out)?;
        let report = expect(direct.ask(request.clone(), out)?)?;
        let of_index =
            |report: &CheckReport| report.damaged.iter().filter(|found| found.kind == "index").count() as u64;
        if !self.repair || self.dry_run || of_index(&report) == 0 {
            return Ok(report);
        }
        let mut again = rebuild(layout, request, out)?;
        again.repaired = of_index(&report).saturating_sub(of_index(&again));
        Ok(again)
    }
}

/// Files that are plain are only indexed here: to convert them is not what was asked for.
fn rebuild(layout: &Layout, request: Request, out: &Output) -> Result<CheckReport, CliError> {
    let options = OpenOptions { rebuild: true, dedup: Some(Dedup::Off), ..OpenOptions::default() };
    let direct = Direct::open(layout, &options, Work::Convert, out)?;
    direct.catch_up(out)?;
    expect(direct.ask(request, out)?)
}

fn expect(response: Response) -> Result<CheckReport, CliError> {
    match response {
        Response::Check(report) => Ok(report),
        other => Err(unexpected(&other)),
    }
}

fn text(report: &CheckReport) -> String {
    let mut rows = Vec::new();
    for found in &report.damaged {
        let object: String = found.object.chars().take(16).collect();
        let path = found.path.as_deref().map_or_else(|| "-".to_owned(), plain);
        rows.push(vec![found.kind.clone(), plain(&object), path, plain(&found.reason)]);
    }
    let mut text = table(&rows, &[]);
    if !report.healed.is_empty() {
        text.push_str(&format!(
            "{} damaged frames have whole copies: nothing is lost by them\n",
            report.healed.len()
        ));
    }
    let depth = if report.deep { "" } else { " (--deep decodes and hashes them too)" };
    let damage = match report.damaged.len() {
        0 => "no damage".to_owned(),
        found => format!("{found} findings"),
    };
    text.push_str(&format!(
        "{} frames and {} stubs checked{depth}: {damage}\n",
        report.checked, report.stubs
    ));
    if report.repaired > 0 {
        text.push_str(&format!("{} findings repaired\n", report.repaired));
    }
    text
}
