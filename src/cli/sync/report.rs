//! The report of a sync.

use super::super::error::CliError;
use super::super::output::{Output, plain, size, table};
use super::super::synced::entries;
use crate::sync::Session;
use crate::sync::link::Traffic;
use crate::sync::plan::Summary;
use crate::sync::proto::{NEW_DIRECTORY, NEW_OVERLAY};
use crate::sync::tree::shown;
use serde::Serialize;

/// Changes on one side.
#[derive(Serialize)]
struct Side {
    created: u64,
    updated: u64,
    deleted: u64,
    renamed: u64,
}

/// Two versions of a file.
#[derive(Serialize)]
pub(super) struct ConflictRow {
    pub path: String,
    pub copy: String,
    winner: String,
    loser: String,
}

#[derive(Serialize)]
struct Skipped {
    path: String,
    reason: String,
}

/// See the module.
#[derive(Serialize)]
pub(super) struct SyncReport {
    peer: String,
    dry_run: bool,
    sent_bytes: u64,
    received_bytes: u64,
    created: u64,
    updated: u64,
    deleted: u64,
    renamed: u64,
    here: Side,
    there: Side,
    pub conflicts: Vec<ConflictRow>,
    kept: Vec<String>,
    skipped: Vec<Skipped>,
    without_base: bool,
    /// Number of entries that the selection of this device leaves out, if it has one.
    left_out: Option<u64>,
    /// This device, as `winner` and `loser` name it.
    device: String,
    /// The object that a real run would create on the other side, from a dry run: `directory` or `overlay`.
    would_make: Option<&'static str>,
}

impl SyncReport {
    /// Describes a session that is over, of the device `device` with `peer`.
    pub(super) fn new(
        peer: &str,
        session: &Session,
        traffic: Traffic,
        device: String,
        dry_run: bool,
    ) -> Self {
        let outcome = session.outcome();
        let (here, there) = (outcome.here, outcome.there);
        let conflicts = outcome.conflicts.iter().map(|conflict| ConflictRow {
            path: shown(&conflict.path),
            copy: shown(&conflict.copy),
            winner: conflict.winner.to_string(),
            loser: conflict.loser.to_string(),
        });
        SyncReport {
            peer: peer.to_owned(),
            dry_run,
            sent_bytes: traffic.sent,
            received_bytes: traffic.received,
            created: here.created + there.created,
            updated: here.updated + there.updated,
            deleted: here.deleted + there.deleted,
            renamed: here.renamed + there.renamed,
            here: here.into(),
            there: there.into(),
            conflicts: conflicts.collect(),
            kept: outcome.kept.iter().map(|path| shown(path)).collect(),
            skipped: outcome
                .skipped
                .iter()
                .map(|(path, reason)| Skipped { path: shown(path), reason: reason.clone() })
                .collect(),
            without_base: outcome.without_base,
            left_out: outcome.left_out,
            device,
            would_make: would_make(session.peer_features()).filter(|_| dry_run),
        }
    }

    /// Returns whether there is nothing for the user to look at.
    pub(super) fn is_clean(&self) -> bool {
        self.conflicts.is_empty() && self.skipped.is_empty()
    }

    /// Returns whether nothing was transferred, and there is nothing to look at.
    pub(super) fn is_nothing(&self) -> bool {
        self.created + self.updated + self.deleted + self.renamed == 0
            && self.is_clean()
            && self.kept.is_empty()
    }

    /// Prints what the user should know besides the result.
    pub(super) fn note(&self, out: &Output) {
        if self.without_base {
            out.note("first sync of these two copies: a file that one side lacks does not count as deleted");
        }
        for path in &self.kept {
            out.note(&format!("{}: deleted on one side and changed on the other: kept", plain(path)));
        }
        for Skipped { path, reason } in &self.skipped {
            out.note(&format!("{}: {}", plain(path), plain(reason)));
        }
    }

    /// Prints the result.
    pub(super) fn show(&self, out: &Output) -> Result<(), CliError> {
        self.note(out);
        out.result(self, text)
    }

    /// Prints the result as one of many: a few words, or a document in one line with `--json`. Returns false if the reader
    /// has gone.
    pub(super) fn show_line(&self, out: &Output) -> Result<bool, CliError> {
        self.note(out);
        out.line(self, line)
    }
}

impl From<Summary> for Side {
    fn from(sum: Summary) -> Side {
        let Summary { created, updated, deleted, renamed } = sum;
        Side { created, updated, deleted, renamed }
    }
}

/// Returns what a sync would create on the other side: a directory, or an overlay in an existing one.
fn would_make(features: &[String]) -> Option<&'static str> {
    features.iter().find_map(|feature| match feature.as_str() {
        NEW_DIRECTORY => Some("directory"),
        NEW_OVERLAY => Some("overlay"),
        _ => None,
    })
}

/// Describes a sync in one line, and each conflict in another.
fn line(report: &SyncReport) -> String {
    let side = |name: &str, side: &Side| {
        let counts = [
            (side.created, "created"),
            (side.updated, "updated"),
            (side.deleted, "deleted"),
            (side.renamed, "renamed"),
        ];
        let counts = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
        let counts = counts.collect::<Vec<_>>().join(", ");
        if counts.is_empty() { None } else { Some(format!("{name}: {counts}")) }
    };
    let sides = [side("here", &report.here), side("there", &report.there)];
    let mut sides: Vec<_> = sides.into_iter().flatten().collect();
    if sides.is_empty() {
        sides.push("the same on both sides".to_owned());
    }
    let (sent, received) = (size(report.sent_bytes), size(report.received_bytes));
    let mut text = format!("{}; {sent} sent, {received} received\n", sides.join("; "));
    for conflict in &report.conflicts {
        text += &told(conflict, &report.device, report.dry_run);
    }
    text
}

fn text(report: &SyncReport) -> String {
    let row = |name: &str, side: &Side| {
        let mut row = vec![name.to_owned()];
        row.extend([side.created, side.updated, side.deleted, side.renamed].map(|n| n.to_string()));
        row
    };
    let head = ["", "created", "updated", "deleted", "renamed"].map(str::to_owned).to_vec();
    let mut text = table(&[head, row("here", &report.here), row("there", &report.there)], &[1, 2, 3, 4]);
    text += &match report.would_make {
        Some("directory") => format!("{}: would be made, as an overlay\n", plain(&report.peer)),
        Some(_) => format!("{}: would become an overlay\n", plain(&report.peer)),
        None => String::new(),
    };
    if let Some(left_out) = report.left_out {
        text += &format!("left out here: {}\n", entries(left_out));
    }
    let verb = if report.dry_run { "nothing was changed; " } else { "" };
    text += &format!("{verb}{} sent, {} received\n", size(report.sent_bytes), size(report.received_bytes));
    for conflict in &report.conflicts {
        text += &told(conflict, &report.device, report.dry_run);
    }
    text
}

/// Describes where the two versions are, for the user of the device `mine`.
fn told(conflict: &ConflictRow, mine: &str, dry_run: bool) -> String {
    let ConflictRow { path, copy, winner, loser } = conflict;
    let (path, copy) = (plain(path), plain(copy));
    // The digits only distinguish devices with the same host name.
    let host = |device: &str| device.rsplit_once('-').map_or(device, |(host, _)| host).to_owned();
    let same =
        host(winner) == host(loser) || [winner, loser].iter().any(|of| host(of) == host(mine) && *of != mine);
    let called = |device: &String| if same { device.clone() } else { host(device) };
    let has = if dry_run { "would have" } else { "now has" };
    let is = if dry_run { "would be" } else { "is" };
    match (winner == mine, loser == mine) {
        (_, true) => format!("conflict: {path} {has} {}'s version; yours {is} {copy}\n", called(winner)),
        (true, _) => {
            let keeps = if dry_run { "would keep" } else { "keeps" };
            format!("conflict: {path} {keeps} your version; {}'s {is} {copy}\n", called(loser))
        }
        _ => {
            format!("conflict: {path} {has} {}'s version; {}'s {is} {copy}\n", called(winner), called(loser))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_says_which_version_is_whose() {
        let row = |winner: &str, loser: &str| ConflictRow {
            path: "todo.md".to_owned(),
            copy: format!("todo.conflict-{loser}-1a2b3c4d.md"),
            winner: winner.to_owned(),
            loser: loser.to_owned(),
        };
        let (server, laptop) = ("server-00000001", "laptop-00000002");
        for (winner, loser, mine, dry, expected) in [
            (
                server,
                laptop,
                laptop,
                false,
                "now has server's version; yours is todo.conflict-laptop-00000002-1a2b3c4d.md",
            ),
            (
                server,
                laptop,
                server,
                false,
                "keeps your version; laptop's is todo.conflict-laptop-00000002-1a2b3c4d.md",
            ),
            (
                server,
                laptop,
                "desk-00000003",
                true,
                "would have server's version; laptop's would be todo.conflict-laptop-00000002-1a2b3c4d.md",
            ),
            (
                "a-00000001",
                "a-00000002",
                "a-00000002",
                false,
                "now has a-00000001's version; yours is todo.conflict-a-00000002-1a2b3c4d.md",
            ),
        ] {
            assert_eq!(told(&row(winner, loser), mine, dry), format!("conflict: todo.md {expected}\n"));
        }
    }
}
