//! Blocked values: sorted runs of fixed-length rows, many to a database entry.
//!
//! One database entry per small row costs about a kilobyte of memory and a quarter of one on disk; here
//! an entry holds some hundred rows. The entries of a table are the leaves of a B-tree whose inner nodes
//! are the database's own ordering: an entry's key is the smallest row key that may stand in it, the
//! first entry's key is empty, and an entry that grows over [`BLOCK_BYTES_MAX`] is split.
//!
//! A row is a byte string of `row_len` bytes; its first `key_len` bytes are its key, unique in the table
//! and compared bytewise (so numbers go big-endian). Writing is by sorted bulk: [`Runs::merge`] rewrites
//! each touched block once. Finding a row is one database look-up and a binary search.

use super::{BATCH_CHANGES, Batch, Db, DbError, DbResult, Table};

/// Sixteen blocks of this size fit a quarter of a segment, the limit up to which sled keeps a tree node in
/// its log instead of in its own file.
const BLOCK_BYTES_MAX: usize = 4096;
/// A scan walks past this many blocks before it looks up the next one.
const BLOCKS_PASSED_MAX: u64 = 16;

/// Encoding of the rows in a block.
pub trait Codec {
    /// A block is split when its encoding grows beyond this. Finding a row decodes its block, so tables with
    /// single look-ups and slow decoding need smaller blocks.
    const BLOCK_BYTES_MAX: usize = BLOCK_BYTES_MAX;

    /// Encodes sorted, concatenated rows.
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8>;
    /// Appends the rows of an encoded block to `rows`; `None` if the block is damaged.
    fn decode(block: &[u8], row_len: usize, rows: &mut Vec<u8>) -> Option<()>;
}

/// Unencoded, concatenated rows.
#[derive(Debug)]
pub struct Plain;

impl Codec for Plain {
    fn encode(rows: &[u8], _row_len: usize) -> Vec<u8> {
        rows.to_vec()
    }

    fn decode(block: &[u8], row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        rows.extend_from_slice(block);
        block.len().is_multiple_of(row_len).then_some(())
    }
}

/// Table and form of a family of rows.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The table; it holds nothing else.
    pub table: Table,
    /// Bytes of a row.
    pub row_len: usize,
    /// Bytes of a row's key, which lead the row.
    pub key_len: usize,
}

/// A table of small rows. It has no state outside the database.
#[derive(Debug)]
pub struct Runs<C: Codec = Plain> {
    layout: Layout,
    codec: std::marker::PhantomData<fn() -> C>,
}

impl<C: Codec> Runs<C> {
    /// Creates a table with this layout.
    pub const fn new(layout: Layout) -> Runs<C> {
        assert!(layout.key_len > 0 && layout.key_len <= layout.row_len);
        Runs { layout, codec: std::marker::PhantomData }
    }

    /// Returns the row whose key is `key` (of `key_len` bytes).
    pub fn find(&self, db: &dyn Db, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let Layout { table, row_len, key_len } = self.layout;
        debug_assert_eq!(key.len(), key_len);
        let Some((_, block)) = db.at_or_below(table, key)? else {
            return Ok(None);
        };
        let rows = self.decode(&block)?;
        let at = lower_bound(&rows, row_len, key);
        let row = rows.get(at * row_len..(at + 1) * row_len);
        Ok(row.filter(|row| row[..key_len] == *key).map(<[u8]>::to_vec))
    }

    /// Calls `visit` with every row whose key starts with `prefix`, in order, until it returns false.
    pub fn scan(&self, db: &dyn Db, prefix: &[u8], visit: impl FnMut(&[u8]) -> bool) -> DbResult<()> {
        self.scan_from(db, prefix, prefix, visit)
    }

    /// Like [`Runs::scan`], but only rows that are not below `from`, which starts with `prefix`.
    pub fn scan_from(
        &self,
        db: &dyn Db,
        prefix: &[u8],
        from: &[u8],
        mut visit: impl FnMut(&[u8]) -> bool,
    ) -> DbResult<()> {
        debug_assert!(from.starts_with(prefix));
        let Layout { table, row_len, .. } = self.layout;
        let Some((first, _)) = db.at_or_below(table, from)? else {
            return Ok(());
        };
        let mut damage = None;
        db.scan(table, &first, &mut |key, block| {
            if key > from && !key.starts_with(prefix) {
                return false;
            }
            match self.decode(block) {
                Ok(rows) => {
                    let at = lower_bound(&rows, row_len, from);
                    rows[at * row_len..]
                        .chunks_exact(row_len)
                        .all(|row| row.starts_with(prefix) && visit(row))
                        // A block may end below that: then the wanted rows start in the next.
                        || at * row_len == rows.len()
                }
                Err(e) => {
                    damage = Some(e);
                    false
                }
            }
        })?;
        damage.map_or(Ok(()), Err)
    }

    /// Calls `visit` with the index of a prefix in `prefixes` and each row that starts with it. If `visit`
    /// returns false, the other rows of that prefix are skipped.
    ///
    /// `prefixes` must be sorted. A block is decoded once for all prefixes inside it. Nearby blocks are
    /// reached by walking: a look-up costs as much as walking past a dozen.
    pub fn scan_each<P: AsRef<[u8]>>(
        &self,
        db: &dyn Db,
        prefixes: &[P],
        mut visit: impl FnMut(usize, &[u8]) -> bool,
    ) -> DbResult<()> {
        let table = self.layout.table;
        let mut next = 0;
        while let Some(prefix) = prefixes.get(next) {
            let Some((first, block)) = db.at_or_below(table, prefix.as_ref())? else {
                next += 1;
                continue;
            };
            let mut rows = self.decode(&block)?;
            let looked_up = next;
            while let Some(prefix) =
                prefixes.get(next).filter(|prefix| self.ends_within(&rows, prefix.as_ref()))
            {
                self.visit_rows(&rows, prefix.as_ref(), |row| visit(next, row));
                next += 1;
            }
            let is_far = |prefix: &P| next > looked_up && self.is_far(&rows, prefix.as_ref());
            if prefixes.get(next).is_none_or(is_far) {
                continue;
            }
            // Only the next block's key shows where a block ends, so a block is examined when the next is
            // seen.
            let (mut before, mut is_decoded, mut passed, mut failed) = (block.to_vec(), true, 0, None);
            let mut look_at = |before: &[u8], end: Option<&[u8]>, is_decoded: &mut bool| -> DbResult<bool> {
                let starts_before = |prefix: &[u8]| end.is_none_or(|end| end > prefix);
                while let Some(prefix) =
                    prefixes.get(next).map(P::as_ref).filter(|prefix| starts_before(prefix))
                {
                    if !std::mem::replace(is_decoded, true) {
                        rows = self.decode(before)?;
                    }
                    let is_wanted = self.visit_rows(&rows, prefix, |row| visit(next, row));
                    if is_wanted && end.is_some_and(|end| end.starts_with(prefix)) {
                        break;
                    }
                    next += 1;
                }
                let is_far = |prefix: &P| *is_decoded && self.is_far(&rows, prefix.as_ref());
                Ok(!prefixes.get(next).is_none_or(is_far))
            };
            let mut goes_on = true;
            db.scan(table, &first, &mut |key, block| {
                if key == first {
                    return true;
                }
                goes_on = look_at(&before, Some(key), &mut is_decoded).unwrap_or_else(|e| {
                    failed = Some(e);
                    false
                });
                passed = if is_decoded { 0 } else { passed + 1 };
                (before, is_decoded) = (block.to_vec(), false);
                goes_on = goes_on && passed < BLOCKS_PASSED_MAX;
                goes_on
            })?;
            failed.map_or(Ok(()), Err)?;
            if goes_on {
                look_at(&before, None, &mut is_decoded)?;
            }
        }
        Ok(())
    }

    /// Whether `rows` contains all rows with the prefix from its start on: only a row above the prefix proves
    /// it.
    fn ends_within(&self, rows: &[u8], prefix: &[u8]) -> bool {
        let last = rows.chunks_exact(self.layout.row_len).next_back();
        last.is_some_and(|last| last > prefix && !last.starts_with(prefix))
    }

    /// Whether the prefix is too far behind a block's rows to walk, judging by the range of these rows.
    fn is_far(&self, rows: &[u8], prefix: &[u8]) -> bool {
        let mut rows = rows.chunks_exact(self.layout.row_len);
        let Some(first) = rows.next().map(leading) else { return true };
        let last = rows.next_back().map_or(first, leading);
        leading(prefix).saturating_sub(last) > last.saturating_sub(first).saturating_mul(BLOCKS_PASSED_MAX)
    }

    /// Calls `visit` with the rows that start with the prefix until it returns false; returns whether it
    /// never did.
    fn visit_rows(&self, rows: &[u8], prefix: &[u8], visit: impl FnMut(&[u8]) -> bool) -> bool {
        let row_len = self.layout.row_len;
        let at = lower_bound(rows, row_len, prefix);
        rows[at * row_len..].chunks_exact(row_len).take_while(|row| row.starts_with(prefix)).all(visit)
    }

    /// Removes the rows with the given keys, then adds rows, replacing rows with the same key.
    ///
    /// `puts` are rows and `removes` are keys, each concatenated, in any order. Each affected block is read
    /// and written once. Batches are applied as they fill, so only single blocks are atomic.
    pub fn merge(&self, db: &dyn Db, puts: Vec<u8>, removes: Vec<u8>) -> DbResult<()> {
        self.merge_counted(db, puts, removes).map(|_| ())
    }

    /// Like [`Runs::merge`]; returns how many blocks it wrote.
    pub fn merge_counted(&self, db: &dyn Db, puts: Vec<u8>, removes: Vec<u8>) -> DbResult<usize> {
        let Layout { table, row_len, key_len } = self.layout;
        let mut changes: Vec<(&[u8], Option<&[u8]>)> = removes
            .chunks_exact(key_len)
            .map(|key| (key, None))
            .chain(puts.chunks_exact(row_len).map(|row| (&row[..key_len], Some(row))))
            .collect();
        // Stable: the last change of a key wins, and puts come after removals.
        changes.sort_by(|a, b| a.0.cmp(b.0));
        let mut batch = Batch::new();
        let (mut blocks, mut all_blocks) = (0, 0);
        let mut rest = &changes[..];
        while let Some(&(key, _)) = rest.first() {
            let found = db.at_or_below(table, key)?;
            let (block_key, old) = match &found {
                Some((block_key, block)) => (block_key.clone(), self.decode(block)?),
                None => (Vec::new(), Vec::new()),
            };
            let bound = self.next_block(db, &block_key, found.is_some())?;
            let count = rest.partition_point(|(key, _)| bound.as_deref().is_none_or(|bound| *key < bound));
            let (now, later) = rest.split_at(count);
            rest = later;
            let rows = merge_rows(&old, now, row_len, key_len);
            blocks += self.write_block(&mut batch, &block_key, &rows);
            if blocks >= BATCH_CHANGES {
                db.apply(std::mem::take(&mut batch))?;
                all_blocks += std::mem::take(&mut blocks);
            }
        }
        if !batch.is_empty() {
            db.apply(batch)?;
        }
        Ok(all_blocks + blocks)
    }

    /// Returns the key of the block after `block_key`'s.
    fn next_block(&self, db: &dyn Db, block_key: &[u8], exists: bool) -> DbResult<Option<Vec<u8>>> {
        let mut next = None;
        db.scan(self.layout.table, block_key, &mut |key, _| {
            if exists && key == block_key {
                return true;
            }
            next = Some(key.to_vec());
            false
        })?;
        Ok(next)
    }

    /// Writes `rows` under `block_key` and, if there are too many, under new keys; returns how many.
    fn write_block(&self, batch: &mut Batch, block_key: &[u8], rows: &[u8]) -> usize {
        let Layout { table, row_len, key_len } = self.layout;
        if rows.is_empty() && !block_key.is_empty() {
            batch.remove(table, block_key);
            return 1;
        }
        let whole = C::encode(rows, row_len);
        if whole.len() <= C::BLOCK_BYTES_MAX {
            batch.put(table, block_key, whole);
            return 1;
        }
        // Two thirds full.
        let parts = whole.len().div_ceil(C::BLOCK_BYTES_MAX * 2 / 3);
        let rows_per_part = (rows.len() / row_len).div_ceil(parts);
        let mut written = 0;
        for part in rows.chunks(rows_per_part * row_len) {
            let key = if written == 0 { block_key } else { &part[..key_len] };
            batch.put(table, key, C::encode(part, row_len));
            written += 1;
        }
        written
    }

    fn decode(&self, block: &[u8]) -> DbResult<Vec<u8>> {
        let mut rows = Vec::with_capacity(block.len());
        C::decode(block, self.layout.row_len, &mut rows)
            .ok_or(DbError::Row { table: self.layout.table, reason: "a block of sorted rows" })?;
        Ok(rows)
    }
}

/// Returns the number at the start of a key.
fn leading(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = key.len().min(8);
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

/// Returns the index of the first row that is not below `key`.
fn lower_bound(rows: &[u8], row_len: usize, key: &[u8]) -> usize {
    let (mut low, mut high) = (0, rows.len() / row_len);
    while low < high {
        let middle = (low + high) / 2;
        if &rows[middle * row_len..(middle + 1) * row_len] < key { low = middle + 1 } else { high = middle }
    }
    low
}

fn merge_rows(old: &[u8], changes: &[(&[u8], Option<&[u8]>)], row_len: usize, key_len: usize) -> Vec<u8> {
    let mut rows = Vec::with_capacity(old.len() + changes.len() * row_len);
    let mut old = old.chunks_exact(row_len).peekable();
    let mut changes = changes.iter().peekable();
    while let Some(&&(key, row)) = changes.peek() {
        while let Some(kept) = old.next_if(|old| &old[..key_len] < key) {
            rows.extend_from_slice(kept);
        }
        old.next_if(|old| &old[..key_len] == key);
        changes.next();
        if changes.peek().is_some_and(|(next, _)| *next == key) {
            continue;
        }
        rows.extend_from_slice(row.unwrap_or_default());
    }
    old.for_each(|kept| rows.extend_from_slice(kept));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::MemDb;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const LAYOUT: Layout = Layout { table: Table::Chunks, row_len: 6, key_len: 4 };

    proptest! {
        /// Against a plain map: bulk merges with removals, point look-ups and prefix scans.
        #[test]
        fn behaves_as_a_map(rounds in prop::collection::vec(
            (prop::collection::vec((0u32..50_000, any::<u16>()), 0..3000), prop::collection::vec(0u32..50_000, 0..500)), 1..5)
        ) {
            let db = MemDb::new();
            let runs = Runs::<Plain>::new(LAYOUT);
            let mut model = BTreeMap::new();
            for (puts, removes) in rounds {
                removes.iter().for_each(|key| { model.remove(key); });
                model.extend(puts.iter().copied());
                let puts = puts.iter().flat_map(|(k, v)| [&k.to_be_bytes()[..], &v.to_be_bytes()].concat()).collect();
                runs.merge(&db, puts, removes.iter().flat_map(|k| k.to_be_bytes()).collect()).unwrap();
            }
            let mut all = Vec::new();
            runs.scan(&db, &[], |row| { all.push(row.to_vec()); true }).unwrap();
            let expected: Vec<_> = model.iter().map(|(k, v)| [&k.to_be_bytes()[..], &v.to_be_bytes()].concat()).collect();
            prop_assert_eq!(&all, &expected);
            for key in (0..50_000u32).step_by(97) {
                let found = runs.find(&db, &key.to_be_bytes()).unwrap();
                prop_assert_eq!(found.map(|row| u16::from_be_bytes([row[4], row[5]])), model.get(&key).copied());
            }
            for prefix in [[0u8, 0, 10], [0, 0, 99], [0, 0, 195]] {
                let mut found = 0;
                runs.scan(&db, &prefix, |_| { found += 1; true }).unwrap();
                prop_assert_eq!(found, expected.iter().filter(|row| row.starts_with(&prefix)).count());
                let from = [&prefix[..], &[100]].concat();
                let mut found = Vec::new();
                runs.scan_from(&db, &prefix[..2], &from, |row| { found.push(row.to_vec()); true }).unwrap();
                let wanted = expected.iter().filter(|row| row[..] >= from[..] && row.starts_with(&prefix[..2]));
                prop_assert!(found.iter().eq(wanted));
            }
            let mut prefixes: Vec<_> = (0..50_000u32).step_by(41).map(|key| (key / 7).to_be_bytes()).collect();
            prefixes.extend((0..9u8).map(|i| [0, 0, i * 20, 255]));
            prefixes.sort();
            let mut each = vec![Vec::new(); prefixes.len()];
            runs.scan_each(&db, &prefixes, |i, row| { each[i].push(row.to_vec()); true }).unwrap();
            for (prefix, found) in prefixes.iter().zip(each) {
                let expected: Vec<_> = expected.iter().filter(|row| row.starts_with(prefix)).cloned().collect();
                prop_assert_eq!(found, expected);
            }
            let mut keys = 0;
            db.scan(Table::Chunks, &[], &mut |_, block| { keys += 1; block.len() <= BLOCK_BYTES_MAX }).unwrap();
            prop_assert!(keys <= 2 + 6 * 3 * expected.len().max(1) / (BLOCK_BYTES_MAX * 2 / 3) + 40);
        }
    }
}
