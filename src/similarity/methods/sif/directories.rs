//! Comparison of two directories by the contents of their files, with names as a hint (section 6).

use super::Saved;
use std::collections::HashMap;

/// A file of the first directory and the one of the second that it resembles most. Names are below the directories.
#[derive(Clone, Debug, PartialEq)]
pub struct Alike {
    /// In the first.
    pub a: Vec<u8>,
    /// In the second.
    pub b: Vec<u8>,
    /// Share of the first one's fingerprints that the second has; 1 if they are equal.
    pub share: f64,
    /// Whether checksum and size are the same.
    pub equal: bool,
}

/// Common files of two directories.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Each file of the first that has an equal or a similar one in the second, by name.
    pub alike: Vec<Alike>,
    /// Files of the first that have none.
    pub only_a: Vec<Vec<u8>>,
    /// Files of the second that are like none of the first.
    pub only_b: Vec<Vec<u8>>,
}

/// Returns the name below the directory.
fn below<'a>(name: &'a [u8], dir: &[u8]) -> Option<&'a [u8]> {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    if dir.is_empty() { Some(name) } else { name.strip_prefix(dir)?.strip_prefix(b"/") }
}

/// Returns the last part of a path.
fn last(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|byte| *byte == b'/').next()
}

impl Saved {
    /// Compares the files below directory `a` with those below `b`; similar ones have at least `share_min` in common. A file
    /// is compared with the one of the same path first, and with others only if that is not similar: section 6 wants names to
    /// count. Among others an equal one is taken first, then the most similar, then the one of the same name.
    pub fn directories(&self, a: &[u8], b: &[u8], share_min: f64) -> Compared {
        let mut compared = Compared::default();
        let sets = self.sets_of_files();
        let in_dir =
            |place: usize, dir| self.files[place].names.iter().filter_map(move |name| below(name, dir));
        let mut used = vec![false; self.files.len()];
        for (place, file) in self.files.iter().enumerate() {
            if in_dir(place, a).next().is_none() {
                continue;
            }
            let mut common: HashMap<u32, u64> = HashMap::new();
            for set in sets[place].iter().map(|&set| &self.sets[set as usize]) {
                set.files.iter().for_each(|&other| *common.entry(other).or_default() += set.count);
            }
            common.remove(&(place as u32));
            let mut likely: Vec<(f64, usize)> = common
                .into_iter()
                .map(|(other, common)| (common as f64 / file.fingers as f64, other as usize))
                .filter(|(share, _)| *share >= share_min)
                .collect();
            likely.push((1.0, place));
            for name in in_dir(place, a) {
                let found = likely
                    .iter()
                    .flat_map(|&(share, other)| in_dir(other, b).map(move |b| (share, other, b)))
                    .max_by(|x, y| {
                        let key = |&(share, other, b): &(f64, usize, &[u8])| {
                            (b == name, other == place, share, last(b) == last(name))
                        };
                        key(x).partial_cmp(&key(y)).unwrap_or(std::cmp::Ordering::Equal).then(y.2.cmp(x.2))
                    });
                match found {
                    Some((share, other, b)) => {
                        used[other] = true;
                        let equal = other == place;
                        compared.alike.push(Alike { a: name.to_vec(), b: b.to_vec(), share, equal });
                    }
                    None => compared.only_a.push(name.to_vec()),
                }
            }
        }
        for (place, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
            compared.only_b.extend(in_dir(place, b).map(<[u8]>::to_vec));
        }
        compared.alike.sort_by(|x, y| x.a.cmp(&y.a));
        compared.only_a.sort();
        compared.only_b.sort();
        compared
    }
}
