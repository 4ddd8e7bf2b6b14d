use super::text::shown;
use super::{AdminError, Context, Progress, Report, Response, Unit};
use crate::contents::OverlayError;
use crate::query::methods::{LikeGroup, MatchWithPaths, PairWithPaths, WithPaths};
use crate::query::{FileAt, IndexedContent};
use crate::similarity::SimilarityError;
use crate::similarity::methods::winnow::{Base, PairOptions, Query, Winnow};
use crate::similarity::methods::{Chosen, Likeness};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Groups are reported until their files take this many bytes.
const ANSWER_BYTES_MAX: usize = 100 << 20;
/// Bytes of a file in the report besides its path, which may need escaping.
const ROW_BYTES: usize = 300;
/// Limit of names, and of key rows, in one answer: a few MB.
const NAMES_AT_ONCE: usize = 1 << 14;
const ROWS_AT_ONCE: usize = 1 << 18;

/// Files that resemble one file by a published method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimilarByMethod {
    /// The file in question.
    pub query: String,
    /// The method.
    pub method: String,
    /// Its parameters.
    pub parameters: String,
    /// Identical files first, then the best.
    pub matches: Vec<FileByMethod>,
    /// Files that could not be read.
    pub unreadable: u64,
    /// Files that the index lacks.
    pub not_known: NotKnown,
}

/// Groups of similar files by a published method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupsByMethod {
    /// The method.
    pub method: String,
    /// Its parameters.
    pub parameters: String,
    /// Smallest score.
    pub min: f64,
    /// In each group the first is compared with the others. Files identical to the first follow it.
    pub groups: Vec<Vec<FileByMethod>>,
    /// Groups omitted because the report became too long.
    pub omitted: u64,
    /// Files that could not be read.
    pub unreadable: u64,
    /// Files that the index lacks.
    pub not_known: NotKnown,
}

/// A file, and its comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileByMethod {
    /// Path below the root of the overlay or of the directory.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// Whether it is identical to the byte.
    pub identical: bool,
    /// Comparison of the file in question (a) with it (b).
    pub likeness: Likeness,
}

/// Files that a saved index lacks; nothing if files were read instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotKnown {
    /// Files that it does not know yet.
    pub files: u64,
    /// Whether more may be missing until the tree is scanned.
    pub behind: bool,
}

/// Pairs of files by the number of common fingerprints, as winnowing ranks them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairsByMethod {
    /// The method.
    pub method: String,
    /// Its parameters.
    pub parameters: String,
    /// Smallest share of either file that is in the other.
    pub min: f64,
    /// Those with the most in common first.
    pub pairs: Vec<PairByMethod>,
    /// Files that could not be read.
    pub unreadable: u64,
    /// Files that the index lacks.
    pub not_known: NotKnown,
}

/// Two files, and their common fingerprints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairByMethod {
    /// Fingerprints in both.
    pub common: u32,
    /// Share of the first one's that is in the second.
    pub containment: f64,
    /// Share of the second one's that is in the first.
    pub contained_in: f64,
    /// The first, under its first name.
    pub a: String,
    /// The second.
    pub b: String,
    /// Further files with these two contents.
    pub copies: u64,
}

/// A file that a request names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRef {
    /// Below the root, or with `outside` an absolute path.
    #[serde(with = "super::text")]
    pub path: PathBuf,
    /// Whether it is outside the overlay.
    pub outside: bool,
}

/// Options of winnowing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WinnowRequest {
    /// Fingerprints of these files do not count.
    pub base: Vec<FileRef>,
    /// Look up the fingerprints of a window of this many hashes.
    pub window: Option<u32>,
    /// Look up this many of the smallest hashes.
    pub smallest: Option<usize>,
}

/// Some of the contents in a saved index, for a report on all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodContents {
    /// The method of the index.
    pub method: Chosen,
    /// Its parameters, for people.
    pub parameters: String,
    /// By number.
    pub contents: Vec<MethodContent>,
    /// The number to continue from.
    pub next: Option<u32>,
    /// Files that the index lacks.
    pub not_known: NotKnown,
}

/// A content in a saved index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodContent {
    /// Its number in the index.
    pub number: u32,
    /// Its id, in hexadecimal digits.
    pub id: String,
    /// Number of its keys.
    pub keys: u64,
    /// Encoded by the method, in hexadecimal digits.
    pub head: String,
    /// Its names, below the root.
    pub names: Vec<Name>,
}

/// A path with any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(#[serde(with = "super::text")] pub PathBuf);

/// Some of the keys of a saved index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodKeys {
    /// Packed, in hexadecimal digits.
    pub packed: String,
    /// The key to continue from.
    pub next: Option<u64>,
}

impl PairByMethod {
    /// Describes a pair.
    pub fn of(found: &PairWithPaths) -> PairByMethod {
        let PairWithPaths { a, b, common, a_in_b, b_in_a } = found;
        let name = |named: &WithPaths| named.paths.first().map(|path| shown(path)).unwrap_or_default();
        PairByMethod {
            common: *common,
            containment: *a_in_b,
            contained_in: *b_in_a,
            a: name(a),
            b: name(b),
            copies: (a.paths.len() + b.paths.len()).saturating_sub(2) as u64,
        }
    }
}

impl FileByMethod {
    /// Describes a match.
    pub fn of_match(found: &MatchWithPaths) -> FileByMethod {
        let &MatchWithPaths { ref path, size, identical, likeness } = found;
        FileByMethod { path: shown(path), size, identical, likeness }
    }

    /// Lists the reference under all its names, then the members under theirs.
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
    file: &FileRef,
    method: &Chosen,
    (min, limit): (f64, usize),
    winnow: &WinnowRequest,
) -> Result<Response, AdminError> {
    let overlay = context.repo.overlay();
    let Some(parameters) = kept(overlay.queries.method_description(method))? else {
        return not_kept(context, method);
    };
    let query = match *winnow == WinnowRequest::default() {
        true => None,
        false => {
            let Some((winnowing, base)) = base(context, &winnow.base)? else {
                return not_kept(context, method);
            };
            let query = Query::new(winnowing, base, winnow.window, winnow.smallest);
            let hint = "the window is that of the index or larger, and one hash is the least".to_owned();
            Some(query.map_err(|message| AdminError::refused(message, hint))?)
        }
    };
    let Some(found) = overlay.queries.method_similar(method, file.at(), query.as_ref(), min, limit)? else {
        return not_kept(context, method);
    };
    Ok(Response::SimilarByMethod(SimilarByMethod {
        query: shown(&file.path),
        method: method.name().to_owned(),
        parameters: query.map_or(parameters, |query| query.parameters()),
        matches: found.iter().map(FileByMethod::of_match).collect(),
        unreadable: 0,
        not_known: not_known(context, method)?,
    }))
}

pub(super) fn groups(
    context: Context<'_>,
    path: &Path,
    method: &Chosen,
    min: f64,
    base_files: &[FileRef],
    report: Report<'_>,
) -> Result<Response, AdminError> {
    let Some(parameters) = kept(context.repo.overlay().queries.method_description(method))? else {
        return not_kept(context, method);
    };
    let base = base(context, base_files)?.map(|(_, base)| base).unwrap_or_default();
    let found = context.repo.overlay().queries.method_groups(method, path, &base, min, &mut |pairs| {
        report(Progress { what: "comparing".to_owned(), done: pairs, total: 0, unit: Unit::Files })
    });
    let found = found.map_err(|e| match e {
        OverlayError::Similarity(SimilarityError::Interrupted) => AdminError::Interrupted,
        e => e.into(),
    })?;
    let Some(found) = found else { return not_kept(context, method) };
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
        method: method.name().to_owned(),
        parameters,
        min,
        groups,
        omitted,
        unreadable: 0,
        not_known: not_known(context, method)?,
    }))
}

pub(super) fn pairs(
    context: Context<'_>,
    path: &Path,
    method: &Chosen,
    (min, limit): (f64, usize),
    base_files: &[FileRef],
) -> Result<Response, AdminError> {
    let Some(parameters) = kept(context.repo.overlay().queries.method_description(method))? else {
        return not_kept(context, method);
    };
    let Some((_, base)) = base(context, base_files)? else { return not_kept(context, method) };
    let limit = limit.min(ANSWER_BYTES_MAX / (2 * ROW_BYTES));
    let options = PairOptions { score_min: min, limit, ..PairOptions::default() };
    let Some(found) = context.repo.overlay().queries.method_pairs(method, path, &base, &options)? else {
        return not_kept(context, method);
    };
    Ok(Response::PairsByMethod(PairsByMethod {
        method: method.name().to_owned(),
        parameters,
        min,
        pairs: found.iter().map(PairByMethod::of).collect(),
        unreadable: 0,
        not_known: not_known(context, method)?,
    }))
}

pub(super) fn contents(
    context: Context<'_>,
    path: &Path,
    method: &Chosen,
    from: u32,
) -> Result<Response, AdminError> {
    let overlay = context.repo.overlay();
    let found = kept(overlay.queries.method_contents(method, path, from, NAMES_AT_ONCE))?;
    let (Some((contents, next)), Some(parameters)) =
        (found, kept(overlay.queries.method_description(method))?)
    else {
        return not_kept(context, method);
    };
    let chosen = overlay.indexes.method_indexes().and_then(|kept| kept.chosen(method.name()));
    let of = |content: IndexedContent| MethodContent {
        number: content.number,
        id: to_hex(&content.id.0),
        keys: content.keys,
        head: to_hex(&content.head),
        names: content.named.paths.into_iter().map(Name).collect(),
    };
    Ok(Response::MethodContents(MethodContents {
        method: chosen.unwrap_or(method).clone(),
        parameters,
        contents: contents.into_iter().map(of).collect(),
        next,
        not_known: if next.is_none() { not_known(context, method)? } else { NotKnown::default() },
    }))
}

pub(super) fn keys(context: Context<'_>, method: &Chosen, from: u64) -> Result<Response, AdminError> {
    let found = kept(context.repo.overlay().queries.method_keys(method, from, ROWS_AT_ONCE))?;
    let Some((packed, next)) = found else { return not_kept(context, method) };
    Ok(Response::MethodKeys(MethodKeys { packed: to_hex(&packed), next }))
}

impl FileRef {
    fn at(&self) -> FileAt<'_> {
        FileAt { path: &self.path, outside: self.outside }
    }
}

/// Treats an index with other parameters as missing.
fn kept<T>(asked: Result<Option<T>, OverlayError>) -> Result<Option<T>, AdminError> {
    match asked {
        Err(OverlayError::Similarity(SimilarityError::Parameters { .. })) => Ok(None),
        other => Ok(other?),
    }
}

/// Returns the answer for a missing index, with the parameters of an existing one.
fn not_kept(context: Context<'_>, method: &Chosen) -> Result<Response, AdminError> {
    let overlay = context.repo.overlay();
    let own = overlay.indexes.method_indexes().and_then(|kept| kept.chosen(method.name()));
    Ok(Response::NotKept(own.map(|own| own.any().settings())))
}

fn base(context: Context<'_>, files: &[FileRef]) -> Result<Option<(Winnow, Base)>, AdminError> {
    let files: Vec<FileAt<'_>> = files.iter().map(FileRef::at).collect();
    Ok(context.repo.overlay().queries.winnow_base(&files)?)
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Decodes the hexadecimal digits of [`MethodContent`] and [`MethodKeys`]; `None` if they are invalid.
pub fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

fn not_known(context: Context<'_>, method: &Chosen) -> Result<NotKnown, AdminError> {
    let not = context.repo.overlay().not_kept(method)?.unwrap_or_default();
    Ok(NotKnown { files: not.files, behind: context.repo.behind() })
}
