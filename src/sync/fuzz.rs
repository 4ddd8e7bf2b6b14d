//! Fuzz targets for the decoders of a peer's messages. For `crate::fuzz` only; see there.

use super::content::{Receiver, Sink, Tag, Want};
use super::device::Device;
use super::error::SyncError;
use super::known::{Known, Told};
use super::proto::{DeltaPart, Message};
use super::tree::{ContentId, Entry, Ident, Kind, Tree};
use super::version::Snapshot;
use super::{diff, proto};

/// Decodes successive frames.
pub fn frames(mut bytes: &[u8]) {
    while let Ok((message, len)) = proto::read(&mut bytes) {
        assert!(len >= 6);
        let again = proto::read(&mut &message.encode()[..]).expect("an encoded frame can be read").0;
        assert_eq!(again, message);
    }
}

/// Decodes a tree.
pub fn tree(bytes: &[u8]) {
    let Ok(tree) = Tree::decode(bytes) else { return };
    assert_eq!(tree.encode(), bytes, "a tree has one encoding");
    tree.check().expect("a decoded tree is one");
}

/// Decodes a difference of trees, after decompression.
pub fn diff(bytes: &[u8]) {
    if let Ok(tree) = diff::parse(&Tree::default(), bytes) {
        tree.check().expect("a decoded tree is one");
    }
}

/// A sink that only counts bytes.
struct Nowhere {
    left: u64,
}

impl Sink for Nowhere {
    fn begin(&mut self, _: ContentId) -> Result<(), SyncError> {
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        self.left = self.left.checked_sub(bytes.len() as u64).expect("no more than was wanted");
        Ok(())
    }

    fn chunk(&mut self, _: Tag) -> Result<Vec<u8>, SyncError> {
        Ok(vec![7; 5])
    }

    fn finish(&mut self, _: ContentId) -> Result<(), SyncError> {
        Ok(())
    }
}

/// Decodes a stream of contents, after decompression, as a receiver that wants three.
pub fn contents(bytes: &[u8]) {
    let want = |text: &[u8]| Want {
        content: ContentId::of(text),
        size: text.len() as u64,
        base: None,
        have: vec![Tag([1; 16])],
    };
    let wants = [want(b""), want(b"hello"), want(&[7; 5])];
    let mut receiver = Receiver::new(&wants).expect("a receiver can be made");
    let mut sink = Nowhere { left: 10 };
    for part in bytes.chunks(100) {
        if receiver.take_raw(part, &mut sink).is_err() {
            return;
        }
    }
}

/// Returns initial inputs: target, name, bytes.
pub fn corpus() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let device = Device::named("host-0000002a");
    let entry = |ident, kind: Kind| Entry {
        ident: Ident(ident),
        author: device.clone(),
        mode: 0o644,
        mtime: if kind.is_dir() { (0, 0) } else { (1_700_000_000, 5) },
        kind,
        xattrs: Default::default(),
    };
    let file = |text: &str| Kind::File { content: ContentId::of(text.as_bytes()), size: text.len() as u64 };
    let mut tree = Tree::default();
    for (path, ident, kind) in [
        ("d", 1, Kind::Dir),
        ("d/f.txt", 2, file("f")),
        ("d/g", 3, file("g")),
        ("h", 2, file("f")),
        ("l", 4, Kind::Symlink(b"../x".to_vec())),
    ] {
        tree.entries.insert(path.as_bytes().to_vec(), entry(ident, kind));
    }
    let look = (device.clone(), 7);
    let untold = [ContentId::of(b"f")].into();
    let told = |look, untold| {
        let bytes = diff::encode(&Tree::default(), &tree, look, untold).expect("a tree can be encoded");
        zstd::stream::decode_all(&bytes[..]).expect("it was compressed just now")
    };
    let first = Snapshot::of(tree.root(), None, device.clone(), 1);
    let second = Snapshot::of(tree.root(), Some(first.id()), device.clone(), 2);
    let (head, older) = (second.id(), first.id());
    let known = Known {
        head,
        snapshots: vec![first, second],
        trees: [older].into(),
        heads: vec![(Device::named("b"), older)],
        begun: true,
    };
    let part = DeltaPart { bytes: vec![1, 0], last: true };
    let number = |n: u32, rest: &[u8]| [&n.to_le_bytes()[..], rest].concat();
    let bytes = [number(1, &[2, 5, 0, 0, 0]), b"hello".to_vec(), number(0, &[])].concat();
    vec![
        ("sync_frames", "2", Message::Known(Told::default().tell(&known)).encode()),
        ("sync_frames", "14", Message::Deltas(vec![(0, 3), (2, 1)]).encode()),
        ("sync_frames", "15", Message::Delta(part).encode()),
        ("sync_frames", "16", Message::Long(()).encode()),
        ("sync_diff", "set", told(None, &Default::default())),
        ("sync_diff", "untold", told(Some(&look), &untold)),
        ("sync_contents", "bytes", bytes),
        ("sync_contents", "pieces", number(1, &[2, 2, 0, 0, 0, b'h', b'e', 2, 3, 0, 0, 0, b'l', b'l', b'o'])),
        ("sync_contents", "reference", [number(2, &[1]), vec![1; 16]].concat()),
    ]
}
