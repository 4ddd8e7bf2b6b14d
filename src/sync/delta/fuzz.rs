//! Fuzz target for deltas. For `crate::fuzz` only; see there.

use super::decode::decode_checked;
use super::{BaseId, Decoded, DeltaError, Encoder, Level, Limits, Options, Receiver, decode};
use std::io;

const LIMITS: Limits = Limits { targets_max: 64, bytes_max: 256 << 10 };

/// Returns initial deltas by name, written by the encoder itself.
pub fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let bases = bases();
    let mut edited = bases[0].clone();
    edited.splice(1000..1010, *b"some other bytes");
    let moved = [&bases[1][6000..], &bases[0][..2000], &bases[1][..3000]].concat();
    let member = bases[0][..2000].to_ascii_uppercase();
    let zipped =
        archive(&[("a.txt", &bases[0][..2000]), ("b/c.txt", &bases[0][3000..5000]), ("new", &member)]);
    let of = |targets: &[Vec<u8>]| encode(targets).expect("memory can be encoded");
    vec![
        ("empty", of(&[])),
        ("edited", of(std::slice::from_ref(&edited))),
        ("several", of(&[edited, moved, zipped, Vec::new(), bases[0].clone(), vec![7; 5000]])),
    ]
}

/// Returns the bases of the deltas in the corpus: text, noise, and an archive.
pub fn bases() -> Vec<Vec<u8>> {
    let text: Vec<u8> =
        (0..400u32).flat_map(|n| format!("line {} of {n}\n", n * n % 97).into_bytes()).collect();
    let noise = (0..3000u32).flat_map(|n| (n.wrapping_mul(0x9e37_79b9) >> 7).to_le_bytes()).collect();
    let archive = archive(&[("a.txt", &text[..2000]), ("b/c.txt", &text[3000..])]);
    vec![text, noise, archive]
}

/// Returns a zip archive without a directory, since the decoder does not read it.
pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in members {
        let mut stream = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::new(6));
        io::Write::write_all(&mut stream, bytes).expect("memory can be written");
        let deflated = stream.finish().expect("memory can be written");
        archive.extend_from_slice(b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0");
        archive.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
        archive.extend_from_slice(&(deflated.len() as u32).to_le_bytes());
        archive.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        archive.extend_from_slice(&(name.len() as u16).to_le_bytes());
        archive.extend_from_slice(&[0, 0]);
        archive.extend_from_slice(name.as_bytes());
        archive.extend_from_slice(&deflated);
    }
    archive
}

/// Returns a delta of these targets against [`bases`]. The base of a target has the same number.
pub fn encode(targets: &[Vec<u8>]) -> Result<Vec<u8>, DeltaError> {
    let bases = bases();
    let bases = &bases[..];
    let options = Options { level: Level::Normal, archives: true };
    let mut encoder = Encoder::new(&bases, options, Vec::new())?;
    for (number, target) in targets.iter().enumerate() {
        let hint = Some(BaseId(number as u64 % 3));
        encoder.add(target, hint, &[BaseId(number as u64 % 3), BaseId((number as u64 + 1) % 3)])?;
    }
    Ok(encoder.finish()?.1)
}

#[derive(Default)]
struct Kept {
    targets: Vec<Vec<u8>>,
    hashes: Vec<[u8; 32]>,
}

impl Receiver for Kept {
    fn hint(&mut self, target: u64) -> Option<BaseId> {
        Some(BaseId(target % 3))
    }

    fn begin(&mut self, _: u64, _: u64) -> io::Result<()> {
        self.targets.push(Vec::new());
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.targets.last_mut().expect("it has begun").extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self, _: u64, hash: [u8; 32]) -> io::Result<()> {
        self.hashes.push(hash);
        Ok(())
    }
}

/// Decodes any bytes as a delta against [`bases`]. Ignores the hash at the end, so that the fuzzer reaches the
/// decoder.
pub fn delta(bytes: &[u8]) {
    let bases = bases();
    let bases = &&bases[..] as &dyn super::Bases;
    let mut kept = Kept::default();
    let Ok(decoded) = decode_checked(bases, &mut &bytes[..], LIMITS, &mut kept, false) else { return };
    let sum: u64 = kept.targets.iter().map(|target| target.len() as u64).sum();
    assert_eq!(decoded, Decoded { targets: kept.targets.len() as u64, target_bytes: sum });
    assert!(sum <= LIMITS.bytes_max, "bounded");
    for (target, hash) in kept.targets.iter().zip(&kept.hashes) {
        assert_eq!(blake3::hash(target).as_bytes(), hash);
    }
    let mut again = Kept::default();
    let encoded = encode(&kept.targets).expect("decoded targets can be encoded");
    decode(bases, &mut &encoded[..], LIMITS, &mut again).expect("an encoded delta can be decoded");
    assert_eq!(again.targets, kept.targets);
}
