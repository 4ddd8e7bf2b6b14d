//! What was promised of each name, and by when; and what may be found after a cut.
//!
//! Times are positions in the log of the disk. A version of a name is durable from the position at which the call
//! that promised it had returned. After a cut the name has that version or a later one that had begun.
//!
//! Where a program rewrites a file in place, or empties it and writes it again, and has not synced that, a
//! filesystem promises less: then each sector is of one of these versions, or zeros where nothing was durable.
//! [`Found::Mixed`] counts those, for a look at how often it is needed. A rename and an unlink have no such middle.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Content of a name; none if there is no such name.
pub type Content = Option<Arc<Vec<u8>>>;

const SECTOR: usize = 512;

/// How a version came to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// At once: a rename of what was durable, an unlink.
    Whole,
    /// Some bytes were changed, added or cut off.
    InPlace,
    /// From nothing.
    Anew,
}

struct Version {
    content: Content,
    how: How,
    begun: usize,
    durable: Option<usize>,
}

impl Version {
    fn bytes(&self) -> &[u8] {
        self.content.as_ref().map_or(&[], |bytes| bytes.as_slice())
    }
}

/// A durable file that got another name: it is under one of both.
struct Move {
    from: String,
    to: String,
    content: Arc<Vec<u8>>,
    begun: usize,
    /// Numbers of the versions that both names had from it.
    from_version: usize,
    to_version: usize,
}

/// What a name turned out to have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// A version, as it was.
    Version,
    /// A mixture of versions that were not durable, as the filesystem below may leave it.
    Mixed,
}

#[derive(Default)]
pub struct Model {
    names: BTreeMap<String, Vec<Version>>,
    moves: Vec<Move>,
    /// Positions at which something became durable.
    pub promises: Vec<usize>,
}

impl Model {
    /// What the name has now.
    pub fn current(&self, name: &str) -> Content {
        self.names.get(name)?.last()?.content.clone()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// A name is being changed; called with the position before the first call.
    pub fn change(&mut self, name: &str, content: Content, how: How, begun: usize) {
        let absent = || vec![Version { content: None, how: How::Whole, begun: 0, durable: Some(0) }];
        let versions = self.names.entry(name.to_owned()).or_insert_with(absent);
        versions.push(Version { content, how, begun, durable: None });
    }

    /// A durable file is being renamed.
    pub fn rename(&mut self, from: &str, to: &str, content: Arc<Vec<u8>>, begun: usize) {
        self.change(to, Some(content.clone()), How::Whole, begun);
        self.change(from, None, How::Whole, begun);
        let newest = |name: &str| self.names[name].len() - 1;
        let (from_version, to_version) = (newest(from), newest(to));
        let (from, to) = (from.to_owned(), to.to_owned());
        self.moves.push(Move { from, to, content, begun, from_version, to_version });
    }

    /// Whether the newest version of the name was promised.
    pub fn is_durable(&self, name: &str) -> bool {
        self.names.get(name).and_then(|versions| versions.last()).is_none_or(|v| v.durable.is_some())
    }

    /// The content of a name is durable from now on.
    pub fn promise(&mut self, name: &str, now: usize) {
        if let Some(version) = self.names.get_mut(name).and_then(|versions| versions.last_mut()) {
            version.durable.get_or_insert(now);
            self.promises.push(now);
        }
    }

    /// Names are durable from now on.
    pub fn promise_names(&mut self, now: usize) {
        let versions = self.names.values_mut().flatten();
        versions.filter(|version| version.how == How::Whole).for_each(|version| {
            version.durable.get_or_insert(now);
        });
        self.promises.push(now);
    }

    /// Compares what a name has after a cut; the text says what was expected.
    pub fn judge(&self, name: &str, found: Option<&[u8]>, cut: usize) -> Result<Found, String> {
        let Some(versions) = self.names.get(name) else {
            return Err(format!("{name}: nobody made it"));
        };
        let first = versions.iter().rposition(|v| v.durable.is_some_and(|at| at <= cut)).unwrap_or(0);
        let last = versions.iter().rposition(|v| v.begun < cut).unwrap_or(0).max(first);
        let possible = &versions[first..=last];
        if possible.iter().any(|v| v.content.as_ref().map(|bytes| bytes.as_slice()) == found) {
            return Ok(Found::Version);
        }
        let mixed = |found: &[u8]| {
            (0..possible.len())
                .filter(|&i| i == 0 || possible[i].how != How::InPlace)
                .any(|i| is_mixture(found, i == 0, &possible[i..]))
        };
        if found.is_some_and(mixed) {
            return Ok(Found::Mixed);
        }
        let expected: Vec<_> = possible.iter().map(|v| describe(v, found)).collect();
        let found = found.map_or("nothing".to_owned(), |bytes| format!("{} bytes", bytes.len()));
        Err(format!("{name}: found {found}, expected one of:\n    {}", expected.join("\n    ")))
    }

    /// Looks for renamed files that are under neither name.
    pub fn judge_moves(&self, found: &BTreeMap<String, Vec<u8>>, cut: usize) -> Result<(), String> {
        for moved in self.moves.iter().filter(|moved| moved.begun < cut) {
            let later = |name: &str, version: usize| {
                self.names[name].get(version + 1).is_some_and(|next| next.begun < cut)
            };
            let changed = later(&moved.from, moved.from_version) || later(&moved.to, moved.to_version);
            let is_at = |name: &str| found.get(name) == Some(&*moved.content);
            if !changed && !is_at(&moved.to) && !is_at(&moved.from) {
                return Err(format!("{} was renamed to {} and is at neither", moved.from, moved.to));
            }
        }
        Ok(())
    }
}

/// Whether each sector is of the first of `versions` or one that changed it in place. `durable` says that the first
/// one is not in question itself.
fn is_mixture(found: &[u8], durable: bool, versions: &[Version]) -> bool {
    let end = versions[1..].iter().position(|v| v.how != How::InPlace).map_or(versions.len(), |at| at + 1);
    let versions = &versions[..end];
    if durable && versions.len() == 1 {
        return false;
    }
    let anew = versions[0].how == How::Anew && !durable;
    let lens = || versions.iter().map(|v| v.bytes().len());
    let shortest = if anew { 0 } else { lens().min().unwrap_or(0) };
    if found.len() < shortest || found.len() > lens().max().unwrap_or(0) {
        return false;
    }
    let written = if anew { 0 } else { versions[0].bytes().len() };
    found.chunks(SECTOR).enumerate().all(|(i, sector)| {
        let start = i * SECTOR;
        let of =
            |v: &Version| (0..sector.len()).all(|j| v.bytes().get(start + j).unwrap_or(&0) == &sector[j]);
        versions.iter().any(of) || (start >= written && sector.iter().all(|&byte| byte == 0))
    })
}

fn describe(version: &Version, found: Option<&[u8]>) -> String {
    let Version { content, how, begun, durable } = version;
    let what = content.as_ref().map_or("nothing".to_owned(), |bytes| format!("{} bytes", bytes.len()));
    let differs =
        found.zip(content.as_ref()).and_then(|(a, b)| a.iter().zip(b.iter()).position(|(a, b)| a != b));
    let differs = differs.map_or(String::new(), |at| format!(", differs at {at}"));
    format!("{what}, {how:?}, begun {begun}, durable {durable:?}{differs}")
}
