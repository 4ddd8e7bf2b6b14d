//! Names of users and groups in values.

/// Maximum bytes of the name of an account.
const ACCOUNT_BYTES_MAX: usize = 255;

/// Returns whether bytes are the name of a user or group, or `#` and an id.
pub fn is_account(name: &[u8]) -> bool {
    let good = |byte: &u8| !matches!(byte, 0..=31 | 127 | b':' | b',');
    match name.first() {
        None => false,
        Some(b'#') => id_of(name).is_some(),
        Some(_) => name.len() <= ACCOUNT_BYTES_MAX && name.iter().all(good),
    }
}

/// Returns the id in `#1000`. The greatest number is not an id.
pub fn id_of(name: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(name.strip_prefix(b"#")?).ok()?;
    let id: u32 = digits.parse().ok()?;
    (id != u32::MAX && id.to_string() == digits).then_some(id)
}
