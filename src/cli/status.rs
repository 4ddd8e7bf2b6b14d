use super::file_version::find_gone;
use super::output::{Output, plain, size, table};
use super::replica::memory_of;
use super::session::{Session, Work, find, unexpected};
use super::synced::{self, LastSync};
use super::watch::{parse_seconds, watch};
use super::{CliResult, Global, Outcome, log};
use crate::admin::{HistoryUse, KeptStatus, Request, Response, StatusReport, WouldFreeReport};
use crate::control::Found;
use crate::convert::snapshots_fill_disk;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Show mount, policy, sizes, ratio, queue and memory
#[derive(clap::Args)]
#[command(after_help = "Example: dedupctl status /data --json\n\
    Example: dedupctl status /data --watch 5\n\
    Example: dedupctl status --of old/photos\n\
    Example: dedupctl status --of .snapshots/before-upgrade")]
pub(super) struct Status {
    /// Any path in the overlay; by default the current directory
    path: Option<PathBuf>,
    /// Show how many bytes the removal of a file, a directory or a snapshot (`.snapshots/ID`) would free
    #[arg(long, value_name = "PATH", conflicts_with = "path")]
    of: Option<PathBuf>,
    /// Repeat every N seconds, until Ctrl-C; with --json one document a line
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = parse_seconds,
        conflicts_with = "of")]
    watch: Option<Duration>,
}

impl Status {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        if let Some(of) = &self.of {
            let (session, path) = Session::open(find_gone(global, of)?, Work::Change, out)?;
            match session.ask(Request::WouldFree { path }, out)? {
                Response::WouldFree(report) => out.result(&report, would_free)?,
                other => return Err(unexpected(&other)),
            }
            return Ok(Outcome::Clean);
        }
        // Finds it again each time: it may be mounted or unmounted meanwhile, and no store stays open in between.
        let next = || {
            let found = find(global, self.path.as_deref())?;
            let syncs = last_syncs(&found);
            let (session, _) = Session::open(found, Work::Ask, out)?;
            match session.ask(Request::Status, out)? {
                Response::Status(report) => Ok(Shown { report, syncs }),
                other => Err(unexpected(&other)),
            }
        };
        if let Some(every) = self.watch {
            return watch(every, out, next, text);
        }
        out.result(&next()?, text)?;
        Ok(Outcome::Clean)
    }
}

fn would_free(report: &WouldFreeReport) -> String {
    let mut text = format!(
        "{}: {} files, {}\nremoving it frees {} at the next collection",
        plain(&report.of),
        report.files,
        size(report.logical_bytes),
        size(report.frees_bytes)
    );
    if report.frees_after_history_bytes > report.frees_bytes {
        text += &format!(", {} once no version or snapshot needs it", size(report.frees_after_history_bytes));
    }
    if report.frees_plain_bytes > 0 {
        text += &format!(", and {} of plain files at once", size(report.frees_plain_bytes));
    }
    text + "\n"
}

/// The document of `status`.
#[derive(Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    pub(super) report: StatusReport,
    /// The last sync with each device.
    pub(super) syncs: Vec<LastSync>,
}

/// Returns the last sync with each device; none without access to the sync state.
pub(super) fn last_syncs(found: &Found) -> Vec<LastSync> {
    let root = match found {
        Found::Daemon { info, .. } => &info.mountpoint,
        Found::Direct { layout, .. } => &layout.root,
    };
    memory_of(found).map(|(memory, _fd)| synced::list(&memory, root)).unwrap_or_default()
}

fn sync_rows(syncs: &[LastSync]) -> Vec<(&'static str, String)> {
    let row = |sync: &LastSync| {
        let with = sync.peer.as_ref().unwrap_or(&sync.device);
        let conflicts = match sync.conflicts.len() {
            0 => String::new(),
            1 => format!("; 1 conflict: {} (see `dedupctl conflicts`)", plain(&sync.conflicts[0])),
            n => format!("; {n} conflicts (see `dedupctl conflicts`)"),
        };
        let out =
            sync.left_out.map_or_else(String::new, |n| format!("; left out here: {}", synced::entries(n)));
        ("last sync", format!("{} with {}{out}{conflicts}", seconds(&plain(&sync.time)), plain(with)))
    };
    syncs.iter().map(row).collect()
}

fn text(shown: &Shown) -> String {
    let rows = rows(shown);
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    table(&rows, &[])
}

/// Describes the plain size of the files, and their present size.
fn disk(report: &StatusReport) -> String {
    let (plain, all) = (report.logical_bytes, report.disk_bytes);
    let both = format!("plain: {}, with dedupfs: {}, all included", size(plain), size(all));
    match all.checked_sub(plain) {
        None | Some(0) => both,
        Some(more) => format!("{both}; dedupfs costs {} more than it saves", size(more)),
    }
}

/// Describes the size and share of the index, and the files that it leaves out.
fn index(report: &StatusReport) -> String {
    let mut text = size(report.index_bytes);
    // The share of a store with next to nothing in it says nothing.
    if report.index_bytes < report.unique_bytes {
        text += &format!(", {:.2}% of unique", 100.0 * report.index_share);
    }
    text += &format!(", text extracted from {} documents", report.views);
    match report.not_indexed {
        0 => text,
        files => format!("{text}; {files} files not in it, as similarity is off for them"),
    }
}

fn history(report: &StatusReport) -> String {
    let named = report.named_snapshots_bytes;
    let text = log::history(&HistoryUse {
        bytes: report.history_bytes.saturating_sub(named),
        max_bytes: report.history_max_bytes,
        named_snapshots_bytes: named,
        snapshots_fill_disk: report.snapshots_fill_disk,
    });
    match report.snapshots_fill_disk {
        true => format!("{text}. {}", snapshots_fill_disk(&size(named))),
        false => text,
    }
}

/// Describes the schedule of snapshots, the last one and the next.
fn schedule(report: &StatusReport) -> String {
    let last = report.last_scheduled_snapshot.as_deref();
    let last = last.map_or("none was taken yet".to_owned(), |time| format!("last {}", seconds(time)));
    match (report.snapshot_schedule.as_str(), &report.next_scheduled_snapshot) {
        ("", _) => "no snapshots on schedule".to_owned(),
        (schedule, None) => format!("{schedule}; {last}, none due, as it is not mounted for writing"),
        (schedule, Some(next)) => format!("{schedule}; {last}, next {}", seconds(next)),
    }
}

/// Returns a time without its fraction of a second.
fn seconds(time: &str) -> String {
    time.get(..19).unwrap_or(time).replace('T', " ")
}

/// Returns all rows, by name.
pub(super) fn rows(shown: &Shown) -> Vec<(&'static str, String)> {
    let mut rows = report_rows(&shown.report);
    rows.extend(sync_rows(&shown.syncs));
    rows
}

fn report_rows(report: &StatusReport) -> Vec<(&'static str, String)> {
    let mounted = match &report.mountpoint {
        Some(mountpoint) => format!("at {} (process {})", plain(mountpoint), report.pid),
        None => "no".to_owned(),
    };
    let pending = match (report.pending, report.behind) {
        (0, false) => "nothing pending".to_owned(),
        (pending, false) => format!("{pending} files pending"),
        (pending, true) => format!("{pending} files pending, catching up with the tree"),
    };
    let pending = match report.resting {
        0 => pending,
        resting => format!("{pending}; {resting} resting, as they are written again and again"),
    };
    let pending = match report.kept_plain {
        0 => pending,
        kept => format!("{pending}; {kept} kept plain because they are rewritten repeatedly as a whole"),
    };
    let pending = match report.hot_files {
        0 => pending,
        hot => format!(
            "{pending}; {hot} plain for now, as they are read again and again ({})",
            size(report.hot_bytes)
        ),
    };
    let pending = match report.waiting_for_space {
        0 => pending,
        waiting => format!(
            "{pending}; {waiting} stay plain until there is space, as conversions keep {} free",
            size(report.keep_free_bytes)
        ),
    };
    let mut policy = report.policy.clone();
    match report.rules {
        0 => {}
        1 => policy += " and 1 rule",
        rules => policy += &format!(" and {rules} rules"),
    }
    if report.min_size > 0 {
        policy += &format!(", from {} on", size(report.min_size));
    }
    match report.similarity.as_str() {
        "chunks" => policy += ", chunk ids in the similarity index",
        "off" => policy += ", no similarity index",
        _ => {}
    }
    if let Some(rate) = report.convert_rate {
        policy += &format!(", at {}/s", size(rate));
    }
    if report.read_only {
        policy += ", read-only";
    }
    let of_method = |kept: &KeptStatus| {
        format!("{}: {} contents, {} ({})", kept.name, kept.contents, size(kept.bytes), kept.parameters)
    };
    let kept = match report.kept.is_empty() {
        true => "no index of a published method".to_owned(),
        false => report.kept.iter().map(of_method).collect::<Vec<_>>().join("; "),
    };
    vec![
        ("disk", disk(report)),
        ("directory", plain(&report.root)),
        ("store", plain(&report.store)),
        ("mounted", mounted),
        ("policy", policy),
        ("files", format!("{}, {}", report.files, size(report.logical_bytes))),
        ("unique", format!("{} in {} chunks", size(report.unique_bytes), report.chunks)),
        ("stored", format!("{}, ratio {:.2}", size(report.stored_bytes), report.ratio)),
        (
            "saved",
            format!(
                "{} by dedup, {} by compression, {} by grouping",
                size(report.saved_by_dedup),
                size(report.saved_by_compression),
                size(report.saved_by_grouping)
            ),
        ),
        ("history", history(report)),
        ("schedule", schedule(report)),
        ("index", index(report)),
        ("kept", kept),
        ("queue", pending),
        (
            "damage",
            if report.damaged == 0 {
                "none seen".to_owned()
            } else {
                format!("{} seen; run `dedupctl check`", report.damaged)
            },
        ),
        ("memory", size(report.memory)),
    ]
}
