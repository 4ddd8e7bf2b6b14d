//! Look-ups of many recipes and chunks at once find what single ones find.

use super::*;

#[test]
fn many_are_found_as_one_by_one() {
    let (dir, db) = (tempfile::tempdir().unwrap(), new_db());
    let store = open(dir.path(), &db);
    // In several runs, in memory, and not at all; with some removed by a collection.
    let mut recipes = Vec::new();
    for run in 0..4 {
        recipes.extend((0..20).map(|n| put(&store, [100 * run + n, 100 * run + n + 1])));
        if run < 3 {
            store.persist().unwrap();
        }
        if run == 1 {
            let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
            recipes.iter().skip(10).for_each(|recipe| collection.keep(recipe).unwrap());
            let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
            collection.apply(&plan, &mut |_, _| true).unwrap();
        }
    }
    recipes.extend((0..20).map(|n| RecipeId([n; 16])));
    recipes.push(recipes[0]);
    recipes.sort();
    let places = store.find_recipes(&recipes).unwrap();
    let mut missing = 0;
    for (id, place) in recipes.iter().zip(places) {
        assert_eq!(place.is_some(), store.knows_recipe(id).unwrap(), "{id}");
        missing += usize::from(place.is_none());
        let single = store.recipe(id).ok();
        assert_eq!(store.recipe_at(id, place).ok(), single, "{id}");
    }
    assert!(missing >= 20);
    let mut chunks: Vec<_> = (0..800).map(|n| ChunkId::of(&content(n))).collect();
    chunks.sort();
    let known = store.all_known(&chunks).unwrap();
    let single: Vec<_> = chunks.iter().map(|id| store.known(id).unwrap()).collect();
    assert_eq!(known, single);
    assert!(known.contains(&true) && known.contains(&false));
}

/// A collection that runs meanwhile keeps what was looked up.
#[test]
fn a_look_up_of_many_counts_as_a_use() {
    let (dir, db) = (tempfile::tempdir().unwrap(), new_db());
    let store = open(dir.path(), &db);
    let recipe = put(&store, 0..40);
    put(&store, 100..140);
    store.appender.begin_pack_after(0, PLAIN).unwrap();
    put(&store, 200..201);
    store.sync().unwrap();
    let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
    let place = store.find_recipes(&[recipe]).unwrap()[0];
    store.recipe_at(&recipe, place).unwrap();
    let mut others: Vec<_> = (100..120).map(|n| ChunkId::of(&content(n))).collect();
    others.sort();
    assert!(store.all_known(&others).unwrap().into_iter().all(|known| known));
    let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
    collection.apply(&plan, &mut |_, _| true).unwrap();
    drop(collection);
    assert!(store.recipe(&recipe).is_ok() && (0..40).all(|n| holds(&store, n)));
    assert!((100..120).all(|n| holds(&store, n)));
    assert!(!(120..140).any(|n| holds(&store, n)), "nothing was collected");
}
