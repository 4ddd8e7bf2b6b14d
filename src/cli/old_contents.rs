//! Former contents and similar files of a mounted overlay, from its daemon.

use crate::admin::{
    BarrierReport, BarrierRequest, BarrierRow, ChangedRow, ChangesReport, ContentsReport, OldContentsReport,
    ReadReport, Request, Response, VersionRow, barrier_file, contents_file, old_content_file,
};
use crate::backing::stub;
use crate::beneath::Root;
use crate::chunk::ChunkParams;
use crate::contents::SimilarOptions;
use crate::control::{Client, ControlError, DaemonInfo};
use crate::id::{ChunkId, RecipeId};
use crate::query::Match;
use crate::repo::Layout;
use crate::sync::SyncError;
use crate::sync::attributes::acl;
use crate::sync::memory::Print;
use crate::sync::old_contents::{Changes, Known, OldContents, Row, RowKind, Version};
use crate::sync::tree::{ContentId, Time, TreePath, is_xattr};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Recipes in one request.
const RECIPES_IN_REQUEST: usize = 1000;
/// Limits for similar files as bases of a delta: their number, and their smallest share.
const SIMILAR_MAX: usize = 8;
const SHARE_MIN: f64 = 0.1;

/// Access to the store's former contents; see the module.
pub(super) struct StoreOldContents {
    pub info: DaemonInfo,
    /// The overlaid directory, below its mount.
    pub backing: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// The overlaid directory: a mount does not pass on a sync of the filesystem.
    pub disk: File,
}

impl StoreOldContents {
    fn ask(&self, request: &Request) -> Result<Response, ControlError> {
        Client::connect(&self.info)?.ok_or(ControlError::Ended)?.ask(request, &mut |_| {})
    }

    /// Reports the effect of an error that does not end the sync.
    fn warn(&self, what: &str, error: Option<ControlError>) {
        let error = error.map_or_else(|| "unexpected answer of the daemon".to_owned(), |e| e.to_string());
        tracing::warn!("{}: {what}: {error}", self.info.root.display());
    }

    fn find(&self, recipes: &[RecipeId], write: bool) -> Result<Vec<bool>, SyncError> {
        let recipes: Vec<String> = recipes.iter().map(RecipeId::to_string).collect();
        let expected = recipes.len();
        match self.ask(&Request::OldContents { recipes, write }) {
            Ok(Response::OldContents(OldContentsReport { found })) if found.len() == expected => Ok(found),
            other => {
                self.warn("older contents cannot be read, so changed files are sent whole", other.err());
                Ok(vec![false; expected])
            }
        }
    }

    fn changes_except(&self, since: Option<&str>, except: Option<u32>) -> Option<Changes> {
        match self.ask(&Request::Changes { since: since.map(str::to_owned), except }) {
            Ok(Response::Changes(ChangesReport { moment, changed })) => {
                let row = |row: ChangedRow| (row.path.into_os_string().into_vec(), row.moved);
                let changed = changed.map(|rows| rows.into_iter().map(row).collect());
                moment.map(|moment| Changes { moment, changed })
            }
            // For example a daemon of an earlier release. The sync walks the tree.
            other => {
                tracing::debug!("{}: changes are not known: {:?}", self.info.root.display(), other.err());
                None
            }
        }
    }

    fn row(&self, n: usize, row: BarrierRow) -> io::Result<Row> {
        let content = match row.copied {
            true => {
                let path = self.state.join(barrier_file(n));
                let file = File::open(&path)?;
                std::fs::remove_file(&path)?;
                Some(file)
            }
            false => None,
        };
        let BarrierRow { inode: ino, size, mtime, ctime, .. } = row;
        Ok(Row {
            path: row.path.into_os_string().into_vec(),
            kind: match &*row.kind {
                "file" => RowKind::File(content),
                "directory" => RowKind::Dir,
                "symlink" => RowKind::Symlink(row.target.into_os_string().into_vec()),
                "fifo" => RowKind::Fifo,
                _ => RowKind::Other,
            },
            mode: row.mode,
            owner: row.owner,
            print: Print { ino, size, mtime, ctime, fresh: false, content: None, recipe: None },
            xattrs: row
                .xattrs
                .into_iter()
                .filter(|(name, _)| is_xattr(name) || acl::is_xattr(name))
                .collect(),
        })
    }
}

impl OldContents for StoreOldContents {
    fn recipe(&mut self, path: &TreePath) -> Option<Known> {
        let mut record = [0; stub::RECORD_LEN];
        let path = self.backing.join(OsStr::from_bytes(path));
        let len = rustix::fs::lgetxattr(path, stub::XATTR, &mut record[..]).ok()?;
        stub::claim(&record[..len])
            .map(|(recipe, now)| if now { Known::Now(recipe) } else { Known::Before(recipe) })
    }

    fn versions(&mut self, path: &TreePath) -> Vec<Version> {
        let path = Path::new(OsStr::from_bytes(path)).to_owned();
        let Ok(Response::Log(report)) = self.ask(&Request::Log { path }) else { return Vec::new() };
        let version = |row: VersionRow| {
            let mtime: jiff::Timestamp = row.mtime.parse().ok()?;
            let mtime = (mtime.as_second(), u32::try_from(mtime.subsec_nanosecond()).ok()?);
            Some(Version { recipe: row.recipe.parse().ok()?, size: row.size, mtime })
        };
        report.versions.into_iter().filter_map(version).collect()
    }

    fn chunk_params(&self) -> Option<ChunkParams> {
        Layout { root: self.info.root.clone(), state: self.state.clone() }.chunk_params().ok()
    }

    fn has(&mut self, recipes: &[RecipeId]) -> Result<Vec<bool>, SyncError> {
        let mut found = Vec::new();
        for some in recipes.chunks(RECIPES_IN_REQUEST) {
            found.extend(self.find(some, false)?);
        }
        Ok(found)
    }

    fn contents(&mut self, recipes: &[RecipeId]) -> Vec<Option<ContentId>> {
        let asked = recipes.iter().map(RecipeId::to_string).collect();
        match self.ask(&Request::Contents { recipes: asked }) {
            Ok(Response::Contents(ContentsReport { contents })) => {
                let content = |text: Option<String>| Some(ContentId(text?.parse::<ChunkId>().ok()?.0));
                contents.into_iter().map(content).collect()
            }
            // For example a daemon of an earlier release. The sync reads the files.
            _ => vec![None; recipes.len()],
        }
    }

    fn read_together(&mut self, recipes: &[RecipeId]) -> Result<Vec<Option<Vec<u8>>>, SyncError> {
        let path = self.state.join(contents_file());
        // Left by an interrupted sync.
        let _ = std::fs::remove_file(&path);
        let asked = recipes.iter().map(RecipeId::to_string).collect();
        let answer = self.ask(&Request::Read { recipes: asked });
        let all = std::fs::read(&path);
        let _ = std::fs::remove_file(&path);
        let (Ok(Response::Read(ReadReport { bytes })), Ok(all)) = (answer, all) else {
            // For example a daemon of an earlier release. The sync reads the files.
            return Ok(vec![None; recipes.len()]);
        };
        let mut rest = &all[..];
        let mut content = |len: Option<u64>| {
            let (content, after) = rest.split_at_checked(usize::try_from(len?).ok()?)?;
            rest = after;
            Some(content.to_vec())
        };
        let mut found: Vec<_> = bytes.into_iter().map(&mut content).collect();
        found.resize(recipes.len(), None);
        Ok(found)
    }

    fn read(&mut self, recipe: RecipeId) -> Result<Option<File>, SyncError> {
        let path = self.state.join(old_content_file(&recipe));
        let failed =
            |e: io::Error| SyncError::Io { operation: "read", object: path.display().to_string(), source: e };
        // Left by an interrupted sync.
        let _ = std::fs::remove_file(&path);
        if self.find(&[recipe], true)? != [true] {
            return Ok(None);
        }
        let file = File::open(&path).map_err(failed)?;
        std::fs::remove_file(&path).map_err(failed)?;
        Ok(Some(file))
    }

    fn resembling(&mut self, path: &TreePath) -> Vec<(TreePath, f64)> {
        let path = Path::new(OsStr::from_bytes(path)).to_owned();
        let options = SimilarOptions {
            min: SHARE_MIN,
            limit: SIMILAR_MAX,
            estimate: true,
            ..SimilarOptions::default()
        };
        match self.ask(&Request::Similar { path, outside: false, options }) {
            // A name that is not UTF-8 comes back changed, so the sync does not find it and uses another base.
            Ok(Response::Similar(report)) => {
                let of = |found: Match| (found.path.into_os_string().into_vec(), found.shares.containment);
                report.matches.into_iter().map(of).collect()
            }
            _ => Vec::new(),
        }
    }

    fn at_barrier(&mut self, path: &TreePath, beside: &[&[u8]], since: Time) -> Option<Vec<Row>> {
        let request = BarrierRequest {
            path: OsStr::from_bytes(path).into(),
            beside: beside.iter().map(|suffix| String::from_utf8_lossy(suffix).into_owned()).collect(),
            since,
        };
        let rows = match self.ask(&Request::WriteBarrier(request)) {
            Ok(Response::WriteBarrier(BarrierReport { rows })) => rows?,
            other => {
                self.warn(
                    "changes could not be held up, so files that are written to meanwhile wait",
                    other.err(),
                );
                return None;
            }
        };
        let rows = rows.into_iter().enumerate().map(|(n, row)| self.row(n, row));
        // Collects all of them, so that no temporary file is left.
        let rows: Vec<io::Result<Row>> = rows.collect();
        rows.into_iter().collect::<io::Result<_>>().ok()
    }

    fn changes(&mut self, since: Option<&str>) -> Option<Changes> {
        self.changes_except(since, None)
    }

    fn changes_by_others(&mut self, since: &str) -> Option<Changes> {
        // The daemon knows threads by the numbers of its own namespace.
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        if namespace("self")? != namespace(&self.info.pid.to_string())? {
            return None;
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        self.changes_except(Some(since), Some(thread))
    }

    fn below_mount(&self) -> Option<Root> {
        // Over itself, so that no other program writes there; and as the daemon's user, for the owner of the files.
        let daemon = std::fs::metadata(format!("/proc/{}", self.info.pid)).ok()?;
        let same = self.info.mountpoint == self.info.root
            && std::os::unix::fs::MetadataExt::uid(&daemon) == rustix::process::geteuid().as_raw();
        let read_only =
            |flags: rustix::fs::StatVfsMountFlags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY);
        let writable = rustix::fs::statvfs(&self.info.mountpoint).is_ok_and(|stat| !read_only(stat.f_flag));
        (same && writable)
            .then(|| self.disk.try_clone().ok())
            .flatten()
            .map(|disk| Root::from(OwnedFd::from(disk)))
    }

    fn sync_all(&mut self) -> Result<(), SyncError> {
        rustix::fs::syncfs(&self.disk).map_err(|e| SyncError::Io {
            operation: "sync the filesystem of",
            object: self.info.root.display().to_string(),
            source: e.into(),
        })
    }

    fn settle(&mut self, most: Option<u64>) -> Result<(), SyncError> {
        let request = most.map_or(Request::Settle, |most| Request::SettleFew { most });
        // The daemon does it anyway, sooner or later.
        if let Err(e) = self.ask(&request) {
            self.warn("the store could not be waited for, so some changed files are sent whole", Some(e));
        }
        Ok(())
    }
}
