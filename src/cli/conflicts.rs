use super::error::CliError;
use super::output::{Output, plain, table};
use super::{CliResult, Global, Outcome, merge_tool, replica};
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
        after_help = "With --tool both files stay if the tool fails. Without COMMAND it is `git merge-file`, for text: it merges \
        lines that only one version has if they are at different places. The base is the common lines, so a line that one \
        side deleted comes back. A line that one side changed is a conflict.\n\
        COMMAND is a line for the shell. It gets files in $BASE (the common lines of text), $LOCAL (ours) and $REMOTE \
        (theirs), writes $MERGED and exits with 0.\n\n\
        Example: dedupctl conflicts resolve --ours '**'\n         \
        dedupctl conflicts resolve --theirs notes/todo.txt\n         \
        dedupctl conflicts resolve --tool '*.txt'\n         \
        dedupctl conflicts resolve --tool='meld \"$LOCAL\" \"$MERGED\" \"$REMOTE\"' notes/todo.txt"
    )]
    Resolve(Resolve),
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
    pub(super) fn new(left: &[Pending], resolved: u64) -> ConflictsReport {
        let row = |one: &Pending| Row {
            path: shown(&one.path),
            ours: shown(&one.ours),
            theirs: shown(&one.theirs),
        };
        ConflictsReport { conflicts: left.iter().map(row).collect(), resolved, not_merged: Vec::new() }
    }
}

impl Conflicts {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let at = self.path.as_deref().or(self.at.as_deref());
        let path = global.store.as_deref().filter(|_| at.is_none()).or(at);
        let mounted = replica::open(path.unwrap_or(Path::new(".")), None)?;
        let mut all = list(&mounted.tree, &mounted.memory, &mounted.groups()?)?;
        let (mut resolved, mut not_merged) = (0, Vec::new());
        if let Some(Action::Resolve(resolve)) = &self.action {
            let (chosen, mut left): (Vec<_>, Vec<_>) = {
                let globs = resolve.matchers()?;
                let any = globs.is_empty();
                all.into_iter().partition(|one| any || globs.iter().any(|glob| matches(glob, one)))
            };
            if chosen.is_empty() && !resolve.globs.is_empty() {
                let message = format!("no conflict matches {}", resolve.globs.join(" "));
                return Err(CliError::new(message).hint("`dedupctl conflicts` shows them"));
            }
            for conflict in chosen {
                match &resolve.tool {
                    None => settle(&mounted.tree, &conflict, resolve.keep())?,
                    Some(command) => {
                        if let Err(reason) = merge_tool::merge(&mounted.tree, &conflict, command) {
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
        let report = ConflictsReport { not_merged, ..ConflictsReport::new(&all, resolved) };
        out.result(&report, |report| {
            let mut rows = vec![["file", "ours", "theirs"].map(str::to_owned).to_vec()];
            rows.extend(
                report
                    .conflicts
                    .iter()
                    .map(|row| vec![plain(&row.path), plain(&row.ours), plain(&row.theirs)]),
            );
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

    fn matchers(&self) -> Result<Vec<GlobMatcher>, CliError> {
        let matcher = |glob: &String| {
            let text = if glob.contains('/') { glob.clone() } else { format!("**/{glob}") };
            let glob = GlobBuilder::new(&text).literal_separator(true).build();
            Ok(glob
                .map_err(|e| CliError::new(e.to_string()).hint("write it as for a shell"))?
                .compile_matcher())
        };
        self.globs.iter().map(matcher).collect()
    }
}

fn matches(glob: &GlobMatcher, conflict: &Pending) -> bool {
    glob.is_match(Path::new(OsStr::from_bytes(&conflict.path)))
}
