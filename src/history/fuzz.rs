//! The decoders of documents, fed with arbitrary bytes, and valid seed documents, for `crate::fuzz`.

use super::event::{Batch, Event, EventId, Run, Version, What};
use super::node::{self, Entry, Node};
use super::snapshots::Snapshot;
use crate::backing::stub::Time;
use crate::id::{DocumentId, FileId, RecipeId, StoreId};
use crate::overlay::Meta;

/// A batch of events.
pub fn events(bytes: &[u8]) {
    let Some(batch) = Batch::decode(bytes) else { return };
    assert_eq!(batch.encode(), bytes, "a batch has one encoding");
}

/// A page of a directory.
pub fn node(bytes: &[u8]) {
    let Some(again) = node::again(bytes) else { return };
    assert_eq!(again, bytes, "a page has one encoding");
}

/// A snapshot.
pub fn snapshot(bytes: &[u8]) {
    let Some(snapshot) = Snapshot::decode(bytes) else { return };
    assert_eq!(snapshot.encode(), bytes, "a snapshot has one encoding");
}

/// Returns documents of every kind: target, name and bytes.
pub fn corpus() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let time = |sec| Time { sec, nsec: 999_999_999 };
    let meta = Meta {
        mode: 0o4755,
        uid: 1000,
        gid: 100,
        mtime: time(1_700_000_000),
        xattrs: Some(vec![(b"user.a".to_vec(), b"1".to_vec()), (b"user.b".to_vec(), Vec::new())]),
    };
    let plain = Meta { mode: 0o644, mtime: time(-1), ..Meta::default() };
    let version = Version {
        path: "src/main.rs".into(),
        file: FileId(77),
        recipe: RecipeId([3; 16]),
        size: 70_000,
        meta: meta.clone(),
        kept: true,
        run: None,
    };
    let renamed = |directory, exchanged| What::Renamed {
        from: "src/main.rs".into(),
        to: "src/lib.rs".into(),
        directory,
        exchanged,
    };
    let what = vec![
        What::Version(version),
        What::Version(Version::given_up("src/main.rs".into(), FileId(77))),
        What::Version(Version {
            run: Some(Run { first: EventId(5), count: 300 }),
            ..Version::given_up("src/main.rs".into(), FileId(77))
        }),
        renamed(false, false),
        renamed(true, true),
        What::Removed { path: "src".into(), directory: true },
        What::SnapshotRemoved(DocumentId([9; 32])),
        What::Linked { from: "src/main.rs".into(), to: "src/other.rs".into() },
    ];
    let events: Vec<_> = what.into_iter().map(|what| Event { time: time(1_700_000_001), what }).collect();
    let batch = Batch { number: 300, revision: 2, machine: "here".to_owned(), events };
    let entry = |name: &str, meta: &Meta, node: Node| Entry { name: name.into(), meta: meta.clone(), node };
    let file = |size, recipe| Node::File { size, link: 0, recipe };
    let entries = [
        entry("a", &meta, file(70_000, Some(RecipeId([3; 16])))),
        entry("b", &plain, file(0, None)),
        entry("c", &plain, Node::Directory(DocumentId([4; 32]))),
        entry("d", &plain, Node::Symlink(b"../a".to_vec())),
        entry("e", &plain, Node::Fifo),
        entry("f", &plain, Node::Socket),
        entry("g", &plain, Node::CharDevice(259)),
        entry("h", &plain, Node::BlockDevice(2049)),
    ];
    let children: Vec<_> =
        ["b", "f", "h"].into_iter().map(|name| (name.into(), DocumentId([5; 32]))).collect();
    let snapshot = Snapshot {
        number: 3,
        time: time(1_700_000_002),
        replica: StoreId([6; 16]),
        machine: "here".to_owned(),
        name: "before the move".to_owned(),
        parents: vec![DocumentId([7; 32]), DocumentId([8; 32])],
        files: 2,
        bytes: 70_000,
        open: 1,
        root: entry("", &plain, Node::Directory(DocumentId([4; 32]))),
    };
    vec![
        ("history_events", "all", batch.encode()),
        ("history_events", "none", Batch::default().encode()),
        ("history_node", "leaf", node::leaf(&entries)),
        ("history_node", "empty", node::leaf(&[])),
        ("history_node", "branch", node::branch(&children)),
        ("history_snapshot", "named", snapshot.encode()),
    ]
}
