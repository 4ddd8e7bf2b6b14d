use super::log::time_text;
use super::text::shown;
use super::{AdminError, Context, HistoryUse};
use crate::backing::stub::Time;
use crate::config::{dedup_text, similarity_text};
use crate::contents::OverlayError;
use crate::indexes::{Totals, Views};
use serde::{Deserialize, Serialize};

/// The state of an overlay. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The backing directory.
    pub root: String,
    /// Path of the store.
    pub store: String,
    /// Its id.
    pub store_id: String,
    /// Whether a daemon has it mounted.
    pub mounted: bool,
    /// The mount point.
    pub mountpoint: Option<String>,
    /// Whether nothing may be changed.
    pub read_only: bool,
    /// When files are converted: `on-close`, `idle:TIME` or `off`.
    pub policy: String,
    /// Number of rules by name in `config.toml`.
    pub rules: u64,
    /// Smaller files stay plain, unless a rule overrides it.
    pub min_size: u64,
    /// Bytes a second that conversions may read; none without a limit.
    pub convert_rate: Option<u64>,
    /// How much the similarity index has of files, if no rule says otherwise: `full`, `chunks` or `off`.
    #[serde(default)]
    pub similarity: String,
    /// Average length of a chunk.
    pub chunk_avg: u64,
    /// Files known.
    pub files: u64,
    /// Bytes in them.
    pub logical_bytes: u64,
    /// Bytes of the distinct chunks.
    pub unique_bytes: u64,
    /// Bytes of the packs on disk.
    pub stored_bytes: u64,
    /// Bytes saved because chunks are stored once.
    #[serde(default)]
    pub saved_by_dedup: u64,
    /// Bytes saved by compressing each chunk; frame headers count against it.
    #[serde(default)]
    pub saved_by_compression: u64,
    /// Bytes saved by grouping, as far as the index remembers.
    #[serde(default)]
    pub saved_by_grouping: u64,
    /// All bytes on disk: packs with versions and snapshots, the index, and plain files.
    #[serde(default)]
    pub disk_bytes: u64,
    /// Bytes of files whose content is not only in the store.
    #[serde(default)]
    pub plain_bytes: u64,
    /// Bytes of packs that only versions and snapshots need, at the last collection.
    #[serde(default)]
    pub history_bytes: u64,
    /// Bytes among those that named snapshots need: only their removal frees them.
    #[serde(default)]
    pub named_snapshots_bytes: u64,
    /// Whether snapshots with a name alone keep the disk nearly full.
    #[serde(default)]
    pub snapshots_fill_disk: bool,
    /// Limit for the rest: beyond it the oldest and least valuable versions are dropped.
    #[serde(default)]
    pub history_max_bytes: u64,
    /// The schedule of snapshots; empty if none are taken on schedule.
    #[serde(default)]
    pub snapshot_schedule: String,
    /// When the last scheduled snapshot was taken (RFC 3339).
    #[serde(default)]
    pub last_scheduled_snapshot: Option<String>,
    /// When the next scheduled snapshot is due (RFC 3339); none if no daemon takes them.
    #[serde(default)]
    pub next_scheduled_snapshot: Option<String>,
    /// Free bytes of the filesystem.
    #[serde(default)]
    pub free_bytes: u64,
    /// Bytes of it that conversions leave free.
    #[serde(default)]
    pub keep_free_bytes: u64,
    /// Files that stay plain until there is space for their content.
    #[serde(default)]
    pub waiting_for_space: u64,
    /// `logical_bytes` over `stored_bytes`; 1 while nothing is stored.
    pub ratio: f64,
    /// Distinct chunks.
    pub chunks: u64,
    /// Bytes of the index on disk.
    pub index_bytes: u64,
    /// `index_bytes` over `unique_bytes`, so 0.01 is 1%; 0 while nothing is stored.
    #[serde(default)]
    pub index_share: f64,
    /// Files that the similarity index does not have, because `similarity = "off"` leaves some out.
    #[serde(default)]
    pub not_indexed: u64,
    /// Contents that are also indexed through a view.
    pub views: u64,
    /// Saved indexes of published methods.
    #[serde(default)]
    pub kept: Vec<KeptStatus>,
    /// Closed files that are not committed yet.
    pub pending: u64,
    /// Closed files that rest longer because they are written repeatedly.
    pub resting: u64,
    /// Files that stay plain because they are repeatedly rewritten as a whole.
    #[serde(default)]
    pub kept_plain: u64,
    /// Hot files: in the store, and plain for a while because they are read repeatedly.
    #[serde(default)]
    pub hot_files: u64,
    /// Their bytes on disk outside the store.
    #[serde(default)]
    pub hot_bytes: u64,
    /// Damage seen since the store was opened.
    pub damaged: u64,
    /// Whether the index may lack files (a scan is due or running).
    pub behind: bool,
    /// Resident memory of the process that answers, in bytes.
    pub memory: u64,
    /// Its process number.
    pub pid: u32,
}

/// A saved index of a published method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptStatus {
    /// The method.
    pub name: String,
    /// Its parameters.
    #[serde(default)]
    pub parameters: String,
    /// Contents in it.
    pub contents: u64,
    /// Bytes of its rows in the index.
    pub bytes: u64,
}

pub(super) fn status(context: Context<'_>) -> Result<StatusReport, AdminError> {
    let repo = context.repo;
    let overlay = repo.overlay();
    let Totals { files, bytes: logical_bytes, plain_bytes, not_indexed } = overlay.indexes.totals()?;
    let stats = overlay.store().stats();
    let grouping = overlay.store().grouping()?;
    let saved_by_grouping = grouping.before_bytes.saturating_sub(grouping.after_bytes);
    let (hot_files, hot_bytes) = overlay.tree.hot();
    let mut kept = Vec::new();
    for index in overlay.indexes.method_indexes().into_iter().flat_map(|kept| kept.indexes()) {
        let (name, bytes) = (index.method().name().to_owned(), index.bytes().map_err(OverlayError::from)?);
        let parameters = index.method().settings();
        kept.push(KeptStatus { name, parameters, contents: index.stats().contents, bytes });
    }
    let plain_bytes = plain_bytes + hot_bytes;
    let (history, space, index_bytes) =
        (HistoryUse::of(overlay), overlay.store().space(), repo.index_bytes());
    let index_share = match stats.unique_bytes {
        0 => 0.0,
        unique => index_bytes as f64 / unique as f64,
    };
    let ratio = if stats.stored_bytes == 0 { 1.0 } else { logical_bytes as f64 / stats.stored_bytes as f64 };
    Ok(StatusReport {
        root: shown(&repo.layout().root),
        store: shown(&repo.layout().state),
        store_id: repo.id().to_string(),
        mounted: context.mountpoint.is_some(),
        mountpoint: context.mountpoint.map(shown),
        read_only: repo.read_only(),
        policy: dedup_text(overlay.tree.dedup()),
        rules: overlay.tree.policies().rules() as u64,
        min_size: overlay.tree.policies().fallback().min_bytes,
        convert_rate: overlay.converter.convert_rate(),
        similarity: similarity_text(overlay.tree.policies().fallback().similarity).to_owned(),
        chunk_avg: repo.chunk_params().avg.into(),
        files,
        logical_bytes,
        unique_bytes: stats.unique_bytes,
        stored_bytes: stats.stored_bytes,
        saved_by_dedup: logical_bytes.saturating_sub(stats.unique_bytes),
        saved_by_compression: stats.unique_bytes.saturating_sub(stats.stored_bytes + saved_by_grouping),
        saved_by_grouping,
        disk_bytes: stats.stored_bytes + index_bytes + plain_bytes,
        plain_bytes,
        history_bytes: history.bytes + history.named_snapshots_bytes,
        named_snapshots_bytes: history.named_snapshots_bytes,
        snapshots_fill_disk: history.snapshots_fill_disk,
        history_max_bytes: history.max_bytes,
        snapshot_schedule: repo.history().rules().snapshots.to_string(),
        last_scheduled_snapshot: repo
            .history()
            .scheduled_snapshots()
            .pop()
            .map(|(_, last)| time_text(last.time)),
        next_scheduled_snapshot: repo.history().next_scheduled().map(|sec| time_text(Time { sec, nsec: 0 })),
        free_bytes: space.free,
        keep_free_bytes: overlay.store().keep_free_bytes(),
        waiting_for_space: overlay.converter.waiting_for_room() as u64,
        ratio,
        chunks: stats.chunks,
        index_bytes,
        index_share,
        not_indexed,
        views: overlay.indexes.views().map_or(0, Views::len),
        kept,
        pending: overlay.converter.pending() as u64,
        resting: overlay.converter.resting() as u64,
        kept_plain: overlay.converter.kept_plain() as u64,
        hot_files,
        hot_bytes,
        damaged: stats.damaged,
        behind: repo.behind(),
        memory: resident_bytes(),
        pid: std::process::id(),
    })
}

/// Returns the resident memory of this process; 0 if the kernel does not report it.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
