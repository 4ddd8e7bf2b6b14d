//! Runs every view on arbitrary bytes, for `crate::fuzz`.

use super::{EXPANSION_BYTES_ALWAYS, EXPANSION_MAX, HEAD_BYTES, Seen, View};
use std::io::Cursor;

/// Interprets a file; its first byte selects the view.
pub fn view(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let view = View::ALL[usize::from(which) % View::ALL.len()];
    View::of(&bytes[..bytes.len().min(HEAD_BYTES)], None);
    let seen = look(view, bytes);
    assert!(seen.0.bytes <= EXPANSION_BYTES_ALWAYS + bytes.len() as u64 * EXPANSION_MAX, "bounded");
    assert_eq!(look(view, bytes), seen, "the same bytes give the same view");
}

fn look(view: View, bytes: &[u8]) -> (Seen, blake3::Hash) {
    let (mut hasher, mut len) = (blake3::Hasher::new(), 0);
    let seen = view.through(&mut Cursor::new(bytes), &mut |piece| {
        hasher.update(piece);
        len += piece.len() as u64;
    });
    let seen = seen.expect("memory can be read");
    assert_eq!(seen.bytes, len, "the view passes on all bytes that it counts");
    (seen, hasher.finalize())
}
