//! Files of a directory tree, as methods read them.

use crate::backing::io::read_full;
pub(crate) use crate::backing::plain::open_regular;
use crate::contents::Look;
use crate::contents::error::{OverlayError, Result};
use crate::view::View;
use ignore::WalkBuilder;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

const BUFFER_BYTES: usize = 256 << 10;

/// Calls `visit` with every regular file below `root`, sorted, or `root` itself, and with its path below that. Does not follow
/// links, includes hidden files, and skips files of a store. Files that cannot be read, also by `visit`, go to `unreadable`.
///
/// Fails if there are stubs and nothing else: then this is an overlay that is not mounted.
pub(crate) fn walk(
    root: &Path,
    unreadable: &mut Vec<(PathBuf, String)>,
    visit: &mut dyn FnMut(&Path, &Path) -> Result<()>,
) -> Result<()> {
    root.metadata().map_err(|e| OverlayError::io("open", root, e))?;
    let walk = WalkBuilder::new(root)
        .standard_filters(false)
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .filter_entry(|entry| !crate::backing::is_hidden(entry.file_name()))
        .build();
    let (mut read, mut stub) = (0, None);
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                unreadable.push((root.to_owned(), e.to_string()));
                continue;
            }
        };
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let below = entry.path().strip_prefix(root).ok().filter(|path| !path.as_os_str().is_empty());
        match visit(entry.path(), below.unwrap_or(entry.path())) {
            Err(OverlayError::Io { source, .. }) => {
                unreadable.push((entry.path().to_owned(), source.to_string()));
            }
            Err(OverlayError::Unreadable { path, reason }) => {
                unreadable.push((path.clone(), reason.clone()));
                stub.get_or_insert(OverlayError::Unreadable { path, reason });
            }
            other => {
                other?;
                read += 1;
            }
        }
    }
    stub.filter(|_| read == 0).map_or(Ok(()), Err)
}

/// Calls `take` with the bytes that `look` makes of a file, or with the bytes as they are if it makes none.
pub(super) fn feed(
    file: &mut File,
    path: &Path,
    look: Option<Look>,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let failed = |e| OverlayError::io("read", path, e);
    file.rewind().map_err(failed)?;
    let view = match look {
        None | Some(Look::Both) => View::Raw,
        Some(Look::Through(view)) => view,
        Some(Look::Auto) => {
            let len = file.metadata().map_err(failed)?.len();
            let read = &mut |at, buffer: &mut [u8]| read_full(file, buffer, at).map_err(io::Error::other);
            View::of_file(len, path.file_name(), read).map_err(failed)?
        }
    };
    if view != View::Raw {
        let mut taken = Ok(());
        let through = view.through(file, &mut |bytes| {
            if taken.is_ok() {
                taken = take(bytes);
            }
        });
        through.map_err(failed)?;
        return taken;
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok(()),
            len => take(&buffer[..len])?,
        }
    }
}

/// Returns whether two regular files are identical, byte by byte.
pub(super) fn same_bytes(a: &Path, b: &Path) -> Result<bool> {
    let (mut file_a, mut file_b) = (open_regular(a)?, open_regular(b)?);
    let (mut of_a, mut of_b) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    loop {
        let len = file_a.read(&mut of_a).map_err(|e| OverlayError::io("read", a, e))?;
        let mut filled = 0;
        // One byte more than expected, so that a longer file is noticed.
        while filled < len.max(1) {
            match file_b.read(&mut of_b[filled..len.max(1)]).map_err(|e| OverlayError::io("read", b, e))? {
                0 => break,
                more => filled += more,
            }
        }
        if filled != len || of_a[..len] != of_b[..len] {
            return Ok(false);
        }
        if len == 0 {
            return Ok(true);
        }
    }
}
