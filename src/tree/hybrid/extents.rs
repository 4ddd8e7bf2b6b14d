//! The map of a hybrid file's bytes. Pure, no I/O.
//!
//! Offsets without an extent are *base* as far as the base recipe still shows, and zeros from there on. Other
//! offsets have an extent: *zero*, or *local*, which is in the file itself. Local bytes are *pending* until
//! they are known to be durable; until then the map remembers the previous state, so that it can return if
//! they were lost.
//!
//! Invariants: local extents begin at a multiple of [`BLOCK`] and end at one or beyond the end of the file,
//! except for lost parts. An offset that was local never becomes anything else, except by truncation.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes become local in blocks of this many: no filesystem stores less than its own block, mostly as large as this.
pub const BLOCK: u64 = 4096;

/// Place of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the store, as the base recipe says.
    Base,
    /// Nowhere: the bytes are zeros.
    Zero,
    /// In the file.
    Local,
}

/// One thing that happened to the map, as the list on disk has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These bytes were written to the file. The file is at least that long from then on.
    Local(Range<u64>),
    /// These bytes are zeros.
    Zero(Range<u64>),
    /// The file has this length; bytes beyond it are removed.
    Size(u64),
    /// All local bytes so far are durable.
    Synced,
    /// As the last change: the file may still contain base bytes, and its mtime is that of its record.
    Unsettled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Zero,
    Local,
    /// Local, and not known to be durable; before it was zeros, or else base.
    Pending {
        zero: bool,
    },
}

impl Kind {
    fn place(self) -> Place {
        match self {
            Kind::Zero => Place::Zero,
            Kind::Local | Kind::Pending { .. } => Place::Local,
        }
    }
}

/// The map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    size: u64,
    base_size: u64,
    /// The end of the base: the base recipe shows up to here if there is no extent.
    base_end: u64,
    /// Start of an extent, its end, and its kind. Extents do not overlap, and equal neighbours are one.
    map: BTreeMap<u64, (u64, Kind)>,
}

impl Extents {
    /// Makes a map in which everything is base.
    pub fn new(base_size: u64) -> Extents {
        Extents { size: base_size, base_size, base_end: base_size, map: BTreeMap::new() }
    }

    /// Extents of a file of `size` bytes: base up to the end of the base, and the rest local.
    pub fn beginning(base_size: u64, size: u64) -> Extents {
        let mut extents = Extents::new(base_size);
        extents.apply(&Change::Size(size));
        extents.apply(&Change::Local(base_size - base_size % BLOCK..size));
        extents.apply(&Change::Synced);
        extents
    }

    /// Returns whether the base is the beginning of the content, and everything after it is local.
    pub fn is_beginning(&self) -> bool {
        *self == Extents::beginning(self.base_size, self.size)
    }

    /// Length of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the end of the base.
    pub fn base_end(&self) -> u64 {
        self.base_end
    }

    /// How many extents there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Local(range) => {
                self.size = self.size.max(range.end);
                let range = range.start..range.end.next_multiple_of(BLOCK);
                for (part, place) in self.pieces(range) {
                    if place != Place::Local {
                        self.set(part, Kind::Pending { zero: place == Place::Zero });
                    }
                }
            }
            Change::Zero(range) => self.set(range.clone(), Kind::Zero),
            Change::Size(size) => {
                if *size < self.size {
                    self.clear(size.next_multiple_of(BLOCK)..u64::MAX);
                    self.base_end = self.base_end.min(*size);
                }
                self.size = *size;
            }
            Change::Synced => {
                let pending: Vec<_> = self.pending().collect();
                pending.into_iter().for_each(|range| self.set(range, Kind::Local));
            }
            Change::Unsettled => {}
        }
    }

    /// Returns the local bytes that are not known to be durable.
    pub fn pending(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let pending = self.map.iter().filter(|(_, (_, kind))| matches!(kind, Kind::Pending { .. }));
        pending.map(|(start, (end, _))| *start..*end)
    }

    /// Records that pending bytes did not reach the disk: the bytes before them show again, in whole blocks.
    pub fn lose(&mut self, range: Range<u64>) {
        let range = range.start - range.start % BLOCK..range.end.next_multiple_of(BLOCK);
        let lost: Vec<_> = self.within(range).filter_map(|(part, kind)| Some((part, kind?))).collect();
        for (part, kind) in lost {
            match kind {
                Kind::Pending { zero: true } => self.set(part, Kind::Zero),
                Kind::Pending { zero: false } => self.clear(part),
                Kind::Zero | Kind::Local => {}
            }
        }
    }

    /// Returns the places of the bytes of a range, in order. Beyond the end of the file they are zeros.
    pub fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Place)> {
        let mut pieces: Vec<(Range<u64>, Place)> = Vec::new();
        let mut add = |part: Range<u64>, place| match pieces.last_mut() {
            _ if part.is_empty() => {}
            Some((last, known)) if *known == place && last.end == part.start => last.end = part.end,
            _ => pieces.push((part, place)),
        };
        for (part, kind) in self.within(range) {
            match kind {
                Some(kind) => add(part, kind.place()),
                None => {
                    let middle = self.base_end.clamp(part.start, part.end);
                    add(part.start..middle, Place::Base);
                    add(middle..part.end, Place::Zero);
                }
            }
        }
        pieces
    }

    /// Whether all of a range is local.
    pub fn is_local(&self, range: Range<u64>) -> bool {
        self.pieces(range).iter().all(|(_, place)| *place == Place::Local)
    }

    /// Returns the ranges in which the content may differ from that of the base recipe: all ranges that are not base.
    pub fn changed(&self) -> Vec<Range<u64>> {
        let pieces = self.pieces(0..self.size);
        pieces.into_iter().filter(|(_, place)| *place != Place::Base).map(|(range, _)| range).collect()
    }

    /// Returns the shortest list of changes that makes this map.
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.base_end < self.base_size {
            changes.push(Change::Size(self.base_end));
        }
        if self.size != self.base_end {
            changes.push(Change::Size(self.size));
        }
        let all = || {
            let all = self.map.iter().map(|(start, (end, kind))| (*start..(*end).min(self.size), *kind));
            all.filter(|(range, _)| !range.is_empty())
        };
        let zero = all().filter(|(_, kind)| matches!(kind, Kind::Zero | Kind::Pending { zero: true }));
        changes.extend(zero.map(|(range, _)| Change::Zero(range)));
        let durable = all().filter(|(_, kind)| *kind == Kind::Local);
        changes.extend(durable.map(|(range, _)| Change::Local(range)));
        changes.push(Change::Synced);
        let pending = all().filter(|(_, kind)| matches!(kind, Kind::Pending { .. }));
        changes.extend(pending.map(|(range, _)| Change::Local(range)));
        changes
    }

    /// Returns the extents and gaps of a range, in order.
    fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Option<Kind>)> + '_ {
        let before = self.map.range(..range.start).next_back().map(|(_, extent)| *extent);
        let before = before.filter(|(end, _)| *end > range.start).map(|(end, kind)| (range.start, end, kind));
        let inside = self.map.range(range.clone()).map(|(start, (end, kind))| (*start, *end, *kind));
        let mut extents = before.into_iter().chain(inside).peekable();
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let part = match extents.peek() {
                Some(&(start, end, kind)) if start <= at => {
                    extents.next();
                    (at..end.min(range.end), Some(kind))
                }
                Some(&(start, ..)) => (at..start, None),
                None => (at..range.end, None),
            };
            at = part.0.end;
            Some(part)
        })
    }

    fn clear(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.map.range(..range.start).next_back().map(|(start, _)| *start).unwrap_or(range.start);
        let touched: Vec<_> = self
            .map
            .range(first..range.end)
            .filter(|(_, (end, _))| *end > range.start)
            .map(|(start, (end, kind))| (*start, *end, *kind))
            .collect();
        for (start, end, kind) in touched {
            self.map.remove(&start);
            if start < range.start {
                self.map.insert(start, (range.start, kind));
            }
            if end > range.end {
                self.map.insert(range.end, (end, kind));
            }
        }
    }

    fn set(&mut self, range: Range<u64>, kind: Kind) {
        if range.is_empty() {
            return;
        }
        self.clear(range.clone());
        let Range { mut start, mut end } = range;
        if let Some((&before, &(until, same))) = self.map.range(..start).next_back()
            && until == start
            && same == kind
        {
            start = before;
        }
        if let Some(&(until, same)) = self.map.get(&end)
            && same == kind
        {
            self.map.remove(&end);
            end = until;
        }
        self.map.insert(start, (end, kind));
    }
}

#[cfg(test)]
mod tests {
    use crate::tree::hybrid::extents::*;
    use proptest::prelude::*;

    const BLOCKS: u64 = 24;

    #[derive(Clone, Debug)]
    enum Op {
        Change(Change),
        Lose(Range<u64>),
    }

    fn op() -> impl Strategy<Value = Op> {
        let range = || (0..BLOCKS, 1..6u64).prop_map(|(start, len)| start * BLOCK..(start + len) * BLOCK);
        prop_oneof![
            4 => (range(), 0..BLOCK).prop_map(|(r, less)| Op::Change(Change::Local(r.start..r.end - less))),
            2 => (range(), 0..BLOCK).prop_map(|(r, less)| Op::Change(Change::Zero(r.start..r.end - less))),
            2 => (0..BLOCKS * BLOCK).prop_map(|size| Op::Change(Change::Size(size))),
            1 => Just(Op::Change(Change::Synced)),
            1 => range().prop_map(Op::Lose),
        ]
    }

    /// What each of some bytes is: those at the edges of blocks, and some within.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Byte {
        Base,
        Zero,
        Local,
        Pending(bool),
    }

    fn probes() -> impl Iterator<Item = u64> {
        (0..BLOCKS + 8).flat_map(|block| [0, 1, 1000, BLOCK - 1].map(|within| block * BLOCK + within))
    }

    proptest! {
        /// Against a map of bytes; and what the map is written down as makes the same map.
        #[test]
        fn behaves_as_a_map_of_bytes(base in 1..BLOCKS * BLOCK, ops in prop::collection::vec(op(), 0..40)) {
            let mut extents = Extents::new(base);
            let beyond = |at: u64, end: u64| if at < end { Byte::Base } else { Byte::Zero };
            let mut bytes: BTreeMap<u64, Byte> = probes().map(|at| (at, beyond(at, base))).collect();
            let mut size = base;
            for op in ops {
                match &op {
                    Op::Change(change) => {
                        // A range that was local is not made zero: it is written over.
                        if let Change::Zero(range) = change
                            && extents.pieces(range.clone()).iter().any(|(_, place)| *place == Place::Local)
                        {
                            continue;
                        }
                        extents.apply(change);
                    }
                    Op::Lose(range) => extents.lose(range.clone()),
                }
                for (&at, byte) in &mut bytes {
                    match &op {
                        Op::Change(Change::Local(range)) if range.start <= at && at < range.end.next_multiple_of(BLOCK) => {
                            *byte = match *byte {
                                Byte::Base => Byte::Pending(false),
                                Byte::Zero => Byte::Pending(true),
                                local => local,
                            };
                        }
                        Op::Change(Change::Zero(range)) if range.contains(&at) => *byte = Byte::Zero,
                        Op::Change(Change::Size(to)) if *to < size => match *byte {
                            Byte::Base if at >= *to => *byte = Byte::Zero,
                            Byte::Pending(false) if at >= *to && at < to.next_multiple_of(BLOCK) => {
                                *byte = Byte::Pending(true);
                            }
                            _ if at >= to.next_multiple_of(BLOCK) => *byte = Byte::Zero,
                            _ => {}
                        },
                        Op::Change(Change::Synced) => {
                            if let Byte::Pending(_) = byte {
                                *byte = Byte::Local;
                            }
                        }
                        Op::Lose(range) if range.contains(&at) => {
                            if let Byte::Pending(zero) = *byte {
                                *byte = if zero { Byte::Zero } else { Byte::Base };
                            }
                        }
                        _ => {}
                    }
                }
                match op {
                    Op::Change(Change::Local(range)) => size = size.max(range.end),
                    Op::Change(Change::Size(to)) => size = to,
                    _ => {}
                }
                prop_assert_eq!(extents.size(), size);
                let mut again = Extents::new(base);
                extents.changes().iter().for_each(|change| again.apply(change));
                prop_assert_eq!(again.size(), size);
                for map in [&extents, &again] {
                    for (&at, byte) in &bytes {
                        let place = match byte {
                            Byte::Base => Place::Base,
                            Byte::Zero => Place::Zero,
                            Byte::Local | Byte::Pending(_) => Place::Local,
                        };
                        prop_assert_eq!(map.pieces(at..at + 1), vec![(at..at + 1, place)], "at {}", at);
                        let pending = map.pending().any(|range| range.contains(&at));
                        prop_assert_eq!(pending, matches!(byte, Byte::Pending(_)), "pending at {}", at);
                    }
                }
                // Pieces cover what was asked for, in order.
                let pieces = extents.pieces(100..BLOCKS * BLOCK + 5);
                let mut at = 100;
                for (range, _) in pieces {
                    prop_assert_eq!(range.start, at);
                    at = range.end;
                }
                prop_assert_eq!(at, BLOCKS * BLOCK + 5);
            }
        }
    }
}
