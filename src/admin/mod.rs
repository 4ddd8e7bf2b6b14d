//! What can be asked of a store besides file operations: one action a file, the same for a daemon and for
//! a program that opened the store itself.
//!
//! Requests and reports are plain values that travel as JSON. Reports have the fields that `--json` shows;
//! paths in them are text, and bytes that are not UTF-8 show as U+FFFD. Nothing here prints.

mod by_method;
mod catch_up;
mod check;
mod contained;
pub mod copy;
mod diff;
mod excerpt;
mod export;
mod gc;
mod groups;
mod log;
mod moment;
mod optimize;
mod past;
mod repair;
mod restore;
mod scan;
mod settle;
mod similar;
mod snapshot;
mod status;
mod template;
pub(crate) mod text;
mod tree;
mod would_free;

pub use by_method::{
    FileByMethod, FileRef, GroupsByMethod, MethodContent, MethodContents, MethodKeys, Name, NotKnown,
    PairByMethod, PairsByMethod, SimilarByMethod, WinnowRequest, of_hex,
};
pub use catch_up::{catch_up, catch_up_quietly};
pub use check::{Action, CheckReport, Damaged, Unchecked};
pub use contained::{ContainedDirectory, ContainedFile, ContainedReport, Where};
pub use diff::{DiffRegion, DiffReport, Side};
pub use excerpt::Excerpt;
pub use export::{ExportReport, ExportRequest, NotExported};
pub use gc::GcReport;
pub use groups::{GroupReport, GroupsReport, IdenticalReport, MemberReport};
pub use log::{HistoryUse, LogReport, SnapshotOfFile, VersionRow};
pub use moment::{MomentReport, MomentRequest, MomentRow, moment_file};
pub use optimize::{OptimizeReport, OptimizeRequest};
pub use past::{PastReport, past_file};
pub use repair::{Peer, RepairRequest};
pub use restore::{RestoreReport, RestoreRequest, To};
pub use settle::SettleReport;
pub use similar::{SimilarMatch, SimilarReport};
pub use snapshot::{DifferenceRow, EntryRow, Restored, SnapshotReport, SnapshotRequest, SnapshotRow};
pub use status::{KeptStatus, StatusReport};
pub use template::{TemplateReport, TemplateRequest, TemplateRow};
pub use would_free::WouldFreeReport;

use crate::db::DbError;
use crate::history::HistoryError;
use crate::overlay::{GroupOptions, OverlayError, ScanReport, SimilarOptions, snapshots_fill_disk};
use crate::repo::{Repo, RepoError};
use crate::similarity::methods::Chosen;
use crate::store::StoreError;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Something to do. Paths are below the overlay's root if not said otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Policy, sizes, index, queue.
    Status,
    /// Take in what is there already.
    Scan {
        /// File or directory.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Wait until every closed file is chunked, indexed and durable.
    Settle,
    /// Find files that resemble one.
    Similar {
        /// The file: below the root, or with `outside` an absolute path.
        #[serde(with = "text")]
        path: PathBuf,
        /// Whether the file is not one of the overlay.
        outside: bool,
        /// How to look.
        options: SimilarOptions,
    },
    /// Find files that are the same, and groups of files that resemble each other.
    Groups {
        /// File or directory to restrict it to.
        #[serde(with = "text")]
        path: PathBuf,
        /// How to look.
        options: GroupOptions,
    },
    /// Find files that resemble one by a published method whose index is kept.
    SimilarByMethod {
        /// The file.
        file: FileRef,
        /// Which method, and with which parameters if not those of the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// At most so many files.
        limit: usize,
        /// What is asked of winnowing.
        #[serde(default)]
        winnow: WinnowRequest,
    },
    /// Find groups of files that resemble each other by such a method.
    GroupsByMethod {
        /// File or directory to restrict it to.
        #[serde(with = "text")]
        path: PathBuf,
        /// Which method, and with which parameters if not those of the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// With winnowing: what is in these files counts nothing.
        #[serde(default)]
        base: Vec<FileRef>,
    },
    /// Find pairs of files by the number of fingerprints in common, if the index of winnowing is kept.
    PairsByMethod {
        /// File or directory to restrict it to.
        #[serde(with = "text")]
        path: PathBuf,
        /// Winnowing, with parameters if not those of the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// At most so many pairs.
        limit: usize,
        /// What is in these files counts nothing.
        base: Vec<FileRef>,
    },
    /// Tell some of the contents that a kept index knows.
    MethodContents {
        /// File or directory to restrict it to.
        #[serde(with = "text")]
        path: PathBuf,
        /// Which method, and with which parameters if not those of the index.
        method: Chosen,
        /// From this number on.
        from: u32,
    },
    /// Tell some of its keys.
    MethodKeys {
        /// Which method, and with which parameters if not those of the index.
        method: Chosen,
        /// From this key on.
        from: u64,
    },
    /// How much of one directory is contained in another.
    Contained {
        /// The one.
        tree: Where,
        /// The other; all else in the overlay if there is none.
        holder: Option<Where>,
        /// At most so many bytes are compared.
        budget_bytes: u64,
    },
    /// Show and change what does not count in similarity.
    Template(TemplateRequest),
    /// Verify what is stored.
    Check {
        /// Whose stubs to check.
        #[serde(with = "text")]
        path: PathBuf,
        /// Decode and hash everything too.
        deep: bool,
    },
    /// Verify what is stored, and put right what can be, or only say what would be done.
    Repair(RepairRequest),
    /// List the versions of a file.
    Log {
        /// The file, which may be gone.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Bring a version of a file back.
    Restore(RestoreRequest),
    /// Take, list and use snapshots.
    Snapshot(SnapshotRequest),
    /// Show what two contents have in common, and where.
    Diff {
        /// The one.
        a: Side,
        /// The other.
        b: Side,
        /// At most so many regions, the longest.
        limit: usize,
        /// At most so many bytes of either are to be in the report; none unless it is asked for.
        #[serde(default)]
        excerpt_bytes: u64,
    },
    /// What removing something would give back.
    WouldFree {
        /// A file or directory; or `.snapshots/ID`.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Give back what no file needs.
    Gc {
        /// Only say what there is.
        dry_run: bool,
    },
    /// Store chunks that resemble each other together.
    Optimize(OptimizeRequest),
    /// Make files plain again.
    Export(ExportRequest),
    /// Look for contents that files had before.
    Past {
        /// Their recipes, hexadecimal.
        recipes: Vec<String>,
        /// Whether to write them where [`past_file`] says.
        write: bool,
    },
    /// What is at some paths while nothing is changed.
    Moment(MomentRequest),
    /// Finish conversions in flight and unmount. Only a daemon can.
    Unmount {
        /// End it also where other mount namespaces hold it.
        #[serde(default)]
        lazy: bool,
    },
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each answers the request of that name")]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and it is written out at once")]
pub enum Response {
    Status(StatusReport),
    Scan(ScanReport),
    Settle(SettleReport),
    Similar(SimilarReport),
    Groups(GroupsReport),
    SimilarByMethod(SimilarByMethod),
    GroupsByMethod(GroupsByMethod),
    PairsByMethod(PairsByMethod),
    MethodContents(MethodContents),
    MethodKeys(MethodKeys),
    /// The index of that method is not kept, or with these other parameters.
    NotKept(Option<String>),
    Contained(ContainedReport),
    Template(TemplateReport),
    Check(CheckReport),
    Log(LogReport),
    Restore(RestoreReport),
    Snapshot(SnapshotReport),
    WouldFree(WouldFreeReport),
    Diff(DiffReport),
    Gc(GcReport),
    Optimize(OptimizeReport),
    Export(ExportReport),
    Past(PastReport),
    Moment(MomentReport),
    Unmount(UnmountReport),
}

/// What came of an unmount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountReport {
    /// What the daemon could not finish before, and what that means.
    pub unfinished: Option<String>,
    /// Who holds it in other mount namespaces: then its daemon goes on for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_by: Vec<String>,
}

/// How far long work has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub what: String,
    /// Done so far.
    pub done: u64,
    /// To be done; 0 if not known.
    pub total: u64,
    /// What is counted.
    pub unit: Unit,
}

/// What progress counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Files.
    Files,
}

impl Progress {
    /// Progress in bytes.
    pub fn bytes(what: &str, done: u64, total: u64) -> Progress {
        Progress { what: what.to_owned(), done, total, unit: Unit::Bytes }
    }

    /// Progress in files.
    pub fn files(what: &str, done: u64, total: u64) -> Progress {
        Progress { what: what.to_owned(), done, total, unit: Unit::Files }
    }
}

/// Is told the progress; false asks to stop, which actions that only wait do.
pub type Report<'a> = &'a mut dyn FnMut(Progress) -> bool;

/// Why an action failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The overlay.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The history.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A file of the state directory.
    #[error(transparent)]
    Repo(#[from] RepoError),
    /// What was asked for cannot be.
    #[error("{message}")]
    Refused {
        /// What is wrong with it.
        message: String,
        /// What can be done.
        hint: String,
    },
    /// Only a daemon can do this.
    #[error("{0}: nothing is mounted, so there is nothing to unmount")]
    NotMounted(PathBuf),
    /// Whoever asked does not wait any more.
    #[error("interrupted")]
    Interrupted,
}

impl AdminError {
    fn refused(message: String, hint: String) -> AdminError {
        AdminError::Refused { message, hint }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            AdminError::Refused { hint, .. } => return Some(hint.clone()),
            AdminError::Repo(error) => return error.hint(),
            _ if self.is_full() => return Some(ROOM_HINT.to_owned()),
            _ => {}
        }
        let error = match self {
            AdminError::Overlay(error) | AdminError::History(HistoryError::Overlay(error)) => error,
            AdminError::History(error) => return history_hint(error).map(str::to_owned),
            AdminError::Store(error) => return error.refusal().map(|refusal| refusal.remedy().to_owned()),
            _ => return None,
        };
        if let OverlayError::Unsure { .. } = error {
            let hint = "`dedupctl check` says what is damaged; restore or remove that file (or snapshot; versions: see [history] in \
                 config.toml), then run gc again";
            return Some(hint.to_owned());
        }
        let kind = match error {
            OverlayError::Io { source, .. } => source.kind(),
            OverlayError::Os(errno) => errno.kind(),
            _ => return error.refusal().map(|refusal| refusal.remedy().to_owned()),
        };
        match kind {
            ErrorKind::PermissionDenied => Some(
                "the user of the store has to be allowed to read it: see `ls -l`, or use root".to_owned(),
            ),
            ErrorKind::NotFound => Some("give a path that exists".to_owned()),
            _ => error.refusal().map(|refusal| refusal.remedy().to_owned()),
        }
    }
}

/// What the user can do about an error of an action on `repo`: as [`AdminError::hint`], and of a full disk also what fills it.
pub fn hint(repo: &Repo, error: &AdminError) -> Option<String> {
    let bytes = repo.overlay().bytes_of_filling_snapshots().filter(|_| error.is_full());
    bytes.map_or_else(|| error.hint(), |bytes| Some(snapshots_fill_disk(&format!("{bytes} bytes"))))
}

/// What helps on a full disk. Stubs take no room there.
const ROOM_HINT: &str = "make room on that filesystem, outside the mount or by removing files that are not stored yet, and run \
                         it again; `dedupctl status` says what snapshots with a name take, which `dedupctl snapshot remove` \
                         and then `dedupctl gc` give back. Without a mount `dedupctl gc` needs no free space";

impl AdminError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        let overlay = match self {
            AdminError::Overlay(error) | AdminError::History(HistoryError::Overlay(error)) => Some(error),
            _ => None,
        };
        let store = match (self, overlay) {
            (AdminError::Store(error) | AdminError::History(HistoryError::Store(error)), _)
            | (_, Some(OverlayError::Store(error))) => Some(error),
            _ => None,
        };
        let db = match (self, overlay, store) {
            (AdminError::History(HistoryError::Db(error)), ..)
            | (_, Some(OverlayError::Db(error)), _)
            | (.., Some(StoreError::Db(error))) => Some(error),
            _ => None,
        };
        matches!(store, Some(StoreError::Full { .. })) || matches!(db, Some(DbError::Full { .. }))
    }
}

fn history_hint(error: &HistoryError) -> Option<&'static str> {
    match error {
        HistoryError::NoVersion { .. } | HistoryError::GivenUp { .. } => {
            Some("`dedupctl log FILE` lists the versions that there are")
        }
        HistoryError::NoSnapshot(_) | HistoryError::Ambiguous(_) | HistoryError::NotInSnapshot { .. } => {
            Some("`dedupctl snapshot list` shows the snapshots, and `snapshot show ID [PATH]` what is in one")
        }
        HistoryError::Name { .. } => {
            Some("give it another name, or none: then the rules say how long it is kept")
        }
        HistoryError::Form { .. } => Some("use the version of dedupfs that wrote it, or a later one"),
        _ => None,
    }
}

/// What an action works on.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The open store.
    pub repo: &'a Repo,
    /// Where its overlay is mounted.
    pub mountpoint: Option<&'a Path>,
}

/// Does what is requested. A store opened for the purpose needs the overlay's threads to be started for
/// [`Request::Scan`] and [`Request::Settle`].
pub fn run(context: Context<'_>, request: Request, report: Report<'_>) -> Result<Response, AdminError> {
    match request {
        Request::Status => status::status(context).map(Response::Status),
        Request::Scan { path } => scan::scan(context.repo, &path, report).map(Response::Scan),
        Request::Settle => settle::settle(context.repo, report).map(Response::Settle),
        Request::Similar { path, outside, options } => {
            similar::similar(context, &path, outside, &options).map(Response::Similar)
        }
        Request::Groups { path, options } => {
            groups::groups(context, &path, &options, report).map(Response::Groups)
        }
        Request::SimilarByMethod { file, method, min, limit, winnow } => {
            by_method::similar(context, &file, &method, (min, limit), &winnow)
        }
        Request::GroupsByMethod { path, method, min, base } => {
            by_method::groups(context, &path, &method, min, &base, report)
        }
        Request::PairsByMethod { path, method, min, limit, base } => {
            by_method::pairs(context, &path, &method, (min, limit), &base)
        }
        Request::MethodContents { path, method, from } => by_method::contents(context, &path, &method, from),
        Request::MethodKeys { method, from } => by_method::keys(context, &method, from),
        Request::Contained { tree, holder, budget_bytes } => {
            contained::contained(context.repo, tree, holder, budget_bytes, report).map(Response::Contained)
        }
        Request::Template(request) => {
            template::template(context.repo, &request, report).map(Response::Template)
        }
        Request::Check { path, deep } => check::check(context.repo, &path, deep, report).map(Response::Check),
        Request::Repair(request) => repair::repair(context, &request, report).map(Response::Check),
        Request::Log { path } => log::log(context.repo, &path, report).map(Response::Log),
        Request::Restore(request) => restore::restore(context, &request, report).map(Response::Restore),
        Request::Snapshot(request) => snapshot::snapshot(context, &request, report).map(Response::Snapshot),
        Request::Diff { a, b, limit, excerpt_bytes } => {
            diff::diff(context.repo, &a, &b, limit, excerpt_bytes, report).map(Response::Diff)
        }
        Request::WouldFree { path } => {
            would_free::would_free(context.repo, &path, report).map(Response::WouldFree)
        }
        Request::Gc { dry_run } => gc::gc(context.repo, dry_run, report).map(Response::Gc),
        Request::Optimize(request) => {
            optimize::optimize(context.repo, request, report).map(Response::Optimize)
        }
        Request::Export(request) => export::export(context, &request, report).map(Response::Export),
        Request::Past { recipes, write } => past::past(context.repo, &recipes, write).map(Response::Past),
        Request::Moment(request) => moment::moment(context.repo, &request, report).map(Response::Moment),
        Request::Unmount { .. } => Err(AdminError::NotMounted(context.repo.layout().root.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_the_disk_full_is_told_what_to_do() {
        let path = || PathBuf::from("/data");
        let store = || OverlayError::Store(StoreError::Full { path: path() });
        let db = || StoreError::Db(DbError::Full { path: path() });
        let full = [
            AdminError::Store(db()),
            AdminError::Overlay(store()),
            AdminError::Overlay(OverlayError::Store(db())),
            AdminError::History(HistoryError::Overlay(store())),
            AdminError::History(HistoryError::Db(DbError::Full { path: path() })),
        ];
        for error in full {
            assert!(error.hint().unwrap().starts_with("make room"), "{error:?}");
        }
        assert_eq!(AdminError::Overlay(OverlayError::Store(StoreError::Failed)).hint(), None);
    }
}
