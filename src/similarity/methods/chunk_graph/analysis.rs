//! The analysis of a collection: identical files, links, clusters.
//!
//! Invariants: the answer depends on the collection, the templates and the thresholds, not on memory or on
//! whether it was partitioned.

use super::clusters::{self, Cluster};
use super::graph::{self, EDGE_BYTES_IN_MEMORY, Effort};
use super::identical::{self, IdenticalSet};
use super::link::LINK_BYTES;
use super::partition::{Kept, chunk_edge, one_part, partition};
use super::ubiquitous::Ubiquitous;
use super::{Collection, FileNode, GraphError, Link, Templates, Work, large};
use crate::similarity::SimilarityError;
use crate::similarity::methods::sorter::{Sorted, Sorter};
use std::path::Path;

/// The smallest memory setting.
const MEMORY_BYTES_MIN: usize = 16 << 10;

/// Options of an analysis.
#[derive(Clone, Debug)]
pub struct AnalysisOptions {
    /// Chunks that do not count.
    pub templates: Templates,
    /// A chunk that a larger share of the distinct files has, 0 to 1, is ubiquitous: files that have only such chunks in
    /// common are not compared; in files that are compared they count. Section 2.5 of the paper: half.
    pub ubiquitous_share: f64,
    /// A chunk that at most this many files have is never ubiquitous: so few files are compared in any case.
    pub ubiquitous_files_min: u32,
    /// A link has at least this many bytes in common.
    pub min_bytes: u64,
    /// And at least this share of the smaller file, 0 to 1.
    pub min_share: f64,
    /// Whether to prune and partition first.
    pub partition: bool,
    /// Memory for chunks; on top come some 40 bytes for each file, the files of one chunk at a time, each different list of
    /// ubiquitous chunks, and the sets and clusters that are found.
    pub memory_bytes: usize,
}

impl Default for AnalysisOptions {
    fn default() -> Self {
        AnalysisOptions {
            templates: Templates::default(),
            ubiquitous_share: 0.5,
            ubiquitous_files_min: 1000,
            min_bytes: 1,
            min_share: 0.25,
            partition: true,
            memory_bytes: 256 << 20,
        }
    }
}

impl AnalysisOptions {
    fn check(&self) -> Result<(), GraphError> {
        let share = |name, found: f64| match (0.0..=1.0).contains(&found) {
            true => Ok(()),
            false => Err(GraphError::Setting { name, found, expected: "a share from 0 to 1" }),
        };
        share("ubiquitous share", self.ubiquitous_share)?;
        share("least share", self.min_share)
    }
}

/// Result of an analysis.
pub struct Analysis {
    /// The files by number.
    pub files: Vec<FileNode>,
    /// Identical files; the set with the largest possible saving first.
    pub identical: Vec<IdenticalSet>,
    /// Similar files, the largest cluster first.
    pub clusters: Vec<Cluster>,
    /// The amount of work.
    pub work: Work,
    links: Sorted<LINK_BYTES>,
}

impl Analysis {
    /// Analyses a collection. Temporary files are in `dir`, without names.
    ///
    /// Time: sorting the chunks, and merging the lists of each pair of files that share a counted chunk.
    pub fn of(
        collection: &Collection,
        options: &AnalysisOptions,
        dir: &Path,
    ) -> Result<Analysis, GraphError> {
        options.check()?;
        // Half, because one sort is read while another is filled, or while a graph is in memory.
        let memory = options.memory_bytes.max(MEMORY_BYTES_MIN) / 2;
        let (files, identical) = identical::read(collection, &options.templates, memory, dir)?;
        let mut edges = Sorter::new(dir, memory);
        collection.each(&mut |file, _, list| {
            if !files[file as usize].copy {
                for &chunk in list.payload(&options.templates).iter() {
                    edges.add(chunk_edge(file, chunk))?;
                }
            }
            Ok(())
        })?;
        let edges = edges.finish()?;
        let mut work = Work { spilled: edges.spilled(), ..Work::default() };
        let distinct = files.iter().filter(|file| !file.copy).count();
        let files_max = (options.ubiquitous_share * distinct as f64) as u64;
        let files_max = files_max.max(options.ubiquitous_files_min.into());
        let part_edges = (memory / EDGE_BYTES_IN_MEMORY) as u64;
        let parts = if options.partition {
            let kept = Kept { files_min: 2, files_max };
            partition(&edges, files.len(), kept, part_edges, memory, dir, &mut work)?
        } else {
            one_part(&edges, Kept { files_min: 1, files_max }, part_edges, memory, dir, &mut work)?
        };
        drop(edges);
        let ubiquitous = Ubiquitous::read(collection, &files, &options.templates, &parts.ubiquitous)?;
        work.parts = parts.large.len() as u64;
        let (mut effort, mut links) = (Effort::default(), Sorter::new(dir, memory / 2));
        let mut found = |a, b, bytes| {
            let link = Link { a, b, bytes: bytes + ubiquitous.common_bytes(a, b) };
            let reaches = link.bytes >= options.min_bytes && link.similarity(&files) >= options.min_share;
            if reaches { links.add(link.to_bytes()) } else { Ok(()) }
        };
        for (part, large) in (0..).zip(&parts.large) {
            match large {
                true => large::links(&parts.large_edges, part, memory / 2, &mut effort, &mut found)?,
                false => graph::links(&parts.edges, part, &mut effort, &mut found)?,
            }
        }
        (work.blocks, work.comparisons) = (effort.blocks, effort.comparisons);
        let links = links.finish()?;
        let clusters = clusters::clusters(&files, &|visit| each_link(&links, visit))?;
        Ok(Analysis { files, identical, clusters, work, links })
    }

    /// Calls `visit` with each link, by both files.
    pub fn each_link(
        &self,
        visit: &mut dyn FnMut(Link) -> Result<(), SimilarityError>,
    ) -> Result<(), SimilarityError> {
        each_link(&self.links, visit)
    }

    /// Returns the links, in memory.
    pub fn links(&self) -> Result<Vec<Link>, SimilarityError> {
        let mut links = Vec::new();
        self.each_link(&mut |link| {
            links.push(link);
            Ok(())
        })?;
        Ok(links)
    }
}

fn each_link(
    links: &Sorted<LINK_BYTES>,
    visit: &mut dyn FnMut(Link) -> Result<(), SimilarityError>,
) -> Result<(), SimilarityError> {
    let mut merge = links.all()?;
    while let Some(bytes) = merge.next()? {
        visit(Link::of_bytes(bytes))?;
    }
    Ok(())
}
