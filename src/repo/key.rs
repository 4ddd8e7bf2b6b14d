//! The guard key of a store, and the check that detects an altered key.
//!
//! Invariants: a key that does not match `format.toml` is refused before anything is locked or changed. Under
//! another key no stub would verify, and files converted under it would be lost once the right key returns.
//! The check reveals nothing about the key: it is 64 bits of a hash derived only for this. Stores created
//! before the check existed have none, and accept any 32 bytes.

use super::error::RepoError;
use super::layout::{FORMAT, KEY, Layout};
use crate::backing::stub::GuardKey;
use std::fmt::{self, Display};
use std::io;
use std::str::FromStr;

/// Domain separation of this hash.
const CONTEXT: &str = "dedupfs store: check of the key of its guards, version 1";

/// The check value: `key_check` in `format.toml`, 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyCheck([u8; 8]);

impl KeyCheck {
    pub(super) fn of(key: &GuardKey) -> KeyCheck {
        let hash = blake3::derive_key(CONTEXT, &key.0);
        KeyCheck(*hash.first_chunk().expect("the hash is 32 bytes long"))
    }
}

impl Display for KeyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for KeyCheck {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyCheck, String> {
        let bad = || format!("expected 16 hexadecimal digits, found {text:?}");
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        u64::from_str_radix(text, 16).map(|number| KeyCheck(number.to_be_bytes())).map_err(|_| bad())
    }
}

/// Reads the store's key and compares it with `expected`. Errors: [`RepoError::Form`] if it is missing, has
/// another length, or is another key.
pub(super) fn read(layout: &Layout, expected: Option<KeyCheck>) -> Result<GuardKey, RepoError> {
    let path = layout.file(KEY);
    let bytes = std::fs::read(&path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => RepoError::form(&path, "missing"),
        _ => RepoError::io("read", &path, e),
    })?;
    let len = bytes.len();
    let key = bytes.try_into().map(GuardKey);
    let key = key.map_err(|_| RepoError::form(&path, format!("expected a key of 32 bytes, found {len}")))?;
    let found = KeyCheck::of(&key);
    match expected {
        Some(expected) if expected != found => {
            let reason = format!(
                "this is not the key that the store was made with: expected one whose check is {expected} (key_check in \
                 {FORMAT}), found one of {found}; nothing was changed"
            );
            Err(RepoError::form(&path, reason))
        }
        _ => Ok(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was written must be found by every later version.
    #[test]
    fn the_check_of_a_key_never_changes() {
        let check = KeyCheck::of(&GuardKey([7; 32]));
        assert_eq!(check.to_string(), "add966a2da4da83f");
        assert_eq!(check.to_string().parse(), Ok(check));
        for bad in ["", "0123", "+123456789abcdef", "0123456789abcdeg", "0123456789abcdef0"] {
            assert!(bad.parse::<KeyCheck>().is_err(), "{bad:?}");
        }
    }
}
