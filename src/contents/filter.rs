//! The files that an answer may name: rules for their paths and sizes.

use crate::contents::error::{OverlayError, Result};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::path::Path;

/// Rules about files; a file has to satisfy all of them.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Filter {
    /// Patterns of paths below the root; one of them has to match. An empty list allows all. `*` and `?` stay within a
    /// directory, `**` does not, and a pattern without a slash matches names in any directory.
    pub paths: Vec<String>,
    /// Patterns that must not match.
    pub not: Vec<String>,
    /// Only names that end as the queried file's does: `.rs`.
    pub same_suffix: bool,
    /// Smallest length in bytes.
    pub size_min: u64,
    /// Largest length in bytes.
    pub size_max: Option<u64>,
    /// Smallest share, 0 to 1, that the shorter of the two files has to be of the longer.
    pub size_ratio: f64,
}

/// A filter made ready for one query.
pub(crate) struct Rules<'a> {
    filter: &'a Filter,
    paths: GlobSet,
    not: GlobSet,
    suffix: Option<OsString>,
    size: u64,
}

impl Filter {
    /// Returns whether a pattern is valid; if not, why.
    pub fn check_pattern(pattern: &str) -> std::result::Result<(), String> {
        globs(&[pattern.to_owned()]).map(|_| ()).map_err(|e| e.kind().to_string())
    }

    /// Prepares the filter for a query of `size` bytes with the name `name`.
    pub(crate) fn rules(&self, name: &Path, size: u64) -> Result<Rules<'_>> {
        let globs = |patterns: &[String]| {
            globs(patterns).map_err(|e| {
                let pattern = e.glob().unwrap_or_default().to_owned();
                let reason = Error::new(ErrorKind::InvalidInput, e.kind().to_string());
                OverlayError::io("understand the pattern", pattern, reason)
            })
        };
        let suffix = name.extension().map(OsString::from);
        Ok(Rules { filter: self, paths: globs(&self.paths)?, not: globs(&self.not)?, suffix, size })
    }
}

impl Rules<'_> {
    /// Returns whether the rules depend on paths.
    pub(crate) fn ask_for_paths(&self) -> bool {
        let Filter { paths, not, same_suffix, .. } = self.filter;
        !paths.is_empty() || !not.is_empty() || *same_suffix
    }

    /// Returns whether there are any rules.
    pub(crate) fn ask_for_anything(&self) -> bool {
        self.ask_for_paths()
            || self.filter.size_min > 0
            || self.filter.size_max.is_some()
            || self.filter.size_ratio > 0.0
    }

    pub(crate) fn allow_size(&self, size: u64) -> bool {
        let ratio = size.min(self.size) as f64 / size.max(self.size).max(1) as f64;
        size >= self.filter.size_min
            && self.filter.size_max.is_none_or(|most| size <= most)
            && (ratio >= self.filter.size_ratio || size == self.size)
    }

    pub(crate) fn allow_path(&self, path: &Path) -> bool {
        (self.paths.is_empty() || self.paths.is_match(path))
            && !self.not.is_match(path)
            && (!self.filter.same_suffix || path.extension() == self.suffix.as_deref())
    }
}

fn globs(patterns: &[String]) -> std::result::Result<GlobSet, globset::Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let anywhere = if pattern.contains('/') { String::new() } else { "**/".to_owned() };
        let whole = anywhere + pattern.trim_start_matches('/');
        set.add(GlobBuilder::new(&whole).literal_separator(true).build()?);
    }
    set.build()
}

#[cfg(test)]
mod tests {
    use crate::contents::filter::*;

    #[test]
    fn rules_hold_together() {
        let filter = Filter {
            paths: vec!["*.c".to_owned(), "src/**".to_owned()],
            not: vec!["src/old/*".to_owned()],
            same_suffix: true,
            size_min: 10,
            size_max: Some(1000),
            size_ratio: 0.5,
        };
        let rules = filter.rules(Path::new("/elsewhere/query.c"), 100).unwrap();
        let allowed = |path: &str| rules.allow_path(Path::new(path));
        assert!(allowed("deep/down/x.c") && allowed("src/new/deep/x.c") && allowed("src/old/deep/x.c"));
        assert!(!allowed("src/old/x.c") && !allowed("src/x.h") && !allowed("other/x.h"));
        let sizes = [9, 49, 50, 100, 200, 201, 1001].map(|size| rules.allow_size(size));
        assert_eq!(sizes, [false, false, true, true, true, false, false]);
        let none = Filter::default();
        let none = none.rules(Path::new("x"), 0).unwrap();
        assert!(!none.ask_for_anything() && none.allow_path(Path::new("any")) && none.allow_size(1 << 40));
        assert!(none.allow_size(0));
    }

    #[test]
    fn a_pattern_that_is_none_is_named() {
        let filter = Filter { paths: vec!["a[".to_owned()], ..Filter::default() };
        let error = filter.rules(Path::new("x"), 0).err().unwrap().to_string();
        assert!(error.contains("a["), "{error}");
        assert!(Filter::check_pattern("a[").is_err() && Filter::check_pattern("a[bc]*").is_ok());
    }
}
