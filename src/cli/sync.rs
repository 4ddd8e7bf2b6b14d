use super::error::CliError;
use super::host::{check_host, parse_host};
use super::met::Met;
use super::output::{Output, plain, size, table};
use super::peer_process::PeerProcess;
use super::remote::Remotes;
use super::session::find;
use super::{CliResult, Global, Outcome, Program, replica};
use crate::admin::Progress;
use crate::config::parse_size;
use crate::control;
use crate::sync::plan::Summary;
use crate::sync::proto::{Direction, NEW_DIRECTORY, NEW_OVERLAY, Options};
use crate::sync::session::Transfer;
use crate::sync::tree::shown;
use crate::sync::version::Device;
use crate::sync::{Replica, Session, SyncError, link, pipe};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Make this tree and a copy equal, in both directions
#[derive(clap::Args)]
#[command(
    after_help = "PEER is a directory, HOST:DIR or USER@HOST:DIR (by ssh, with dedupctl there too), or a name that\n\
    from `dedupctl remote add`. Changes of one side go to the other. If both sides changed a file, both versions are kept,\n\
    and `dedupctl conflicts` resolves the conflict. A sync compares every file before it overwrites it. Run an interrupted\n\
    sync again to continue it. PEER must exist; `--create` creates it. Files that match .dedupfsignore (like .gitignore)\n\
    are not synced.\n\
    Exit code 1: there are conflicts, or files that could not be synced completely; the sync names each of them.\n\
    Example: dedupctl sync ann@server:/data\n         dedupctl sync --dry-run --pull /mnt/disk/copy /data"
)]
pub(super) struct Sync {
    /// The other copy
    peer: String,
    /// A path of the overlay; by default the current directory
    path: Option<PathBuf>,
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

#[derive(Serialize)]
struct Side {
    created: u64,
    updated: u64,
    deleted: u64,
    renamed: u64,
}

#[derive(Serialize)]
struct ConflictRow {
    path: String,
    copy: String,
    winner: String,
    loser: String,
}

#[derive(Serialize)]
struct Skipped {
    path: String,
    reason: String,
}

#[derive(Serialize)]
struct SyncReport {
    peer: String,
    dry_run: bool,
    sent_bytes: u64,
    received_bytes: u64,
    created: u64,
    updated: u64,
    deleted: u64,
    renamed: u64,
    here: Side,
    there: Side,
    conflicts: Vec<ConflictRow>,
    kept: Vec<String>,
    skipped: Vec<Skipped>,
    without_base: bool,
    /// This device, as `winner` and `loser` name it.
    device: String,
    /// The object that a real run would create on the other side, from a dry run: `directory` or `overlay`.
    would_make: Option<&'static str>,
}

impl From<SyncError> for CliError {
    fn from(e: SyncError) -> CliError {
        CliError { message: e.to_string(), hint: e.hint(), silent: false }
    }
}

impl From<Summary> for Side {
    fn from(sum: Summary) -> Side {
        let Summary { created, updated, deleted, renamed } = sum;
        Side { created, updated, deleted, renamed }
    }
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
        let found = find(global, self.path.as_deref()).map_err(|e| self.with_order(e))?;
        let peer = Remotes::of(&found)?.resolve(&self.peer);
        let mut met = Met::of(&found)?;
        drop(found);
        let path = global.store.as_deref().filter(|_| self.path.is_none()).or(self.path.as_deref());
        let expected = met.at(&peer).filter(|device| !self.replace && is_device(device)).map(str::to_owned);
        let command = self.command(&peer, expected.as_deref())?;
        let mut mounted = replica::open(path.unwrap_or(Path::new(".")), None)?;
        let mut meter = out.meter();
        let report = Box::new(move |entries, bytes| {
            let step = match bytes {
                0 => Progress::files("looking", entries, 0),
                bytes => Progress::bytes("reading new and changed files", bytes, 0),
            };
            meter.show(&step);
        });
        // The other side scans at the same time.
        let mut child = PeerProcess::start(command)?;
        let (from, to) = child.pipes()?;
        let limits = pipe::Limits { silence: Duration::from_secs(self.timeout.into()), rate: self.bwlimit };
        let (mut from, mut to) = pipe::connect(from, to, limits);
        let mut local = mounted.replica(self.force, self.dry_run, report)?;
        local.notes.drain(..).for_each(|note| out.note(&plain(&note)));
        let direction = match (self.push, self.pull) {
            (true, _) => Direction::Push,
            (_, true) => Direction::Pull,
            _ => Direction::Both,
        };
        let options = Options { direction, dry_run: self.dry_run, force: self.force };
        let mut session = Session::call(&local, options);
        let mut meter = out.meter();
        let mut heard = 0;
        let traffic = link::run(&mut session, &mut local, &mut from, &mut to, &mut |session, traffic| {
            heard = traffic.received;
            let Transfer { received, to_receive, sent, to_send } = session.progress();
            meter.show(&match (received < to_receive, sent < to_send) {
                (true, _) => Progress::bytes("receiving", received, to_receive),
                (_, true) => Progress::bytes("sending", sent, to_send),
                _ => Progress::files("comparing and applying", 0, 0),
            });
        });
        drop(meter);
        drop((from, to));
        let traffic = match traffic {
            Err(SyncError::Cut) if heard == 0 => {
                return Err(self.never_answered(&peer, expected.as_deref(), child.exit_code()));
            }
            Err(e) => {
                if let SyncError::Silent(_) = &e {
                    child.may_take(Duration::ZERO);
                }
                return Err(named(e, &peer));
            }
            Ok(traffic) => traffic,
        };
        if session.outcome().here != Summary::default() && !self.dry_run {
            local.settle()?;
        }
        child.may_take(SETTLING);
        drop(child);
        let device = local.device().to_string();
        drop(local);
        mounted.end();
        if let Some(device) = session.peer().filter(|_| !self.dry_run) {
            met.note(&peer, device.as_str())?;
        }
        let outcome = session.outcome();
        let (here, there) = (outcome.here, outcome.there);
        let conflicts = outcome.conflicts.iter().map(|conflict| ConflictRow {
            path: shown(&conflict.path),
            copy: shown(&conflict.copy),
            winner: conflict.winner.to_string(),
            loser: conflict.loser.to_string(),
        });
        let report = SyncReport {
            peer,
            dry_run: self.dry_run,
            sent_bytes: traffic.sent,
            received_bytes: traffic.received,
            created: here.created + there.created,
            updated: here.updated + there.updated,
            deleted: here.deleted + there.deleted,
            renamed: here.renamed + there.renamed,
            here: here.into(),
            there: there.into(),
            conflicts: conflicts.collect(),
            kept: outcome.kept.iter().map(|path| shown(path)).collect(),
            skipped: outcome
                .skipped
                .iter()
                .map(|(path, reason)| Skipped { path: shown(path), reason: reason.clone() })
                .collect(),
            without_base: outcome.without_base,
            device,
            would_make: would_make(session.peer_features()).filter(|_| self.dry_run),
        };
        if report.without_base {
            out.note("first sync of these two copies: a file that one side lacks does not count as deleted");
        }
        for path in &report.kept {
            out.note(&format!("{}: deleted on one side and changed on the other: kept", plain(path)));
        }
        for Skipped { path, reason } in &report.skipped {
            out.note(&format!("{}: {}", plain(path), plain(reason)));
        }
        out.result(&report, text)?;
        Ok::<_, CliError>(match report.conflicts.is_empty() && report.skipped.is_empty() {
            true => Outcome::Clean,
            false => Outcome::Findings,
        })
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
    fn command(&self, peer: &str, expected: Option<&str>) -> Result<Command, CliError> {
        let flags = [
            ("--create", self.create),
            ("--force", self.force),
            ("--dry-run", self.dry_run),
            ("--force-root", self.force_root),
        ];
        let flags = flags.iter().filter(|(_, set)| *set).map(|(flag, _)| (*flag).to_owned());
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

/// Returns what a sync would create on the other side: a directory, or an overlay in an existing one.
fn would_make(features: &[String]) -> Option<&'static str> {
    features.iter().find_map(|feature| match feature.as_str() {
        NEW_DIRECTORY => Some("directory"),
        NEW_OVERLAY => Some("overlay"),
        _ => None,
    })
}

fn text(report: &SyncReport) -> String {
    let row = |name: &str, side: &Side| {
        let mut row = vec![name.to_owned()];
        row.extend([side.created, side.updated, side.deleted, side.renamed].map(|n| n.to_string()));
        row
    };
    let head = ["", "created", "updated", "deleted", "renamed"].map(str::to_owned).to_vec();
    let mut text = table(&[head, row("here", &report.here), row("there", &report.there)], &[1, 2, 3, 4]);
    text += &match report.would_make {
        Some("directory") => format!("{}: would be made, as an overlay\n", plain(&report.peer)),
        Some(_) => format!("{}: would become an overlay\n", plain(&report.peer)),
        None => String::new(),
    };
    let verb = if report.dry_run { "nothing was changed; " } else { "" };
    text += &format!("{verb}{} sent, {} received\n", size(report.sent_bytes), size(report.received_bytes));
    for conflict in &report.conflicts {
        text += &told(conflict, &report.device, report.dry_run);
    }
    text
}

/// Describes where the two versions are, for the user of the device `mine`.
fn told(conflict: &ConflictRow, mine: &str, dry_run: bool) -> String {
    let ConflictRow { path, copy, winner, loser } = conflict;
    let (path, copy) = (plain(path), plain(copy));
    // The digits only distinguish devices with the same host name.
    let host = |device: &str| device.rsplit_once('-').map_or(device, |(host, _)| host).to_owned();
    let same =
        host(winner) == host(loser) || [winner, loser].iter().any(|of| host(of) == host(mine) && *of != mine);
    let called = |device: &String| if same { device.clone() } else { host(device) };
    let has = if dry_run { "would have" } else { "now has" };
    let is = if dry_run { "would be" } else { "is" };
    match (winner == mine, loser == mine) {
        (_, true) => format!("conflict: {path} {has} {}'s version; yours {is} {copy}\n", called(winner)),
        (true, _) => {
            let keeps = if dry_run { "would keep" } else { "keeps" };
            format!("conflict: {path} {keeps} your version; {}'s {is} {copy}\n", called(loser))
        }
        _ => {
            format!("conflict: {path} {has} {}'s version; {}'s {is} {copy}\n", called(winner), called(loser))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_says_which_version_is_whose() {
        let row = |winner: &str, loser: &str| ConflictRow {
            path: "todo.md".to_owned(),
            copy: format!("todo.conflict-{loser}-1a2b3c4d.md"),
            winner: winner.to_owned(),
            loser: loser.to_owned(),
        };
        let (server, laptop) = ("server-00000001", "laptop-00000002");
        for (winner, loser, mine, dry, expected) in [
            (
                server,
                laptop,
                laptop,
                false,
                "now has server's version; yours is todo.conflict-laptop-00000002-1a2b3c4d.md",
            ),
            (
                server,
                laptop,
                server,
                false,
                "keeps your version; laptop's is todo.conflict-laptop-00000002-1a2b3c4d.md",
            ),
            (
                server,
                laptop,
                "desk-00000003",
                true,
                "would have server's version; laptop's would be todo.conflict-laptop-00000002-1a2b3c4d.md",
            ),
            (
                "a-00000001",
                "a-00000002",
                "a-00000002",
                false,
                "now has a-00000001's version; yours is todo.conflict-a-00000002-1a2b3c4d.md",
            ),
        ] {
            assert_eq!(told(&row(winner, loser), mine, dry), format!("conflict: todo.md {expected}\n"));
        }
    }

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
