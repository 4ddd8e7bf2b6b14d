//! Values in requests, and common answers.

use super::errno::errno;
use crate::backing::types::Caller;
use crate::contents::OverlayError;
use crate::overlay::OpenFlags as Open;
use fuser::{Errno, FopenFlags, OpenAccMode, OpenFlags, ReplyEmpty, ReplyXattr, Request};

/// The kernel's mark for opening a file to run it.
const FMODE_EXEC: i32 = 0x20;

/// Returns the xattr names that the caller may see.
pub(super) fn shown_to(request: &Request, names: Vec<u8>) -> Vec<u8> {
    if request.uid() == 0 {
        return names;
    }
    let shown = names.split_inclusive(|&byte| byte == 0).filter(|name| !name.starts_with(b"trusted."));
    shown.flatten().copied().collect()
}

pub(super) fn open_flags(flags: i32) -> Open {
    let read_only = OpenFlags(flags).acc_mode() == OpenAccMode::O_RDONLY;
    let truncate = flags & libc::O_TRUNC != 0;
    Open {
        write: !read_only || truncate,
        truncate,
        exclusive: flags & libc::O_EXCL != 0,
        execute: flags & FMODE_EXEC != 0,
        // The kernel itself checks for running programs when it opens for writing.
        unless_running: read_only && truncate,
        no_atime: flags & libc::O_NOATIME != 0,
    }
}

/// Returns how to open a passthrough file. The kernel opens it below with the flags of this open, and keeps
/// them whatever fcntl(2) and pwritev2(2) change later. So it must send the I/O of opens with O_APPEND or
/// O_DIRECT here.
pub(super) fn passed_flags(flags: i32) -> FopenFlags {
    let appends = flags & libc::O_APPEND != 0 && OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY;
    match appends || flags & libc::O_DIRECT != 0 {
        true => FopenFlags::FOPEN_DIRECT_IO,
        false => FopenFlags::empty(),
    }
}

pub(super) fn caller(request: &Request, umask: u32) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), umask }
}

pub(super) fn cached_flags(keep_pages: bool) -> FopenFlags {
    if keep_pages { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
}

pub(super) fn empty(reply: ReplyEmpty, result: Result<(), OverlayError>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

/// Answers with a value, or with its length if only that was requested.
pub(super) fn sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}
