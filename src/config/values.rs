//! Values of settings as text: sizes, times, rates and policies.

use super::error::ConfigError;
use crate::contents::Indexing;
use crate::history::Schedule;
use crate::tree::Dedup;
use crate::view::View;
use std::time::Duration;

/// Minimum rate: a slower conversion would seem to hang.
const RATE_MIN: u64 = 64 << 10;

/// Reads a rate in bytes a second: a size with `/s`.
pub fn parse_rate(text: &str) -> Result<u64, ConfigError> {
    let rate = text.strip_suffix("/s").and_then(|size| parse_size(size).ok());
    rate.filter(|&rate| rate >= RATE_MIN).ok_or_else(|| ConfigError::Rate(text.to_owned()))
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

pub(super) fn parse_optimize(text: &str) -> Result<Option<Duration>, ConfigError> {
    match text.strip_prefix("idle:") {
        Some(rest) => parse_duration(rest).map(Some),
        None if text == "off" => Ok(None),
        None => Err(ConfigError::Optimize(text.to_owned())),
    }
}

/// Reads a schedule of snapshots, like `hourly:24 daily:7`. An empty text is none.
pub(super) fn parse_snapshots(text: &str) -> Result<Schedule, ConfigError> {
    text.parse().map_err(|_| ConfigError::Snapshots(text.to_owned()))
}

/// The views that are indexed unless set: those of formats that compress.
pub fn views_auto() -> Vec<View> {
    View::ALL.into_iter().filter(|view| view.hides_bytes()).collect()
}

pub(super) fn parse_similarity(text: String) -> Result<Indexing, ConfigError> {
    match text.as_str() {
        "full" => Ok(Indexing::Full),
        "chunks" => Ok(Indexing::Chunks),
        "off" => Ok(Indexing::Off),
        _ => Err(ConfigError::Similarity(text)),
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
    // A duration beyond a century is a typing error, and would overflow the clock.
    seconds.filter(|&seconds| seconds <= 100 * 366 * 86_400).map(Duration::from_secs).ok_or_else(error)
}

/// Reads a size in bytes, with `K`, `KiB` (1024), `KB` (1000) and so on up to `T`, in any case.
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
