//! Forman, Eshghi and Chiocchetti 2005, section 3.1: a collection of 52,125 documents in 327 MB.

use crate::{Meter, Random, files_below};
use dedupfs::chunk::tttd::Tttd;
use dedupfs::similarity::methods::chunk_graph::{
    Analysis, AnalysisOptions, ChunkGraph, Collection, CollectionWriter, Templates, write_clusters,
    write_identical, write_pairs,
};
use dedupfs::similarity::methods::sketch_of;
use std::fs::File;
use std::path::{Path, PathBuf};

const SEED: u64 = 0x666f_726d_616e;
/// Lengths of chunks, and the largest share of files that may have one.
const RUNS: [(u32, f64); 5] = [(5000, 0.5), (1000, 0.5), (1000, 0.01), (256, 0.01), (100, 0.01)];

pub fn run(dir: &Path, scratch: &Path, documents: usize) {
    let kinds = ["html", "htm", "txt", "gz", "rst", "xml", "md"];
    let is_document =
        |path: &PathBuf| path.extension().is_some_and(|kind| kinds.iter().any(|one| kind == *one));
    let files: Vec<_> = files_below(dir).into_iter().filter(is_document).collect();
    assert!(!files.is_empty(), "{}: expected documents ({kinds:?}), found none", dir.display());
    println!(
        "seed {SEED:#x}; {} documents, {} as they are, the rest edited versions of them",
        documents,
        files.len().min(documents)
    );
    let mut collection = None;
    for (target, ubiquitous_share) in RUNS {
        if collection.as_ref().is_none_or(|made: &Collection| made.target() != target) {
            collection = Some(chunk(&files, documents, target, scratch));
        }
        analyse(collection.as_ref().unwrap(), ubiquitous_share, scratch);
    }
}

/// A version of a document: as it is, or with some words changed at three places.
fn document(path: &Path, version: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    if version > 0 {
        for _ in 0..3 {
            let at = random.below(bytes.len());
            let end = bytes.len().min(at + random.below(40));
            bytes.splice(at..end, format!("version {version} of {}", random.next()).into_bytes());
        }
    }
    bytes
}

fn chunk(files: &[PathBuf], documents: usize, target: u32, scratch: &Path) -> Collection {
    let method = ChunkGraph::new(Tttd::with_target(target).unwrap());
    let path = scratch.join(format!("chunks-{target}"));
    let mut writer = CollectionWriter::create(&path, target).unwrap();
    let (mut random, mut bytes, mut chunks) = (Random(SEED), 0, 0);
    let meter = Meter::start();
    for number in 0..documents {
        let (version, file) = (number / files.len(), &files[number % files.len()]);
        let document = document(file, version, &mut random);
        bytes += document.len();
        let list = sketch_of(&method, None, &document);
        chunks += list.chunks().len();
        let name = format!("{}#{version}", file.display());
        writer.add(name.as_ref(), &list).unwrap();
    }
    let collection = writer.finish().unwrap();
    let rate = bytes as f64 / 1e6 / meter.seconds();
    let share = 100.0 * collection.bytes() as f64 / bytes as f64;
    println!();
    meter.end(
        &format!("chunking at {target}"),
        &format!("{} MB, {chunks} chunks, {rate:.0} MB/s cpu, saved in {share:.2}%", bytes / 1_000_000),
    );
    collection
}

fn analyse(collection: &Collection, ubiquitous_share: f64, scratch: &Path) {
    let plain = AnalysisOptions { ubiquitous_share, partition: false, ..AnalysisOptions::default() };
    let plain = AnalysisOptions { memory_bytes: usize::MAX, ..plain };
    let ways = [
        ("whole in memory", plain.clone()),
        ("partitioned", AnalysisOptions { partition: true, ..plain.clone() }),
        ("partitioned, 8 MiB", AnalysisOptions { partition: true, memory_bytes: 8 << 20, ..plain.clone() }),
    ];
    println!("ubiquitous above {:.0}% of the files", 100.0 * ubiquitous_share);
    let (mut clusters, mut last) = (None, None);
    for (name, options) in ways {
        // Its links would count in the next peak.
        drop(last.take());
        let meter = Meter::start();
        let analysis = Analysis::of(collection, &options, scratch).unwrap();
        meter.end(name, &format!("{:?}", analysis.work));
        let clusters = clusters.get_or_insert_with(|| analysis.clusters.clone());
        assert_eq!(*clusters, analysis.clusters, "the answer does not depend on memory");
        last = Some(analysis);
    }
    let found: Analysis = last.unwrap();
    told(&found);
    let meter = Meter::start();
    let table = |name: &str| File::create(scratch.join(name)).unwrap();
    write_identical(&found, collection, table("identical.csv")).unwrap();
    write_clusters(&found, collection, table("clusters.csv")).unwrap();
    write_pairs(&found, collection, table("pairs.csv")).unwrap();
    meter.end("tables written", "");
    for share in [1.0, 0.5] {
        let Some(largest) = found.clusters.first() else { return };
        let meter = Meter::start();
        let mut templates = Templates::default();
        let marked = templates.mark(collection, &largest.files, share).unwrap();
        let options =
            AnalysisOptions { templates, partition: true, memory_bytes: 256 << 20, ..plain.clone() };
        let again = Analysis::of(collection, &options, scratch).unwrap();
        meter.end(&format!("{share} of the largest marked"), &format!("{marked} chunks"));
        told(&again);
    }
}

fn told(found: &Analysis) {
    let overhead: u64 = found.identical.iter().map(|set| set.overhead_bytes()).sum();
    let links: u64 = found.clusters.iter().map(|cluster| cluster.links).sum();
    let files: usize = found.clusters.iter().map(|cluster| cluster.files.len()).sum();
    let largest: Vec<_> = found.clusters.iter().take(3).map(|cluster| cluster.files.len()).collect();
    println!(
        "  {} identical sets, {:.1} MB overhead; {links} links, {} clusters of {files} files, largest {largest:?}",
        found.identical.len(),
        overhead as f64 / 1e6,
        found.clusters.len()
    );
}
