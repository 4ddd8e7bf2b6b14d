//! Programs that people use, on a real mount, with their files turned into stubs between their steps.
//!
//! Each does what it does on any directory: a step of it that meets a stub gets the same bytes, and what it writes
//! is there after the next conversion, mount and check.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{
    As, Mount, as_both, fuse_available, noise, prose, root_and_fuse_available, succeed, text,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a shell script in a directory of the mount, with an argument, for at most a minute.
fn sh(mount: &Mount, dir: &str, script: &str, argument: &Path) -> String {
    let mut command = mount.command("timeout");
    command.args(["60", "sh", "-euc", script, "sh"]).arg(argument).current_dir(mount.at(dir));
    command.env("GIT_CONFIG_NOSYSTEM", "1").stdin(Stdio::null());
    String::from_utf8(succeed(&mut command).stdout).unwrap()
}

/// Everything that was closed becomes stubs; with `fresh` it is mounted again too.
fn settle(mount: &Mount, fresh: bool) {
    mount.settle();
    if fresh {
        mount.remount();
    }
}

fn whole(mount: &Mount) {
    let check = mount.ctl(&["check", "--deep"]);
    assert_eq!(check["damaged"].as_array().unwrap().len(), 0, "{check}");
}

#[test]
fn git_works_on_a_repository_of_stubs() {
    as_both(|user| {
        let mount = Mount::new(user);
        let origin = mount.root.path().join("origin");
        fs::create_dir_all(origin.join("src/deep")).unwrap();
        for i in 0..60u64 {
            let dir = ["", "src/", "src/deep/"][i as usize % 3];
            fs::write(origin.join(format!("{dir}file-{i}")), prose(i, 100 + i as usize * 700)).unwrap();
        }
        let name = "git config user.name Somebody; git config user.email some@body; ";
        let make = format!("cd \"$1\"; git init -q; {name} git add .; git commit -qm one");
        sh(&mount, "", &make, &origin);
        sh(&mount, "", "git clone -q \"$1\" clone", &origin);
        for round in 0..3 {
            settle(&mount, round == 1);
            let script = format!(
                "{name} git status --porcelain; echo {round} >> file-0; sed -i s/chunk/CHUNK/ src/file-1; \
                 git mv src/deep/file-2 file-2-{round}; git commit -qam {round}; git mv file-2-{round} src/deep/file-2; \
                 git commit -qam back; git checkout -q -b branch-{round} HEAD~1; git checkout -q -; git stash list; \
                 git status --porcelain"
            );
            assert_eq!(
                sh(&mount, "clone", &script, &origin),
                "",
                "nothing but what was committed has changed"
            );
        }
        settle(&mount, false);
        sh(&mount, "clone", "git gc -q --prune=now; git fsck --strict", &origin);
        settle(&mount, true);
        sh(
            &mount,
            "clone",
            "git fsck --full --strict; git clone -q . ../again; git push -q \"$1\" HEAD:refs/heads/pushed",
            &origin,
        );
        sh(
            &mount,
            "again",
            "git fsck --full; test \"$(git rev-parse HEAD)\" = \"$(git -C ../clone rev-parse HEAD)\"",
            &origin,
        );
        whole(&mount);
    });
}

#[test]
fn cargo_builds_once() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    for dir in ["src", "member/src"] {
        fs::create_dir_all(mount.at(dir)).unwrap();
    }
    let package = |name: &str, rest: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n{rest}")
    };
    fs::write(
        mount.at("Cargo.toml"),
        package("small", "[dependencies]\nmember = { path = \"member\" }\n[workspace]\n"),
    )
    .unwrap();
    fs::write(mount.at("member/Cargo.toml"), package("member", "")).unwrap();
    fs::write(mount.at("member/src/lib.rs"), "pub fn text() -> &'static str { \"hello\" }\n").unwrap();
    fs::write(mount.at("src/main.rs"), "fn main() { println!(\"{}\", member::text()); }\n").unwrap();
    let cargo = |args: &[&str]| {
        // With the home of who runs the tests: the compiler is there.
        let mut command = Command::new(env!("CARGO"));
        command
            .args(args)
            .args(["--offline", "--target-dir"])
            .arg(mount.at("target"))
            .current_dir(mount.mnt());
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("CARGO") && name != "CARGO_HOME")
        {
            command.env_remove(name);
        }
        let output = succeed(command.env_remove("RUSTFLAGS"));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(cargo(&["build"]).1.contains("Compiling small"));
    for fresh in [false, true] {
        settle(&mount, fresh);
        let (_, said) = cargo(&["build"]);
        assert!(!said.contains("Compiling") && said.contains("Finished"), "{said}");
        assert_eq!(cargo(&["run", "-q"]).0, "hello\n");
    }
    settle(&mount, false);
    fs::write(mount.at("member/src/lib.rs"), "pub fn text() -> &'static str { \"changed\" }\n").unwrap();
    let (_, said) = cargo(&["build"]);
    assert!(said.contains("Compiling member") && said.contains("Compiling small"), "{said}");
    settle(&mount, true);
    assert_eq!(cargo(&["run", "-q"]).0, "changed\n");
    whole(&mount);
}

#[test]
fn sqlite_keeps_its_promises_in_every_journal_mode() {
    as_both(|user| {
        let mount = Mount::new(user);
        let script = r#"
import sqlite3, sys, time
mode, path, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = sqlite3.connect(path, timeout=50, isolation_level=None)
# SQLite does not wait where two change the mode at a time, on any filesystem.
for attempt in range(100):
    try:
        db.execute("PRAGMA journal_mode=" + mode)
        break
    except sqlite3.OperationalError:
        time.sleep(0.1)
else:
    raise SystemExit("the journal mode cannot be set")
db.execute("CREATE TABLE IF NOT EXISTS t (who INTEGER, n INTEGER, text TEXT)")
for n in range(30):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (?, ?, ?)", (seed, n, "x" * (n * 37 % 2000)))
    db.execute("UPDATE t SET text = text || 'y' WHERE n = ?", (n // 2,))
    db.execute("COMMIT")
"#;
        let path = mount.root.path().join("script.py");
        fs::write(&path, script).unwrap();
        for mode in ["wal", "delete", "truncate", "persist"] {
            let db = mount.at(&format!("{mode}.db"));
            for round in 0..2 {
                let writer = |seed: u32| {
                    let mut command = mount.command("timeout");
                    command
                        .args(["60", "python3"])
                        .arg(&path)
                        .arg(mode)
                        .arg(&db)
                        .arg((round * 2 + seed).to_string());
                    command.spawn().unwrap()
                };
                let writers = [writer(0), writer(1)];
                if round == 1 {
                    mount.ctl(&["settle"]);
                }
                for mut writer in writers {
                    assert!(writer.wait().unwrap().success(), "{mode}");
                }
                settle(&mount, round == 1);
            }
            assert!(mount.is_stub(&format!("{mode}.db")), "{mode}");
            let query = "PRAGMA integrity_check; SELECT count(*), count(DISTINCT who || '-' || n) FROM t; \
                SELECT sum(length(text)) FROM t;";
            let output = succeed(mount.command("sqlite3").arg(&db).arg(query));
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(said.starts_with("ok\n120|120\n"), "{mode}: {said}");
        }
        whole(&mount);
    });
}

/// Where Debian puts a version's programs.
fn postgres_bin() -> std::path::PathBuf {
    let versions =
        fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed: the package `postgresql`");
    let newest = versions.map(|entry| entry.unwrap().path()).max().expect("a version of PostgreSQL");
    newest.join("bin")
}

#[test]
fn postgresql_runs_and_its_checksums_hold() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::set_permissions(mount.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (bin, data) = (postgres_bin(), mount.at("data"));
    fs::create_dir(&data).unwrap();
    succeed(Command::new("chown").arg("postgres").arg(&data).arg(mount.root.path().join("home")));
    let postgres = |program: &str, args: &[&str]| {
        let mut command = mount.command("timeout");
        command.args(["120", "setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]);
        command.arg(bin.join(program)).args(args).current_dir(mount.root.path().join("home"));
        let output = succeed(command.env("LC_ALL", "C").stdin(Stdio::null()));
        String::from_utf8(output.stdout).unwrap()
    };
    let (data, socket) = (data.to_str().unwrap(), mount.root.path().join("home"));
    let log = mount.root.path().join("home/log");
    let (socket, log) = (socket.to_str().unwrap(), log.to_str().unwrap());
    let options =
        format!("-c listen_addresses= -c unix_socket_directories={socket} -c fsync=on -c max_wal_size=64MB");
    let start = || postgres("pg_ctl", &["-D", data, "-w", "-l", log, "-o", &options, "start"]);
    let stop = |how: &str| postgres("pg_ctl", &["-D", data, "-w", "-m", how, "stop"]);
    postgres("initdb", &["-D", data, "--no-sync", "--data-checksums", "-A", "trust", "--no-instructions"]);
    settle(&mount, false);
    start();
    postgres("pgbench", &["-h", socket, "-i", "-s", "1", "-q", "postgres"]);
    mount.ctl(&["settle"]);
    postgres("pgbench", &["-h", socket, "-c", "4", "-T", "3", "postgres"]);
    stop("immediate");
    settle(&mount, true);
    // It recovers from its log, which is of stubs now.
    start();
    mount.ctl(&["settle"]);
    postgres("pgbench", &["-h", socket, "-c", "4", "-T", "2", "postgres"]);
    // Each transaction adds the same to one of each.
    let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches) \
        AND (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(tbalance) FROM pgbench_tellers), \
        (SELECT count(*) FROM pgbench_accounts)";
    assert_eq!(postgres("psql", &["-h", socket, "-Atc", sums, "postgres"]).trim(), "t|100000");
    postgres("pg_amcheck", &["-h", socket, "--install-missing", "--heapallindexed", "postgres"]);
    stop("fast");
    settle(&mount, true);
    let checked = postgres("pg_checksums", &["-D", data, "--check"]);
    assert!(checked.contains("Bad checksums:  0"), "{checked}");
    whole(&mount);
}

#[test]
fn copies_by_rsync_tar_and_cp_are_the_same() {
    as_both(|user| {
        let mount = Mount::new(user);
        let source = mount.root.path().join("source");
        fs::create_dir_all(source.join("a/b")).unwrap();
        for i in 0..40u64 {
            fs::write(source.join(format!("a/{i}")), noise(i, i as usize * 3000)).unwrap();
        }
        fs::hard_link(source.join("a/7"), source.join("a/b/seven")).unwrap();
        std::os::unix::fs::symlink("../7", source.join("a/b/link")).unwrap();
        fs::set_permissions(source.join("a/9"), PermissionsExt::from_mode(0o640)).unwrap();
        let sparse = fs::File::create(source.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(99, 10_000), 5 << 20).unwrap();
        sparse.set_len(9 << 20).unwrap();
        drop(sparse);
        let rsync = "rsync -aHX --sparse --itemize-changes \"$1\"/ copied/";
        assert!(sh(&mount, "", rsync, &source).contains("a/39"));
        assert_eq!(sh(&mount, "", rsync, &source), "", "a second one has nothing to do");
        settle(&mount, true);
        assert_eq!(sh(&mount, "", rsync, &source), "", "nor after a conversion");
        assert_eq!(
            sh(&mount, "", "rsync -aHXnc --itemize-changes \"$1\"/ copied/", &source),
            "",
            "nor by content"
        );
        let script =
            "tar -C \"$1\" --format=posix -cSf all.tar .; mkdir out; tar -xf all.tar -C out; rm -rf all.tar";
        sh(&mount, "", script, &source);
        sh(&mount, "", "cp -a --sparse=always copied cp; cp -a --reflink=auto copied cp-again", &source);
        settle(&mount, true);
        let script = "for copy in copied out cp cp-again; do diff -r --no-dereference \"$1\" $copy; \
            (cd $copy; tar -cSf - .) | tar -tf - > /dev/null; done";
        assert_eq!(sh(&mount, "", script, &source), "");
        for copy in ["copied", "out", "cp", "cp-again"] {
            let meta = |path: String| fs::symlink_metadata(mount.at(&path)).unwrap();
            assert_eq!(meta(format!("{copy}/a/7")).ino(), meta(format!("{copy}/a/b/seven")).ino(), "{copy}");
            assert_eq!(meta(format!("{copy}/a/9")).mode() & 0o777, 0o640, "{copy}");
            let then = fs::metadata(source.join("a/9")).unwrap().modified().unwrap();
            assert_eq!(meta(format!("{copy}/a/9")).modified().unwrap(), then, "{copy}");
        }
        assert!(fs::metadata(mount.at("cp/sparse")).unwrap().blocks() < 1000, "holes stay holes");
        whole(&mount);
    });
}

#[test]
fn editors_save_atomically() {
    as_both(|user| {
        let mount = Mount::new(user);
        let nothing = Path::new("");
        fs::write(mount.at("text"), "first line\nsecond line\n").unwrap();
        let saves = [
            "vim -u NONE -es -c '%s/first/vim1/' -c 'wq' text",
            "vim -u NONE -es -c 'set backup backupcopy=no' -c '%s/vim1/vim2/' -c 'wq' text; rm -f text~",
            "vim -u NONE -es -c 'set backup backupcopy=yes' -c '%s/vim2/vim3/' -c 'wq' text; rm -f text~",
            "printf ',s/vim3/ed/\\nw\\nq\\n' | ed -s text",
            "sed -i s/ed/sed/ text",
            "sed s/sed/renamed/ text > text.new; mv text.new text",
            "python3 -c 'import os; t = open(\"text\").read().replace(\"renamed\", \"replaced\"); f = open(\"t\", \"w\"); \
             f.write(t); f.flush(); os.fsync(f.fileno()); f.close(); os.replace(\"t\", \"text\")'",
            "cp text copy; sed s/replaced/written/ copy > text",
            "echo 'third line' >> text",
        ];
        for (i, save) in saves.iter().enumerate() {
            settle(&mount, i % 4 == 3);
            sh(&mount, "", save, nothing);
            let word = ["vim1", "vim2", "vim3", "ed", "sed", "renamed", "replaced", "written", "written"][i];
            let saved = fs::read_to_string(mount.at("text")).unwrap();
            assert!(saved.starts_with(&format!("{word} line\nsecond line\n")), "{save}: {saved}");
        }
        settle(&mount, true);
        assert_eq!(fs::read_to_string(mount.at("text")).unwrap(), "written line\nsecond line\nthird line\n");
        let names = sh(&mount, "", "ls -A | sort", nothing);
        assert_eq!(names, "copy\ntext\n", "no editor left anything behind");
    });
}

#[test]
fn a_python_environment_runs_from_stubs() {
    as_both(|user| {
        let mount = Mount::new(user);
        let nothing = Path::new("");
        sh(
            &mount,
            "",
            "python3 -m venv --without-pip --copies env; to=$(echo env/lib/python3*/site-packages); cp -r /usr/lib/python3*/json $to/ours",
            nothing,
        );
        let run = "env/bin/python -c 'import sys, ours; print(sys.prefix, ours.dumps({\"a\": [1, 2]}), ours.__file__)'";
        for round in 0..3 {
            settle(&mount, round == 1);
            let said = sh(&mount, "", run, nothing);
            assert!(said.contains("{\"a\": [1, 2]}") && said.contains("site-packages/ours"), "{said}");
            assert!(said.starts_with(mount.at("env").to_str().unwrap()), "{said}");
        }
        whole(&mount);
    });
}

/// A tree to change the root into, of this system's own programs and what they are linked to.
#[test]
fn a_system_in_a_directory_runs_from_stubs() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let programs = ["sh", "ls", "cat", "grep", "sha256sum", "cp", "mv", "mkdir", "sort"];
    let nothing = Path::new("");
    for program in programs {
        let script = format!(
            "p=$(command -v {program}); mkdir -p root/bin; cp -L \"$p\" root/bin/{program}; \
             ldd \"$p\" | grep -o '/[^ ]*' | while read -r l; do mkdir -p \"root$(dirname \"$l\")\"; cp -L \"$l\" \"root$l\"; done"
        );
        sh(&mount, "", &script, nothing);
    }
    // What is in the tree has to do: nothing of the system around it can be reached.
    let script = "set -eu; PATH=/bin; mkdir -p /work; cat /bin/* > /work/all; cp /work/all /work/copy; mv /work/copy /work/moved; \
        cat /work/moved | sha256sum; ls /bin | sort | grep -c .; cat /work/all | sha256sum";
    let mut first = None;
    for round in 0..3 {
        settle(&mount, round == 1);
        assert!(mount.is_stub("root/bin/cat"));
        let mut command = mount.command("timeout");
        command
            .args(["60", "/usr/sbin/chroot"])
            .arg(mount.at("root"))
            .args(["/bin/sh", "-c", script])
            .env("PATH", "/bin");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let said = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = said.lines().collect();
        assert_eq!((lines[0], lines[1]), (lines[2], &*programs.len().to_string()), "{said}");
        assert_eq!(&said, first.get_or_insert(said.clone()));
    }
    whole(&mount);
}
