//! Schleimer, Wilkerson and Aiken, "Winnowing" (SIGMOD 2003), section 5.1: densities, gaps, frequencies and speed.

use dedupfs::similarity::methods::sketch_of;
use dedupfs::similarity::methods::winnow::{Winnow, WinnowSketch, each_hash};
use dedupfs::view::View;
use std::fmt::Write;
use std::io::Cursor;
use std::path::Path;

const K: u32 = 50;
const W: u32 = 100;
/// Of text for the frequencies: every hash of it is sorted in memory.
const FREQUENCY_BYTES: usize = 24 << 20;

pub fn run(dir: &Path, plot: &Path) {
    println!("k = {K}, w = {W}; expected 2/(w+1) = {:.6}; 0 mod 50: 0.020000", 2.0 / f64::from(W + 1));
    noise();
    speed();
    let pages = pages(dir);
    if pages.is_empty() {
        println!("no web pages in {}", dir.display());
        return;
    }
    densities(&pages);
    frequencies(&pages, plot);
}

fn winnow(robust: bool) -> Winnow {
    Winnow::new(K, W, robust).unwrap()
}

fn random_bytes(len: usize) -> Vec<u8> {
    let mut x = 0x5eed_u64;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
        })
        .collect()
}

fn noise() {
    let bytes = random_bytes(8 << 20);
    let sketch = sketch_of(&winnow(false), None, &bytes);
    let (mut selected, mut all) = (0u64, 0u64);
    each_hash(K, &bytes, |hash| {
        selected += u64::from(hash % 50 == 0);
        all += 1;
    });
    println!(
        "8 MB of noise: winnowing {:.6} (paper 0.019902), 0 mod 50 {:.6} (paper 0.020005)",
        sketch.prints.len() as f64 / sketch.grams as f64,
        selected as f64 / all as f64
    );
}

/// Rolling against working out each k-gram.
fn speed() {
    let bytes = random_bytes(8 << 20);
    let mut sum = 0u64;
    let start = seconds();
    each_hash(K, &bytes, |hash| sum ^= hash);
    let rolling = seconds() - start;
    let start = seconds();
    for gram in bytes.windows(K as usize) {
        let hash = gram
            .iter()
            .fold(0u64, |hash, &byte| hash.wrapping_add(u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        sum ^= hash >> 24;
    }
    let anew = seconds() - start;
    let start = seconds();
    let sketch = sketch_of(&winnow(true), None, &bytes);
    let whole = seconds() - start;
    let rate = |seconds: f64| bytes.len() as f64 / 1e6 / seconds;
    println!(
        "hashing at k = 50: rolling {:.0} MB/s, each anew {:.0} MB/s, {:.1} times slower (paper: more than 4); \
         with winnowing {:.0} MB/s",
        rate(rolling),
        rate(anew),
        anew / rolling,
        rate(whole)
    );
    // The same hashes both ways.
    assert!(sum == 0 && !sketch.prints.is_empty());
}

/// The text of the web pages below `dir`.
fn pages(dir: &Path) -> Vec<(u64, Vec<u8>)> {
    let (mut pages, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = dirs.pop() {
        let mut entries: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries.into_iter().filter(|path| !path.is_symlink()) {
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                let bytes = std::fs::read(&path).unwrap();
                let (len, mut text) = (bytes.len() as u64, Vec::new());
                View::Html
                    .through(&mut Cursor::new(bytes), &mut |piece| text.extend_from_slice(piece))
                    .unwrap();
                pages.push((len, text));
            }
        }
    }
    pages
}

fn densities(pages: &[(u64, Vec<u8>)]) {
    let text: u64 = pages.iter().map(|(_, text)| text.len() as u64).sum();
    println!(
        "{} pages, {} bytes, {text} of text",
        pages.len(),
        pages.iter().map(|(len, _)| len).sum::<u64>()
    );
    for robust in [false, true] {
        let sketches: Vec<WinnowSketch> =
            pages.iter().map(|(_, text)| sketch_of(&winnow(robust), None, text)).collect();
        let (prints, grams) = (
            sketches.iter().map(|sketch| sketch.prints.len()).sum::<usize>(),
            sketches.iter().map(|sketch| sketch.grams).sum::<u64>(),
        );
        let gap = sketches
            .iter()
            .flat_map(|sketch| sketch.prints.windows(2).map(|pair| pair[1].at - pair[0].at))
            .max();
        println!(
            "  {}: {prints} of {grams} hashes, density {:.6} (paper {}), longest gap {}",
            if robust { "robust winnowing" } else { "winnowing" },
            prints as f64 / grams as f64,
            if robust { "0.019829" } else { "0.019855" },
            gap.unwrap_or(0)
        );
    }
    let (mut selected, mut all, mut longest) = (0u64, 0u64, 0u64);
    for (_, text) in pages {
        let mut run = 0;
        each_hash(K, text, |hash| {
            all += 1;
            run += 1;
            if hash % 50 == 0 {
                selected += 1;
                run = 0;
            }
            longest = longest.max(run);
        });
    }
    println!(
        "  0 mod 50: density {:.6} (paper 0.019974), longest run with none {longest} (paper 29983)",
        selected as f64 / all as f64
    );
}

/// Frequency by rank, of all hashes and of those that winnowing keeps: a line of slope about -0.7 in the paper.
fn frequencies(pages: &[(u64, Vec<u8>)], plot: &Path) {
    let (mut all, mut kept, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (_, text) in pages {
        bytes += text.len();
        if bytes > FREQUENCY_BYTES {
            break;
        }
        each_hash(K, text, |hash| all.push(hash));
        kept.extend(sketch_of(&winnow(true), None, text).prints.iter().map(|print| print.hash));
    }
    let mut curves = Vec::new();
    for (name, hashes) in [("all", all), ("winnowed", kept)] {
        let (points, once) = plateaus(hashes);
        let slope = slope(&points);
        println!(
            "  frequency by rank, {name}: slope {slope:.2} (paper -0.7), once only {:.0}% (paper 82%)",
            once * 100.0
        );
        curves.push((name, slope, points));
    }
    std::fs::write(plot, svg(&curves)).unwrap();
    println!("  plot: {}", plot.display());
}

/// Ends of each plateau, as (rank, frequency), and the share of hashes that occur once.
fn plateaus(mut hashes: Vec<u64>) -> (Vec<(f64, f64)>, f64) {
    hashes.sort_unstable();
    let mut counts: Vec<usize> = hashes.chunk_by(|a, b| a == b).map(<[u64]>::len).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let (mut points, mut rank) = (Vec::new(), 1);
    for plateau in counts.chunk_by(|a, b| a == b) {
        points.push((rank as f64, plateau[0] as f64));
        points.push(((rank + plateau.len() - 1) as f64, plateau[0] as f64));
        rank += plateau.len();
    }
    let once = counts.iter().filter(|count| **count == 1).count();
    (points, once as f64 / counts.len() as f64)
}

/// Least squares in logarithms.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(&|p| p.0.log10()), mean(&|p| p.1.log10()));
    let (xy, xx) = (mean(&|p| (p.0.log10() - x) * (p.1.log10() - y)), mean(&|p| (p.0.log10() - x).powi(2)));
    xy / xx
}

/// Name, slope and points.
type Curve = (&'static str, f64, Vec<(f64, f64)>);

fn svg(curves: &[Curve]) -> String {
    let mut text = String::from(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='-60 -20 860 480' font-family='sans-serif' font-size='12'>\n\
         <rect x='-60' y='-20' width='860' height='480' fill='white'/>\n",
    );
    for decade in 0..=8 {
        let (x, y) = (decade * 90, 400 - decade * 80);
        let _ = writeln!(text, "<text x='{x}' y='420'>1e{decade}</text><path d='M{x} 0V400' stroke='#ddd'/>");
        if y >= 0 {
            let _ =
                writeln!(text, "<text x='-30' y='{y}'>1e{decade}</text><path d='M0 {y}H720' stroke='#ddd'/>");
        }
    }
    for (at, (name, slope, points)) in curves.iter().enumerate() {
        let color = ["#06c", "#c50"][at % 2];
        let line: Vec<String> = points
            .iter()
            .map(|(rank, times)| format!("{:.1},{:.1}", rank.log10() * 90.0, 400.0 - times.log10() * 80.0))
            .collect();
        let _ = writeln!(text, "<polyline fill='none' stroke='{color}' points='{}'/>", line.join(" "));
        let _ = writeln!(
            text,
            "<text x='500' y='{}' fill='{color}'>{name}: slope {slope:.2}</text>",
            20 + at * 18
        );
    }
    text + "<text x='340' y='445'>rank</text><text x='-55' y='-5'>frequency</text>\n</svg>\n"
}

fn seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
