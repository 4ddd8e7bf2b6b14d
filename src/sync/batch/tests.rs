use super::super::content::nameless;
use super::super::merge::tests::{file, tree};
use super::*;

/// A tree of one old file, and what is put together.
struct Home {
    old: Vec<u8>,
    current: Vec<u8>,
    done: Vec<Vec<u8>>,
}

fn in_file(bytes: &[u8]) -> File {
    let mut file = nameless().unwrap();
    file.write_all(bytes).unwrap();
    file
}

impl Sink for Home {
    fn begin(&mut self, _: ContentId) -> Result<(), SyncError> {
        self.current.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        self.current.extend_from_slice(bytes);
        Ok(())
    }

    fn chunk(&mut self, _: super::super::content::Tag) -> Result<Vec<u8>, SyncError> {
        unreachable!()
    }

    fn finish(&mut self, _: ContentId) -> Result<(), SyncError> {
        self.done.push(std::mem::take(&mut self.current));
        Ok(())
    }

    fn own(&mut self, content: ContentId) -> Result<Option<File>, SyncError> {
        Ok((content == ContentId::of(old().as_bytes())).then(|| in_file(&self.old)))
    }
}

fn old() -> String {
    (0..200).map(|n| format!("line {n}\n")).collect()
}

fn home() -> (Home, Tree) {
    let home = Home { old: old().into_bytes(), current: Vec::new(), done: Vec::new() };
    (home, tree(&[("f", file(1, "a", &old()))]))
}

fn want(bytes: &[u8]) -> Want {
    Want { content: ContentId::of(bytes), size: bytes.len() as u64, base: Some(0), have: vec![] }
}

/// A stream of `targets` against the old file.
fn stream(targets: &[&[u8]]) -> Vec<u8> {
    let opened = Opened(HashMap::from([(BaseId(0), in_file(old().as_bytes()))]));
    let mut encoder = Encoder::new(&opened, Options::default(), Vec::new()).unwrap();
    for target in targets {
        encoder.add(&target.to_vec(), Some(BaseId(0)), &[BaseId(0)]).unwrap();
    }
    encoder.finish().unwrap().1
}

/// What is staged when `stream` comes for `wants`.
fn arrive(wants: &[Want], stream: &[u8], old: &[u8]) -> (Vec<(u32, ContentId)>, Vec<Vec<u8>>) {
    let (mut home, tree) = home();
    home.old = old.to_vec();
    let mut left = (0..wants.len() as u32).collect();
    let mut arriving = Arriving::new(&[(0, wants.len() as u32)], wants, &mut left, &mut home).unwrap();
    arriving.take(stream).unwrap();
    (arriving.finish(&tree, &mut home).unwrap(), home.done)
}

#[test]
fn nothing_of_a_lying_teller_is_taken() {
    let old = old().into_bytes();
    let new = [&old[..], b"and new"].concat();
    let other = [&old[..], b"and NEW"].concat();
    let good = stream(&[&new, b"second"]);
    assert!(good.len() < 300, "{} bytes", good.len());
    let wants = [want(&new), want(b"second")];
    let none: [Vec<u8>; 0] = [];
    assert_eq!(arrive(&wants, &good, &old).1, [new.clone(), b"second".to_vec()]);
    assert_eq!(arrive(&[want(&other)], &stream(&[&new]), &old).1, none, "another content of the same size");
    assert_eq!(arrive(&[want(&old)], &stream(&[&new]), &old).1, none, "a longer one");
    assert_eq!(arrive(&wants[..1], &good, &old).1.len(), 0, "more than announced");
    assert_eq!(arrive(&wants, &stream(&[&new]), &old).1, [&new[..]], "fewer");
    assert_eq!(arrive(&wants, &good[..good.len() / 2], &old).1, none, "cut short");
    assert_eq!(arrive(&[want(b"x")], &stream(&[&vec![0; 1 << 20]]), &old).1, none, "much longer");
    let mut changed = old.clone();
    changed[40] ^= 1;
    assert_eq!(arrive(&wants, &good, &changed).1, none, "against what was changed meanwhile");
}

#[test]
fn nothing_that_was_not_asked_for_is_begun() {
    let (mut home, _) = home();
    let wants = [want(b"a"), want(b"b")];
    let mut left = BTreeSet::from([0, 1]);
    for runs in [&[(2, 1)][..], &[(0, 3)], &[(0, 0)], &[(u32::MAX, u32::MAX)], &[]] {
        let mut left = left.clone();
        assert!(Arriving::new(runs, &wants, &mut left, &mut home).is_err(), "{runs:?}");
    }
    let mut arriving = Arriving::new(&[(0, 1)], &wants, &mut left, &mut home).unwrap();
    assert!(Arriving::new(&[(0, 1)], &wants, &mut left, &mut home).is_err(), "once only");
    // A stream without end.
    let endless = (0..100).find_map(|_| arriving.take(&vec![0; PART_BYTES_MAX]).err());
    assert!(endless.is_some_and(|e| e.to_string().contains("longer than its contents allow")));
    assert!(arriving.take(&[]).is_err());
}
