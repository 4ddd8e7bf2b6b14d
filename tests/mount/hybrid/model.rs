//! Random operations on one hybrid file, without FUSE, against a vector of bytes.

use super::world::{TO_WRITE, World, noise};
use dedupfs::overlay::{Handle, SetAttr};
use proptest::prelude::*;
use rustix::fs::FallocateFlags;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

const PUNCH: i32 = (FallocateFlags::PUNCH_HOLE.bits() | FallocateFlags::KEEP_SIZE.bits()) as i32;
const ZERO: i32 = FallocateFlags::ZERO_RANGE.bits() as i32;
const ALLOCATE: i32 = 0;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, usize),
    /// Up to block boundaries.
    WriteBlocks(u64, u64),
    Append(usize),
    Truncate(u64),
    Fallocate(i32, u64, u64),
    Fsync,
    Close,
    Settle,
    Reopen,
    Gc,
}

fn op() -> impl Strategy<Value = Op> {
    let offset = || 0u64..400_000;
    prop_oneof![
        6 => (offset(), 1usize..9_000).prop_map(|(at, len)| Op::Write(at, len)),
        3 => (0u64..90, 1u64..6).prop_map(|(at, len)| Op::WriteBlocks(at, len)),
        2 => (1usize..9_000).prop_map(Op::Append),
        2 => offset().prop_map(Op::Truncate),
        2 => (offset(), 1u64..40_000).prop_map(|(at, len)| Op::Fallocate(PUNCH, at, len)),
        1 => (offset(), 1u64..40_000).prop_map(|(at, len)| Op::Fallocate(ZERO, at, len)),
        1 => (offset(), 1u64..40_000).prop_map(|(at, len)| Op::Fallocate(ALLOCATE, at, len)),
        2 => Just(Op::Fsync),
        3 => Just(Op::Close),
        1 => Just(Op::Settle),
        2 => Just(Op::Reopen),
        1 => Just(Op::Gc),
    ]
}

/// The file is open from the first change to the next close.
fn handle(world: &World, open: &mut Option<Arc<Handle>>) -> Arc<Handle> {
    open.get_or_insert_with(|| world.open("file", TO_WRITE).unwrap()).clone()
}

fn close(world: &World, open: &mut Option<Arc<Handle>>) {
    if let Some(handle) = open.take() {
        world.overlay.tree.release(&handle);
    }
}

fn write(world: &World, open: &mut Option<Arc<Handle>>, bytes: &mut Vec<u8>, at: u64, data: &[u8]) {
    world.overlay.tree.write(&handle(world, open), at, data).unwrap();
    let (at, end) = (at as usize, at as usize + data.len());
    bytes.resize(bytes.len().max(end), 0);
    bytes[at..end].copy_from_slice(data);
}

/// Holes are zeros, and what is not zeros is data.
fn check_seek(world: &World, open: &Handle, bytes: &[u8]) {
    let (mut at, size) = (0, bytes.len() as u64);
    while at < size {
        let data = world.overlay.tree.seek(open, at, false).unwrap_or(size);
        assert!(
            bytes[at as usize..data as usize].iter().all(|&byte| byte == 0),
            "a hole from {at} to {data}"
        );
        at = if data < size { world.overlay.tree.seek(open, data, true).unwrap() } else { size };
        assert!(at > data || data == size);
    }
    assert!(world.overlay.tree.seek(open, size, false).is_err());
}

/// A plain file that takes no room stays as it is.
fn is_all_hole(world: &World) -> bool {
    let meta = std::fs::metadata(world.path("file")).unwrap();
    world.record("file").is_none() && meta.blocks() == 0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn behaves_as_a_vector_of_bytes(len in 70_000usize..300_000, ops in prop::collection::vec(op(), 1..40)) {
        let mut world = World::new();
        let mut bytes = noise(1, len);
        world.stub("file", &bytes);
        let mut open = None;
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Write(at, len) => {
                    write(&world, &mut open, &mut bytes, at, &noise(i as u64 + 2, len));
                }
                Op::WriteBlocks(at, len) => {
                    write(&world, &mut open, &mut bytes, at * 4096, &noise(i as u64 + 2, len as usize * 4096));
                }
                Op::Append(len) => {
                    let at = bytes.len() as u64;
                    write(&world, &mut open, &mut bytes, at, &noise(i as u64 + 2, len));
                }
                Op::Truncate(len) => {
                    let node = world.node("file");
                    world.overlay.tree.setattr(node, SetAttr { size: Some(len), ..SetAttr::default() }).unwrap();
                    world.overlay.tree.forget(node, 1);
                    bytes.resize(len as usize, 0);
                }
                Op::Fallocate(mode, at, len) => {
                    world.overlay.tree.fallocate(&handle(&world, &mut open), mode, at, len).unwrap();
                    let end = (at + len) as usize;
                    if mode != PUNCH {
                        bytes.resize(bytes.len().max(end), 0);
                    }
                    if mode != ALLOCATE && (at as usize) < bytes.len() {
                        let end = end.min(bytes.len());
                        bytes[at as usize..end].fill(0);
                    }
                }
                Op::Fsync => world.overlay.tree.fsync(&handle(&world, &mut open), i % 2 == 0).unwrap(),
                Op::Close => close(&world, &mut open),
                Op::Settle => {
                    close(&world, &mut open);
                    // What an earlier life left is not in the queue.
                    world.overlay.maintenance.scan(std::path::Path::new(""), &mut |_, _, _, _| {}).unwrap();
                    if !is_all_hole(&world) {
                        world.check_stub("file", &bytes);
                    }
                    prop_assert_eq!(world.lists().len(), 0);
                }
                Op::Reopen => {
                    close(&world, &mut open);
                    world.reopen();
                }
                Op::Gc => {
                    world.overlay.maintenance.scan(std::path::Path::new(""), &mut |_, _, _, _| {}).unwrap();
                    prop_assert!(world.overlay.maintenance.gc(false, &mut |_| true).unwrap().is_some());
                }
            }
            let found = world.read("file").unwrap();
            prop_assert!(found.len() == bytes.len(), "{} bytes instead of {}", found.len(), bytes.len());
            let differs = found.iter().zip(&bytes).position(|(a, b)| a != b);
            prop_assert!(differs.is_none(), "differs at {differs:?}");
            if let Some(open) = &open {
                check_seek(&world, open, &bytes);
                prop_assert!(world.overlay.tree.getattr(open.node()).unwrap().size == bytes.len() as u64);
            }
        }
        close(&world, &mut open);
        world.overlay.maintenance.scan(std::path::Path::new(""), &mut |_, _, _, _| {}).unwrap();
        world.reopen();
        prop_assert!(world.read("file").unwrap() == bytes);
        if !is_all_hole(&world) {
            world.check_stub("file", &bytes);
        }
        prop_assert_eq!(world.lists().len(), 0);
    }
}
