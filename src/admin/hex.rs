//! Bytes in JSON: two hexadecimal digits each.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<S: Serializer>(bytes: impl AsRef<[u8]>, to: S) -> Result<S::Ok, S::Error> {
    let digit = |n: u8| char::from_digit(n.into(), 16).expect("four bits");
    let text: String = bytes.as_ref().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
    text.serialize(to)
}

pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: TryFrom<Vec<u8>>,
    D: Deserializer<'de>,
{
    let bytes = of_hex(&String::deserialize(from)?).and_then(|bytes| T::try_from(bytes).ok());
    bytes.ok_or_else(|| D::Error::custom("expected two hexadecimal digits a byte"))
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}
