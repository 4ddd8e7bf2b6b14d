use super::{
    BarrierRequest, ExportRequest, FileRef, OptimizeRequest, RepairRequest, RestoreRequest, Side,
    SnapshotRequest, TemplateRequest, WinnowRequest, text,
};
use crate::contents::SimilarOptions;
use crate::query::GroupOptions;
use crate::similarity::methods::Chosen;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A request. Paths are below the overlay's root unless noted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Report policy, sizes, index, queue.
    Status,
    /// Commit or index existing files.
    Scan {
        /// File or directory.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Wait until every closed file is chunked, indexed and durable.
    Settle,
    /// The same, unless many files wait.
    SettleFew {
        /// The maximum number of files.
        most: u64,
    },
    /// Find files that resemble one file.
    Similar {
        /// The file: below the root, or with `outside` an absolute path.
        #[serde(with = "text")]
        path: PathBuf,
        /// Whether the file is outside the overlay.
        outside: bool,
        /// Search options.
        options: SimilarOptions,
    },
    /// Find identical files, and groups of similar files.
    Groups {
        /// File or directory to search.
        #[serde(with = "text")]
        path: PathBuf,
        /// Search options.
        options: GroupOptions,
    },
    /// Find files that resemble one, through a saved index of a published method.
    SimilarByMethod {
        /// The file.
        file: FileRef,
        /// The method; with parameters only if they must differ from the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// Limit of files.
        limit: usize,
        /// Options of winnowing.
        #[serde(default)]
        winnow: WinnowRequest,
    },
    /// Find groups of similar files through such an index.
    GroupsByMethod {
        /// File or directory to search.
        #[serde(with = "text")]
        path: PathBuf,
        /// The method; with parameters only if they must differ from the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// With winnowing: fingerprints of these files do not count.
        #[serde(default)]
        base: Vec<FileRef>,
    },
    /// Find pairs of files by the number of common fingerprints, through a saved winnowing index.
    PairsByMethod {
        /// File or directory to search.
        #[serde(with = "text")]
        path: PathBuf,
        /// Winnowing; with parameters only if they must differ from the index.
        method: Chosen,
        /// Smallest score.
        min: f64,
        /// Limit of pairs.
        limit: usize,
        /// Fingerprints of these files do not count.
        base: Vec<FileRef>,
    },
    /// Return some of the contents in a saved index.
    MethodContents {
        /// File or directory to search.
        #[serde(with = "text")]
        path: PathBuf,
        /// The method; with parameters only if they must differ from the index.
        method: Chosen,
        /// First number.
        from: u32,
    },
    /// Return some of its keys.
    MethodKeys {
        /// The method; with parameters only if they must differ from the index.
        method: Chosen,
        /// First key.
        from: u64,
    },
    /// Compute how much of one directory another contains.
    Contained {
        /// The contained directory.
        tree: FileRef,
        /// The holder; by default everything else in the overlay.
        holder: Option<FileRef>,
        /// Limit of compared bytes.
        budget_bytes: u64,
    },
    /// Show and change passages that similarity ignores.
    Template(TemplateRequest),
    /// Verify stored content.
    Check {
        /// Stubs to check.
        #[serde(with = "text")]
        path: PathBuf,
        /// Also decode and hash everything.
        deep: bool,
    },
    /// Verify stored content and repair it, or only plan the repair.
    Repair(RepairRequest),
    /// List the versions of a file.
    Log {
        /// The file, which may be removed.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Restore a version of a file.
    Restore(RestoreRequest),
    /// Take, list and use snapshots.
    Snapshot(SnapshotRequest),
    /// Show the common parts of two contents.
    Diff {
        /// The first.
        a: Side,
        /// The second.
        b: Side,
        /// Limit of regions; the longest are kept.
        limit: usize,
        /// Limit of each content's bytes in the report; none by default.
        #[serde(default)]
        excerpt_bytes: u64,
    },
    /// Compute the space that a removal would free.
    WouldFree {
        /// A file or directory; or `.snapshots/ID`.
        #[serde(with = "text")]
        path: PathBuf,
    },
    /// Free content that no file needs.
    Gc {
        /// Only report.
        dry_run: bool,
    },
    /// Group similar chunks.
    Optimize(OptimizeRequest),
    /// Make files plain again.
    Export(ExportRequest),
    /// Find the hashes of contents.
    Contents {
        /// Their recipes, hexadecimal.
        recipes: Vec<String>,
    },
    /// Read contents together.
    Read {
        /// Their recipes, hexadecimal.
        recipes: Vec<String>,
    },
    /// Find former contents of files.
    #[serde(rename = "past")]
    OldContents {
        /// Their recipes, hexadecimal.
        recipes: Vec<String>,
        /// Whether to write them to [`super::old_content_file`].
        write: bool,
    },
    /// Read some paths while changes are held up.
    #[serde(rename = "moment")]
    WriteBarrier(BarrierRequest),
    /// List what changed in the mount since a moment.
    Changes {
        /// As returned before; none for the first time.
        since: Option<String>,
        /// The thread whose own changes are left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        except: Option<u32>,
    },
    /// Wait until the mount is changed.
    WaitForChange {
        /// The state of then, as returned before; returns at once if there is none.
        seen: Option<String>,
    },
    /// Finish conversions in flight and unmount. Only a daemon can.
    Unmount {
        /// Also end it while other mount namespaces hold it.
        #[serde(default)]
        lazy: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::Request;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::path::PathBuf;

    #[test]
    fn every_path_survives() {
        for bytes in [&b"a/b"[..], b"", b"\xff\xfe", "\u{e9}\n\"".as_bytes()] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let json = serde_json::to_string(&Request::Scan { path: path.clone() }).unwrap();
            let Request::Scan { path: back } = serde_json::from_str(&json).unwrap() else { panic!("{json}") };
            assert_eq!(back, path);
        }
    }
}
