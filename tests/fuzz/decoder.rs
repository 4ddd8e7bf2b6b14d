//! Coverage-guided fuzzing of one decoder, `DEDUPFS_FUZZ_TARGET`, with libFuzzer. README.md says how to run it.
#![no_main]

use dedupfs::fuzz::Target;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("DEDUPFS_FUZZ_TARGET").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| {
        let names: Vec<_> = dedupfs::fuzz::TARGETS.iter().map(|target| target.name).collect();
        panic!("DEDUPFS_FUZZ_TARGET: expected one of {names:?}, found {name:?}")
    })
});

fuzz_target!(|bytes: &[u8]| {
    TARGET.feed(bytes);
    if let Some(repaired) = TARGET.repaired(bytes) {
        TARGET.feed(&repaired);
    }
});
