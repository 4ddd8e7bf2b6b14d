//! Documents: encoded values of higher layers (snapshot directories, file events, snapshots), by the hash of
//! their bytes. They are frames, like chunks and recipes: durable, moved, verified and collected in the same
//! way.
//!
//! Invariants: a document is one frame, so it is there completely or not at all.
//! [`Store::take_documents_found`] reports documents that no index covered, because higher layers find
//! [`DocumentKind::Events`] and [`DocumentKind::Snapshot`] only that way.

use super::Store;
use super::bytes::Bytes;
use super::document_kind::DocumentKind;
use super::entry::Entry;
use super::error::{Object, StoreError};
use super::frame::Header;
use super::lock::lock;
use super::writer::Writer;
use crate::id::{ChunkId, DocumentId};

impl Store {
    /// Returns a verified document. A running collection then counts it as needed.
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

    /// Whether a document is stored and not known to be damaged. A running collection then counts it as
    /// needed.
    pub fn knows_document(&self, kind: DocumentKind, id: &DocumentId) -> Result<bool, StoreError> {
        self.reader.known(&kind.key(id))
    }

    /// Returns the events and snapshots that opening read from packs because no index covered them: all of
    /// them after an index rebuild. Returns them once.
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
