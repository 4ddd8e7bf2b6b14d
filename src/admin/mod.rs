//! Actions on a store besides file operations: one action a file, the same for a daemon and for a program
//! that opened the store itself.
//!
//! Requests and reports are plain values that travel as JSON. Reports have the fields that `--json` shows.
//! Paths in them are text; bytes that are not UTF-8 show as U+FFFD. Nothing here prints.

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
mod old_contents;
mod optimize;
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
mod write_barrier;

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
pub use log::{HistoryUse, LogReport, SnapshotOfFile, VersionRow};
pub use old_contents::{OldContentsReport, old_content_file};
pub use optimize::{OptimizeReport, OptimizeRequest};
pub use repair::{Peer, RepairRequest};
pub use restore::{RestoreReport, RestoreRequest, To};
pub use settle::SettleReport;
pub use snapshot::{DifferenceRow, EntryRow, Restored, SnapshotReport, SnapshotRequest, SnapshotRow};
pub use status::{KeptStatus, StatusReport};
pub use template::{TemplateReport, TemplateRequest, TemplateRow};
pub use would_free::WouldFreeReport;
pub use write_barrier::{BarrierReport, BarrierRequest, BarrierRow, barrier_file};

use crate::db::DbError;
use crate::history::HistoryError;
use crate::overlay::{
    GroupOptions, Groups, Matches, OverlayError, ScanReport, SimilarOptions, snapshots_fill_disk,
};
use crate::repo::{Repo, RepoError};
use crate::similarity::methods::Chosen;
use crate::store::StoreError;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A request. Paths are below the overlay's root unless noted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Report policy, sizes, index, queue.
    Status,
    /// Commit or index existing files.
    Scan {
        /// File or directory.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Wait until every closed file is chunked, indexed and durable.
    Settle,
    /// Find files that resemble one file.
    Similar {
        /// The file: below the root, or with `outside` an absolute path.
        #[serde(with = "text")]
        path: PathBuf,
        /// Whether the file is outside the overlay.
        outside: bool,
        /// Search options.
        options: SimilarOptions,
    },
    /// Find identical files, and groups of similar files.
    Groups {
        /// File or directory to search.
        #[serde(with = "text")]
        path: PathBuf,
        /// Search options.
        options: GroupOptions,
    },
    /// Find files that resemble one, through a saved index of a published method.
    SimilarByMethod {
        /// The file.
        file: FileRef,
        /// The method; with parameters only if they must differ from the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// Limit of files.
        limit: usize,
        /// Options of winnowing.
        #[serde(default)]
        winnow: WinnowRequest,
    },
    /// Find groups of similar files through such an index.
    GroupsByMethod {
        /// File or directory to search.
        #[serde(with = "text")]
        path: PathBuf,
        /// The method; with parameters only if they must differ from the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// With winnowing: fingerprints of these files do not count.
        #[serde(default)]
        base: Vec<FileRef>,
    },
    /// Find pairs of files by the number of common fingerprints, through a saved winnowing index.
    PairsByMethod {
        /// File or directory to search.
        #[serde(with = "text")]
        path: PathBuf,
        /// Winnowing; with parameters only if they must differ from the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// Limit of pairs.
        limit: usize,
        /// Fingerprints of these files do not count.
        base: Vec<FileRef>,
    },
    /// Return some of the contents in a saved index.
    MethodContents {
        /// File or directory to search.
        #[serde(with = "text")]
        path: PathBuf,
        /// The method; with parameters only if they must differ from the index.
        method: Chosen,
        /// First number.
        from: u32,
    },
    /// Return some of its keys.
    MethodKeys {
        /// The method; with parameters only if they must differ from the index.
        method: Chosen,
        /// First key.
        from: u64,
    },
    /// Compute how much of one directory another contains.
    Contained {
        /// The contained directory.
        tree: Where,
        /// The holder; by default everything else in the overlay.
        holder: Option<Where>,
        /// Limit of compared bytes.
        budget_bytes: u64,
    },
    /// Show and change passages that similarity ignores.
    Template(TemplateRequest),
    /// Verify stored content.
    Check {
        /// Stubs to check.
        #[serde(with = "text")]
        path: PathBuf,
        /// Also decode and hash everything.
        deep: bool,
    },
    /// Verify stored content and repair it, or only plan the repair.
    Repair(RepairRequest),
    /// List the versions of a file.
    Log {
        /// The file, which may be removed.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Restore a version of a file.
    Restore(RestoreRequest),
    /// Take, list and use snapshots.
    Snapshot(SnapshotRequest),
    /// Show the common parts of two contents.
    Diff {
        /// The first.
        a: Side,
        /// The second.
        b: Side,
        /// Limit of regions; the longest are kept.
        limit: usize,
        /// Limit of each content's bytes in the report; none by default.
        #[serde(default)]
        excerpt_bytes: u64,
    },
    /// Compute the space that a removal would free.
    WouldFree {
        /// A file or directory; or `.snapshots/ID`.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Free content that no file needs.
    Gc {
        /// Only report.
        dry_run: bool,
    },
    /// Group similar chunks.
    Optimize(OptimizeRequest),
    /// Make files plain again.
    Export(ExportRequest),
    /// Find former contents of files.
    #[serde(rename = "past")]
    OldContents {
        /// Their recipes, hexadecimal.
        recipes: Vec<String>,
        /// Whether to write them to [`old_content_file`].
        write: bool,
    },
    /// Read some paths while changes are held up.
    #[serde(rename = "moment")]
    WriteBarrier(BarrierRequest),
    /// Finish conversions in flight and unmount. Only a daemon can.
    Unmount {
        /// Also end it while other mount namespaces hold it.
        #[serde(default)]
        lazy: bool,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each answers the request of that name")]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and it is written out at once")]
pub enum Response {
    Status(StatusReport),
    Scan(ScanReport),
    Settle(SettleReport),
    Similar(Matches),
    Groups(Groups),
    SimilarByMethod(SimilarByMethod),
    GroupsByMethod(GroupsByMethod),
    PairsByMethod(PairsByMethod),
    MethodContents(MethodContents),
    MethodKeys(MethodKeys),
    /// That method has no saved index, or one with these other parameters.
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
    #[serde(rename = "past")]
    OldContents(OldContentsReport),
    #[serde(rename = "moment")]
    WriteBarrier(BarrierReport),
    Unmount(UnmountReport),
}

/// Result of an unmount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountReport {
    /// Work that the daemon could not finish, and its effect.
    pub unfinished: Option<String>,
    /// Holders in other mount namespaces: the daemon keeps serving them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_by: Vec<String>,
}

/// Progress of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Current work.
    pub what: String,
    /// Done so far.
    pub done: u64,
    /// Total; 0 if unknown.
    pub total: u64,
    /// Unit of the counts.
    pub unit: Unit,
}

/// Unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Files.
    Files,
}

impl Progress {
    /// Creates progress in bytes.
    pub fn bytes(what: &str, done: u64, total: u64) -> Progress {
        Progress { what: what.to_owned(), done, total, unit: Unit::Bytes }
    }

    /// Creates progress in files.
    pub fn files(what: &str, done: u64, total: u64) -> Progress {
        Progress { what: what.to_owned(), done, total, unit: Unit::Files }
    }
}

/// Gets the progress; false asks to stop, which only waiting actions do.
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
    /// The request is impossible.
    #[error("{message}")]
    Refused {
        /// The problem.
        message: String,
        /// Advice.
        hint: String,
    },
    /// Only a daemon can do this.
    #[error("{0}: nothing is mounted, so there is nothing to unmount")]
    NotMounted(PathBuf),
    /// The caller no longer waits.
    #[error("interrupted")]
    Interrupted,
}

impl AdminError {
    fn refused(message: String, hint: String) -> AdminError {
        AdminError::Refused { message, hint }
    }

    /// Returns advice for the user.
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
            let hint = "`dedupctl check` lists the damage; restore or remove that file (or snapshot; versions: see [history] in \
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

/// Returns advice on an error of an action on `repo`: like [`AdminError::hint`]; for a full disk also the
/// reason.
pub fn hint(repo: &Repo, error: &AdminError) -> Option<String> {
    let bytes = repo.overlay().bytes_of_filling_snapshots().filter(|_| error.is_full());
    bytes.map_or_else(|| error.hint(), |bytes| Some(snapshots_fill_disk(&format!("{bytes} bytes"))))
}

/// Advice for a full disk. Stubs take no space there.
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
            Some(
                "`dedupctl snapshot list` shows the snapshots, and `snapshot show ID [PATH]` the files in one",
            )
        }
        HistoryError::Name { .. } => {
            Some("give it another name, or none: then the rules say how long it is kept")
        }
        HistoryError::Form { .. } => Some("use the version of dedupfs that wrote it, or a later one"),
        _ => None,
    }
}

/// Environment of an action.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The open store.
    pub repo: &'a Repo,
    /// The overlay's mount point.
    pub mountpoint: Option<&'a Path>,
}

/// Executes a request. For [`Request::Scan`] and [`Request::Settle`], a store opened for the purpose needs
/// the overlay's threads.
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
        Request::OldContents { recipes, write } => {
            old_contents::old_contents(context.repo, &recipes, write).map(Response::OldContents)
        }
        Request::WriteBarrier(request) => {
            write_barrier::write_barrier(context.repo, &request, report).map(Response::WriteBarrier)
        }
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
