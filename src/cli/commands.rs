//! The arguments of both programs, and what runs for each.

use super::output::Output;
use super::{
    CliResult, Global, Outcome, Program, check, compare_methods, completions, conflicts, contained, diff,
    export, gc, groups, init, log, logging, man, methods, metrics, mount, optimize, regions, remote, restore,
    scan, serve, settle, similar, snapshot, status, sync, tasks, template, ui, unmount,
};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Controls dedupfs, the deduplicating overlay filesystem.
#[derive(Parser)]
#[command(name = "dedupctl", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 clean, 1 findings, 2 failed or misused.\n\
    Example: dedupctl similar report.odt --min 0.5")]
struct Dedupctl {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

#[derive(Subcommand)]
enum Command {
    Init(init::Init),
    Unmount(unmount::Unmount),
    Scan(scan::Scan),
    Settle(settle::Settle),
    Status(status::Status),
    Similar(similar::Similar),
    Groups(Box<groups::Groups>),
    Contained(contained::Contained),
    CompareMethods(compare_methods::CompareMethods),
    Regions(regions::Regions),
    Diff(diff::Diff),
    Log(log::Log),
    Restore(restore::Restore),
    Snapshot(snapshot::Snapshots),
    Template(template::Template),
    Check(check::Check),
    Gc(gc::Gc),
    Optimize(optimize::Optimize),
    Metrics(metrics::Metrics),
    Ui(ui::UiCommand),
    Export(export::Export),
    Sync(sync::Sync),
    Conflicts(conflicts::Conflicts),
    Remote(remote::Remote),
    Serve(serve::Serve),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Dedupctl {
    fn run(&self, out: &Output) -> CliResult {
        match &self.command {
            Command::Init(command) => command.run(&self.global, out),
            Command::Unmount(command) => command.run(&self.global, out),
            Command::Scan(command) => command.run(&self.global, out),
            Command::Settle(command) => command.run(&self.global, out),
            Command::Status(command) => command.run(&self.global, out),
            Command::Similar(command) => command.run(&self.global, out),
            Command::Groups(command) => command.run(&self.global, out),
            Command::Contained(command) => command.run(&self.global, out),
            Command::CompareMethods(command) => command.run(&self.global, out),
            Command::Regions(command) => command.run(&self.global, out),
            Command::Diff(command) => command.run(&self.global, out),
            Command::Log(command) => command.run(&self.global, out),
            Command::Restore(command) => command.run(&self.global, out),
            Command::Snapshot(command) => command.run(&self.global, out),
            Command::Template(command) => command.run(&self.global, out),
            Command::Check(command) => command.run(&self.global, out),
            Command::Gc(command) => command.run(&self.global, out),
            Command::Optimize(command) => command.run(&self.global, out),
            Command::Metrics(command) => command.run(&self.global, out),
            Command::Ui(command) => command.run(&self.global, out),
            Command::Export(command) => command.run(&self.global, out),
            Command::Sync(command) => command.run(&self.global, out),
            Command::Conflicts(command) => command.run(&self.global, out),
            Command::Remote(command) => command.run(&self.global, out),
            Command::Serve(command) => command.run(&self.global, out),
            Command::Completions(command) => command.run(parser, out),
            Command::Man(command) => command.run(parser, out),
        }
    }
}

/// Runs the program that the first argument names, or `otherwise`.
pub fn run(args: impl IntoIterator<Item = OsString>, otherwise: Program) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    match Program::named(args.first().map(OsString::as_os_str), otherwise) {
        Program::Dedupctl => dedupctl(args),
        Program::Dedupfs => dedupfs(args),
    }
}

/// Runs the program `dedupctl`.
fn dedupctl(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut parser = parser(Program::Dedupctl);
    let parsed = parser.try_get_matches_from_mut(args).and_then(|matches| {
        methods::check_options(&parser, &matches)?;
        Dedupctl::from_arg_matches(&matches)
    });
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(e) => return usage(&e),
    };
    let out = Output::new(parsed.global.json, !parsed.global.no_pager);
    logging::start(["warn", "warn,dedupfs=info", "debug"][usize::from(parsed.global.verbose.min(2))], true);
    end(parsed.run(&out), &out)
}

/// Runs the program `dedupfs`.
fn dedupfs(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let parsed = match mount::Mount::try_parse_from(&args) {
        Ok(parsed) => parsed,
        Err(e) => return usage(&e),
    };
    let out = Output::new(false, false);
    end(parsed.run(&args), &out)
}

/// Prints help and version as answers; all other parser messages are errors.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    match error.use_stderr() {
        true => ExitCode::from(2),
        false => ExitCode::SUCCESS,
    }
}

fn end(result: CliResult, out: &Output) -> ExitCode {
    match result {
        Ok(Outcome::Clean) => ExitCode::SUCCESS,
        Ok(Outcome::Findings) => ExitCode::from(1),
        Ok(Outcome::Incomplete) => ExitCode::from(2),
        Err(error) => {
            out.error(&error);
            ExitCode::from(2)
        }
    }
}

/// Returns the parser of a program, for help in other forms.
pub(super) fn parser(program: Program) -> clap::Command {
    match program {
        Program::Dedupctl => tasks::group(Dedupctl::command()),
        Program::Dedupfs => mount::Mount::command(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parsers_are_sound_and_every_command_has_an_example() {
        for program in [Program::Dedupctl, Program::Dedupfs] {
            let parser = parser(program);
            parser.clone().debug_assert();
            for command in parser.get_subcommands().filter(|command| command.get_name() != "help") {
                let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(after.contains("Example"), "{}", command.get_name());
            }
        }
    }

    #[test]
    fn misuse_is_exit_code_2_and_help_is_0() {
        let code = |args: &[&str]| format!("{:?}", dedupctl(args.iter().map(OsString::from)));
        assert_eq!(code(&["dedupctl", "nonsense"]), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(&["dedupctl", "check", "--nonsense"]), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(&["dedupctl", "--version"]), format!("{:?}", ExitCode::SUCCESS));
    }
}
