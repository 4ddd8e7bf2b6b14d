//! Questions to the indexes of published methods.

use super::Queries;
use super::methods::{FilesAlike, LikeGroups, PairsWithPaths};
use super::with_paths::{self, Asked, WithPaths};
use crate::backing::plain::Plain;
use crate::contents::error::{OverlayError, Result};
use crate::id::{ChunkId, RecipeId};
use crate::indexes::method_indexes::{ASKED_MAX, MethodIndexes, read_all};
use crate::recipe::{ChunkRef, RecipeHasher};
use crate::similarity::exact::Source;
use crate::similarity::methods::winnow::{Base, PairOptions, Query, Winnow};
use crate::similarity::methods::{Builder, Chosen, Index, Method, PairsAsked};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A content in a method index.
#[derive(Clone, Debug)]
pub struct IndexedContent {
    /// Its number in the index.
    pub number: u32,
    /// Its content.
    pub id: RecipeId,
    /// How many keys it has.
    pub keys: u64,
    /// Encoded.
    pub head: Vec<u8>,
    /// Its names and length.
    pub named: WithPaths,
}

/// A file or directory that a request names.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileRef {
    /// Below the root, or with `outside` an absolute path.
    #[serde(with = "super::text")]
    pub path: PathBuf,
    /// Whether it is outside the overlay.
    pub outside: bool,
}

impl Queries {
    /// Returns the index of a method. If the user chose parameters, the index must have been made with those.
    fn method_index(&self, method: &Chosen) -> Result<Option<(&MethodIndexes, Index)>> {
        let Some(kept) = &self.indexes.method_indexes else { return Ok(None) };
        let index = kept.indexes.iter().find(|index| index.method().name() == method.name());
        let Some(index) = index else { return Ok(None) };
        let asked = if method.is_bare() { index.method().clone() } else { method.any() };
        Ok(Some((kept, index.asked_by(asked)?)))
    }

    /// Returns the description of a method as its index is asked; `None` if it has no index.
    pub fn method_description(&self, method: &Chosen) -> Result<Option<String>> {
        Ok(self.method_index(method)?.map(|(_, index)| index.method().description()))
    }

    /// Returns files of this overlay that are like the queried one, by a method index; `None` if `method` has none.
    /// Leaves out the file itself. `query` sets a query for the index of winnowing; then the sketch of the file is held in
    /// memory.
    pub fn method_similar(
        &self,
        method: &Chosen,
        asked: &FileRef,
        query: Option<&Query>,
        score_min: f64,
        limit: usize,
    ) -> Result<Option<FilesAlike>> {
        let Some((kept, index)) = self.method_index(method)? else { return Ok(None) };
        let FileRef { path, outside } = asked;
        let source = self.source_at(asked)?;
        let failed = |e| OverlayError::io("read", path, e);
        let mut sketches = kept.sketches(&[index.method().clone()], &*source, &mut |_| {})?;
        let Some(sketch) = sketches.pop() else { return Ok(None) };
        let mut recipe = RecipeHasher::default();
        let mut add =
            |bytes: &[u8]| recipe.add(ChunkRef { id: ChunkId::of(bytes), len: bytes.len() as u32 }, 1);
        self.contents.each_chunk(&*source, &mut add).map_err(failed)?;
        let likely = match query {
            None => index.query(&sketch, 0.0, usize::MAX)?,
            Some(query) => {
                let mut builder = query.winnow().builder(None);
                read_all(&*source, &mut |bytes| {
                    builder.add(bytes);
                    Ok(())
                })?;
                query.ask(&index, &builder.finish(), 0.0)?
            }
        };
        let asked = Asked { name: path.file_name(), id: recipe.finish(), sketch };
        let mut finder = self.catalog.finder(&self.tree.backing);
        let mut names = |id: &RecipeId| self.named(id, Path::new(""), &mut finder);
        let found = with_paths::matches(&index, asked, likely, &mut names, score_min, limit)?;
        let is_itself = |found: &Path| !outside && found == path;
        Ok(Some(with_paths::without(found, is_itself, limit)))
    }

    /// Returns the parameters of the winnowing index, and the fingerprints of the base files with these parameters; `None` if
    /// there is no such index.
    pub fn winnow_base(&self, files: &[FileRef]) -> Result<Option<(Winnow, Base)>> {
        let Some(winnow) = self.indexes.method_indexes.as_ref().and_then(MethodIndexes::winnow) else {
            return Ok(None);
        };
        let mut base = Base::default();
        for file in files {
            let mut builder = winnow.builder(None);
            read_all(&*self.source_at(file)?, &mut |bytes| {
                builder.add(bytes);
                Ok(())
            })?;
            base.add(&builder.finish());
        }
        Ok(Some((winnow, base)))
    }

    fn source_at(&self, file: &FileRef) -> Result<Box<dyn Source>> {
        match file.outside {
            true => Ok(Box::new(Plain::open(&file.path)?)),
            false => Ok(self.tree.source(&file.path)?.0),
        }
    }

    /// Returns files at or below `below` with those there that are like them, by a method index; `None` if `method` has
    /// none. Passages in `base` count nothing. Holds all their paths, and all pairs that are alike.
    pub fn method_groups(
        &self,
        method: &Chosen,
        below: &Path,
        base: &Base,
        score_min: f64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<LikeGroups>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        let asked = PairsAsked { score_min, without: base.hashes().clone(), ..PairsAsked::default() };
        with_paths::groups(&index, &self.all_named(below)?, &asked, progress).map(Some)
    }

    /// Returns pairs of files at or below `below` by the winnowing index, those with most fingerprints in common first;
    /// `None` if there is no such index.
    pub fn method_pairs(
        &self,
        method: &Chosen,
        below: &Path,
        base: &Base,
        options: &PairOptions,
    ) -> Result<Option<PairsWithPaths>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        with_paths::pairs(&index, &self.all_named(below)?, base, options).map(Some)
    }

    /// Returns contents in a method index that have a file at or below `below`, from a number on, until they have `most`
    /// names or more, and the number for the next call; `None` if the method has no index.
    pub fn method_contents(
        &self,
        method: &Chosen,
        below: &Path,
        from: u32,
        most: usize,
    ) -> Result<Option<(Vec<IndexedContent>, Option<u32>)>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        let mut finder = self.catalog.finder(&self.tree.backing);
        let (mut found, mut names, mut next, mut failed) = (Vec::new(), 0, None, Ok(()));
        index.contents(from, &mut |number, id, keys, head| {
            if names >= most {
                next = Some(number);
                return false;
            }
            names += 1;
            failed = self.named(&id, below, &mut finder).map(|named| {
                found.extend(named.map(|named| {
                    names += named.paths.len();
                    IndexedContent { number, id, keys, head: head.to_vec(), named }
                }));
            });
            failed.is_ok()
        })?;
        failed?;
        Ok(Some((found, next)))
    }

    /// Returns the keys of a method index from one on, packed ([`Index::packed_keys`]), and the key for the next call; `None`
    /// if the method has no index.
    pub fn method_keys(
        &self,
        method: &Chosen,
        from: u64,
        most: usize,
    ) -> Result<Option<(Vec<u8>, Option<u64>)>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        Ok(Some(index.packed_keys(from, most)?))
    }

    /// Returns every content that has a file at or below `below`.
    fn all_named(&self, below: &Path) -> Result<BTreeMap<RecipeId, WithPaths>> {
        let mut finder = self.catalog.finder(&self.tree.backing);
        let (mut named, mut failed) = (BTreeMap::new(), Ok(()));
        self.catalog.each_content(&mut |id, _| {
            failed = self.named(id, below, &mut finder).map(|found| {
                found.into_iter().for_each(|found| drop(named.insert(*id, found)));
            });
            failed.is_ok()
        })?;
        failed?;
        Ok(named)
    }

    /// Returns how many files the index of a method lacks; `None` if it has no index. Reads the list of all contents.
    pub fn not_kept(&self, method: &Chosen) -> Result<Option<u64>> {
        let Some((_, index)) = self.method_index(method)? else { return Ok(None) };
        let mut not = 0;
        let mut asked: (Vec<RecipeId>, Vec<u64>) = Default::default();
        let mut look = |(ids, files): &mut (Vec<RecipeId>, Vec<u64>)| -> Result<()> {
            index.each_missing(ids, &mut |at| not += files[at])?;
            ids.clear();
            files.clear();
            Ok(())
        };
        let mut failed = Ok(());
        self.catalog.each_content(&mut |id, files| {
            asked.0.push(*id);
            asked.1.push(files.len() as u64);
            if asked.0.len() >= ASKED_MAX {
                failed = look(&mut asked);
            }
            failed.is_ok()
        })?;
        failed?;
        look(&mut asked)?;
        Ok(Some(not))
    }

    /// Returns the paths of the files with a content, those at or below `below`; `None` if there are none.
    fn named(
        &self,
        id: &RecipeId,
        below: &Path,
        finder: &mut crate::catalog::Finder<'_>,
    ) -> Result<Option<WithPaths>> {
        let mut named = WithPaths::default();
        for file in self.catalog.holders(id)? {
            named.size = self.catalog.file(file)?.map_or(named.size, |row| row.size);
            finder.paths_of(file, &mut named.paths)?;
        }
        named.paths.retain(|path| path.starts_with(below));
        named.paths.sort();
        Ok((!named.paths.is_empty()).then_some(named))
    }
}
