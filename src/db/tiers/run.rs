//! One run of a table, as far as it is in memory, and the keys of its blocks.

use crate::db::filter::Filter;

#[derive(Debug)]
pub(super) struct Run {
    pub(super) number: u32,
    pub(super) rows: u64,
    /// `None` if memory does not suffice.
    pub(super) filter: Option<Filter>,
}

impl Run {
    pub(super) fn may_contain(&self, key: &[u8]) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(key))
    }
}

pub(super) fn run_key(part: u8, number: u32, rest: &[u8]) -> Vec<u8> {
    [&[part], &number.to_be_bytes()[..], rest].concat()
}

/// Returns the index of the first row that is not below `key`.
pub(super) fn lower_bound(rows: &[u8], row_len: usize, key: &[u8]) -> usize {
    let (mut low, mut high) = (0, rows.len() / row_len);
    while low < high {
        let middle = (low + high) / 2;
        if &rows[middle * row_len..(middle + 1) * row_len] < key { low = middle + 1 } else { high = middle }
    }
    low
}
