//! Writes that the disk refuses: each handle that is open is told once, as on the same filesystem without a mount.

use super::disk::{Kind, Mounted};
use super::recorder::Recorder;
use crate::common::{As, Mount, noise};
use rustix::fs::syncfs;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The disk refuses a write with this in it.
const REFUSED: &[u8] = b"this block is refused by the disk";
const BLOCK: usize = 4096;
const LEN: usize = 96 << 10;

fn refused() -> Vec<u8> {
    let mut block = vec![b'.'; BLOCK];
    block[..REFUSED.len()].copy_from_slice(REFUSED);
    block
}

/// What programs are told that have a file open in `dir` while the disk refuses to write it. `disk` is the root of the
/// filesystem.
fn outcome(path: &Path, disk: &Path) -> Vec<String> {
    let mut said = Vec::new();
    let mut note = |what: &str, result: io::Result<()>| {
        said.push(format!("{what}: {:?}", result.map_err(|e| e.raw_os_error())));
    };
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap();
    let write_out = || {
        let _ = syncfs(File::open(disk).unwrap());
    };
    // The blocks have their place, so that only contents can fail.
    open(0).write_all_at(&[b'.'; 2 * BLOCK], 0).unwrap();
    open(0).sync_all().unwrap();

    let (a, b, reader) = (open(0), open(0), File::open(path).unwrap());
    a.write_all_at(&refused(), 0).unwrap();
    note("who wrote", a.sync_all());
    note("another", b.sync_data());
    note("a reader", reader.sync_all());
    let later = open(0);
    note("opened since", later.sync_all());
    for file in [&a, &b, &reader] {
        note("once more", file.sync_all());
    }
    b.write_all_at(&refused(), BLOCK as u64).unwrap();
    write_out();
    note("after it was written out, opened since", open(0).sync_all());
    for file in [&a, &b, &reader, &later] {
        note("after it was written out", file.sync_data());
    }
    drop((a, b, reader, later));

    // Nobody has it open when it fails.
    open(0).write_all_at(&refused(), 0).unwrap();
    write_out();
    let (a, b) = (open(0), open(0));
    note("opened after", a.sync_all());
    note("the other one", b.sync_all());

    for flags in [libc::O_APPEND | libc::O_DSYNC, libc::O_APPEND | libc::O_SYNC] {
        let mut file = open(flags);
        note("an append that syncs", file.write_all(&refused()));
        note("the same once more", file.sync_all());
        note("another", a.sync_all());
    }
    // So that no sync of the whole filesystem fails later.
    write_out();
    said
}

/// By passthrough and by the daemon, a plain file and a hybrid one.
///
/// Seen to fail when each fsync says what the descriptor that all handles share is told: `another` has no error.
#[test]
fn each_handle_is_told_of_a_write_that_failed() {
    if !super::available() {
        return;
    }
    let work = super::work_dir();
    let (disk_at, mount_at) = (work.path().join("disk"), work.path().join("fs"));
    let kind = Kind::ext4("");
    let recorder = Recorder::new(&disk_at, kind.bytes);
    kind.make(&recorder.image());
    let mounted = Mounted::new(&recorder.image(), &mount_at, kind).unwrap();
    let plain = mount_at.join("file");
    fs::write(&plain, noise(1, LEN)).unwrap();
    recorder.refuse(Some(REFUSED));
    let expected = outcome(&plain, &mount_at);
    recorder.refuse(None);
    assert!(expected.iter().any(|line| line.starts_with("another: Err(Some(5))")), "{expected:#?}");
    for flags in [&[][..], &["--no-passthrough"]] {
        for setting in ["hybrid_min = \"off\"", "hybrid_min = \"64KiB\""] {
            let mut mount = Mount::prepare_in(As::Root, &mount_at);
            mount.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
            mount.init(setting);
            mount.start();
            let path = mount.at("file");
            fs::write(&path, noise(2, LEN)).unwrap();
            mount.settle();
            assert!(mount.is_stub("file"));
            recorder.refuse(Some(REFUSED));
            let found = outcome(&path, &mount_at);
            recorder.refuse(None);
            assert_eq!(found, expected, "{flags:?} {setting}");
            fs::remove_file(&path).unwrap();
            mount.unmount();
        }
    }
    mounted.unmount();
}
