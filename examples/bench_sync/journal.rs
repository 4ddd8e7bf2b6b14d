//! Metadata as a journal of operations against the last common snapshot, really encoded.
//!
//! An entry of the snapshot is named by its rank there, as the distance from the last one named; a new name by what it
//! has in common with the last new one, and the rest. Times are differences from the last time. Columns are kept apart.
//! Renames are those that were recorded; what else seems moved is told as a copy of a content that both sides have.

use crate::tree::{Entry, Kind, Tree};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is to be sent.
pub struct Plan {
    /// Before compression.
    pub journal: Vec<u8>,
    /// Contents that the other side has not, in order of their paths.
    pub changed: Vec<Changed>,
}

/// A content for the delta.
pub struct Changed {
    pub path: PathBuf,
    /// The rank of the entry that has this path, after the recorded renames.
    pub hint: Option<u64>,
}

pub fn read_renames(file: &Path) -> Vec<(PathBuf, PathBuf)> {
    let text = std::fs::read_to_string(file).unwrap();
    let pair = |line: &str| line.split_once('\t').map(|(from, to)| (PathBuf::from(from), PathBuf::from(to)));
    text.lines()
        .map(|line| pair(line).unwrap_or_else(|| panic!("expected FROM<tab>TO, found {line:?}")))
        .collect()
}

#[derive(Default)]
struct Columns {
    kinds: Vec<u8>,
    ranks: Vec<u8>,
    names: Vec<u8>,
    modes: Vec<u8>,
    times: Vec<u8>,
    last_rank: u64,
    last_name: Vec<u8>,
    last_time: i64,
}

impl Columns {
    fn rank(&mut self, rank: u64) {
        put_signed(&mut self.ranks, rank as i64 - self.last_rank as i64);
        self.last_rank = rank;
    }

    fn name(&mut self, path: &Path) {
        let name = path.as_os_str().as_bytes();
        let same = name.iter().zip(&self.last_name).take_while(|(a, b)| a == b).count();
        put(&mut self.names, same as u64);
        put(&mut self.names, (name.len() - same) as u64);
        self.names.extend_from_slice(&name[same..]);
        self.last_name = name.to_vec();
    }

    fn time(&mut self, entry: &Entry) {
        // Nanoseconds apart: most programs write whole seconds.
        put_signed(&mut self.times, entry.mtime_ns.div_euclid(1_000_000_000) - self.last_time);
        put(&mut self.times, entry.mtime_ns.rem_euclid(1_000_000_000) as u64);
        self.last_time = entry.mtime_ns.div_euclid(1_000_000_000);
    }
}

fn put(out: &mut Vec<u8>, n: u64) {
    dedupfs::recipe::put_varint(out, n);
}

fn put_signed(out: &mut Vec<u8>, n: i64) {
    put(out, ((n << 1) ^ (n >> 63)) as u64);
}

pub fn plan(old: &Tree, new: &Tree, renames: &[(PathBuf, PathBuf)]) -> Plan {
    let mut columns = Columns::default();
    let mut here: BTreeMap<PathBuf, (u64, &Entry)> =
        old.entries.iter().zip(0..).map(|((path, entry), rank)| (path.clone(), (rank, entry))).collect();
    for (from, to) in renames {
        let moved: Vec<_> = here
            .range(from.clone()..)
            .take_while(|(path, _)| path.starts_with(from))
            .map(|(path, _)| path.clone())
            .collect();
        assert!(!moved.is_empty(), "renamed, but not there: {}", from.display());
        columns.kinds.push(0);
        columns.rank(here[from].0);
        columns.name(to);
        for path in moved {
            let entry = here.remove(&path).unwrap();
            let below = path.strip_prefix(from).unwrap();
            here.insert(if below.as_os_str().is_empty() { to.clone() } else { to.join(below) }, entry);
        }
    }
    let contents: HashMap<[u8; 32], u64> = old
        .entries
        .values()
        .zip(0..)
        .filter(|(entry, _)| entry.kind == Kind::File)
        .map(|(entry, rank)| (entry.hash, rank))
        .collect();
    let mut changed = Vec::new();
    for (path, entry) in &new.entries {
        let known = here.remove(path);
        match known {
            Some((rank, before)) if before.kind == entry.kind => {
                let content = before.hash != entry.hash;
                // The time of a directory says nothing that is not said by what changed in it.
                let time = before.mtime_ns != entry.mtime_ns && entry.kind != Kind::Directory;
                let mode = before.mode != entry.mode;
                if content || time || mode {
                    columns.kinds.push(8 | u8::from(content) | u8::from(time) << 1 | u8::from(mode) << 2);
                    columns.rank(rank);
                    if time {
                        columns.time(entry);
                    }
                    if mode {
                        put(&mut columns.modes, u64::from(entry.mode));
                    }
                    if content {
                        body(&mut columns, &contents, new, path, entry, Some(rank), &mut changed);
                    }
                }
            }
            _ => {
                if let Some((rank, _)) = known {
                    columns.kinds.push(1);
                    columns.rank(rank);
                }
                columns.kinds.push(match entry.kind {
                    Kind::File => 2,
                    Kind::Directory => 3,
                    Kind::Link => 4,
                });
                columns.name(path);
                put(&mut columns.modes, u64::from(entry.mode));
                if entry.kind != Kind::Directory {
                    columns.time(entry);
                    body(&mut columns, &contents, new, path, entry, None, &mut changed);
                }
            }
        }
    }
    // A deleted directory takes what is left in it along.
    let mut gone: Option<PathBuf> = None;
    for (path, (rank, entry)) in here {
        if gone.as_ref().is_some_and(|dir| path.starts_with(dir)) {
            continue;
        }
        columns.kinds.push(1);
        columns.rank(rank);
        if entry.kind == Kind::Directory && !new.entries.contains_key(&path) {
            gone = Some(path);
        }
    }
    let journal = [columns.kinds, columns.ranks, columns.names, columns.modes, columns.times].concat();
    Plan { journal, changed }
}

fn body(
    columns: &mut Columns,
    contents: &HashMap<[u8; 32], u64>,
    new: &Tree,
    path: &Path,
    entry: &Entry,
    hint: Option<u64>,
    changed: &mut Vec<Changed>,
) {
    if entry.kind == Kind::Link {
        let text = std::fs::read_link(new.root.join(path)).unwrap();
        put(&mut columns.names, text.as_os_str().len() as u64);
        columns.names.extend_from_slice(text.as_os_str().as_bytes());
    } else if let Some(&rank) = contents.get(&entry.hash) {
        columns.kinds.push(5);
        columns.rank(rank);
    } else {
        changed.push(Changed { path: path.to_owned(), hint });
    }
}
