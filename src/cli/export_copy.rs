//! `dedupctl export --to` and `--tar`: copies the tree as plain files. Reads a mount like any program.

use super::error::CliError;
use super::output::{Meter, Output, plain, size};
use super::session::{Direct, Work};
use super::{CliResult, Outcome};
use crate::admin::Progress;
use crate::admin::copy::{DirectorySink, SameSink, Sink, TarSink, Tree, Walked};
use crate::contents::OverlayError;
use crate::control::Found;
use crate::repo::OpenOptions;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Maximum number of files in a report.
const ROWS_MAX: usize = 100_000;
/// Files named without --json.
const SHOWN: usize = 100;

/// Target and options of a copy.
pub(super) struct Copy<'a> {
    pub to: Option<&'a Path>,
    pub tar: Option<&'a Path>,
    pub verify: bool,
    pub resume: bool,
    pub force: bool,
}

/// Result of a copy.
#[derive(Default, Serialize)]
struct CopyReport {
    files: u64,
    bytes: u64,
    /// Files whose content was hashed, or read through a mount, which verifies it, when they were copied; with
    /// --verify those that were read back and are the same.
    verified: u64,
    read_back: bool,
    failed: Vec<NotCopied>,
    omitted: u64,
    /// Things whose owner could not be kept.
    owners_lost: u64,
    /// Sockets, which no archive can hold.
    sockets_left_out: u64,
}

#[derive(Serialize)]
struct NotCopied {
    path: String,
    reason: String,
}

impl CopyReport {
    fn fail(&mut self, path: &Path, error: &OverlayError, readable: &dyn Fn(&OverlayError) -> String) {
        match self.failed.len() < ROWS_MAX {
            true => self
                .failed
                .push(NotCopied { path: path.to_string_lossy().into_owned(), reason: readable(error) }),
            false => self.omitted += 1,
        }
    }
}

impl Copy<'_> {
    /// Copies the tree, with or without a daemon.
    pub(super) fn run(&self, found: Found, out: &Output, json: bool) -> CliResult {
        if self.tar == Some(Path::new("-")) {
            if json {
                let hint = "leave out --json, or give a file: --tar FILE";
                return Err(CliError::new("--json and --tar - both want stdout").hint(hint));
            }
            if io::stdout().is_terminal() {
                return Err(CliError::new("stdout is a terminal: an archive is no text")
                    .hint("`dedupctl export --tar - | ...`, or --tar FILE"));
            }
        }
        match found {
            Found::Daemon { info, path, .. } => {
                let top = info.mountpoint.join(&path);
                self.check_apart(&[&info.mountpoint, &info.root])?;
                let tree = Tree::mounted(&top).map_err(|e| failed(&e))?;
                self.copy(&tree, &|e| e.to_string(), out)
            }
            Found::Direct { layout, path } => {
                self.check_apart(&[&layout.root, &layout.state])?;
                let options = OpenOptions { read_only: true, ..OpenOptions::default() };
                let direct = Direct::open(&layout, &options, Work::Copy, out)?;
                let repo = direct.repo();
                let tree = Tree::bare(repo.overlay(), &path).map_err(|e| failed(&e))?;
                self.copy(&tree, &|e| repo.readable(e), out)
            }
        }
    }

    /// Checks that the target is not inside the source.
    fn check_apart(&self, sources: &[&Path]) -> Result<(), CliError> {
        let target = self.to.or(self.tar.filter(|tar| *tar != Path::new("-")));
        let Some(target) = target else { return Ok(()) };
        let absolute = match target.canonicalize() {
            Ok(target) => target,
            Err(_) => {
                let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = parent.unwrap_or(Path::new("."));
                let parent = parent.canonicalize().map_err(|e| CliError::io("find", parent, &e))?;
                parent.join(target.file_name().unwrap_or_default())
            }
        };
        match sources.iter().find(|source| absolute.starts_with(source) || source.starts_with(&absolute)) {
            Some(source) => {
                let message =
                    format!("{}: expected a place apart from {}", target.display(), source.display());
                Err(CliError::new(message).hint("give a directory or file outside"))
            }
            None => Ok(()),
        }
    }

    fn copy(&self, tree: &Tree<'_>, readable: &dyn Fn(&OverlayError) -> String, out: &Output) -> CliResult {
        let mut meter = out.meter();
        meter.show(&Progress::files("looking", 0, 0));
        let all = tree.measure().map_err(|e| failed(&e))?;
        let mut report = CopyReport { read_back: self.verify, ..CopyReport::default() };
        match (self.to, self.tar) {
            (Some(to), _) => self.to_directory(tree, to, all, &mut report, &mut meter, readable)?,
            (None, Some(tar)) => self.to_archive(tree, tar, all, &mut report, &mut meter, readable)?,
            (None, None) => {}
        }
        drop(meter);
        let outcome = if report.failed.is_empty() { Outcome::Clean } else { Outcome::Findings };
        if report.owners_lost > 0 {
            out.note(&format!("the owners of {} could not be kept: that takes root", report.owners_lost));
        }
        if report.sockets_left_out > 0 {
            out.note(&format!("{} sockets were left out: no archive can hold them", report.sockets_left_out));
        }
        match self.tar == Some(Path::new("-")) {
            true => out.note(text(&report).trim_end()),
            false => out.result(&report, text)?,
        }
        Ok(outcome)
    }

    fn to_directory(
        &self,
        tree: &Tree<'_>,
        to: &Path,
        all: Walked,
        report: &mut CopyReport,
        meter: &mut Meter,
        readable: &dyn Fn(&OverlayError) -> String,
    ) -> Result<(), CliError> {
        match std::fs::create_dir(to) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CliError::io("make directory", to, &e));
            }
            _ => {}
        }
        if !self.resume && !self.force {
            check_room(to, all)?;
        }
        let mut sink = DirectorySink::begin(to, self.resume).map_err(|e| match &e {
            OverlayError::Unreadable { .. } => {
                failed(&e).hint("give a new or an empty directory; --resume continues an interrupted copy")
            }
            _ => failed(&e),
        })?;
        let walked = give(tree, &mut sink, "copying", all, report, meter, readable)?;
        (report.files, report.bytes, report.verified) = (walked.files, walked.bytes, walked.files);
        report.owners_lost = sink.owners_lost;
        sink.finish(report.failed.is_empty()).map_err(|e| failed(&e))?;
        if self.verify {
            let mut same = SameSink::new(to).map_err(|e| failed(&e))?;
            give(tree, &mut same, "reading back", all, report, meter, readable)?;
            report.verified = same.files;
        }
        Ok(())
    }

    fn to_archive(
        &self,
        tree: &Tree<'_>,
        tar: &Path,
        all: Walked,
        report: &mut CopyReport,
        meter: &mut Meter,
        readable: &dyn Fn(&OverlayError) -> String,
    ) -> Result<(), CliError> {
        let to_stdout = tar == Path::new("-");
        let out: Box<dyn Write> = match to_stdout {
            true => Box::new(io::stdout().lock()),
            false => {
                let mut open = File::options();
                open.write(true).create_new(true).mode(0o600);
                Box::new(open.open(tar).map_err(|e| CliError::io("create", tar, &e))?)
            }
        };
        let mut sink = TarSink::new(BufWriter::with_capacity(1 << 20, out));
        let given = give(tree, &mut sink, "archiving", all, report, meter, readable);
        report.sockets_left_out = sink.sockets;
        // The archive's own error comes first: it is the reason if copying stopped early.
        let done = sink.finish().map_err(|e| CliError::new(format!("the archive is not whole: {e}")));
        let synced = done.and_then(|_| match to_stdout {
            true => Ok(()),
            false => {
                File::open(tar).and_then(|file| file.sync_all()).map_err(|e| CliError::io("fsync", tar, &e))
            }
        });
        match synced.and(given) {
            Ok(walked) => {
                (report.files, report.bytes, report.verified) = (walked.files, walked.bytes, walked.files);
                Ok(())
            }
            Err(e) => {
                if !to_stdout {
                    let _ = std::fs::remove_file(tar);
                }
                Err(e)
            }
        }
    }
}

fn give(
    tree: &Tree<'_>,
    sink: &mut dyn Sink,
    what: &str,
    all: Walked,
    report: &mut CopyReport,
    meter: &mut Meter,
    readable: &dyn Fn(&OverlayError) -> String,
) -> Result<Walked, CliError> {
    let mut bytes = 0;
    let walked = tree.give(
        sink,
        &mut |more| {
            bytes += more;
            meter.show(&Progress::bytes(what, bytes, all.bytes));
            true
        },
        &mut |path, e| report.fail(path, &e, readable),
    );
    walked.map_err(|e| failed(&e))
}

fn failed(error: &OverlayError) -> CliError {
    CliError::new(error.to_string())
}

fn check_room(to: &Path, all: Walked) -> Result<(), CliError> {
    let space = rustix::fs::statvfs(to).map_err(|e| CliError::io("look at", to, &e.into()))?;
    let free = space.f_bavail * space.f_frsize;
    if all.room_bytes <= free {
        return Ok(());
    }
    let message = format!(
        "{}: {} files need about {} bytes, and {free} are free; nothing was copied",
        to.display(),
        all.files,
        all.room_bytes
    );
    Err(CliError::new(message).hint("make room, or begin nevertheless with --force"))
}

fn text(report: &CopyReport) -> String {
    let CopyReport { files, bytes, verified, failed, omitted, .. } = report;
    let how = match report.read_back {
        true => format!(", {verified} read back and the same"),
        false => String::new(),
    };
    let mut text = format!("{files} files, {}, copied{how}\n", size(*bytes));
    let all = failed.len() as u64 + omitted;
    if all > 0 {
        text.push_str(&format!("{all} were not copied:\n"));
        for one in failed.iter().take(SHOWN) {
            text.push_str(&format!("  {}: {}\n", plain(&one.path), plain(&one.reason)));
        }
        if all > SHOWN as u64 {
            text.push_str(&format!("  and {} more\n", all - SHOWN as u64));
        }
    }
    text
}
