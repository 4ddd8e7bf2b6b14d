//! A machine that is short of something has no damaged packs.

use super::*;
use crate::env::Refusal;
use std::io;

/// A store with some packs, on a disk that can refuse.
fn stored() -> (SimDisk, Arc<Store>) {
    let disk = SimDisk::new();
    let store = open_sim(&disk, &new_db()).unwrap();
    put(&store, 0..200);
    store.sync().unwrap();
    assert!(store.reader.packs.count() > 2);
    (disk, store)
}

fn verified(store: &Store) -> (Verified, Vec<Damage>) {
    let mut found = Vec::new();
    let verified = store.verify(true, &mut |_, _| {}, &mut |damage| found.push(damage)).unwrap();
    (verified, found)
}

#[test]
fn a_pack_that_the_system_refuses_to_read_is_unchecked_and_not_damaged() {
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EDQUOT, libc::EACCES, libc::EPERM] {
        for fail in [SimDisk::fail_opens, SimDisk::fail_reads] {
            let (disk, store) = stored();
            fail(&disk, errno);
            let (verified, found) = self::verified(&store);
            let refusal = Refusal::of(&io::Error::from_raw_os_error(errno)).unwrap();
            assert!(found.is_empty(), "{errno}: {found:?}");
            assert_eq!(verified.unchecked.len() as u64, store.reader.packs.count(), "{errno}");
            assert!(verified.unchecked.values().all(|why| *why == refusal), "{errno}");
            assert_eq!(store.stats().damaged, 0, "{errno}");
            fail(&disk, 0);
            let (verified, found) = self::verified(&store);
            assert!(found.is_empty() && verified.unchecked.is_empty(), "{errno}: {found:?}");
            assert!((0..200).all(|n| holds(&store, n)), "{errno}");
        }
    }
}

#[test]
fn a_read_that_the_system_refuses_leaves_the_chunk_known() {
    let (disk, store) = stored();
    let id = ChunkId::of(&content(7));
    disk.fail_reads(libc::ENOMEM);
    let refused = store.read(&id).unwrap_err();
    assert!(refused.refusal().is_some(), "{refused}");
    assert!(store.known(&id).unwrap());
    assert_eq!(store.stats().damaged, 0);
    disk.fail_reads(0);
    assert!(holds(&store, 7));
}

#[test]
fn a_disk_that_lost_bytes_is_damage() {
    let (disk, store) = stored();
    disk.fail_reads(libc::EIO);
    let (verified, found) = verified(&store);
    assert!(verified.unchecked.is_empty() && !found.is_empty());
    assert!(store.stats().damaged > 0);
}
