//! What is in a directory that dedupfs manages, and the content of one of its files: read from the store, which is opened
//! read-only, without a mount.
//!
//! `cargo run --example read_store -- DIR [FILE]`

use dedupfs::overlay::{Attr, Kind, Overlay, ROOT};
use dedupfs::repo::{Layout, OpenOptions, Repo};
use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// The store of `dir`. Nothing of it is changed; a mount that has it open is said.
pub fn open(dir: &Path) -> Result<Repo, Box<dyn Error>> {
    let layout = Layout::of(dir)?.ok_or_else(|| format!("{}: no store of dedupfs", dir.display()))?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    Ok(Repo::open(&layout, &options, &mut |_| {})?)
}

/// A line for each file and directory in the root: its size, and its name.
pub fn list(overlay: &Overlay) -> Result<String, Box<dyn Error>> {
    let (root, mut names, mut from) = (overlay.tree.opendir(ROOT)?, Vec::<OsString>::new(), 0);
    loop {
        let before = from;
        overlay.tree.readdir(&root, from, |entry| {
            names.push(entry.name.to_owned());
            from = entry.next;
            true
        })?;
        if from == before {
            break;
        }
    }
    names.retain(|name| name != "." && name != "..");
    names.sort();
    let mut text = String::new();
    for name in names {
        let Attr { node, kind, size, .. } = overlay.tree.lookup(ROOT, &name)?;
        // Whoever looks something up holds it until he lets go of it.
        overlay.tree.forget(node, 1);
        let slash = if kind == Kind::Directory { "/" } else { "" };
        writeln!(text, "{size:12}  {}{slash}", name.display())?;
    }
    Ok(text)
}

/// The content of the file at `path` below the root, every chunk of it verified.
pub fn read(overlay: &Overlay, path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let (source, _) = overlay.tree.source(path)?;
    let (mut bytes, mut filled) = (vec![0; source.len().try_into()?], 0);
    while filled < bytes.len() {
        match source.read_at(filled as u64, &mut bytes[filled..])? {
            0 => return Err(format!("{}: it ended early", path.display()).into()),
            len => filled += len,
        }
    }
    Ok(bytes)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let dir = args.next().ok_or("expected a directory: read_store DIR [FILE]")?;
    let repo = open(dir.as_ref())?;
    let bytes = match args.next() {
        Some(path) => read(repo.overlay(), path.as_ref())?,
        None => list(repo.overlay())?.into_bytes(),
    };
    Ok(std::io::stdout().write_all(&bytes)?)
}
