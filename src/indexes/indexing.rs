//! How much the similarity index has of a file: `similarity` in `config.toml`, by the names of files.
//!
//! Invariants:
//! - A content is in the index as long as one of its files asks for it: the file that asks for most decides.
//! - A chunk keeps the sketch that it came with. Another setting holds for chunks that the index does not know yet.
//! - A scan of everything adds the contents that are missing and removes those that no file asks for any more.

use crate::catalog::{Finder, NAMED_DIRS_MAX};
use crate::contents::Indexing;
use crate::contents::error::Result;
use crate::id::{FileId, RecipeId};
use crate::indexes::Indexes;
use crate::similarity::Similarity;
use crate::tree::Policies;
use crate::tree::inode::Inode;

/// Contents examined before those that no file asks for are removed.
const CONTENTS_AT_ONCE: usize = 1 << 12;

impl Indexes {
    /// Returns how much of a file with this many `names` the index is to have.
    pub(crate) fn indexing_of(&self, inode: &Inode, names: u64, finder: &mut Finder<'_>) -> Result<Indexing> {
        let policies = self.tree.policies();
        if policies.index_all() {
            return Ok(Indexing::Full);
        }
        let policy = self.tree.policy_of(inode, names, finder)?;
        Ok(policy.unwrap_or(policies.fallback()).similarity)
    }

    /// Returns how many files the index does not have, if a rule leaves out some. As [`Indexes::totals`] otherwise.
    pub fn not_indexed(&self) -> Result<u64> {
        match self.tree.policies().leave_out() {
            true => Ok(self.totals()?.not_indexed),
            false => Ok(0),
        }
    }

    /// Removes contents from the index that no file asks for, and their views if no file asks for all of it. One look-up for
    /// each content and its files, if a rule leaves out some.
    pub(crate) fn leave_out(&self) -> Result<()> {
        let policies = self.tree.policies();
        if policies.index_all() {
            return Ok(());
        }
        self.leave_out_of(&self.contents.similarity, &policies, Indexing::Chunks)?;
        self.views().map_or(Ok(()), |views| self.leave_out_of(views.index(), &policies, Indexing::Full))
    }

    /// Removes contents from `index` if no file asks for at least `least`.
    fn leave_out_of(&self, index: &Similarity, policies: &Policies, least: Indexing) -> Result<()> {
        let (mut from, mut finder) = (0, self.catalog.finder(self.tree.backing()));
        loop {
            let mut contents = Vec::new();
            index.each_content_from(from, &mut |number, recipe| {
                contents.push((number, *recipe));
                contents.len() < CONTENTS_AT_ONCE
            })?;
            let Some((last, _)) = contents.last().copied() else { return Ok(()) };
            for (_, recipe) in contents {
                finder.shed(NAMED_DIRS_MAX);
                let holders = self.catalog.holders(&recipe)?;
                if !self.ask_for(&holders, policies, least, &mut finder)? {
                    self.remove_unless_changed(index, &recipe, &holders)?;
                }
            }
            let Some(next) = last.checked_add(1) else { return Ok(()) };
            from = next;
        }
    }

    /// Returns whether one of these files asks for at least `least`. A file that is not found may ask for anything.
    fn ask_for(
        &self,
        holders: &[FileId],
        policies: &Policies,
        least: Indexing,
        finder: &mut Finder<'_>,
    ) -> Result<bool> {
        for holder in holders {
            let mut paths = Vec::new();
            finder.paths_of(*holder, &mut paths)?;
            let asked = paths.iter().map(|path| policies.of(path).similarity).min();
            if asked.is_none_or(|asked| asked >= least) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes a content if it has only the files that were asked: another may have come since.
    fn remove_unless_changed(&self, index: &Similarity, id: &RecipeId, holders: &[FileId]) -> Result<()> {
        let _alone = self.forgetting.removing();
        match self.catalog.holders(id)? == holders {
            true => Ok(index.remove_content(id)?),
            false => Ok(()),
        }
    }
}
