use super::super::conflicts::ConflictsReport;
use super::super::error::CliError;
use super::super::file_version::FileVersion;
use super::super::output::Output;
use super::super::session::{Direct, Work, find};
use super::super::synced::LastSync;
use super::super::{Global, replica, status};
use crate::admin::{Progress, Request, Response, Side};
use crate::control::{self, ControlError, Found};
use crate::repo::OpenOptions;
use crate::sync::bases::Bases;
use crate::sync::conflicts::list;
use crate::sync::tree::shown;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// The source of reports: the daemon, or the store itself, which then stays open.
pub(super) struct Source {
    /// `None` for a daemon. That is found again for each request, since it may have been restarted.
    direct: Option<Box<Direct>>,
    /// The overlaid directory.
    root: PathBuf,
    /// Its mountpoint, or the directory itself if it is not mounted.
    base: PathBuf,
}

impl Source {
    pub(super) fn open(global: &Global, path: Option<&Path>, out: &Output) -> Result<Source, CliError> {
        match find(global, path)? {
            Found::Daemon { info, .. } => Ok(Source { direct: None, root: info.root, base: info.mountpoint }),
            Found::Direct { layout, .. } => {
                let direct = Direct::open(&layout, &OpenOptions::default(), Work::Ask, out)?;
                out.note("it is not mounted, and cannot be while this has the store open");
                Ok(Source { direct: Some(Box::new(direct)), root: layout.root.clone(), base: layout.root })
            }
        }
    }

    /// The overlaid directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn ask(
        &self,
        request: Request,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Response, CliError> {
        let Some(direct) = &self.direct else {
            return match control::find(&self.base) {
                Ok(Found::Daemon { mut client, .. }) => Ok(client.ask(&request, report)?),
                Ok(Found::Direct { .. }) | Err(ControlError::NoStore(_)) => Err(self.not_mounted()),
                Err(e) => Err(e.into()),
            };
        };
        // Only a process that converts files can add them to the index, and this one changes nothing.
        if matches!(request, Request::Diff { .. }) && direct.repo().behind() {
            let error = CliError::new("the index is behind the files, and versions may be missing");
            return Err(error.hint("end this and run `dedupctl scan`, or mount it"));
        }
        direct.answer(request, report)
    }

    /// Returns the last sync with each device.
    pub(super) fn last_syncs(&self) -> Vec<LastSync> {
        control::find(&self.base).map(|found| status::last_syncs(&found)).unwrap_or_default()
    }

    fn not_mounted(&self) -> CliError {
        CliError::new(format!("{} is not mounted any more", self.base.display()))
            .hint("mount it again, or restart `dedupctl ui`")
    }

    /// Returns the unresolved conflicts, or only those of the file `named`, with the differences of their versions. Only the
    /// mount shows all files.
    pub(super) fn conflicts(&self, named: Option<&OsStr>) -> Result<ConflictsReport, CliError> {
        if self.direct.is_some() {
            return Err(CliError::new("the overlay is not mounted, and only a mount shows conflicts")
                .hint("mount it, or run `dedupctl conflicts`"));
        }
        // Otherwise the search would mount it.
        if control::daemon_at(&self.base)?.is_none() {
            return Err(self.not_mounted());
        }
        let mounted = replica::open(&self.base, None)?;
        let mut all = list(&mounted.tree, &mounted.memory, &mounted.groups()?)?;
        let bases = Bases::of(&mounted.memory);
        let Some(named) = named else { return Ok(ConflictsReport::new(&all, 0, &bases)) };
        all.retain(|one| *named == *shown(&one.path));
        Ok(ConflictsReport::compared(&mounted.tree, &all, &bases))
    }

    /// Returns the file with a name: below the overlay's root, also as an absolute path, or elsewhere. `FILE@N` is a
    /// version.
    pub(super) fn file(&self, named: &OsStr) -> Result<Side, CliError> {
        let named = Path::new(named);
        let below = [&self.base, &self.root].into_iter().find_map(|top| named.strip_prefix(top).ok());
        let below = match (below, named.is_absolute()) {
            (Some(below), _) => below,
            (None, false) => named,
            (None, true) => {
                let path = named.canonicalize().map_err(|e| CliError::io("find", named, &e))?;
                if !path.is_file() {
                    let error = CliError::new(format!("{}: expected a regular file", named.display()));
                    return Err(error.hint("name one file"));
                }
                return Ok(Side { path, outside: true, n: None });
            }
        };
        if below.components().any(|part| !matches!(part, Component::Normal(_))) {
            let message =
                format!("{}: expected a path below the overlay's root, without . and ..", named.display());
            return Err(
                CliError::new(message).hint("name it from the root on, as `dedupctl similar` shows it")
            );
        }
        let FileVersion { path, n } = FileVersion::of(&self.base.join(below));
        let path = path.strip_prefix(&self.base).unwrap_or(&path).to_owned();
        Ok(Side { path, outside: false, n })
    }
}
