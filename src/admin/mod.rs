//! Actions on a store besides file operations: one action a file, the same for a daemon and for a program
//! that opened the store itself.
//!
//! Requests and reports are plain values that travel as JSON. Reports have the fields that `--json` shows.
//! Paths in them are text; bytes that are not UTF-8 show as U+FFFD. Nothing here prints.

mod by_method;
mod catch_up;
mod changes;
mod check;
mod contained;
mod context;
pub mod copy;
mod diff;
mod error;
mod excerpt;
mod export;
mod gc;
mod groups;
mod hex;
mod log;
mod old_contents;
mod optimize;
mod progress;
mod repair;
mod request;
mod response;
mod restore;
mod run;
mod scan;
mod scheduled;
mod settle;
mod similar;
mod snapshot;
mod status;
mod template;
mod tree;
mod wait;
mod would_free;
mod write_barrier;

pub use by_method::{
    GroupsByMethod, MethodContent, MethodContents, MethodGroup, MethodKeys, Name, NotKnown, PairByMethod,
    PairsByMethod, SimilarByMethod, WinnowRequest,
};
pub use catch_up::{catch_up, catch_up_quietly};
pub use changes::{ChangedRow, ChangesReport};
pub use check::{Action, CheckReport, Damaged, Unchecked};
pub use contained::{ContainedDirectory, ContainedReport};
pub use context::Context;
pub use diff::{DiffRegion, DiffReport, Side};
pub use error::{AdminError, hint};
pub use excerpt::Excerpt;
pub use export::{ExportReport, ExportRequest, NotExported};
pub use gc::GcReport;
pub use log::{HistoryUse, LogReport, SnapshotOfFile, VersionRow};
pub use old_contents::{ContentsReport, OldContentsReport, ReadReport, contents_file, old_content_file};
pub use optimize::{OptimizeReport, OptimizeRequest};
pub use progress::{Progress, Report, Unit};
pub use repair::{Peer, RepairRequest};
pub use request::Request;
pub use response::{Response, UnmountReport};
pub use restore::{RestoreReport, RestoreRequest, To};
pub use run::run;
pub use scheduled::take_scheduled;
pub use settle::SettleReport;
pub use snapshot::{DifferenceRow, EntryRow, Restored, SnapshotReport, SnapshotRequest, SnapshotRow};
pub use status::{KeptStatus, StatusReport};
pub use template::{TemplateReport, TemplateRequest, TemplateRow};
pub use wait::WaitReport;
pub use would_free::WouldFreeReport;
pub use write_barrier::{BarrierReport, BarrierRequest, BarrierRow, barrier_file};

pub use crate::query::FileRef;
pub(crate) use crate::query::text;
