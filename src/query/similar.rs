//! Similarity search for one file: queries the similarity index, compares bytes, finds names.

use super::text;
use crate::catalog::Finder;
use crate::contents::collection::{Asked, Budget};
use crate::contents::error::Result;
use crate::contents::filter::Rules;
use crate::contents::{Shares, SimilarOptions};
use crate::id::{FileId, RecipeId};
use crate::query::Queries;
use crate::similarity::Boilerplate;
use crate::similarity::exact::Source;
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A file that resembles the queried one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Match {
    /// Its path below the root.
    #[serde(serialize_with = "text::lossy")]
    pub path: PathBuf,
    /// Its absolute path ([`Matches::below`]).
    #[serde(serialize_with = "text::lossy")]
    pub absolute: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// How much they have in common.
    #[serde(flatten)]
    pub shares: Shares,
    /// The view of the queried file; the shares refer to it.
    pub query_view: View,
    /// The view of this file.
    pub view: View,
}

impl Match {
    pub(super) fn of_bytes(path: PathBuf, size: u64, shares: Shares) -> Match {
        let (query_view, view) = (View::Raw, View::Raw);
        Match { path, absolute: PathBuf::new(), size, shares, query_view, view }
    }
}

/// The answer to a similarity query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Matches {
    /// The queried file.
    #[serde(serialize_with = "text::lossy")]
    pub query: PathBuf,
    /// Best first.
    pub matches: Vec<Match>,
    /// Number of identical files. They come first, and leave half of the limit to others.
    pub identical: usize,
    /// Bytes of the queried file that are padding or in templates: they count neither as common nor in its size.
    pub suppressed_bytes: u64,
    /// Features ignored because too many contents have them.
    pub suppressed_features: usize,
    /// Files that `similarity = "off"` leaves out of the index: they are found only if they are the same to the byte.
    #[serde(default)]
    pub not_indexed: u64,
    /// Whether files may be missing because the index does not know them yet. Only a caller that knows the last scan sets it.
    pub behind: bool,
}

impl Matches {
    /// Sets the absolute paths, for a root at `top`: the backing directory's path, or the mount point.
    pub fn below(&mut self, top: &Path) {
        self.matches.iter_mut().for_each(|found| found.absolute = top.join(&found.path));
    }
}

/// A queried file.
pub(crate) struct Query<'a> {
    pub(crate) source: &'a dyn Source,
    /// Its name, for rules about suffixes.
    pub(crate) name: &'a Path,
    /// The file itself, so that it is not found.
    pub(crate) except: Option<FileId>,
}

impl Queries {
    /// Returns files of this overlay whose bytes resemble those of the queried one.
    ///
    /// One pass over the query, one look-up for each of its features, and one comparison for each candidate content, unless
    /// only estimates are wanted.
    pub(crate) fn similar(&self, query: &Query<'_>, options: &SimilarOptions) -> Result<Matches> {
        let boilerplate = if options.templates { self.boilerplate()? } else { Boilerplate::default() };
        let rules = options.filter.rules(query.name, query.source.len())?;
        let everything = rules.ask_for_anything();
        let (recipe, answer) = self.contents.query(query.source, &boilerplate, options, everything)?;
        let asked = Asked::new(query.source, options.patterns(&boilerplate))?;
        let mut finder = self.catalog.finder(&self.tree.backing);
        // The index may not know identical files: they may be all boilerplate, or too short for a feature.
        let identical = self.paths_of(&recipe, query, &rules, &mut finder)?;
        let (mut ranked, mut budget) = (Vec::new(), Budget::default());
        for candidate in answer.candidates.iter().filter(|candidate| candidate.recipe != recipe) {
            if !rules.allow_size(candidate.size) {
                continue;
            }
            let mut paths = None;
            if rules.ask_for_paths() {
                let allowed = self.paths_of(&candidate.recipe, query, &rules, &mut finder)?;
                if allowed.is_empty() {
                    continue;
                }
                paths = Some(allowed);
            }
            let Some(estimate) = budget.spend(options, query.source, candidate) else { break };
            let open = || self.tree.source_of(&candidate.recipe, &mut finder);
            match self.contents.shares(&asked, candidate, estimate, open) {
                Ok(shares) if shares.reach(options) => ranked.push((shares, candidate, paths)),
                Ok(_) => {}
                Err(e) => tracing::warn!("recipe {}: not compared: {e}", candidate.recipe),
            }
        }
        ranked.sort_by(|a, b| options.by.better(&a.0, &b.0));
        let mut found = Matches {
            identical: identical.len(),
            suppressed_features: answer.suppressed_features,
            suppressed_bytes: asked.covered.bytes(),
            ..Matches::default()
        };
        let mut similar = Vec::new();
        for (shares, candidate, paths) in ranked {
            if similar.len() >= options.limit {
                break;
            }
            let paths = match paths {
                Some(paths) => paths,
                None => self.paths_of(&candidate.recipe, query, &rules, &mut finder)?,
            };
            similar.extend(paths.into_iter().map(|path| Match::of_bytes(path, candidate.size, shares)));
        }
        let shares = Shares::identical(query.source.len());
        let room = options.limit - similar.len().min(options.limit / 2);
        let identical = identical.into_iter().take(room);
        let identical = identical.map(|path| Match::of_bytes(path, query.source.len(), shares));
        if shares.reach(options) {
            found.matches.extend(identical);
        }
        let room = options.limit - found.matches.len();
        found.matches.extend(similar.into_iter().take(room));
        Ok(found)
    }

    /// Returns the paths of the files with a content that the rules allow.
    pub(crate) fn paths_of(
        &self,
        recipe: &RecipeId,
        query: &Query<'_>,
        rules: &Rules<'_>,
        finder: &mut Finder,
    ) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for file in self.catalog.holders(recipe)? {
            if Some(file) != query.except {
                paths.extend(finder.path_of(file)?.filter(|path| rules.allow_path(path)));
            }
        }
        paths.sort();
        Ok(paths)
    }
}
