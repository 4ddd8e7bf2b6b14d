//! What a user may choose: the policy file `config.toml`, and how sizes, times and policies are written.
//!
//! Pure: text in, values out. What is not understood is an error that names the text and shows a form
//! that would be; nothing is guessed.

use crate::overlay::Dedup;
use serde::Deserialize;
use std::time::Duration;

/// A value that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a size.
    #[error("size {0:?}: expected a number of bytes with an optional unit, like 16KiB, 4M or 1000000")]
    Size(String),
    /// Not a duration.
    #[error("duration {0:?}: expected a number with a unit, like 30s, 10m, 2h or 1d")]
    Duration(String),
    /// Not a policy.
    #[error("dedup policy {0:?}: expected on-close, idle:TIME (like idle:10m) or off")]
    Dedup(String),
    /// Not a way to collect garbage.
    #[error("gc {0:?}: expected auto or off")]
    Gc(String),
    /// The file is not TOML of the expected form.
    #[error("{0}")]
    Form(String),
}

/// The settings of one overlay; `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// When files are converted.
    pub dedup: Option<Dedup>,
    /// About how many bytes of memory everything that is bounded may take together.
    pub memory_bytes: Option<u64>,
    /// Bytes of decoded chunks kept in memory: overrides their part of `memory_bytes`.
    pub cache_bytes: Option<u64>,
    /// Whether garbage is collected without being asked.
    pub gc: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    dedup: Option<String>,
    memory: Option<Size>,
    cache_bytes: Option<Size>,
    gc: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

impl Config {
    /// Reads the text of a `config.toml`.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let form: Form =
            toml::from_str(text).map_err(|e| ConfigError::Form(e.to_string().trim_end().to_owned()))?;
        let dedup = form.dedup.as_deref().map(parse_dedup).transpose()?;
        let size = |size: Option<Size>| match size {
            None => Ok(None),
            Some(Size::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Size::Text(text)) => parse_size(&text).map(Some),
        };
        let gc = match form.gc.as_deref() {
            None => None,
            Some("auto") => Some(true),
            Some("off") => Some(false),
            Some(other) => return Err(ConfigError::Gc(other.to_owned())),
        };
        Ok(Config { dedup, memory_bytes: size(form.memory)?, cache_bytes: size(form.cache_bytes)?, gc })
    }

    /// The text of a `config.toml` with these settings; those left at their defaults are comments.
    pub fn to_text(&self) -> String {
        let (dedup_mark, dedup) = match self.dedup {
            Some(dedup) => ("", dedup),
            None => ("# ", Dedup::OnClose),
        };
        let memory = match self.memory_bytes {
            Some(bytes) => format!("memory = {bytes}"),
            None => "# memory = \"256MiB\"".to_owned(),
        };
        let cache = match self.cache_bytes {
            Some(bytes) => format!("cache_bytes = {bytes}"),
            None => "# cache_bytes = \"64MiB\"".to_owned(),
        };
        let gc = match self.gc {
            None => "# gc = \"auto\"",
            Some(true) => "gc = \"auto\"",
            Some(false) => "gc = \"off\"",
        };
        format!(
            "# Settings of this dedupfs store. They are read when it is opened; flags of the programs win.\n\
             \n\
             # When a file moves into the store: \"on-close\" (when the last program closes it),\n\
             # \"idle:10m\" (when nobody had it open for that long), or \"off\" (never: files stay as they\n\
             # are, and only `dedupctl similar` and its kind know them).\n\
             {dedup_mark}dedup = \"{}\"\n\
             \n\
             # Memory for caches and for what is gathered before it is written, in all. More makes a large\n\
             # store faster; what is beyond it is said in docs/architecture.md.\n\
             {memory}\n\
             \n\
             # Memory for decoded data: a quarter of that unless it is set here.\n\
             {cache}\n\
             \n\
             # When garbage is collected: \"auto\" (when a quarter of the data is no longer needed), or \"off\"\n\
             # (only by `dedupctl gc`).\n\
             {gc}\n",
            dedup_text(dedup)
        )
    }
}

/// Reads a policy: `on-close`, `idle:10m` or `off`.
pub fn parse_dedup(text: &str) -> Result<Dedup, ConfigError> {
    match text {
        "on-close" => Ok(Dedup::OnClose),
        "off" => Ok(Dedup::Off),
        _ => {
            let time = text.strip_prefix("idle:").ok_or_else(|| ConfigError::Dedup(text.to_owned()))?;
            Ok(Dedup::Idle(parse_duration(time)?))
        }
    }
}

/// Writes a policy as [`parse_dedup`] reads it.
pub fn dedup_text(dedup: Dedup) -> String {
    let Dedup::Idle(time) = dedup else {
        return if dedup == Dedup::Off { "off" } else { "on-close" }.to_owned();
    };
    let seconds = time.as_secs();
    let units = [(86_400, 'd'), (3600, 'h'), (60, 'm')];
    let unit = units.iter().find(|(length, _)| seconds > 0 && seconds % length == 0);
    match unit {
        Some((length, letter)) => format!("idle:{}{letter}", seconds / length),
        None => format!("idle:{seconds}s"),
    }
}

/// Reads a duration: a whole number with one of the units s, m, h, d.
pub fn parse_duration(text: &str) -> Result<Duration, ConfigError> {
    let error = || ConfigError::Duration(text.to_owned());
    let (number, unit) = split_number(text);
    let length = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(error()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(length));
    // Longer than a century is a slip of the keyboard, and would overflow the clock.
    seconds.filter(|&seconds| seconds <= 100 * 366 * 86_400).map(Duration::from_secs).ok_or_else(error)
}

/// Reads a size in bytes. `K`, `KiB` (1024) and `KB` (1000) and so on up to `T`, in any case.
pub fn parse_size(text: &str) -> Result<u64, ConfigError> {
    let error = || ConfigError::Size(text.to_owned());
    let (number, unit) = split_number(text);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (letter, rest) = unit.split_at(unit.chars().next().map_or(0, char::len_utf8));
    let base: u64 = match rest {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return Err(error()),
    };
    let power = match (letter, rest) {
        ("" | "b", "") => 0,
        ("k", _) => 1,
        ("m", _) => 2,
        ("g", _) => 3,
        ("t", _) => 4,
        _ => return Err(error()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(base.pow(power))).ok_or_else(error)
}

fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let good = [("0", 0), ("17", 17), ("5B", 5), ("16KiB", 16384), ("16k", 16384), ("1 MB", 1_000_000)];
        for (text, bytes) in good {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("2T"), Ok(2 << 40));
        for text in ["", "k", "-1", "1.5M", "1x", "1ib", "1bb", "99999999999T", "1é", "16KiBs"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_and_policies() {
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        for text in ["10", "m", "1y", "", "99999999999999d", "1 h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["on-close", "off", "idle:10m", "idle:90s", "idle:2h", "idle:1d", "idle:0s"] {
            assert_eq!(dedup_text(parse_dedup(text).unwrap()), text);
        }
        assert_eq!(
            parse_dedup("always").unwrap_err().to_string(),
            "dedup policy \"always\": expected on-close, idle:TIME (like idle:10m) or off"
        );
    }

    #[test]
    fn a_config_is_read_as_it_was_written() {
        let full = Config {
            dedup: Some(Dedup::Off),
            memory_bytes: Some(128 << 20),
            cache_bytes: Some(1 << 20),
            gc: Some(false),
        };
        for config in [Config::default(), full] {
            assert_eq!(Config::parse(&config.to_text()).unwrap(), config);
        }
        assert_eq!(Config::parse("cache_bytes = \"1KiB\"").unwrap().cache_bytes, Some(1024));
        assert_eq!(Config::parse("memory = \"256MiB\"").unwrap().memory_bytes, Some(256 << 20));
        assert!(Config::parse("memory = \"much\"").is_err());
    }

    #[test]
    fn what_is_not_known_is_named() {
        let error = Config::parse("dedupe = \"off\"").unwrap_err().to_string();
        assert!(error.contains("dedupe"), "{error}");
        assert!(Config::parse("dedup = \"sometimes\"").is_err());
        assert!(Config::parse("dedup = ").is_err());
    }
}
