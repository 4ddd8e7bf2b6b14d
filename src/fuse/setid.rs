//! Dropping setuid and setgid bits on a change, in cases that neither the kernel nor the backing filesystem
//! handles.

use super::convert::node;
use super::privilege::{self, Call};
use crate::backing::types::{Attr, Kind, SetAttr};
use crate::contents::OverlayError;
use crate::overlay::Overlay;
use fuser::{INodeNo, Request};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::ffi::OsStr;

/// Drops the setgid bit if the caller sets an ACL on a file of a foreign group, as chmod does: the backing
/// filesystem only sees root.
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

/// Kinds of changes that may drop the bits.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// A change of content, by any caller.
    Content,
    /// The same by a caller without CAP_FSETID.
    Marked,
    /// A change of owner.
    Owner,
    /// No attribute: the kernel requests this before it itself writes by passthrough or allocates. A chown
    /// without user and group looks the same. The first is allowed for openers of the file, the second only
    /// for its owner: the kernel checks neither.
    Nothing,
}

/// Drops a file's setuid and setgid bits if a change by the caller requires it. The kernel leaves this to the
/// daemon (`FUSE_HANDLE_KILLPRIV_V2`), except for capabilities, which any change below drops.
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
            // Before it writes to a file with a capability, the kernel also asks in the name of root, who
            // keeps the bits.
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

/// Refuses chown(-1, -1) by another user on a file with such bits. The kernel removes the capability before
/// it asks for the bits, which is too late to refuse.
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

/// Returns the mode without the bits that a change by the caller drops; `None` if it drops none.
fn kept(request: &Request, found: &Attr) -> Option<u32> {
    let perm = u32::from(found.perm);
    if found.kind == Kind::Directory || perm & (libc::S_ISUID | libc::S_ISGID) == 0 {
        return None;
    }
    // Without group execution the bit is not a right: it marks mandatory locking.
    let keeps_setgid =
        perm & libc::S_IXGRP == 0 && (in_group(request, found.gid) || may(request, CapabilitySet::FSETID));
    let kept = perm & !libc::S_ISUID & if keeps_setgid { !0 } else { !libc::S_ISGID };
    (kept != perm).then_some(kept)
}

/// Whether the caller has the owner's rights.
fn owns(request: &Request, found: &Attr) -> bool {
    request.uid() == found.uid || may(request, CapabilitySet::FOWNER)
}

fn may(request: &Request, capability: CapabilitySet) -> bool {
    request.uid() == 0 && privilege::has(request.pid(), capability)
}

fn in_group(request: &Request, gid: u32) -> bool {
    gid == request.gid() || privilege::has_group(request.pid(), gid)
}
