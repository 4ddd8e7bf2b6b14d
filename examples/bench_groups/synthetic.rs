//! Synthetic contents: as many features as real files have, and as many of them in common as is asked for.

use crate::{PhaseMeter, files_below};
use dedupfs::chunk::ChunkParams;
use dedupfs::id::RecipeId;
use dedupfs::similarity::groups::{self, Fact, Input, PairOptions, Phase, Stars};
use dedupfs::similarity::{FEATURE_BITS, LEVEL_MAX, SimilarityError, Sketch};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Files whose sketches are taken.
const SHAPES_MAX: usize = 20_000;
/// The index has its features sorted; here they are, in as many files, by their leading bits.
const BUCKETS: usize = 256;
const REST_BITS: u32 = FEATURE_BITS - 8;
/// Shares of features that a member keeps of its family's, by family.
const KEPT: [u64; 4] = [90, 70, 50, 30];

/// How many features a real file has, and at which level.
struct Shape {
    size: u64,
    level: u8,
    features: u32,
}

struct Synthetic {
    files: u32,
    family: u32,
    scattered: bool,
    shapes: Vec<Shape>,
    dir: PathBuf,
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Synthetic {
    /// Family and member of a content.
    fn kin(&self, number: u32) -> (u64, u64) {
        let families = self.files / self.family;
        let (family, member) = match self.scattered {
            true => (number % families, number / families),
            false => (number / self.family, number % self.family),
        };
        (family.into(), member.into())
    }

    fn shape(&self, number: u32) -> &Shape {
        &self.shapes[self.kin(number).0 as usize % self.shapes.len()]
    }

    fn each_feature(&self, number: u32, mut visit: impl FnMut(u64)) {
        let (family, member) = self.kin(number);
        let kept = KEPT[family as usize % KEPT.len()];
        for i in 0..u64::from(self.shape(number).features) {
            let ancestral = mix(mix(family + 1) ^ i);
            let own = mix(ancestral ^ mix(member + 0x5eed));
            let feature = if own % 100 < kept { ancestral } else { mix(own) };
            visit(feature >> (64 - FEATURE_BITS));
        }
    }

    fn bucket(&self, bucket: usize) -> PathBuf {
        self.dir.join(format!("bucket-{bucket:03}"))
    }

    /// Writes the features of all contents, sorted: stands in for building an index.
    fn write(&self) -> u64 {
        let create = |bucket| BufWriter::with_capacity(64 << 10, File::create(self.bucket(bucket)).unwrap());
        let mut files: Vec<_> = (0..BUCKETS).map(create).collect();
        let mut all = 0;
        for number in 0..self.files {
            self.each_feature(number, |feature| {
                let rest = feature & ((1 << REST_BITS) - 1);
                let record = rest << 32 | u64::from(number);
                files[(feature >> REST_BITS) as usize].write_all(&record.to_le_bytes()).unwrap();
                all += 1;
            });
        }
        files.into_iter().for_each(|mut file| file.flush().unwrap());
        for bucket in 0..BUCKETS {
            let mut records = Vec::new();
            self.records(bucket, &mut |record| {
                records.push(record);
                true
            });
            records.sort_unstable();
            let mut file = create(bucket);
            records.iter().for_each(|record| file.write_all(&record.to_le_bytes()).unwrap());
            file.flush().unwrap();
        }
        all
    }

    fn records(&self, bucket: usize, visit: &mut dyn FnMut(u64) -> bool) -> bool {
        let mut file = BufReader::with_capacity(1 << 20, File::open(self.bucket(bucket)).unwrap());
        let mut bytes = [0; 8];
        while file.read_exact(&mut bytes).is_ok() {
            if !visit(u64::from_le_bytes(bytes)) {
                return false;
            }
        }
        true
    }
}

/// Each content is one chunk of the same number.
impl Input for Synthetic {
    fn contents(&self, visit: &mut dyn FnMut(Fact) -> bool) -> Result<(), SimilarityError> {
        for number in 0..self.files {
            let &Shape { size, level, features } = self.shape(number);
            let counts = std::array::from_fn(|at| match at >= usize::from(level) {
                true => features >> (at - usize::from(level)),
                false => 0,
            });
            let mut recipe = [0; 16];
            recipe[..8].copy_from_slice(&mix(number.into()).to_le_bytes());
            if !visit(Fact { number, recipe: RecipeId(recipe), size, level, counts }) {
                break;
            }
        }
        Ok(())
    }

    fn contained(&self, visit: &mut dyn FnMut(u32, u32, u8) -> bool) -> Result<(), SimilarityError> {
        let mut more = (0..self.files).map(|number| visit(number, number, self.shape(number).level));
        more.all(|more| more);
        Ok(())
    }

    fn features(&self, visit: &mut dyn FnMut(u64, u32) -> bool) -> Result<(), SimilarityError> {
        for bucket in 0..BUCKETS {
            let front = (bucket as u64) << REST_BITS;
            if !self.records(bucket, &mut |record| visit(front | record >> 32, record as u32)) {
                break;
            }
        }
        Ok(())
    }
}

fn shapes(dir: &Path) -> Vec<Shape> {
    let mut files = Vec::new();
    files_below(dir, &mut files);
    let step = files.len().div_ceil(SHAPES_MAX).max(1);
    let shape = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        let (mut level, mut features, mut start) = (0, 0, 0);
        for len in ChunkParams::default().cut(&bytes, true) {
            let sketch = Sketch::of_chunk(&bytes[start..start + len as usize]);
            (level, features) = (level.max(sketch.level()), features + sketch.len() as u32);
            start += len as usize;
        }
        Shape { size: bytes.len() as u64, level: level.min(LEVEL_MAX), features }
    };
    files.iter().step_by(step).map(shape).filter(|shape| shape.features > 0).collect()
}

pub fn run(dir: &Path, files: u32, memory: usize, family: u32, scratch: &Path, scattered: bool) {
    let (input_dir, work) = (scratch.join("input"), scratch.join("groups"));
    std::fs::create_dir_all(&input_dir).unwrap();
    let meter = PhaseMeter::start("sketches of real files");
    let shapes = shapes(dir);
    let mean = shapes.iter().map(|shape| f64::from(shape.features)).sum::<f64>() / shapes.len() as f64;
    meter.end(&format!("{} files, {mean:.1} features each", shapes.len()));
    let input = Synthetic { files: files / family * family, family, scattered, shapes, dir: input_dir };
    let meter = PhaseMeter::start("stand-in for the index");
    let all = input.write();
    meter.end(&format!("{} contents, {all} features", input.files));

    let options = PairOptions { memory_bytes: memory, frequency_cap: 500, anew: true };
    let (mut phase, mut now) = (Phase::Reading, Some(PhaseMeter::start("reading")));
    let pairs = groups::pairs(&input, &options, &work, &mut |next, _, _| {
        if next != phase {
            now.take().unwrap().end("");
            (phase, now) = (next, Some(PhaseMeter::start("comparing")));
        }
        true
    });
    let pairs = pairs.unwrap();
    now.unwrap().end(&format!("{} pairs", pairs.len()));
    for min in [0.25, 0.5] {
        let meter = PhaseMeter::start("stars");
        let stars = Stars::of(&pairs, min, None, memory, &mut |_, _, _| true).unwrap();
        let members: u64 = stars.stars.iter().map(|star| u64::from(star.members) + 1).sum();
        let within =
            stars.stars.iter().take(1000).zip(stars.members(&stars.stars[..stars.stars.len().min(1000)]));
        let strangers = within.flat_map(|(star, members)| {
            let family = input.kin(star.representative).0;
            members.into_iter().filter(|member| input.kin(member.content).0 != family).collect::<Vec<_>>()
        });
        let strangers = strangers.count();
        meter.end(&format!(
            "at {min}: {} stars of {members} contents; strangers in the first 1,000: {strangers}",
            stars.stars.len()
        ));
    }
    let meter = PhaseMeter::start("asked again");
    let options = PairOptions { anew: false, ..options };
    let again = groups::pairs(&input, &options, &work, &mut |_, _, _| true).unwrap();
    assert_eq!(again.len(), pairs.len());
    meter.end("");
    std::fs::remove_dir_all(&input.dir).unwrap();
    std::fs::remove_dir_all(&work).unwrap();
}
