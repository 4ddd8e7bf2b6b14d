//! Fewer bytes: deltas, and the fast path of a side that is behind.

use super::*;

/// What a store still has of the past, and what resembles it, makes small what is sent of a change.
#[test]
fn changes_go_as_deltas() {
    let (a, b) = (Copy::new(), Copy::new());
    let old = noise(2 << 20, 3);
    a.write("big", &old);
    a.write("alike/one", noise(300_000, 4));
    (0..50).for_each(|n| a.write(&format!("d/{n}"), format!("{n} ").repeat(400)));
    sync(&a, &b);
    // In either direction, also of what arrived by a sync.
    for round in 0..2u8 {
        let (from, to) = if round == 0 { (&a, &b) } else { (&b, &a) };
        let mut new = from.read("big");
        for at in (0..20).map(|n| n * 100_000 + 7) {
            new[at] ^= 1 + round;
        }
        new.splice(1_000_000..1_000_000, *b"inserted");
        from.write("big", &new);
        (0..50).for_each(|n| {
            let text = String::from_utf8(from.read(&format!("d/{n}"))).unwrap();
            from.write(&format!("d/{n}"), format!("{round}{text}"));
        });
        // New, and nearly one that is there.
        let mut like = from.read("alike/one");
        like.extend_from_slice(b"and more");
        from.write(&format!("like {round}"), like);
        let (outcome, traffic) = sync(from, to);
        assert_eq!((outcome.there.updated, outcome.there.created), (51, 1));
        assert_eq!(to.read("big"), new);
        assert!(traffic.sent < 12_000 && traffic.received < 4_000, "{traffic:?}");
    }
}

/// Only one side has changed: in either role it tells at once what there is, in fewer bytes than the hashes would take.
#[test]
fn who_is_behind_is_told_at_once() {
    let (a, b) = (Copy::new(), Copy::new());
    (0..200).for_each(|n| a.write(&format!("d/{n}"), format!("{n} ").repeat(400)));
    sync(&a, &b);
    for round in 0..4 {
        let changed = if round % 2 == 0 { &a } else { &b };
        (0..200).for_each(|n| {
            let text = String::from_utf8(changed.read(&format!("d/{n}"))).unwrap();
            changed.write(&format!("d/{n}"), format!("{round}{text}"));
        });
        changed.write(&format!("new {round}"), "new");
        let (outcome, traffic) = sync(&a, &b);
        let done = if round % 2 == 0 { outcome.there } else { outcome.here };
        assert_eq!((done.updated, done.created), (200, 1));
        let (told, heard) = match round % 2 {
            0 => (traffic.sent, traffic.received),
            _ => (traffic.received, traffic.sent),
        };
        assert!(told < 200 * 32 && heard < 400, "{traffic:?}");
    }
    let (_, traffic) = sync(&a, &b);
    assert!(traffic.sent + traffic.received < 600, "nothing has changed: {traffic:?}");
}

/// The same, cut in every frame of either side and run again.
#[test]
fn what_is_told_at_once_is_cut_and_resumed() {
    for ahead_calls in [true, false] {
        for frame in 0..12 {
            for cuts in [(frame, u32::MAX), (u32::MAX, frame)] {
                let (a, b) = (Copy::new(), Copy::new());
                (0..5).for_each(|n| a.write(&format!("{n}"), format!("{n} ").repeat(400)));
                sync(&a, &b);
                let ahead = if ahead_calls { &a } else { &b };
                (0..5).for_each(|n| ahead.write(&format!("{n}"), format!("{n} ").repeat(401)));
                ahead.write("big", noise(300_000, 5));
                let _ = sync_cut(&a, &b, Options::default(), cuts);
                for copy in [&a, &b] {
                    let len = copy.read("0").len();
                    assert!([800, 802].contains(&len), "{len} bytes after a cut at {frame}");
                }
                let (outcome, _) = sync(&a, &b);
                assert!(outcome.conflicts.is_empty(), "invented after a cut at {frame}");
                assert_eq!((a.read("4").len(), b.read("big")), (802, noise(300_000, 5)));
            }
        }
    }
}

/// What is told without hashes has to have the root that was announced.
#[test]
fn what_is_told_at_once_is_proved_by_the_root() {
    let copy = Copy::new();
    copy.write("mine", "mine");
    let device = Device::named("evil");
    let (head, dag, before) = {
        let local = copy.open(true).unwrap();
        (local.head(), local.memory.dag.clone(), local.tree.clone())
    };
    let mut told = before.clone();
    told.entries.insert(b"x".to_vec(), file(2, "evil", "announced"));
    let snapshot = Snapshot::of(told.root(), Some(head), device.clone(), 1);
    let evil = snapshot.id();
    let snapshots = dag.iter().map(|(_, snapshot)| snapshot.clone()).chain([snapshot]).collect();
    let known = Known { head: evil, snapshots, trees: [head, evil].into(), heads: vec![], begun: false };
    let run = |text: &str, more: Vec<Message>| {
        let mut past = Told::default();
        past.greet(&device);
        let mut encoder =
            Encoder::new(&NoBases, super::super::super::delta::Options::default(), Vec::new()).unwrap();
        encoder.add(&text.as_bytes().to_vec(), None, &[]).unwrap();
        let untold = [ContentId::of(b"announced")].into();
        let bytes = diff::encode(&before, &told, None, &untold).unwrap();
        assert!(!bytes.windows(8).any(|part| *part == ContentId::of(b"announced").0[..8]));
        let options = Some(Options { force: true, ..Options::default() });
        let hello = Hello {
            protocol: PROTOCOL,
            features: vec![],
            store: String::new(),
            device: device.clone(),
            options,
        };
        let mut messages = vec![
            Message::Hello(hello),
            Message::Known(past.tell(&known)),
            Message::Tree(TreePart { of: None, base: Some(head), bytes, last: true }),
            Message::Deltas(vec![(0, 1)]),
            Message::Delta(proto::DeltaPart { bytes: encoder.finish().unwrap().1, last: true }),
            Message::DataEnd(()),
        ];
        messages.extend(more);
        let mut local = copy.open(true).unwrap();
        let mut session = Session::answer();
        let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        let mut out = Vec::new();
        let done = link::run(&mut session, &mut local, &mut &bytes[..], &mut out, &mut |_, _| {});
        done.map(drop).map_err(|e| e.to_string())
    };
    let names = copy.names();
    // Of the same length, so that nothing but the hash tells it apart.
    let error = run("pronounced"[1..].to_owned().as_str(), vec![Message::Commit(())]).unwrap_err();
    assert!(error.contains("Commit") || error.contains("type 10 when Tree was due"), "{error}");
    assert_eq!((copy.names(), copy.tree()), (names, before.clone()), "nothing shows");
    fs::remove_dir_all(copy.at(tree::STAGING)).unwrap();
    run("announced", vec![]).unwrap();
    assert_eq!(copy.read("x"), b"announced");
}

struct NoBases;

impl super::super::super::delta::Bases for NoBases {
    fn open(
        &self,
        _: super::super::super::delta::BaseId,
    ) -> std::io::Result<Option<Box<dyn super::super::super::delta::ReadAt + '_>>> {
        Ok(None)
    }
}
