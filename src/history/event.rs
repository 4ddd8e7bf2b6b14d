//! Events of files, in order: versions, renames, links, removals. Events are kept in batches, each a
//! document.
//!
//! ```text
//! batch = 1 (version) | number | revision | machine | number of events | event*
//! event = kind 1 byte | time | ...
//!   1 version:                      path | file id | recipe 16 | size | meta
//!   2 version given up:             path | file id
//!   3 renamed, 4 exchanged:         0 file or 1 directory | path before | path after
//!   5 removed:                      0 file or 1 directory | path
//!   6 snapshot removed:             document id 32
//!   7 linked:                       path of a file | its new path
//!   8 versions given up:            path | file id | event of the first of them | how many, 2 at least
//!   9 gone:                         nothing; its time is 0
//! meta  = mode | user | group | mtime | 0, or number of xattrs + 1 | (name, value)*
//! ```
//! Numbers are LEB128, times seconds (zigzag) and nanoseconds, byte strings follow their length.
//!
//! Invariants: a batch keeps its number and its events keep their places forever. A dropped version keeps its
//! place without its details, so that later ones keep their numbers, until a later one records how many there
//! were, or none is kept (`compact`). The batch is then rewritten with a higher revision; among documents
//! with one number the highest revision counts.

use super::wire::{Input, put_bytes, put_meta, put_time};
use crate::backing::stub::Time;
use crate::id::{DocumentId, FileId, RecipeId};
use crate::overlay::Meta;
use crate::recipe::put_varint;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const VERSION: u8 = 1;
/// Limit of events in a batch.
pub(super) const BATCH_EVENTS_MAX: usize = 512;
/// Minimum bytes of an event.
const EVENT_BYTES_MIN: usize = 3;

/// Id of an event: the batch's number, then the place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

impl EventId {
    const PLACE_BITS: u32 = 16;

    pub(super) fn new(batch: u64, place: usize) -> EventId {
        EventId(batch << Self::PLACE_BITS | place as u64)
    }

    pub(super) fn batch(self) -> u64 {
        self.0 >> Self::PLACE_BITS
    }

    pub(super) fn place(self) -> usize {
        (self.0 & ((1 << Self::PLACE_BITS) - 1)) as usize
    }
}

/// A former or present content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its path then, below the root.
    pub path: PathBuf,
    /// Its inode.
    pub file: FileId,
    /// The content.
    pub recipe: RecipeId,
    /// Its length in bytes.
    pub size: u64,
    /// The other attributes.
    pub meta: Meta,
    /// Whether it can still be restored.
    pub kept: bool,
    /// For a dropped version, the run that it stands for.
    pub(super) run: Option<Run>,
}

/// Dropped versions in sequence, of one file at one path. Those between the first and the last may be
/// missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: EventId,
    /// How many there are, including the first and the last.
    pub(super) count: u64,
}

impl Version {
    /// Returns a dropped version: only a placeholder that keeps the numbers of others.
    pub(super) fn given_up(path: PathBuf, file: FileId) -> Version {
        Version {
            path,
            file,
            recipe: RecipeId([0; 16]),
            size: 0,
            meta: Meta::default(),
            kept: false,
            run: None,
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Version(Version),
    Renamed {
        from: PathBuf,
        to: PathBuf,
        directory: bool,
        exchanged: bool,
    },
    Removed {
        path: PathBuf,
        directory: bool,
    },
    SnapshotRemoved(DocumentId),
    Linked {
        from: PathBuf,
        to: PathBuf,
    },
    /// An event that nothing depends on any more.
    Gone,
}

impl What {
    /// Returns the affected paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let paths: [Option<&Path>; 2] = match self {
            What::Version(version) => [Some(&version.path), None],
            What::Renamed { from, to, .. } | What::Linked { from, to } => [Some(from), Some(to)],
            What::Removed { path, .. } => [Some(path), None],
            What::SnapshotRemoved(_) | What::Gone => [None, None],
        };
        paths.into_iter().flatten()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) time: Time,
    pub(super) what: What,
}

/// A batch of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) revision: u64,
    /// The name of the machine.
    pub(super) machine: String,
    pub(super) events: Vec<Event>,
}

impl Event {
    fn encode(&self, out: &mut Vec<u8>) {
        let path = |out: &mut Vec<u8>, path: &Path| put_bytes(out, path.as_os_str().as_bytes());
        let kind = match &self.what {
            What::Version(Version { kept: true, .. }) => 1,
            What::Version(Version { run: Some(_), .. }) => 8,
            What::Version(_) => 2,
            What::Renamed { exchanged: false, .. } => 3,
            What::Renamed { .. } => 4,
            What::Removed { .. } => 5,
            What::SnapshotRemoved(_) => 6,
            What::Linked { .. } => 7,
            What::Gone => 9,
        };
        out.push(kind);
        put_time(out, self.time);
        match &self.what {
            What::Version(version) => {
                path(out, &version.path);
                put_varint(out, version.file.0);
                if !version.kept {
                    if let Some(run) = version.run {
                        put_varint(out, run.first.0);
                        put_varint(out, run.count);
                    }
                    return;
                }
                out.extend_from_slice(&version.recipe.0);
                put_varint(out, version.size);
                put_meta(out, &version.meta);
            }
            What::Renamed { from, to, directory, .. } => {
                out.push(u8::from(*directory));
                path(out, from);
                path(out, to);
            }
            What::Removed { path: gone, directory } => {
                out.push(u8::from(*directory));
                path(out, gone);
            }
            What::SnapshotRemoved(id) => out.extend_from_slice(&id.0),
            What::Linked { from, to } => {
                path(out, from);
                path(out, to);
            }
            What::Gone => {}
        }
    }

    fn decode(input: &mut Input<'_>) -> Option<Event> {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let kind = input.byte()?;
        let time = input.time()?;
        let directory = |input: &mut Input<'_>| match input.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let what = match kind {
            2 => What::Version(Version::given_up(path(input.bytes()?), FileId(input.number()?))),
            1 => What::Version(Version {
                path: path(input.bytes()?),
                file: FileId(input.number()?),
                recipe: RecipeId(input.array()?),
                size: input.number()?,
                meta: input.meta()?,
                kept: true,
                run: None,
            }),
            8 => {
                let version = Version::given_up(path(input.bytes()?), FileId(input.number()?));
                let (first, count) = (EventId(input.number()?), input.number().filter(|count| *count > 1)?);
                What::Version(Version { run: Some(Run { first, count }), ..version })
            }
            9 if time == Time::default() => What::Gone,
            3 | 4 => What::Renamed {
                directory: directory(input)?,
                from: path(input.bytes()?),
                to: path(input.bytes()?),
                exchanged: kind == 4,
            },
            5 => What::Removed { directory: directory(input)?, path: path(input.bytes()?) },
            6 => What::SnapshotRemoved(DocumentId(input.array()?)),
            7 => What::Linked { from: path(input.bytes()?), to: path(input.bytes()?) },
            _ => return None,
        };
        Some(Event { time, what })
    }
}

impl Batch {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.number);
        put_varint(&mut out, self.revision);
        put_bytes(&mut out, self.machine.as_bytes());
        put_varint(&mut out, self.events.len() as u64);
        self.events.iter().for_each(|event| event.encode(&mut out));
        out
    }

    /// Decodes [`Batch::encode`]'s output; `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Batch> {
        let mut input = Input(bytes);
        if input.byte()? != VERSION {
            return None;
        }
        let (number, revision) = (input.number()?, input.number()?);
        let machine = String::from_utf8(input.bytes()?.to_vec()).ok()?;
        let count = input.number()? as usize;
        if count > BATCH_EVENTS_MAX || count > input.0.len() / EVENT_BYTES_MIN || number >> 48 != 0 {
            return None;
        }
        let events = (0..count).map(|_| Event::decode(&mut input)).collect::<Option<Vec<_>>>()?;
        input.ended().then_some(Batch { number, revision, machine, events })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time() -> impl Strategy<Value = Time> {
        (any::<i32>(), 0u32..1_000_000_000).prop_map(|(sec, nsec)| Time { sec: sec.into(), nsec })
    }

    pub(in crate::history) fn meta() -> impl Strategy<Value = Meta> {
        let xattrs = prop::collection::vec((any::<Vec<u8>>(), any::<Vec<u8>>()), 0..3);
        (0u32..0o10000, any::<u32>(), any::<u32>(), time(), prop::option::of(xattrs))
            .prop_map(|(mode, uid, gid, mtime, xattrs)| Meta { mode, uid, gid, mtime, xattrs })
    }

    fn what() -> impl Strategy<Value = What> {
        let path = "[a-c/\u{e9}]{0,9}".prop_map(PathBuf::from);
        let version = (path.clone(), any::<u64>(), any::<[u8; 16]>(), any::<u64>(), meta(), 0u64..4);
        prop_oneof![
            version.prop_map(|(path, file, recipe, size, meta, run)| {
                let (file, recipe) = (FileId(file), RecipeId(recipe));
                What::Version(match run {
                    0 => Version { path, file, recipe, size, meta, kept: true, run: None },
                    1 => Version::given_up(path, file),
                    count => Version {
                        run: Some(Run { first: EventId(size), count }),
                        ..Version::given_up(path, file)
                    },
                })
            }),
            (path.clone(), path.clone(), any::<bool>(), any::<bool>()).prop_map(
                |(from, to, directory, exchanged)| What::Renamed { from, to, directory, exchanged }
            ),
            (path, any::<bool>()).prop_map(|(path, directory)| What::Removed { path, directory }),
            any::<[u8; 32]>().prop_map(|id| What::SnapshotRemoved(DocumentId(id))),
            ("[a-c]{0,9}", "[a-c]{0,9}")
                .prop_map(|(from, to)| What::Linked { from: from.into(), to: to.into() }),
        ]
    }

    proptest! {
        #[test]
        fn a_batch_comes_back(
            number in 0u64..1 << 48, revision in any::<u64>(), machine in ".{0,9}",
            events in prop::collection::vec((time(), what()), 0..9)
        ) {
            let mut events: Vec<Event> =
                events.into_iter().map(|(time, what)| Event { time, what }).collect();
            events.push(Event { time: Time::default(), what: What::Gone });
            let batch = Batch { number, revision, machine, events };
            let encoded = batch.encode();
            prop_assert_eq!(Batch::decode(&encoded).unwrap(), batch);
            for len in 0..encoded.len() {
                prop_assert!(Batch::decode(&encoded[..len]).is_none());
            }
        }

        #[test]
        fn garbage_is_refused_or_has_one_encoding(mut bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Some(batch) = Batch::decode(&bytes) {
                prop_assert_eq!(batch.encode(), bytes);
            }
        }
    }
}
