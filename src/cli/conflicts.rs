use super::error::CliError;
use super::output::{Output, plain, table};
use super::{CliResult, Global, Outcome, merge_tool, replica};
use crate::sync::bases::Bases;
use crate::sync::conflicts::{Keep, Pending, list, settle};
use crate::sync::tree::shown;
use globset::{GlobBuilder, GlobMatcher};
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// List and resolve conflicts of `dedupctl sync`
#[derive(clap::Args)]
#[command(
    subcommand_precedence_over_arg = true,
    after_help = "Both versions are ordinary files; whichever you delete or rename, the next sync takes it over.\n\
    Exit code 1 while there are conflicts.\n\
    Example: dedupctl conflicts /data\n         dedupctl conflicts resolve --newer '*.odt'"
)]
pub(super) struct Conflicts {
    #[command(subcommand)]
    action: Option<Action>,
    /// A path of the overlay; by default the current directory
    path: Option<PathBuf>,
    /// Like PATH, also for `resolve`
    #[arg(long, global = true, value_name = "PATH")]
    at: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Keep one version and remove the other, or merge them
    #[command(
        after_help = "With --tool both files stay if the tool fails. Without COMMAND it is `git merge-file`, for text: it takes the \
        lines that one side changed, added or deleted since the version before both edits. If that was not kept, the base is \
        the common lines: a line that one side deleted comes back, and one that it changed is not merged.\n\
        COMMAND is a line for the shell. It gets files in $BASE (the version before, or the common lines of text), $LOCAL \
        (ours) and $REMOTE (theirs), writes $MERGED and exits with 0.\n\n\
        Example: dedupctl conflicts resolve --ours '**'\n         \
        dedupctl conflicts resolve --theirs notes/todo.txt\n         \
        dedupctl conflicts resolve --tool '*.txt'\n         \
        dedupctl conflicts resolve --tool='meld \"$LOCAL\" \"$MERGED\" \"$REMOTE\"' notes/todo.txt"
    )]
    Resolve(Resolve),
    /// Show how both versions differ from the one before both edits
    #[command(
        after_help = "Only for text. A sync of a mounted overlay keeps the version before, until the conflict is resolved.\n\
        Needs git. `dedupctl diff A B` compares any two files.\n\
        Example: dedupctl conflicts diff notes/todo.txt"
    )]
    Diff(Diff),
}

#[derive(clap::Args)]
struct Diff {
    /// Names below the overlay's root; a name without a slash matches in any directory. By default all
    globs: Vec<String>,
}

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("keep").required(true))]
struct Resolve {
    /// Keep this device's version
    #[arg(long, group = "keep")]
    ours: bool,
    /// Keep the other device's version
    #[arg(long, group = "keep")]
    theirs: bool,
    /// Keep the version with the later modification time
    #[arg(long, group = "keep")]
    newer: bool,
    /// Merge both versions with a tool; only if it succeeds, its result replaces them
    #[arg(long, group = "keep", value_name = "COMMAND", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    tool: Option<String>,
    /// Names below the overlay's root; a name without a slash matches in any directory. By default all, with --tool
    #[arg(required_unless_present = "tool")]
    globs: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) path: String,
    pub(super) ours: String,
    pub(super) theirs: String,
    /// Whether the version before both edits is kept.
    pub(super) base: bool,
    /// How both versions differ from it; only for `diff`.
    #[serde(flatten)]
    pub(super) differences: Option<Differences>,
}

/// How both versions of a file differ from the one before both edits: unified hunks, or the reason why there are none.
#[derive(Default, Serialize)]
pub(super) struct Differences {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ours_changed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) theirs_changed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

impl Differences {
    pub(super) fn of(tree: &Path, conflict: &Pending, bases: &Bases) -> Differences {
        let failed = |reason| Differences { reason: Some(reason), ..Differences::default() };
        let Some(base) = bases.read(&conflict.copy) else {
            return failed("the version before both edits was not kept".to_owned());
        };
        match merge_tool::differences(tree, conflict, &base) {
            Ok([ours, theirs]) => {
                Differences { ours_changed: Some(ours), theirs_changed: Some(theirs), reason: None }
            }
            Err(reason) => failed(reason),
        }
    }
}

#[derive(Serialize)]
pub(super) struct ConflictsReport {
    pub(super) conflicts: Vec<Row>,
    resolved: u64,
    /// Conflicts among them that a tool could not merge.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_merged: Vec<NotMerged>,
}

#[derive(Serialize)]
struct NotMerged {
    path: String,
    reason: String,
}

impl ConflictsReport {
    pub(super) fn new(left: &[Pending], resolved: u64, bases: &Bases) -> ConflictsReport {
        let row = |one: &Pending| Row {
            path: shown(&one.path),
            ours: shown(&one.ours),
            theirs: shown(&one.theirs),
            base: bases.has(&one.copy),
            differences: None,
        };
        ConflictsReport { conflicts: left.iter().map(row).collect(), resolved, not_merged: Vec::new() }
    }
}

impl ConflictsReport {
    /// Returns a report of `conflicts` with the differences of their versions.
    pub(super) fn compared(tree: &Path, conflicts: &[Pending], bases: &Bases) -> ConflictsReport {
        let mut report = ConflictsReport::new(conflicts, 0, bases);
        for (row, conflict) in report.conflicts.iter_mut().zip(conflicts) {
            row.differences = Some(Differences::of(tree, conflict, bases));
        }
        report
    }
}

impl Conflicts {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let at = self.path.as_deref().or(self.at.as_deref());
        let path = global.store.as_deref().filter(|_| at.is_none()).or(at);
        let mounted = replica::open(path.unwrap_or(Path::new(".")), None)?;
        let mut all = list(&mounted.tree, &mounted.memory, &mounted.groups()?)?;
        let bases = Bases::of(&mounted.memory);
        let (mut resolved, mut not_merged) = (0, Vec::new());
        if let Some(Action::Diff(diff)) = &self.action {
            let (chosen, _) = choose(all, &diff.globs)?;
            out.result(&ConflictsReport::compared(&mounted.tree, &chosen, &bases), differences)?;
            return Ok(if chosen.is_empty() { Outcome::Clean } else { Outcome::Findings });
        }
        if let Some(Action::Resolve(resolve)) = &self.action {
            let (chosen, mut left) = choose(all, &resolve.globs)?;
            for conflict in chosen {
                match &resolve.tool {
                    None => settle(&mounted.tree, &conflict, resolve.keep())?,
                    Some(command) => {
                        let base = bases.read(&conflict.copy);
                        let merged = merge_tool::merge(&mounted.tree, &conflict, base.as_deref(), command);
                        if let Err(reason) = merged {
                            not_merged.push(NotMerged { path: shown(&conflict.path), reason });
                            left.push(conflict);
                            continue;
                        }
                    }
                }
                resolved += 1;
            }
            left.sort_by(|a, b| a.path.cmp(&b.path));
            all = left;
        }
        let report = ConflictsReport { not_merged, ..ConflictsReport::new(&all, resolved, &bases) };
        out.result(&report, |report| {
            let mut rows = vec![["file", "ours", "theirs", "before"].map(str::to_owned).to_vec()];
            rows.extend(report.conflicts.iter().map(|row| {
                let before = if row.base { "kept" } else { "-" };
                vec![plain(&row.path), plain(&row.ours), plain(&row.theirs), before.to_owned()]
            }));
            let mut text = if resolved > 0 { format!("{resolved} settled\n") } else { String::new() };
            for NotMerged { path, reason } in &report.not_merged {
                text += &format!("{}: not merged, both versions stay: {}\n", plain(path), plain(reason));
            }
            match report.conflicts.is_empty() {
                true => text += "no conflicts\n",
                false => text += &table(&rows, &[]),
            }
            text
        })?;
        Ok::<_, CliError>(if report.conflicts.is_empty() { Outcome::Clean } else { Outcome::Findings })
    }
}

impl Resolve {
    fn keep(&self) -> Keep {
        match (self.ours, self.theirs) {
            (true, _) => Keep::Ours,
            (_, true) => Keep::Theirs,
            _ => Keep::Newer,
        }
    }
}

/// Returns the conflicts that one of `globs` matches, or all if there are none, and the others.
fn choose(all: Vec<Pending>, globs: &[String]) -> Result<(Vec<Pending>, Vec<Pending>), CliError> {
    let matcher = |glob: &String| {
        let text = if glob.contains('/') { glob.clone() } else { format!("**/{glob}") };
        let glob = GlobBuilder::new(&text).literal_separator(true).build();
        Ok(glob.map_err(|e| CliError::new(e.to_string()).hint("write it as for a shell"))?.compile_matcher())
    };
    let matchers = globs.iter().map(matcher).collect::<Result<Vec<_>, CliError>>()?;
    let is_chosen =
        |one: &Pending| matchers.is_empty() || matchers.iter().any(|matcher| matches(matcher, one));
    let (chosen, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_chosen);
    if chosen.is_empty() && !globs.is_empty() {
        let message = format!("no conflict matches {}", globs.join(" "));
        return Err(CliError::new(message).hint("`dedupctl conflicts` shows them"));
    }
    Ok((chosen, others))
}

fn differences(report: &ConflictsReport) -> String {
    let mut text = String::new();
    for row in &report.conflicts {
        let Some(shown) = &row.differences else { continue };
        if let Some(reason) = &shown.reason {
            let (ours, theirs) = (plain(&row.ours), plain(&row.theirs));
            text +=
                &format!("{}: {}; compare: dedupctl diff {ours} {theirs}\n", plain(&row.path), plain(reason));
        }
        for (name, changed) in [(&row.ours, &shown.ours_changed), (&row.theirs, &shown.theirs_changed)] {
            if let Some(changed) = changed {
                let lines = changed.lines().map(|line| plain(line) + "\n");
                text += &format!("--- {} before both edits\n+++ {}\n", plain(&row.path), plain(name));
                text.extend(lines);
            }
        }
    }
    if report.conflicts.is_empty() { "no conflicts\n".to_owned() } else { text }
}

fn matches(glob: &GlobMatcher, conflict: &Pending) -> bool {
    glob.is_match(Path::new(OsStr::from_bytes(&conflict.path)))
}
