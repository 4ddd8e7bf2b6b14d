use super::text::shown;
use super::{AdminError, Context, Progress, Report};
use crate::contents::OverlayError;
use crate::query::{Group, GroupOptions};
use crate::similarity::SimilarityError;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// In the state directory: saved results of comparing all with all. May be removed at any time.
const DIR: &str = "groups";

/// Identical files and groups of similar files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupsReport {
    /// Sets of identical files; those with the most redundant bytes first.
    pub identical: Vec<IdenticalReport>,
    /// Number of such sets.
    pub identical_sets: u64,
    /// Number of files in them.
    pub identical_files: u64,
    /// Redundant bytes in them.
    pub identical_bytes: u64,
    /// Contents that resemble a representative; groups with the most savable bytes first.
    pub groups: Vec<GroupReport>,
    /// Estimated number of groups.
    pub estimated_groups: u64,
    /// Estimated number of contents in them.
    pub estimated_members: u64,
    /// Bytes that all of them could save.
    pub estimated_bytes: u64,
    /// Compared contents.
    pub contents: u64,
    /// Contents among them that an earlier comparison covered.
    pub reused: u64,
    /// Pairs of similar contents.
    pub pairs: u64,
    /// Features ignored because too many files have them.
    pub suppressed_features: u64,
    /// Rows omitted because the report became too long.
    pub omitted: u64,
    /// Files that `similarity = "off"` leaves out of the index: they are in no group of similar files.
    #[serde(default)]
    pub not_indexed: u64,
    /// Whether files may be missing because the index does not know them yet.
    pub behind: bool,
}

/// Identical files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdenticalReport {
    /// Length of each.
    pub size: u64,
    /// Their paths below the overlay's root.
    pub paths: Vec<String>,
}

/// Contents that resemble a representative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Its position in the report, from 1.
    pub id: u64,
    /// Bytes of all contents in it, each once.
    pub bytes: u64,
    /// Bytes of the other members that the representative has.
    pub savable_bytes: u64,
    /// A file with the representative's content.
    pub representative: String,
    /// The representative first, then the others, by containment.
    pub members: Vec<MemberReport>,
}

/// A content in a group. Shares are 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// A file that has it.
    pub path: String,
    /// Number of files with it.
    pub copies: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Its share that is in the representative.
    pub containment: f64,
    /// The representative's share that is in it.
    pub contained_in: f64,
    /// Common bytes divided by the bytes in either.
    pub resemblance: f64,
    /// Its bytes that are in the representative.
    pub bytes_common: u64,
    /// Whether the figures come from the bytes, or are estimates.
    pub verified: bool,
}

pub(super) fn groups(
    context: Context<'_>,
    path: &Path,
    options: &GroupOptions,
    report: Report<'_>,
) -> Result<GroupsReport, AdminError> {
    let dir = context.repo.state_file(DIR);
    let found = context.repo.overlay().groups(path, options, &dir, &mut |what, done, all| {
        let progress = Progress { what: what.to_owned(), done, total: all, unit: super::Unit::Files };
        report(progress)
    });
    let found = found.map_err(|e| match e {
        OverlayError::Similarity(SimilarityError::Interrupted) => AdminError::Interrupted,
        e => e.into(),
    })?;
    let identical = found.identical.into_iter().map(|set| IdenticalReport {
        size: set.size,
        paths: set.paths.iter().map(|path| shown(path)).collect(),
    });
    Ok(GroupsReport {
        identical: identical.collect(),
        identical_sets: found.identical_sets,
        identical_files: found.identical_files,
        identical_bytes: found.identical_bytes,
        groups: (1..).zip(&found.groups).map(|(id, group)| group_report(id, group)).collect(),
        estimated_groups: found.estimated_groups,
        estimated_members: found.estimated_members,
        estimated_bytes: found.estimated_bytes,
        contents: found.contents,
        reused: found.reused,
        pairs: found.pairs,
        suppressed_features: found.suppressed_features,
        omitted: found.omitted,
        not_indexed: context.repo.overlay().indexes.not_indexed()?,
        behind: context.repo.behind(),
    })
}

fn group_report(id: u64, group: &Group) -> GroupReport {
    let members = group.members.iter().map(|member| MemberReport {
        path: shown(&member.path),
        copies: member.copies,
        size: member.size,
        containment: member.shares.containment,
        contained_in: member.shares.contained_in,
        resemblance: member.shares.resemblance,
        bytes_common: member.shares.bytes_common,
        verified: member.shares.verified,
    });
    GroupReport {
        id,
        bytes: group.bytes,
        savable_bytes: group.savable_bytes,
        representative: group.members.first().map(|member| shown(&member.path)).unwrap_or_default(),
        members: members.collect(),
    }
}
