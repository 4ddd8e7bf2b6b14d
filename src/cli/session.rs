//! A store for requests: through a daemon, or opened by this program.

use super::Global;
use super::error::CliError;
use super::output::Output;
use crate::admin::{self, Context, Progress, Request, Response};
use crate::control::{self, Client, ControlError, DaemonInfo, Found};
use crate::daemon;
use crate::overlay::Background;
use crate::repo::{Layout, OpenOptions, Repo, RepoError};
use std::path::{Path, PathBuf};

/// Purpose of opening the store, if the command must open it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Only asks.
    Ask,
    /// Files are indexed, and their contents stored. They stay plain: only a mount converts them.
    Change,
    /// The same, but converts files, with the user's consent.
    Convert,
    /// Collects garbage; on a full disk this begins with the index.
    Collect,
    /// Reads contents or writes them back: the index only has to find chunks.
    Copy,
}

pub(super) enum Session {
    Daemon(Client),
    Direct(Box<Direct>),
}

/// A store opened by this program.
pub(super) struct Direct {
    repo: Repo,
    background: Option<Background>,
}

/// Finds the store of `path` (by default the current directory), or the one that `--store` names.
pub(super) fn find(global: &Global, path: Option<&Path>) -> Result<Found, CliError> {
    let found = match (&global.store, path) {
        (Some(store), path) => control::find_store(store, path)?,
        (None, path) => control::find(path.unwrap_or(Path::new(".")))?,
    };
    Ok(found)
}

/// Finds like [`find`], for a file that may be outside the overlay. Then the path is absolute, and the flag is true.
pub(super) fn find_for_file(global: &Global, file: &Path) -> Result<(Found, PathBuf, bool), CliError> {
    let inside = match &global.store {
        Some(store) => control::find_store(store, Some(file)),
        None => control::find(file),
    };
    let found = match inside {
        Ok(Found::Daemon { client, info, path }) => {
            return Ok((Found::Daemon { client, info, path: path.clone() }, path, false));
        }
        Ok(Found::Direct { layout, path }) => {
            return Ok((Found::Direct { layout, path: path.clone() }, path, false));
        }
        Err(ControlError::Outside { .. } | ControlError::NoStore(_)) => find(global, None)?,
        Err(e) => return Err(e.into()),
    };
    let absolute = file.canonicalize().map_err(|e| CliError::io("find", file, &e))?;
    Ok((found, absolute, true))
}

impl Session {
    /// Opens the store. Also returns the path below the root.
    pub(super) fn open(found: Found, work: Work, out: &Output) -> Result<(Session, PathBuf), CliError> {
        match found {
            Found::Daemon { client, path, .. } => Ok((Session::Daemon(client), path)),
            Found::Direct { layout, path } => {
                let direct = Direct::open(&layout, &OpenOptions::default(), work, out)?;
                Ok((Session::Direct(Box::new(direct)), path))
            }
        }
    }

    /// Returns whether files stay plain that a mounted overlay would convert.
    pub(super) fn withholds(&self) -> bool {
        matches!(self, Session::Direct(direct) if direct.repo.withholds())
    }

    /// Executes a request, and ends the session.
    pub(super) fn ask(self, request: Request, out: &Output) -> Result<Response, CliError> {
        match self {
            Session::Daemon(mut client) => {
                let mut meter = out.meter();
                Ok(client.ask(&request, &mut |step| meter.show(&step))?)
            }
            Session::Direct(direct) => direct.ask(request, out),
        }
    }
}

/// A store for several requests.
pub(super) enum Repeated {
    Daemon(DaemonInfo),
    Direct(Box<Direct>),
}

impl Repeated {
    /// Opens the store. Also returns the path below the root.
    pub(super) fn open(found: Found, out: &Output) -> Result<(Repeated, PathBuf), CliError> {
        match found {
            Found::Daemon { info, path, .. } => Ok((Repeated::Daemon(info), path)),
            Found::Direct { layout, path } => {
                let direct = Direct::open(&layout, &OpenOptions::default(), Work::Ask, out)?;
                Ok((Repeated::Direct(Box::new(direct)), path))
            }
        }
    }

    pub(super) fn ask(&self, request: Request, out: &Output) -> Result<Response, CliError> {
        match self {
            Repeated::Direct(direct) => direct.once(request, out),
            Repeated::Daemon(info) => {
                let client = Client::connect(info)?;
                Ok(client.ok_or(ControlError::Ended)?.ask(&request, &mut |_| {})?)
            }
        }
    }

    pub(super) fn close(self) -> Result<(), CliError> {
        match self {
            Repeated::Daemon(_) => Ok(()),
            Repeated::Direct(direct) => Ok(direct.repo.close(Vec::new())?),
        }
    }
}

impl Direct {
    pub(super) fn open(
        layout: &Layout,
        options: &OpenOptions,
        work: Work,
        out: &Output,
    ) -> Result<Direct, CliError> {
        daemon::raise_limits();
        let mut meter = out.meter();
        let options = OpenOptions { convert: work == Work::Convert, ..*options };
        let mut open = |options: &OpenOptions| {
            Repo::open(layout, options, &mut |step| {
                meter.show(&Progress::bytes("reading packs", step.done_bytes, step.total_bytes));
            })
        };
        let repo = match open(&options) {
            Err(full @ RepoError::NoRoom { .. }) if !options.read_only => {
                out.note(&full.to_string());
                match work {
                    Work::Collect => {
                        out.note("the index is removed for its space; the next mount makes it again from the packs");
                        open(&OpenOptions { give_up_index: true, ..options })?
                    }
                    _ => open(&OpenOptions { read_only: true, ..options })?,
                }
            }
            opened => opened?,
        };
        drop(meter);
        if work == Work::Ask && repo.behind() {
            out.note("the index may be behind the files; `dedupctl scan` brings it up to date");
        }
        let background =
            matches!(work, Work::Change | Work::Convert | Work::Collect).then(|| repo.overlay().start());
        Ok(Direct { repo, background })
    }

    pub(super) fn repo(&self) -> &Repo {
        &self.repo
    }

    pub(super) fn ask(self, request: Request, out: &Output) -> Result<Response, CliError> {
        let result = self.once(request, out);
        let left = self.background.map(Background::stop).unwrap_or_default();
        let closed = self.repo.close(left);
        let response = result?;
        closed?;
        Ok(response)
    }

    fn once(&self, request: Request, out: &Output) -> Result<Response, CliError> {
        let mut meter = out.meter();
        self.answer(request, &mut |step| meter.show(&step))
    }

    /// Executes a request; other threads may ask meanwhile.
    pub(super) fn answer(
        &self,
        request: Request,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Response, CliError> {
        let context = Context { repo: &self.repo, mountpoint: None };
        let result = admin::run(context, request, &mut |step| {
            report(step);
            true
        });
        result.map_err(|e| CliError {
            message: self.repo.readable(&e),
            hint: admin::hint(&self.repo, &e),
            silent: false,
        })
    }

    /// Scans the whole tree into a rebuilt index.
    pub(super) fn catch_up(&self, out: &Output) -> Result<(), CliError> {
        let mut meter = out.meter();
        let done = admin::catch_up(&self.repo, &mut |step| {
            meter.show(&step);
            true
        });
        done.map_err(|e| CliError { message: self.repo.readable(&e), ..e.into() })
    }
}

/// Returns the error for an answer that does not fit the request.
pub(super) fn unexpected(response: &Response) -> CliError {
    CliError::from(ControlError::Protocol(format!("{response:?}").chars().take(100).collect()))
}
