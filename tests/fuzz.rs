//! Every decoder of bytes from disk against mutants of whole and damaged inputs: no panic, no hang, bounded
//! memory, and what decodes is encoded again as it was (the promises of `dedupfs::fuzz`).
//!
//! Inputs come from `tests/fuzz/corpus/TARGET`. Each run draws mutants (flipped bits, interesting numbers,
//! inserted, removed, repeated and spliced ranges, truncation) for `DEDUPFS_FUZZ_SECONDS` a target, by
//! default 1; half of them with checksums that fit, so that they get past those. The seed is printed when a
//! mutant breaks a promise, with the mutant itself; `DEDUPFS_FUZZ_SEED` repeats it. Guided by coverage,
//! the same targets run under libFuzzer: `tests/fuzz/README.md`.
//!
//! Seen to fail: before a frame's claim to expand and a block's number of rows were bounded (memory, `frame` and
//! `block`), and with a bound on rows that was too tight (`block`).
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first error, and says its seed"
)]

use dedupfs::db::{Db, MemDb, Table};
use dedupfs::fuzz::{TARGETS, Target};
use dedupfs::id::{ChunkId, RecipeId, StoreId};
use dedupfs::overlay::stub::{State, Stub, Time};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::repo::{InitOptions, Repo};
use dedupfs::similarity::methods::chunk_graph::ChunkGraph;
use dedupfs::similarity::methods::sif::{CollateOptions, Saved, Sif};
use dedupfs::similarity::methods::{self, Index, IndexOptions, Sketcher};
use dedupfs::similarity::{Similarity, SimilarityOptions, Sketch};
use dedupfs::store::{Store, StoreOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Counts what this thread has allocated, and how much that was at most.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let now = NOW.get() + bytes;
    NOW.set(now);
    MOST.set(MOST.get().max(now));
}

// SAFETY: all is handed to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// No input may take longer: the longest takes some milliseconds.
const INPUT_TIME_MAX: Duration = Duration::from_secs(5);
const INPUT_BYTES_MAX: usize = 64 << 10;

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target.name);
    let mut found: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{}: no inputs", dir.display());
    found
}

/// Feeds one input and looks at time and memory.
fn feed(target: &Target, bytes: &[u8]) -> Result<(), String> {
    let (start, before) = (Instant::now(), NOW.get());
    MOST.set(before);
    let fed = catch_unwind(AssertUnwindSafe(|| target.feed(bytes)));
    let memory = (MOST.get() - before) as usize;
    fed.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })?;
    let (time, memory_max) = (start.elapsed(), target.memory_bytes_max(bytes.len()));
    if time > INPUT_TIME_MAX {
        return Err(format!("expected an end within {INPUT_TIME_MAX:?}, found {time:?}"));
    }
    if memory > memory_max {
        return Err(format!("expected at most {memory_max} bytes of memory, found {memory}"));
    }
    Ok(())
}

/// xorshift64*: the same seed makes the same mutants everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to `n`, without `n`; 0 if that is 0.
    fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 11) % (n as u64).max(1)) as usize
    }

    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        let most = if self.below(4) == 0 { len - start } else { (len - start).min(16) };
        start..start + self.below(most + 1)
    }
}

const NUMBERS: &[u32] = &[0, 1, 2, 7, 8, 39, 40, 56, 0x7f, 0x80, 0xffff, 1 << 24, 1 << 30, 1 << 31, u32::MAX];

fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let len = bytes.len();
        match random.below(9) {
            0 | 1 if len > 0 => bytes[random.below(len)] ^= 1 << random.below(8),
            2 if len > 0 => bytes[random.below(len)] = random.next() as u8,
            3 if len >= 4 => {
                let (at, number) = (random.below(len - 3), NUMBERS[random.below(NUMBERS.len())]);
                let number = if random.below(2) == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
                bytes[at..at + 4].copy_from_slice(&number);
            }
            4 => {
                let inserted: Vec<u8> = (0..random.below(20)).map(|_| random.next() as u8).collect();
                let at = random.below(len + 1);
                bytes.splice(at..at, inserted);
            }
            5 => drop(bytes.drain(random.range(len))),
            6 => {
                let copied = bytes[random.range(len)].to_vec();
                let at = random.below(len + 1);
                bytes.splice(at..at, copied);
            }
            7 => {
                let (from, to) = (random.range(other.len()), random.range(len));
                bytes.splice(to, other[from].iter().copied());
            }
            _ => bytes.truncate(random.below(len + 1)),
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: expected a number, found {text:?}")))
}

fn fuzz(name: &str) {
    let target = Target::named(name).unwrap();
    let inputs = corpus(target);
    let check = |bytes: &[u8], origin: &dyn std::fmt::Display| {
        if let Err(reason) = feed(target, bytes) {
            panic!("{name}: {reason}\ninput, {origin}: {}", hex(bytes));
        }
    };
    for (path, bytes) in &inputs {
        check(bytes, &path.display());
        if let Some(repaired) = target.repaired(bytes) {
            check(&repaired, &path.display());
        }
    }
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("DEDUPFS_FUZZ_SEED").unwrap_or(clock.as_nanos() as u64) | 1;
    let mut random = Random(seed);
    let end = Instant::now() + Duration::from_secs(number("DEDUPFS_FUZZ_SECONDS").unwrap_or(1));
    let mut runs = 0u64;
    while Instant::now() < end {
        let mut bytes = inputs[random.below(inputs.len())].1.clone();
        let other = &inputs[random.below(inputs.len())].1;
        mutate(&mut bytes, other, &mut random);
        if random.below(2) == 0 {
            bytes = target.repaired(&bytes).unwrap_or(bytes);
        }
        runs += 1;
        check(&bytes, &format_args!("mutant {runs} of seed {seed}"));
    }
    eprintln!("{name}: {} inputs and {runs} mutants of them, seed {seed}", inputs.len());
    assert!(runs > 0);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(4096).map(|byte| format!("{byte:02x}")).collect()
}

macro_rules! targets {
    ($($name:ident)*) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                fuzz(stringify!($name));
            }
        )*
    };
}

targets!(frame group footer compact_footer pack position block head sif_saved chunk_list recipe view delta stub config format sync_frames sync_tree sync_diff sync_contents history_events
    history_node history_snapshot);

#[test]
fn every_target_is_tested() {
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, TESTED);
}

/// Blocks, heads and saved results of the published methods.
fn methods_corpus(save: &dyn Fn(&str, &str, &[u8])) {
    let mut random = Random(2);
    let mut base: Vec<u8> = (0..9000).map(|_| random.next() as u8).collect();
    let mut files = vec![base.clone(), base[..5000].to_vec(), b"%!PS-Adobe-3.0\nshort".to_vec()];
    base.extend_from_within(..4000);
    files.push(base);
    let db: Arc<dyn Db> = Arc::new(MemDb::new());
    for (number, method) in methods::all().into_iter().enumerate() {
        let index = Index::open(db.clone(), method.clone(), IndexOptions::default()).unwrap();
        for (at, bytes) in files.iter().enumerate() {
            let dir = std::env::temp_dir();
            let mut sketcher = Sketcher::new(method.clone(), Some("a.txt".as_ref()), &dir, 1 << 20);
            sketcher.add(bytes).unwrap();
            let sketch = sketcher.finish().unwrap();
            save("head", &format!("{}-{at}", method.name()), &[&[number as u8], sketch.head()].concat());
            index.add(RecipeId::of(bytes), &sketch).unwrap();
        }
        let (packed, _) = index.packed_keys(0, 60).unwrap();
        save("head", &format!("{}-keys", method.name()), &[&[4], &packed[..]].concat());
        if number == 0 {
            let names = &mut |id: &RecipeId| vec![format!("a/{id}").into_bytes(), b"b/c".to_vec()];
            let dir = std::env::temp_dir();
            let saved =
                Saved::collate(&index, &Sif::default(), names, &CollateOptions::default(), &dir).unwrap();
            save("sif_saved", "four", &saved.encode());
        }
    }
    for (table, number) in [(Table::MethodKeys, 5), (Table::MethodSketches, 6)] {
        db.scan(table, &[], &mut |_, block| {
            save("block", &format!("{table:?}"), &[&[number], block].concat());
            false
        })
        .unwrap();
    }
    for (at, bytes) in files.iter().enumerate() {
        let list = methods::sketch_of(&ChunkGraph::default(), None, bytes);
        save("chunk_list", &format!("list-{at}"), &list.encode());
    }
}

/// Writes the inputs to begin with anew: what the program itself writes. What fuzzing found stays.
#[test]
#[ignore = "writes to tests/fuzz/corpus"]
fn make_corpus() {
    let save = |target: &str, name: &str, bytes: &[u8]| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(name), bytes).unwrap();
    };
    let dir = tempfile::tempdir().unwrap();
    let db = Arc::new(MemDb::new());
    let options = StoreOptions { pack_bytes_max: 3000, ..StoreOptions::default() };
    let store = Store::open(dir.path(), StoreId([7; 16]), db.clone(), options, &mut |_, _| {}).unwrap();
    let store = Arc::new(store);
    let similarity = Similarity::open(db.clone(), SimilarityOptions::default()).unwrap();
    let mut random = Random(1);
    let (mut writer, mut chunks) = (store.writer(), Vec::new());
    for n in 0..18 {
        // Every other chunk compresses.
        let bytes: Vec<u8> =
            (0..700 + n * 40).map(|i| if n % 2 == 0 { random.next() as u8 } else { (i / 9) as u8 }).collect();
        let id = ChunkId::of(&bytes);
        writer.put(id, &bytes).unwrap();
        similarity.add_chunk(id, Sketch::of_chunk(&bytes)).unwrap();
        chunks.push(ChunkRef { id, len: bytes.len() as u32 });
        if n % 3 == 2 {
            let recipe = Recipe::new(chunks.clone());
            save("recipe", &format!("chunks-{}", chunks.len()), &recipe.encode());
            let id = writer.put_recipe(&recipe).unwrap();
            similarity.add_content(id, &recipe).unwrap();
        }
    }
    for (name, bytes) in dedupfs::sync::delta::fuzz::corpus() {
        save("delta", name, &bytes);
    }
    for (target, name, bytes) in dedupfs::sync::fuzz::corpus() {
        save(target, name, &bytes);
    }
    for (target, name, bytes) in dedupfs::history::fuzz::corpus() {
        save(target, name, &bytes);
    }
    save("recipe", "empty", &Recipe::default().encode());
    writer.flush().unwrap();
    similarity.flush().unwrap();
    store.persist().unwrap();
    save("position", "position", &db.get(Table::Meta, b"store.position").unwrap().unwrap());
    let tables = [
        (0, Table::Features),
        (1, Table::Sketched),
        (2, Table::Contained),
        (3, Table::Contents),
        (4, Table::Chunks),
        (7, Table::Filters),
    ];
    for (number, table) in tables {
        db.scan(table, &[], &mut |_, block| {
            save("block", &format!("{table:?}"), &[&[number], block].concat());
            false
        })
        .unwrap();
    }
    methods_corpus(&save);
    drop((writer, store));
    let pack = std::fs::read(dir.path().join("packs/00000003.pack")).unwrap();
    save("pack", "sealed", &pack);
    let trailer = pack.last_chunk::<8>().unwrap();
    let footer = u32::from_le_bytes(*trailer.first_chunk().unwrap()) as usize;
    save("pack", "growing", &pack[..footer]);
    save("footer", "footer", &pack[footer + 56..]);
    let mut at = 40;
    while at < pack.len() {
        let stored = u32::from_le_bytes(*pack[at + 8..].first_chunk().unwrap()) as usize;
        let end = at + 56 + stored;
        let frame = Target::named("frame").unwrap().repaired(&pack[at..end]).unwrap();
        save("frame", &format!("kind-{}-codec-{}", pack[at + 4], pack[at + 5]), &frame);
        at = end;
    }
    for (i, group) in dedupfs::store::fuzz::groups().iter().enumerate() {
        save("group", &format!("group-{i}"), group);
    }
    for (i, footer) in dedupfs::store::fuzz::compact_footers().iter().enumerate() {
        save("compact_footer", &format!("footer-{i}"), footer);
    }
    let recipe = RecipeId([5; 16]);
    let (mtime, blocks) = (Time { sec: 1_700_000_000, nsec: 5 }, 8);
    for (i, state) in
        [State::Unsettled, State::Settled, State::Hydrating, State::Plain].into_iter().enumerate()
    {
        let ctime = (i < 2).then_some(mtime);
        let stamp_ms = 1_700_000_000_000;
        let record = Stub { state, size: 5 << i, mtime, ctime, stamp_ms, blocks, recipe };
        save("stub", &format!("{state:?}"), &record.encode(&dedupfs::fuzz::KEY));
    }
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let layout = Repo::init(&root, None, &InitOptions::default()).unwrap();
    save("format", "default", &std::fs::read(layout.file("format.toml")).unwrap());
    save("config", "default", &std::fs::read(layout.file("config.toml")).unwrap());
    save("config", "set", b"dedup = \"idle:10m\"\ncache_bytes = \"16 KiB\"\n");
    let rules = "min_size = \"1M\"\nconvert_rate = \"1MB/s\"\n[[policy]]\nmatch = [\"*.{a,b}\", \"!/x/[!a-c]/**\"]\n\
        dedup = \"off\"\n[[policy]]\nmatch = \"target/\"\nmin_size = 7\n";
    save("config", "rules", rules.as_bytes());
}
