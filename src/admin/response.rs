use super::{
    BarrierReport, ChangesReport, CheckReport, ContainedReport, ContentsReport, DiffReport, ExportReport,
    GcReport, GroupsByMethod, LogReport, MethodContents, MethodKeys, OldContentsReport, OptimizeReport,
    PairsByMethod, ReadReport, RestoreReport, SettleReport, SimilarByMethod, SnapshotReport, StatusReport,
    TemplateReport, WaitReport, WouldFreeReport,
};
use crate::maintain::ScanReport;
use crate::query::{Groups, Matches};
use serde::{Deserialize, Serialize};

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
    /// Result of [`super::Request::Contents`].
    Contents(ContentsReport),
    /// Result of [`super::Request::Read`].
    Read(ReadReport),
    #[serde(rename = "moment")]
    WriteBarrier(BarrierReport),
    /// Result of [`super::Request::Changes`].
    Changes(ChangesReport),
    /// Result of [`super::Request::WaitForChange`].
    WaitForChange(WaitReport),
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
