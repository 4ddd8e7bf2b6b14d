//! Messages of two peers, and their encoding. docs/sync.md is the specification.
//!
//! ```text
//! frame = length of the body (u32, LE, at most FRAME_BYTES_MAX), type (u8), flags (u8), body (postcard)
//! ```
//!
//! - The reader skips a frame of an unknown type if its flag *optional* is set; otherwise it is an error.
//! - The reader checks a length before it reads anything into memory.

use super::content::{Block, Tag, Withheld};
use super::device::Device;
use super::error::{Silence, SyncError};
use super::known::Telling;
use super::plan::Summary;
use super::tree::{RootHash, Time};
use super::version::{Snapshot, SnapshotId};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

/// Versions of the protocol that this program speaks, lowest and highest.
pub const PROTOCOL: (u16, u16) = (1, 1);
/// Maximum length of a body.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Maximum number of successive frames of unknown types; one more is allowed each second.
const SKIPPED_MAX: u64 = 256;
const OPTIONAL: u8 = 1;
/// A keep-alive, which a side sends while it works without data to send: an optional frame of an unused type.
pub const ALIVE: [u8; 6] = [0, 0, 0, 0, 0, OPTIONAL];

/// The direction of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// Both sides get the merged tree.
    #[default]
    Both,
    /// Only the called side gets it.
    Push,
    /// Only the calling side gets it.
    Pull,
}

/// Options of the calling side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// The direction.
    pub direction: Direction,
    /// Changes nothing.
    pub dry_run: bool,
    /// Overrides the guards.
    pub force: bool,
}

/// In a [`Hello`]: the directory is not an overlay yet, and a sync would make it one.
pub const NEW_OVERLAY: &str = "new overlay";
/// In a [`Hello`]: the directory does not exist.
pub const NEW_DIRECTORY: &str = "new directory";

/// In a [`Hello`]: the side takes trees with owners and ACLs.
pub const OWNERS: &str = "owners";

/// The first message of a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Lowest and highest version.
    pub protocol: (u16, u16),
    /// Names of features beyond the version.
    pub features: Vec<String>,
    /// The store of the replica.
    pub store: String,
    /// The name of the replica.
    pub device: Device,
    /// The options, from the calling side only.
    pub options: Option<Options>,
}

/// A part of the sender's tree, or of a common ancestor that the receiver does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreePart {
    /// The snapshot whose tree it is; `None` for the sender's present tree.
    pub of: Option<SnapshotId>,
    /// The snapshot that it is encoded against; `None` for the whole tree.
    pub base: Option<SnapshotId>,
    /// The compressed bytes.
    pub bytes: Vec<u8>,
    /// Whether it is the last part.
    pub last: bool,
}

/// Contents of a common ancestor that a side can still read, in addition to those of its own tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The snapshot whose tree it is.
    pub of: SnapshotId,
    /// Contents by rank in that tree ([`super::batch::Ranks`]).
    pub ranks: Vec<u32>,
}

/// A part of a stream of deltas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaPart {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether it is the last part.
    pub last: bool,
}

/// The result of merging on a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    /// Root of the merged tree.
    pub root: RootHash,
    /// The steps that this side would do.
    pub summary: Summary,
    /// The reason why this side refuses.
    pub refused: Option<String>,
}

/// The result on a side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Paths that were changed meanwhile, or could not be changed: left as they are.
    pub skipped: Vec<(Vec<u8>, String)>,
}

/// The state of a side that could not take the whole agreed tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Took {
    /// The snapshot that it is at now.
    pub snapshot: Snapshot,
    /// Its tree against the agreed one ([`super::diff`]).
    pub tree: Vec<u8>,
}

/// An error in its encoded form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The message.
    pub message: String,
    /// A remedy.
    pub hint: Option<String>,
}

/// A request for a content that a side lacks. Both sides have the agreed tree, so its rank there names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The content, by its rank in the agreed tree ([`super::batch::Ranks`]).
    pub content: u32,
    /// The former content of the file, by its rank in the requesting side's tree.
    pub base: Option<u32>,
    /// Chunks that the requesting side has.
    pub have: Vec<Tag>,
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident($body:ty) = $number:literal,)*) => {
        /// One frame.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$doc])* $name($body),)*
        }

        impl Message {
            /// Returns the type on the wire.
            pub fn number(&self) -> u8 {
                match self {
                    $(Message::$name(_) => $number,)*
                }
            }

            fn body(&self) -> Vec<u8> {
                let body = match self {
                    $(Message::$name(body) => postcard::to_allocvec(body),)*
                };
                body.expect("a message can be encoded")
            }

            /// Decodes a body. Returns `None` if the type is unknown.
            pub fn decode(number: u8, body: &[u8]) -> Result<Option<Message>, SyncError> {
                let wrong = || SyncError::peer(format!("sent a frame of type {number} that cannot be read"));
                let (message, rest) = match number {
                    $($number => {
                        let (body, rest) = postcard::take_from_bytes(body).map_err(|_| wrong())?;
                        (Message::$name(body), rest)
                    })*
                    _ => return Ok(None),
                };
                if rest.is_empty() { Ok(Some(message)) } else { Err(wrong()) }
            }
        }
    };
}

messages! {
    /// The first message.
    Hello(Hello) = 1,
    /// The history that a side knows.
    Known(Telling) = 2,
    /// A part of a tree.
    Tree(TreePart) = 3,
    /// The result of merging on a side.
    Agreed(Agreed) = 4,
    /// Requests for contents.
    Wants(Vec<Asked>) = 5,
    /// The end of the requests.
    WantsEnd(()) = 6,
    /// A part of the contents.
    Data(Block) = 7,
    /// The end of the contents.
    DataEnd(()) = 8,
    /// All requested contents have arrived.
    Ready(()) = 9,
    /// Both are ready: change the trees.
    Commit(()) = 10,
    /// The trees are changed.
    Done(Done) = 11,
    /// An error; the last message.
    Failed(Failure) = 12,
    /// Former contents that the sender can still read.
    Held(Held) = 13,
    /// A batch of deltas begins. The numbers of its wants come as runs: how many wants to skip, and how many follow.
    Deltas(Vec<(u32, u32)>) = 14,
    /// A part of the deltas' stream.
    Delta(DeltaPart) = 15,
    /// The fast path (only one side has changes) is not possible: both sides take the long one.
    Long(()) = 16,
    /// Requested contents that are not sent.
    Withheld(Vec<Withheld>) = 17,
    /// Paths that the sender could not read, or not store completely, and the reasons.
    Troubles(Vec<(Vec<u8>, String)>) = 18,
    /// The sender's tree, if it could not take the whole agreed tree.
    Took(Took) = 19,
    /// The tree of the called side has changed, or the calling side says so of its own: the next sync may begin. Sent
    /// between syncs, so it may arrive at the beginning of one.
    Changed(()) = 20,
    /// Requests a [`Message::Changed`].
    Wake(()) = 21,
    /// Contents of the sender's tree that it does not have, by rank, as runs: how many ranks to skip, and how many follow.
    Lacks(Vec<(u32, u32)>) = 22,
    /// Times of the sender's directories, by their numbers in the agreed tree.
    Times(Vec<(u32, Time)>) = 23,
}

impl Message {
    /// Encodes a frame.
    pub fn encode(&self) -> Vec<u8> {
        let body = self.body();
        debug_assert!(body.len() <= FRAME_BYTES_MAX);
        let flags = match self {
            Message::Withheld(_)
            | Message::Troubles(_)
            | Message::Took(_)
            | Message::Lacks(_)
            | Message::Times(_) => OPTIONAL,
            _ => 0,
        };
        [&(body.len() as u32).to_le_bytes()[..], &[self.number(), flags], &body].concat()
    }
}

/// Writes a frame. Returns its length in bytes.
pub fn write(to: &mut impl Write, message: &Message) -> Result<u64, SyncError> {
    let frame = message.encode();
    to.write_all(&frame).and_then(|()| to.flush()).map_err(|e| failed("write to", e))?;
    Ok(frame.len() as u64)
}

/// Reads a frame, and skips unknown optional ones. Returns its length in bytes too.
pub fn read(from: &mut impl Read) -> Result<(Message, u64), SyncError> {
    let mut total = 0;
    let (mut skipped, began) = (0, Instant::now());
    while skipped <= SKIPPED_MAX + began.elapsed().as_secs() {
        skipped += 1;
        let mut head = [0; 6];
        fill(from, &mut head)?;
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (number, flags) = (head[4], head[5]);
        if len > FRAME_BYTES_MAX {
            return Err(SyncError::peer(format!(
                "announced a frame of {len} bytes, more than {FRAME_BYTES_MAX}"
            )));
        }
        let mut body = Vec::new();
        let read = from.by_ref().take(len as u64).read_to_end(&mut body);
        match read.map_err(|e| failed("read from", e))? == len {
            true => total += 6 + len as u64,
            false => return Err(SyncError::Cut),
        }
        match Message::decode(number, &body)? {
            Some(message) => return Ok((message, total)),
            None if flags & OPTIONAL != 0 => {}
            None => return Err(SyncError::peer(format!("sent a frame of the unknown type {number}"))),
        }
    }
    Err(SyncError::peer("sent nothing but frames of unknown types"))
}

fn fill(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), SyncError> {
    from.read_exact(bytes).map_err(|e| failed("read from", e))
}

fn failed(operation: &'static str, e: std::io::Error) -> SyncError {
    match (e.kind(), e.get_ref().and_then(|e| e.downcast_ref::<Silence>())) {
        (ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset, _) => SyncError::Cut,
        (_, Some(Silence(silence))) => SyncError::Silent(*silence),
        _ => SyncError::io(operation, "the other side", e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_unknown_optional_ones_are_skipped() {
        let message = Message::Failed(Failure { message: "no".to_owned(), hint: None });
        let mut bytes = vec![2, 0, 0, 0, 200, OPTIONAL, 1, 2];
        bytes.extend(message.encode());
        let (read_back, len) = read(&mut &bytes[..]).unwrap();
        assert_eq!((read_back, len as usize), (message, bytes.len()));
        bytes[5] = 0;
        assert!(read(&mut &bytes[..]).unwrap_err().to_string().contains("unknown type 200"));
    }

    #[test]
    fn lying_lengths_and_endless_streams_end() {
        let e = read(&mut &[0xff, 0xff, 0xff, 0xff, 1, 0][..]).unwrap_err();
        assert!(e.to_string().contains("4294967295"), "{e}");
        assert!(matches!(read(&mut &[9, 0, 0, 0, 1, 0, 1][..]), Err(SyncError::Cut)));
        assert!(matches!(read(&mut &[][..]), Err(SyncError::Cut)));
        let endless = [0, 0, 0, 0, 200, OPTIONAL].repeat(SKIPPED_MAX as usize + 100);
        assert!(read(&mut &endless[..]).unwrap_err().to_string().contains("nothing but"));
    }
}
