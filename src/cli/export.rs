use super::export_copy::Copy;
use super::output::{Output, plain, size};
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{ExportReport, ExportRequest, Request, Response};
use crate::control::Found;
use crate::repo::finish_removal;
use std::path::{Path, PathBuf};

/// Files named without --json.
const SHOWN: usize = 100;

/// Make files plain again, in place
#[derive(clap::Args)]
#[command(
    after_help = "Each file is verified by hash before it counts as plain. Exported files stay plain, also in a\n\
    mount: export adds a rule to config.toml. Run it again to continue an interrupted export.\n\
    It works from the packs alone if the index is damaged or missing.\n\
    Example: dedupctl export /data/photos\n\
    Example: dedupctl export --verify --remove-store /data\n\
    Example: dedupctl export /data --to /backup/data\n\
    Example: dedupctl export /data --tar - | zstd > data.tar.zst"
)]
pub(super) struct Export {
    /// File or directory; by default the current directory
    path: Option<PathBuf>,
    /// Then read everything back from the disk, and compare hashes
    #[arg(long)]
    verify: bool,
    /// Then remove the store and everything of dedupfs. Not while it is mounted; with former versions of
    /// files or snapshots only with --force
    #[arg(long)]
    remove_store: bool,
    /// Begin although space seems to lack; with --remove-store, give up former versions and snapshots
    #[arg(long)]
    force: bool,
    /// Copy to this new or empty directory instead, with everything that `cp -a` keeps, and change nothing
    /// here
    #[arg(long, value_name = "DIR", conflicts_with_all = ["remove_store", "tar"])]
    to: Option<PathBuf>,
    /// Write a tar archive (pax) instead; `-` for stdout
    #[arg(long, value_name = "FILE", conflicts_with_all = ["remove_store", "verify"])]
    tar: Option<PathBuf>,
    /// With --to: continue an interrupted copy
    #[arg(long, requires = "to")]
    resume: bool,
}

impl Export {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        if self.remove_store && finish_removal(self.path.as_deref().unwrap_or(Path::new(".")))? {
            let report = ExportReport { removed: true, ..ExportReport::default() };
            out.result(&report, |_| {
                "the removal that was begun is finished: nothing of dedupfs is left\n".to_owned()
            })?;
            return Ok(Outcome::Clean);
        }
        let found = find(global, self.path.as_deref())?;
        if self.to.is_some() || self.tar.is_some() {
            let Export { to, tar, verify, resume, force, .. } = self;
            let (to, tar) = (to.as_deref(), tar.as_deref());
            let copy = Copy { to, tar, verify: *verify, resume: *resume, force: *force };
            return copy.run(found, out, global.json);
        }
        let root = match &found {
            Found::Direct { layout, .. } => layout.root.clone(),
            Found::Daemon { info, .. } => info.root.clone(),
        };
        let (session, path) = Session::open(found, Work::Copy, out)?;
        let request =
            ExportRequest { path, verify: self.verify, force: self.force, remove_store: self.remove_store };
        let report = match session.ask(Request::Export(request), out)? {
            Response::Export(report) => report,
            other => return Err(unexpected(&other)),
        };
        if report.removed {
            finish_removal(&root)?;
        } else {
            let what = if report.rule == "*" {
                "all files stay".to_owned()
            } else {
                format!("files that match {:?} stay", report.rule)
            };
            out.note(&format!(
                "from now on {what} plain: a rule at the end of config.toml says so; without it, a mount converts them again"
            ));
        }
        out.result(&report, |report| text(report, self.remove_store))?;
        Ok(if report.failed.is_empty() { Outcome::Clean } else { Outcome::Findings })
    }
}

fn text(report: &ExportReport, remove_store: bool) -> String {
    let ExportReport { files, bytes, plain: before, verified, failed, omitted, .. } = report;
    let how = match report.read_back {
        true => format!("{verified} read back from the disk and the same"),
        false => "each verified by its hash".to_owned(),
    };
    let mut text =
        format!("{files} files, {}, are plain again, {how}; {before} were plain before\n", size(*bytes));
    let all = failed.len() as u64 + omitted;
    if all > 0 {
        text.push_str(&format!("{all} files were not exported, and are as they were:\n"));
        for one in failed.iter().take(SHOWN) {
            text.push_str(&format!("  {}: {}\n", plain(&one.path), plain(&one.reason)));
        }
        let more = all - failed.len().min(SHOWN) as u64;
        if more > 0 {
            text.push_str(&format!("  and {more} more\n"));
        }
    }
    match (&report.store_left, report.removed) {
        (Some(store), _) => text.push_str(&format!(
            "nothing of dedupfs is left in the directory; the store {} says that it belongs to another, and was left\n",
            plain(store)
        )),
        (None, true) => text.push_str("nothing of dedupfs is left\n"),
        (None, false) if remove_store => text.push_str("the store stays as long as files need it\n"),
        (None, false) => {}
    }
    text
}
