//! How much of the store no file needs, as far as that is known between collections.

use crate::contents::error::Result;
use crate::db::{Db, Table};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Row of `Table::Meta`: [`Held`], as bytes 8 | time 8 | yielding bytes 8 | stored bytes 8.
const HELD: &[u8] = b"overlay.held";
/// Row of `Table::Meta`: [`Garbage::bytes`].
const GARBAGE: &[u8] = b"overlay.garbage";

/// Contents that a collection kept only for the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes of these that can be given up for space: no named snapshot needs them.
    pub yielding_bytes: u64,
    /// Time of the collection, in seconds since 1970.
    pub time: i64,
    /// Bytes of the packs at that time.
    pub stored_bytes: u64,
}

impl Held {
    fn encode(&self) -> Vec<u8> {
        let time = self.time.to_be_bytes();
        let [bytes, yielding, stored] =
            [self.bytes, self.yielding_bytes, self.stored_bytes].map(u64::to_be_bytes);
        [bytes, time, yielding, stored].concat()
    }

    /// Reads [`HELD`]; a row of an older program ends after the time.
    pub(crate) fn decode(row: &[u8]) -> Option<Held> {
        let number = |at: usize| row.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
        let (bytes, time) = (number(0)?, number(8)? as i64);
        let (yielding_bytes, stored_bytes) = (number(16).unwrap_or_default(), number(24).unwrap_or_default());
        Some(Held { bytes, yielding_bytes, time, stored_bytes })
    }
}

/// The figures, kept in the index.
pub struct Garbage {
    db: Arc<dyn Db>,
    bytes: AtomicU64,
    held: Mutex<Held>,
}

impl Garbage {
    /// Reads the figures of the last process.
    pub fn new(db: Arc<dyn Db>) -> Result<Garbage> {
        let bytes = db.get(Table::Meta, GARBAGE)?;
        let bytes = bytes.and_then(|row| row[..].try_into().ok()).map_or(0, u64::from_be_bytes);
        let held = db.get(Table::Meta, HELD)?;
        let held = held.as_deref().and_then(Held::decode).unwrap_or_default();
        Ok(Garbage { db, bytes: AtomicU64::new(bytes), held: Mutex::new(held) })
    }

    /// Returns about how many bytes of contents have lost their last file since the last collection.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets [`Garbage::bytes`].
    pub fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(self.db.put(Table::Meta, GARBAGE, &bytes.to_be_bytes())?)
    }

    /// Returns the contents that the last collection kept only for the history.
    pub fn held(&self) -> Held {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets [`Garbage::held`].
    pub fn set_held(&self, held: Held) -> Result<()> {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
        Ok(self.db.put(Table::Meta, HELD, &held.encode())?)
    }
}
