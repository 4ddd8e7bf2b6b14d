//! The content of a directory at one moment: every path with its type, mode, time, xattrs and content hash.
//!
//! - A tree has one encoding, and its root is the BLAKE3 hash of that. So two replicas are equal if and only if their
//!   roots are.
//! - Paths are bytes.
//! - An *ident* identifies a file independent of its path: it survives renames, and hard links share it. So two trees
//!   reveal a rename.
//! - An *author* is the device that made a content; it names the loser of a conflict.
//! - Owners and ACLs are among the xattrs, under names that [`super::attributes`] has.
//! - Not part of a tree: times of directories (they change with every entry), other xattrs outside `user.`,
//!   set-user-id and set-group-id bits, device nodes, sockets. So a peer cannot gain rights.
//! - Memory: about 200 bytes an entry plus its path.

use super::attributes::interned::Interned;
use super::attributes::{self, Place, Values};
use super::device::Device;
use super::shared_map::SharedMap;
use crate::beneath;
pub use crate::beneath::{join, split};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// Maximum bytes of one component, as on Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum bytes of a path.
pub const PATH_BYTES_MAX: usize = 64 << 10;
/// Limit of the bytes of all paths of a tree, as a multiple of the bytes of its encoding.
const PATHS_FACTOR: usize = 256;
/// Maximum number of xattrs of one entry, and maximum bytes of all their values.
const XATTRS_MAX: usize = 1024;
const XATTR_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of the target of a symlink.
const TARGET_BYTES_MAX: usize = 4096;

/// A path below the root: components joined by `/`, without a leading one.
pub type TreePath = Vec<u8>;

macro_rules! hash_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; 32]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    };
}

hash_id! {
    /// BLAKE3 hash of all bytes of a file, independent of its chunks.
    ContentId
}
hash_id! {
    /// BLAKE3 hash of the encoding of a tree.
    RootHash
}

impl RootHash {
    /// Returns the root of the tree with this encoding.
    pub fn of(encoding: &[u8]) -> RootHash {
        RootHash(*blake3::hash(encoding).as_bytes())
    }
}

impl ContentId {
    /// Returns the id of `bytes`.
    pub fn of(bytes: &[u8]) -> ContentId {
        ContentId(*blake3::hash(bytes).as_bytes())
    }

    /// Returns the placeholder of a content, the `n`-th of its tree, until it arrives: the sender has left out its
    /// hash.
    pub fn untold(n: u32) -> ContentId {
        let mut id = [0; 32];
        id[28..].copy_from_slice(&n.to_be_bytes());
        ContentId(id)
    }

    /// Returns whether it is a placeholder.
    pub fn is_untold(&self) -> bool {
        self.0[..28] == [0; 28]
    }
}

/// The identity of a file, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ident(pub u64);

impl Ident {
    /// The root directory.
    pub const ROOT: Ident = Ident(0);

    /// Returns the ident of a new entry that `device` found at `path` for its snapshot `seq`.
    pub fn made(device: &Device, seq: u64, path: &[u8]) -> Ident {
        Ident::derive(&[b"new", device.as_str().as_bytes(), &seq.to_le_bytes(), path])
    }

    /// Returns an ident that depends only on the parts.
    pub fn derive(parts: &[&[u8]]) -> Ident {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Ident(u64::from_le_bytes(first).max(1))
    }
}

/// The type of an entry, with its content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File {
        /// The hash of its bytes.
        content: ContentId,
        /// The number of bytes.
        size: u64,
    },
    /// A symlink and its text.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A directory. Last, so that it keeps its name in a conflict of types.
    Dir,
}

impl Kind {
    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        *self == Kind::Dir
    }

    /// Returns the bytes of content.
    pub fn size(&self) -> u64 {
        match self {
            Kind::File { size, .. } => *size,
            _ => 0,
        }
    }

    /// Returns the content of a regular file.
    pub fn content(&self) -> Option<ContentId> {
        match self {
            Kind::File { content, .. } => Some(*content),
            _ => None,
        }
    }
}

/// Seconds and nanoseconds since 1970.
pub type Time = (i64, u32);

/// The metadata of one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The identity of the file.
    pub ident: Ident,
    /// The device that made the content.
    pub author: Device,
    /// Type and content.
    pub kind: Kind,
    /// Permission bits and the sticky bit: at most 0o1777. A sync never sets set-user-id and set-group-id.
    pub mode: u16,
    /// The time of the last change of the content; (0, 0) for directories.
    pub mtime: Time,
    /// Xattrs of the namespace `user.`, and [`super::attributes`]: names and values.
    pub xattrs: Values,
}

/// All entries except the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// By path.
    pub entries: SharedMap<TreePath, Entry>,
}

/// The reason why bytes are no tree.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The bytes are not the encoding.
    #[error("not the encoding of a tree")]
    Encoding,
    /// A path that could leave the root or cannot exist.
    #[error("the path {0:?} is not a path below a root")]
    Path(String),
    /// A path whose directory is missing.
    #[error("{0:?} lies in no directory")]
    Orphan(String),
    /// A value that does not fit the type, or is too long.
    #[error("{0:?}: {1}")]
    Entry(String, &'static str),
    /// The root is not the announced one.
    #[error("the tree has the root {found}, expected {expected}")]
    Root {
        /// The announced root.
        expected: RootHash,
        /// The root of the tree that arrived.
        found: RootHash,
    },
}

/// Returns the text of a path for people.
pub fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Returns whether a name can be in a directory, refers to itself, and is not reserved.
pub fn is_name(name: &[u8]) -> bool {
    beneath::is_name(name) && name.len() <= NAME_BYTES_MAX
}

/// Returns whether a name in the root belongs to the overlay or to a running sync. Such names are never part of a
/// tree.
pub fn is_reserved(root_name: &[u8]) -> bool {
    root_name == b".dedupfs" || root_name == b"DEDUPFS-README.txt" || root_name == STAGING.as_bytes()
}

pub use crate::backing::STAGING_DIR as STAGING;

fn check_path(path: &[u8]) -> Result<(), TreeError> {
    let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    let good = path.len() <= PATH_BYTES_MAX && path.split(|byte| *byte == b'/').all(is_name);
    match good && !is_reserved(first) {
        true => Ok(()),
        false => Err(TreeError::Path(shown(path))),
    }
}

/// Front-coded rows: each path as the number of bytes that it shares with the last one, and the rest.
#[derive(Deserialize)]
struct Wire {
    authors: Vec<Device>,
    entries: Vec<WireEntry>,
}

#[derive(Deserialize)]
struct WireEntry {
    shared: u32,
    rest: Vec<u8>,
    ident: Ident,
    author: u32,
    kind: Kind,
    mode: u16,
    mtime: Time,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A [`Wire`] to be encoded.
#[derive(Serialize)]
struct WireOut<'a> {
    authors: Vec<Device>,
    entries: Vec<WireEntryOut<'a>>,
}

/// The form of a [`WireEntry`].
#[derive(Serialize)]
struct WireEntryOut<'a> {
    shared: u32,
    rest: &'a [u8],
    ident: Ident,
    author: u32,
    kind: &'a Kind,
    mode: u16,
    mtime: Time,
    xattrs: &'a Values,
}

impl Tree {
    /// Returns the contents, with their sizes.
    pub fn contents(&self) -> BTreeMap<ContentId, u64> {
        self.entries.values().filter_map(|entry| Some((entry.kind.content()?, entry.kind.size()))).collect()
    }

    /// Returns the encoding.
    pub fn encode(&self) -> Vec<u8> {
        let authors: HashSet<&Device> = self.entries.values().map(|entry| &entry.author).collect();
        let mut authors: Vec<Device> = authors.into_iter().cloned().collect();
        authors.sort();
        let mut last: &[u8] = b"";
        let mut entries = Vec::with_capacity(self.entries.len());
        for (path, entry) in &self.entries {
            let shared = path.iter().zip(last).take_while(|(a, b)| a == b).count();
            let author = authors.binary_search(&entry.author).expect("every author is in the table");
            entries.push(WireEntryOut {
                shared: shared as u32,
                rest: &path[shared..],
                ident: entry.ident,
                author: author as u32,
                kind: &entry.kind,
                mode: entry.mode,
                mtime: entry.mtime,
                xattrs: &entry.xattrs,
            });
            last = path;
        }
        postcard::to_allocvec(&WireOut { authors, entries }).expect("a tree can be encoded")
    }

    /// Decodes a tree, and checks all its invariants.
    pub fn decode(bytes: &[u8]) -> Result<Tree, TreeError> {
        let tree = Tree::decode_rows(bytes)?;
        tree.check()?;
        Ok(tree)
    }

    /// Decodes some rows of a tree, and checks only their encoding.
    pub(super) fn decode_rows(bytes: &[u8]) -> Result<Tree, TreeError> {
        let tree = Tree::decode_proven(bytes)?;
        match tree.encode() == bytes {
            true => Ok(tree),
            false => Err(TreeError::Encoding),
        }
    }

    /// Decodes a tree whose root proves that it was encoded and checked before.
    pub(super) fn decode_proven(bytes: &[u8]) -> Result<Tree, TreeError> {
        let (wire, rest) = postcard::take_from_bytes::<Wire>(bytes).map_err(|_| TreeError::Encoding)?;
        let (mut entries, mut interned) = (Vec::with_capacity(wire.entries.len()), Interned::default());
        let mut last = TreePath::new();
        // Otherwise rows could share long beginnings without limit.
        let mut room = PATHS_FACTOR * bytes.len() + PATH_BYTES_MAX;
        for entry in wire.entries {
            let shared = last.get(..entry.shared as usize).ok_or(TreeError::Encoding)?;
            room = room.checked_sub(shared.len() + entry.rest.len()).ok_or(TreeError::Encoding)?;
            if shared.len() + entry.rest.len() > PATH_BYTES_MAX {
                return Err(TreeError::Path(shown(&shared[..shared.len().min(100)])));
            }
            let path = [shared, &entry.rest].concat();
            let author = wire.authors.get(entry.author as usize).ok_or(TreeError::Encoding)?.clone();
            let WireEntry { ident, kind, mode, mtime, .. } = entry;
            let xattrs = interned.share(entry.xattrs);
            last.clone_from(&path);
            entries.push((path, Entry { ident, author, kind, mode, mtime, xattrs }));
        }
        match rest.is_empty() {
            true => Ok(Tree { entries: entries.into_iter().collect() }),
            false => Err(TreeError::Encoding),
        }
    }

    /// Checks the invariants of a tree from any source.
    pub fn check(&self) -> Result<(), TreeError> {
        let mut kinds: HashMap<Ident, bool> = HashMap::with_capacity(self.entries.len());
        // Most entries are in the directory of the one before.
        let mut found: &[u8] = b"";
        for (path, entry) in &self.entries {
            check_path(path)?;
            let wrong = |what| Err(TreeError::Entry(shown(path), what));
            let (dir, _) = split(path);
            if dir != found && !dir.is_empty() {
                if !self.entries.get(dir).is_some_and(|entry| entry.kind.is_dir()) {
                    return Err(TreeError::Orphan(shown(path)));
                }
                found = dir;
            }
            if entry.ident == Ident::ROOT {
                return wrong("has the ident of the root");
            }
            if entry.mode & !0o1777 != 0 || entry.mtime.1 >= 1_000_000_000 {
                return wrong("a mode or time that cannot be");
            }
            if entry.kind.is_dir() && entry.mtime != (0, 0) {
                return wrong("a directory with a time");
            }
            if let Kind::Symlink(target) = &entry.kind
                && (target.is_empty() || target.len() > TARGET_BYTES_MAX || target.contains(&0))
            {
                return wrong("a symlink to what cannot be");
            }
            let bytes: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
            if entry.xattrs.len() > XATTRS_MAX || bytes > XATTR_BYTES_MAX {
                return wrong("too many xattrs");
            }
            let place = match entry.kind {
                Kind::Dir => Place::Dir,
                Kind::File { .. } => Place::File,
                Kind::Symlink(_) | Kind::Fifo => Place::Other,
            };
            let is_good = |(name, value): (&Vec<u8>, &Vec<u8>)| {
                is_xattr(name) || attributes::is_valid(name, value, place)
            };
            if !entry.xattrs.iter().all(is_good) {
                return wrong("an xattr that is not synced, or an owner or ACL that cannot be");
            }
            // Two directories are never one, and hard links are of one type.
            if kinds.insert(entry.ident, entry.kind.is_dir()).is_some_and(|dir| dir || entry.kind.is_dir()) {
                return wrong("a directory with two names");
            }
        }
        Ok(())
    }

    /// Returns the hash of the encoding.
    pub fn root(&self) -> RootHash {
        RootHash::of(&self.encode())
    }

    /// Returns the paths of each ident.
    pub fn by_ident(&self) -> BTreeMap<Ident, Vec<&TreePath>> {
        let mut paths: BTreeMap<Ident, Vec<&TreePath>> = BTreeMap::new();
        for (path, entry) in &self.entries {
            paths.entry(entry.ident).or_default().push(path);
        }
        paths
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.kind.size()).fold(0, u64::saturating_add)
    }
}

/// Returns whether an xattr is synced: it is in `user.`, and not one of dedupfs.
pub fn is_xattr(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(&0)
        && !name.starts_with(b"user.dedupfs")
        && name.len() > 5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ident: u64, kind: Kind) -> Entry {
        let mtime = if kind.is_dir() { (0, 0) } else { (-1, 5) };
        let xattrs = [(b"user.a".to_vec(), vec![0xff])].into_iter().collect();
        Entry { ident: Ident(ident), author: Device::named("a"), kind, mode: 0o644, mtime, xattrs }
    }

    fn file(ident: u64) -> Entry {
        entry(ident, Kind::File { content: ContentId([1; 32]), size: 7 })
    }

    fn tree(rows: &[(&[u8], Entry)]) -> Tree {
        Tree { entries: rows.iter().map(|(path, entry)| (path.to_vec(), entry.clone())).collect() }
    }

    #[test]
    fn a_tree_comes_back_and_has_one_encoding() {
        let tree = tree(&[
            (b"d", entry(1, Kind::Dir)),
            (b"d-x", file(2)),
            (b"d/\xff\n", file(3)),
            (b"d/l", entry(4, Kind::Symlink(b"../..".to_vec()))),
            (b"hard", file(3)),
        ]);
        let bytes = tree.encode();
        assert_eq!(Tree::decode(&bytes).as_ref(), Ok(&tree));
        for cut in 0..bytes.len() {
            assert!(Tree::decode(&bytes[..cut]).is_err());
        }
        let more = [&bytes[..], b"x"].concat();
        assert_eq!(Tree::decode(&more), Err(TreeError::Encoding));
    }

    #[test]
    fn what_no_tree_may_hold_is_refused() {
        for path in [
            &b"../x"[..],
            b"/etc",
            b"a/../b",
            b".",
            b"..",
            b"a//b",
            b"a/",
            b"",
            b"a\0b",
            b".dedupfs",
            b".dedupfs-sync/x",
        ] {
            let bytes = tree(&[(b"a", entry(9, Kind::Dir)), (path, file(2))]).encode();
            assert!(matches!(Tree::decode(&bytes), Err(TreeError::Path(_))), "{path:?}");
        }
        let long = vec![b'x'; 256];
        assert!(matches!(tree(&[(&long, file(1))]).check(), Err(TreeError::Path(_))));
        assert!(matches!(tree(&[(b"a/b", file(1))]).check(), Err(TreeError::Orphan(_))));
        assert!(matches!(tree(&[(b"a", file(1)), (b"a/b", file(2))]).check(), Err(TreeError::Orphan(_))));
        let two = tree(&[(b"a", entry(1, Kind::Dir)), (b"b", entry(1, Kind::Dir))]);
        assert!(matches!(two.check(), Err(TreeError::Entry(..))));
        let mut secret = file(1);
        secret.xattrs.insert(b"security.capability".to_vec(), vec![]);
        assert!(matches!(tree(&[(b"a", secret)]).check(), Err(TreeError::Entry(..))));
        for (name, value, good) in [
            (&b"owner"[..], &b"alice:users"[..], true),
            (b"owner", b"alice", false),
            (b"acl", b"group::r--", true),
            (b"default-acl", b"user::rwx,group::r-x,other::---", false),
        ] {
            let mut owned = file(1);
            owned.xattrs.insert(name.to_vec(), value.to_vec());
            assert_eq!(tree(&[(b"a", owned)]).check().is_ok(), good, "{}", String::from_utf8_lossy(value));
        }
    }
}
