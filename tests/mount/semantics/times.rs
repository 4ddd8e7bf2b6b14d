//! Times of files.

use super::twin::Twin;
use crate::common::{as_both, noise};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::fs;

/// Seen to fail with the times that fuser gives for before 1970 taken for what the standard library means by them.
#[test]
fn times_are_set_and_kept() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("seq 9000 > stub; seq 9000 > plain; mkdir dir; ln -s x link");
        for settle in [false, true] {
            if settle {
                twin.settle(&["stub"]);
            }
            for time in [
                "@-1234567.25",
                "@-0.5",
                "@-1",
                "@0",
                "@2147483648.123456789",
                "@4294967296",
                "@9999999999.5",
            ] {
                twin.run(&format!(
                    "for f in stub plain dir link; do touch -h -d {time} $f; stat -c '%n %.9X %.9Y' $f; done"
                ));
            }
            twin.run("touch -a -d @5.5 stub; touch -m -d @-7.5 stub; stat -c '%.9X %.9Y' stub");
            // Now for one and the other left out.
            twin.run("touch -a stub; stat -c %.9Y stub; touch -m stub; [ $(stat -c %Y stub) -gt 1600000000 ] && echo now");
        }
        twin.run("touch -d @-1234567.25 stub plain dir");
        twin.mount.settle();
        twin.mount.remount();
        twin.run("stat -c '%n %.9Y' stub plain dir; touch -d @99999999999 stub; stat -c %Y stub");
    });
}

/// Reading tells in a file's atime as below, whether it is plain or a stub; being converted does not.
/// Seen to fail where the committer reads without O_NOATIME.
#[test]
fn reading_moves_atime_and_converting_does_not() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("for f in a b; do seq 9000 > $f; touch -d @1000000000 $f; done");
        twin.settle(&["a", "b"]);
        twin.run("stat -c '%n %X %Y' a b");
        twin.run("cat a | md5sum; [ $(stat -c %X a) -gt 1600000000 ] && echo read; stat -c '%Y' a");
        twin.settle(&["a"]);
        // A program that may leave no trace leaves none.
        let (path, flags) = (twin.mount.at("b"), rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOATIME);
        let file = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(rustix::io::pread(&file, &mut [0; 100], 0).unwrap(), 100);
        drop(file);
        twin.run("stat -c '%X %Y' b");
    });
}

#[test]
fn conversions_do_not_show_in_any_time() {
    as_both(|user| {
        let twin = Twin::new(user);
        let path = twin.mount.at("file");
        fs::write(&path, noise(1, 100_000)).unwrap();
        let times = || twin.on_mount("stat -c '%.9X %.9Y %.9Z %b %i' file");
        let before = times();
        twin.settle(&["file"]);
        assert_eq!(times(), before);
        twin.mount.remount();
        assert_eq!(times(), before);
        // The kernel's FUSE protocol as fuser speaks it has no birth time.
        let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).unwrap();
        assert_eq!(statx.stx_mask & StatxFlags::BTIME.bits(), 0);
    });
}
