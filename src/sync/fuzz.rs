//! The decoders of what a peer sends, fed with any bytes. For `crate::fuzz` only; see there.

use super::content::{Receiver, Sink, Tag, Want};
use super::error::SyncError;
use super::tree::{ContentId, Tree};
use super::{diff, proto};

/// Frames, one after the other.
pub fn frames(mut bytes: &[u8]) {
    while let Ok((message, len)) = proto::read(&mut bytes) {
        assert!(len >= 6);
        let again = proto::read(&mut &message.encode()[..]).expect("what was encoded can be read").0;
        assert_eq!(again, message);
    }
}

/// The encoding of a tree.
pub fn tree(bytes: &[u8]) {
    let Ok(tree) = Tree::decode(bytes) else { return };
    assert_eq!(tree.encode(), bytes, "a tree has one encoding");
    tree.check().expect("a decoded tree is one");
}

/// A difference of trees, decompressed.
pub fn diff(bytes: &[u8]) {
    if let Ok(tree) = diff::parse(&Tree::default(), bytes) {
        tree.check().expect("a decoded tree is one");
    }
}

/// Where nothing is kept but counted.
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

/// A stream of contents, decompressed, for a receiver that wants three.
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
