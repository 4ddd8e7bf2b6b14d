//! Templates: passages that similarity ignores, stored as plain files in the state directory.
//!
//! Invariants: nothing stored depends on them. They are read for each query, so a template counts as soon as
//! its file exists; chunks and sketches do not change.

use super::Overlay;
use super::similar::Plain;
use crate::contents::collection::COMPARE_MEMORY;
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use crate::similarity::exact::Source;
use crate::similarity::{Boilerplate, Frequent};
use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of templates in the state directory.
pub const TEMPLATES_DIR: &str = "templates";
/// Suffix of their file names.
pub const TEMPLATE_SUFFIX: &str = ".template";
/// Prefix of the names of learned templates.
pub const LEARNED: &str = "learned-";
/// No template is shorter: a match of fewer bytes says nothing either way.
pub const TEMPLATE_BYTES_MIN: u64 = 64;
/// Limit of all templates together: they are searched in every file that is compared.
pub const TEMPLATES_BYTES_MAX: u64 = 1 << 20;

/// Features examined to learn.
const FREQUENT_MAX: usize = 8192;
/// Contents compared for each of them.
const EXAMPLES: usize = 32;
/// Longer contents are no examples.
const EXAMPLE_BYTES_MAX: u64 = 4 << 20;
/// Examples kept in memory.
const EXAMPLES_BYTES_MAX: usize = 128 << 20;
/// Passages learned at a time.
const LEARNED_MAX: usize = 256;

/// A passage that does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Name of its file without the suffix.
    pub name: String,
    /// The passage.
    pub bytes: Vec<u8>,
}

impl Template {
    /// Returns whether it was learned; else a user marked it.
    pub fn is_learned(&self) -> bool {
        self.name.starts_with(LEARNED)
    }
}

/// A passage that many contents have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// About how many contents have it.
    pub contents: u64,
}

impl Overlay {
    /// Sets the directory of templates. Without it there are none.
    pub fn keep_templates_in(&self, dir: PathBuf) {
        let _ = self.templates_dir.set(dir);
    }

    /// Returns the templates, by name. A file that is no template, or that cannot be read, is an error.
    pub fn templates(&self) -> Result<Vec<Template>> {
        self.templates_dir.get().map_or(Ok(Vec::new()), |dir| read(dir))
    }

    /// Returns the boilerplate, which does not count in similarity.
    pub(super) fn boilerplate(&self) -> Result<Boilerplate> {
        let templates = self.templates()?;
        Ok(Boilerplate::new(templates.iter().map(|template| &template.bytes[..])))
    }

    /// Returns the passages of [`TEMPLATE_BYTES_MIN`] bytes or more that at least `contents_min` contents have, as far as the
    /// index shows them, without those in templates. The most frequent come first.
    ///
    /// Compares some contents with each of the most frequent features around its place. So passages are exact, and their
    /// frequency is that in the compared contents. `progress` gets features done and all.
    pub fn learn(
        &self,
        contents_min: u64,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Vec<Passage>> {
        let frequent = self.contents.similarity.frequent(contents_min, FREQUENT_MAX, EXAMPLES)?;
        let known = self.boilerplate()?;
        let mut learned: Vec<Passage> = Vec::new();
        let mut new = Boilerplate::default();
        let mut examples = Examples { overlay: self, read: HashMap::new(), bytes: 0 };
        for (done, feature) in frequent.iter().enumerate() {
            if !progress(done as u64, frequent.len() as u64) || learned.len() == LEARNED_MAX {
                break;
            }
            if feature.is_of(&known) || feature.is_of(&new) {
                continue;
            }
            let Some(passage) = examples.passage(feature, contents_min)? else { continue };
            // A passage that only adds a little to a known one is not new.
            let has = |all: &Boilerplate| all.patterns().covered(&&passage.bytes[..], COMPARE_MEMORY);
            let covered = has(&known).and_then(|by_known| Ok(by_known.union(&has(&new)?)));
            let covered = covered.map_err(|e| OverlayError::io("compare", "passages", e))?;
            if passage.bytes.len() as u64 - covered.bytes() >= TEMPLATE_BYTES_MIN {
                learned.push(passage);
                new = Boilerplate::new(learned.iter().map(|passage| &passage.bytes[..]));
            }
        }
        Ok(learned)
    }
}

/// Contents read to learn from.
struct Examples<'a> {
    overlay: &'a Overlay,
    read: HashMap<RecipeId, Arc<Vec<u8>>>,
    bytes: usize,
}

impl Examples<'_> {
    fn passage(&mut self, feature: &Frequent, contents_min: u64) -> Result<Option<Passage>> {
        let mut files = Vec::new();
        for recipe in &feature.examples {
            files.extend(self.content(recipe)?);
        }
        let files: Vec<&[u8]> = files.iter().map(|bytes| &bytes[..]).collect();
        // The same part of the examples must have the passage as of all contents that have the feature.
        let part = |all: u64| (contents_min * all).div_ceil(feature.contents.max(1)) as usize;
        let found = feature.passage(&files, part(files.len() as u64));
        let found = found.filter(|(bytes, _)| bytes.len() as u64 >= TEMPLATE_BYTES_MIN);
        Ok(found.map(|(bytes, count)| Passage {
            bytes,
            contents: feature.contents * count as u64 / files.len().max(1) as u64,
        }))
    }

    /// Returns a content; `None` if it is long, has no file any more, or cannot be read.
    fn content(&mut self, recipe: &RecipeId) -> Result<Option<Arc<Vec<u8>>>> {
        if let Some(bytes) = self.read.get(recipe) {
            return Ok(Some(bytes.clone()));
        }
        let overlay = self.overlay;
        let mut finder = overlay.catalog.finder(&overlay.backing);
        let Ok(source) = overlay.source_of(recipe, &mut finder) else { return Ok(None) };
        if source.len() > EXAMPLE_BYTES_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; source.len() as usize];
        let mut at = 0;
        while at < bytes.len() {
            match source.read_at(at as u64, &mut bytes[at..]) {
                Ok(len) if len > 0 => at += len,
                _ => return Ok(None),
            }
        }
        if self.bytes + at > EXAMPLES_BYTES_MAX {
            self.read.clear();
            self.bytes = 0;
        }
        self.bytes += at;
        let bytes = Arc::new(bytes);
        self.read.insert(*recipe, bytes.clone());
        Ok(Some(bytes))
    }
}

/// Returns whether a template can have this name.
pub fn is_template_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=64).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with(['.', '-'])
}

fn read(dir: &Path) -> Result<Vec<Template>> {
    let io = |path: &Path, e: Error| OverlayError::io("read the template", path, e);
    let entries = match dir.read_dir() {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(OverlayError::io("read the directory", dir, e)),
    };
    let (mut templates, mut bytes) = (Vec::new(), 0);
    for entry in entries {
        let path = entry.map_err(|e| OverlayError::io("read the directory", dir, e))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.and_then(|name| name.strip_suffix(TEMPLATE_SUFFIX)) else { continue };
        // Files that are too long are not read.
        let stat = path.metadata().map_err(|e| io(&path, e))?;
        bytes += stat.len();
        if !stat.is_file() || stat.len() < TEMPLATE_BYTES_MIN || bytes > TEMPLATES_BYTES_MAX {
            let expected = format!(
                "expected a file of {TEMPLATE_BYTES_MIN} bytes or more, and not more than {TEMPLATES_BYTES_MAX} in all \
                 templates together; remove it with `dedupctl template remove {name}`"
            );
            return Err(io(&path, Error::new(ErrorKind::InvalidData, expected)));
        }
        let name = name.to_owned();
        let bytes = std::fs::read(&path).map_err(|e| io(&path, e))?;
        templates.push(Template { name, bytes });
    }
    templates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(templates)
}

impl Overlay {
    /// Length in bytes of the regular file at `path`, below the root or `outside`.
    pub fn size_of(&self, path: &Path, outside: bool) -> Result<u64> {
        Ok(self.any_source(path, outside)?.len())
    }

    /// A part of the regular file at `path`, below the root or `outside`.
    pub fn read_part(&self, path: &Path, outside: bool, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let io = |e: Error| OverlayError::io("read", path, e);
        let source = self.any_source(path, outside)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut at = 0;
        while at < bytes.len() {
            match source.read_at(range.start + at as u64, &mut bytes[at..]) {
                Ok(0) => return Err(io(ErrorKind::UnexpectedEof.into())),
                Ok(len) => at += len,
                Err(e) => return Err(io(e)),
            }
        }
        Ok(bytes)
    }

    fn any_source(&self, path: &Path, outside: bool) -> Result<Box<dyn Source>> {
        match outside {
            true => Ok(Box::new(Plain::open(path)?)),
            false => Ok(self.source(path)?.0),
        }
    }
}
