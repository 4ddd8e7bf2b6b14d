//! What was handed out to everyone, read from files: winnowing leaves it out.

use super::read_pieces;
use crate::overlay::error::Result;
use crate::similarity::methods::winnow::{Base, Winnow};
use crate::similarity::methods::{Builder, Method};
use std::path::Path;

/// The fingerprints of some files.
pub fn read_base(winnow: &Winnow, files: &[impl AsRef<Path>]) -> Result<Base> {
    let mut base = Base::default();
    for path in files.iter().map(AsRef::as_ref) {
        let mut builder = winnow.builder(path.file_name());
        read_pieces(path, &mut |bytes| builder.add(bytes))?;
        base.add(&builder.finish());
    }
    Ok(base)
}
