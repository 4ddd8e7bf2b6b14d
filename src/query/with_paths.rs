//! Answers of a published method with names instead of content ids, for temporary and for saved indexes.
//! Indexes have no names, so the present name of a file counts.

use super::text;
use crate::contents::error::Result;
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use crate::similarity::methods::winnow::{self, Base, PairOptions, WinnowPair, WinnowPairs};
use crate::similarity::methods::{AnySketch, Found, FoundPair, Index, Likeness, PairsAsked};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A content with its names and its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WithPaths {
    /// Sorted; below the root of the tree or of the overlay.
    pub paths: Vec<PathBuf>,
    /// Its length in bytes.
    pub size: u64,
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
    #[serde(flatten)]
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
    /// Lists the reference under all its names, then the members under theirs: how each, as a, compares with the reference.
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
            named.paths.iter().map(move |path| of(path, named.size, false, likeness.swapped()))
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

/// Files like one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilesAlike {
    /// Identical ones first, then the best, then by path.
    pub files: Vec<MatchWithPaths>,
    /// Contents that have something in common with it, but score less than wanted.
    pub below_min: u64,
}

/// Groups of files like each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LikeGroups {
    /// By name of the first file; each set of files once.
    pub groups: Vec<LikeGroup>,
    /// Pairs of contents that have something in common, but score less than wanted.
    pub below_min: u64,
}

/// Pairs of files, and how many were left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairsWithPaths {
    /// Those with the most fingerprints in common first, ties by their paths.
    pub pairs: Vec<PairWithPaths>,
    /// How many there are without the limit.
    pub found: u64,
    /// Pairs that have a fingerprint in common, but too small a share.
    pub below_min: u64,
}

/// A queried file.
pub(crate) struct Asked<'a> {
    pub(crate) name: Option<&'a OsStr>,
    pub(crate) id: RecipeId,
    /// Made without a name.
    pub(crate) sketch: AnySketch,
}

/// Returns files like the queried one whose likeness scores at least `score_min`. `likely` are the contents that the index
/// finds like it, best first, those that score less included. Leaves out contents without a name in `names`. Returns more than
/// `limit` only if they score as well as the last.
pub(crate) fn matches(
    index: &Index,
    asked: Asked<'_>,
    likely: Vec<Found>,
    names: &mut dyn FnMut(&RecipeId) -> Result<Option<WithPaths>>,
    score_min: f64,
    limit: usize,
) -> Result<FilesAlike> {
    let Asked { name, id, sketch } = asked;
    let own = match name.filter(|_| index.method().by_name()) {
        Some(name) => sketch.called(name)?,
        None => sketch,
    };
    let comparer = index.method().comparer(own.head(), own.keys()).map_err(SimilarityError::from)?;
    let is_below = |found: &&Found| found.id != id && !reaches(&found.likeness, score_min);
    let below_min = likely.iter().filter(is_below).count() as u64;
    let mut found: Vec<MatchWithPaths> = Vec::new();
    let mut add = |paths: Vec<PathBuf>, size, identical, likeness| {
        found.extend(paths.into_iter().map(|path| MatchWithPaths { path, size, identical, likeness }));
        (found.len(), likeness.score())
    };
    let mut given = (0, f64::INFINITY);
    if let Some(named) = names(&id)? {
        given.0 = add(named.paths, named.size, true, own.with_itself()?).0;
    }
    for other in likely.iter().filter(|other| reaches(&other.likeness, score_min)) {
        if given.0 > limit && other.likeness.score() < given.1 {
            break;
        }
        if other.id == id {
            continue;
        }
        let Some(named) = names(&other.id)? else { continue };
        for called in as_called(index, &other.id, &named)? {
            let likeness = match index.method().by_name() {
                true => {
                    comparer.with(&called.head, called.keys, &other.sums).map_err(SimilarityError::from)?
                }
                false => other.likeness,
            };
            if reaches(&likeness, score_min) {
                given = add(called.paths, named.size, false, likeness);
            }
        }
    }
    let score = |found: &MatchWithPaths| found.likeness.score();
    found.sort_by(|a, b| {
        let same = b.identical.cmp(&a.identical);
        same.then(score(b).total_cmp(&score(a))).then_with(|| a.path.cmp(&b.path))
    });
    Ok(FilesAlike { files: found, below_min })
}

/// Returns files of `named` with those that are like them. Contents with several names are groups too. `progress` gets the
/// number of pairs found; false asks to stop.
pub(crate) fn groups(
    index: &Index,
    named: &BTreeMap<RecipeId, WithPaths>,
    asked: &PairsAsked,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<LikeGroups> {
    let mut like: BTreeMap<RecipeId, Vec<Alike>> = BTreeMap::new();
    let mut count = 0;
    let score_min = asked.score_min;
    let counts = index.pairs(asked, &mut |id| named.contains_key(id), &mut |pair| {
        let (Some(a), Some(b)) = (named.get(&pair.a), named.get(&pair.b)) else { return Ok(true) };
        let found = match index.method().by_name() {
            true => by_names(index, &pair, a, b)?,
            false => Some((pair.likeness, None, None)),
        };
        if let Some((likeness, of_a, of_b)) = found.filter(|(likeness, ..)| reaches(likeness, score_min)) {
            let (one, other) = (Alike { likeness, id: pair.b, paths: of_b }, likeness.swapped());
            like.entry(pair.a).or_default().push(one);
            like.entry(pair.b).or_default().push(Alike { likeness: other, id: pair.a, paths: of_a });
            count += 1;
        }
        if progress(count) { Ok(true) } else { Err(SimilarityError::Interrupted) }
    })?;
    let mut by_name: Vec<(&RecipeId, &WithPaths)> = named.iter().collect();
    by_name.sort_by(|a, b| a.1.paths.cmp(&b.1.paths));
    let (mut groups, mut given) = (Vec::new(), HashSet::new());
    for (id, reference) in by_name {
        let mut members = like.remove(id).unwrap_or_default();
        // As many as there are are like the other; those are listed where enough of this one is in them.
        members.retain(|alike| of_reference(&alike.likeness) >= score_min);
        if members.is_empty() && reference.paths.len() < 2 {
            continue;
        }
        let all_of = |alike: &Alike| (alike.id, alike.paths.clone());
        let mut set: Vec<_> = members.iter().map(all_of).chain([(*id, None)]).collect();
        set.sort_unstable();
        if given.insert(set) {
            let of = |Alike { likeness, id, paths }: Alike| {
                let WithPaths { paths: all, size } = named.get(&id)?;
                Some((likeness, WithPaths { paths: paths.unwrap_or_else(|| all.clone()), size: *size }))
            };
            let mut members: Vec<_> = members.into_iter().filter_map(of).collect();
            members.sort_by(|a, b| {
                of_reference(&b.0).total_cmp(&of_reference(&a.0)).then_with(|| a.1.paths.cmp(&b.1.paths))
            });
            groups.push(LikeGroup { reference: reference.clone(), members });
        }
    }
    Ok(LikeGroups { groups, below_min: counts.below_min })
}

/// A content that is like a reference.
struct Alike {
    /// How the reference, as a, compares with it.
    likeness: Likeness,
    id: RecipeId,
    /// Those of its paths under which it is like the reference; `None` for all.
    paths: Option<Vec<PathBuf>>,
}

/// The likeness of two contents under their names, and the paths of either under which they are alike; `None` for all.
type ByNames = (Likeness, Option<Vec<PathBuf>>, Option<Vec<PathBuf>>);

/// Compares two contents, each under all its names. `None` if no two names make them alike.
fn by_names(
    index: &Index,
    pair: &FoundPair,
    a: &WithPaths,
    b: &WithPaths,
) -> std::result::Result<Option<ByNames>, SimilarityError> {
    let (mut best, mut of_a, mut of_b) = (None::<Likeness>, Vec::new(), BTreeSet::new());
    let others = as_called(index, &pair.b, b)?;
    for one in as_called(index, &pair.a, a)? {
        let comparer = index.method().comparer(&one.head, one.keys)?;
        let mut is_alike = false;
        for other in &others {
            let likeness = comparer.with(&other.head, other.keys, &pair.sums)?;
            if likeness.score() > 0.0 {
                is_alike = true;
                of_b.extend(other.paths.iter().cloned());
                best = best.filter(|best| best.score() >= likeness.score()).or(Some(likeness));
            }
        }
        if is_alike {
            of_a.extend(one.paths);
        }
    }
    of_a.sort();
    let of_b: Vec<PathBuf> = of_b.into_iter().collect();
    let some = |paths: Vec<PathBuf>, of: &WithPaths| (paths.len() < of.paths.len()).then_some(paths);
    Ok(best.map(|likeness| (likeness, some(of_a, a), some(of_b, b))))
}

/// Returns pairs of files of `named` by the number of fingerprints in common; two identical files are a pair. The order in
/// which files came into the index does not show.
pub(crate) fn pairs(
    index: &Index,
    named: &BTreeMap<RecipeId, WithPaths>,
    base: &Base,
    options: &PairOptions,
) -> Result<PairsWithPaths> {
    let copies = |id: &RecipeId| named.get(id).map_or(0, |named| named.paths.len());
    let WinnowPairs { pairs, found, below_min } = winnow::pairs(index, base, options, &copies)?;
    let name = |pair: WinnowPair| {
        let WinnowPair { a, b, common, a_in_b, b_in_a } = pair;
        let (mut one, mut other) = (named.get(&a)?.clone(), named.get(&b)?.clone());
        if a == b {
            other.paths = one.paths.split_off(1);
        }
        Some(match one.paths <= other.paths {
            true => PairWithPaths { a: one, b: other, common, a_in_b, b_in_a },
            false => PairWithPaths { a: other, b: one, common, a_in_b: b_in_a, b_in_a: a_in_b },
        })
    };
    let mut pairs: Vec<_> = pairs.into_iter().filter_map(name).collect();
    pairs.sort_by(|one, other| {
        let ranks = |pair: &PairWithPaths| std::cmp::Reverse(pair.common);
        (ranks(one), &one.a.paths, &one.b.paths).cmp(&(ranks(other), &other.a.paths, &other.b.paths))
    });
    Ok(PairsWithPaths { pairs, found, below_min })
}

/// Returns the share of the reference that is in the other, or the method's measure if it has no shares.
pub fn of_reference(likeness: &Likeness) -> f64 {
    likeness.containment.unwrap_or_else(|| likeness.score())
}

fn reaches(likeness: &Likeness, score_min: f64) -> bool {
    likeness.score() > 0.0 && likeness.score() >= score_min
}

/// A content as a method sees it under some of its names.
struct AsCalled {
    /// Encoded.
    head: Vec<u8>,
    keys: u64,
    /// The paths that give it this head.
    paths: Vec<PathBuf>,
}

/// Returns a content as the method sees it under its names. The names of one content may differ in what the method looks at:
/// SimHash keeps files of different extensions apart. Empty if the index does not know the content.
fn as_called(
    index: &Index,
    id: &RecipeId,
    named: &WithPaths,
) -> std::result::Result<Vec<AsCalled>, SimilarityError> {
    let paths = &named.paths;
    if !index.method().by_name() {
        return Ok(vec![AsCalled { head: Vec::new(), keys: 0, paths: paths.clone() }]);
    }
    let Some((head, keys)) = index.head(id)? else { return Ok(Vec::new()) };
    let mut by_head: BTreeMap<Vec<u8>, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        let head = match path.file_name() {
            Some(name) => index.method().called_by(&head, name)?,
            None => head.clone(),
        };
        by_head.entry(head).or_default().push(path.clone());
    }
    Ok(by_head.into_iter().map(|(head, paths)| AsCalled { head, keys, paths }).collect())
}

/// Returns the matches without the queried file.
pub(crate) fn without(
    mut matches: FilesAlike,
    is_itself: impl Fn(&Path) -> bool,
    limit: usize,
) -> FilesAlike {
    matches.files.retain(|found| !is_itself(&found.path));
    matches.files.truncate(limit);
    matches
}
