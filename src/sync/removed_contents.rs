//! Former contents of this side's tree, found by similarity: bases for files that were renamed and edited,
//! whose bytes are the only clue to their origin.
//!
//! The results are only hints. Memory: about 20 bytes for each 128 of the examined contents, at most 256 MiB
//! of them.

use super::content::{Source, TOGETHER_MAX};
use super::error::SyncError;
use super::tree::ContentId;
use crate::chunk::ChunkParams;
use crate::similarity::Sketch;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::time::{Duration, Instant};

/// Maximum bytes of contents that are examined, and maximum time.
const BYTES_MAX: u64 = 256 << 20;
const TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum bytes of one content that are examined.
const CONTENT_BYTES_MAX: u64 = 32 << 20;
/// A feature of more contents than this is boilerplate, and no clue.
const SHARED_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct RemovedContents {
    contents: Vec<ContentId>,
    /// The contents that have a feature.
    having: HashMap<u64, Vec<u32>>,
}

impl RemovedContents {
    /// Examines `contents`, as far as `source` can still read them.
    pub(super) fn of(contents: &[ContentId], source: &mut dyn Source) -> Result<RemovedContents, SyncError> {
        let (mut gone, mut bytes, began) = (RemovedContents::default(), 0, Instant::now());
        for (n, content) in contents.iter().enumerate() {
            if n % TOGETHER_MAX == 0 {
                source.past_together(&contents[n..contents.len().min(n + TOGETHER_MAX)])?;
            }
            if bytes >= BYTES_MAX || began.elapsed() >= TIME_MAX {
                break;
            }
            let Some(mut file) = source.past(*content)? else { continue };
            let number = gone.contents.len() as u32;
            gone.contents.push(*content);
            let (features, len) = features(&mut file)?;
            bytes += len;
            for feature in features {
                let having = gone.having.entry(feature).or_default();
                if having.len() < SHARED_MAX {
                    having.push(number);
                }
            }
        }
        Ok(gone)
    }

    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.contents.is_empty()
    }

    /// Returns those that resemble a file, each with the share of the file that it has.
    pub(super) fn resembling(&self, file: &mut File) -> Result<Vec<(ContentId, f64)>, SyncError> {
        let (features, _) = features(file)?;
        let mut shared: HashMap<u32, u32> = HashMap::new();
        for feature in &features {
            for number in self.having.get(feature).into_iter().flatten() {
                *shared.entry(*number).or_default() += 1;
            }
        }
        let share = |count: u32| f64::from(count) / features.len() as f64;
        Ok(shared.into_iter().map(|(number, count)| (self.contents[number as usize], share(count))).collect())
    }
}

/// Returns the distinct features of a file's chunks, and the number of examined bytes.
fn features(file: &mut File) -> Result<(Vec<u64>, u64), SyncError> {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.take(CONTENT_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|e| SyncError::io("read", "a content", e))?;
    let (mut features, mut at) = (Vec::new(), 0);
    for len in ChunkParams::default().cut(&bytes, true) {
        features.extend(Sketch::of_chunk(&bytes[at..at + len as usize]).feature_bits());
        at += len as usize;
    }
    features.sort_unstable();
    features.dedup();
    Ok((features, at as u64))
}
