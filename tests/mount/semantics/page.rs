//! docs/semantics.md: its examples are run, and give what it says.

use super::twin::{Twin, bounded};
use crate::common::{As, as_both};
use std::process::{Command, Stdio};

const PAGE: &str = include_str!("../../../docs/semantics.md");

/// Commands (after `$ `) of the fenced blocks marked `console`, each with what it is to print.
fn examples() -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in PAGE.lines() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, line) => match line.strip_prefix("$ ") {
                Some(command) => found.push((command.to_owned(), String::new())),
                None => {
                    let (_, expected) = found.last_mut().expect("a block starts with a command");
                    expected.push_str(line);
                    expected.push('\n');
                }
            },
            _ => {}
        }
    }
    found
}

#[test]
fn the_examples_of_the_page_hold() {
    let examples = examples();
    assert!(examples.len() >= 10, "the page has examples");
    as_both(|user: As| {
        let twin = Twin::new(user);
        for (command, expected) in &examples {
            // The page says `dedupctl`, wherever it is.
            let dedupctl = twin.mount.dedupctl();
            let path = std::path::Path::new(dedupctl.get_program()).parent().unwrap().to_owned();
            let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
            let mut shell = Command::new("bash");
            shell.args(["-c", command]).current_dir(twin.mount.mnt()).stdin(Stdio::null());
            let output = bounded(shell.env("PATH", path).env("LC_ALL", "C").env("TZ", "UTC"));
            let said = [output.stdout, output.stderr].concat();
            assert_eq!(&String::from_utf8_lossy(&said), expected, "$ {command}");
        }
    });
}
