//! The user guide: every transcript in `docs/guide` is typed into a shell and has to come out as it is written.
//!
//! A block that begins with `console` holds commands after `$ ` (and, where one goes on, `> `) and what they print,
//! errors too. All blocks of a chapter are one session of bash, in an empty home directory on a real filesystem, with real
//! mounts, in namespaces of its own: what a chapter leaves mounted or running ends with it. A comment that begins with
//! `<!-- guide:` holds commands that are run and not shown. A command that fails is followed by a line
//! `[exit code N]`. The home directory is `/home/ada` there, and the host is called `desk`.
//!
//! What differs from run to run is compared by its form only: see [`normal`]. `GUIDE_BLESS=1` writes what came out into
//! the guide, but for lines that differ in nothing else; look at the difference before believing it.
//!
//! Seen to fail: with a size, a name and an exit code in a transcript changed by hand, with a line taken out, and with a
//! chapter that `SUMMARY.md` does not name.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first error, and says when it is skipped"
)]

use crate::common::namespaces::{self, FORGET_OTHERS};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// More than any command of the guide takes however busy the machine is.
const TIME_MAX: Duration = Duration::from_secs(120);
/// What the shell begins with. The working directory may lie below /home: the kernel finds it though that is covered.
const BEGIN: &str = "exec 2>&1; set -e; umask 022; echo desk > /proc/sys/kernel/hostname
mount --bind ../bin /usr/local/bin; mount -t tmpfs tmpfs /home; mkdir /home/ada
mount -c --bind /proc/self/cwd /home/ada; cd /home/ada; set +e
";
/// Follows the output of a command, with its exit code.
const MARK: &str = "\u{1}guide";

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide")
}

/// A part of a chapter.
#[derive(Debug, PartialEq)]
enum Part {
    /// As it is, up to and with the line that opens a block.
    Prose(String),
    /// Commands that nobody sees.
    Hidden(String),
    /// A command as it is typed, and what it printed.
    Typed { command: String, output: String },
}

fn parse(text: &str) -> Vec<Part> {
    let (mut parts, mut prose) = (Vec::new(), String::new());
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        prose.push_str(line);
        if line.starts_with("<!-- guide:") {
            let hidden: String = lines.by_ref().take_while(|line| !line.starts_with("-->")).collect();
            writeln!(prose, "{hidden}-->").unwrap();
            parts.push(Part::Prose(std::mem::take(&mut prose)));
            parts.push(Part::Hidden(hidden));
        } else if line == "```console\n" {
            parts.push(Part::Prose(std::mem::take(&mut prose)));
            while let Some(line) = lines.next_if(|line| *line != "```\n") {
                assert!(line.starts_with("$ "), "a command was expected: {line}");
                let (mut command, mut output) = (line.to_owned(), String::new());
                while let Some(line) = lines.next_if(|line| line.starts_with('>')) {
                    command.push_str(line);
                }
                while let Some(line) = lines.next_if(|line| *line != "```\n" && !line.starts_with("$ ")) {
                    output.push_str(line);
                }
                parts.push(Part::Typed { command, output });
            }
        }
    }
    parts.push(Part::Prose(prose));
    parts
}

/// What the shell is given of a command: without its prompts.
fn typed(command: &str) -> String {
    command.lines().map(|line| format!("{}\n", line.get(2..).unwrap_or_default())).collect()
}

/// A shell in a home directory, with the programs of this build where mount(8) looks for them too.
struct Shell {
    _dir: tempfile::TempDir,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Shell {
    fn start() -> Shell {
        let dir = tempfile::Builder::new().prefix("dedupfs-guide-").tempdir().unwrap();
        let (home, bin) = (dir.path().join("ada"), dir.path().join("bin"));
        fs::create_dir(&home).unwrap();
        fs::create_dir(&bin).unwrap();
        for program in [env!("CARGO_BIN_EXE_dedupfs"), env!("CARGO_BIN_EXE_dedupctl")] {
            fs::copy(program, bin.join(Path::new(program).file_name().unwrap())).unwrap();
        }
        // In namespaces of its own: what is mounted, runs, or has a name there is seen by nobody else.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--uts", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "bash", "--norc", "--noprofile"]);
        command.env_clear().env("HOME", "/home/ada").env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        command.env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").current_dir(home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // It runs for long: other tests wait only until it holds no mount of theirs.
        let _making = namespaces::making();
        let mut child = command.spawn().unwrap();
        let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        writeln!(input, "{FORGET_OTHERS}\n{BEGIN}").unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        let mut shell = Shell { _dir: dir, child, input, lines };
        assert_eq!(shell.run("true"), "", "the shell begins");
        shell
    }

    /// Runs a command and returns what a transcript shows of it.
    fn run(&mut self, command: &str) -> String {
        // In braces, so that nothing of it reads what comes behind it.
        write!(self.input, "{{ {command}\n}} < /dev/null; printf '%s%d\\n' {MARK} $?\n").unwrap();
        let mut output = String::new();
        loop {
            let line = self.lines.recv_timeout(TIME_MAX).unwrap_or_else(|e| {
                panic!("no answer to {command:?} ({e}), after:\n{output}");
            });
            let Some((last, code)) = line.split_once(MARK) else {
                output.push_str(&line);
                continue;
            };
            output.push_str(last);
            if !output.is_empty() && !output.ends_with('\n') {
                output.push('\n');
            }
            match code.trim() {
                "0" => {}
                code => writeln!(output, "[exit code {code}]").unwrap(),
            }
            return output;
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // With unshare its child goes, and with that, the first process of its namespace, all others and their mounts.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines that begin so, or have this in them: figures that hang on times, ids or the machine.
const BY_FORM: [&str; 11] = [
    "disk ",
    "history ",
    "stored ",
    "index ",
    "memory ",
    "dedupfs_stored_bytes{",
    "dedupfs_index_bytes{",
    "dedupfs_memory_bytes{",
    " reclaimed from ",
    " are kept for ",
    " sent, ",
];

/// What a daemon may say before or after it has gone to the background: not compared.
const BY_CHANCE: &str = "the index may be behind the files";

/// What of an output has to be the same. Runs of spaces count as one, as columns move with what is in them. A word that
/// begins with a date or is a time of day counts as such, 8 hexadecimal digits and more as an id, a number behind
/// `(process` or `at=` or before `frames` as a number; in lines of [`BY_FORM`] all numbers with their units do.
fn normal(output: &str) -> String {
    let lines = output.lines().filter(|line| !line.contains(BY_CHANCE));
    lines.map(|line| normal_line(line) + "\n").collect()
}

fn normal_line(line: &str) -> String {
    let by_form = BY_FORM.iter().any(|form| match form.starts_with(' ') {
        true => line.contains(form),
        false => line.starts_with(form),
    });
    let mut words: Vec<String> = Vec::new();
    let mut left = line.split(' ').filter(|word| !word.is_empty()).peekable();
    while let Some(word) = left.next() {
        let number = word.trim_matches(|c| "(),;%".contains(c)).parse::<f64>().is_ok();
        let before = words.last().map_or("", String::as_str);
        let unit = ["B", "KiB", "MiB", "GiB"].contains(&word.trim_end_matches([',', ';']));
        let frames = left.peek() == Some(&"frames");
        words.push(match word {
            word if word.starts_with("at=") => "at=NUMBER".to_owned(),
            word if shape(word).starts_with("0000-00-00") => "DATE".to_owned(),
            word if ["00:00", "00:00:00"].contains(&shape(word).as_str()) => "TIME".to_owned(),
            _ if number && (by_form || frames || before == "(process") => "NUMBER".to_owned(),
            _ if unit && by_form => "UNIT".to_owned(),
            word => without_ids(word),
        });
    }
    words.join(" ")
}

/// A word with all digits as zeros.
fn shape(word: &str) -> String {
    word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect()
}

/// A word with long hexadecimal numbers as `ID`.
fn without_ids(word: &str) -> String {
    let mut text = String::new();
    for part in word.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let end = part.find(|c: char| !c.is_alphanumeric()).unwrap_or(part.len());
        let (run, rest) = part.split_at(end);
        let id = run.len() >= 8 && run.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
        text.push_str(if id { "ID" } else { run });
        text.push_str(rest);
    }
    text
}

/// Types what a chapter says. Returns the chapter as it should read, and what it has wrong.
fn run_chapter(text: &str) -> (String, Vec<String>) {
    let mut shell = Shell::start();
    let (mut right, mut wrong) = (String::new(), Vec::new());
    for part in parse(text) {
        match part {
            Part::Prose(prose) => right.push_str(&prose),
            Part::Hidden(commands) => {
                let output = shell.run(&commands);
                assert!(!output.contains("[exit code"), "{commands}\n{output}");
            }
            Part::Typed { command, output } => {
                let printed = shell.run(&typed(&command));
                right.push_str(&command);
                if normal(&output) == normal(&printed) {
                    right.push_str(&output);
                } else {
                    wrong.push(format!("{command}--- the guide says:\n{output}--- it printed:\n{printed}"));
                    right.push_str(&printed);
                }
            }
        }
    }
    (right, wrong)
}

/// Targets of links in a text.
fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

fn chapters() -> Vec<PathBuf> {
    let summary = fs::read_to_string(guide().join("SUMMARY.md")).unwrap();
    links(&summary).into_iter().map(|name| guide().join(name)).collect()
}

#[test]
fn every_transcript_comes_out_as_it_is_written() {
    if !crate::common::root_and_fuse_available() {
        return;
    }
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let run = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap();
            let (right, wrong) = run_chapter(&text);
            if std::env::var_os("GUIDE_BLESS").is_some_and(|value| value == "1") {
                fs::write(&path, right).unwrap();
                return Vec::new();
            }
            wrong.into_iter().map(|wrong| format!("{}:\n{wrong}", path.display())).collect()
        };
        let running: Vec<_> = chapters().into_iter().map(|path| scope.spawn(move || run(path))).collect();
        running.into_iter().flat_map(|chapter| chapter.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_chapter_is_in_the_summary_and_no_link_leads_nowhere() {
    let listed: BTreeSet<PathBuf> = chapters().into_iter().collect();
    let there: BTreeSet<PathBuf> = fs::read_dir(guide())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md") && !path.ends_with("SUMMARY.md"))
        .collect();
    assert_eq!(listed, there);
    for path in there {
        let text = fs::read_to_string(&path).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let file = link.split('#').next().unwrap();
            assert!(file.is_empty() || guide().join(file).exists(), "{}: {link}", path.display());
        }
    }
}

#[test]
fn what_is_compared_is_all_but_what_differs_from_run_to_run() {
    for (a, b) in [
        ("mounted    at /home/ada/x (process 12)", "mounted  at /home/ada/x (process 7)"),
        ("stored     999 B, ratio 5.85", "stored     1.1 KiB, ratio 6.01"),
        ("1  2026-11-23 03:12:01  224 KiB  0644  desk", "1  2027-01-02 13:12:01  224 KiB  0644  desk"),
        ("2026-11-23T03:12:00.777274Z  INFO a", "2026-12-23T04:12:00Z  INFO a"),
        ("19 frames and 2 stubs checked: no damage", "20 frames and 2 stubs checked: no damage"),
        ("a torn end pack=00000000 at=106126 reason", "a torn end pack=00000000 at=106125 reason"),
        ("a.conflict-desk-01234567-89abcdef.txt", "a.conflict-desk-aaaaaaaa-bbbbbbbb.txt"),
    ] {
        assert_eq!(normal(a), normal(b));
    }
    for (a, b) in [
        ("files      4, 914 KiB", "files      4, 915 KiB"),
        ("224 KiB of 224 KiB are shared", "224 KiB of 225 KiB are shared"),
        ("99.9%  a", "99.8%  a"),
        ("a", "a\nb"),
        ("stored     1 KiB, ratio 2", "stored     1 KiB"),
        ("decade", "facade"),
        ("19 frames and 2 stubs checked", "19 frames and 3 stubs checked"),
    ] {
        assert_ne!(normal(a), normal(b));
    }
}

#[test]
fn a_transcript_that_is_wrong_is_seen_and_put_right() {
    if !crate::common::root_and_fuse_available() {
        return;
    }
    let right = "# Text\n\n<!-- guide:\necho 7 > seven\n-->\n\n```console\n$ cat seven\n7\n$ (cat seven\n> exit 3)\n7\n[exit code 3]\n$ pwd\n/home/ada\n```\nmore\n";
    assert_eq!(run_chapter(right), (right.to_owned(), Vec::new()));
    for wrong in [
        right.replacen("seven\n7\n", "seven\n8\n", 1),
        right.replacen("seven\n7\n", "seven\n", 1),
        right.replacen("code 3", "code 4", 1),
        right.replacen("ada", "bob", 1),
    ] {
        let (put_right, seen) = run_chapter(&wrong);
        assert!(put_right == right && seen.len() == 1, "{put_right}: {seen:?}");
    }
}
