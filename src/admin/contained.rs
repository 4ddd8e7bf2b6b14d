use super::text::shown;
use super::{AdminError, Progress, Report};
use crate::query::{ContainedFile, FileRef, Place, share};
use crate::repo::Repo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Limit of files in a report; [`ContainedReport::omitted`] counts the rest.
const FILES_MAX: usize = 200_000;

/// Containment of a tree in a holder. Shares are 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainedReport {
    /// Bytes of the tree's files.
    pub bytes: u64,
    /// Bytes of them that the holder has.
    pub contained_bytes: u64,
    /// Share of the bytes that the holder has; 1 without bytes.
    pub share: f64,
    /// Files with an identical file in the holder.
    pub identical: u64,
    /// Files of the holder.
    pub holder_files: u64,
    /// Files that could not be read; the log names them.
    pub errors: u64,
    /// Bytes that were compared.
    pub compared_bytes: u64,
    /// Files that were not compared with all candidates, for lack of budget: more of them may be contained.
    pub unfinished: u64,
    /// The tree and every directory below it, by path; the tree itself is `.`.
    pub directories: Vec<ContainedDirectory>,
    /// Files by path.
    pub files: Vec<ContainedFile>,
    /// Files omitted from `files`, because there are too many.
    pub omitted: u64,
}

/// Containment of the files at any depth below a directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainedDirectory {
    /// Path below the tree.
    pub path: String,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of them that the holder has.
    pub contained_bytes: u64,
    /// Share of the bytes that the holder has; 1 without bytes.
    pub share: f64,
}

pub(super) fn contained(
    repo: &Repo,
    tree: FileRef,
    holder: Option<FileRef>,
    budget_bytes: u64,
    report: Report<'_>,
) -> Result<ContainedReport, AdminError> {
    let place = |of: FileRef| if of.outside { Place::Outside(of.path) } else { Place::Inside(of.path) };
    let (tree, holder) = (place(tree), holder.map(place));
    let mut waited_for = true;
    let found = repo.overlay().queries.contained(&tree, holder.as_ref(), budget_bytes, &mut |files| {
        waited_for = report(Progress::files("comparing", files, 0));
        waited_for
    })?;
    if !waited_for {
        return Err(AdminError::Interrupted);
    }
    let mut directories: BTreeMap<PathBuf, ContainedDirectory> = BTreeMap::new();
    directories.insert(PathBuf::new(), ContainedDirectory::default());
    for file in &found.files {
        for directory in file.path.ancestors().skip(1) {
            let of = directories.entry(directory.to_owned()).or_default();
            of.files += 1;
            of.bytes += file.size;
            of.contained_bytes += file.contained_bytes;
        }
    }
    let whole = directories.get(Path::new("")).cloned().unwrap_or_default();
    let directories = directories.into_iter().map(|(path, of)| ContainedDirectory {
        path: if path.as_os_str().is_empty() { ".".to_owned() } else { shown(&path) },
        share: share(of.contained_bytes, of.bytes),
        ..of
    });
    let count = |is: fn(&ContainedFile) -> bool| found.files.iter().filter(|file| is(file)).count() as u64;
    Ok(ContainedReport {
        bytes: whole.bytes,
        contained_bytes: whole.contained_bytes,
        share: share(whole.contained_bytes, whole.bytes),
        identical: count(|file| file.identical),
        holder_files: found.holder_files,
        errors: found.errors,
        compared_bytes: found.compared_bytes,
        unfinished: count(|file| file.unfinished),
        directories: directories.collect(),
        omitted: found.files.len().saturating_sub(FILES_MAX) as u64,
        files: found.files.into_iter().take(FILES_MAX).collect(),
    })
}
