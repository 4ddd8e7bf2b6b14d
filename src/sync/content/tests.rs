use super::*;
use std::io::{Cursor, Seek, Write};

struct Memory {
    contents: BTreeMap<ContentId, Vec<u8>>,
    chunks: BTreeMap<Tag, Vec<u8>>,
    current: Vec<u8>,
    done: Vec<Vec<u8>>,
}

impl Memory {
    fn new(contents: &[Vec<u8>]) -> Memory {
        let contents = contents.iter().map(|bytes| (ContentId::of(bytes), bytes.clone())).collect();
        Memory { contents, chunks: BTreeMap::new(), current: Vec::new(), done: Vec::new() }
    }
}

impl Source for Memory {
    fn open(&mut self, content: ContentId) -> Result<File, SyncError> {
        let mut file = nameless()?;
        file.write_all(&self.contents[&content]).unwrap();
        file.rewind().unwrap();
        Ok(file)
    }
}

impl Sink for Memory {
    fn begin(&mut self, _: ContentId) -> Result<(), SyncError> {
        self.current.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        self.current.extend_from_slice(bytes);
        Ok(())
    }

    fn chunk(&mut self, tag: Tag) -> Result<Vec<u8>, SyncError> {
        Ok(self.chunks[&tag].clone())
    }

    fn finish(&mut self, _: ContentId) -> Result<(), SyncError> {
        self.done.push(std::mem::take(&mut self.current));
        Ok(())
    }
}

fn noise(len: usize, mut x: u64) -> Vec<u8> {
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

fn want(bytes: &[u8], have: Vec<Tag>) -> Want {
    Want { content: ContentId::of(bytes), size: bytes.len() as u64, base: None, have }
}

fn raw_block(raw: &[u8]) -> Block {
    let mut sender = Sender::new(vec![]).unwrap();
    Block { raw: raw.len() as u32, bytes: sender.compress(raw).unwrap() }
}

#[test]
fn contents_arrive_and_known_chunks_are_not_sent() {
    let old = noise(3 << 20, 1);
    let mut new = old.clone();
    new.splice(1000..1000, *b"an insertion");
    let all = [new.clone(), vec![], b"short".to_vec(), vec![7; 2 << 20]];
    let mut source = Memory::new(&all);
    let mut sink = Memory::new(&[]);
    let mut cutter = Cutter::new(Cursor::new(old), 0);
    let mut have = Vec::new();
    loop {
        let chunk = cutter.next_chunk().unwrap();
        if chunk.is_empty() {
            break;
        }
        have.push(Tag::of(chunk));
        sink.chunks.insert(Tag::of(chunk), chunk.to_vec());
    }
    let wants: Vec<Want> =
        all.iter().map(|bytes| want(bytes, if *bytes == new { have.clone() } else { vec![] })).collect();
    let mut sender = Sender::new((0..).zip(wants.clone()).collect()).unwrap();
    let mut receiver = Receiver::new(&wants).unwrap();
    let (mut bytes, mut made) = (0, 0);
    while let Some(block) = sender.next_block(&mut source).unwrap() {
        bytes += block.bytes.len();
        made += receiver.take(&block, &mut sink).unwrap();
    }
    assert!(receiver.missing().is_empty() && receiver.is_at_rest());
    assert_eq!(sink.done, all);
    assert_eq!(made as usize, all.iter().map(Vec::len).sum::<usize>());
    assert!(bytes < 200_000, "{bytes} bytes were sent");
}

/// What a lying sender is told, and that nothing it sends is finished.
#[test]
fn nothing_of_a_lying_sender_is_taken() {
    let bytes = b"the content".to_vec();
    let id = 0u32.to_le_bytes();
    let record = |bytes: &[u8]| [&[BYTES][..], &(bytes.len() as u32).to_le_bytes(), bytes].concat();
    let cases: Vec<(&str, Block)> = vec![
        ("not asked for", raw_block(&[9; 40])),
        ("do not have the hash", raw_block(&[&id[..], &record(b"another one")].concat())),
        ("more than a content has", raw_block(&[&id[..], &record(b"a longer content")].concat())),
        ("does not have", raw_block(&[&id[..], &[REF], &[5; 16]].concat())),
        ("unknown form", raw_block(&[&id[..], &[77]].concat())),
        ("length that is not allowed", raw_block(&[&id[..], &[BYTES], &u32::MAX.to_le_bytes()].concat())),
        ("length that is not allowed", Block { raw: u32::MAX, bytes: vec![] }),
        ("no zstd stream", Block { raw: 10, bytes: vec![1; 10] }),
        ("a wrong length", Block { raw: 3, ..raw_block(&[0; 100_000]) }),
        ("a wrong length", Block { raw: 300_000, ..raw_block(&[0; 100_000]) }),
        // A bomb: 64 MiB of zeros in some kilobytes, said to be a block.
        ("a wrong length", Block { raw: 1000, bytes: zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap() }),
    ];
    let mut cases = cases;
    // Distances that would make this side keep 128 MiB.
    let mut wide = RawEncoder::new(1).unwrap();
    wide.set_parameter(CParameter::WindowLog(27)).unwrap();
    let wide = Sender { wants: VecDeque::new(), current: None, withheld: vec![], zstd: wide }
        .compress(&[0; 1000])
        .unwrap();
    cases.push(("no zstd stream", Block { raw: 1000, bytes: wide }));
    for (told, block) in cases {
        let mut sink = Memory::new(&[]);
        let mut receiver = Receiver::new(&[want(&bytes, vec![])]).unwrap();
        let taken = receiver.take(&block, &mut sink).and_then(|_| receiver.take_refused());
        let error = taken.unwrap_err().to_string();
        assert!(error.contains(told), "{error} instead of {told}");
        assert!(sink.done.is_empty());
    }
}

/// Whose hash is not known it could not be compared with.
#[test]
fn what_has_no_hash_is_not_sent_whole() {
    let mut sink = Memory::new(&[]);
    let want = Want { content: ContentId::untold(0), ..want(b"x", vec![]) };
    let error = Receiver::new(&[want]).unwrap().take(&raw_block(&[0; 4]), &mut sink).unwrap_err();
    assert!(error.to_string().contains("not asked for"));
}

/// Another file than the one that was wanted, a shorter one, one with more at the end, and one that is gone: each is
/// withheld if it has to be, and the next one arrives.
#[test]
fn a_file_that_changes_while_it_is_sent_is_withheld_and_the_others_arrive() {
    let (old, next) = (noise(100_000, 3), noise(70_000, 4));
    let mut appended = old.clone();
    appended.extend(b"a line");
    for (now, arrives) in [(noise(100_000, 9), false), (old[..50_000].to_vec(), false), (appended, true)] {
        let wants = [want(&old, vec![]), want(&next, vec![])];
        let mut source = Memory::new(std::slice::from_ref(&next));
        source.contents.insert(ContentId::of(&old), now);
        let mut sender = Sender::new((0..).zip(wants.clone()).collect()).unwrap();
        let (mut receiver, mut sink) = (Receiver::new(&wants).unwrap(), Memory::new(&[]));
        while let Some(block) = sender.next_block(&mut source).unwrap() {
            receiver.take(&block, &mut sink).unwrap();
        }
        let withheld: Vec<u32> = sender.take_withheld().iter().map(|one| one.number).collect();
        assert_eq!(withheld, if arrives { vec![] } else { vec![0] });
        assert_eq!(receiver.take_refused().is_err(), !arrives, "it is a lie until the sender has said so");
        withheld.iter().for_each(|number| receiver.forget(*number));
        assert!(receiver.take_refused().unwrap().is_empty() && receiver.missing().is_empty());
        assert_eq!(sink.done, if arrives { vec![old.clone(), next.clone()] } else { vec![next.clone()] });
    }
}

/// A disk that has room for so many bytes.
struct Small(Memory, usize);

impl Sink for Small {
    fn begin(&mut self, content: ContentId) -> Result<(), SyncError> {
        self.0.begin(content)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        self.1 = self.1.checked_sub(bytes.len()).ok_or_else(|| SyncError::io("write", "it", full))?;
        self.0.write(bytes)
    }

    fn chunk(&mut self, tag: Tag) -> Result<Vec<u8>, SyncError> {
        self.0.chunk(tag)
    }

    fn finish(&mut self, content: ContentId) -> Result<(), SyncError> {
        self.0.finish(content)
    }

    fn discard(&mut self) -> Result<(), SyncError> {
        self.1 += self.0.current.len();
        Ok(())
    }
}

#[test]
fn what_a_full_disk_has_no_room_for_does_not_keep_the_others_away() {
    let all = [noise(10_000, 3), noise(100_000, 4), noise(20_000, 5)];
    let wants: Vec<Want> = all.iter().map(|bytes| want(bytes, vec![])).collect();
    let mut sender = Sender::new((0..).zip(wants.clone()).collect()).unwrap();
    let (mut receiver, mut sink) = (Receiver::new(&wants).unwrap(), Small(Memory::new(&[]), 90_000));
    while let Some(block) = sender.next_block(&mut Memory::new(&all)).unwrap() {
        receiver.take(&block, &mut sink).unwrap();
    }
    let refused = receiver.take_refused().unwrap();
    assert!(refused.len() == 1 && refused[0].0 == 1 && refused[0].1.contains("no room"), "{refused:?}");
    assert_eq!(sink.0.done, [all[0].clone(), all[2].clone()]);
}
