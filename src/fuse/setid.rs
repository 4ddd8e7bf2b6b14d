//! Setuid and setgid bits that go when a file is changed, where neither the kernel nor the backing filesystem sees to it.

use super::convert::node;
use super::privilege::{self, Call};
use crate::overlay::{Attr, Kind, Overlay, OverlayError, SetAttr};
use fuser::{INodeNo, Request};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::ffi::OsStr;

/// Who sets an ACL on a file of a group that is not theirs takes the setgid bit away, as by chmod: the backing
/// filesystem knows only that root did it.
pub(super) fn drop_setgid_of_strangers(
    overlay: &Overlay,
    request: &Request,
    ino: INodeNo,
) -> Result<(), OverlayError> {
    if request.uid() == 0 {
        return Ok(());
    }
    let found = overlay.getattr(node(ino))?;
    let perm = u32::from(found.perm);
    if perm & libc::S_ISGID != 0 && !in_group(request, found.gid) {
        let set = SetAttr { mode: Some(perm & !libc::S_ISGID), ..SetAttr::default() };
        overlay.setattr(node(ino), set)?;
    }
    Ok(())
}

/// What is done to a file that may take its bits away.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// What it holds, by whoever.
    Content,
    /// The same by a caller without CAP_FSETID.
    Marked,
    /// Whose it is.
    Owner,
    /// No attribute: how the kernel asks for the bits to go before it does something by itself, writing by passthrough or
    /// allocating. A chown that names neither user nor group looks the same. It is only for who owns the file, and the
    /// other only for who has it open: the kernel checks neither.
    Nothing,
}

/// Takes a file's setuid and setgid bits away if a change by the caller does that. The kernel leaves it to us
/// (`FUSE_HANDLE_KILLPRIV_V2`), but for capabilities, which any change below takes away by itself.
pub(super) fn drop_bits(
    overlay: &Overlay,
    request: &Request,
    ino: INodeNo,
    change: Change,
) -> Result<(), OverlayError> {
    let found = overlay.getattr(node(ino))?;
    let Some(kept) = kept(request, &found) else {
        return Ok(());
    };
    match change {
        Change::Content if may(request, CapabilitySet::FSETID) => return Ok(()),
        Change::Nothing => {
            let call = privilege::call(request.pid());
            // Before it writes to a file with a capability the kernel asks in the name of root too, who keeps the bits.
            if call == Call::Content && may(request, CapabilitySet::FSETID) {
                return Ok(());
            }
            let is_open = || privilege::has_open_to_write(request.pid(), ino.0);
            if !owns(request, &found) && (call == Call::Owner || !is_open()) {
                return Err(Errno::PERM.into());
            }
        }
        Change::Content | Change::Marked | Change::Owner => {}
    }
    overlay.setattr(node(ino), SetAttr { mode: Some(kept), ..SetAttr::default() }).map(drop)
}

/// Refuses a stranger who calls chown(-1, -1) on a file with such bits. The kernel has its capability removed before it
/// asks for the bits, which is too late to refuse.
pub(super) fn check_removal(
    overlay: &Overlay,
    request: &Request,
    ino: INodeNo,
    xattr: &OsStr,
) -> Result<(), OverlayError> {
    if xattr != "security.capability" {
        return Ok(());
    }
    let found = overlay.getattr(node(ino))?;
    let is_guarded = kept(request, &found).is_some() && !owns(request, &found);
    match is_guarded && privilege::call(request.pid()) == Call::Owner {
        true => Err(Errno::PERM.into()),
        false => Ok(()),
    }
}

/// The mode without what a change by the caller takes away; none if it takes nothing.
fn kept(request: &Request, found: &Attr) -> Option<u32> {
    let perm = u32::from(found.perm);
    if found.kind == Kind::Directory || perm & (libc::S_ISUID | libc::S_ISGID) == 0 {
        return None;
    }
    // Without execution by the group the bit is not a right: it marks files whose locks are mandatory.
    let keeps_setgid =
        perm & libc::S_IXGRP == 0 && (in_group(request, found.gid) || may(request, CapabilitySet::FSETID));
    let kept = perm & !libc::S_ISUID & if keeps_setgid { !0 } else { !libc::S_ISGID };
    (kept != perm).then_some(kept)
}

/// Whether the caller may do what is the owner's to do.
fn owns(request: &Request, found: &Attr) -> bool {
    request.uid() == found.uid || may(request, CapabilitySet::FOWNER)
}

fn may(request: &Request, capability: CapabilitySet) -> bool {
    request.uid() == 0 && privilege::has(request.pid(), capability)
}

fn in_group(request: &Request, gid: u32) -> bool {
    gid == request.gid() || privilege::has_group(request.pid(), gid)
}
