//! Chunks decoded ahead: those of one stretch are read at once, and one that is damaged spoils no other.

use super::*;

#[test]
fn a_stretch_brings_all_that_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let db = new_db();
    let store = open(dir.path(), &db);
    put(&store, 0..60);
    let (_, at) = offset_of(&store, 7);
    store.persist().unwrap();
    kill(store);
    // In the payload, behind the header.
    flip(&packs(dir.path())[0], at + 60);
    let none = StoreOptions { prefetch_threads: 0, ..options() };
    let store = Store::open(dir.path(), ID, db as Arc<dyn Db>, none, &mut |_, _| {}).unwrap();
    let ids: Vec<ChunkId> = (0..60).map(|n| ChunkId::of(&content(n))).collect();
    // One that is not stored, and one twice.
    let wanted: Vec<ChunkId> = [&ids[..], &[ChunkId::of(b"elsewhere"), ids[3]]].concat();
    store.reader.load_ahead(&wanted, &mut Vec::new());
    let missing: Vec<usize> = (0..60).filter(|n| !store.reader.is_cached(&ids[*n])).collect();
    assert_eq!(missing, [7]);
    assert_eq!(store.reader.damaged_count(), 0, "a hint finds nothing out");
    for (n, id) in ids.iter().enumerate() {
        match store.reader.chunk(id) {
            Ok(bytes) => assert_eq!(bytes[..], content(n as u64)),
            Err(e) => assert!(n == 7 && matches!(e, StoreError::Damaged { .. }), "{n}: {e}"),
        }
    }
}
