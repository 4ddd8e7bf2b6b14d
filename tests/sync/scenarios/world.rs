//! Two overlays in one of three forms, what a user does to a tree, and a manifest of what is in it.

use crate::common::{As, Mount, is_root, succeed, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// How both sides are there during a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Mounted over its own directory.
    OverItself,
    /// Mounted in another place.
    Elsewhere,
    /// Not mounted: a sync mounts it for itself.
    Bare,
}

pub const FORMS: [Form; 3] = [Form::OverItself, Form::Elsewhere, Form::Bare];

/// One copy.
pub struct Side {
    pub mount: Mount,
    form: Form,
}

impl Side {
    pub fn new(form: Form) -> Side {
        Side::new_in(form, &std::env::temp_dir())
    }

    /// Below `parent`.
    pub fn new_in(form: Form, parent: &Path) -> Side {
        let user = if is_root() { As::Root } else { As::User };
        let mut mount = Mount::prepare_in(user, parent);
        mount.in_place = form == Form::OverItself;
        match form {
            Form::Bare => drop(succeed(mount.dedupctl().arg("init").arg(mount.dir()))),
            _ => mount.start(),
        }
        Side { mount, form }
    }

    /// What its user calls it.
    pub fn root(&self) -> PathBuf {
        if self.form == Form::Bare { self.mount.dir() } else { self.mount.mnt() }
    }

    /// Whether a sync has left it mounted in a private place.
    pub fn is_left_mounted(&self) -> bool {
        let table = fs::read("/proc/self/mountinfo").unwrap();
        let dir = self.mount.dir();
        // A mount is called after the directory that is below it.
        let private = |line: &str| line.contains("/dedupfs-sync-") && line.contains(dir.to_str().unwrap());
        String::from_utf8_lossy(&table).lines().any(private)
    }

    /// Syncs with `other`; the exit code and what was said.
    pub fn sync(&self, other: &Side, args: &[&str]) -> (i32, Value) {
        let mut command = self.mount.dedupctl();
        command.arg("sync").args(args).arg("--json").arg(other.root()).arg(self.root());
        let output = command.output().unwrap();
        let code = output.status.code().unwrap();
        assert!(code < 2, "{command:?}: {}", text(&output));
        (code, serde_json::from_slice(&output.stdout).unwrap())
    }
}

/// What a user does, below a directory.
#[derive(Clone, Copy, Debug)]
pub enum Do {
    /// In place.
    Write(&'static str, &'static str),
    /// By a new file that is renamed over the old one, as editors do.
    Save(&'static str, &'static str),
    Append(&'static str, &'static str),
    Rename(&'static str, &'static str),
    Remove(&'static str),
    RemoveAll(&'static str),
    MakeDir(&'static str),
    Link(&'static str, &'static str),
    Symlink(&'static str, &'static str),
    Fifo(&'static str),
    Mode(&'static str, u32),
    Xattr(&'static str, &'static str),
}

pub fn act(dir: &Path, does: &[Do]) {
    let at = |path: &str| dir.join(path);
    for what in does {
        match *what {
            Do::Write(path, text) => fs::write(at(path), text).unwrap(),
            Do::Save(path, text) => {
                fs::write(at("saved~"), text).unwrap();
                fs::rename(at("saved~"), at(path)).unwrap();
            }
            Do::Append(path, text) => {
                fs::File::options().append(true).open(at(path)).unwrap().write_all(text.as_bytes()).unwrap();
            }
            Do::Rename(from, to) => fs::rename(at(from), at(to)).unwrap(),
            Do::Remove(path) => fs::remove_file(at(path)).unwrap(),
            Do::RemoveAll(path) => fs::remove_dir_all(at(path)).unwrap(),
            Do::MakeDir(path) => fs::create_dir(at(path)).unwrap(),
            Do::Link(from, to) => fs::hard_link(at(from), at(to)).unwrap(),
            Do::Symlink(target, path) => symlink(target, at(path)).unwrap(),
            Do::Fifo(path) => {
                let mode = rustix::fs::Mode::from_raw_mode(0o644);
                rustix::fs::mknodat(rustix::fs::CWD, at(path), rustix::fs::FileType::Fifo, mode, 0).unwrap();
            }
            Do::Mode(path, mode) => {
                fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
            }
            Do::Xattr(path, value) => {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(at(path), "user.test", value.as_bytes(), flags).unwrap();
            }
        }
    }
}

/// What is at a path: its kind with mode and xattr, and the checksum of its content or its text; and its first name, if it has several.
pub type Manifest = BTreeMap<String, String>;

pub fn manifest(root: &Path) -> Manifest {
    let (mut all, mut first) = (Manifest::new(), BTreeMap::new());
    walk(root, root, &mut all, &mut first);
    all
}

fn walk(root: &Path, dir: &Path, all: &mut Manifest, first: &mut BTreeMap<u64, String>) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        if name == ".dedupfs" || name == "DEDUPFS-README.txt" {
            continue;
        }
        let meta = path.symlink_metadata().unwrap();
        let mode = meta.mode() & 0o1777;
        let kind = meta.file_type();
        let mut value = [0; 64];
        let len = rustix::fs::lgetxattr(&path, "user.test", &mut value[..]).unwrap_or(0);
        let xattr = String::from_utf8_lossy(&value[..len]).into_owned();
        let mut what = if kind.is_dir() {
            format!("directory {mode:o} {xattr}")
        } else if kind.is_symlink() {
            format!("symlink {}", path.read_link().unwrap().display())
        } else if kind.is_fifo() {
            format!("fifo {mode:o}")
        } else {
            let hash = blake3::hash(&fs::read(&path).unwrap()).to_hex();
            format!("file {mode:o} {xattr} {} {hash}", meta.mtime())
        };
        if kind.is_file() && meta.nlink() > 1 {
            what += &format!(" as {}", first.entry(meta.ino()).or_insert_with(|| name.clone()));
        }
        all.insert(name, what);
        if kind.is_dir() {
            walk(root, &path, all, first);
        }
    }
}
