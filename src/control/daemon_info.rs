use crate::admin::text;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Address of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Its socket.
    #[serde(with = "text")]
    pub socket: PathBuf,
    /// The backing directory.
    #[serde(with = "text")]
    pub root: PathBuf,
    /// Its mount point.
    #[serde(with = "text")]
    pub mountpoint: PathBuf,
    /// Identity of the store.
    pub store: String,
    /// The daemon's process.
    pub pid: u32,
}
