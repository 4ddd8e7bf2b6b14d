//! The chunks of the files of a directory tree, for the chunk graph: saved, or only for this process.

use super::files::{feed, open_regular, walk};
use super::saved;
use crate::chunk::tttd::Tttd;
use crate::contents::error::Result;
use crate::similarity::SimilarityError;
use crate::similarity::methods::chunk_graph::{ChunkBuilder, Collection, CollectionWriter, Gathered, gather};
use crate::similarity::methods::{Builder, EachKey};
use std::path::{Path, PathBuf};

/// A tree whose files were chunked.
pub struct Chunked {
    /// Their chunks; names are below the tree's root.
    pub collection: Collection,
    /// Files that could not be read, with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// Cuts every regular file below `root` by `tttd`, as [`crate::query::methods::Tree::read`] reads them. Saves the collection at `save`, where
/// it replaces only another collection, or in a temporary file in `work_dir`.
pub fn collect(
    root: &Path,
    tttd: Tttd,
    save: Option<&Path>,
    work_dir: &Path,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Chunked> {
    let Some(path) = save else {
        let writer = CollectionWriter::nameless(work_dir, tttd.target())?;
        return fill(writer, root, None, tttd, progress);
    };
    let is_collection = |path: &Path| Collection::open(path).is_ok();
    let chunked = saved::replace(path, is_collection, |beside| {
        let writer = CollectionWriter::create(beside, tttd.target())?;
        fill(writer, root, Some(beside), tttd, progress)
    })?;
    Ok(Chunked { collection: Collection::open(path)?, ..chunked })
}

fn fill(
    mut writer: CollectionWriter,
    root: &Path,
    written: Option<&Path>,
    tttd: Tttd,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Chunked> {
    let (mut files, mut bytes, mut unreadable) = (0, 0, Vec::new());
    walk(root, &mut unreadable, &mut |path, below| {
        // Users may save below the directory that they examine.
        if written.is_some_and(|written| written.file_name() == path.file_name()) {
            return Ok(());
        }
        let mut builder = ChunkBuilder::new(tttd);
        feed(&mut open_regular(path)?, path, None, &mut |piece| {
            bytes += piece.len() as u64;
            builder.add(piece);
            Ok(())
        })?;
        writer.add(below.as_os_str(), &builder.finish())?;
        files += 1;
        if progress(files, bytes) { Ok(()) } else { Err(SimilarityError::Interrupted.into()) }
    })?;
    Ok(Chunked { collection: writer.finish()?, unreadable })
}

/// Makes a collection of files that a chunk graph index knows, by name. Saves it as [`collect`] does. `each_key` gives the
/// chunks; sorting takes about `memory` bytes.
pub fn collect_indexed(
    files: &[Gathered<'_>],
    target: u32,
    each_key: EachKey<'_>,
    save: Option<&Path>,
    memory: usize,
    work_dir: &Path,
) -> Result<Collection> {
    let Some(path) = save else {
        let writer = CollectionWriter::nameless(work_dir, target)?;
        return Ok(gather(writer, files, each_key, memory, work_dir)?);
    };
    let is_collection = |path: &Path| Collection::open(path).is_ok();
    saved::replace(path, is_collection, |beside| {
        let writer = CollectionWriter::create(beside, target)?;
        Ok(gather(writer, files, each_key, memory, work_dir)?)
    })?;
    Ok(Collection::open(path)?)
}
