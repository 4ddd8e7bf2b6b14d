//! Which files resemble one: their contents go into a deduplicated set in a temporary directory, which is then asked.
//!
//! `cargo run --example alike -- FILE OTHER...`

use dedupfs::chunk::ChunkParams;
use dedupfs::overlay::{Contents, SimilarOptions};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A line for each of `others` of which at least a quarter is in `file`, or the other way round; the best first.
pub fn report(file: &Path, others: &[PathBuf]) -> Result<String, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    // Smaller chunks than the default find more among small files.
    let contents = Contents::open(dir.path(), ChunkParams::with_average(4096)?)?;
    let mut names: BTreeMap<_, Vec<&Path>> = BTreeMap::new();
    for path in others {
        names.entry(contents.put(File::open(path)?)?).or_default().push(path);
    }
    let asked = contents.put(File::open(file)?)?;
    let mut text = String::from("CONTAINED  RESEMBLES  FILE\n");
    // Files that are the same are one content, which does not resemble itself.
    for path in names.get(&asked).into_iter().flatten() {
        writeln!(text, "{:>9}  {:>10}  {}", "same", "same", path.display())?;
    }
    for (id, shares) in contents.similar(&asked, &SimilarOptions::default())? {
        for path in &names[&id] {
            let (contained, resembles) = (100.0 * shares.containment, 100.0 * shares.resemblance);
            writeln!(text, "{contained:>8.1}%  {resembles:>9.1}%  {}", path.display())?;
        }
    }
    Ok(text)
}

#[expect(clippy::print_stdout, reason = "an example prints")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let file = paths.next().ok_or("expected a file, and those to look among: alike FILE OTHER...")?;
    print!("{}", report(&file, &paths.collect::<Vec<_>>())?);
    Ok(())
}
