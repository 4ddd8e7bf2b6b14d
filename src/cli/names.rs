//! Tables of names in TOML, in the directory where syncs keep their state.

use super::error::CliError;
use super::replica::memory_of;
use crate::control::Found;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// One table.
pub(super) struct Names {
    dir: PathBuf,
    name: &'static str,
    /// Keeps `dir` within reach.
    _state: Option<OwnedFd>,
    pub(super) rows: BTreeMap<String, String>,
}

impl Names {
    /// Reads the file `name`; no file is an empty table.
    pub(super) fn open(found: &Found, name: &'static str) -> Result<Names, CliError> {
        let (dir, _state) = memory_of(found)?;
        let rows = match std::fs::read_to_string(dir.join(name)) {
            Ok(text) => toml::from_str(&text).map_err(|e| {
                CliError::new(format!("{name}: {}", e.to_string().trim_end()))
                    .hint("correct it, or remove it")
            })?,
            Err(e) if e.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(CliError::io("read", &dir.join(name), &e)),
        };
        Ok(Names { dir, name, _state, rows })
    }

    /// Replaces the file durably.
    pub(super) fn save(&self) -> Result<(), CliError> {
        let text = toml::to_string(&self.rows).map_err(|e| CliError::new(e.to_string()))?;
        let path = self.dir.join(self.name);
        replace(&self.dir, &path, text.as_bytes()).map_err(|e| CliError::io("write", &path, &e))
    }
}

fn replace(dir: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let new = path.with_extension("toml.new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&new, path)?;
    File::open(dir)?.sync_all()
}
