//! Clusters: files that links connect (step 5 of the paper's algorithm).

use super::{FileNode, Link};
use crate::similarity::SimilarityError;
use std::collections::BTreeMap;

/// Sets that grow together (Tarjan 1975); 4 bytes an element.
pub(super) struct UnionFind {
    parents: Vec<u32>,
}

impl UnionFind {
    pub(super) fn new(elements: usize) -> UnionFind {
        UnionFind { parents: (0..elements as u32).collect() }
    }

    /// Returns the lowest element of the set; halves the path to it.
    pub(super) fn find(&mut self, mut element: u32) -> u32 {
        loop {
            let parent = self.parents[element as usize];
            if parent == element {
                return element;
            }
            let above = self.parents[parent as usize];
            self.parents[element as usize] = above;
            element = above;
        }
    }

    pub(super) fn union(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        self.parents[a.max(b) as usize] = a.min(b);
    }
}

/// How the files of a cluster are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Two files.
    Pair,
    /// Every file with every other: often a template.
    Clique,
    /// Some files only by way of others.
    Chain,
}

impl Shape {
    /// Returns the name for a table.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Pair => "pair",
            Shape::Clique => "clique",
            Shape::Chain => "chain",
        }
    }
}

/// Files that links connect; only the first of several identical ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Their numbers.
    pub files: Vec<u32>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many pairs of them are linked.
    pub links: u64,
    /// The mean of [`Link::similarity`], 0 to 1.
    pub similarity: f64,
}

impl Cluster {
    /// Returns how its files are connected.
    pub fn shape(&self) -> Shape {
        match self.files.len() as u64 {
            2 => Shape::Pair,
            n if self.links == n * (n - 1) / 2 => Shape::Clique,
            _ => Shape::Chain,
        }
    }
}

/// Calls a function with each link.
pub(super) type EachLink<'a> =
    &'a dyn Fn(&mut dyn FnMut(Link) -> Result<(), SimilarityError>) -> Result<(), SimilarityError>;

/// Returns the clusters, most files first, then most bytes.
pub(super) fn clusters(files: &[FileNode], links: EachLink<'_>) -> Result<Vec<Cluster>, SimilarityError> {
    let mut sets = UnionFind::new(files.len());
    links(&mut |link| {
        sets.union(link.a, link.b);
        Ok(())
    })?;
    let mut found: BTreeMap<u32, Cluster> = BTreeMap::new();
    let empty = Cluster { files: Vec::new(), bytes: 0, links: 0, similarity: 0.0 };
    links(&mut |link| {
        let cluster = found.entry(sets.find(link.a)).or_insert_with(|| empty.clone());
        cluster.links += 1;
        cluster.similarity += link.similarity(files);
        Ok(())
    })?;
    for (number, file) in files.iter().enumerate() {
        if let Some(cluster) = found.get_mut(&sets.find(number as u32)) {
            cluster.files.push(number as u32);
            cluster.bytes += file.size;
        }
    }
    let mut clusters: Vec<Cluster> = found.into_values().collect();
    clusters.iter_mut().for_each(|cluster| cluster.similarity /= cluster.links as f64);
    clusters.sort_by_key(|cluster| {
        std::cmp::Reverse((cluster.files.len(), cluster.bytes, std::cmp::Reverse(cluster.files[0])))
    });
    Ok(clusters)
}
