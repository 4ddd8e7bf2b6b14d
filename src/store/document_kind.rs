//! Kinds of documents.

use super::frame::{Key, Kind};
use crate::id::DocumentId;

/// Kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKind {
    /// A directory of a snapshot, or a part of one.
    Node,
    /// File events.
    Events,
    /// A snapshot.
    Snapshot,
}

impl DocumentKind {
    pub(super) fn frame(self) -> Kind {
        match self {
            DocumentKind::Node => Kind::Node,
            DocumentKind::Events => Kind::Events,
            DocumentKind::Snapshot => Kind::Snapshot,
        }
    }

    /// Returns the document kind if frames of this kind must be reported when found.
    pub(super) fn listed(kind: Kind) -> Option<DocumentKind> {
        match kind {
            Kind::Events => Some(DocumentKind::Events),
            Kind::Snapshot => Some(DocumentKind::Snapshot),
            _ => None,
        }
    }

    pub(super) fn key(self, id: &DocumentId) -> Key {
        Key::new(&id.0, self.frame() as u8)
    }
}
