//! Identical files and groups of similar contents: all against all.
//!
//! Files with one recipe are one content and form a set. The similarity index compares contents
//! ([`crate::similarity::groups`]); shown results are then compared by bytes, and looked up in the backing
//! directory.

use super::text;
use crate::catalog::Finder;
use crate::contents::Shares;
use crate::contents::collection::COMPARE_MEMORY;
use crate::contents::error::Result;
use crate::contents::options::COMMON_BYTES_MIN;
use crate::id::{FileId, RecipeId};
use crate::query::Queries;
use crate::similarity::SimilarityError;
use crate::similarity::exact::{self, Patterns, Source};
use crate::similarity::groups::{self, Choice, Member, PairOptions, Pairs, Phase, Star, Stars};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A feature that more contents have is not followed: its cost grows with the square of their number.
const FREQUENCY_CAP: u32 = 500;
/// With verification, pairs that are estimated at this share of the threshold are compared.
const SHORTLIST_SHARE: f64 = 0.75;
/// A representative of at most this length is read once for all its members.
const HELD_BYTES_MAX: u64 = 16 << 20;
/// Directories that are remembered while paths are looked up.
const DIRS_MAX: usize = 10_000;
/// Limit of an answer, in bytes (about). Rows beyond it are only counted.
const ANSWER_BYTES_MAX: usize = 100 << 20;
const ROW_BYTES: usize = 200;
/// Stars examined at a time, or in how many steps.
const STARS_PER_STEP: usize = 256;
const STEPS: usize = 32;
/// Only one thread at a time writes the file of pairs.
static WRITING: Mutex<()> = Mutex::new(());

/// Options of a search for groups.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupOptions {
    /// Smallest share of one of two that is in the other, 0.1 to 1.
    pub min: f64,
    /// At most this many sets and this many groups.
    pub limit: Option<usize>,
    /// Only sets of identical files.
    pub identical: bool,
    /// Trust the index's estimates instead of comparing bytes.
    pub estimate: bool,
    /// Bytes that are compared; pairs after that are estimated.
    pub verify_bytes: u64,
    /// Files shorter than this do not count.
    pub size_min: u64,
    /// If not empty: only files whose names end in one of these.
    pub suffixes: Vec<String>,
    /// Bytes of memory; `None` for a quarter of the store's setting.
    pub memory_bytes: Option<u64>,
    /// Compare all pairs again, even if an earlier comparison has them.
    pub anew: bool,
}

/// Files with the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdenticalSet {
    /// Length of each.
    pub size: u64,
    /// Their paths below the root, sorted.
    #[serde(serialize_with = "text::all_lossy")]
    pub paths: Vec<PathBuf>,
}

/// Contents that resemble a representative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its position in the answer, from 1.
    pub id: u64,
    /// Bytes of all contents in it, each once.
    pub bytes: u64,
    /// Bytes of the other members that the representative has.
    pub savable_bytes: u64,
    /// A file with the representative's content.
    #[serde(serialize_with = "text::lossy")]
    pub representative: PathBuf,
    /// The representative first, then the others, by containment.
    pub members: Vec<GroupMember>,
}

/// A content in a group. Shares are 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupMember {
    /// A file that has it: the first by path.
    #[serde(serialize_with = "text::lossy")]
    pub path: PathBuf,
    /// Number of files with it.
    pub copies: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Its share that is in the representative.
    pub containment: f64,
    /// The representative's share that is in it.
    pub contained_in: f64,
    /// Common bytes divided by the bytes in either.
    pub resemblance: f64,
    /// Its bytes that are in the representative.
    pub bytes_common: u64,
    /// Whether the figures come from the bytes, or are estimates.
    pub verified: bool,
}

impl GroupMember {
    fn of((path, copies): (PathBuf, u64), size: u64, shares: &Shares) -> GroupMember {
        let &Shares { containment, contained_in, resemblance, bytes_common, verified, .. } = shares;
        GroupMember { path, copies, size, containment, contained_in, resemblance, bytes_common, verified }
    }
}

/// Identical files and groups of similar files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Sets of identical files; those with the most redundant bytes first.
    pub identical: Vec<IdenticalSet>,
    /// Number of such sets.
    pub identical_sets: u64,
    /// Number of files in them.
    pub identical_files: u64,
    /// Redundant bytes in them.
    pub identical_bytes: u64,
    /// Contents that resemble a representative; groups with the most savable bytes first.
    pub groups: Vec<Group>,
    /// Estimated number of groups.
    pub estimated_groups: u64,
    /// Estimated number of contents in them.
    pub estimated_members: u64,
    /// Bytes that all of them could save.
    pub estimated_bytes: u64,
    /// Compared contents.
    pub contents: u64,
    /// Contents among them that an earlier comparison covered.
    pub reused: u64,
    /// Pairs of similar contents.
    pub pairs: u64,
    /// Features ignored because too many contents have them.
    pub suppressed_features: u64,
    /// Rows omitted because the answer became too long.
    pub omitted: u64,
    /// Files that `similarity = "off"` leaves out of the index: they are in no group of similar files.
    #[serde(default)]
    pub not_indexed: u64,
    /// Whether files may be missing because the index does not know them yet. Only a caller that knows the last scan sets it.
    pub behind: bool,
}

/// Gets the step, the amount done and the whole amount (0 if not known); false asks to stop.
pub type GroupProgress<'a> = &'a mut dyn FnMut(&str, u64, u64) -> bool;

/// The files that count: all, or those whose inode is in the sorted list.
struct Scope(Option<Vec<FileId>>);

impl Scope {
    fn has(&self, file: FileId) -> bool {
        self.0.as_ref().is_none_or(|files| files.binary_search(&file).is_ok())
    }
}

/// Budget that is left for comparisons and for the answer.
struct Left {
    verify_bytes: u64,
    answer_bytes: usize,
    omitted: u64,
}

impl Left {
    fn take(&mut self, path: &Path) -> bool {
        let bytes = ROW_BYTES + 2 * path.as_os_str().len();
        let fits = self.answer_bytes >= bytes;
        match fits {
            true => self.answer_bytes -= bytes,
            false => self.omitted += 1,
        }
        fits
    }
}

impl Queries {
    /// Finds sets of identical files and groups of similar ones at or below `path`. Keeps the estimated pairs in `dir`, so
    /// that the next question reads neither index nor files again, except for verification.
    pub fn groups(
        &self,
        path: &Path,
        options: &GroupOptions,
        dir: &Path,
        progress: GroupProgress<'_>,
    ) -> Result<Groups> {
        let scope = self.scope(path, options, progress)?;
        let answer_bytes = ANSWER_BYTES_MAX;
        let mut left = Left { verify_bytes: options.verify_bytes, answer_bytes, omitted: 0 };
        let mut found = Groups::default();
        self.identical(&scope, options, &mut left, &mut found, progress)?;
        if !options.identical {
            self.similar_groups(&scope, options, dir, &mut left, &mut found, progress)?;
        }
        found.omitted = left.omitted;
        found.not_indexed = self.indexes.not_indexed()?;
        Ok(found)
    }

    fn scope(&self, path: &Path, options: &GroupOptions, progress: GroupProgress<'_>) -> Result<Scope> {
        if path.as_os_str().is_empty() && options.suffixes.is_empty() {
            return Ok(Scope(None));
        }
        let (mut files, mut waiting) = (Vec::new(), true);
        self.tree.walk(path, &mut |path, found| {
            let Ok(inode) = found else { return };
            let name = path.file_name().unwrap_or_default().as_bytes();
            let suffixes = &options.suffixes;
            if suffixes.is_empty() || suffixes.iter().any(|suffix| name.ends_with(suffix.as_bytes())) {
                files.push(inode.file_id());
            }
            self.tree.inodes.release(inode);
            waiting = waiting && progress("looking for files", files.len() as u64, 0);
        })?;
        if !waiting {
            return Err(SimilarityError::Interrupted.into());
        }
        files.sort_unstable();
        files.dedup();
        Ok(Scope(Some(files)))
    }

    fn identical(
        &self,
        scope: &Scope,
        options: &GroupOptions,
        left: &mut Left,
        found: &mut Groups,
        progress: GroupProgress<'_>,
    ) -> Result<()> {
        let most = options.limit.unwrap_or(usize::MAX);
        let mut sets = BinaryHeap::new();
        let (mut failed, mut holders) = (None, 0u64);
        self.catalog.each_content(&mut |recipe, files| {
            holders += files.len() as u64;
            let copies = files.iter().filter(|file| scope.has(**file)).count() as u64;
            let mut note = || -> Result<()> {
                if holders.is_multiple_of(1 << 12) && !progress("looking for identical files", holders, 0) {
                    return Err(SimilarityError::Interrupted.into());
                }
                if copies < 2 {
                    return Ok(());
                }
                let size = self.catalog.file(files[0])?.map_or(0, |row| row.size);
                if size == 0 || size < options.size_min {
                    return Ok(());
                }
                found.identical_sets += 1;
                found.identical_files += copies;
                found.identical_bytes += (copies - 1) * size;
                // The smallest set is on top, to be dropped first.
                sets.push(Reverse(((copies - 1) * size, Reverse(*recipe), size)));
                if sets.len() > most {
                    sets.pop();
                }
                Ok(())
            };
            failed = note().err();
            failed.is_none()
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        let mut finder = self.catalog.finder(&self.tree.backing);
        for Reverse((_, Reverse(recipe), size)) in sets.into_sorted_vec() {
            let mut paths = self.paths_in(&recipe, scope, &mut finder)?;
            if paths.len() > 1 {
                paths.retain(|path| left.take(path));
                found.identical.push(IdenticalSet { size, paths });
            }
        }
        // The catalog may know files that were removed.
        found.identical.sort_by_key(|set| Reverse((set.paths.len() as u64).saturating_sub(1) * set.size));
        Ok(())
    }

    fn similar_groups(
        &self,
        scope: &Scope,
        options: &GroupOptions,
        dir: &Path,
        left: &mut Left,
        found: &mut Groups,
        progress: GroupProgress<'_>,
    ) -> Result<()> {
        let similarity = &self.contents.similarity;
        let memory = options.memory_bytes.map_or(similarity.groups_bytes(), |bytes| bytes as usize);
        let pair_options =
            PairOptions { memory_bytes: memory, frequency_cap: FREQUENCY_CAP, anew: options.anew };
        let mut step = |phase, done, all| match phase {
            Phase::Reading => progress("reading the index", done, all),
            Phase::Comparing => progress("comparing", done, all),
        };
        let pairs = {
            let _one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
            groups::pairs(&**similarity, &pair_options, dir, &mut step)?
        };
        let choice = self.choice(&pairs, scope, options)?;
        let min = match options.estimate {
            true => options.min,
            false => (options.min * SHORTLIST_SHARE).max(groups::SHARE_MIN),
        };
        let stars = Stars::of(&pairs, min, choice.as_ref(), memory, &mut step)?;
        found.contents = pairs.contents_len() as u64;
        found.reused = pairs.reused();
        found.pairs = pairs.len();
        found.suppressed_features = pairs.suppressed_features();
        found.estimated_groups = stars.stars.len() as u64;
        found.estimated_members = stars.stars.iter().map(|star| u64::from(star.members) + 1).sum();
        found.estimated_bytes = stars.stars.iter().map(|star| star.savable_bytes).sum();
        let most = options.limit.unwrap_or(usize::MAX);
        let mut finder = self.catalog.finder(&self.tree.backing);
        let (mut done, all) = (0, stars.stars.len() as u64);
        // Each step is a pass over all contents.
        let step_stars = STARS_PER_STEP.max(stars.stars.len() / STEPS).min(most.max(1));
        for some in stars.stars.chunks(step_stars) {
            if found.groups.len() >= most {
                break;
            }
            for (star, members) in some.iter().zip(stars.members(some)) {
                if found.groups.len() >= most {
                    break;
                }
                if left.answer_bytes < 2 * ROW_BYTES {
                    left.omitted += members.len() as u64 + 1;
                    continue;
                }
                finder.shed(DIRS_MAX);
                let group = self.group(&pairs, star, &members, scope, options, left, &mut finder)?;
                found.groups.extend(group);
                done += 1;
                if !progress("verifying", done, all) {
                    return Err(SimilarityError::Interrupted.into());
                }
            }
        }
        found.groups.sort_by_key(|group| Reverse(group.savable_bytes));
        found.groups.iter_mut().zip(1..).for_each(|(group, id)| group.id = id);
        Ok(())
    }

    /// The contents that the scope's files have; `None` for all.
    fn choice(&self, pairs: &Pairs, scope: &Scope, options: &GroupOptions) -> Result<Option<Choice>> {
        let Some(files) = &scope.0 else {
            if options.size_min == 0 {
                return Ok(None);
            }
            let mut chosen = Vec::new();
            for (place, content) in pairs.contents().enumerate() {
                if content?.size >= options.size_min {
                    chosen.push(place as u32);
                }
            }
            return Ok(Some(Choice::of(chosen.into_iter())));
        };
        let mut recipes = Vec::with_capacity(files.len());
        for file in files {
            recipes.extend(self.catalog.file(*file)?.map(|row| row.recipe));
        }
        recipes.sort_unstable();
        recipes.dedup();
        let mut chosen = Vec::with_capacity(recipes.len());
        for (place, content) in pairs.contents().enumerate() {
            let content = content?;
            if content.size >= options.size_min && recipes.binary_search(&content.recipe).is_ok() {
                chosen.push(place as u32);
            }
        }
        Ok(Some(Choice::of(chosen.into_iter())))
    }

    /// Returns the group of a star: members that have paths and, unless `estimate` is set, whose similarity was verified.
    #[expect(clippy::too_many_arguments, reason = "one question's state, in one place")]
    fn group(
        &self,
        pairs: &Pairs,
        star: &Star,
        members: &[Member],
        scope: &Scope,
        options: &GroupOptions,
        left: &mut Left,
        finder: &mut Finder<'_>,
    ) -> Result<Option<Group>> {
        let center = pairs.content(star.representative)?;
        let Some(first) = self.first_path(&center.recipe, scope, finder)? else {
            return Ok(None);
        };
        // No group may use up what the next ones need.
        let (mut source, mut verify_bytes) = (None, left.verify_bytes / 4);
        let (mut bytes, mut savable_bytes) = (center.size, 0);
        let mut others = Vec::new();
        for member in members {
            let content = pairs.content(member.content)?;
            let Some(found) = self.first_path(&content.recipe, scope, finder)? else { continue };
            let estimate = options.estimate || verify_bytes == 0;
            let shares = match estimate {
                true => estimated(member, content.size),
                false => {
                    let bytes = center.size + content.size;
                    verify_bytes = verify_bytes.saturating_sub(bytes);
                    left.verify_bytes = left.verify_bytes.saturating_sub(bytes);
                    let compared = self.compared(&content.recipe, &center.recipe, &mut source, finder);
                    match compared {
                        Ok(shares) => shares,
                        Err(e) => {
                            tracing::warn!("{}: not compared with {}: {e}", found.0.display(), center.recipe);
                            estimated(member, content.size)
                        }
                    }
                }
            };
            let reached = shares.containment.max(shares.contained_in) >= options.min;
            if reached && (shares.bytes_common >= COMMON_BYTES_MIN || !shares.verified) {
                bytes += content.size;
                savable_bytes += shares.bytes_common;
                others.push(GroupMember::of(found, content.size, &shares));
            }
        }
        if others.is_empty() || !left.take(&first.0) {
            return Ok(None);
        }
        others.sort_by(|a, b| {
            let key = |member: &GroupMember| (member.containment, member.resemblance);
            let (a_key, b_key) = (key(a), key(b));
            b_key.0.total_cmp(&a_key.0).then(b_key.1.total_cmp(&a_key.1)).then(a.path.cmp(&b.path))
        });
        others.retain(|member| left.take(&member.path));
        let representative = first.0.clone();
        let mut members = vec![GroupMember::of(first, center.size, &Shares::identical(center.size))];
        members.extend(others);
        Ok(Some(Group { id: 0, bytes, savable_bytes, representative, members }))
    }

    /// Compares a content with a representative; `held` keeps the bytes of the representative once they were read.
    fn compared(
        &self,
        content: &RecipeId,
        representative: &RecipeId,
        held: &mut Option<Box<dyn Source>>,
        finder: &mut Finder<'_>,
    ) -> Result<Shares> {
        let center = match held {
            Some(source) => source,
            None => held.insert(hold(self.tree.source_of(representative, finder)?)),
        };
        let other = self.tree.source_of(content, finder)?;
        let patterns = Patterns::padding();
        let compared = patterns.covered(&*other, COMPARE_MEMORY).and_then(|covered| {
            exact::compare_excluding(&*other, &covered, &**center, &patterns, COMPARE_MEMORY)
        });
        let found = compared.map_err(|e| crate::contents::OverlayError::io("read", "a content", e))?;
        let (size, center_size) = (other.len() - found.a_patterns, center.len() - found.b_patterns);
        Ok(Shares::of(&found.common, size, center_size, found.suppressed))
    }

    /// The files of a content that count, by path.
    fn paths_in(&self, recipe: &RecipeId, scope: &Scope, finder: &mut Finder<'_>) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for file in self.catalog.holders(recipe)?.into_iter().filter(|file| scope.has(*file)) {
            finder.shed(DIRS_MAX);
            paths.extend(finder.path_of(file)?);
        }
        paths.sort();
        Ok(paths)
    }

    fn first_path(
        &self,
        recipe: &RecipeId,
        scope: &Scope,
        finder: &mut Finder<'_>,
    ) -> Result<Option<(PathBuf, u64)>> {
        let paths = self.paths_in(recipe, scope, finder)?;
        let copies = paths.len() as u64;
        Ok(paths.into_iter().next().map(|path| (path, copies)))
    }
}

fn estimated(member: &Member, size: u64) -> Shares {
    let &Member { containment, contained_in, .. } = member;
    let bytes_common = (containment * size as f64) as u64;
    let resemblance = groups::resemblance(containment, contained_in);
    let (bytes_suppressed, identical, verified) = (0, false, false);
    Shares { containment, contained_in, resemblance, bytes_common, bytes_suppressed, identical, verified }
}

/// Reads a short source into memory, since it is compared many times.
fn hold(source: Box<dyn Source>) -> Box<dyn Source> {
    if source.len() > HELD_BYTES_MAX {
        return source;
    }
    let mut bytes = vec![0; source.len() as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match source.read_at(filled as u64, &mut bytes[filled..]) {
            Ok(len) if len > 0 => filled += len,
            // The comparison will report the error.
            _ => return source,
        }
    }
    Box::new(Held(bytes))
}

struct Held(Vec<u8>);

impl Source for Held {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        (&self.0[..]).read_at(offset, buffer)
    }
}
