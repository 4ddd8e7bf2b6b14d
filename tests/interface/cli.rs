//! The command line as scripts use it: JSON documents, exit codes, where the store is found, odd paths.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{
    As, Mount, as_both, fuse_available, namespaces, noise, prose, root_and_fuse_available, succeed, text,
};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a command and reads the one document that it prints.
#[track_caller]
fn json(command: &mut Command, code: i32) -> Value {
    let output = command.arg("--json").output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", text(&output));
    // Fails on anything before, between or after.
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{command:?}: {e}: {}", text(&output)))
}

/// Checks that each field named is there and of the type named: `n`umber without fraction, `f`loat,
/// `b`oolean, `s`tring, `l`ist.
#[track_caller]
fn has(value: &Value, fields: &str) {
    for field in fields.split(' ') {
        let (name, kind) = field.split_once(':').unwrap();
        let found = &value[name];
        let fits = match kind {
            "n" => found.is_u64(),
            "f" => found.is_number(),
            "b" => found.is_boolean(),
            "s" => found.is_string(),
            _ => found.is_array(),
        };
        assert!(fits, "{name} is to be {kind}: {value}");
    }
}

fn share(value: &Value) -> bool {
    value.as_f64().is_some_and(|share| (0.0..=1.0).contains(&share))
}

const STATUS: &str = "mounted:b files:n logical_bytes:n unique_bytes:n stored_bytes:n ratio:f chunks:n \
    index_bytes:n index_share:f not_indexed:n pending:n damaged:n";

#[test]
fn documents_have_the_fields_that_scripts_rely_on() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        let (dir, mnt) = (mount.dir(), mount.mnt());
        let ctl = |args: &[&str]| {
            let mut command = mount.dedupctl();
            command.args(args);
            command
        };
        fs::write(dir.join("before"), prose(1, 100_000)).unwrap();
        let created = json(ctl(&["init", "--chunk-avg", "8KiB"]).arg(&dir), 0);
        has(&created, "root:s store:s chunk_avg:n policy:s");
        assert_eq!((&created["chunk_avg"], &created["policy"]), (&8192.into(), &"on-close".into()));
        let direct = json(ctl(&["status"]).arg(&dir), 0);
        has(&direct, STATUS);
        assert_eq!((&direct["mounted"], &direct["files"]), (&false.into(), &0.into()));
        let scanned = json(ctl(&["scan", "--offline", "--yes"]).arg(&dir), 0);
        has(&scanned, "files:n bytes:n converted:n skipped:n errors:n");
        assert_eq!((&scanned["files"], &scanned["bytes"]), (&1.into(), &100_000.into()));
        assert_eq!(scanned["converted"], 1);
        mount.start();
        fs::write(mount.at("same"), prose(1, 100_000)).unwrap();
        fs::write(mount.at("part"), [prose(1, 60_000), noise(2, 20_000)].concat()).unwrap();
        let settled = json(ctl(&["settle"]).arg(&mnt), 0);
        has(&settled, "pending:n");
        assert_eq!(settled["pending"], 0);
        let status = json(ctl(&["status"]).arg(&mnt), 0);
        has(&status, STATUS);
        assert_eq!((&status["mounted"], &status["files"]), (&true.into(), &3.into()));
        assert_eq!(status["logical_bytes"], 280_000);
        let ratio = status["logical_bytes"].as_f64().unwrap() / status["stored_bytes"].as_f64().unwrap();
        assert!((status["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9, "{status}");
        assert_eq!(status["mountpoint"].as_str(), mnt.to_str());
        let similar = json(ctl(&["similar"]).arg(mount.at("part")), 0);
        has(&similar, "query:s matches:l identical:n suppressed_bytes:n suppressed_features:n behind:b");
        let matches = similar["matches"].as_array().unwrap();
        assert_eq!(matches.len(), 2, "{similar}");
        for found in matches {
            has(found, "path:s absolute:s size:n containment:f contained_in:f resemblance:f bytes_common:n");
            has(found, "identical:b verified:b suppressed_bytes:n");
            assert!(["containment", "contained_in", "resemblance"].iter().all(|name| share(&found[*name])));
            assert!(found["containment"].as_f64().unwrap() >= 0.75 && found["verified"] == true, "{found}");
            assert!(Path::new(found["absolute"].as_str().unwrap()).exists(), "{found}");
        }
        let estimate = json(ctl(&["similar", "--estimate", "--limit", "1"]).arg(mount.at("part")), 0);
        assert_eq!(estimate["matches"].as_array().unwrap().len(), 1);
        assert_eq!(estimate["matches"][0]["verified"], false);
        let none = json(
            ctl(&["similar"]).arg(mount.dir().join("part")).args(["--min", "1", "--by"]).arg("resemblance"),
            0,
        );
        assert_eq!(none["matches"], Value::Array(Vec::new()));
        let checked = json(ctl(&["check", "--deep"]).arg(&mnt), 0);
        has(&checked, "checked:n damaged:l repaired:n stubs:n deep:b");
        assert!(checked["checked"].as_u64().unwrap() > 0);
        let none = namespaces::none();
        let unmounted = json(ctl(&["unmount"]).arg(&mnt), 0);
        drop(none);
        assert_eq!(unmounted["unmounted"].as_str(), mnt.to_str());
    });
}

#[test]
fn exit_codes_tell_findings_from_failures() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::write(mount.at("file"), noise(1, 100_000)).unwrap();
    mount.settle();
    mount.unmount();
    let code = |args: &[&str]| mount.dedupctl().args(args).arg(mount.dir()).output().unwrap().status.code();
    assert_eq!(code(&["check", "--deep"]), Some(0));
    let pack = fs::read_dir(mount.dir().join(".dedupfs/packs")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(&pack, bytes).unwrap();
    assert_eq!(code(&["check", "--deep"]), Some(1));
    let report = json(mount.dedupctl().arg("check").arg("--deep").arg(mount.dir()), 1);
    let damaged = &report["damaged"][0];
    has(damaged, "kind:s object:s path:s reason:s");
    assert_eq!(damaged["path"], "file", "{report}");
    assert_eq!(code(&["check", "--nonsense"]), Some(2));
    assert_eq!(code(&["status", "--store", "/nowhere"]), Some(2));
}

#[test]
fn errors_leave_stdout_empty_with_json_too() {
    let mount = Mount::prepare(As::Root);
    for args in [&["status", "--json"][..], &["scan", "--json"], &["check", "--json"], &["status", "--jsn"]] {
        let output = mount.dedupctl().args(args).current_dir(mount.dir()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}: {}", text(&output));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mount = Mount::prepare(As::Root);
    succeed(mount.dedupctl().arg("init").arg(mount.dir()));
    let commands: [&[&str]; 6] =
        [&["status"], &["status", "--json"], &["completions", "bash"], &["man"], &["--help"], &["check"]];
    for args in commands {
        let mut command = mount.dedupctl();
        command.args(args).current_dir(mount.dir()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Closed before anything was read, and most times before anything was written.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output));
        assert!(output.stderr.is_empty(), "{args:?}: {}", text(&output));
    }
}

/// The commands that a help lists: lines before the options, indented by two blanks.
fn listed(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| !line.starts_with("Usage:")).skip(1);
    let lines = lines.take_while(|line| !line.starts_with("Options:") && !line.starts_with("Arguments:"));
    let rows = lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    rows.filter_map(|line| line.split_whitespace().next().filter(|name| *name != "help")).collect()
}

#[test]
fn every_help_has_an_example() {
    let mount = Mount::prepare(As::Root);
    let help = |command: &mut Command| String::from_utf8(succeed(command.arg("--help")).stdout).unwrap();
    let top = help(&mut mount.dedupctl());
    let commands = listed(&top);
    assert!(commands.len() >= 9, "{top}");
    for command in commands {
        let text = help(mount.dedupctl().arg(command));
        assert!(text.contains("Example: "), "{command}: {text}");
    }
    assert!(top.contains("Example: ") && help(&mut mount.dedupfs()).contains("Example: "));
    for program in [mount.dedupctl(), mount.dedupfs()] {
        let mut program = program;
        let version = String::from_utf8(succeed(program.arg("--version")).stdout).unwrap();
        assert!(version.trim().ends_with(env!("CARGO_PKG_VERSION")), "{version}");
    }
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let mount = Mount::prepare(As::Root);
    let out = |args: &[&str]| String::from_utf8(succeed(mount.dedupctl().args(args)).stdout).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        for program in ["dedupctl", "dedupfs"] {
            let text = out(&["completions", shell, "--program", program]);
            assert!(text.contains(program), "{shell}: {text}");
        }
        assert!(out(&["completions", shell]).contains("similar"), "{shell}");
    }
    assert!(out(&["man"]).contains(".TH dedupctl"));
    assert!(out(&["man", "--program", "dedupfs"]).contains("MOUNTPOINT"));
    let pages = mount.root.path().join("man");
    succeed(mount.dedupctl().args(["man", "--out"]).arg(&pages));
    assert!(pages.join("dedupctl-similar.1").exists() && pages.join("dedupfs.1").exists());
}

/// Every command, options and examples, as its help has them; then those below it.
fn commands(mount: &Mount, words: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let help = mount.dedupctl().args(words).arg("--help").env("COLUMNS", "200").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    found.push((words.to_vec(), help.clone()));
    for name in listed(&help) {
        commands(mount, &[words, &[name.to_owned()]].concat(), found);
    }
}

#[test]
fn the_manual_has_every_option_of_every_command_and_an_example() {
    let mount = Mount::prepare(As::Root);
    let dir = mount.root.path().join("man");
    succeed(mount.dedupctl().args(["man", "--out"]).arg(&dir));
    // As it is read: what is escaped for troff is not.
    let page = |words: &[String]| {
        let name = [&["dedupctl".to_owned()], words].concat().join("-") + ".1";
        fs::read_to_string(dir.join(&name))
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .replace("\\-", "-")
            .replace("\\fB", "")
            .replace("\\fR", "")
    };
    let mut found = Vec::new();
    commands(&mount, &[], &mut found);
    let (mut options, mut without) = (0, Vec::new());
    for (words, help) in &found {
        let text = page(words);
        for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
            let named = line.split("  ").next().unwrap().split([' ', ',', '=', '[', '<']);
            for option in named.filter(|word| word.starts_with('-') && !word.starts_with("---")) {
                let option = option.trim_end_matches('.');
                assert!(text.contains(option), "{words:?}: {option} is not in its page");
                options += 1;
            }
        }
        // In its own page, or in that of the command that it is one of.
        let call = format!("Example: dedupctl {}", words.join(" "));
        let above = if words.len() > 1 { page(&words[..words.len() - 1]) } else { String::new() };
        let shown = [&text, &above].iter().any(|text| text.contains(call.trim_end()));
        let piped = text.contains("Example: ") && words.len() < 2;
        if !shown && !piped {
            without.push(words.join(" "));
        }
    }
    assert!(without.is_empty(), "without an example: {without:?}");
    assert!(found.len() > 30 && options > 150, "{} commands, {options} options", found.len());
    let dedupfs = fs::read_to_string(dir.join("dedupfs.1")).unwrap().replace("\\-", "-");
    for option in ["--dedup", "--foreground", "--store", "--read-only", "--memory", "Example"] {
        assert!(dedupfs.contains(option), "{option}");
    }
}

/// What the parser of config.toml knows is told by what it says of a name that it does not know.
#[test]
fn the_manual_has_every_setting() {
    let mount = Mount::prepare(As::Root);
    succeed(mount.dedupctl().arg("init").arg(mount.dir()));
    let page =
        String::from_utf8(succeed(mount.dedupctl().args(["man", "--program", "config"])).stdout).unwrap();
    let page = page.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-");
    let config = mount.dir().join(".dedupfs/config.toml");
    let mut settings = 0;
    for (table, title) in [("", ""), ("[[policy]]\n", "[[policy]]"), ("[history]\n", "[history]")] {
        fs::write(&config, format!("{table}qqq = 1\n")).unwrap();
        let output = mount.dedupctl().arg("status").arg(mount.dir()).output().unwrap();
        let said = text(&output);
        let known = said.split("expected one of ").nth(1).unwrap_or_else(|| panic!("{said}"));
        for name in known.lines().next().unwrap().split('`').skip(1).step_by(2) {
            let set = match name {
                "policy" => "[[policy]]".to_owned(),
                "history" if table.is_empty() => "[history]".to_owned(),
                "sync" => "[sync]".to_owned(),
                name => format!("\n{name} = "),
            };
            assert!(page.contains(&set), "{title} {name} is not in the manual");
            settings += 1;
        }
    }
    assert!(settings >= 20, "{settings}");
    // troff takes it without a complaint, where there is one.
    let man = Command::new("man")
        .args(["--warnings", "-l", "-"])
        .env("LC_ALL", "C.UTF-8")
        .env("MANPAGER", "cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    if let Ok(mut man) = man {
        std::io::Write::write_all(&mut man.stdin.take().unwrap(), page.as_bytes()).unwrap();
        let output = man.wait_with_output().unwrap();
        assert!(!String::from_utf8_lossy(&output.stderr).contains("warning"), "{}", text(&output));
    }
}

#[test]
fn the_store_is_found_from_everywhere_it_can_be_meant() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::create_dir_all(mount.at("sub/deep")).unwrap();
        fs::write(mount.at("sub/file"), prose(1, 50_000)).unwrap();
        fs::write(mount.at("sub/deep/same"), prose(1, 50_000)).unwrap();
        mount.settle();
        let (dir, mnt, away) = (mount.dir(), mount.mnt(), mount.root.path().to_owned());
        let root = dir.to_str().unwrap().to_owned();
        let found = |args: &[&Path], cwd: &Path| {
            let status = json(mount.dedupctl().arg("status").args(args).current_dir(cwd), 0);
            assert_eq!(status["root"].as_str(), Some(&*root), "{args:?} in {}", cwd.display());
            assert_eq!(status["files"], 2);
            status["mounted"].as_bool().unwrap()
        };
        let store = Path::new("--store");
        let state = dir.join(".dedupfs");
        let bare: [(&[&Path], &Path); 5] = [
            (&[&dir], &away),
            (&[&dir.join("sub/deep")], &away),
            (&[store, &dir], &away),
            (&[store, &state], &away),
            (&[], &dir.join("sub")),
        ];
        let mounted: [(&[&Path], &Path); 5] = [
            (&[&mnt], &away),
            (&[&mnt.join("sub/file")], &away),
            (&[store, &mnt], &away),
            (&[Path::new("deep")], &mnt.join("sub")),
            (&[], &mnt),
        ];
        for (args, cwd) in bare.iter().chain(&mounted) {
            assert!(found(args, cwd), "{args:?} in {}: the daemon was not found", cwd.display());
        }
        // One file, named through the mount, the bare directory, and as a stranger.
        let stranger = away.join("stranger");
        fs::write(&stranger, prose(1, 50_000)).unwrap();
        for (file, cwd, matches) in [
            (mnt.join("sub/file"), &away, 1),
            (dir.join("sub/file"), &away, 1),
            ("sub/file".into(), &mnt, 1),
            (stranger.clone(), &mnt, 2),
            (stranger.clone(), &dir, 2),
        ] {
            let similar = json(mount.dedupctl().arg("similar").arg(&file).current_dir(cwd), 0);
            let found = similar["matches"].as_array().unwrap();
            assert_eq!(found.len(), matches, "{}: {similar}", file.display());
            assert!(found.iter().all(|found| found["identical"] == true), "{similar}");
        }
        let similar = json(mount.dedupctl().arg("similar").arg(&stranger).arg(store).arg(&dir), 0);
        assert_eq!(similar["matches"].as_array().unwrap().len(), 2, "{similar}");
        mount.unmount();
        for (args, cwd) in &bare {
            assert!(!found(args, cwd), "{args:?} in {}", cwd.display());
        }
    });
}

#[test]
fn a_store_elsewhere_and_a_mount_in_place_are_found_too() {
    if !fuse_available() {
        return;
    }
    let mut mount = Mount::prepare(As::Root);
    let store = mount.root.path().join("store");
    mount.flags = vec!["--store".to_owned(), store.to_str().unwrap().to_owned()];
    mount.start();
    fs::write(mount.at("file"), prose(1, 50_000)).unwrap();
    mount.settle();
    let state = |mount: &Mount| {
        let status = json(mount.dedupctl().arg("status").arg("--store").arg(&store).current_dir("/"), 0);
        assert_eq!((status["store"].as_str(), &status["files"]), (store.to_str(), &1.into()));
        status["mounted"].as_bool().unwrap()
    };
    assert!(state(&mount));
    mount.unmount();
    assert!(!state(&mount));
    let similar = json(mount.dedupctl().arg("similar").arg(mount.dir().join("file")), 0);
    assert_eq!(
        similar["matches"],
        Value::Array(Vec::new()),
        "a stub that is not mounted is read by its recipe"
    );
    let in_place = Mount::in_place(As::Root);
    fs::write(in_place.at("file"), prose(1, 50_000)).unwrap();
    in_place.settle();
    for named in [in_place.dir(), in_place.dir().join(".dedupfs")] {
        let status = json(in_place.dedupctl().arg("status").arg("--store").arg(named).current_dir("/"), 0);
        assert_eq!((&status["mounted"], &status["files"]), (&true.into(), &1.into()));
    }
}

/// What a line in fstab comes down to. mount(8) looks for programs in the system's directories only, so
/// ours are shown there, in a mount namespace of its own.
#[test]
fn mount_and_umount_know_it_as_a_type() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    let bin = mount.root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for program in [env!("CARGO_BIN_EXE_dedupfs"), env!("CARGO_BIN_EXE_dedupctl")] {
        fs::copy(program, bin.join(Path::new(program).file_name().unwrap())).unwrap();
    }
    let script = "set -e; mount --bind \"$1\" /usr/local/bin; hash -r; \
        mount -t fuse.dedupfs -o noauto,dedup=idle:10m,nosuid \"$2\" \"$3\"; \
        echo text > \"$3/file\"; dedupctl status \"$3\" --json; umount \"$3\"; ls \"$3\"; \
        while [ -e \"$2/.dedupfs/daemon.json\" ]; do sleep 0.1; done";
    let mut command = mount.command("timeout");
    command.args(["60", "unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]);
    let making = namespaces::making();
    let output = succeed(command.arg(&bin).arg(mount.dir()).arg(mount.mnt()));
    drop(making);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&status["policy"], &status["mounted"]), (&"idle:10m".into(), &true.into()));
    assert_eq!(fs::read_to_string(mount.dir().join("file")).unwrap(), "text\n");
}

#[test]
fn paths_need_not_be_text() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        let name = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let odd = mount.dir().join(name(b"dir \xff\n\xfe"));
        let mnt = mount.mnt().join(name(b"\xc3("));
        fs::create_dir(&odd).unwrap();
        fs::create_dir(&mnt).unwrap();
        succeed(mount.dedupfs().arg(&odd).arg(&mnt));
        for file in [&b"\xff one"[..], b"two\x1b[31m\n"] {
            fs::write(mnt.join(name(file)), prose(1, 50_000)).unwrap();
        }
        assert_eq!(json(mount.dedupctl().arg("settle").arg(&mnt), 0)["pending"], 0);
        let status = json(mount.dedupctl().arg("status").current_dir(&mnt), 0);
        assert_eq!(status["files"], 2);
        let similar = json(mount.dedupctl().arg("similar").arg(mnt.join(name(b"\xff one"))), 0);
        assert_eq!(similar["matches"][0]["path"], "two\u{1b}[31m\n", "{similar}");
        let similar = json(mount.dedupctl().arg("similar").arg(odd.join(name(b"two\x1b[31m\n"))), 0);
        assert_eq!(similar["matches"][0]["path"], "\u{fffd} one", "{similar}");
        let shown = succeed(mount.dedupctl().arg("similar").arg(mnt.join(name(b"\xff one"))));
        assert!(!shown.stdout.contains(&0x1b), "a name does not drive the terminal: {}", text(&shown));
        let scanned = json(mount.dedupctl().arg("scan").arg(mnt.join(name(b"\xff one"))), 0);
        assert_eq!(scanned["files"], 1);
        let none = namespaces::none();
        succeed(mount.dedupctl().arg("unmount").arg(&mnt));
        drop(none);
        assert_eq!(json(mount.dedupctl().arg("status").arg(&odd), 0)["mounted"], false);
    });
}

/// Runs `script` in a shell on a terminal of its own, with 10 rows of 80 columns. `DEDUPCTL` there is the program.
fn on_a_terminal(mount: &Mount, script: &str, env: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = mount.command("timeout");
    command.args(["60", "script", "-qec", &format!("stty rows 10 cols 80; {script}"), "/dev/null"]);
    for name in ["PAGER", "LESS", "NO_COLOR", "CI", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").env("SHELL", "/bin/sh").env("DEDUPCTL", mount.dedupctl().get_program());
    let output = command.envs(env.iter().copied()).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).replace('\r', ""))
}

#[test]
fn long_output_on_a_terminal_goes_through_a_pager() {
    let mount = Mount::prepare(As::Root);
    succeed(mount.dedupctl().arg("init").arg(mount.dir()));
    let paged = |script: &str, pager: &str| on_a_terminal(&mount, script, &[("PAGER", pager)]);
    let mark = "echo in the pager; cat";
    let (code, text) = paged("$DEDUPCTL man", mark);
    assert!(code == Some(0) && text.contains("in the pager") && text.contains(".TH dedupctl"), "{text}");
    // Not what fits, what scripts read, what is not wanted, or what is no terminal.
    let dir = mount.dir();
    let init = format!("$DEDUPCTL snapshot list {}", dir.display());
    let piped = "$DEDUPCTL man | cat".to_owned();
    let json = format!("$DEDUPCTL status --json {}", dir.display());
    for script in [&init, &piped, &json, &"$DEDUPCTL --no-pager man".to_owned()] {
        let (code, text) = paged(script, mark);
        assert!(code == Some(0) && !text.contains("in the pager") && text.len() > 10, "{script}: {text}");
    }
    for pager in ["", "cat", "no-such-pager-anywhere"] {
        let (code, text) = paged("$DEDUPCTL man", pager);
        assert!(
            code == Some(0) && text.contains(".TH dedupctl") && text.matches(".TH").count() == 1,
            "{pager}: {text}"
        );
    }
    // One who has seen enough, and the settings of less.
    let (code, text) = paged("$DEDUPCTL man", "head -n 1; echo LESS=$LESS");
    assert!(code == Some(0) && text.contains("LESS=FRX") && !text.contains(".TH dedupctl 1"), "{text}");
    let (_, text) = on_a_terminal(&mount, "$DEDUPCTL man", &[("PAGER", "echo LESS=$LESS"), ("LESS", "S")]);
    assert!(text.contains("LESS=S"), "{text}");
}

#[test]
fn a_status_is_watched_until_it_is_ended() {
    let mount = Mount::prepare(As::Root);
    succeed(mount.dedupctl().arg("init").arg(mount.dir()));
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let mut command = mount.dedupctl();
        command.args(["status", "--json", "--watch", "0.1"]).current_dir(mount.dir()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        for _ in 0..3 {
            let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            has(&line, STATUS);
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        assert!(lines.all(|line| serde_json::from_str::<Value>(&line.unwrap()).is_ok()), "whole lines only");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal:?}");
    }
    // A reader that goes away ends it, without an error.
    let mut command = mount.dedupctl();
    command
        .args(["status", "--watch", "0.1"])
        .current_dir(mount.dir())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(0) && output.stderr.is_empty(), "{}", text(&output));
    // In place on a terminal, and the other times no character that is not text.
    let script =
        format!("timeout -s INT 1 $DEDUPCTL status --watch 0.2 {}; echo ended $?", mount.dir().display());
    let (_, shown) = on_a_terminal(&mount, &script, &[]);
    assert!(shown.matches("\x1b[H").count() >= 2 && shown.contains("directory"), "{shown:?}");
    let (_, piped) = on_a_terminal(&mount, &format!("({script}) | cat"), &[]);
    assert!(!piped.contains('\x1b') && piped.matches("directory").count() >= 2, "{piped:?}");
    for wrong in ["0", "-1", "x", "1e9"] {
        let output = mount.dedupctl().args(["status", &format!("--watch={wrong}")]).output().unwrap();
        assert!(
            output.status.code() == Some(2) && text(&output).contains("expected seconds"),
            "{}",
            text(&output)
        );
    }
}

#[test]
fn what_is_misspelt_gets_a_suggestion() {
    let mount = Mount::prepare(As::Root);
    for (args, meant) in [
        (&["simlar", "x"][..], "'similar'"),
        (&["snapshot", "crate"], "'create'"),
        (&["status", "--jsn"], "'--json'"),
        (&["similar", "--by", "bites", "x"], "'bytes'"),
    ] {
        let output = mount.dedupctl().args(args).output().unwrap();
        assert!(output.status.code() == Some(2) && text(&output).contains(meant), "{}", text(&output));
    }
    mount.init("min_sise = 3");
    let output = mount.dedupctl().arg("status").arg(mount.dir()).output().unwrap();
    let said = text(&output);
    assert!(output.status.code() == Some(2), "{said}");
    assert!(said.contains("config.toml") && said.contains("did you mean `min_size`?"), "{said}");
}
