//! Which files resemble a given one: ask the similarity index, compare the bytes, find the names.

use super::Overlay;
use super::backing;
use super::catalog::Finder;
use super::contents::{Budget, Shares, Stored};
use super::error::{OverlayError, Result};
use super::file::read_full;
use super::inode::Content;
use super::types::Kind;
use crate::id::FileId;
use crate::similarity::Candidate;
use crate::similarity::exact::Source;
use rustix::fs::OFlags;
use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// What matches are ranked by, and have to reach the minimum in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ranking {
    /// The larger of the two containments.
    Containment,
    /// Bytes in common over bytes in either.
    Resemblance,
    /// Bytes in common; the minimum is one of containment.
    Bytes,
}

impl Ranking {
    /// Orders the better match first.
    pub fn better(self, a: &Shares, b: &Shares) -> Ordering {
        let key = |shares: &Shares| match self {
            Ranking::Containment => shares.containment.max(shares.contained_in),
            Ranking::Resemblance => shares.resemblance,
            Ranking::Bytes => shares.bytes_common as f64,
        };
        b.identical
            .cmp(&a.identical)
            .then_with(|| key(b).total_cmp(&key(a)))
            .then_with(|| b.resemblance.total_cmp(&a.resemblance))
            .then_with(|| b.bytes_common.cmp(&a.bytes_common))
    }
}

/// How to look for similar files.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct SimilarOptions {
    /// Smallest share, 0 to 1.
    pub min: f64,
    /// At most so many matches.
    pub limit: usize,
    /// What they are ranked by.
    pub by: Ranking,
    /// Trust the index's estimates instead of comparing bytes.
    pub estimate: bool,
}

impl Default for SimilarOptions {
    /// A quarter in common, twenty matches, by containment, verified.
    fn default() -> Self {
        SimilarOptions { min: 0.25, limit: 20, by: Ranking::Containment, estimate: false }
    }
}

/// A file that resembles the one asked about.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    /// Where it is, below the root.
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// What they have in common.
    pub shares: Shares,
}

/// The answer to a similarity query.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    /// Best first.
    pub matches: Vec<Match>,
    /// Features not followed because too many contents have them.
    pub suppressed_features: usize,
}

/// A plain file, to be compared.
struct Plain(File, u64);

impl Source for Plain {
    fn len(&self) -> u64 {
        self.1
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        read_full(&self.0, buffer, offset).map_err(io::Error::other)
    }
}

impl Overlay {
    /// Files of this overlay that resemble the one at `path` below its root, without that one.
    pub fn similar_inside(&self, path: &Path, options: &SimilarOptions) -> Result<Matches> {
        let (source, id) = self.source(path)?;
        self.similar(&*source, Some(id), options)
    }

    /// Files of this overlay that resemble a file anywhere.
    pub fn similar_outside(&self, path: &Path, options: &SimilarOptions) -> Result<Matches> {
        let open = || {
            let file = File::open(path)?;
            let stat = file.metadata()?;
            if !stat.is_file() {
                return Err(io::Error::other("not a regular file"));
            }
            Ok(Plain(file, stat.len()))
        };
        let source = open().map_err(|e| OverlayError::io("open", path, e))?;
        self.similar(&source, None, options)
    }

    /// Files of this overlay that resemble `query`, without the file `except`.
    ///
    /// One pass over the query, one look-up for each of its features, and unless only estimates are wanted
    /// one comparison for each candidate content.
    pub fn similar(
        &self,
        query: &dyn Source,
        except: Option<FileId>,
        options: &SimilarOptions,
    ) -> Result<Matches> {
        let (recipe, answer) = self.contents.query(query, options)?;
        let mut finder = self.catalog.finder(&self.backing);
        let (mut ranked, mut budget) = (Vec::new(), Budget::default());
        for candidate in &answer.candidates {
            let open = || self.candidate_source(candidate, &mut finder);
            let Some(estimate) = budget.spend(options, query, candidate) else { break };
            match self.contents.shares(query, &recipe, candidate, estimate, open) {
                Ok(shares) if shares.reach(options) => ranked.push((shares, candidate)),
                Ok(_) => {}
                Err(e) => tracing::warn!("recipe {}: not compared: {e}", candidate.recipe),
            }
        }
        ranked.sort_by(|a, b| options.by.better(&a.0, &b.0));
        let mut found = Matches { matches: Vec::new(), suppressed_features: answer.suppressed_features };
        for (shares, candidate) in ranked {
            let mut paths = Vec::new();
            for file in self.catalog.holders(&candidate.recipe)? {
                if Some(file) != except {
                    paths.extend(finder.path_of(file)?);
                }
            }
            paths.sort();
            let more = options.limit - found.matches.len();
            let matches = paths.into_iter().map(|path| Match { path, size: candidate.size, shares });
            found.matches.extend(matches.take(more));
        }
        Ok(found)
    }

    /// A candidate's content: from the store, or from a plain file that has it.
    fn candidate_source(&self, candidate: &Candidate, finder: &mut Finder) -> Result<Box<dyn Source>> {
        if let Ok(recipe) = self.contents.store.recipe(&candidate.recipe) {
            return Ok(Box::new(Stored::of(&self.contents.store, recipe)));
        }
        for file in self.catalog.holders(&candidate.recipe)? {
            if let Some(path) = finder.path_of(file)? {
                return Ok(self.source(&path)?.0);
            }
        }
        Err(OverlayError::io("find", "a candidate", io::Error::other("no file has this content any more")))
    }

    /// The content of the regular file at `path` below the root.
    fn source(&self, path: &Path) -> Result<(Box<dyn Source>, FileId)> {
        let path_fd = backing::open_path(self.backing.root(), path.as_os_str())
            .map_err(|e| OverlayError::io("open", path, e))?;
        let stat = rustix::fs::fstat(&path_fd)?;
        if backing::kind(stat.st_mode) != Kind::File {
            return Err(OverlayError::io("open", path, io::Error::other("not a regular file")));
        }
        let inode = self.inodes.enter(&self.backing, path_fd, &stat, 0)?;
        let id = inode.file_id();
        let content = self.lock_loaded(&inode).map(|state| state.content);
        let source = content.and_then(|content| match content {
            Some(Content::Stub(stub)) => {
                let recipe = self.recipe_of(&inode, &stub)?;
                Ok(Box::new(Stored::of(&self.contents.store, recipe)) as Box<dyn Source>)
            }
            Some(Content::Unknown(reason)) => Err(self.bad_stub(&inode, reason)),
            _ => {
                let file = backing::open_io(inode.path_fd()?, OFlags::RDONLY)?;
                let size = rustix::fs::fstat(&file)?.st_size as u64;
                Ok(Box::new(Plain(file, size)) as Box<dyn Source>)
            }
        });
        self.inodes.release(inode);
        Ok((source?, id))
    }
}
