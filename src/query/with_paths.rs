//! Answers of a published method with names instead of content ids, for temporary and for saved indexes.
//! Indexes have no names, so the present name of a file counts.

use super::text;
use crate::contents::error::Result;
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use crate::similarity::methods::winnow::{self, Base, PairOptions, WinnowPair};
use crate::similarity::methods::{AnySketch, Found, Index, Likeness, PairsAsked};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A content with its names and its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WithPaths {
    /// Sorted; below the root of the tree or of the overlay. A method that looks at names uses the first.
    pub paths: Vec<PathBuf>,
    /// Its length in bytes.
    pub size: u64,
}

impl WithPaths {
    fn name(&self) -> Option<&OsStr> {
        self.paths.first().and_then(|path| path.file_name())
    }
}

/// A file found, and its likeness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatchWithPaths {
    /// Below the root of the tree or of the overlay.
    #[serde(serialize_with = "text::lossy")]
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// Whether it is identical.
    pub identical: bool,
    /// How the queried file, as a, compares with it, as b.
    pub likeness: Likeness,
}

/// A file and those that are like it.
#[derive(Clone, Debug, PartialEq)]
pub struct LikeGroup {
    /// The file with which the others are compared.
    pub reference: WithPaths,
    /// The others, the best first: how the reference, as a, compares with each.
    pub members: Vec<(Likeness, WithPaths)>,
}

impl LikeGroup {
    /// Lists the reference under all its names, then the members under theirs.
    pub fn files(&self) -> Vec<MatchWithPaths> {
        let whole = Likeness { containment: Some(1.0), contained_in: Some(1.0), ..Likeness::default() };
        let of = |path: &PathBuf, size, identical, likeness| MatchWithPaths {
            path: path.clone(),
            size,
            identical,
            likeness,
        };
        let LikeGroup { reference, members } = self;
        let same = reference.paths.iter().map(|path| of(path, reference.size, true, whole));
        let alike = members.iter().flat_map(|(likeness, named)| {
            named.paths.iter().map(move |path| of(path, named.size, false, *likeness))
        });
        same.chain(alike).collect()
    }
}

/// Two files, and what they have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct PairWithPaths {
    /// The one whose path is first in order.
    pub a: WithPaths,
    /// The other.
    pub b: WithPaths,
    /// Fingerprints in both.
    pub common: u32,
    /// Share of the first one's fingerprints.
    pub a_in_b: f64,
    /// Share of the second one's fingerprints.
    pub b_in_a: f64,
}

/// A queried file.
pub(crate) struct Asked<'a> {
    pub(crate) name: Option<&'a OsStr>,
    pub(crate) id: RecipeId,
    /// Made without a name.
    pub(crate) sketch: AnySketch,
}

/// Returns files like the queried one whose likeness scores at least `score_min`: identical ones first, then the best,
/// then by path. `found` are the contents that the index finds like it, best first. Leaves out contents without a name in
/// `names`. Returns more than `limit` only if they score as well as the last.
pub(crate) fn matches(
    index: &Index,
    asked: Asked<'_>,
    likely: Vec<Found>,
    names: &mut dyn FnMut(&RecipeId) -> Result<Option<WithPaths>>,
    score_min: f64,
    limit: usize,
) -> Result<Vec<MatchWithPaths>> {
    let Asked { name, id, sketch } = asked;
    let own = match name.filter(|_| index.method().by_name()) {
        Some(name) => sketch.called(name)?,
        None => sketch,
    };
    let comparer = index.method().comparer(own.head(), own.keys()).map_err(SimilarityError::from)?;
    let mut found: Vec<MatchWithPaths> = Vec::new();
    let mut add = |named: WithPaths, identical, likeness| {
        let WithPaths { paths, size } = named;
        found.extend(paths.into_iter().map(|path| MatchWithPaths { path, size, identical, likeness }));
        (found.len(), likeness.score())
    };
    let mut given = (0, f64::INFINITY);
    if let Some(named) = names(&id)? {
        given.0 = add(named, true, own.with_itself()?).0;
    }
    for other in likely {
        if given.0 > limit && other.likeness.score() < given.1 {
            break;
        }
        if other.id == id {
            continue;
        }
        let Some(named) = names(&other.id)? else { continue };
        let mut likeness = other.likeness;
        if index.method().by_name() {
            let Some((head, keys)) = called(index, &other.id, named.name())? else { continue };
            likeness = comparer.with(&head, keys, &other.sums).map_err(SimilarityError::from)?;
        }
        if reaches(&likeness, score_min) {
            given = add(named, false, likeness);
        }
    }
    let score = |found: &MatchWithPaths| found.likeness.score();
    found.sort_by(|a, b| {
        let same = b.identical.cmp(&a.identical);
        same.then(score(b).total_cmp(&score(a))).then_with(|| a.path.cmp(&b.path))
    });
    Ok(found)
}

/// Returns files of `named` with those that are like them, by name of the first; each set of files once. Contents with several
/// names are groups too. `progress` gets the number of pairs found; false asks to stop.
pub(crate) fn groups(
    index: &Index,
    named: &BTreeMap<RecipeId, WithPaths>,
    asked: &PairsAsked,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<LikeGroup>> {
    let mut like: BTreeMap<RecipeId, Vec<(Likeness, RecipeId)>> = BTreeMap::new();
    let mut count = 0;
    let score_min = asked.score_min;
    index.pairs(asked, &mut |pair| {
        let (Some(a), Some(b)) = (named.get(&pair.a), named.get(&pair.b)) else { return Ok(true) };
        let mut likeness = pair.likeness;
        if index.method().by_name() {
            let (Some(of_a), Some(of_b)) =
                (called(index, &pair.a, a.name())?, called(index, &pair.b, b.name())?)
            else {
                return Ok(true);
            };
            likeness = index.method().comparer(&of_a.0, of_a.1)?.with(&of_b.0, of_b.1, &pair.sums)?;
        }
        if reaches(&likeness, score_min) {
            like.entry(pair.a).or_default().push((likeness, pair.b));
            like.entry(pair.b).or_default().push((likeness.swapped(), pair.a));
            count += 1;
        }
        if progress(count) { Ok(true) } else { Err(SimilarityError::Interrupted) }
    })?;
    let mut by_name: Vec<(&RecipeId, &WithPaths)> = named.iter().collect();
    by_name.sort_by(|a, b| a.1.paths.cmp(&b.1.paths));
    let (mut groups, mut given) = (Vec::new(), HashSet::new());
    for (id, reference) in by_name {
        let of = |(likeness, id): (Likeness, RecipeId)| Some((likeness, id, named.get(&id)?));
        let mut members: Vec<_> = like.remove(id).unwrap_or_default().into_iter().filter_map(of).collect();
        // As many as there are are like the other; those are listed where enough of this one is in them.
        members.retain(|(likeness, ..)| of_reference(likeness) >= score_min);
        members.sort_by(|a, b| {
            of_reference(&b.0).total_cmp(&of_reference(&a.0)).then_with(|| a.2.paths.cmp(&b.2.paths))
        });
        if members.is_empty() && reference.paths.len() < 2 {
            continue;
        }
        let mut set: Vec<RecipeId> = members.iter().map(|(_, member, _)| *member).chain([*id]).collect();
        set.sort_unstable();
        if given.insert(set) {
            let members = members.into_iter().map(|(likeness, _, named)| (likeness, named.clone())).collect();
            groups.push(LikeGroup { reference: reference.clone(), members });
        }
    }
    Ok(groups)
}

/// Returns pairs of files of `named` by the number of fingerprints in common, ties by their paths: the order in which files
/// came into the index does not show.
pub(crate) fn pairs(
    index: &Index,
    named: &BTreeMap<RecipeId, WithPaths>,
    base: &Base,
    options: &PairOptions,
) -> Result<Vec<PairWithPaths>> {
    let known = &mut |a: &RecipeId, b: &RecipeId| named.contains_key(a) && named.contains_key(b);
    let found = winnow::pairs(index, base, options, known)?.into_iter();
    let name = |pair: WinnowPair| {
        let WinnowPair { a, b, common, a_in_b, b_in_a } = pair;
        let (a, b) = (named.get(&a)?.clone(), named.get(&b)?.clone());
        Some(match a.paths <= b.paths {
            true => PairWithPaths { a, b, common, a_in_b, b_in_a },
            false => PairWithPaths { a: b, b: a, common, a_in_b: b_in_a, b_in_a: a_in_b },
        })
    };
    let mut pairs: Vec<_> = found.filter_map(name).collect();
    pairs.sort_by(|one, other| {
        let ranks = |pair: &PairWithPaths| std::cmp::Reverse(pair.common);
        (ranks(one), &one.a.paths, &one.b.paths).cmp(&(ranks(other), &other.a.paths, &other.b.paths))
    });
    Ok(pairs)
}

/// Returns the share of the reference that is in the other, or the method's measure if it has no shares.
pub fn of_reference(likeness: &Likeness) -> f64 {
    likeness.containment.unwrap_or_else(|| likeness.score())
}

fn reaches(likeness: &Likeness, score_min: f64) -> bool {
    likeness.score() > 0.0 && likeness.score() >= score_min
}

/// Returns head and keys of a content under a name.
fn called(
    index: &Index,
    id: &RecipeId,
    name: Option<&OsStr>,
) -> std::result::Result<Option<(Vec<u8>, u64)>, SimilarityError> {
    let Some((head, keys)) = index.head(id)? else { return Ok(None) };
    let head = match name {
        Some(name) => index.method().called_by(&head, name)?,
        None => head,
    };
    Ok(Some((head, keys)))
}

/// Returns the matches without the queried file.
pub(crate) fn without(
    mut matches: Vec<MatchWithPaths>,
    is_itself: impl Fn(&Path) -> bool,
    limit: usize,
) -> Vec<MatchWithPaths> {
    matches.retain(|found| !is_itself(&found.path));
    matches.truncate(limit);
    matches
}
