//! The parts that answers are made from.

use crate::catalog::Catalog;
use crate::contents::Contents;
use crate::indexes::Indexes;
use crate::tree::Tree;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Read-only questions about the files of a tree. Nothing here changes a file or the store.
pub struct Queries {
    pub(crate) tree: Arc<Tree>,
    pub(crate) contents: Arc<Contents>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) templates_dir: OnceLock<PathBuf>,
}

impl Queries {
    /// Questions about the files that `indexes` know.
    pub fn new(indexes: Arc<Indexes>) -> Queries {
        Queries {
            tree: indexes.tree.clone(),
            contents: indexes.contents.clone(),
            catalog: indexes.catalog.clone(),
            indexes,
            templates_dir: OnceLock::new(),
        }
    }
}
