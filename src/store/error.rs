//! Errors of the store, and the description of damage.
//!
//! Damage is a finding about bytes on disk; [`StoreError`] is the reason why one call failed. A frame that
//! does not verify causes both: the call fails with [`StoreError::Damaged`], and its bytes are not returned.

use crate::db::DbError;
use crate::env::Refusal;
use crate::id::{ChunkId, DocumentId, PackId, RecipeId};
use serde::{Serialize, Serializer};
use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};

/// Kind of the damaged object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamageKind {
    /// The header of a pack file. Its frames can still be whole.
    PackHeader,
    /// A pack file that is missing or cannot be read.
    Pack,
    /// A frame or a range of bytes that should hold frames: its content is lost.
    Frame,
    /// A frame as above, but an intact copy of the same content was stored later: nothing is lost.
    Superseded,
    /// The footer of a sealed pack: nothing is lost, a rebuild reads the frames instead.
    Footer,
    /// An index row points to no frame, or a frame has no row: rebuild the index.
    Index,
}

/// One finding about bytes on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Kind of the damaged object.
    pub kind: DamageKind,
    /// The affected chunk, if known.
    #[serde(serialize_with = "as_text")]
    pub chunk: Option<ChunkId>,
    /// The affected recipe, if known.
    #[serde(serialize_with = "as_text")]
    pub recipe: Option<RecipeId>,
    /// The pack file it was found in.
    #[serde(serialize_with = "pack_as_text")]
    pub pack: PackId,
    /// Offset in the pack file, in bytes.
    pub offset: u64,
    /// Expected and found.
    pub reason: String,
}

fn as_text<T: Display, S: Serializer>(id: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => to.collect_str(id),
        None => to.serialize_none(),
    }
}

fn pack_as_text<S: Serializer>(pack: &PackId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(pack)
}

impl Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pack {} offset {}: ", self.pack, self.offset)?;
        if let Some(chunk) = &self.chunk {
            write!(f, "chunk {chunk}: ")?;
        }
        if let Some(recipe) = &self.recipe {
            write!(f, "recipe {recipe}: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// An object that callers request by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A chunk.
    Chunk(ChunkId),
    /// A recipe.
    Recipe(RecipeId),
}

impl Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Chunk(id) => write!(f, "chunk {id}"),
            Object::Recipe(id) => write!(f, "recipe {id}"),
        }
    }
}

/// Why a call on the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store does not hold it.
    #[error("{object} is not in the store")]
    Missing {
        /// The requested object.
        object: Object,
    },
    /// The store does not hold a document.
    #[error("document {document} is not in the store")]
    NoDocument {
        /// The requested document.
        document: DocumentId,
    },
    /// The bytes on disk do not verify. They were not returned.
    #[error("damaged: {damage}")]
    Damaged {
        /// The damage.
        damage: Damage,
    },
    /// An earlier write or fsync failed, so the store takes no writes until it is opened again.
    #[error("the store refuses writes because an earlier one failed; open it again")]
    Failed,
    /// A pack was written by a newer program.
    #[error("{path}: format {found} is newer than {known}, the newest this program knows")]
    NewerFormat {
        /// The pack file.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// A pack belongs to another store.
    #[error("{path} belongs to another store")]
    Foreign {
        /// The pack file.
        path: PathBuf,
    },
    /// The filesystem or a quota is full.
    #[error("{path}: no space left")]
    Full {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// A chunk or recipe is longer than a frame can hold.
    #[error("{bytes} bytes are too many for one frame; the most is {max}")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The maximum length.
        max: u64,
    },
    /// The operating system refused.
    #[error("{operation} {path}: {source}")]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The index database failed. No data is lost.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl StoreError {
    /// Returns the machine's refusal behind this error; `None` if the error can mean damage.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            StoreError::Io { source, .. } => Refusal::of(source),
            StoreError::Full { .. } => Some(Refusal::NO_SPACE),
            StoreError::Db(error) => error.refusal(),
            _ => None,
        }
    }

    pub(super) fn io(operation: &'static str, path: &Path, source: io::Error) -> StoreError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
            _ => StoreError::Io { operation, path, source },
        }
    }
}
