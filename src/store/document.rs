//! Documents: encoded values of the layers above (directories of snapshots, what happened to files, snapshots), each by
//! the hash of its bytes. They are frames as chunks and recipes are: durable, moved, verified and collected with them.
//!
//! What must always be true: a document is one frame, so it is there whole or not at all; who knows of documents only
//! by finding them ([`DocumentKind::Events`], [`DocumentKind::Snapshot`]) is told of those that no index covered.

use super::error::StoreError;
use super::frame::{Header, Key, Kind};
use super::pack::Entry;
use super::writer::Writer;
use super::{Bytes, Object, Store, lock};
use crate::id::{ChunkId, DocumentId};

/// What a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKind {
    /// A directory of a snapshot, or a part of one.
    Node,
    /// What happened to files.
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

    /// The kind of a frame that has to be told of when it is found.
    pub(super) fn listed(kind: Kind) -> Option<DocumentKind> {
        match kind {
            Kind::Events => Some(DocumentKind::Events),
            Kind::Snapshot => Some(DocumentKind::Snapshot),
            _ => None,
        }
    }

    fn key(self, id: &DocumentId) -> Key {
        Key::new(&id.0, self.frame() as u8)
    }
}

impl Store {
    /// A document, verified. To a collection under way this says that it is needed.
    pub fn document(&self, kind: DocumentKind, id: &DocumentId) -> Result<Bytes, StoreError> {
        let key = kind.key(id);
        self.reader.known(&key)?;
        let find = || Ok(self.reader.index.find(&key)?.map(|address| Entry { key, address }));
        let missing = |e| match e {
            StoreError::Missing { .. } => StoreError::NoDocument { document: *id },
            other => other,
        };
        let object = Object::Chunk(ChunkId(id.0));
        let (Entry { address, .. }, bytes) =
            self.reader.load_current(object, find, Header::decode).map_err(missing)?;
        if DocumentId::of(&bytes) != *id {
            let reason = "the content does not have the hash that names it".to_owned();
            return Err(self.reader.damage(key, &address, reason));
        }
        Ok(bytes)
    }

    /// Whether a document is stored and not known to be damaged. To a collection under way this says that it is needed.
    pub fn knows_document(&self, kind: DocumentKind, id: &DocumentId) -> Result<bool, StoreError> {
        self.reader.known(&kind.key(id))
    }

    /// Events and snapshots that were read from packs when the store was opened, because no index covered them: all of
    /// them if the index was made anew. Given once.
    pub fn take_documents_found(&self) -> Vec<(DocumentKind, DocumentId)> {
        std::mem::take(&mut lock(&self.documents_found))
    }
}

impl Writer {
    /// Stores a document unless it is known.
    pub fn put_document(&mut self, kind: DocumentKind, bytes: &[u8]) -> Result<DocumentId, StoreError> {
        let id = DocumentId::of(bytes);
        self.add(kind.frame(), id.0, bytes)?;
        Ok(id)
    }
}
