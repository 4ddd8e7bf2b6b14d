//! Errors of settings: each names the value, and shows a valid one.

use super::pattern::BadPattern;
use crate::similarity::methods::{self, BadMethod};
use crate::tree::BadGlob;
use crate::view::View;

/// A value that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a size.
    #[error("size {0:?}: expected a number of bytes with an optional unit, like 16KiB, 4M or 1000000")]
    Size(String),
    /// Not a duration.
    #[error("duration {0:?}: expected a number with a unit, like 30s, 10m, 2h or 1d")]
    Duration(String),
    /// Not a policy.
    #[error("dedup policy {0:?}: expected on-close, idle:TIME (like idle:10m) or off")]
    Dedup(String),
    /// Not a minimum size of hybrid files.
    #[error("hybrid_min {0:?}: expected a size, like \"16MiB\", or \"off\"")]
    HybridMin(String),
    /// Not a size for hot files, which are kept plain because they are read often.
    #[error("hot_bytes {0:?}: expected a size, like \"1GiB\", or \"off\"")]
    HotBytes(String),
    /// Not a part of a filesystem.
    #[error("{0} {1:?}: expected a size or a share of the filesystem, like \"5GiB\" or \"10%\"")]
    Amount(&'static str, String),
    /// Not a way to collect garbage.
    #[error("gc {0:?}: expected auto or off")]
    Gc(String),
    /// Not a way to group chunks.
    #[error("optimize {0:?}: expected off or idle:TIME (like idle:1h)")]
    Optimize(String),
    /// Not a rate.
    #[error("rate {0:?}: expected a size a second, at least 64KiB/s, like 50MiB/s")]
    Rate(String),
    /// A glob of a rule.
    #[error(transparent)]
    Glob(#[from] BadGlob),
    /// A rule without a setting.
    #[error("[[policy]]: expected {0}")]
    Rule(&'static str),
    /// An error on that line of the file.
    #[error("{error}, on line {line}")]
    Line {
        /// The error.
        error: Box<ConfigError>,
        /// Number of the line, from 1.
        line: usize,
    },
    /// Not views.
    #[error("views {0:?}: expected auto, all, off or a list of {names}", names = view_names())]
    Views(String),
    /// Not methods.
    #[error("methods {0:?}: expected a list of {names}, or off", names = methods::names().join(", "))]
    Methods(String),
    /// Parameters of a method.
    #[error(transparent)]
    Method(BadMethod),
    /// A method more than once.
    #[error("methods: {0} is there twice, and has one index")]
    MethodTwice(&'static str),
    /// Not a way to keep versions.
    #[error("history keep {0:?}: expected rules or none")]
    HistoryKeep(String),
    /// Not a schedule of snapshots.
    #[error(
        "history snapshots {0:?}: expected numbers of snapshots to keep, each at least 1 and once, of hourly, daily, weekly, \
        monthly and yearly, like \"hourly:24 daily:7 weekly:4\""
    )]
    Snapshots(String),
    /// Not an amount of indexing for similarity.
    #[error("similarity {0:?}: expected full, chunks or off")]
    Similarity(String),
    /// Not a choice about versions of some files.
    #[error("history {0:?}: expected on or off")]
    History(String),
    /// A glob of directories that are synced as a whole.
    #[error("groups {0:?} in [sync]: {1}")]
    Group(String, String),
    /// A pattern of paths that are synced.
    #[error("only {0}")]
    Only(BadPattern),
    /// A list without patterns of paths that are synced.
    #[error("only in [sync]: expected at least one path, found none; leave the line out to sync everything")]
    OnlyNothing,
    /// A pattern of paths that are not synced.
    #[error("not {0:?} in [sync]: {1}")]
    Not(String, String),
    /// Not a choice whether owners or ACLs are synced.
    #[error("{0} {1:?} in [sync]: expected auto or off")]
    Attribute(&'static str, String),
    /// Not the name of an account.
    #[error("owners {0:?} in [sync]: expected the name of a user or group, or `#` and an id, like \"#1000\"")]
    Account(String),
    /// Two names of the other side have one name here.
    #[error(
        "owners in [sync]: both {0:?} and {1:?} map to {2:?}, so the way back is not clear; remove one of them"
    )]
    AccountTwice(String, String, String),
    /// The file is not TOML of the expected form.
    #[error("{0}")]
    Form(String),
}

fn view_names() -> String {
    View::ALL.map(View::name).join(", ")
}
