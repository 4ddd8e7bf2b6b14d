//! Groups of similar files at a threshold, from a saved result (section 4, figure 3). Reads no file for it.

use super::{File, Saved};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Rules for similar files.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Smallest share of a file's fingerprints, 0 to 1.
    pub share_min: f64,
    /// Fewest fingerprints in common. The paper figures that 5 to 10 are strong evidence (section 6).
    pub common_min: u64,
    /// Smallest length of the shorter file as a share of the longer, 0 to 1.
    pub size_ratio: f64,
    /// Only files whose names end in the same way: `.c`.
    pub same_suffix: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { share_min: super::SHARE_DEFAULT, common_min: 1, size_ratio: 0.0, same_suffix: false }
    }
}

impl Rules {
    fn allow(&self, a: &File, b: &File) -> bool {
        let (small, large) = (a.bytes.min(b.bytes), a.bytes.max(b.bytes));
        let sizes = small as f64 >= self.size_ratio * large as f64;
        sizes && (!self.same_suffix || a.names.iter().any(|a| b.names.iter().any(|b| suffix(a) == suffix(b))))
    }
}

/// Returns the last dot of a name and the text after it, if there is text before it.
fn suffix(path: &[u8]) -> Option<&[u8]> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    name.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0).map(|at| &name[at..])
}

/// A file, and those that are similar to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The file with which all others are compared: its place in [`Saved::files`].
    pub reference: u32,
    /// The others, with the share of the first one's fingerprints that each has; the largest first.
    pub members: Vec<(f64, u32)>,
}

impl Saved {
    /// Returns each file with those similar to it. Each set of files comes once, with the first of them that has it. A file
    /// whose names have one content is a group too, even if no other file is like it.
    pub fn groups(&self, rules: &Rules) -> Vec<Group> {
        let sets = self.sets_of_files();
        let mut groups = Vec::new();
        let mut given: HashSet<Vec<u32>> = HashSet::new();
        for (place, file) in self.files.iter().enumerate() {
            let mut common: HashMap<u32, u64> = HashMap::new();
            for set in sets[place].iter().map(|&set| &self.sets[set as usize]) {
                set.files.iter().for_each(|&other| *common.entry(other).or_default() += set.count);
            }
            common.remove(&(place as u32));
            let least = rules.common_min.max(1);
            let mut members: Vec<(f64, u32)> = common
                .into_iter()
                .filter(|&(other, common)| common >= least && rules.allow(file, &self.files[other as usize]))
                .map(|(other, common)| (common as f64 / file.fingers as f64, other))
                .filter(|(share, _)| *share >= rules.share_min)
                .collect();
            if members.is_empty() && file.names.len() < 2 {
                continue;
            }
            members.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut set: Vec<u32> = members.iter().map(|(_, other)| *other).chain([place as u32]).collect();
            set.sort_unstable();
            if given.insert(set) {
                groups.push(Group { reference: place as u32, members });
            }
        }
        groups
    }

    /// Returns the report of figure 3. Identical files are listed one after another with 100.
    pub fn report(&self, groups: &[Group], share_min: f64) -> String {
        let mut out = format!(
            "The following groups of files are similar. Minimum similarity = {}%\n",
            percent(share_min)
        );
        if self.left_out > 0 {
            let _ = writeln!(out, "({} fingerprints that too many files have were left out.)", self.left_out);
        }
        for group in groups {
            let reference = &self.files[group.reference as usize];
            out.push('\n');
            for (at, name) in reference.names.iter().enumerate() {
                let lead = if at == 0 { "R100" } else { "   100" };
                let _ = writeln!(out, "{lead} {} {}", shown(name), reference.bytes);
            }
            for (share, member) in &group.members {
                let file = &self.files[*member as usize];
                for name in &file.names {
                    let _ = writeln!(out, "{:>6} {} {}", percent(*share), shown(name), file.bytes);
                }
            }
        }
        out
    }
}

/// Returns a share in whole percent.
pub fn percent(share: f64) -> u64 {
    (share * 100.0).round() as u64
}

/// Returns a name on one line, whatever is in it.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name)
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}
