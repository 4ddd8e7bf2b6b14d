use super::error::RepoError;
use super::key::KeyCheck;
use super::layout::{FORMAT, Layout, read_text};
use crate::chunk::ChunkParams;
use crate::id::StoreId;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version of the state directory that this program writes, and the newest that it reads.
pub(super) const VERSION: u64 = 1;

/// The content of `format.toml`. It is written last when a store is created: a store with it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub id: StoreId,
    /// `None` in a store created before this field existed.
    pub key_check: Option<KeyCheck>,
    pub chunk: ChunkParams,
}

#[derive(Serialize, Deserialize)]
struct Form {
    version: u64,
    store: String,
    key_check: Option<String>,
    chunk: ChunkParams,
}

impl Layout {
    /// Returns the chunk sizes of this store.
    pub fn chunk_params(&self) -> Result<ChunkParams, RepoError> {
        Format::read(&self.file(FORMAT)).map(|format| format.chunk)
    }
}

impl Format {
    pub(super) fn to_text(self) -> String {
        let Format { id, key_check, chunk } = self;
        let key_check = key_check.map_or(String::new(), |check| format!("key_check = \"{check}\"\n"));
        format!(
            "# The format of this dedupfs store. Do not change this file: the store would not be readable.\n\
             version = {VERSION}\nstore = \"{id}\"\n{key_check}\n\
             # Chunk sizes in bytes, fixed when the store was made.\n\
             [chunk]\nmin = {}\navg = {}\nmax = {}\n",
            chunk.min, chunk.avg, chunk.max
        )
    }

    /// Reads the file at `path`. Rejects a newer version before it parses anything else.
    pub(super) fn read(path: &Path) -> Result<Format, RepoError> {
        let text = read_text(path)?.ok_or_else(|| RepoError::form(path, "missing"))?;
        Format::parse(path, &text)
    }

    /// Parses `text` of the file at `path`.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Format, RepoError> {
        let bad = |e: toml::de::Error| RepoError::form(path, e.to_string().trim_end());
        let table: toml::Table = toml::from_str(text).map_err(bad)?;
        let version = table.get("version").and_then(toml::Value::as_integer).unwrap_or(0);
        if version > VERSION as i64 {
            return Err(RepoError::NewerFormat {
                path: path.to_owned(),
                found: version as u64,
                known: VERSION,
            });
        }
        let form: Form = toml::from_str(text).map_err(bad)?;
        let id = form.store.parse().map_err(|e| RepoError::form(path, format!("store: {e}")))?;
        let key_check = form.key_check.map(|text| text.parse()).transpose();
        let key_check = key_check.map_err(|e| RepoError::form(path, format!("key_check: {e}")))?;
        match ChunkParams::with_average(form.chunk.avg.into()) {
            Ok(params) if params == form.chunk => Ok(Format { id, key_check, chunk: params }),
            Ok(_) => Err(RepoError::form(path, "chunk: expected min = avg / 4 and max = avg * 4")),
            Err(e) => Err(RepoError::form(path, e.to_string())),
        }
    }
}
