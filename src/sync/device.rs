//! Names of devices.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A replica's name: `host-` and eight hexadecimal digits, at most 32 bytes of `a-z`, `0-9` and `-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Device(Arc<str>);

impl Device {
    /// Returns a device of that name. Panics on a name that [`TryFrom`] refuses: only for names in the source.
    pub fn named(name: &str) -> Device {
        Device::try_from(name.to_owned()).expect("a name of the right form")
    }

    /// Returns a new device on the machine `host`; `random` distinguishes it from others.
    pub fn new(host: &str, random: u32) -> Device {
        let host: String = host
            .to_lowercase()
            .chars()
            .filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            .take(20)
            .collect();
        let host = if host.is_empty() { "host" } else { &host };
        Device::named(&format!("{host}-{random:08x}"))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Device {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Device, &'static str> {
        let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        match !name.is_empty() && name.len() <= 32 && name.bytes().all(good) {
            true => Ok(Device(name.into())),
            false => Err("a device's name is 1 to 32 of a-z, 0-9 and -"),
        }
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.0.to_string()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        assert_eq!(Device::new("Läptop.Local", 7).as_str(), "lptoplocal-00000007");
        assert_eq!(Device::new("-", 0).as_str(), "host-00000000");
        for bad in ["", "A", "a/b", "a.b", &"x".repeat(33)] {
            assert!(Device::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
