//! The positions of one source's parts in another.

use super::common::{Common, ends, segment_bytes};
use super::cover::cover;
use super::region::Region;
use super::source::Source;
use std::io;

/// Common bytes of two sources, with their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// The counts, as [`super::compare`] gives them.
    pub common: Common,
    /// The places in `b` of the covered bytes of `a`, by place in `a`, without overlaps there. A byte that `b` has at
    /// several places is shown at one of them.
    pub regions: Vec<Region>,
    /// Regions that were left out, the shortest, because there are more than wanted.
    pub omitted: u64,
}

/// As [`super::compare`], and returns the places, in at most `regions_max` regions.
///
/// Memory beyond `memory_bytes`: 24 bytes a region before the shortest are left out.
pub fn compare_regions(
    a: &dyn Source,
    b: &dyn Source,
    memory_bytes: usize,
    regions_max: usize,
) -> io::Result<Regions> {
    let mut found = Regions::default();
    let known = match ends(a, b)? {
        Ok(known) => known,
        Err(common) => {
            found.common = common;
            if common.identical && !a.is_empty() {
                found.regions.push(Region { a: 0, b: 0, len: a.len() });
            }
            return Ok(found);
        }
    };
    let segment = segment_bytes(memory_bytes);
    let regions = &mut found.regions;
    let mut tell = |region: Region| {
        if !regions.last_mut().is_some_and(|last| last.join(&region)) {
            regions.push(region);
        }
    };
    let a_bytes = &mut found.common.a_bytes;
    cover(a, b, known, segment, Some(&mut tell), &mut |run| *a_bytes += run.end - run.start)?;
    let b_bytes = &mut found.common.b_bytes;
    cover(b, a, known, segment, None, &mut |run| *b_bytes += run.end - run.start)?;
    if found.regions.len() > regions_max {
        found.omitted = (found.regions.len() - regions_max) as u64;
        found.regions.sort_by_key(|region| std::cmp::Reverse(region.len));
        found.regions.truncate(regions_max);
        found.regions.sort_by_key(|region| region.a);
    }
    Ok(found)
}
