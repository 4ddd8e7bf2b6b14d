//! Runs the decoder of `format.toml` on arbitrary bytes, for `crate::fuzz`.

use super::format::Format;
use std::path::Path;

/// Parses a `format.toml`.
pub fn format(bytes: &[u8]) {
    let path = Path::new("format.toml");
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(format) = Format::parse(path, text) else { return };
    let again = Format::parse(path, &format.to_text()).expect("a written format can be read");
    assert_eq!(again, format, "a format is read as it was written");
}
