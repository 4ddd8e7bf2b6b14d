//! What a power cut, damage or somebody at the bare directory can leave of a hybrid file, laid out by hand.

use super::world::{How, TO_READ, TO_WRITE, USUAL, World, noise};
use dedupfs::overlay::{OverlayError, ROOT, SetAttr, SimilarOptions, Trouble};
use rustix::fs::FallocateFlags;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const LEN: usize = 200_000;
const BLOCK: usize = 4096;

/// A closed overlay with a hybrid file of which block 10 was written, and synced if so.
fn hybrid(synced: bool) -> (World, Vec<u8>) {
    let mut world = World::new();
    let mut bytes = noise(1, LEN);
    world.stub("file", &bytes);
    let handle = world.open("file", TO_WRITE).unwrap();
    write(&world, &handle, &mut bytes, 10);
    if synced {
        world.overlay.tree.fsync(&handle, true).unwrap();
    }
    world.overlay.tree.release(&handle);
    world.close();
    assert!(world.is_hybrid("file"));
    (world, bytes)
}

fn write(world: &World, handle: &dedupfs::overlay::Handle, bytes: &mut [u8], block: usize) {
    let data = noise(100 + block as u64, BLOCK);
    world.overlay.tree.write(handle, (block * BLOCK) as u64, &data).unwrap();
    bytes[block * BLOCK..][..BLOCK].copy_from_slice(&data);
}

fn punch(world: &World, block: usize) {
    let file = File::options().write(true).open(world.path("file")).unwrap();
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, mode, (block * BLOCK) as u64, BLOCK as u64).unwrap();
}

/// The list came to the disk, and the bytes did not: as it was before, also once more is written and synced.
#[test]
fn a_record_without_its_bytes_does_not_count() {
    let (mut world, _) = hybrid(false);
    punch(&world, 10);
    world.reopen();
    let mut bytes = noise(1, LEN);
    assert!(world.read("file").unwrap() == bytes);
    let handle = world.open("file", TO_WRITE).unwrap();
    write(&world, &handle, &mut bytes, 20);
    world.overlay.tree.fsync(&handle, true).unwrap();
    world.overlay.tree.release(&handle);
    world.reopen();
    assert!(world.read("file").unwrap() == bytes);
    world.settle();
}

/// The last block is there as any other, though it is not full: what was written to it and not committed outlives the daemon.
#[test]
fn what_is_written_to_the_last_block_stays() {
    let mut world = World::new();
    let mut bytes = noise(1, LEN);
    world.stub("file", &bytes);
    let handle = world.open("file", TO_WRITE).unwrap();
    let at = LEN - LEN % BLOCK;
    world.overlay.tree.write(&handle, at as u64, b"changed").unwrap();
    bytes[at..][..7].copy_from_slice(b"changed");
    world.overlay.tree.release(&handle);
    world.close();
    assert!(world.is_hybrid("file"));
    world.reopen();
    assert!(world.read("file").unwrap() == bytes);
    world.settle();
    assert!(world.read("file").unwrap() == bytes);
}

/// The same where zeros had been made before: they come back, not what was there before them.
#[test]
fn a_record_without_its_bytes_uncovers_zeros_where_there_were_zeros() {
    let mut world = World::new();
    let mut bytes = noise(1, LEN);
    world.stub("file", &bytes);
    let handle = world.open("file", TO_WRITE).unwrap();
    let mode = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE).bits() as i32;
    world.overlay.tree.fallocate(&handle, mode, 0, (20 * BLOCK) as u64).unwrap();
    world.overlay.tree.fsync(&handle, true).unwrap();
    write(&world, &handle, &mut bytes, 10);
    world.overlay.tree.release(&handle);
    world.close();
    punch(&world, 10);
    world.reopen();
    bytes[..20 * BLOCK].fill(0);
    assert!(world.read("file").unwrap() == bytes);
}

/// What was synced is not judged by holes: a filesystem may keep zeros as a hole.
#[test]
fn what_was_synced_counts_whatever_the_holes_say() {
    let (mut world, mut bytes) = hybrid(true);
    punch(&world, 10);
    bytes[10 * BLOCK..][..BLOCK].fill(0);
    world.reopen();
    assert!(world.read("file").unwrap() == bytes);
}

/// The bytes came to the disk, and their record did not: they must not come back when another record is the one
/// that comes to the disk without its bytes.
#[test]
fn bytes_without_a_record_never_come_back() {
    let (mut world, mut bytes) = hybrid(true);
    let below = File::options().read(true).write(true).open(world.path("file")).unwrap();
    below.write_all_at(&noise(50, BLOCK), (30 * BLOCK) as u64).unwrap();
    // Longer than the list says: as after an append without its record.
    below.write_all_at(&noise(51, BLOCK), (LEN + 3 * BLOCK) as u64).unwrap();
    world.reopen();
    assert!(world.read("file").unwrap() == bytes);
    let handle = world.open("file", TO_WRITE).unwrap();
    write(&world, &handle, &mut bytes, 31);
    let mut found = vec![1; BLOCK];
    below.read_exact_at(&mut found, (30 * BLOCK) as u64).unwrap();
    assert!(found.iter().all(|&byte| byte == 0), "bytes of another life are still in the file");
    assert_eq!(below.metadata().unwrap().len(), LEN as u64);
    world.overlay.tree.release(&handle);
    assert!(world.read("file").unwrap() == bytes);
}

#[test]
fn a_torn_list_counts_up_to_where_it_is_torn() {
    let (mut world, bytes) = hybrid(true);
    let list = world.lists().remove(0);
    let mut torn = fs::read(&list).unwrap();
    torn.extend([1; 17]);
    fs::write(&list, &torn).unwrap();
    world.reopen();
    assert!(world.read("file").unwrap() == bytes);
    world.write("file", 5, b"x");
    world.reopen();
    assert_eq!(world.read("file").unwrap()[5], b'x');
}

/// Whatever is wrong with the list, reading is an error, `check` names the file, a collection keeps what it needs,
/// and with the list back all is well.
#[test]
fn a_list_that_cannot_be_believed_is_an_error_and_never_the_base() {
    let (mut world, bytes) = hybrid(true);
    let list = world.lists().remove(0);
    let whole = fs::read(&list).unwrap();
    let mut flipped = whole.clone();
    flipped[40] ^= 1;
    for (found, expected) in [
        (None, "its extent list is missing"),
        (Some(&whole[..60]), "its extent list is cut short"),
        (Some(&flipped[..]), "the header of its extent list is damaged"),
    ] {
        match found {
            None => fs::remove_file(&list).unwrap(),
            Some(found) => fs::write(&list, found).unwrap(),
        }
        world.reopen();
        match world.read("file") {
            Err(OverlayError::BadStub { reason, .. }) => assert_eq!(reason, expected),
            other => panic!("{expected}: {:?}", other.map(|bytes| bytes.len())),
        }
        let mut troubles = Vec::new();
        world
            .overlay
            .maintenance
            .check_stubs(Path::new(""), &mut |_| true, &mut |found| troubles.push(found.trouble))
            .unwrap();
        assert_eq!(troubles, [Trouble::Record(expected.to_owned())]);
        let outcome = world.overlay.maintenance.gc(false, &mut |_| true).unwrap().unwrap();
        assert!(outcome.unknown > 0);
        assert_eq!(world.lists().len(), usize::from(found.is_some()), "a list to be mended is kept");
    }
    fs::write(&list, &whole).unwrap();
    world.reopen();
    assert!(world.read("file").unwrap() == bytes);
}

/// Both would write to one list.
#[test]
fn a_copy_made_below_the_mount_is_an_error() {
    let (mut world, bytes) = hybrid(true);
    let mut record = [0; 64];
    rustix::fs::getxattr(world.path("file"), "user.dedupfs", &mut record[..]).unwrap();
    fs::copy(world.path("file"), world.path("copy")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(world.path("copy"), "user.dedupfs", &record, flags).unwrap();
    world.reopen();
    let Err(OverlayError::BadStub { reason, .. }) = world.read("copy") else { panic!("it can be read") };
    assert!(reason.contains("copied below the mount"), "{reason}");
    assert!(world.read("file").unwrap() == bytes);
}

#[test]
fn a_read_only_overlay_reads_hybrid_files_and_changes_nothing() {
    let (mut world, bytes) = hybrid(false);
    let list = fs::read(&world.lists()[0]).unwrap();
    world.reopen_as(How { read_only: true, ..USUAL });
    assert!(world.read("file").unwrap() == bytes);
    let handle = world.open("file", TO_READ).unwrap();
    world.overlay.tree.fsync(&handle, true).unwrap();
    world.overlay.tree.release(&handle);
    assert!(matches!(world.open("file", TO_WRITE), Err(OverlayError::ReadOnly)));
    assert!(world.is_hybrid("file"));
    assert_eq!(fs::read(&world.lists()[0]).unwrap(), list);
}

/// Collections while the file is hybrid, open and unlinked keep all that it needs.
#[test]
fn a_collection_keeps_what_a_hybrid_file_needs() {
    let (mut world, bytes) = hybrid(true);
    world.reopen();
    for unlinked in [false, true] {
        let handle = world.open("file", TO_READ).unwrap();
        if unlinked {
            world.overlay.tree.unlink(ROOT, "file".as_ref()).unwrap();
        }
        world.overlay.maintenance.gc(false, &mut |_| true).unwrap().unwrap();
        assert_eq!(world.lists().len(), 1);
        assert!(world.overlay.tree.read(&handle, 0, LEN).unwrap() == bytes, "unlinked {unlinked}");
        world.overlay.tree.release(&handle);
    }
    assert_eq!(world.lists().len(), 0, "the list went with the file");
    let freed = world.overlay.maintenance.gc(false, &mut |_| true).unwrap().unwrap().done.unwrap();
    assert!(freed.reclaimed_bytes > 0);
}

/// One that is hybrid resembles what its content resembles, not what its base did.
#[test]
fn similar_reads_the_merged_content() {
    let mut world = World::new();
    let (old, new) = (noise(1, LEN), noise(2, LEN));
    world.stub("old", &old);
    world.stub("new", &new);
    world.stub("file", &old);
    let handle = world.open("file", TO_WRITE).unwrap();
    world.overlay.tree.write(&handle, 0, &new).unwrap();
    world.overlay.tree.fsync(&handle, true).unwrap();
    let found = world.overlay.queries.similar_inside(Path::new("file"), &SimilarOptions::default()).unwrap();
    let names: Vec<_> = found.matches.iter().map(|found| found.path.as_path()).collect();
    assert_eq!(names, [Path::new("new")]);
    assert!(found.matches[0].shares.identical);
    world.overlay.tree.release(&handle);
    world.close();
}

/// Opening alone leaves the stub as it is; times and blocks are as on any filesystem.
#[test]
fn opening_costs_nothing_and_writing_shows() {
    let mut world = World::new();
    world.stub("file", &noise(1, LEN));
    let node = world.node("file");
    let before = world.overlay.tree.getattr(node).unwrap();
    let handle = world.open("file", TO_WRITE).unwrap();
    assert_eq!(world.overlay.tree.read(&handle, 0, 10).unwrap(), noise(1, LEN)[..10]);
    world.overlay.tree.fsync(&handle, false).unwrap();
    world.overlay.tree.release(&handle);
    assert!(!world.is_hybrid("file") && world.lists().is_empty());
    let after = world.overlay.tree.getattr(node).unwrap();
    assert_eq!((before.mtime, before.ctime, before.blocks), (after.mtime, after.ctime, after.blocks));
    std::thread::sleep(std::time::Duration::from_millis(20));
    world.write("file", 100, b"new");
    let written = world.overlay.tree.getattr(node).unwrap();
    assert!(written.mtime > before.mtime && written.ctime > before.ctime);
    assert_eq!((written.size, written.blocks), (LEN as u64, before.blocks));
    assert_eq!(fs::metadata(world.path("file")).unwrap().blocks(), 8, "one block is local");
    world.settle();
    let settled = world.overlay.tree.getattr(node).unwrap();
    assert_eq!(
        (settled.mtime, settled.ctime, settled.blocks),
        (written.mtime, written.ctime, written.blocks)
    );
    world.overlay.tree.forget(node, 1);
    world.close();
}

/// Whoever opened a stub to read goes on reading when somebody else makes a plain or a hybrid file of it.
#[test]
fn a_reader_goes_on_when_a_stub_changes_under_it() {
    let mut world = World::new();
    for len in [20_000, LEN] {
        let mut bytes = noise(3, len);
        world.stub("file", &bytes);
        for size in [len - 5_000, 0] {
            let reader = world.open("file", TO_READ).unwrap();
            let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
            world.overlay.tree.setattr(reader.node(), set).unwrap();
            bytes.truncate(size);
            assert!(world.overlay.tree.read(&reader, 0, len).unwrap() == bytes, "{size} of {len}");
            world.overlay.tree.fsync(&reader, true).unwrap();
            world.overlay.tree.release(&reader);
            world.settle();
        }
    }
    world.close();
}
