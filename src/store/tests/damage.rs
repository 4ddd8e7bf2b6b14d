//! Packs with bytes that are missing, torn or wrong.

use super::*;

#[test]
fn a_tail_torn_at_every_byte_costs_only_what_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let db = new_db();
    let store = open(dir.path(), &db);
    put(&store, 0..5);
    store.sync().unwrap();
    let synced = store.stats().stored_bytes;
    put(&store, 5..8);
    let all = store.stats().stored_bytes;
    kill(store);
    let path = &packs(dir.path())[0];
    let bytes = fs::read(path).unwrap();
    for cut in synced..all {
        for zeros in [false, true] {
            let mut torn = bytes[..cut as usize].to_vec();
            if zeros {
                torn.resize(all as usize, 0);
            }
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("packs")).unwrap();
            fs::write(dir.path().join("packs/00000000.pack"), torn).unwrap();
            let store = open(dir.path(), &new_db());
            assert!(store.damage().is_empty(), "{:?}", store.damage());
            assert!((0..5).all(|n| holds(&store, n)));
            put(&store, 3..20);
            assert!((0..20).all(|n| holds(&store, n)));
            drop(store);
            let store = open(dir.path(), &new_db());
            assert!((0..20).all(|n| holds(&store, n)));
            assert_eq!(store.stats().packs, 1);
        }
    }
}

#[test]
fn a_pack_cut_off_while_being_made_is_used_again() {
    for len in 0..PACK_HEADER_BYTES as usize {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("packs")).unwrap();
        fs::write(dir.path().join("packs/00000000.pack"), &encode_header(ID, 0, PLAIN)[..len]).unwrap();
        let store = open(dir.path(), &new_db());
        assert!(store.damage().is_empty());
        put(&store, 0..3);
        drop(store);
        let store = open(dir.path(), &new_db());
        assert!((0..3).all(|n| holds(&store, n)) && verify(&store).is_empty());
    }
}

#[test]
fn damage_inside_is_skipped_and_never_cut() {
    let dir = tempfile::tempdir().unwrap();
    let db = new_db();
    let store = open(dir.path(), &db);
    put(&store, 0..10);
    let (_, at) = offset_of(&store, 4);
    let (_, last) = offset_of(&store, 9);
    store.persist().unwrap();
    kill(store);
    let path = packs(dir.path())[0].clone();
    let len = fs::metadata(&path).unwrap().len();
    flip(&path, at + 9);
    // Without an index: what stood there is skipped.
    let store = open(dir.path(), &new_db());
    assert_eq!((store.damage().len(), store.damage()[0].offset), (1, at));
    assert_eq!((0..10).filter(|n| !holds(&store, *n)).collect::<Vec<_>>(), [4]);
    kill(store);
    assert_eq!(fs::metadata(&path).unwrap().len(), len);
    // With an index the last frames were durable: they are damaged, not torn. A new pack is begun.
    flip(&path, last + 60);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
    let bytes = fs::read(&path).unwrap();
    let recipe_at = bytes.windows(4).rposition(|w| w == frame::MAGIC).unwrap();
    flip(&path, recipe_at as u64 + 60);
    let store = open(dir.path(), &db);
    put(&store, 20..25);
    assert_eq!(fs::metadata(&path).unwrap().len(), len);
    assert_eq!(packs(dir.path()).len(), 2);
    let found: Vec<u64> = verify(&store).iter().map(|d| d.offset).collect();
    assert_eq!(found, [at, last, recipe_at as u64]);
}

#[test]
fn damaged_content_is_stored_again_and_healed() {
    let dir = tempfile::tempdir().unwrap();
    let db = new_db();
    let store = open(dir.path(), &db);
    let recipe = put(&store, 0..100);
    store.persist().unwrap();
    let id = ChunkId::of(&content(7));
    let (pack, offset) = offset_of(&store, 7);
    let recipe_key = store.reader.index.find_recipe(&recipe).unwrap().unwrap();
    flip(&packs(dir.path())[pack as usize], offset + 60);
    flip(&packs(dir.path())[recipe_key.address.pack as usize], u64::from(recipe_key.address.offset) + 70);
    assert!(store.known(&id).unwrap(), "nobody has looked yet");
    match store.read(&id) {
        Err(StoreError::Damaged { damage }) => {
            assert_eq!((damage.chunk, damage.pack.0, damage.offset), (Some(id), pack, offset));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.recipe(&recipe), Err(StoreError::Damaged { .. })));
    assert!(!store.known(&id).unwrap());
    assert_eq!(store.stats().damaged, 2);
    let before = store.stats();
    assert_eq!(put(&store, 0..100), recipe);
    assert!(holds(&store, 7));
    assert_eq!(store.recipe(&recipe).unwrap().chunks().len(), 100);
    let after = store.stats();
    assert_eq!((after.damaged, after.chunks, after.unique_bytes), (0, before.chunks, before.unique_bytes));
    let kinds: Vec<_> = verify(&store).iter().map(|d| d.kind).collect();
    assert_eq!(kinds, [DamageKind::Superseded; 2]);
    kill(store);
    for db in [db, new_db()] {
        let store = open(dir.path(), &db);
        assert!((0..100).all(|n| holds(&store, n)), "the later copy wins");
        assert_eq!(store.stats().chunks, before.chunks);
    }
}

#[test]
fn a_missing_pack_is_damage_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let db = new_db();
    let store = open(dir.path(), &db);
    put(&store, 0..200);
    drop(store);
    fs::remove_file(&packs(dir.path())[1]).unwrap();
    let store = open(dir.path(), &db);
    let lost: Vec<u64> = (0..200).filter(|n| !holds(&store, *n)).collect();
    assert!(!lost.is_empty() && lost.len() < 100);
    let found = verify(&store);
    assert_eq!(found.iter().filter(|d| d.chunk.is_some()).count(), lost.len());
    assert!(found.iter().all(|d| d.pack.0 == 1 && d.kind == DamageKind::Pack));
    put(&store, 0..200);
    assert!((0..200).all(|n| holds(&store, n)));
}

/// Fails without the look at the footer in `verify.rs`: once the index leads to the later copy, nothing else knows.
#[test]
fn a_footer_names_what_a_bad_header_hides() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &new_db());
    put(&store, 0..200);
    let (pack, offset) = offset_of(&store, 7);
    assert!((pack as usize) < packs(dir.path()).len() - 1, "the pack is sealed");
    flip(&packs(dir.path())[pack as usize], offset + 20);
    for kind in [DamageKind::Frame, DamageKind::Superseded] {
        let found = verify(&store);
        assert_eq!(found.len(), 1, "{found:?}");
        let named = (found[0].kind, found[0].chunk, found[0].offset);
        assert_eq!(named, (kind, Some(ChunkId::of(&content(7))), offset));
        put(&store, 0..200);
        store.persist().unwrap();
    }
}

#[test]
fn an_embedded_pack_is_never_taken_for_frames() {
    let dir = tempfile::tempdir().unwrap();
    let other = open(dir.path(), &new_db());
    put(&other, [2, 4, 6]);
    drop(other);
    let inner = fs::read(&packs(dir.path())[0]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &new_db());
    let mut writer = store.writer();
    writer.put(ChunkId::of(&inner), &inner).unwrap();
    writer.flush().unwrap();
    drop((writer, store));
    flip(&packs(dir.path())[0], u64::from(PACK_HEADER_BYTES) + 20);
    let store = open(dir.path(), &new_db());
    assert_eq!(store.stats().chunks, 0);
    assert!([2, 4, 6].iter().all(|n| !holds(&store, *n)));
}
