//! The FUSE adapter: kernel requests in, overlay calls out. It decides nothing about files.

mod convert;
mod errno;
mod error;
mod filesystem;
mod helper;
mod holders;
mod keeper;
mod kernel_mount;
mod labels;
mod listings;
mod privilege;
mod request;
mod session;
mod setid;
mod snapshots;
mod spliced;
mod table;
mod thread_parking;

pub use error::MountError;
pub use holders::Holder;
pub use session::{MountOptions, Mounted, check_available, clear_dead_mount, mount};
