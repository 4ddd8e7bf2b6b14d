//! Peers that lie.

use super::*;

/// Says `messages` to a replica that has one file. Returns what it was told.
fn tell(copy: &Copy, messages: &[Message]) -> String {
    let mut local = copy.open(true).unwrap();
    let mut session = Session::answer();
    let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
    let mut out = Vec::new();
    let result = link::run(&mut session, &mut local, &mut &bytes[..], &mut out, &mut |_, _| {});
    result.unwrap_err().to_string()
}

#[test]
fn a_peer_that_lies_changes_nothing() {
    let device = Device::named("evil");
    let hello = |options| {
        Message::Hello(Hello {
            protocol: PROTOCOL,
            features: vec![],
            store: String::new(),
            device: device.clone(),
            options,
        })
    };
    let opening = |tree: &Tree| {
        let snapshot = Snapshot::of(tree.root(), None, device.clone(), 1);
        let head = snapshot.id();
        let known =
            Known { head, snapshots: vec![snapshot], trees: [head].into(), heads: vec![], begun: false };
        let mut told = Told::default();
        told.greet(&device);
        let known = told.tell(&known);
        let bytes = diff::encode(&Tree::default(), tree, None, &Default::default()).unwrap();
        vec![
            hello(Some(Options { force: true, ..Options::default() })),
            Message::Known(known),
            Message::Tree(TreePart { of: None, base: None, bytes, last: true }),
        ]
    };
    let copy = Copy::new();
    copy.write("mine", "mine");
    let bad =
        |path: &str| tree(&[("a", super::super::super::merge::tests::dir(1)), (path, file(2, "evil", "x"))]);
    let mut cases: Vec<(&str, Vec<Message>)> = vec![
        ("not a path below", opening(&bad("../escape"))),
        ("not a path below", opening(&bad("a/../../escape"))),
        ("not a path below", opening(&bad("/etc/cron.d/x"))),
        ("not a path below", opening(&bad(".dedupfs/key"))),
        ("lies in no directory", opening(&bad("nowhere/x"))),
        ("when Hello was due", vec![Message::Commit(())]),
        (
            "sync protocol",
            vec![Message::Hello(Hello {
                protocol: (9, 9),
                features: vec![],
                store: String::new(),
                device: device.clone(),
                options: None,
            })],
        ),
    ];
    let mut setuid = bad("a/x");
    setuid.entries.get_mut(&b"a/x"[..]).unwrap().mode = 0o4755;
    cases.push(("cannot be", opening(&setuid)));
    // Another tree than announced.
    let mut other = opening(&bad("a/x"));
    let bytes = diff::encode(&Tree::default(), &bad("a/y"), None, &Default::default()).unwrap();
    other[2] = Message::Tree(TreePart { of: None, base: None, bytes, last: true });
    cases.push(("has the root", other));
    // Everything that this side does not have, wanted.
    let root = |copy: &Copy| {
        let local = copy.open(true).unwrap();
        super::super::super::merge::merge(&Tree::default(), &local.tree, &bad("a/x")).tree.root()
    };
    let agreed = |root| Message::Agreed(proto::Agreed { root, summary: Default::default(), refused: None });
    let want = |content| Message::Wants(vec![proto::Asked { content, base: None, have: vec![] }]);
    let good = root(&copy);
    let with = |more: Vec<Message>| [opening(&bad("a/x")), more].concat();
    let end = Message::WantsEnd(());
    cases.push(("different trees", with(vec![agreed(super::super::super::tree::RootHash([1; 32]))])));
    cases.push(("does not reach", with(vec![agreed(good), want(99), end.clone()])));
    // The first of the agreed tree is what only the peer has.
    cases.push(("does not reach", with(vec![agreed(good), want(0), end.clone()])));
    cases.push(("more than there is", with([vec![agreed(good)], vec![want(0); 9]].concat())));
    cases.push(("more than there is", with(vec![agreed(good), Message::Wants(vec![])])));
    cases.push((
        "without having sent",
        with(vec![agreed(good), end.clone(), Message::DataEnd(()), Message::Commit(())]),
    ));
    cases.push(("when Commit was due", with(vec![agreed(good), Message::Commit(())])));
    for (told, messages) in cases {
        let before = copy.tree();
        let error = tell(&copy, &messages);
        // What is due next names itself.
        assert!(
            error.contains(told) || (told.starts_with("when") && error.contains("was due")),
            "{error} for {told}"
        );
        assert_eq!(copy.tree(), before);
        assert_eq!(fs::read_dir(copy.dir.path()).unwrap().count(), 2, "something escaped");
    }
}
