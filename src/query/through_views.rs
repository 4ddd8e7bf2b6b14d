//! Similarity search through views of files.

use super::Queries;
use super::similar::{Match, Matches, Query};
use crate::backing::plain::Plain;
use crate::contents::collection::{Asked, Budget, CANDIDATES_MAX};
use crate::contents::error::{OverlayError, Result};
use crate::contents::{Look, Shares, SimilarOptions};
use crate::indexes::views::{Views, seen, view_of};
use crate::similarity::exact::{Patterns, Source};
use crate::view::View;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};

/// A view in memory.
struct Held(Vec<u8>);

impl Source for Held {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Source::read_at(&&self.0[..], offset, buffer)
    }
}

/// Returns the better of two answers for each file, ranked.
fn better_of(mut a: Matches, b: Matches, options: &SimilarOptions) -> Matches {
    let mut best: HashMap<PathBuf, Match> = HashMap::new();
    for found in std::mem::take(&mut a.matches).into_iter().chain(b.matches) {
        match best.entry(found.path.clone()) {
            Entry::Vacant(place) => drop(place.insert(found)),
            Entry::Occupied(mut known) => {
                if options.by.better(&found.shares, &known.get().shares).is_lt() {
                    known.insert(found);
                }
            }
        }
    }
    let mut matches: Vec<_> = best.into_values().collect();
    // Files that are the same come first.
    matches.sort_by(|a, b| {
        let same = b.shares.identical.cmp(&a.shares.identical);
        same.then(options.by.better(&a.shares, &b.shares)).then_with(|| a.path.cmp(&b.path))
    });
    matches.truncate(options.limit);
    Matches { matches, suppressed_features: a.suppressed_features + b.suppressed_features, ..a }
}

impl Queries {
    /// Returns files of this overlay that resemble the one at `path` below its root, without that one.
    pub fn similar_inside(&self, path: &Path, options: &SimilarOptions) -> Result<Matches> {
        let (source, id) = self.tree.source(path)?;
        self.similar_named(&Query { source: &*source, name: path, except: Some(id) }, options)
    }

    /// Returns files of this overlay that resemble a file anywhere.
    pub fn similar_outside(&self, path: &Path, options: &SimilarOptions) -> Result<Matches> {
        let source = Plain::open(path)?;
        self.similar_named(&Query { source: &source, name: path, except: None }, options)
    }

    fn similar_named(&self, query: &Query<'_>, options: &SimilarOptions) -> Result<Matches> {
        let mut found = self.similar_seen(query, options)?;
        found.query = query.name.to_owned();
        found.not_indexed = self.indexes.not_indexed()?;
        found.below(&self.tree.backing.root_path()?);
        Ok(found)
    }

    /// Returns files of this overlay that resemble the queried one, read as `options` say.
    pub(crate) fn similar_seen(&self, query: &Query<'_>, options: &SimilarOptions) -> Result<Matches> {
        let own = view_of(query.source, query.name.file_name());
        let own = own.map_err(|e| OverlayError::io("read", query.name, e))?;
        match options.look {
            Look::Through(View::Raw) => self.similar(query, options),
            Look::Through(view) => self.similar_through(view, query, options),
            Look::Auto if own == View::Raw => self.similar(query, options),
            Look::Auto => self.similar_through(own, query, options),
            Look::Both => {
                let bytes = self.similar(query, options)?;
                if self.indexes.views.as_ref().is_none_or(Views::is_empty) {
                    return Ok(bytes);
                }
                // Bytes are also searched inside archives.
                let view = if own.hides_bytes() { own } else { View::Raw };
                match self.similar_through(view, query, options) {
                    Ok(inside) => Ok(better_of(bytes, inside, options)),
                    Err(e) => {
                        tracing::warn!("{}: only its bytes are compared: {e}", query.name.display());
                        Ok(bytes)
                    }
                }
            }
        }
    }

    /// Returns files of this overlay whose views resemble that of the queried one through `view`. Templates apply to
    /// bytes, and do not count here.
    ///
    /// One pass over the query, one look-up for each feature of its view, and one pass over each candidate content, unless
    /// only estimates are wanted. Holds two views in memory.
    fn similar_through(&self, view: View, query: &Query<'_>, options: &SimilarOptions) -> Result<Matches> {
        let mut found = Matches::default();
        let Some(views) = &self.indexes.views else { return Ok(found) };
        let rules = options.filter.rules(query.name, query.source.len())?;
        let seen_query = seen(view, query.source)?;
        let seen_query = &seen_query[..];
        let patterns = if options.templates { Patterns::padding() } else { Patterns::none() };
        let asked = Asked::new(&seen_query, patterns)?;
        let sketched = self.contents.sketch(&seen_query);
        let (sketch, _) = sketched.map_err(|e| OverlayError::io("read", "the query", e))?;
        let wanted = options.limit.max(CANDIDATES_MAX);
        let answer = views.index.query(&sketch, options.min, wanted)?;
        found.suppressed_features = answer.suppressed_features;
        let mut finder = self.catalog.finder(&self.tree.backing);
        let mut budget = Budget::default();
        for candidate in &answer.candidates {
            let paths = self.paths_of(&candidate.recipe, query, &rules, &mut finder)?;
            let Some(name) = paths.first().and_then(|path| path.file_name()).map(ToOwned::to_owned) else {
                continue;
            };
            let Some(estimate) = budget.spend(options, &seen_query, candidate) else { break };
            let compared = self.tree.source_of(&candidate.recipe, &mut finder).and_then(|source| {
                let view = view_of(&*source, Some(&name));
                let view = view.map_err(|e| OverlayError::io("read", "a candidate", e))?;
                let size = source.len();
                let open = || Ok(Box::new(Held(seen(view, &*source)?)) as Box<dyn Source>);
                let shares = self.contents.shares(&asked, candidate, estimate, open)?;
                // Equal views do not make the files identical.
                Ok((view, size, Shares { identical: false, ..shares }))
            });
            match compared {
                Ok((_, size, _)) if !rules.allow_size(size) => {}
                Ok((found_view, size, shares)) if shares.reach(options) => {
                    let found_at = |path| Match {
                        query_view: view,
                        view: found_view,
                        ..Match::of_bytes(path, size, shares)
                    };
                    found.matches.extend(paths.into_iter().map(found_at));
                }
                Ok(_) => {}
                Err(e) => tracing::warn!("recipe {}: not compared: {e}", candidate.recipe),
            }
        }
        found.matches.sort_by(|a, b| options.by.better(&a.shares, &b.shares));
        found.matches.truncate(options.limit);
        Ok(found)
    }
}
