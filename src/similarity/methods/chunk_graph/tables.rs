//! Tables for a spreadsheet: the reports of the paper's Figures 5 and 6, and the pairs.
//!
//! A row repeats the data of its set or cluster, so that rows can be sorted and filtered. Names begin with `./`, as in
//! the paper, so no name starts with a sign that a spreadsheet takes for a formula.

use super::{Analysis, Cluster, Collection, GraphError};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// A. Writes identical files: set, number of files, bytes of all but one, bytes of one, name.
pub fn write_identical(
    analysis: &Analysis,
    collection: &Collection,
    out: impl Write,
) -> Result<(), GraphError> {
    let mut table = csv::Writer::from_writer(out);
    table.write_record(["set", "files", "overhead_bytes", "file_bytes", "name"])?;
    let names = collection.names(&mut analysis.identical.iter().flat_map(|set| set.files.iter().copied()))?;
    for (at, set) in analysis.identical.iter().enumerate() {
        let of_set = [at as u64 + 1, set.files.len() as u64, set.overhead_bytes(), set.size];
        for file in &set.files {
            row(&mut table, of_set.iter().map(u64::to_string), [name(&names, *file)])?;
        }
    }
    table.flush().map_err(csv::Error::from)?;
    Ok(())
}

/// B. Writes clusters: cluster, bytes and number of files, links, type, similarity in percent, bytes of the file, name.
pub fn write_clusters(
    analysis: &Analysis,
    collection: &Collection,
    out: impl Write,
) -> Result<(), GraphError> {
    let mut table = csv::Writer::from_writer(out);
    let head = ["cluster", "total_bytes", "files", "links", "type", "similar_percent", "file_bytes", "name"];
    table.write_record(head)?;
    let names = collection.names(&mut in_clusters(analysis))?;
    for (at, cluster) in analysis.clusters.iter().enumerate() {
        let Cluster { files, bytes, links, similarity } = cluster;
        for &file in files {
            let cells = [
                (at + 1).to_string(),
                bytes.to_string(),
                files.len().to_string(),
                links.to_string(),
                cluster.shape().name().to_owned(),
                format!("{:.1}", 100.0 * similarity),
                analysis.files[file as usize].size.to_string(),
            ];
            row(&mut table, cells.into_iter(), [name(&names, file)])?;
        }
    }
    table.flush().map_err(csv::Error::from)?;
    Ok(())
}

/// C. Writes pairs: cluster, least bytes in common, those in percent of each file's payload, bytes of each, names.
pub fn write_pairs(analysis: &Analysis, collection: &Collection, out: impl Write) -> Result<(), GraphError> {
    let mut table = csv::Writer::from_writer(out);
    let head = ["cluster", "common_bytes", "a_percent", "b_percent", "a_bytes", "b_bytes", "a", "b"];
    table.write_record(head)?;
    let names = collection.names(&mut in_clusters(analysis))?;
    let clusters = analysis.clusters.iter().enumerate();
    let of_file: HashMap<u32, usize> =
        clusters.flat_map(|(at, cluster)| cluster.files.iter().map(move |file| (*file, at + 1))).collect();
    let mut failed = None;
    analysis.each_link(&mut |link| {
        let [a, b] = [link.a, link.b].map(|file| analysis.files[file as usize]);
        let percent = |payload: u64| format!("{:.1}", 100.0 * link.bytes as f64 / payload.max(1) as f64);
        let cells = [
            of_file.get(&link.a).copied().unwrap_or_default().to_string(),
            link.bytes.to_string(),
            percent(a.payload),
            percent(b.payload),
            a.size.to_string(),
            b.size.to_string(),
        ];
        if failed.is_none() {
            failed = row(&mut table, cells.into_iter(), [name(&names, link.a), name(&names, link.b)]).err();
        }
        Ok(())
    })?;
    failed.map_or(Ok(()), Err)?;
    table.flush().map_err(csv::Error::from)?;
    Ok(())
}

/// D. Writes the chunks: length, hash, name of the file (step 1 of the paper). A chunk that a file has twice is there twice; the
/// order within a file is that of hashes.
pub fn write_chunks(collection: &Collection, out: impl Write) -> Result<(), GraphError> {
    let mut table = csv::Writer::from_writer(out);
    table.write_record(["bytes", "hash", "name"])?;
    collection.each(&mut |file, name_of, list| {
        let names = HashMap::from([(file, name_of.to_owned())]);
        for chunk in list.chunks() {
            let cells = [chunk.len.to_string(), format!("{:016x}", chunk.hash)];
            row(&mut table, cells.into_iter(), [name(&names, file)])?;
        }
        Ok(())
    })?;
    table.flush().map_err(csv::Error::from)?;
    Ok(())
}

fn in_clusters(analysis: &Analysis) -> impl Iterator<Item = u32> + '_ {
    analysis.clusters.iter().flat_map(|cluster| cluster.files.iter().copied())
}

fn name(names: &HashMap<u32, OsString>, file: u32) -> Vec<u8> {
    let name = names.get(&file).map(|name| name.as_bytes()).unwrap_or_default();
    if name.starts_with(b"/") || name.starts_with(b"./") { name.to_vec() } else { [b"./", name].concat() }
}

fn row<const N: usize>(
    table: &mut csv::Writer<impl Write>,
    cells: impl Iterator<Item = String>,
    names: [Vec<u8>; N],
) -> Result<(), GraphError> {
    Ok(table.write_record(cells.map(String::into_bytes).chain(names))?)
}
