//! Records of stubs: written before each change of where a content is.

use super::Tree;
use super::inode::{Content, Inode, State as InodeState};
use crate::backing;
use crate::backing::stub::{Stub, Time, XATTR};
use crate::contents::error::Result;
use std::os::fd::AsFd;

impl Tree {
    /// Writes a file's record.
    pub(crate) fn write_record(&self, inode: &Inode, record: &Stub) -> rustix::io::Result<()> {
        let value = record.encode(&self.key);
        rustix::fs::setxattr(
            backing::proc_path(&inode.path_fd()?),
            XATTR,
            &value,
            rustix::fs::XattrFlags::empty(),
        )
    }

    /// As [`Tree::write_record`] through `file`, a descriptor of the file for I/O: the kernel does not look up a path.
    pub(crate) fn write_record_through(&self, file: impl AsFd, record: &Stub) -> rustix::io::Result<()> {
        rustix::fs::fsetxattr(file, XATTR, &record.encode(&self.key), rustix::fs::XattrFlags::empty())
    }

    /// To be called before anything that moves a file's ctime: gives up a conversion under way, and makes sure that
    /// the ctime saved by a recent one does not hide the change.
    pub(crate) fn before_change(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        state.interrupt_conversion();
        let Some(Content::Stub(record) | Content::Plain(Some(record))) = &mut state.content else {
            return Ok(());
        };
        if record.covers(Time::now().millis()) {
            let cleared = Stub { ctime: None, ..*record };
            self.write_record(inode, &cleared)?;
            *record = cleared;
        }
        Ok(())
    }
}
