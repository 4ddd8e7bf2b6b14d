//! The stub record: the 64 bytes of the xattr `user.dedupfs` that determine a file's state.
//!
//! ```text
//! byte  0      version (high 4 bits, now 1) and state (low 4 bits)
//! byte  1..7   logical size in bytes, 48 bits
//! byte  7..15  mtime when the record was made: seconds (34 bits, signed) and nanoseconds (30 bits)
//! byte 15..23  ctime to show, in the same form; of a hybrid file the number of its extent list
//! byte 23..32  stamp: time of the setxattr in ms since 1970 (42 bits), st_blocks to show (30 bits)
//! byte 32..48  recipe id
//! byte 48..64  guard: keyed BLAKE3 of bytes 0..48, first 16 bytes, under the store's key
//! ```
//! Numbers are big-endian. The record never grows: a 256-byte ext4 inode has room for 64 bytes.
//!
//! - The state is the truth about the file, whatever bytes lie in it (see [`State`]).
//! - The guard keeps users from pointing a file of theirs at another user's content: making a record needs the key.

use crate::id::RecipeId;
use std::time::Duration;

/// Name of the xattr that holds the record.
pub const XATTR: &str = "user.dedupfs";
/// Bytes of the record.
pub const RECORD_LEN: usize = 64;
const VERSION: u8 = 1;
/// Sizes and times that do not fit the record's fields keep a file plain.
const SIZE_MAX: u64 = (1 << 48) - 1;
const SECONDS_MAX: i64 = (1 << 33) - 1;
const BLOCKS_MAX: u64 = (1 << 30) - 1;
/// The backing ctime counts as ours from this long before the stamp (kernel clocks tick coarsely) ...
const STAMP_BEFORE_MS: i64 = 20;
/// ... to this long after it.
const STAMP_AFTER_MS: i64 = 200;

/// State of the file by its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A stub whose file is about to be emptied: while the file is not empty, it is still the content.
    Unsettled,
    /// A stub: the file is empty and the recipe is the content.
    Settled,
    /// The recipe is the content, whatever bytes lie in the file: they are being written back.
    Hydrating,
    /// The file is the content; the record only remembers the ctime to show and the last recipe.
    Plain,
    /// The content is the recipe, except where the extent list with this number differs; size and recipe are those of the
    /// base. There is no ctime to show.
    Hybrid {
        /// Number of the list.
        list: u64,
    },
}

/// A point in time as the kernel keeps it: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

impl Time {
    /// Milliseconds since 1970.
    pub fn millis(self) -> i64 {
        self.sec.saturating_mul(1000).saturating_add(i64::from(self.nsec / 1_000_000))
    }

    /// Returns how long ago this is; zero for a time in the future.
    pub fn age(self) -> Duration {
        Duration::from_millis(Time::now().millis().saturating_sub(self.millis()).max(0) as u64)
    }

    /// The current time.
    pub fn now() -> Time {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Time { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
    }
}

/// The decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub {
    /// The state of the file.
    pub state: State,
    /// Length in bytes of the content.
    pub size: u64,
    /// The file's mtime when the record was made.
    pub mtime: Time,
    /// The ctime to show as long as only dedupfs has changed the inode; `None` once another program did.
    pub ctime: Option<Time>,
    /// When this record was written, in ms since 1970.
    pub stamp_ms: i64,
    /// 512-byte blocks to show: those that the file took when it was plain.
    pub blocks: u64,
    /// The content.
    pub recipe: RecipeId,
}

/// Key of the guard, 32 random bytes drawn when the store is created.
#[derive(Clone)]
pub struct GuardKey(pub [u8; 32]);

/// Why an xattr value is not a record of this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StubError {
    /// The value is not 64 bytes long.
    #[error("its length is not 64 bytes")]
    Length,
    /// A later version of this program wrote it.
    #[error("its version is newer than this program")]
    Newer,
    /// The guard does not fit: it was forged, damaged, or belongs to another store.
    #[error("its guard does not fit this store: it was altered, or belongs to another store")]
    Guard,
    /// The guard fits but a field has no meaning.
    #[error("a field has no meaning")]
    Field,
}

impl Stub {
    /// Returns whether size and times fit the record; a file for which they do not fit stays plain.
    pub fn fits(size: u64, mtime: Time, ctime: Time) -> bool {
        let time = |t: Time| (-SECONDS_MAX..=SECONDS_MAX).contains(&t.sec);
        size <= SIZE_MAX && time(mtime) && time(ctime)
    }

    /// The same record in another state, stamped now.
    pub fn stamped(self, state: State) -> Stub {
        Stub { state, stamp_ms: Time::now().millis(), ..self }
    }

    /// The ctime to show for a file whose backing inode has the given times.
    pub fn shown_ctime(&self, mtime: Time, ctime: Time) -> Time {
        match self.ctime {
            Some(saved) if self.mtime == mtime && self.covers(ctime.millis()) => saved,
            _ => ctime,
        }
    }

    /// Returns whether the record was made from a file of that mtime and length.
    pub fn is_of(&self, mtime: Time, size: u64) -> bool {
        self.mtime == mtime && self.size == size
    }

    /// Returns whether a change of the inode at `now_ms` could hide behind the saved ctime.
    pub fn covers(&self, now_ms: i64) -> bool {
        self.ctime.is_some()
            && (self.stamp_ms - STAMP_BEFORE_MS..=self.stamp_ms + STAMP_AFTER_MS).contains(&now_ms)
    }

    /// The 64 bytes of this record.
    pub fn encode(&self, key: &GuardKey) -> [u8; RECORD_LEN] {
        let mut out = [0; RECORD_LEN];
        let state = match self.state {
            State::Unsettled => 1,
            State::Settled => 2,
            State::Hydrating => 3,
            State::Plain => 4,
            State::Hybrid { .. } => 5,
        };
        out[0] = VERSION << 4 | state;
        out[1..7].copy_from_slice(&self.size.to_be_bytes()[2..]);
        out[7..15].copy_from_slice(&pack_time(Some(self.mtime)).to_be_bytes());
        let second = match self.state {
            State::Hybrid { list } => list,
            _ => pack_time(self.ctime),
        };
        out[15..23].copy_from_slice(&second.to_be_bytes());
        let stamp = (self.stamp_ms.clamp(0, (1 << 42) - 1) as u128) << 30;
        let tail = stamp | u128::from(self.blocks.min(BLOCKS_MAX));
        out[23..32].copy_from_slice(&tail.to_be_bytes()[7..]);
        out[32..48].copy_from_slice(&self.recipe.0);
        let guard = guard(key, &out[..48]);
        out[48..].copy_from_slice(&guard);
        out
    }

    /// Decodes a record; bytes that this store did not write are an error.
    pub fn decode(bytes: &[u8], key: &GuardKey) -> Result<Stub, StubError> {
        let bytes: &[u8; RECORD_LEN] = bytes.try_into().map_err(|_| StubError::Length)?;
        if is_newer(bytes) {
            return Err(StubError::Newer);
        }
        if guard(key, &bytes[..48]) != bytes[48..] {
            return Err(StubError::Guard);
        }
        let state = match bytes[0] {
            0x11 => State::Unsettled,
            0x12 => State::Settled,
            0x13 => State::Hydrating,
            0x14 => State::Plain,
            0x15 => State::Hybrid { list: number(&bytes[15..23]) as u64 },
            _ => return Err(StubError::Field),
        };
        let tail = number(&bytes[23..32]);
        let mut recipe = [0; 16];
        recipe.copy_from_slice(&bytes[32..48]);
        Ok(Stub {
            state,
            size: number(&bytes[1..7]) as u64,
            mtime: unpack_time(number(&bytes[7..15]) as u64).ok_or(StubError::Field)?,
            ctime: match state {
                State::Hybrid { .. } => None,
                _ => unpack_time(number(&bytes[15..23]) as u64),
            },
            stamp_ms: (tail >> 30) as i64,
            blocks: (tail & u128::from(BLOCKS_MAX)) as u64,
            recipe: RecipeId(recipe),
        })
    }
}

/// Returns the recipe in a record, valid or not, and whether that is the content now. For hints that are verified in
/// another way.
pub fn claim(record: &[u8]) -> Option<(RecipeId, bool)> {
    let record: &[u8; RECORD_LEN] = record.try_into().ok()?;
    match record[0] {
        0x11 | 0x12 => Some((claimed_recipe(record), true)),
        0x13..=0x15 => Some((claimed_recipe(record), false)),
        _ => None,
    }
}

/// Returns whether a record, valid or not, says that the file is the content.
pub fn says_plain(record: &[u8]) -> bool {
    record.len() == RECORD_LEN && record[0] == 0x14
}

/// Returns the recipe in a record, valid or not, that says that the file is empty and this recipe its content.
pub fn says_settled(record: &[u8]) -> Option<RecipeId> {
    let record: &[u8; RECORD_LEN] = record.try_into().ok()?;
    (record[0] == 0x12).then(|| claimed_recipe(record))
}

/// Returns whether a later version of this program wrote a record.
pub(crate) fn is_newer(record: &[u8]) -> bool {
    record.first().is_some_and(|first| first >> 4 > VERSION)
}

/// Returns the recipe that a record names, whether the record is valid or not.
pub(crate) fn claimed_recipe(record: &[u8; RECORD_LEN]) -> RecipeId {
    let mut recipe = [0; 16];
    recipe.copy_from_slice(&record[32..48]);
    RecipeId(recipe)
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u128::from(byte))
}

/// 34 bits of seconds, 30 bits of nanoseconds; all nanosecond bits set mean no time.
fn pack_time(time: Option<Time>) -> u64 {
    match time {
        Some(time) => (time.sec as u64) << 30 | u64::from(time.nsec),
        None => (1 << 30) - 1,
    }
}

fn unpack_time(packed: u64) -> Option<Time> {
    let nsec = (packed & ((1 << 30) - 1)) as u32;
    (nsec < 1_000_000_000).then_some(Time { sec: packed as i64 >> 30, nsec })
}

/// Returns the guard of some bytes, which only this store can compute.
pub(crate) fn guard(key: &GuardKey, bytes: &[u8]) -> [u8; 16] {
    let mut guard = [0; 16];
    guard.copy_from_slice(&blake3::keyed_hash(&key.0, bytes).as_bytes()[..16]);
    guard
}

#[cfg(test)]
mod tests {
    use crate::backing::stub::*;
    use proptest::prelude::*;

    const KEY: GuardKey = GuardKey([7; 32]);

    fn time() -> impl Strategy<Value = Time> {
        (-SECONDS_MAX..=SECONDS_MAX, 0u32..1_000_000_000).prop_map(|(sec, nsec)| Time { sec, nsec })
    }

    prop_compose! {
        fn stub()(
            state in prop_oneof![
                prop::sample::select(vec![State::Unsettled, State::Settled, State::Hydrating, State::Plain]),
                any::<u64>().prop_map(|list| State::Hybrid { list }),
            ],
            size in 0..=SIZE_MAX, mtime in time(), ctime in prop::option::of(time()),
            stamp_ms in 0i64..1 << 42, blocks in 0..=BLOCKS_MAX, recipe: [u8; 16],
        ) -> Stub {
            let ctime = ctime.filter(|_| !matches!(state, State::Hybrid { .. }));
            Stub { state, size, mtime, ctime, stamp_ms, blocks, recipe: RecipeId(recipe) }
        }
    }

    proptest! {
        #[test]
        fn round_trips(stub in stub()) {
            prop_assert_eq!(Stub::decode(&stub.encode(&KEY), &KEY), Ok(stub));
        }

        #[test]
        fn any_flipped_bit_is_noticed(stub in stub(), bit in 0usize..512) {
            let mut bytes = stub.encode(&KEY);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Stub::decode(&bytes, &KEY).is_err());
            prop_assert_eq!(Stub::decode(&stub.encode(&KEY), &GuardKey([8; 32])), Err(StubError::Guard));
        }
    }

    #[test]
    fn the_saved_ctime_ends_with_any_later_change() {
        let at = |ms: i64| Time { sec: ms / 1000, nsec: (ms % 1000) as u32 * 1_000_000 };
        let saved = at(5_000);
        let stub = Stub {
            state: State::Settled,
            size: 1,
            mtime: at(4_000),
            ctime: Some(saved),
            stamp_ms: 90_000,
            blocks: 8,
            recipe: RecipeId([0; 16]),
        };
        assert_eq!(stub.shown_ctime(at(4_000), at(90_000)), saved);
        assert_eq!(stub.shown_ctime(at(4_000), at(90_201)), at(90_201));
        assert_eq!(stub.shown_ctime(at(4_000), at(89_979)), at(89_979));
        assert_eq!(stub.shown_ctime(at(4_001), at(90_000)), at(90_000));
    }
}
