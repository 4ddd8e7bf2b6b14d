//! Conversion between the overlay's types and fuser's, and constants that go with attributes.

use crate::backing::stub::Time;
use crate::backing::types::{Attr, Kind, NodeId, SetTime};
use fuser::{FileAttr, FileType, Generation, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel may trust attributes of a file that was just created or changed, or that is in a snapshot.
pub(super) const TTL_CHANGED: Duration = Duration::from_secs(1);
pub(super) const GENERATION: Generation = Generation(0);

pub(super) fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

pub(super) fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.node.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's FUSE protocol has 32 bits for it, in the encoding of the old stat(2).
        rdev: encode_dev(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Represents a missing name.
pub(super) const NOTHING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

fn encode_dev(dev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

pub(super) fn decode_dev(dev: u32) -> u64 {
    rustix::fs::makedev((dev & 0xfff00) >> 8, dev & 0xff | dev >> 12 & 0xfff00)
}

fn system_time(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(time.nsec.into());
    if time.sec >= 0 {
        UNIX_EPOCH + Duration::from_secs(time.sec as u64) + nanos
    } else {
        UNIX_EPOCH - Duration::from_secs(time.sec.unsigned_abs()) + nanos
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    let TimeOrNow::SpecificTime(time) = time else {
        return SetTime::Now;
    };
    let at = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time { sec: after.as_secs() as i64, nsec: after.subsec_nanos() },
        // fuser computes seconds and nanoseconds by subtracting both from 1970.
        Err(before) => {
            let before = before.duration();
            Time { sec: -(before.as_secs() as i64), nsec: before.subsec_nanos() }
        }
    };
    SetTime::At(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_taken_as_fuser_gives_them() {
        for (given, time) in [
            (UNIX_EPOCH - Duration::new(3, 250), Time { sec: -3, nsec: 250 }),
            (UNIX_EPOCH - Duration::new(3, 0), Time { sec: -3, nsec: 0 }),
            (UNIX_EPOCH + Duration::new(5, 999_999_999), Time { sec: 5, nsec: 999_999_999 }),
        ] {
            let SetTime::At(taken) = set_time(TimeOrNow::SpecificTime(given)) else { panic!() };
            assert_eq!(taken, time);
        }
    }

    #[test]
    fn devices_round_trip() {
        for (major, minor) in [(1, 3), (259, 300), (8, 1)] {
            let dev = rustix::fs::makedev(major, minor);
            assert_eq!(decode_dev(encode_dev(dev)), dev);
        }
    }
}
