//! What a small write to a large stub costs, in bytes on the disk.

use crate::common::{As, Mount, root_and_fuse_available, text};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A mebibyte of which no chunk is like another's, and which compresses well.
fn piece(number: u64) -> Vec<u8> {
    let words = (0..MIB / 8).map(|i| (number << 32) + i / 16);
    words.flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

fn bytes_in(dir: &std::path::Path) -> u64 {
    let Ok(entries) = dir.read_dir() else { return 0 };
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// The kernel says a little late that a file was closed, and `size` bytes take their time.
fn await_stub(mount: &Mount, size: u64) {
    let patience = Duration::from_secs(60 + size / (8 * MIB));
    let until = Instant::now() + patience;
    mount.settle();
    while !mount.is_stub("file") {
        assert!(Instant::now() < until, "not converted within {patience:?}");
        std::thread::sleep(Duration::from_millis(50));
        mount.settle();
    }
}

/// Prints times, and says nothing about them: machines differ.
fn one_small_write(size: u64) {
    let mount = Mount::prepare(As::Root);
    mount.init("");
    mount.start();
    let state = mount.dir().join(".dedupfs");
    let (packs, extents) = (state.join("packs"), state.join("extents"));
    let mut start = Instant::now();
    let mut lap = move |what: &str| {
        println!("{what}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        start = Instant::now();
    };
    let mut file = File::create(mount.at("file")).unwrap();
    (0..size / MIB).for_each(|number| file.write_all(&piece(number)).unwrap());
    drop(file);
    lap("written");
    await_stub(&mount, size);
    lap("settled");
    let (packs_before, chunks) = (bytes_in(&packs), mount.ctl(&["status"])["chunks"].as_u64().unwrap());
    lap("");

    let file = OpenOptions::new().read(true).write(true).open(mount.at("file")).unwrap();
    lap("opened");
    assert_eq!((mount.below("file").1, bytes_in(&extents)), (0, 0), "opening costs nothing");
    lap("");
    let at = size / 2 + 1234;
    file.write_all_at(&[0x55; 4096], at).unwrap();
    lap("first write");
    file.write_all_at(&[0x66; 4096], at / 2).unwrap();
    lap("second write");
    file.sync_all().unwrap();
    lap("fsync");
    let (local, list) = (mount.below("file").1 * 512, bytes_in(&extents));
    println!("{local} bytes in the file, {list} in the list, {} in packs", bytes_in(&packs) - packs_before);
    assert!(local <= 16 << 10, "two blocks each: {local} bytes in the file");
    // The kernel hands a write on page by page.
    assert!(list <= 64 + 5 * 24, "{list} bytes in the list");
    assert_eq!(bytes_in(&packs), packs_before);
    assert_eq!(fs::metadata(mount.at("file")).unwrap().size(), size);
    drop(file);
    lap("");
    await_stub(&mount, size);
    lap("settled again");
    assert_eq!((mount.below("file").1, bytes_in(&extents)), (0, 0));
    // The new recipe names all chunks; of chunks only those are new that were written into, or next to.
    let grown = bytes_in(&packs) - packs_before;
    let (recipe, chunk_max) = (35 * chunks, 64 << 10);
    println!("{grown} bytes more in packs, of which the recipe of {chunks} chunks some {recipe}");
    assert!(grown < recipe + 8 * chunk_max, "{grown} bytes more in packs");

    let file = File::open(mount.at("file")).unwrap();
    let mut found = vec![0; MIB as usize];
    for number in [0, size / 2 / MIB, size / 4 / MIB, size / MIB - 1] {
        let mut expected = piece(number);
        for (at, byte) in [(at, 0x55), (at / 2, 0x66)] {
            for at in (at..at + 4096).filter(|at| at / MIB == number) {
                expected[(at % MIB) as usize] = byte;
            }
        }
        file.read_exact_at(&mut found, number * MIB).unwrap();
        assert!(found == expected, "mebibyte {number}");
    }
    let check = mount.dedupctl().arg("check").current_dir(mount.mnt()).output().unwrap();
    assert!(check.status.success(), "{}", text(&check));
}

#[test]
fn a_small_write_costs_little() {
    if root_and_fuse_available() {
        one_small_write(128 * MIB);
    }
}

/// `cargo test --test mount -- --ignored --nocapture ten_gibibytes`; wants 13 GiB of room.
#[test]
#[ignore = "takes minutes and 13 GiB"]
fn a_small_write_into_ten_gibibytes_costs_little() {
    assert!(root_and_fuse_available());
    one_small_write(10 << 30);
}
