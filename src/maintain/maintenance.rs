//! The parts that maintenance works on.

use super::idle::Idle;
use super::renamed_dirs::Renamed;
use crate::catalog::Catalog;
use crate::contents::Contents;
use crate::convert::{Converter, Garbage};
use crate::db::Db;
use crate::indexes::Indexes;
use crate::tree::Tree;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Scans, garbage collection, export and repair of an overlay.
pub struct Maintenance {
    pub(crate) tree: Arc<Tree>,
    pub(crate) contents: Arc<Contents>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) converter: Arc<Converter>,
    pub(crate) db: Arc<dyn Db>,
    pub(crate) garbage: Arc<Garbage>,
    pub(crate) renamed: Arc<Renamed>,
    /// Whether the daemon collects garbage by itself.
    pub(crate) auto_gc: AtomicBool,
    pub(crate) idle: Idle,
}

impl Maintenance {
    /// Maintenance of the tree that `converter` works on, whose index is `db`.
    pub fn new(converter: Arc<Converter>, db: Arc<dyn Db>) -> Maintenance {
        Maintenance {
            tree: converter.tree.clone(),
            contents: converter.contents.clone(),
            catalog: converter.catalog.clone(),
            indexes: converter.indexes.clone(),
            garbage: converter.garbage.clone(),
            converter,
            db,
            renamed: Arc::default(),
            auto_gc: AtomicBool::new(false),
            idle: Idle::default(),
        }
    }
}
