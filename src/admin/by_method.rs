use super::text::shown;
use super::{AdminError, Context, Progress, Report};
use crate::contents::OverlayError;
use crate::query::methods::{FilesAlike, MatchWithPaths, PairWithPaths, PairsWithPaths, WithPaths};
use crate::query::{FileRef, IndexedContent};
use crate::similarity::SimilarityError;
use crate::similarity::methods::Chosen;
use crate::similarity::methods::winnow::{PairOptions, Query};
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
    pub matches: Vec<MatchWithPaths>,
    /// Contents that have something in common with the file, but score less than wanted.
    pub below_min: u64,
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
    /// The groups, by the name of the first file.
    pub groups: Vec<MethodGroup>,
    /// Pairs of contents that have something in common, but score less than wanted.
    pub below_min: u64,
    /// Groups omitted because the report became too long.
    pub omitted: u64,
    /// Files that could not be read.
    pub unreadable: u64,
    /// Files that the index lacks.
    pub not_known: NotKnown,
}

/// A file and others that are like it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodGroup {
    /// Its number in the report, from 1.
    pub id: usize,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes of the members that the representative has too, estimated from the shares; 0 if the method has none.
    pub savable_bytes: u64,
    /// The file with which the others are compared.
    pub representative: String,
    /// The representative, files identical to it, then the others, the best first. The figures are of the member, as a,
    /// compared with the representative, as b.
    pub members: Vec<MatchWithPaths>,
}

impl MethodGroup {
    /// Describes a group of files, the representative first.
    pub fn of(id: usize, members: Vec<MatchWithPaths>) -> MethodGroup {
        let first = members.first();
        let first_size = first.map_or(0, |file| file.size);
        let savable = |file: &MatchWithPaths| {
            let of_own = file.likeness.containment.map(|share| share * file.size as f64);
            let of_first = file.likeness.contained_in.map(|share| share * first_size as f64);
            (of_own.or(of_first).unwrap_or(0.0) as u64).min(file.size)
        };
        MethodGroup {
            id,
            bytes: members.iter().map(|file| file.size).sum(),
            savable_bytes: members.iter().skip(1).map(savable).sum(),
            representative: first.map(|file| shown(&file.path)).unwrap_or_default(),
            members,
        }
    }
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
    /// How many there are without the limit.
    pub found: u64,
    /// Pairs that have a fingerprint in common, but a smaller share.
    pub below_min: u64,
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
    /// Its id.
    #[serde(with = "super::hex")]
    pub id: [u8; 16],
    /// Number of its keys.
    pub keys: u64,
    /// Encoded by the method.
    #[serde(with = "super::hex")]
    pub head: Vec<u8>,
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
    /// Packed ([`crate::similarity::methods::unpack_keys`]).
    #[serde(with = "super::hex")]
    pub packed: Vec<u8>,
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

/// Why a saved index gives no answer.
pub(super) enum NoAnswer {
    /// There is none with the method's parameters; the index has these, if there is one.
    NotKept(Option<String>),
    Failed(AdminError),
}

impl<E: Into<AdminError>> From<E> for NoAnswer {
    fn from(e: E) -> NoAnswer {
        NoAnswer::Failed(e.into())
    }
}

type Answer<T> = Result<T, NoAnswer>;

pub(super) fn similar(
    context: Context<'_>,
    file: &FileRef,
    method: &Chosen,
    (min, limit): (f64, usize),
    winnow: &WinnowRequest,
) -> Answer<SimilarByMethod> {
    let (overlay, parameters) = (context.repo.overlay(), parameters(context, method)?);
    let query = match *winnow == WinnowRequest::default() {
        true => None,
        false => {
            let (winnowing, base) =
                overlay.queries.winnow_base(&winnow.base)?.ok_or_else(|| not_kept(context, method))?;
            let query = Query::new(winnowing, base, winnow.window, winnow.smallest);
            let hint = "the window is that of the index or larger, and one hash is the least".to_owned();
            Some(query.map_err(|message| AdminError::refused(message, hint))?)
        }
    };
    let found = overlay.queries.method_similar(method, file, query.as_ref(), min, limit)?;
    let FilesAlike { files, below_min } = found.ok_or_else(|| not_kept(context, method))?;
    Ok(SimilarByMethod {
        query: shown(&file.path),
        method: method.name().to_owned(),
        parameters: query.map_or(parameters, |query| query.parameters()),
        matches: files,
        below_min,
        unreadable: 0,
        not_known: not_known(context, method)?,
    })
}

pub(super) fn groups(
    context: Context<'_>,
    path: &Path,
    method: &Chosen,
    min: f64,
    base_files: &[FileRef],
    report: Report<'_>,
) -> Answer<GroupsByMethod> {
    let parameters = parameters(context, method)?;
    let base =
        context.repo.overlay().queries.winnow_base(base_files)?.map(|(_, base)| base).unwrap_or_default();
    let found =
        context.repo.overlay().queries.method_groups(method, path, &base, min, &mut |pairs| {
            report(Progress::files("comparing", pairs, 0))
        });
    let found = found.map_err(|e| match e {
        OverlayError::Similarity(SimilarityError::Interrupted) => AdminError::Interrupted,
        e => e.into(),
    })?;
    let (mut groups, mut bytes, mut omitted) = (Vec::new(), 0, 0);
    let found = found.ok_or_else(|| not_kept(context, method))?;
    for group in &found.groups {
        let files = group.files();
        bytes += files.iter().map(|file| ROW_BYTES + 2 * file.path.as_os_str().len()).sum::<usize>();
        match bytes <= ANSWER_BYTES_MAX {
            true => groups.push(MethodGroup::of(groups.len() + 1, files)),
            false => omitted += 1,
        }
    }
    Ok(GroupsByMethod {
        method: method.name().to_owned(),
        parameters,
        min,
        groups,
        below_min: found.below_min,
        omitted,
        unreadable: 0,
        not_known: not_known(context, method)?,
    })
}

pub(super) fn pairs(
    context: Context<'_>,
    path: &Path,
    method: &Chosen,
    (min, limit): (f64, usize),
    base_files: &[FileRef],
) -> Answer<PairsByMethod> {
    let parameters = parameters(context, method)?;
    let (_, base) =
        context.repo.overlay().queries.winnow_base(base_files)?.ok_or_else(|| not_kept(context, method))?;
    let limit = limit.min(ANSWER_BYTES_MAX / (2 * ROW_BYTES));
    let options = PairOptions { score_min: min, limit, ..PairOptions::default() };
    let found = context.repo.overlay().queries.method_pairs(method, path, &base, &options)?;
    let PairsWithPaths { pairs, found, below_min } = found.ok_or_else(|| not_kept(context, method))?;
    Ok(PairsByMethod {
        method: method.name().to_owned(),
        parameters,
        min,
        pairs: pairs.iter().map(PairByMethod::of).collect(),
        found,
        below_min,
        unreadable: 0,
        not_known: not_known(context, method)?,
    })
}

pub(super) fn contents(
    context: Context<'_>,
    path: &Path,
    method: &Chosen,
    from: u32,
) -> Answer<MethodContents> {
    let overlay = context.repo.overlay();
    let parameters = parameters(context, method)?;
    let found = overlay.queries.method_contents(method, path, from, NAMES_AT_ONCE)?;
    let (contents, next) = found.ok_or_else(|| not_kept(context, method))?;
    let of = |content: IndexedContent| MethodContent {
        number: content.number,
        id: content.id.0,
        keys: content.keys,
        head: content.head,
        names: content.named.paths.into_iter().map(Name).collect(),
    };
    Ok(MethodContents {
        method: own(context, method).unwrap_or(method).clone(),
        parameters,
        contents: contents.into_iter().map(of).collect(),
        next,
        not_known: if next.is_none() { not_known(context, method)? } else { NotKnown::default() },
    })
}

pub(super) fn keys(context: Context<'_>, method: &Chosen, from: u64) -> Answer<MethodKeys> {
    parameters(context, method)?;
    let found = context.repo.overlay().queries.method_keys(method, from, ROWS_AT_ONCE)?;
    let (packed, next) = found.ok_or_else(|| not_kept(context, method))?;
    Ok(MethodKeys { packed, next })
}

/// Returns the parameters of the method's index, for people. Treats an index with other parameters as missing.
fn parameters(context: Context<'_>, method: &Chosen) -> Answer<String> {
    match context.repo.overlay().queries.method_description(method) {
        Ok(None) | Err(OverlayError::Similarity(SimilarityError::Parameters { .. })) => {
            Err(not_kept(context, method))
        }
        Ok(Some(parameters)) => Ok(parameters),
        Err(e) => Err(e.into()),
    }
}

fn not_kept(context: Context<'_>, method: &Chosen) -> NoAnswer {
    NoAnswer::NotKept(own(context, method).map(|own| own.any().settings()))
}

/// Returns the method of the existing index, with its parameters.
fn own<'a>(context: Context<'a>, method: &Chosen) -> Option<&'a Chosen> {
    context.repo.overlay().indexes.method_indexes()?.chosen(method.name())
}

fn not_known(context: Context<'_>, method: &Chosen) -> Result<NotKnown, AdminError> {
    let files = context.repo.overlay().not_kept(method)?.unwrap_or_default();
    Ok(NotKnown { files, behind: context.repo.behind() })
}
