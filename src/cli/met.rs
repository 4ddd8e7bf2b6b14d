//! Devices that syncs met at each peer. If another device is in its place, or the empty mount point of an unplugged
//! disk, a sync must not copy everything.
//!
//! Stored in `peers.toml` in the sync state, by the absolute path of a directory or by HOST:DIR.

use super::error::CliError;
use super::host::parse_host;
use super::names::Names;
use crate::control::Found;
use std::path::Path;

/// See the module.
pub(super) struct Met(Names);

impl Met {
    pub(super) fn of(found: &Found) -> Result<Met, CliError> {
        Ok(Met(Names::open(found, "peers.toml")?))
    }

    /// Returns the device that was met at `peer`.
    pub(super) fn at(&self, peer: &str) -> Option<&str> {
        self.0.rows.get(&key(peer)).map(String::as_str)
    }

    /// Remembers that `device` was met at `peer`.
    pub(super) fn note(&mut self, peer: &str, device: &str) -> Result<(), CliError> {
        if self.at(peer) == Some(device) {
            return Ok(());
        }
        self.0.rows.insert(key(peer), device.to_owned());
        self.0.save()
    }

    /// Forgets `peer`: the next device there counts as met for the first time.
    pub(super) fn forget(&mut self, peer: &str) -> Result<(), CliError> {
        match self.0.rows.remove(&key(peer)) {
            Some(_) => self.0.save(),
            None => Ok(()),
        }
    }
}

/// Returns one name for a directory, independent of the current directory.
fn key(peer: &str) -> String {
    let path = Path::new(peer);
    if parse_host(peer).is_some() && !path.exists() {
        return peer.to_owned();
    }
    let absolute = path.canonicalize().or_else(|_| std::path::absolute(path));
    absolute.map_or_else(|_| peer.to_owned(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let path = path.to_str().unwrap();
        assert_eq!((key(path), key(&format!("{path}/."))), (path.to_owned(), path.to_owned()));
        assert_eq!(key("server:/data"), "server:/data");
    }
}
