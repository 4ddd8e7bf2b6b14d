//! Large files that do not fit on the disk beside their own chunks.

use super::world::{World, noise};
use std::fs;

const LEN: usize = 400_000;

/// A closed file that is plain, with an mtime of long ago.
fn plain(world: &World, bytes: &[u8]) -> std::time::SystemTime {
    let path = world.path("file");
    fs::write(&path, bytes).unwrap();
    let mtime = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    fs::File::options().write(true).open(&path).unwrap().set_modified(mtime).unwrap();
    mtime
}

fn scan(world: &World) {
    world.overlay.maintenance.scan("".as_ref(), &mut |_, _, _, _| {}).unwrap();
    world.settle();
}

/// The same stub as where there is room, with the same mtime, and nothing is left over.
#[test]
fn a_file_that_does_not_fit_becomes_a_stub_in_pieces() {
    let world = World::new();
    let bytes = noise(1, LEN);
    let mtime = plain(&world, &bytes);
    world.overlay.converter.limit_room(100_000);
    scan(&world);
    world.check_stub("file", &bytes);
    assert_eq!(fs::metadata(world.path("file")).unwrap().modified().unwrap(), mtime);
    assert!(world.read("file").unwrap() == bytes);
    assert!(world.lists().is_empty());
}

/// Where only many small pieces would fit, each with a recipe of all before it.
#[test]
fn a_file_of_too_many_pieces_waits_and_goes_on_when_there_is_room() {
    let mut world = World::new();
    let bytes = noise(1, LEN);
    let mtime = plain(&world, &bytes);
    world.overlay.converter.limit_room(40_000);
    scan(&world);
    assert_eq!(world.record("file"), None);
    assert_eq!(world.overlay.converter.waiting_for_room(), 1);
    world.overlay.converter.limit_room(u64::MAX);
    world.settle();
    world.check_stub("file", &bytes);
    assert_eq!(fs::metadata(world.path("file")).unwrap().modified().unwrap(), mtime);
    world.reopen();
    assert!(world.read("file").unwrap() == bytes);
}
