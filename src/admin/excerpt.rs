use crate::similarity::exact::Source;
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;

/// Bytes shown before and after each end of a region, in a content that is too long to show.
const AROUND_BYTES: u64 = 1 << 10;
/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;

/// A part of a content to show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excerpt {
    /// Its start.
    pub offset: u64,
    /// Line ends before it.
    pub lines_before: u64,
    /// Its bytes.
    #[serde(with = "super::hex")]
    pub bytes: Vec<u8>,
}

/// Returns the whole content if it has at most `bytes_max` bytes; otherwise the surroundings of both ends of
/// its regions, within the limit. `regions` are `(offset, length)`, the longest first.
pub(super) fn excerpts(
    source: &dyn Source,
    regions: impl Iterator<Item = (u64, u64)>,
    bytes_max: u64,
) -> io::Result<Vec<Excerpt>> {
    let mut found = Vec::new();
    for range in choose(source.len(), regions, bytes_max) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let len = read_full(source, range.start, &mut bytes)?;
        bytes.truncate(len);
        found.push(Excerpt { offset: range.start, lines_before: 0, bytes });
    }
    count_lines(source, &mut found)?;
    Ok(found)
}

fn choose(len: u64, regions: impl Iterator<Item = (u64, u64)>, bytes_max: u64) -> Vec<Range<u64>> {
    if len <= bytes_max {
        return Vec::from_iter((len > 0).then_some(0..len));
    }
    let mut chosen: Vec<Range<u64>> = Vec::new();
    let mut left = bytes_max;
    for (from, size) in regions {
        let around = |at: u64| at.saturating_sub(AROUND_BYTES)..at.saturating_add(AROUND_BYTES).min(len);
        let both = [around(from), around(from.saturating_add(size))];
        let Some(rest) = left.checked_sub(both.iter().map(|range| range.end - range.start).sum()) else {
            break;
        };
        left = rest;
        chosen.extend(both);
    }
    if chosen.is_empty() {
        chosen.push(0..bytes_max);
    }
    chosen.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in chosen {
        match joined.last_mut().filter(|last| last.end >= range.start) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// Counts the line ends before each excerpt: reads everything before the last one once more.
fn count_lines(source: &dyn Source, excerpts: &mut [Excerpt]) -> io::Result<()> {
    let (mut at, mut lines) = (0, 0);
    let mut buf = vec![0; READ_BYTES];
    for excerpt in excerpts {
        while at < excerpt.offset {
            let most = buf.len().min(usize::try_from(excerpt.offset - at).unwrap_or(usize::MAX));
            let len = source.read_at(at, &mut buf[..most])?;
            if len == 0 {
                break;
            }
            lines += memchr::memchr_iter(b'\n', &buf[..len]).count() as u64;
            at += len as u64;
        }
        excerpt.lines_before = lines;
    }
    Ok(())
}

fn read_full(source: &dyn Source, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match source.read_at(offset + done as u64, &mut buf[done..])? {
            0 => break,
            len => done += len,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn the_ends_of_the_longest_regions_are_shown_and_no_more() {
        assert_eq!(choose(0, [].into_iter(), 10), []);
        assert_eq!(choose(10, [(3, 2)].into_iter(), 10).as_slice(), from_ref(&(0..10)));
        assert_eq!(choose(1 << 20, [].into_iter(), 1 << 12).as_slice(), from_ref(&(0..1 << 12)));
        let regions = [(100, 500_000), (600_000, 100), (700_000, 50)];
        let chosen = choose(1 << 20, regions.into_iter(), 8 << 10);
        assert_eq!(chosen, [0..1124, 499_076..501_124, 598_976..601_124]);
        assert!(
            choose(1 << 20, regions.into_iter(), 8 << 10).iter().map(|r| r.end - r.start).sum::<u64>()
                <= 8 << 10
        );
    }

    #[test]
    fn lines_are_counted_up_to_each_excerpt_and_bytes_survive_the_wire() {
        let text: Vec<u8> = (0..100_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
        let at = text.len() as u64 / 2;
        let found = excerpts(&&text[..], [(at, 10)].into_iter(), 8 << 10).unwrap();
        let before = &text[..found[0].offset as usize];
        assert_eq!(found[0].lines_before, before.iter().filter(|&&byte| byte == b'\n').count() as u64);
        assert_eq!(found[0].bytes, text[found[0].offset as usize..][..found[0].bytes.len()]);
        let odd = Excerpt { offset: 1, lines_before: 2, bytes: vec![0, 255, 16] };
        let json = serde_json::to_string(&odd).unwrap();
        assert!(json.contains("\"00ff10\""), "{json}");
        assert_eq!(serde_json::from_str::<Excerpt>(&json).unwrap(), odd);
    }
}
