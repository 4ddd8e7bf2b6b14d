//! Anchors: strings at which fingerprints start, given by the user or learned from a sample (section 2).

use aho_corasick::{AhoCorasick, MatchKind};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Length of the substrings that have fingerprints; no anchor is longer.
pub const FINGER_BYTES: usize = 50;
/// Length of learned anchors.
const LEARNED_BYTES: usize = 4;

/// A set of anchors.
#[derive(Clone)]
pub struct Anchors(Arc<Automaton>);

struct Automaton {
    strings: Vec<Vec<u8>>,
    search: AhoCorasick,
}

impl Anchors {
    /// Takes anchors of 1 to [`FINGER_BYTES`] bytes each; the order does not matter.
    ///
    /// Fails, naming the anchor, if one is empty or longer, and if there are none or too many.
    pub fn new(mut strings: Vec<Vec<u8>>) -> Result<Anchors, String> {
        strings.sort_unstable();
        strings.dedup();
        if strings.is_empty() {
            return Err("no anchors: expected one or more".into());
        }
        if let Some(bad) = strings.iter().find(|string| !(1..=FINGER_BYTES).contains(&string.len())) {
            return Err(format!("anchor \"{}\": expected 1 to {FINGER_BYTES} bytes", bad.escape_ascii()));
        }
        let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(&strings);
        let search = search.map_err(|e| format!("{} anchors: {e}", strings.len()))?;
        Ok(Anchors(Arc::new(Automaton { strings, search })))
    }

    /// The anchors, sorted.
    pub fn strings(&self) -> &[Vec<u8>] {
        &self.0.strings
    }

    /// Calls `keep` with the start of each kept substring of `text`; returns the start of the text that has to be examined again.
    pub(super) fn each(&self, text: &[u8], mut keep: impl FnMut(usize)) -> usize {
        let mut start = 0;
        while let Some(found) = self.0.search.find(&text[start..]) {
            let at = start + found.start();
            if at + FINGER_BYTES > text.len() {
                break;
            }
            keep(at);
            start = at + FINGER_BYTES;
        }
        // No anchor is longer than a fingerprint: one that starts before this is complete, and was found.
        start.max(text.len().saturating_sub(FINGER_BYTES - 1))
    }
}

impl PartialEq for Anchors {
    fn eq(&self, other: &Anchors) -> bool {
        self.strings() == other.strings()
    }
}

impl fmt::Debug for Anchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.strings().iter().map(|string| string.escape_ascii().to_string())).finish()
    }
}

/// Shows their number and a hash of them.
impl fmt::Display for Anchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hash = blake3::Hasher::new();
        for string in self.strings() {
            hash.update(&(string.len() as u64).to_le_bytes());
            hash.update(string);
        }
        write!(f, "{} anchors {:.16}", self.strings().len(), hash.finalize().to_hex())
    }
}

/// Learns "representative strings, which are quite common but not too common" from a sample of files: strings of 4 bytes
/// that occur in many of the files but seldom in each, so that together they start a fingerprint about every `spacing`
/// bytes.
///
/// Fails if the sample has no string that occurs in two files.
pub fn learn(samples: &[&[u8]], spacing: usize) -> Result<Anchors, String> {
    #[derive(Default)]
    struct Seen {
        times: u64,
        files: u32,
        last_file: usize,
    }
    let mut seen: HashMap<[u8; LEARNED_BYTES], Seen> = HashMap::new();
    let mut bytes = 0;
    for (file, sample) in samples.iter().enumerate() {
        bytes += sample.len() as u64;
        for window in sample.windows(LEARNED_BYTES) {
            let Some(&string) = window.first_chunk() else { continue };
            // A run of one character is not representative.
            if string.iter().all(|byte| *byte == string[0]) {
                continue;
            }
            let seen = seen.entry(string).or_insert(Seen { last_file: usize::MAX, ..Seen::default() });
            seen.times += 1;
            if seen.last_file != file {
                seen.files += 1;
                seen.last_file = file;
            }
        }
    }
    let wanted = bytes / spacing.max(1) as u64;
    // Not too common: no anchor makes more than a 16th of the fingerprints.
    let often = (wanted / 16).max(2);
    let mut common: Vec<_> =
        seen.into_iter().filter(|(_, seen)| seen.files > 1 && seen.times <= often).collect();
    common.sort_unstable_by_key(|(string, seen)| (u32::MAX - seen.files, seen.times, *string));
    let mut anchors = Vec::new();
    let mut times = 0;
    for (string, seen) in common {
        if times >= wanted && !anchors.is_empty() {
            break;
        }
        times += seen.times;
        anchors.push(string.to_vec());
    }
    if anchors.is_empty() {
        return Err("the sample has no string of 4 bytes that occurs in two of its files".into());
    }
    Anchors::new(anchors)
}
