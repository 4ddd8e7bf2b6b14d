use super::text::shown;
use super::{AdminError, Context, Progress, Report, Response, Unit};
use crate::overlay::OverlayError;
use crate::overlay::methods::{LikeGroup, NamedMatch};
use crate::similarity::SimilarityError;
use crate::similarity::methods::{self, Likeness};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Groups are told until their files take so many bytes.
const ANSWER_BYTES_MAX: usize = 100 << 20;
/// What a file takes beside its path, which may have to be escaped.
const ROW_BYTES: usize = 300;

/// Files that resemble one by a published method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimilarByMethod {
    /// The file asked about.
    pub query: String,
    /// Which method.
    pub method: String,
    /// What it was run with.
    pub parameters: String,
    /// The same first, then the best.
    pub matches: Vec<FileByMethod>,
    /// Files that could not be read.
    pub unreadable: u64,
    /// What the index has not.
    pub not_known: NotKnown,
}

/// Groups of files that resemble each other by a published method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupsByMethod {
    /// Which method.
    pub method: String,
    /// What it was run with.
    pub parameters: String,
    /// Smallest score.
    pub min: f64,
    /// In each the first is compared with the others. Those that are the same as the first follow it.
    pub groups: Vec<Vec<FileByMethod>>,
    /// Groups left out because the report had become too long.
    pub omitted: u64,
    /// Files that could not be read.
    pub unreadable: u64,
    /// What the index has not.
    pub not_known: NotKnown,
}

/// A file, and how it compares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileByMethod {
    /// Where it is, below the root of the overlay or of the directory.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// Whether it is the same to the byte.
    pub identical: bool,
    /// How the file asked about, as a, compares with it, as b.
    pub likeness: Likeness,
}

/// What an index that is kept has not; nothing where files were read instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotKnown {
    /// Files that it does not know yet.
    pub files: u64,
    /// Files that are too long for it.
    pub long_files: u64,
    /// Longer files are; in bytes.
    pub bytes_max: u64,
    /// Whether more may be missing, which the tree has to be scanned for.
    pub behind: bool,
}

impl FileByMethod {
    /// A file that was found.
    pub fn of_match(found: &NamedMatch) -> FileByMethod {
        let &NamedMatch { ref path, size, identical, likeness } = found;
        FileByMethod { path: shown(path), size, identical, likeness }
    }

    /// The reference under all its names, then the members under theirs.
    pub fn of_group(group: &LikeGroup) -> Vec<FileByMethod> {
        let whole = Likeness { containment: Some(1.0), contained_in: Some(1.0), ..Likeness::default() };
        let of = |path: &Path, size, identical, likeness| FileByMethod {
            path: shown(path),
            size,
            identical,
            likeness,
        };
        let LikeGroup { reference, members } = group;
        let same = reference.paths.iter().map(|path| of(path, reference.size, true, whole));
        let alike = members.iter().flat_map(|(likeness, named)| {
            named.paths.iter().map(move |path| of(path, named.size, false, *likeness))
        });
        same.chain(alike).collect()
    }
}

pub(super) fn similar(
    context: Context<'_>,
    path: &Path,
    outside: bool,
    method: &str,
    min: f64,
    limit: usize,
) -> Result<Response, AdminError> {
    let overlay = context.repo.overlay();
    let Some(found) = overlay.kept_similar(method, path, outside, min, limit)? else {
        return Ok(Response::NotKept);
    };
    Ok(Response::SimilarByMethod(SimilarByMethod {
        query: shown(path),
        method: method.to_owned(),
        parameters: parameters(method),
        matches: found.iter().map(FileByMethod::of_match).collect(),
        unreadable: 0,
        not_known: not_known(context, method)?,
    }))
}

pub(super) fn groups(
    context: Context<'_>,
    path: &Path,
    method: &str,
    min: f64,
    report: Report<'_>,
) -> Result<Response, AdminError> {
    let found = context.repo.overlay().kept_groups(method, path, min, &mut |pairs| {
        report(Progress { what: "comparing".to_owned(), done: pairs, total: 0, unit: Unit::Files })
    });
    let found = found.map_err(|e| match e {
        OverlayError::Similarity(SimilarityError::Interrupted) => AdminError::Interrupted,
        e => e.into(),
    })?;
    let Some(found) = found else { return Ok(Response::NotKept) };
    let (mut groups, mut bytes, mut omitted) = (Vec::new(), 0, 0);
    for group in &found {
        let files = FileByMethod::of_group(group);
        bytes += files.iter().map(|file| ROW_BYTES + 2 * file.path.len()).sum::<usize>();
        match bytes <= ANSWER_BYTES_MAX {
            true => groups.push(files),
            false => omitted += 1,
        }
    }
    Ok(Response::GroupsByMethod(GroupsByMethod {
        method: method.to_owned(),
        parameters: parameters(method),
        min,
        groups,
        omitted,
        unreadable: 0,
        not_known: not_known(context, method)?,
    }))
}

fn not_known(context: Context<'_>, method: &str) -> Result<NotKnown, AdminError> {
    let overlay = context.repo.overlay();
    let not = overlay.not_kept(method)?.unwrap_or_default();
    let bytes_max = overlay.kept().map_or(0, |kept| kept.content_bytes_max());
    let behind = context.repo.behind();
    Ok(NotKnown { files: not.files, long_files: not.long_files, bytes_max, behind })
}

fn parameters(method: &str) -> String {
    methods::named(method).map_or_else(String::new, |method| method.settings())
}
