//! Temporary files.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes a file in `dir` without a name: it vanishes with the process.
pub(super) fn nameless(dir: &Path) -> io::Result<File> {
    for attempt in 0u32.. {
        let path = dir.join(format!("work-{}-{attempt}", std::process::id()));
        match File::options().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists && attempt < 1000 => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("no free name"))
}
