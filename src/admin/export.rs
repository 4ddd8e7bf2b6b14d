//! Export: makes files plain again in place, then prepares the removal of the store.
//!
//! Order: check the space -> write a rule to `config.toml` that keeps them plain, durably -> the files, batch
//! by batch -> read them back if requested -> with `remove_store` remove the records, and set the mark of
//! [`crate::repo::finish_removal`], which the caller calls after closing the store.

use super::text::{self, shown};
use super::{AdminError, Context, Progress, Report};
use crate::contents::OverlayError;
use crate::history::Former;
use crate::maintain::{ExportNeeds, ExportOptions, Exported};
use crate::repo::Repo;
use crate::tree::Rule;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Limit of files named in a report; [`ExportReport::omitted`] counts the rest.
const ROWS_MAX: usize = 100_000;
/// In a mount in use, a writer to a file of a batch waits for the whole batch.
const IN_USE: ExportOptions = ExportOptions { batch_files: 256, batch_bytes: 32 << 20 };
const ALONE: ExportOptions = ExportOptions { batch_files: 4096, batch_bytes: 256 << 20 };
/// Limit of rounds: files that move during the walk are met in another round.
const ROUNDS_MAX: usize = 8;
/// Space for the filesystem itself: a share of the written bytes.
const SPARE_SHARE: u64 = 200;
const SPARE_BYTES: u64 = 4 << 20;

/// Scope and options of an export.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportRequest {
    /// File or directory.
    #[serde(with = "text")]
    pub path: PathBuf,
    /// Whether to read everything back afterwards.
    pub verify: bool,
    /// Whether to begin although space seems to lack, and to remove a store that has versions and snapshots.
    pub force: bool,
    /// Whether to prepare the removal of the store.
    pub remove_store: bool,
}

/// Result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReport {
    /// Files that were made plain.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Files whose content was verified by hash: before they counted as plain, or from the disk afterwards if
    /// everything was read back, including those of earlier exports.
    pub verified: u64,
    /// Whether everything was read back.
    pub read_back: bool,
    /// Names of files that were plain already.
    pub plain: u64,
    /// Files that could not be exported.
    pub failed: Vec<NotExported>,
    /// Files omitted from `failed`, because there are too many.
    pub omitted: u64,
    /// Approximate space needed, in bytes.
    pub needed_bytes: u64,
    /// Bytes that were free.
    pub free_bytes: u64,
    /// The pattern of the rule in `config.toml` that keeps the files plain.
    pub rule: String,
    /// Whether everything of dedupfs was removed.
    pub removed: bool,
    /// A store elsewhere that stays, because it belongs to another directory.
    pub store_left: Option<String>,
}

/// A file that stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotExported {
    /// Its path.
    pub path: String,
    /// The reason.
    pub reason: String,
}

#[derive(Default)]
struct Failures {
    rows: Vec<NotExported>,
    omitted: u64,
}

impl Failures {
    fn add(&mut self, repo: &Repo, path: &Path, error: &OverlayError) {
        match self.rows.len() < ROWS_MAX {
            true => self.rows.push(NotExported { path: shown(path), reason: repo.readable(error) }),
            false => self.omitted += 1,
        }
    }
}

pub(super) fn export(
    context: Context<'_>,
    request: &ExportRequest,
    report: Report<'_>,
) -> Result<ExportReport, AdminError> {
    let (repo, overlay, path) = (context.repo, context.repo.overlay(), &*request.path);
    if repo.read_only() {
        return Err(OverlayError::ReadOnly.into());
    }
    if request.remove_store {
        check_removable(context, path)?;
        if !request.force {
            check_history(repo, report)?;
        }
    }
    report(Progress::files("looking for room", 0, 0));
    let needs = overlay.maintenance.export_needs(path)?;
    if !request.force {
        check_room(repo, path, &needs)?;
    }
    let rule = rule_for(repo, path)?;
    let pattern = rule.globs.first().cloned().unwrap_or_default();
    repo.stay_plain(rule)?;
    let options = if context.mountpoint.is_some() { IN_USE } else { ALONE };
    let (mut all, mut failures) = (Exported::default(), Failures::default());
    for round in 0..ROUNDS_MAX {
        failures = Failures::default();
        let before = all.bytes;
        let done = overlay.maintenance.export(
            path,
            options,
            &mut |bytes| report(Progress::bytes("exporting", before + bytes, needs.bytes)),
            &mut |path, error| failures.add(repo, &path, &error),
        );
        let done = done.map_err(interrupted)?;
        if round == 0 {
            all.plain = done.plain;
        }
        all.files += done.files;
        all.bytes += done.bytes;
        if context.mountpoint.is_none() || done.files == 0 {
            break;
        }
    }
    let mut verified = all.files;
    if request.verify {
        let bytes_all = all.bytes;
        let same = overlay.maintenance.read_back(
            path,
            &mut |bytes| report(Progress::bytes("reading back", bytes, bytes_all.max(bytes))),
            &mut |path, error| failures.add(repo, &path, &error),
        );
        verified = same.map_err(interrupted)?.0;
    }
    let (mut removed, mut store_left) = (false, None);
    if request.remove_store && failures.rows.is_empty() {
        let gone = overlay.maintenance.remove_records(
            &mut |files| report(Progress::files("taking records off", files, all.files + all.plain)),
            &mut |path, error| failures.add(repo, &path, &error),
        );
        gone.map_err(interrupted)?;
        if failures.rows.is_empty() {
            store_left = repo.begin_removal()?.map(|store| shown(&store));
            removed = true;
        }
    }
    Ok(ExportReport {
        files: all.files,
        bytes: all.bytes,
        verified,
        read_back: request.verify,
        plain: all.plain,
        failed: failures.rows,
        omitted: failures.omitted,
        needed_bytes: needs.room_bytes,
        free_bytes: needs.free_bytes,
        rule: pattern,
        removed,
        store_left,
    })
}

fn interrupted(error: OverlayError) -> AdminError {
    match error {
        OverlayError::Os(Errno::CANCELED) => AdminError::Interrupted,
        other => other.into(),
    }
}

fn rule_for(repo: &Repo, path: &Path) -> Result<Rule, AdminError> {
    Ok(Rule::plain_below(path, repo.overlay().maintenance.is_directory(path)?))
}

fn check_room(repo: &Repo, path: &Path, needs: &ExportNeeds) -> Result<(), AdminError> {
    let spare = if needs.files == 0 { 0 } else { (needs.room_bytes / SPARE_SHARE).max(SPARE_BYTES) };
    if needs.room_bytes + spare <= needs.free_bytes {
        return Ok(());
    }
    let (root, files) = (&repo.layout().root, needs.files);
    let message = format!(
        "{}: {files} files need about {} bytes as plain ones, and {} are free; nothing was changed",
        root.join(path).display(),
        needs.room_bytes + spare,
        needs.free_bytes
    );
    let hint = "make room; or export to another disk with --to DIR; or a part with `dedupctl export PATH`, after which \
                `dedupctl gc` gives back what it had in the store; or begin nevertheless with --force";
    Err(AdminError::refused(message, hint.to_owned()))
}

/// Checks that the store may be removed at all.
fn check_removable(context: Context<'_>, path: &Path) -> Result<(), AdminError> {
    let root = &context.repo.layout().root;
    if let Some(mountpoint) = context.mountpoint {
        let message = format!("{}: mounted at {}, so its store stays", root.display(), mountpoint.display());
        let hint = format!("`dedupctl unmount {}` first", mountpoint.display());
        return Err(AdminError::refused(message, hint));
    }
    if !path.as_os_str().is_empty() {
        let message = format!("{}: the store is that of {}", root.join(path).display(), root.display());
        let hint = format!("`dedupctl export --remove-store {}`", root.display());
        return Err(AdminError::refused(message, hint));
    }
    if let Some(mounted) = mounts_below(root).into_iter().next() {
        let message =
            format!("{}: something is mounted there and hides the files below it", mounted.display());
        return Err(AdminError::refused(message, "unmount it, then run this again".to_owned()));
    }
    Ok(())
}

/// Checks that no former contents of files would be lost with the store.
fn check_history(repo: &Repo, report: Report<'_>) -> Result<(), AdminError> {
    let former = repo.history().former(&mut || report(Progress::files("looking at versions", 0, 0)))?;
    let Some(Former { versions, first, snapshots }) = former else { return Err(AdminError::Interrupted) };
    if versions + snapshots == 0 {
        return Ok(());
    }
    let root = &repo.layout().root;
    let first = first.map(|path| format!(", of {} for example", shown(&path))).unwrap_or_default();
    let message = format!(
        "{}: {versions} former versions of files and {snapshots} snapshots would be gone with the store{first}",
        root.display()
    );
    let hint = "get what you need of them first (`dedupctl restore FILE@N -o PATH`, `dedupctl snapshot restore ID -o PATH`); \
                then again with --force, which gives them up; nothing was changed";
    Err(AdminError::refused(message, hint.to_owned()))
}

/// Returns the mount points below a directory.
fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let points = table.split(|&byte| byte == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(4));
    let points = points.map(|point| PathBuf::from(std::ffi::OsString::from_vec(unescape(point))));
    points.filter(|point| point != root && point.starts_with(root)).collect()
}

/// Undoes the octal escapes of the kernel's tables.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|d| first == b'\\' && d.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits {
            Some(digits) => {
                out.push(digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8) + (digit - b'0')));
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_escapes_are_undone() {
        assert_eq!(unescape(br"/a\040b\134c\011"), b"/a b\\c\t");
        assert_eq!(unescape(br"/a\04"), br"/a\04");
    }
}
