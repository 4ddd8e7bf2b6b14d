//! A tree in order of its paths.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub struct Tree {
    pub root: PathBuf,
    /// By path below the root; a directory comes before what is in it.
    pub entries: BTreeMap<PathBuf, Entry>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub kind: Kind,
    pub mode: u32,
    pub mtime_ns: i64,
    pub size: u64,
    /// Of a file's bytes, or of a link's text.
    pub hash: [u8; 32],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    File,
    Directory,
    Link,
}

impl Tree {
    pub fn read(root: &Path) -> Tree {
        let mut tree = Tree { root: root.to_owned(), entries: BTreeMap::new() };
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(root.join(&dir)).unwrap() {
                let path = dir.join(entry.unwrap().file_name());
                let full = root.join(&path);
                let metadata = full.symlink_metadata().unwrap();
                let (kind, hash) = if metadata.is_dir() {
                    todo.push(path.clone());
                    (Kind::Directory, [0; 32])
                } else if metadata.is_symlink() {
                    let text = std::fs::read_link(&full).unwrap();
                    (Kind::Link, *blake3::hash(text.as_os_str().as_encoded_bytes()).as_bytes())
                } else {
                    let mut hasher = blake3::Hasher::new();
                    hasher.update_reader(std::fs::File::open(&full).unwrap()).unwrap();
                    (Kind::File, *hasher.finalize().as_bytes())
                };
                let mtime_ns = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
                let size = if kind == Kind::File { metadata.len() } else { 0 };
                let entry = Entry { kind, mode: metadata.mode() & 0o7777, mtime_ns, size, hash };
                tree.entries.insert(path, entry);
            }
        }
        tree
    }

    pub fn files(&self) -> impl Iterator<Item = (&PathBuf, &Entry)> {
        self.entries.iter().filter(|(_, entry)| entry.kind == Kind::File)
    }
}
