//! Work on an overlay as a whole: scans, garbage collection, compaction, export and repair.

mod check_stubs;
mod compaction;
mod export;
mod gc;
mod gc_mark;
mod idle;
mod install;
mod maintenance;
mod optimize;
mod persist;
mod renamed;
mod renamed_dirs;
mod repair;
pub(crate) mod scan;
mod settle;
mod snapshot_walk;
mod strip_records;

pub use check_stubs::{Finding, Trouble};
pub use export::{ExportNeeds, ExportOptions, Exported};
pub use gc::{GcOutcome, GcStep, WouldFree};
pub use install::INSTALL_PREFIX;
pub(crate) use install::{install_name, set_attributes, write_file};
pub use maintenance::Maintenance;
pub use optimize::{OptimizeOutcome, OptimizeStep};
pub use repair::search_tree;
pub use scan::ScanReport;
pub use snapshot_walk::{Held, Met};
