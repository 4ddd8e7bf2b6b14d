//! The main job on real files: keeps them in an overlay, says what that saved and which files resemble
//! each other, and proves that every byte comes back after a remount.
//!
//! `cargo run --release --example demo [DIRECTORY]`; without a directory it takes the sources of the crates
//! that were downloaded to build this. It works in a temporary directory of its own and removes that.

use dedupfs::admin::{self, Context, Request, Response};
use dedupfs::fuse::{self, MountOptions, Mounted};
use dedupfs::overlay::{Background, Match, Ranking, SimilarOptions};
use dedupfs::repo::{InitOptions, Layout, OpenOptions, Repo};
use std::error::Error;
use std::fs;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Files asked about.
const ASKED: usize = 20;
/// Pairs shown.
const SHOWN: usize = 10;
/// Shorter files are not asked about: licences and the like would fill the table.
const ASKED_BYTES_MIN: u64 = 4 << 10;

fn main() -> std::process::ExitCode {
    match demo() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            say(&mut std::io::stderr(), &format!("error: {e}\n"));
            std::process::ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<()> {
    let (source, shown) = match std::env::args_os().nth(1).map(PathBuf::from) {
        Some(dir) => (dir.clone(), dir.display().to_string()),
        None => (crate_sources()?, "the crates that cargo downloaded".to_owned()),
    };
    let files = regular_files(&source)?;
    if files.is_empty() {
        return Err(format!("{}: expected a directory with files, found none", source.display()).into());
    }
    let work = tempfile::Builder::new().prefix("dedupfs-demo-").tempdir()?;
    let (dir, mnt) = (work.path().join("dir"), work.path().join("mnt"));
    fs::create_dir(&dir)?;
    fs::create_dir(&mnt)?;
    let layout = Repo::init(&dir, None, &InitOptions::default())?;
    print(&format!("source     {}\n", shown));

    let begin = Instant::now();
    let overlay = Overlay::mount(&layout, &mnt)?;
    let mut bytes = 0;
    for (i, file) in files.iter().enumerate() {
        progress("copying", i, files.len());
        let to = mnt.join(file);
        fs::create_dir_all(to.parent().ok_or("a file has a directory")?)?;
        bytes += fs::copy(source.join(file), to)?;
    }
    let copied = begin.elapsed();
    overlay.ask(Request::Settle)?;
    let settled = begin.elapsed();
    let Response::Status(status) = overlay.ask(Request::Status)? else { return Err("no status".into()) };
    let below =
        files.iter().map(|file| dir.join(file).symlink_metadata()).collect::<std::io::Result<Vec<_>>>()?;
    let stubs = below.iter().filter(|meta| meta.len() == 0 && meta.blocks() == 0).count();
    let in_all = status.stored_bytes + status.index_bytes;
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    for (name, figure) in [
        ("files", status.files.to_string()),
        ("logical", size(status.logical_bytes)),
        ("unique", size(status.unique_bytes)),
        ("stored", size(status.stored_bytes)),
        ("ratio", format!("{:.2}", status.ratio)),
        ("index", size(status.index_bytes)),
        (
            "in all",
            format!(
                "{} with the index, ratio {:.2}",
                size(in_all),
                status.logical_bytes as f64 / in_all as f64
            ),
        ),
        ("stubs", format!("{stubs} files take 0 blocks in the directory")),
        ("copied", format!("{}, settled after {}", seconds(copied), seconds(settled))),
    ] {
        print(&format!("{name:<10} {figure}\n"));
    }

    print("\nCONTAINS  RESEMBLES  the most alike of a sample of files\n");
    for (asked, found) in most_alike(&overlay, &source, &files)? {
        print(&format!(
            "{:>7.1}%  {:>8.1}%  {}\n{:21}{}\n",
            percent(found.shares.containment),
            percent(found.shares.resemblance),
            asked.display(),
            "",
            found.path.display()
        ));
    }

    overlay.unmount()?;
    let begin = Instant::now();
    let overlay = Overlay::mount(&layout, &mnt)?;
    let mut differences = 0;
    for (i, file) in files.iter().enumerate() {
        progress("verifying", i, files.len());
        if !same(&source.join(file), &mnt.join(file))? {
            differences += 1;
            say(&mut std::io::stderr(), &format!("{}: differs\n", file.display()));
        }
    }
    overlay.unmount()?;
    if differences > 0 {
        return Err(format!("{differences} of {} files differ after a remount", files.len()).into());
    }
    let time = seconds(begin.elapsed());
    print(&format!(
        "\nmounted again: {} files, {bytes} bytes, all the same to the byte ({time})\n",
        files.len()
    ));
    Ok(())
}

/// A mounted overlay. Unmounted when dropped, so that an error leaves nothing mounted.
struct Overlay {
    repo: Option<Repo>,
    background: Option<Background>,
    mounted: Mounted,
}

impl Overlay {
    fn mount(layout: &Layout, mountpoint: &Path) -> Result<Overlay> {
        let repo = Repo::open(layout, &OpenOptions { convert: true, ..OpenOptions::default() }, &mut |_| {})?;
        let background = repo.overlay().start();
        let options = MountOptions {
            mountpoint: mountpoint.to_owned(),
            read_only: false,
            allow_other: false,
            passthrough: true,
            in_place: false,
            control_info: Vec::new(),
            threads: 4,
        };
        let mounted = fuse::mount(Arc::clone(repo.overlay()), Arc::clone(repo.history()), options)?;
        Ok(Overlay { repo: Some(repo), background: Some(background), mounted })
    }

    fn repo(&self) -> &Repo {
        self.repo.as_ref().expect("it is closed by unmount alone, which takes the overlay")
    }

    fn ask(&self, request: Request) -> Result<Response> {
        let context = Context { repo: self.repo(), mountpoint: Some(self.mounted.mountpoint()) };
        Ok(admin::run(context, request, &mut |_| true)?)
    }

    fn unmount(mut self) -> Result<()> {
        self.mounted.unmount(false)?;
        self.mounted.wait_gone();
        let left = self.background.take().map(Background::stop).unwrap_or_default();
        match self.repo.take() {
            Some(repo) => Ok(repo.close(left)?),
            None => Ok(()),
        }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = self.mounted.unmount(true);
    }
}

/// The best match of each file of a sample, without those that are the same, best first.
fn most_alike(overlay: &Overlay, source: &Path, files: &[PathBuf]) -> Result<Vec<(PathBuf, Match)>> {
    let mut large = Vec::new();
    for file in files {
        if source.join(file).metadata()?.len() >= ASKED_BYTES_MIN {
            large.push(file);
        }
    }
    let step = (large.len() / ASKED).max(1);
    let mut pairs = Vec::new();
    for file in large.iter().step_by(step).take(ASKED) {
        let options = SimilarOptions { by: Ranking::Resemblance, ..SimilarOptions::default() };
        let request = Request::Similar { path: (*file).clone(), outside: false, options };
        let Response::Similar(report) = overlay.ask(request)? else { return Err("no matches".into()) };
        pairs.extend(
            report
                .matches
                .into_iter()
                .find(|found| !found.shares.identical)
                .map(|found| (report.query, found)),
        );
    }
    pairs.sort_by(|a, b| b.1.shares.resemblance.total_cmp(&a.1.shares.resemblance));
    pairs.truncate(SHOWN);
    Ok(pairs)
}

/// Where cargo has unpacked what it downloaded.
fn crate_sources() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let src = home.ok_or("neither CARGO_HOME nor HOME is set: name a directory")?.join("registry/src");
    let wanted = || format!("{}: expected the sources of crates: name a directory", src.display());
    let entries = fs::read_dir(&src).map_err(|_| wanted())?.collect::<std::io::Result<Vec<_>>>()?;
    // One directory for each registry.
    Ok(match &entries[..] {
        [only] => only.path(),
        _ => src,
    })
}

/// Paths below `top`, in order.
fn regular_files(top: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut dirs) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = dirs.pop() {
        let entries =
            fs::read_dir(top.join(&dir)).map_err(|e| format!("{}: {e}", top.join(&dir).display()))?;
        for entry in entries {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, dir.join(entry.file_name()));
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn same(a: &Path, b: &Path) -> Result<bool> {
    let (mut a, mut b) = (fs::File::open(a)?, fs::File::open(b)?);
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let len = a.read(&mut left)?;
        if len == 0 {
            return Ok(b.read(&mut right)? == 0);
        }
        // A file that changed or is cut short is a difference, not an error.
        if b.read_exact(&mut right[..len]).is_err() || left[..len] != right[..len] {
            return Ok(false);
        }
    }
}

/// What is not the same does not show as the same.
fn percent(share: f64) -> f64 {
    (100.0 * share).min(99.9)
}

fn size(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn progress(what: &str, done: usize, all: usize) {
    let mut err = std::io::stderr();
    if err.is_terminal() && (done.is_multiple_of(100) || done + 1 == all) {
        let end = if done + 1 == all { "\r\x1b[K" } else { "" };
        say(&mut err, &format!("\r{what}: {} of {all} files{end}", done + 1));
    }
}

fn print(text: &str) {
    say(&mut std::io::stdout(), text);
}

/// A reader that went away is no error.
fn say(to: &mut dyn Write, text: &str) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}
