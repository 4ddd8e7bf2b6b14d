use serde::{Deserialize, Serialize};

/// Progress of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Current work.
    pub what: String,
    /// Done so far.
    pub done: u64,
    /// Total; 0 if unknown.
    pub total: u64,
    /// Unit of the counts.
    pub unit: Unit,
}

/// Unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Files.
    Files,
}

impl Progress {
    /// Creates progress in bytes.
    pub fn bytes(what: &str, done: u64, total: u64) -> Progress {
        Progress { what: what.to_owned(), done, total, unit: Unit::Bytes }
    }

    /// Creates progress in files.
    pub fn files(what: &str, done: u64, total: u64) -> Progress {
        Progress { what: what.to_owned(), done, total, unit: Unit::Files }
    }
}

/// Gets the progress; false asks to stop, which only waiting actions do.
pub type Report<'a> = &'a mut dyn FnMut(Progress) -> bool;
