//! Copying a tree into a mount, against `cp -a` to the plain filesystem, `borg create` and `restic backup`, in
//! one run on the same input: time, bytes on disk, peak memory. The mount's copy is compared with the source
//! after a remount. borg and restic are left out where they are not installed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What one contestant needed.
struct Row {
    name: &'static str,
    time: Duration,
    stored: u64,
    peak_kib: u64,
}

/// Compares the contestants in `work`, which is made and emptied.
pub(super) fn run_all(work: &Path, sources: &[PathBuf]) {
    let _ = std::fs::remove_dir_all(work);
    std::fs::create_dir_all(work).unwrap();
    let (files, bytes) =
        sources.iter().map(|source| size(source, true)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    println!(
        "{files} files, {:.1} MB (read once before, so that every contestant finds them in memory)\n",
        mb(bytes)
    );

    let plain = work.join("plain");
    std::fs::create_dir(&plain).unwrap();
    let mut rows = vec![timed("cp -a", Command::new("cp").arg("-a").args(sources).arg(&plain))];
    rows[0].stored = disk(&plain);
    rows.push(dedupfs(work, sources, bytes));
    for (name, init, create) in [
        (
            "borg create",
            vec!["borg", "init", "-e", "none", "REPO"],
            vec!["borg", "create", "-C", "zstd,3", "REPO::a"],
        ),
        (
            "restic backup",
            vec!["restic", "init", "-q", "-r", "REPO"],
            vec!["restic", "backup", "-q", "-r", "REPO"],
        ),
    ] {
        rows.extend(peer(name, work, &init, &create, sources));
    }
    println!(
        "\n{:<28} {:>9} {:>8} {:>11} {:>8} {:>10}",
        "", "seconds", "ratio", "stored MB", "ratio", "peak MB"
    );
    for row in &rows {
        println!(
            "{:<28} {:>9.2} {:>8.2} {:>11.1} {:>8.2} {:>10.0}",
            row.name,
            row.time.as_secs_f64(),
            row.time.as_secs_f64() / rows[0].time.as_secs_f64(),
            mb(row.stored),
            bytes as f64 / row.stored as f64,
            row.peak_kib as f64 / 1024.0
        );
    }
    println!("\nratios: of time to cp -a; of the files' bytes to the bytes stored");
}

fn dedupfs(work: &Path, sources: &[PathBuf], bytes: u64) -> Row {
    let (dir, mnt) = (work.join("dir"), work.join("mnt"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(&mnt).unwrap();
    let bin = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let mount = || run(Command::new(bin.join("dedupfs")).arg(&dir).arg(&mnt));
    let ctl = |args: &[&str]| {
        let output = Command::new(bin.join("dedupctl")).args(args).arg(&mnt).arg("--json").output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default()
    };
    mount();
    let copy = timed("cp", Command::new("cp").arg("-a").args(sources).arg(&mnt));
    let start = Instant::now();
    ctl(&["settle"]);
    let settle = start.elapsed();
    let status = ctl(&["status"]);
    let peak_kib = daemon_peak_kib(&mnt);
    run(Command::new(bin.join("dedupctl")).arg("unmount").arg(&mnt));
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    let (mut stubs, mut empty_blocks, mut plain) = (0, 0, 0);
    walk(&dir, &mut |path, meta| {
        if path.starts_with(dir.join(".dedupfs")) || path.parent() == Some(&dir) && path.is_file() {
            return;
        }
        let mut value = [0; 64];
        if rustix::fs::lgetxattr(path, "user.dedupfs", &mut value[..]).is_ok() && meta.len() == 0 {
            stubs += 1;
            empty_blocks += u64::from(meta.blocks() == 0);
        } else if meta.len() > 0 {
            plain += 1;
        }
    });
    let stored = disk(&dir.join(".dedupfs"));
    println!("dedupfs: copy {:.2} s, settle {:.2} s", copy.time.as_secs_f64(), settle.as_secs_f64());
    println!(
        "  logical {:.1} MB, unique {:.1} MB, in packs {:.1} MB, index {:.1} MB, all of .dedupfs on disk {:.1} MB",
        mb(number("logical_bytes")),
        mb(number("unique_bytes")),
        mb(number("stored_bytes")),
        mb(number("index_bytes")),
        mb(stored)
    );
    println!(
        "  ratio logical/packs {:.2}; {stubs} stubs, {empty_blocks} of them with 0 blocks; {plain} files left plain",
        bytes as f64 / number("stored_bytes").max(1) as f64
    );
    mount();
    let start = Instant::now();
    for source in sources {
        let copy = mnt.join(source.file_name().unwrap());
        run(Command::new("diff").args(["-r", "--no-dereference"]).arg(source).arg(copy));
    }
    let compare = start.elapsed();
    let start = Instant::now();
    for source in sources {
        let copy = work.join("plain").join(source.file_name().unwrap());
        run(Command::new("diff").args(["-r", "--no-dereference"]).arg(source).arg(copy));
    }
    let base = start.elapsed();
    println!(
        "  diff -r after a remount: clean, {:.1} s; of the plain copy {:.1} s (ratio {:.2})",
        compare.as_secs_f64(),
        base.as_secs_f64(),
        compare.as_secs_f64() / base.as_secs_f64()
    );
    run(Command::new(bin.join("dedupctl")).arg("unmount").arg(&mnt));
    Row { name: "dedupfs: copy in and settle", time: copy.time + settle, stored, peak_kib }
}

fn peer(name: &'static str, work: &Path, init: &[&str], create: &[&str], sources: &[PathBuf]) -> Option<Row> {
    let repo = work.join(init[0]);
    let repo_text = repo.to_str().unwrap().to_owned();
    let command = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(words[1..].iter().map(|word| word.replace("REPO", &repo_text)));
        command.env("HOME", work).env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
        command.env("RESTIC_PASSWORD", "benchmark").env("RESTIC_CACHE_DIR", work.join("cache"));
        command
    };
    if !command(init).stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("{name}: not installed, left out");
        return None;
    }
    let mut row = timed(name, command(create).args(sources));
    row.stored = disk(&repo);
    Some(row)
}

fn run(command: &mut Command) {
    let status = command.stdout(Stdio::inherit()).status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// Runs to the end, with what it wrote on disk.
fn timed(name: &'static str, command: &mut Command) -> Row {
    rustix::fs::sync();
    let start = Instant::now();
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    let pid = rustix::process::Pid::from_raw(child.id() as i32);
    let peak_kib = wait_with_peak(child, pid);
    Row { name, time: start.elapsed(), stored: 0, peak_kib }
}

fn wait_with_peak(mut child: std::process::Child, pid: Option<rustix::process::Pid>) -> u64 {
    let status = pid.map(|pid| format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let mut peak = 0;
    loop {
        peak = peak.max(high_water(Path::new(&status)));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn high_water(status: &Path) -> u64 {
    let text = std::fs::read_to_string(status).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn daemon_peak_kib(mnt: &Path) -> u64 {
    let daemons = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split('\0');
        words.next().is_some_and(|name| name.ends_with("/dedupfs")) && line.contains(mnt.to_str().unwrap())
    });
    daemons.map(|entry| high_water(&entry.path().join("status"))).max().unwrap_or(0)
}

fn walk(dir: &Path, visit: &mut dyn FnMut(&Path, &std::fs::Metadata)) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            walk(&path, visit);
        } else if meta.is_file() {
            visit(&path, &meta);
        }
    }
}

/// Files and their bytes; with `read` they are read too.
fn size(dir: &Path, read: bool) -> (u64, u64) {
    let mut total = (0, 0);
    walk(dir, &mut |path, meta| {
        total = (total.0 + 1, total.1 + meta.len());
        if read {
            let _ = std::io::copy(&mut std::fs::File::open(path).unwrap(), &mut std::io::sink());
        }
    });
    total
}

/// Bytes on disk of all files.
fn disk(dir: &Path) -> u64 {
    rustix::fs::sync();
    let mut blocks = 0;
    walk(dir, &mut |_, meta| blocks += meta.blocks());
    blocks * 512
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
