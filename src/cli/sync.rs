use super::attributes::Attributes;
use super::error::CliError;
use super::host::{check_host, parse_host};
use super::met::Met;
use super::output::{Output, plain};
use super::remote::Remotes;
use super::replica::Mounted;
use super::session::find;
use super::{CliResult, Global, Outcome, Program, replica, synced};
use crate::admin::Progress;
use crate::config::parse_size;
use crate::control;
use crate::sync::link::Traffic;
use crate::sync::plan::Summary;
use crate::sync::proto::{Direction, Options};
use crate::sync::session::Transfer;
use crate::sync::version::Device;
use crate::sync::{Local, Replica, Session, SyncError, link, pipe};
use connection::Connection;
use report::SyncReport;
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

mod budget;
mod connection;
mod report;
mod watch;

/// Make this tree and a copy equal, in both directions
#[derive(clap::Args)]
#[command(
    after_help = "PEER is a directory, HOST:DIR or USER@HOST:DIR (by ssh, with dedupctl there too), or a name that\n\
    from `dedupctl remote add`. Changes of one side go to the other. If both sides changed a file, both versions are kept,\n\
    and `dedupctl conflicts` resolves the conflict. A sync compares every file before it overwrites it. Run an interrupted\n\
    sync again to continue it. PEER must exist; `--create` creates it. Files that match .dedupfsignore (like .gitignore)\n\
    are not synced. `only` and `not` in [sync] of config.toml say which part of the tree this device has.\n\
    As root, owners and ACLs are synced by name; `owners` under [sync] in config.toml maps names of the\n\
    other side to names here.\n\
    Exit code 1: there are conflicts, or files that could not be synced completely; the sync names each of them.\n\
    Example: dedupctl sync ann@server:/data\n         dedupctl sync --dry-run --pull /mnt/disk/copy /data\n         \
    dedupctl sync --watch ann@server:/data\n         dedupctl sync --no-acl root@backup:/srv"
)]
pub(super) struct Sync {
    /// The other copy
    peer: String,
    /// A path of the overlay; by default the current directory
    path: Option<PathBuf>,
    /// Stay connected, and sync again after each change on either side; both must be mounted
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    /// Run COMMAND in a shell for each new conflict, with $DEDUPFS_PATH and $DEDUPFS_COPY (paths below the root)
    #[arg(long, value_name = "COMMAND")]
    on_conflict: Option<String>,
    /// Only print the plan
    #[arg(long)]
    dry_run: bool,
    /// Change only the other side
    #[arg(long, conflicts_with = "pull")]
    push: bool,
    /// Change only this side
    #[arg(long)]
    pull: bool,
    /// Limit of bytes a second, both directions together, like 500K
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    bwlimit: Option<u64>,
    /// Give up after this long without a sign from the other side
    #[arg(long, value_name = "SECONDS", default_value_t = pipe::SILENCE_SECONDS, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    #[command(flatten)]
    attributes: Attributes,
    /// Create the directory PEER if it is missing
    #[arg(long)]
    create: bool,
    /// Sync with the present copy, although an earlier sync met another one there
    #[arg(long)]
    replace: bool,
    /// Also if a directory is suddenly empty, or more than half of the files would be lost
    #[arg(long)]
    force: bool,
    /// Allow the overlay of PEER in a system directory, in another user's home, or above mounts
    #[arg(long)]
    force_root: bool,
    /// The program for connections, with arguments
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,
    /// Name of dedupctl on the other side
    #[arg(long, value_name = "PROGRAM", default_value = "dedupctl")]
    remote_program: String,
}

impl From<SyncError> for CliError {
    fn from(e: SyncError) -> CliError {
        CliError { message: e.to_string(), hint: e.hint(), silent: false }
    }
}

/// The other side, and the overlay of this one.
struct Target {
    peer: String,
    path: PathBuf,
    /// The device that must be there.
    expected: Option<String>,
    met: RefCell<Met>,
}

/// The reason why a session failed.
enum Trouble {
    /// There is no connection.
    Closed(CliError),
    /// Nothing came from the other side.
    Unheard,
    Failed(SyncError),
}

/// Maximum time that the other side waits for its store after a successful sync.
const SETTLING: Duration = Duration::from_secs(3600);

/// Parses a rate in bytes a second.
fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(rate) if rate < pipe::RATE_MIN => {
            Err(format!("expected at least {} bytes a second", pipe::RATE_MIN))
        }
        rate => rate.map_err(|e| e.to_string()),
    }
}

/// Returns whether a text is one word on the other side's command line.
fn is_device(text: &str) -> bool {
    Device::try_from(text.to_owned()).is_ok()
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Sync {
    /// Adds the right order of the arguments, if the overlay was given first.
    fn with_order(&self, error: CliError) -> CliError {
        let first = Path::new(&self.peer);
        match &self.path {
            Some(path) if first.exists() && control::find(first).is_ok() => {
                let (path, first) = (plain(&path.to_string_lossy()), plain(&self.peer));
                error.hint(format!("the overlay comes last: `dedupctl sync {path} {first}`"))
            }
            _ => error,
        }
    }

    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let target = self.target(global)?;
        if self.watch {
            return self.keep_equal(&target, out);
        }
        let command = self.command(&target)?;
        let mut mounted = replica::open(&target.path, None)?;
        // The other side scans at the same time.
        let mut connection = Connection::start(command, self.limits())?;
        let mut local = self.local(&mounted, out)?;
        let (session, traffic) = match self.talk(&mut local, &mut connection, out) {
            Ok(done) => done,
            Err(trouble) => return Err(self.explain(trouble, &target, &mut connection)),
        };
        if session.outcome().here != Summary::default() && !self.dry_run {
            local.settle(mounted.is_temporary())?;
        }
        connection.may_take(SETTLING);
        drop(connection);
        let device = local.device().to_string();
        drop(local);
        self.note_sync(&target, &mounted, &session)?;
        mounted.end();
        let report = SyncReport::new(&target.peer, &session, traffic, device, self.dry_run);
        self.call_hook(&report)?;
        report.show(out)?;
        Ok::<_, CliError>(if report.is_clean() { Outcome::Clean } else { Outcome::Findings })
    }

    /// Syncs after each change, until the user or the reader of the output ends it.
    fn keep_equal(&self, target: &Target, out: &Output) -> CliResult {
        let mounted = RefCell::new(replica::open_mounted(&target.path)?);
        let mut connect = || {
            // The daemon may be another one than last time.
            let found = replica::open_mounted(&target.path)?;
            let daemon = found.daemon().clone();
            mounted.replace(found);
            Ok((Connection::start(self.command(target)?, self.limits())?, daemon))
        };
        let mut shown = false;
        let mut sync = |connection: &mut Connection| {
            let mounted = mounted.borrow();
            let mut local = self.local(&mounted, out)?;
            let (session, traffic) = match self.talk(&mut local, connection, out) {
                Ok(done) => done,
                Err(trouble) => return Err(self.explain(trouble, target, connection)),
            };
            let device = local.device().to_string();
            drop(local);
            self.note_sync(target, &mounted, &session)?;
            let report = SyncReport::new(&target.peer, &session, traffic, device, false);
            self.call_hook(&report)?;
            match report.is_nothing() && std::mem::replace(&mut shown, true) {
                true => Ok(true),
                false => report.show_line(out),
            }
        };
        watch::watch(out, &mut connect, &mut sync)?;
        Ok(Outcome::Clean)
    }

    fn target(&self, global: &Global) -> Result<Target, CliError> {
        let found = find(global, self.path.as_deref()).map_err(|e| self.with_order(e))?;
        let peer = Remotes::of(&found)?.resolve(&self.peer);
        let met = Met::of(&found)?;
        let expected = met.at(&peer).filter(|device| !self.replace && is_device(device)).map(str::to_owned);
        let path = global.store.as_deref().filter(|_| self.path.is_none()).or(self.path.as_deref());
        let path = path.unwrap_or(Path::new(".")).to_owned();
        Ok(Target { peer, path, expected, met: RefCell::new(met) })
    }

    fn limits(&self) -> pipe::Limits {
        pipe::Limits { silence: Duration::from_secs(self.timeout.into()), rate: self.bwlimit }
    }

    /// Examines this side.
    fn local<'a>(&self, mounted: &Mounted, out: &Output) -> Result<Local<'a>, CliError> {
        let mut meter = out.meter();
        let report = Box::new(move |entries, bytes| {
            let step = match bytes {
                0 => Progress::files("looking", entries, 0),
                bytes => Progress::bytes("reading new and changed files", bytes, 0),
            };
            meter.show(&step);
        });
        let mut local = mounted.replica(self.force, self.dry_run, self.attributes, report)?;
        local.notes.drain(..).for_each(|note| out.note(&plain(&note)));
        Ok(local)
    }

    /// Runs one session.
    fn talk(
        &self,
        local: &mut Local<'_>,
        connection: &mut Connection,
        out: &Output,
    ) -> Result<(Session, Traffic), Trouble> {
        let direction = match (self.push, self.pull) {
            (true, _) => Direction::Push,
            (_, true) => Direction::Pull,
            _ => Direction::Both,
        };
        let options = Options { direction, dry_run: self.dry_run, force: self.force };
        let mut session = Session::call(local, options);
        let mut meter = out.meter();
        let mut heard = 0;
        let (from, to) = connection.ends().map_err(Trouble::Closed)?;
        let traffic = link::run(&mut session, local, from, to, &mut |session, traffic| {
            heard = traffic.received;
            let Transfer { received, to_receive, sent, to_send } = session.progress();
            meter.show(&match (received < to_receive, sent < to_send) {
                (true, _) => Progress::bytes("receiving", received, to_receive),
                (_, true) => Progress::bytes("sending", sent, to_send),
                _ => Progress::files("comparing and applying", 0, 0),
            });
        });
        match traffic {
            Err(SyncError::Cut) if heard == 0 => Err(Trouble::Unheard),
            Err(e) => Err(Trouble::Failed(e)),
            Ok(traffic) => Ok((session, traffic)),
        }
    }

    /// Closes the connection, and explains why a session failed.
    fn explain(&self, trouble: Trouble, target: &Target, connection: &mut Connection) -> CliError {
        match trouble {
            Trouble::Closed(e) => e,
            Trouble::Unheard => {
                let code = connection.exit_code();
                self.never_answered(&target.peer, target.expected.as_deref(), code)
            }
            Trouble::Failed(e) => {
                if let SyncError::Silent(_) = &e {
                    connection.may_take(Duration::ZERO);
                }
                named(e, &target.peer)
            }
        }
    }

    /// Remembers the device at the peer, and the time.
    fn note_sync(&self, target: &Target, mounted: &Mounted, session: &Session) -> Result<(), CliError> {
        let Some(device) = session.peer().filter(|_| !self.dry_run) else { return Ok(()) };
        target.met.borrow_mut().note(&target.peer, device.as_str())?;
        synced::note(&mounted.memory, &mounted.tree, session, Some(&self.peer))
    }

    /// Runs the user's command for each new conflict.
    fn call_hook(&self, report: &SyncReport) -> Result<(), CliError> {
        let Some(hook) = self.on_conflict.as_ref().filter(|_| !self.dry_run) else { return Ok(()) };
        for conflict in &report.conflicts {
            let mut command = Command::new("sh");
            command.arg("-c").arg(hook).stdin(Stdio::null()).stdout(std::io::stderr());
            command.env("DEDUPFS_PATH", &conflict.path).env("DEDUPFS_COPY", &conflict.copy);
            let status = command.status().map_err(|e| CliError::io("start", Path::new("sh"), &e))?;
            if !status.success() {
                tracing::warn!("--on-conflict: `{hook}` for {}: {status}", conflict.path);
            }
        }
        Ok(())
    }

    /// Explains that nothing came from a peer whose process ended with `code`.
    fn never_answered(&self, peer: &str, expected: Option<&str>, code: Option<i32>) -> CliError {
        let Some((host, _)) = parse_host(peer).filter(|_| !Path::new(peer).exists()) else {
            return named(SyncError::Cut, peer);
        };
        match (code, expected) {
            // clap's exit code for an unknown option.
            (Some(2), Some(expected)) => CliError::new(format!(
                "{peer}: the dedupctl on {host} is older than this one: it cannot check that the copy of {expected}, which was met \
                 there before, is still there (`serve --expect`)"
            ))
            .hint(format!(
                "install this release on {host}; if that copy is surely there, `--replace` syncs without the check"
            )),
            (Some(2), None) => CliError::new(format!(
                "{peer}: the dedupctl on {host} does not know the options of this one"
            ))
            .hint(format!("install this release on {host}")),
            (Some(126 | 127), _) => CliError::new(format!(
                "{peer}: {} cannot be run on {host}",
                self.remote_program
            ))
            .hint(format!("install dedupfs on {host}, or say where it is with `--remote-program`")),
            (Some(255), _) => CliError::new(format!("{peer}: the connection to {host} failed"))
                .hint(format!("see ssh's message above; try `{} {host} true`", self.ssh)),
            _ => named(SyncError::Cut, peer),
        }
    }

    /// Returns the command that serves the other side.
    fn command(&self, target: &Target) -> Result<Command, CliError> {
        let (peer, expected) = (&*target.peer, target.expected.as_deref());
        let flags = [
            ("--create", self.create),
            ("--force", self.force),
            ("--dry-run", self.dry_run),
            ("--force-root", self.force_root),
            ("--watch", self.watch),
        ];
        let flags = flags.into_iter().chain(self.attributes.flags());
        let flags = flags.filter(|(_, set)| *set).map(|(flag, _)| (*flag).to_owned());
        let expect = expected.map(|device| format!("--expect={device}"));
        let flags: Vec<String> = flags.chain([format!("--timeout={}", self.timeout)]).chain(expect).collect();
        if let Some((host, dir)) = parse_host(peer).filter(|_| !Path::new(peer).exists()) {
            check_host(peer, host, dir)?;
            let mut words = self.ssh.split_whitespace();
            let program = words.next().ok_or_else(|| CliError::new("--ssh: expected a command"))?;
            let mut command = Command::new(program);
            let line =
                format!("{} serve --stdio {} -- {}", self.remote_program, flags.join(" "), quoted(dir));
            command.args(words).args(["--", host]).arg(line);
            return Ok(command);
        }
        if !self.create && !Path::new(peer).exists() {
            let (message, hint) = match peer == self.peer {
                true => (
                    format!("{peer}: no such directory, and no remote of that name"),
                    "see `dedupctl remote list`, mount the disk that it is on, or make it with `--create`",
                ),
                false => (
                    format!("remote {}: no such directory {peer}", self.peer),
                    "mount the disk that it is on, or make it with `--create`",
                ),
            };
            return Err(CliError::new(message).hint(hint));
        }
        let mut command = Program::Dedupctl.command();
        command.args(["serve", "--stdio"]).args(flags).arg("--").arg(OsString::from(peer));
        Ok(command)
    }
}

/// Adds the name of the peer if the message lacks it.
fn named(e: SyncError, peer: &str) -> CliError {
    let names_nothing = matches!(e, SyncError::Cut | SyncError::Silent(_) | SyncError::Protocol { .. });
    let error = CliError::from(e);
    match names_nothing {
        true => CliError { message: format!("{peer}: {}", error.message), ..error },
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers() {
        assert_eq!(parse_host("ann@server:/data"), Some(("ann@server", "/data")));
        assert_eq!(parse_host("server:data"), Some(("server", "data")));
        for dir in ["/a:b", "./a:b", "a", ":x"] {
            assert_eq!(parse_host(dir), None, "{dir}");
        }
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
