//! Ids: one newtype for every kind of identity, so that they cannot be mixed up.

use std::fmt;
use std::str::FromStr;

/// Identity of a chunk: the BLAKE3 hash (32 bytes) of its uncompressed bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub [u8; 32]);

/// Identity of a recipe: the first 16 bytes of the BLAKE3 hash of its encoding.
///
/// Two files with equal bytes that were chunked with equal parameters have the same recipe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecipeId(pub [u8; 16]);

/// Identity of a file in one backing directory: its inode number there.
///
/// It survives renames and is shared by hard links. It has a meaning only together with its backing
/// filesystem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Identity of one store, drawn at random when it is created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub [u8; 16]);

/// Identity of a document: the BLAKE3 hash (32 bytes) of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentId(pub [u8; 32]);

/// Number of a pack file within its store, in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId(pub u32);

impl ChunkId {
    /// Computes the identity of `bytes`.
    pub fn of(bytes: &[u8]) -> ChunkId {
        ChunkId(*blake3::hash(bytes).as_bytes())
    }
}

impl DocumentId {
    /// Computes the identity of `bytes`.
    pub fn of(bytes: &[u8]) -> DocumentId {
        DocumentId(*blake3::hash(bytes).as_bytes())
    }
}

impl RecipeId {
    /// Computes the identity of an encoded recipe.
    pub fn of(encoded: &[u8]) -> RecipeId {
        RecipeId::of_hash(&blake3::hash(encoded))
    }

    /// Returns the identity for the hash of an encoded recipe.
    pub fn of_hash(hash: &blake3::Hash) -> RecipeId {
        RecipeId(first16(hash.as_bytes()))
    }
}

fn first16(hash: &[u8; 32]) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    id
}

/// The text of an id does not have the expected number of hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("expected {digits} hexadecimal digits, found {found:?}")]
pub struct ParseIdError {
    digits: usize,
    found: String,
}

macro_rules! hex_id {
    ($name:ident, $bytes:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let error = || ParseIdError { digits: 2 * $bytes, found: text.to_owned() };
                if text.len() != 2 * $bytes || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(error());
                }
                let mut id = [0; $bytes];
                for (i, byte) in id.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| error())?;
                }
                Ok($name(id))
            }
        }
    };
}

hex_id!(ChunkId, 32);
hex_id!(RecipeId, 16);
hex_id!(StoreId, 16);
hex_id!(DocumentId, 32);

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trip() {
        let id = ChunkId::of(b"dedupfs");
        assert_eq!(id.to_string().parse::<ChunkId>().unwrap(), id);
        assert!("abc".parse::<RecipeId>().is_err());
        assert!("zz".repeat(16).parse::<RecipeId>().is_err());
        assert!("é".repeat(16).parse::<RecipeId>().is_err());
    }
}
