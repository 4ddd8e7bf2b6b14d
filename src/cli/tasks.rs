//! The commands of `dedupctl`, grouped by task, for `dedupctl --help`.
//!
//! Names, arguments and descriptions come from the parser; only the grouping is written here.

use clap::Command;
use std::fmt::Write as _;

/// Headings, and the commands under them.
const TASKS: &[(&str, &[&str])] = &[
    ("Mount and watch", &["init", "scan", "settle", "status", "metrics", "ui", "unmount"]),
    (
        "Find similar files",
        &["similar", "groups", "contained", "regions", "diff", "template", "compare-methods"],
    ),
    ("Versions and snapshots", &["log", "restore", "snapshot"]),
    ("Sync with a copy", &["sync", "conflicts", "remote", "serve"]),
    ("Maintain and leave", &["check", "gc", "optimize", "export"]),
    ("Shell and manual", &["completions", "man", "help"]),
];

/// Makes `--help` list the commands under their headings.
pub(super) fn group(mut parser: Command) -> Command {
    parser.build();
    let styles = parser.get_styles().clone();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let width = parser.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or(0);
    let mut list = String::new();
    for (task, names) in TASKS {
        let _ = writeln!(list, "\n{header}{task}:{header:#}");
        for command in names.iter().filter_map(|name| parser.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(list, "  {literal}{:width$}{literal:#}  {about}", command.get_name());
        }
    }
    parser.help_template(format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{list}\n\
         {header}Options:{header:#}\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Program;
    use super::super::commands::parser;
    use super::TASKS;

    #[test]
    fn every_command_has_one_place_and_one_line() {
        let mut parser = parser(Program::Dedupctl);
        let help = parser.render_help().to_string();
        let mut listed: Vec<&str> = TASKS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        listed.sort_unstable();
        let mut commands: Vec<&str> = parser.get_subcommands().map(|command| command.get_name()).collect();
        commands.sort_unstable();
        assert_eq!(listed, commands);
        for name in commands {
            let lines = help.lines().filter(|line| line.split_whitespace().next() == Some(name));
            let lines: Vec<&str> = lines.filter(|line| line.starts_with("  ")).collect();
            assert_eq!(lines.len(), 1, "{name}: {help}");
            assert!(lines[0].chars().count() <= 80, "{}", lines[0]);
        }
    }
}
