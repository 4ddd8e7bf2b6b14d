//! The indexes that find contents by their bytes, next to the catalog, which finds them by file.

use super::method_indexes::MethodIndexes;
use super::totals::Summed;
use super::views::Views;
use crate::catalog::Catalog;
use crate::contents::Contents;
use crate::contents::forgetting::Forgetting;
use crate::contents::throttle::Throttle;
use crate::tree::Tree;
use std::sync::{Arc, Mutex};

/// All indexes of contents that files have.
pub struct Indexes {
    pub(crate) tree: Arc<Tree>,
    pub(crate) contents: Arc<Contents>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) forgetting: Forgetting,
    pub(crate) views: Option<Views>,
    pub(crate) method_indexes: Option<MethodIndexes>,
    pub(crate) summed: Mutex<Option<Summed>>,
}

impl Indexes {
    /// Indexes for the files of `tree`, in addition to that of their bytes.
    pub fn new(
        tree: Arc<Tree>,
        throttle: Arc<Throttle>,
        views: Option<Views>,
        method_indexes: Option<MethodIndexes>,
    ) -> Indexes {
        Indexes {
            contents: tree.contents.clone(),
            catalog: tree.catalog.clone(),
            tree,
            throttle,
            forgetting: Forgetting::default(),
            views,
            method_indexes,
            summed: Mutex::default(),
        }
    }
}
