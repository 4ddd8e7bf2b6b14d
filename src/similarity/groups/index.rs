//! The similarity index as input of all-against-all.

use super::input::{Fact, Input};
use crate::similarity::SimilarityError;
use crate::similarity::index::Similarity;
use crate::similarity::rows::{
    CONTAINED, CONTENTS, ContentRow, Sampled, containment_of, posting_hash, posting_number,
};
use std::ops::ControlFlow;

type Result<T> = std::result::Result<T, SimilarityError>;

/// Does not see rows in the buffers: [`Similarity::flush`] comes first. The index may go on changing.
impl Input for Similarity {
    fn contents(&self, visit: &mut dyn FnMut(Fact) -> bool) -> Result<()> {
        Ok(CONTENTS.scan(&*self.db, &[], |row| {
            let (number, ContentRow { recipe, size, counts }) = ContentRow::of_row(row);
            visit(Fact { number, recipe, size, level: counts.level, counts: counts.at })
        })?)
    }

    fn contained(&self, visit: &mut dyn FnMut(u32, u32, u8) -> bool) -> Result<()> {
        Ok(CONTAINED.scan(&*self.db, &[], |row| {
            let (chunk, content, sampled) = containment_of(row);
            visit(chunk, content, sampled.level)
        })?)
    }

    fn bare(&self, visit: &mut dyn FnMut(u32, u32, u8, u32) -> bool) -> Result<()> {
        Ok(CONTAINED.scan(&*self.db, &[], |row| match containment_of(row) {
            (_, _, Sampled { bare: 0, .. }) => true,
            (chunk, content, Sampled { level, bare }) => visit(chunk, content, level, bare),
        })?)
    }

    fn features(&self, visit: &mut dyn FnMut(u64, u32) -> bool) -> Result<()> {
        Ok(self.tables.features.scan(&*self.db, &[], |row| {
            match visit(posting_hash(row), posting_number(row)) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?)
    }
}
