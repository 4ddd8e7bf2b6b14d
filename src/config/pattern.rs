//! Patterns of paths from the root, each component a glob.

use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A pattern like `/photos/2024*`: the slash at its beginning may be missing, and one at its end means nothing.
#[derive(Clone)]
pub struct PathPattern(Vec<GlobMatcher>);

/// A text that is no such pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} in [sync]: {reason}")]
pub struct BadPattern {
    /// The text.
    pub pattern: String,
    /// The error.
    pub reason: String,
}

impl PathPattern {
    /// Parses a pattern.
    pub fn of(text: &str) -> Result<PathPattern, BadPattern> {
        let inner = text.strip_prefix('/').unwrap_or(text);
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let bad = |reason: &str| BadPattern { pattern: text.to_owned(), reason: reason.to_owned() };
        let glob = |name: &str| match name {
            "" | "." | ".." => Err(bad("expected a path from the root, like \"/photos/2024*\"")),
            "**" => Err(bad("everything below a path is synced with it, so `**` is not needed")),
            name => {
                let glob = GlobBuilder::new(name).literal_separator(true).build();
                let glob =
                    glob.map_err(|e| bad(&format!("expected globs between the slashes: {}", e.kind())))?;
                Ok(glob.compile_matcher())
            }
        };
        inner.split('/').map(glob).collect::<Result<_, _>>().map(PathPattern)
    }

    /// Returns whether a path matches, lies below a match, or is a directory above a possible match.
    pub fn includes(&self, path: &[u8], is_dir: bool) -> bool {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let is_match =
            |(glob, name): (&GlobMatcher, &&[u8])| glob.is_match(Path::new(OsStr::from_bytes(name)));
        self.0.iter().zip(&names).all(is_match) && (names.len() >= self.0.len() || is_dir)
    }
}
