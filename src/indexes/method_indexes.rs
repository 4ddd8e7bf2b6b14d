//! Saved indexes of published methods (`methods` in `config.toml`), updated with the files like the default
//! index.
//!
//! A content is sketched when it is committed or met by a scan, in one pass for all methods that do not know
//! it, and removed when its last file is gone.
//!
//! Invariants: an index is a hint, and can be rebuilt from the files. A sketch that fails is a log message,
//! and stops no commit. However long a file is, its sketches stay within their memory: larger ones are sorted
//! on disk. Removing a content holds the `forgetting` lock exclusively, so that none can be added meanwhile,
//! and a commit adds its file to the catalog before the content.

use crate::contents::error::{OverlayError, Result};
use crate::db::Db;
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use crate::similarity::exact::Source;
use crate::similarity::methods::winnow::Winnow;
use crate::similarity::methods::{AnyMethod, AnySketch, Chosen, Index, IndexOptions, Sketcher, names};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

const WINDOW_BYTES: usize = 256 << 10;
/// Longer contents are sketched one at a time.
pub(crate) const TOGETHER_BYTES_MAX: u64 = 1 << 20;
/// Contents that one call looks up in an index.
pub(crate) const ASKED_MAX: usize = 1 << 14;

/// Limits of the method indexes.
#[derive(Clone, Debug)]
pub struct MethodIndexOptions {
    /// About how many bytes of memory additions may take before they are merged, in all indexes together.
    pub buffer_bytes: usize,
    /// About how many bytes of memory the sketches of one content may take.
    pub sketch_bytes: usize,
    /// Directory for temporary files.
    pub work_dir: PathBuf,
}

/// The method indexes.
pub struct MethodIndexes {
    pub(crate) indexes: Vec<Index>,
    /// How each was chosen.
    chosen: Vec<Chosen>,
    sketch_bytes: usize,
    work_dir: PathBuf,
    is_new: bool,
    pub(crate) forgetting: RwLock<()>,
    /// Held while a long content is sketched, so that only one at a time takes that memory.
    pub(crate) sketching: Mutex<()>,
}

impl MethodIndexes {
    /// Opens the indexes of the `wanted` methods in `db`, and removes those of others. Rebuilds an index that another version
    /// or other parameters made. With `read_only` it changes nothing, and opens only indexes that exist.
    pub fn open(
        db: &Arc<dyn Db>,
        wanted: &[Chosen],
        options: MethodIndexOptions,
        read_only: bool,
    ) -> std::result::Result<MethodIndexes, SimilarityError> {
        let (mut indexes, mut chosen, mut is_new) = (Vec::new(), Vec::new(), false);
        if !read_only {
            Index::remove_outdated(&**db)?;
        }
        let buffer_bytes = options.buffer_bytes / wanted.len().max(1);
        for name in names() {
            let wanted = wanted.iter().find(|wanted| wanted.name() == name);
            let method = wanted.map(Chosen::any);
            let is_there = method.as_ref().map_or(Ok(false), |method| Index::is_there(&**db, &**method))?;
            if !read_only && !is_there {
                Index::remove(&**db, name)?;
                is_new |= wanted.is_some();
            }
            if let Some((method, wanted)) = method.zip(wanted).filter(|_| is_there || !read_only) {
                let options = IndexOptions { buffer_bytes, ..IndexOptions::default() };
                indexes.push(Index::open(db.clone(), method, options)?);
                chosen.push(wanted.clone());
            }
        }
        let MethodIndexOptions { sketch_bytes, work_dir, .. } = options;
        Ok(MethodIndexes {
            indexes,
            chosen,
            sketch_bytes,
            work_dir,
            is_new,
            forgetting: RwLock::default(),
            sketching: Mutex::default(),
        })
    }

    /// Returns whether an index was made just now, so that a scan has to fill it.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The indexes.
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }

    /// Returns how the method of that name was chosen, if it has an index.
    pub fn chosen(&self, name: &str) -> Option<&Chosen> {
        self.chosen.iter().find(|chosen| chosen.name() == name)
    }

    /// Returns the parameters of winnowing, if it has an index.
    pub(crate) fn winnow(&self) -> Option<Winnow> {
        self.chosen.iter().find_map(Chosen::of)
    }

    pub(crate) fn without(&self, id: &RecipeId) -> Result<Vec<&Index>> {
        let _adding = self.forgetting.read().unwrap_or_else(PoisonError::into_inner);
        let mut without = Vec::new();
        for index in &self.indexes {
            if !index.has(id)? {
                without.push(index);
            }
        }
        Ok(without)
    }
}

/// Passes all bytes of a content to `take`, some at a time.
pub(crate) fn read_all(source: &dyn Source, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let failed = |e| OverlayError::io("read", "a content", e);
    let (mut window, mut offset) = (vec![0; WINDOW_BYTES], 0);
    while offset < source.len() {
        let len = source.read_at(offset, &mut window).map_err(failed)?;
        if len == 0 {
            let short = io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter meanwhile");
            return Err(failed(short));
        }
        take(&window[..len])?;
        offset += len as u64;
    }
    Ok(())
}

impl MethodIndexes {
    /// Returns a sketch without a name for each method, in one pass. `read` gets the bytes of each step.
    pub(crate) fn sketches(
        &self,
        methods: &[Arc<dyn AnyMethod>],
        source: &dyn Source,
        read: &mut dyn FnMut(u64),
    ) -> Result<Vec<AnySketch>> {
        let memory = self.sketch_bytes / methods.len().max(1);
        let start = |method: &Arc<dyn AnyMethod>| Sketcher::new(method.clone(), None, &self.work_dir, memory);
        let mut sketchers: Vec<Sketcher> = methods.iter().map(start).collect();
        read_all(source, &mut |bytes| {
            for sketcher in &mut sketchers {
                sketcher.add(bytes)?;
            }
            read(bytes.len() as u64);
            Ok(())
        })?;
        sketchers.into_iter().map(|sketcher| Ok(sketcher.finish()?)).collect()
    }
}
