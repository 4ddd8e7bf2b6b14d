use super::text::shown;
use super::{AdminError, Report, catch_up};
use crate::history::Listed;
use crate::overlay::stub::Time;
use crate::repo::Repo;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The versions of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReport {
    /// The file, below the overlay's root.
    pub path: String,
    /// The oldest first; those that were given up are left out.
    pub versions: Vec<VersionRow>,
    /// How many were given up by the rules.
    pub given_up: u64,
}

/// A version of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRow {
    /// Its number: `FILE@N`.
    pub n: u64,
    /// When it was taken into the store (RFC 3339).
    pub time: String,
    /// When its content was last changed (RFC 3339).
    pub mtime: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its content.
    pub recipe: String,
    /// On which machine.
    pub machine: String,
    /// Where it was then, below the overlay's root.
    pub path: String,
    /// Permission bits, octal.
    pub mode: String,
}

/// A time as it is shown: RFC 3339 in UTC.
pub(super) fn time_text(time: Time) -> String {
    jiff::Timestamp::new(time.sec, time.nsec as i32)
        .map_or_else(|_| time.sec.to_string(), |time| time.to_string())
}

impl VersionRow {
    fn of(listed: Listed) -> VersionRow {
        let Listed { n, time, machine, version, .. } = listed;
        VersionRow {
            n,
            time: time_text(time),
            mtime: time_text(version.meta.mtime),
            size: version.size,
            recipe: version.recipe.to_string(),
            machine,
            path: shown(&version.path),
            mode: format!("{:04o}", version.meta.mode),
        }
    }
}

/// Lists what there is of a file, once what was closed before is taken in.
pub(super) fn log(repo: &Repo, path: &Path, report: Report<'_>) -> Result<LogReport, AdminError> {
    catch_up(repo, report)?;
    let all = repo.history().versions(path)?;
    let given_up = all.iter().filter(|listed| !listed.version.kept).count() as u64;
    let versions = all.into_iter().filter(|listed| listed.version.kept).map(VersionRow::of).collect();
    Ok(LogReport { path: shown(path), versions, given_up })
}
