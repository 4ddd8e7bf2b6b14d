//! How a file is cut, and what stands for each piece when similar files are looked for. No store, no mount.
//!
//! `cargo run --example chunk -- FILE`

use dedupfs::chunk::ChunkParams;
use dedupfs::id::ChunkId;
use dedupfs::similarity::Sketch;
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write;

/// A line for each chunk, and how much of the file is there only once.
pub fn report(bytes: &[u8]) -> Result<String, Box<dyn Error>> {
    let mut text = String::from("    OFFSET  LENGTH  FEATURES  CHUNK\n");
    let (mut seen, mut offset, mut unique) = (HashSet::new(), 0, 0);
    for len in ChunkParams::default().cut(bytes, true) {
        let chunk = &bytes[offset..offset + len as usize];
        let (id, sketch) = (ChunkId::of(chunk), Sketch::of_chunk(chunk));
        let is_new = seen.insert(id);
        let again = if is_new { "" } else { " again" };
        writeln!(text, "{offset:10}  {len:6}  {:8}  {id}{again}", sketch.len())?;
        unique += if is_new { chunk.len() } else { 0 };
        offset += chunk.len();
    }
    writeln!(text, "{offset} bytes, {unique} of them in {} chunks", seen.len())?;
    Ok(text)
}

#[expect(clippy::print_stdout, reason = "an example prints")]
fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("expected the file to be cut: chunk FILE")?;
    print!("{}", report(&std::fs::read(path)?)?);
    Ok(())
}
