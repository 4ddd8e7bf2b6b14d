//! Setuid and setgid bits that go when a file is changed, where neither the kernel nor the backing filesystem sees to it.

use super::convert::node;
use super::privilege;
use crate::overlay::{Overlay, OverlayError, SetAttr};
use fuser::{INodeNo, Request};

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

/// Emptying a file by opening it takes these bits away, as writing to it does. For all but this the kernel asks.
pub(super) fn drop_setuid(overlay: &Overlay, request: &Request, ino: INodeNo) {
    if request.uid() == 0 {
        return;
    }
    let dropped = overlay.getattr(node(ino)).and_then(|found| {
        let perm = u32::from(found.perm);
        if perm & (libc::S_ISUID | libc::S_ISGID) == 0 {
            return Ok(());
        }
        let marks_locking = perm & libc::S_IXGRP == 0 && in_group(request, found.gid);
        let kept = perm & !libc::S_ISUID & if marks_locking { !0 } else { !libc::S_ISGID };
        if kept != perm {
            overlay.setattr(node(ino), SetAttr { mode: Some(kept), ..SetAttr::default() })?;
        }
        Ok(())
    });
    if let Err(e) = dropped {
        tracing::error!("an emptied file keeps its setuid bit: {e}");
    }
}

fn in_group(request: &Request, gid: u32) -> bool {
    gid == request.gid() || privilege::has_group(request.pid(), gid)
}
