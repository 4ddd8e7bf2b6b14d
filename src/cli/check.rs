use super::error::CliError;
use super::output::{Output, plain, table};
use super::session::{Direct, Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Action, CheckReport, Damaged, Peer, RepairRequest, Request, Response, Unchecked};
use crate::control::Found;
use crate::repo::{Layout, OpenOptions};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Rows in the table; `--json` has all.
const ROWS_SHOWN: usize = 100;

/// Verify the store and its files; never deletes anything
#[derive(clap::Args)]
#[command(
    after_help = "Exit code 1 says that there are findings (left), 2 that not everything could be checked.\n\
    Example: dedupctl check --deep /data\n\
    Example: dedupctl check --repair --dry-run --from /backup/data /data"
)]
pub(super) struct Check {
    /// File or directory whose content to check; by default all of the current directory's overlay
    path: Option<PathBuf>,
    /// Also decode and hash every chunk
    #[arg(long)]
    deep: bool,
    /// First rebuild the index from the packs and the files (not while mounted)
    #[arg(long)]
    rebuild: bool,
    /// Repair: restore lost content from other copies, damaged records of files, and the index (the index not
    /// while mounted)
    #[arg(long)]
    repair: bool,
    /// With --repair: only print the plan
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// With --repair: a directory that may have intact copies, of plain files or of another store. Can be
    /// repeated
    #[arg(long, requires = "repair", value_name = "DIR")]
    from: Vec<PathBuf>,
}

impl Check {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let from = self
            .from
            .iter()
            .map(|dir| dir.canonicalize().map(Peer).map_err(|e| CliError::io("find", dir, &e)));
        let from = from.collect::<Result<Vec<_>, _>>()?;
        let report = match find(global, self.path.as_deref())? {
            Found::Direct { layout, path } => self.direct(&layout, path, from, out)?,
            Found::Daemon { info, .. } if self.rebuild => {
                let message =
                    format!("{}: the index cannot be replaced while mounted", info.mountpoint.display());
                return Err(CliError::new(message)
                    .hint(format!("`dedupctl unmount {}` first", info.mountpoint.display())));
            }
            found @ Found::Daemon { .. } => {
                let (session, path) = Session::open(found, Work::Ask, out)?;
                expect(session.ask(self.request(path, from), out)?)?
            }
        };
        out.result(&report, |report| self.text(report))?;
        Ok(match (report.unchecked.is_empty(), report.damaged.is_empty()) {
            (false, _) => Outcome::Incomplete,
            (true, false) => Outcome::Findings,
            (true, true) => Outcome::Clean,
        })
    }

    fn request(&self, path: PathBuf, from: Vec<Peer>) -> Request {
        match self.repair {
            true => Request::Repair(RepairRequest { path, deep: self.deep, apply: !self.dry_run, from }),
            false => Request::Check { path, deep: self.deep },
        }
    }

    fn direct(
        &self,
        layout: &Layout,
        path: PathBuf,
        from: Vec<Peer>,
        out: &Output,
    ) -> Result<CheckReport, CliError> {
        let request = self.request(path, from);
        if self.rebuild && !self.dry_run {
            return rebuild(layout, request, out);
        }
        let apply = self.repair && !self.dry_run;
        let options = OpenOptions { read_only: !apply, ..OpenOptions::default() };
        let direct = Direct::open(layout, &options, Work::Ask, out)?;
        let report = expect(direct.ask(request.clone(), out)?)?;
        match report.plan.iter().any(|action| action.action == "rebuild-index") {
            true if apply => repair_with_new_index(layout, request, report, out),
            _ => Ok(report),
        }
    }

    fn text(&self, report: &CheckReport) -> String {
        let mut text = damage_table(&report.damaged);
        text.push_str(&unchecked_table(&report.unchecked));
        text.push_str(&plan_table(report));
        if !report.healed.is_empty() {
            text.push_str(&format!(
                "{} damaged frames have intact copies: nothing is lost\n",
                report.healed.len()
            ));
        }
        let depth = if report.deep { "" } else { " (--deep decodes and hashes them too)" };
        let damage = match report.damaged.len() as u64 + report.omitted {
            0 => "no damage".to_owned(),
            found if self.repair && !self.dry_run => format!("{found} findings left"),
            found => format!("{found} findings"),
        };
        text.push_str(&format!(
            "{} frames and {} stubs checked{depth}: {damage}\n",
            report.checked, report.stubs
        ));
        if !report.unchecked.is_empty() {
            text.push_str(&format!("{} could not be checked: they may be intact\n", report.unchecked.len()));
            let remedies: BTreeSet<_> = report.unchecked.iter().map(|row| row.remedy.as_str()).collect();
            let remedies = Vec::from_iter(remedies).join("; ");
            text.push_str(&format!("hint: {remedies}; then check again\n"));
        }
        if self.repair {
            let (lost, named) = lost(&report.plan);
            let can = report.plan.iter().filter(|action| action.from.is_some() && !action.done).count();
            text.push_str(&format!("{} repaired, {can} can be repaired, {lost} lost\n", report.repaired));
            if lost > 0 {
                let or_name = if named > 0 { ", or name a copy with --from DIR" } else { "" };
                text.push_str(&format!(
                    "hint: write lost files again from a backup through the mount{or_name}\n"
                ));
            }
            if self.dry_run && can > 0 {
                text.push_str("hint: without --dry-run this plan is carried out\n");
            }
        } else if !report.damaged.is_empty() {
            text.push_str("hint: `dedupctl check --repair --dry-run` shows what can be repaired\n");
        }
        text
    }
}

/// Counts the lost objects, and those of them that a copy could restore. A copy of a content does not have the record
/// of its file.
fn lost(plan: &[Action]) -> (usize, usize) {
    let lost = || plan.iter().filter(|action| action.action == "lost");
    let is_record = |action: &&Action| action.path.as_ref() == Some(&action.object);
    (lost().count(), lost().filter(|action| !is_record(action)).count())
}

/// Rebuilds the index, then repairs the remaining damage.
fn repair_with_new_index(
    layout: &Layout,
    request: Request,
    before: CheckReport,
    out: &Output,
) -> Result<CheckReport, CliError> {
    let mut report = rebuild(layout, request, out)?;
    let left = report.damaged.iter().any(|found| found.kind == "index");
    let mut plan = before.plan;
    plan.retain(|action| action.done || action.action == "rebuild-index");
    for action in plan.iter_mut().filter(|action| action.action == "rebuild-index") {
        action.done = !left;
    }
    report.repaired += plan.iter().filter(|action| action.done).count() as u64;
    plan.append(&mut report.plan);
    report.plan = plan;
    Ok(report)
}

fn rebuild(layout: &Layout, request: Request, out: &Output) -> Result<CheckReport, CliError> {
    let options = OpenOptions { rebuild: true, ..OpenOptions::default() };
    let direct = Direct::open(layout, &options, Work::Change, out)?;
    direct.catch_up(out)?;
    expect(direct.ask(request, out)?)
}

fn expect(response: Response) -> Result<CheckReport, CliError> {
    match response {
        Response::Check(report) => Ok(report),
        other => Err(unexpected(&other)),
    }
}

fn short(object: &str) -> String {
    plain(&object.chars().take(16).collect::<String>())
}

fn path_or_dash(path: Option<&String>) -> String {
    path.map_or_else(|| "-".to_owned(), |path| plain(path))
}

fn more(all: usize) -> String {
    match all.saturating_sub(ROWS_SHOWN) {
        0 => String::new(),
        left => format!("... and {left} more rows: --json has all\n"),
    }
}

fn damage_table(damaged: &[Damaged]) -> String {
    if damaged.is_empty() {
        return String::new();
    }
    let heads = ["KIND", "OBJECT", "PACK", "OFFSET", "FILE", "FOUND"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for found in damaged.iter().take(ROWS_SHOWN) {
        let pack = found.pack.clone().unwrap_or_else(|| "-".to_owned());
        let offset = found.offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
        let (object, path) = (short(&found.object), path_or_dash(found.path.as_ref()));
        rows.push(vec![found.kind.clone(), object, pack, offset, path, plain(&found.reason)]);
    }
    table(&rows, &[3]) + &more(damaged.len())
}

fn unchecked_table(unchecked: &[Unchecked]) -> String {
    if unchecked.is_empty() {
        return String::new();
    }
    let mut rows = vec![["NOT CHECKED", "OBJECT", "BECAUSE"].map(str::to_owned).to_vec()];
    for row in unchecked.iter().take(ROWS_SHOWN) {
        rows.push(vec![row.kind.clone(), plain(&row.object), plain(&row.reason)]);
    }
    table(&rows, &[]) + &more(unchecked.len())
}

fn plan_table(report: &CheckReport) -> String {
    if report.plan.is_empty() {
        return String::new();
    }
    let heads = ["PLAN", "OBJECT", "FILES", "FILE", "FROM", "DONE", ""];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for action in report.plan.iter().take(ROWS_SHOWN) {
        rows.push(vec![
            action.action.clone(),
            short(&action.object),
            action.files.to_string(),
            path_or_dash(action.path.as_ref()),
            path_or_dash(action.from.as_ref()),
            if action.done { "yes" } else { "no" }.to_owned(),
            plain(&action.reason),
        ]);
    }
    table(&rows, &[2]) + &more(report.plan.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_asked_for_only_where_it_helps() {
        let action = |object: &str, path: Option<&str>| Action {
            action: "lost".to_owned(),
            object: object.to_owned(),
            from: None,
            path: path.map(str::to_owned),
            files: 1,
            done: false,
            reason: String::new(),
        };
        let (record, chunk) = (action("dir/file", Some("dir/file")), action("0123", Some("dir/file")));
        assert_eq!(
            lost(std::slice::from_ref(&record)),
            (1, 0),
            "the record of a file is in no copy of its content"
        );
        assert_eq!(lost(&[record, chunk, action("4567", None)]), (3, 2));
    }
}
