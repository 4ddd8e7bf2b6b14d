//! Options of winnowing: base files to ignore, and the density of look-ups.

use super::files::{feed, open_regular};
use crate::contents::Look;
use crate::contents::error::Result;
use crate::similarity::methods::winnow::{Base, Winnow, WinnowSketch};
use crate::similarity::methods::{Builder, Method};
use std::path::Path;

/// The fingerprints of some files, read as `look` says.
pub fn read_base(winnow: &Winnow, files: &[impl AsRef<Path>], look: Option<Look>) -> Result<Base> {
    let mut base = Base::default();
    for path in files {
        base.add(&read_sketch(winnow, path.as_ref(), look)?);
    }
    Ok(base)
}

/// The sketch of a file, read as `look` says; in memory.
pub fn read_sketch(winnow: &Winnow, path: &Path, look: Option<Look>) -> Result<WinnowSketch> {
    let mut builder = winnow.builder(path.file_name());
    feed(&mut open_regular(path)?, path, look, &mut |bytes| {
        builder.add(bytes);
        Ok(())
    })?;
    Ok(builder.finish())
}
