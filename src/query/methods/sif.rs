//! sif on directory trees, and its saved results.

use super::files::{open_regular, walk};
use super::saved;
use super::scanned::Tree;
use crate::contents::error::{OverlayError, Result};
use crate::similarity::methods::sif::{Anchors, CollateOptions, Saved, Sif, learn};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes read from each file of the sample that anchors are learned from.
const SAMPLE_BYTES: u64 = 32 << 10;
/// Files in it, spread over the tree.
const SAMPLE_FILES: usize = 256;
/// Distance at which learned anchors start fingerprints: as far as sif's other mode keeps them.
const SPACING_BYTES: usize = 256;

/// Collates the files of a tree read by `sif`: which share how many fingerprints. Temporary files are in `work_dir`.
pub fn collate(tree: &Tree, sif: &Sif, options: &CollateOptions, work_dir: &Path) -> Result<Saved> {
    let (index, named) = tree.index();
    let mut names = |id: &_| {
        let paths = named.get(id).map(|named| &named.paths[..]).unwrap_or_default();
        paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect()
    };
    Ok(Saved::collate(index, sif, &mut names, options, work_dir)?)
}

/// Saves a result; replaces an existing file only if it is a saved result too.
pub fn save(result: &Saved, path: &Path) -> Result<()> {
    let ours = |path: &Path| load(path).is_ok();
    saved::replace(path, ours, |beside| {
        std::fs::write(beside, result.encode()).map_err(|e| OverlayError::io("write", path, e))
    })
}

/// Loads a result of [`save`].
pub fn load(path: &Path) -> Result<Saved> {
    let bytes = std::fs::read(path).map_err(|e| OverlayError::io("read", path, e))?;
    Saved::decode(&bytes).ok_or_else(|| {
        let reason = "is damaged, or not a result saved by sif: read the files again".to_owned();
        OverlayError::Unreadable { path: path.to_owned(), reason }
    })
}

/// Reads the anchors that a file lists, one a line.
pub fn read_anchors(path: &Path) -> Result<Anchors> {
    let text = std::fs::read(path).map_err(|e| OverlayError::io("read", path, e))?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Anchors::new(lines.map(<[u8]>::to_vec).collect())
        .map_err(|reason| OverlayError::Unreadable { path: path.to_owned(), reason })
}

/// Learns anchors from the heads of some of the files below the roots.
pub fn learn_anchors(roots: &[&Path]) -> Result<Anchors> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for root in roots {
        walk(root, &mut Vec::new(), &mut |path, _| {
            paths.push(path.to_owned());
            Ok(())
        })?;
    }
    let step = paths.len().div_ceil(SAMPLE_FILES).max(1);
    let mut samples: Vec<Vec<u8>> = Vec::new();
    // Files that cannot be read are reported when all files are read.
    for file in paths.iter().step_by(step).filter_map(|path| open_regular(path).ok()) {
        let mut head = Vec::new();
        if file.take(SAMPLE_BYTES).read_to_end(&mut head).is_ok() {
            samples.push(head);
        }
    }
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    learn(&samples, SPACING_BYTES).map_err(|reason| {
        let path = roots.first().map(|root| root.to_path_buf()).unwrap_or_default();
        OverlayError::Unreadable { path, reason }
    })
}
