//! Numbers of one to ten bytes, seven bits a byte, lowest first (LEB128).

use super::DeltaError;

pub(super) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Maps signed numbers to unsigned ones, so that small absolute values stay small.
pub(super) fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

pub(super) fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// Takes the first number from `bytes`.
pub(super) fn take(bytes: &mut &[u8]) -> Result<u64, DeltaError> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else {
            return Err(DeltaError::damaged("a number", "the end"));
        };
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        n |= bits << shift;
        if byte < 0x80 {
            return Ok(n);
        }
    }
    Err(DeltaError::damaged("a number of 64 bits", "a longer one"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip(n: u64, signed: i64) {
            let mut bytes = Vec::new();
            put(&mut bytes, n);
            put(&mut bytes, zigzag(signed));
            let mut rest = &bytes[..];
            prop_assert_eq!(take(&mut rest).unwrap(), n);
            prop_assert_eq!(unzigzag(take(&mut rest).unwrap()), signed);
            prop_assert!(rest.is_empty());
        }
    }

    #[test]
    fn longer_numbers_are_refused() {
        assert!(take(&mut &[0xff; 11][..]).is_err());
        assert!(take(&mut &[0x80, 0x80][..]).is_err());
        assert!(take(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2][..]).is_err());
        assert_eq!(
            take(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1][..]).unwrap(),
            u64::MAX
        );
    }
}
