//! LZMA, for rarely read groups: smaller than zstd's result, and several times slower to decode.
//!
//! The stored form is a bare stream without header and end marker. It uses the format's initial parameters,
//! and a window as long as the group; the frame has the length.
//!
//! Memory: 12 times the group to compress it, once more the group to decode it.

use super::bytes::Bytes;
use lzma_rust2::{EncodeMode, LzmaOptions, LzmaReader, LzmaWriter, MfType};
use std::io::{Read, Write};
use std::sync::Arc;

/// LZMA's default context bits for literals and positions. Others make text 0.2% smaller and executables 0.9%
/// larger.
const LITERAL_CONTEXT_BITS: u32 = 3;
const LITERAL_POSITION_BITS: u32 = 0;
const POSITION_BITS: u32 = 2;
/// The longest possible match.
const MATCH_BYTES_MAX: u32 = 273;
/// A match takes at least 14 decisions of at least 0.02 bits each, so no stream expands by more than this.
const EXPANSION_MAX: u64 = 8 << 10;

/// The window need not exceed all bytes; this is also the format's minimum.
fn window_bytes(raw_len: u32) -> u32 {
    raw_len.max(4 << 10)
}

/// Compresses `raw` to one stream.
pub(super) fn compress(raw: &[u8]) -> Vec<u8> {
    let options = LzmaOptions {
        dict_size: window_bytes(raw.len() as u32),
        lc: LITERAL_CONTEXT_BITS,
        lp: LITERAL_POSITION_BITS,
        pb: POSITION_BITS,
        mode: EncodeMode::Normal,
        nice_len: MATCH_BYTES_MAX,
        mf: MfType::Bt4,
        depth_limit: 0,
        preset_dict: None,
    };
    let mut writer = LzmaWriter::new_no_header(Vec::new(), &options, false)
        .expect("these parameters are within LZMA's bounds");
    writer.write_all(raw).and_then(|()| writer.finish()).expect("a vector takes any bytes")
}

/// Decodes one stream to `raw_len` bytes.
pub(super) fn inflate(packed: &[u8], raw_len: u32) -> Result<Bytes, &'static str> {
    // Checked before memory is allocated for the claimed length.
    if u64::from(raw_len) > packed.len() as u64 * EXPANSION_MAX {
        return Err("the payload does not decompress to the length the frame says");
    }
    let mut raw: Bytes = std::iter::repeat_n(0, raw_len as usize).collect();
    let target = Arc::get_mut(&mut raw).expect("it is not shared yet");
    LzmaReader::new(
        packed,
        raw_len.into(),
        LITERAL_CONTEXT_BITS,
        LITERAL_POSITION_BITS,
        POSITION_BITS,
        window_bytes(raw_len),
        None,
    )
    .and_then(|mut reader| reader.read_exact(target))
    .map_err(|_| "the payload does not decompress")?;
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: u32) -> Vec<u8> {
        (0..count).flat_map(|i| format!("line {} of some\n", i.wrapping_mul(7_919)).into_bytes()).collect()
    }

    #[test]
    fn what_was_compressed_is_inflated() {
        for raw in [&b"a"[..], &vec![0; 100_000], &lines(1), &lines(20_000)] {
            let packed = compress(raw);
            assert_eq!(inflate(&packed, raw.len() as u32).as_deref(), Ok(raw));
        }
        assert!(compress(&lines(20_000)).len() < lines(20_000).len() / 4);
    }

    /// Seen to fail: without the bound, the claim takes 4 GiB.
    #[test]
    fn what_is_none_or_another_is_an_error_or_other_bytes() {
        let raw = lines(2_000);
        let len = raw.len() as u32;
        let packed = compress(&raw);
        assert!(inflate(b"", len).is_err() && inflate(b"no stream", u32::MAX).is_err());
        for cut in [1, 5, 6, packed.len() / 2] {
            assert!(inflate(&packed[..cut], len).is_err(), "{cut}");
        }
        for at in 0..packed.len().min(500) {
            let mut other = packed.clone();
            other[at] ^= 0x55;
            assert_ne!(inflate(&other, len).as_deref(), Ok(&raw[..]), "byte {at}");
        }
    }
}
