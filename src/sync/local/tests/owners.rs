//! Owners and ACLs. Root only: the tests end at once for others.

use super::super::super::attributes::acl::{self, ACCESS_XATTR, DEFAULT_XATTR};
use super::super::super::attributes::{ACL, DEFAULT_ACL, OWNER, id_of};
use super::super::super::owners::{Owners, Sees};
use super::*;
use rustix::fs::{AtFlags, CWD, Gid, Uid, XattrFlags};
use std::sync::Arc;

const ALL: Sees = Sees { owner: true, acl: true };
const NONE: Sees = Sees { owner: false, acl: false };

/// Two directories that see owners and ACLs; none for other users than root.
fn two() -> Option<(Copy, Copy)> {
    rustix::process::geteuid().is_root().then(|| (of(ALL), of(ALL)))
}

fn of(sees: Sees) -> Copy {
    let copy = Copy::new();
    copy.set(sees, &[]);
    copy
}

impl Copy {
    fn set(&self, sees: Sees, owners: &[(&str, &str)]) {
        let map = owners.iter().map(|(there, here)| ((*there).to_owned(), (*here).to_owned())).collect();
        self.rules.lock().unwrap().owners = Arc::new(Owners::new(sees, &map));
    }

    fn chown(&self, path: &str, uid: u32, gid: u32) {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(CWD, self.at(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    fn owner(&self, path: &str) -> (u32, u32) {
        let meta = self.at(path).symlink_metadata().unwrap();
        (meta.uid(), meta.gid())
    }

    fn bits(&self, path: &str) -> u32 {
        self.at(path).metadata().unwrap().mode() & 0o7777
    }

    /// Sets an ACL: numbers as names, without the entries of the mode for an access ACL.
    fn set_acl(&self, path: &str, text: &str, default: bool) {
        let acl = acl::parse(text.as_bytes(), default).unwrap();
        let mut acl = acl::translate(&acl, |name, _| id_of(name));
        if !default {
            acl = acl::with_mode(&acl, self.bits(path) as u16);
        }
        let xattr = if default { DEFAULT_XATTR } else { ACCESS_XATTR };
        rustix::fs::setxattr(self.at(path), xattr, &acl::encode(&acl), XattrFlags::empty()).unwrap();
    }

    fn acl(&self, path: &str, default: bool) -> Option<String> {
        let mut value = [0; 4096];
        let xattr = if default { DEFAULT_XATTR } else { ACCESS_XATTR };
        let len = rustix::fs::getxattr(self.at(path), xattr, &mut value[..]).ok()?;
        let mut acl = acl::decode(&value[..len]).unwrap();
        if !default {
            acl = acl::without_mode(acl).unwrap();
        }
        let acl = acl::translate(&acl, |id, _| Some(format!("#{id}").into_bytes()));
        Some(String::from_utf8(acl::text(&acl)).unwrap())
    }

    fn attribute(&self, path: &str, name: &[u8]) -> Option<String> {
        let value = self.tree().entries[path.as_bytes()].xattrs.get(name).cloned()?;
        Some(String::from_utf8(value).unwrap())
    }
}

/// Syncs, and then syncs again, which has nothing to do.
#[track_caller]
fn sync_and_rest(a: &Copy, b: &Copy) -> Outcome {
    let (done, _) = sync(a, b);
    let (rest, _) = sync(a, b);
    assert_eq!((rest.here, rest.there), Default::default(), "nothing is left to do");
    done
}

const NAMED: &str = "user:#7001:rw-,group::r--";
const DEFAULT: &str = "user::rwx,user:#7001:rwx,group::r-x,mask::rwx,other::---";

#[test]
fn owners_and_acls_of_all_kinds_of_files_arrive() {
    let Some((a, b)) = two() else { return };
    a.write("d/small", "small");
    a.write("d/long", noise(200_000, 3));
    a.write("d/acl", "acl");
    a.write("same 1", "same");
    a.write("same 2", "same");
    fs::hard_link(a.at("d/small"), a.at("hard")).unwrap();
    symlink("/etc/shadow", a.at("d/link")).unwrap();
    rustix::fs::mknodat(CWD, a.at("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o640), 0)
        .unwrap();
    let owners = [
        ("d", 7001),
        ("d/small", 7002),
        ("d/long", 7003),
        ("d/link", 7004),
        ("fifo", 7005),
        ("same 2", 7006),
    ];
    owners.iter().for_each(|(path, id)| a.chown(path, *id, id + 10));
    fs::set_permissions(a.at("d/acl"), PermissionsExt::from_mode(0o660)).unwrap();
    a.set_acl("d/acl", NAMED, false);
    a.set_acl("d", NAMED, false);
    a.set_acl("d", DEFAULT, true);
    let shadow = fs::metadata("/etc/shadow").unwrap().uid();
    sync_and_rest(&a, &b);
    for (path, id) in owners {
        assert_eq!(b.owner(path), (id, id + 10), "{path}");
    }
    assert_eq!((b.owner("hard"), b.owner("same 1"), b.owner("d/acl")), ((7002, 7012), (0, 0), (0, 0)));
    assert_eq!(fs::metadata("/etc/shadow").unwrap().uid(), shadow, "the target of a symlink stays");
    assert_eq!((b.acl("d/acl", false).as_deref(), b.bits("d/acl")), (Some(NAMED), 0o660));
    assert_eq!((b.acl("d", false).as_deref(), b.acl("d", true).as_deref()), (Some(NAMED), Some(DEFAULT)));
    // Nothing inherits the default ACL.
    assert_eq!((b.acl("d/small", false), b.acl("d/long", false)), (None, None));

    // Each alone, in the other direction.
    b.chown("d/long", 7020, 7021);
    sync_and_rest(&b, &a);
    assert_eq!(a.owner("d/long"), (7020, 7021));
    b.set_acl("d/small", "group::---,group:#7001:r-x", false);
    sync_and_rest(&a, &b);
    assert_eq!(a.acl("hard", false).as_deref(), Some("group::---,group:#7001:r-x"));
    a.chown("d", 0, 0);
    a.chown("d/link", 0, 7);
    rustix::fs::removexattr(a.at("d/acl"), ACCESS_XATTR).unwrap();
    rustix::fs::removexattr(a.at("d"), DEFAULT_XATTR).unwrap();
    fs::set_permissions(a.at("d/acl"), PermissionsExt::from_mode(0o640)).unwrap();
    sync_and_rest(&a, &b);
    assert_eq!((b.owner("d"), b.owner("d/link")), ((0, 0), (0, 7)));
    assert_eq!((b.acl("d/acl", false), b.bits("d/acl"), b.acl("d", true)), (None, 0o640, None));
    // New files in a directory with a default ACL, whose root has one too.
    a.set_acl("", DEFAULT, true);
    b.set_acl("", DEFAULT, true);
    a.set_acl("d", DEFAULT, true);
    a.write("d/e/new", "new");
    rustix::fs::removexattr(a.at("d/e/new"), ACCESS_XATTR).unwrap();
    rustix::fs::removexattr(a.at("d/e"), DEFAULT_XATTR).unwrap();
    a.write("top", "top");
    rustix::fs::removexattr(a.at("top"), ACCESS_XATTR).unwrap();
    sync_and_rest(&a, &b);
    assert_eq!((b.acl("d/e/new", false), b.acl("d/e", true), b.acl("top", false)), (None, None, None));
    assert_eq!(b.acl("d/e", false), a.acl("d/e", false));
}

#[test]
fn a_mode_and_an_acl_are_changed_separately() {
    let Some((a, b)) = two() else { return };
    a.write("f", "f");
    fs::set_permissions(a.at("f"), PermissionsExt::from_mode(0o660)).unwrap();
    a.set_acl("f", NAMED, false);
    sync_and_rest(&a, &b);
    // A change of the mode on one side, and of the ACL on the other.
    fs::set_permissions(a.at("f"), PermissionsExt::from_mode(0o640)).unwrap();
    b.set_acl("f", "user:#7001:rw-,user:#7002:r--,group::---", false);
    let done = sync_and_rest(&a, &b);
    assert!(done.conflicts.is_empty());
    for side in [&a, &b] {
        assert_eq!(side.acl("f", false).as_deref(), Some("user:#7001:rw-,user:#7002:r--,group::---"));
        assert_eq!(side.bits("f"), 0o640);
    }
    // Both changed the owner.
    a.chown("f", 7002, 7002);
    sync(&a, &b);
    a.chown("f", 7001, 7001);
    b.chown("f", 0, 0);
    sync_and_rest(&a, &b);
    assert_eq!((a.owner("f"), b.owner("f")), ((0, 0), (0, 0)), "root takes rights away");
}

/// A laptop of a user between two servers.
#[test]
fn a_device_that_sees_no_owners_loses_none() {
    let Some((server, other)) = two() else { return };
    let laptop = of(NONE);
    server.write("d/f", "f");
    server.write("d/g", "g");
    for (path, id) in [("d", 7001), ("d/f", 7002), ("d/g", 7003)] {
        server.chown(path, id, id);
    }
    fs::set_permissions(server.at("d/g"), PermissionsExt::from_mode(0o660)).unwrap();
    server.set_acl("d/g", "user:#7009:rw-,group::---", false);
    sync_and_rest(&server, &laptop);
    assert_eq!((laptop.owner("d/f"), laptop.acl("d/g", false)), ((0, 0), None));
    // Without the ACL, the mask is no right of the group.
    assert_eq!(laptop.bits("d/g"), 0o600);
    sync_and_rest(&laptop, &other);
    assert_eq!(
        (other.owner("d"), other.owner("d/f"), other.owner("d/g")),
        ((7001, 7001), (7002, 7002), (7003, 7003))
    );
    assert_eq!(
        (other.acl("d/g", false).as_deref(), other.bits("d/g")),
        (Some("user:#7009:rw-,group::---"), 0o660)
    );
    // It edits, replaces, renames and makes files.
    laptop.write("d/f", "edited");
    laptop.write("d/g.new", "replaced");
    fs::set_permissions(laptop.at("d/g.new"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(laptop.at("d/g.new"), laptop.at("d/g")).unwrap();
    laptop.write("d/sub/new", "new");
    laptop.write("top", "top");
    sync_and_rest(&laptop, &server);
    sync_and_rest(&laptop, &other);
    for side in [&server, &other] {
        assert_eq!((side.owner("d/f"), side.owner("d/g")), ((7002, 7002), (7003, 7003)));
        assert_eq!(
            (side.acl("d/g", false).as_deref(), side.bits("d/g")),
            (Some("user:#7009:rw-,group::---"), 0o660)
        );
        // As their directory.
        assert_eq!((side.owner("d/sub"), side.owner("d/sub/new")), ((7001, 7001), (7001, 7001)));
        assert_eq!((side.read("d/f"), side.read("d/g")), (b"edited".to_vec(), b"replaced".to_vec()));
        assert_eq!(side.owner("top"), (7001, 7001), "all entries of the root belonged to this user");
    }
    sync_and_rest(&server, &other);
    // A change of owners alone passes it.
    server.chown("d/f", 7005, 7005);
    sync_and_rest(&server, &laptop);
    sync_and_rest(&laptop, &other);
    assert_eq!(other.owner("d/f"), (7005, 7005));
    // It changes a mode.
    fs::set_permissions(laptop.at("d/g"), PermissionsExt::from_mode(0o400)).unwrap();
    sync_and_rest(&laptop, &server);
    assert_eq!(
        (server.bits("d/g"), server.acl("d/g", false).as_deref()),
        (0o400, Some("user:#7009:rw-,group::---"))
    );
}

/// No device had ever said who owns it.
#[test]
fn a_file_without_an_owner_gets_that_of_its_directory() {
    let Some((server, other)) = two() else { return };
    let laptop = of(NONE);
    server.chown("", 7001, 7001);
    server.write("of root", "x");
    laptop.write("repo/.git/HEAD", "ref");
    laptop.write("repo/file", "file");
    laptop.write("db", "db");
    laptop.write("db-wal", "wal");
    sync_and_rest(&laptop, &server);
    for path in ["repo", "repo/.git", "repo/.git/HEAD", "repo/file", "db", "db-wal"] {
        assert_eq!(server.owner(path), (7001, 7001), "{path}");
        assert_eq!(server.attribute(path, OWNER), None, "{path}");
    }
    laptop.write("repo/.git/HEAD", "new ref");
    laptop.write("repo/file", "new file");
    laptop.write("db-wal", "new wal");
    sync_and_rest(&laptop, &server);
    for path in ["repo/.git", "repo/.git/HEAD", "repo/file", "db", "db-wal"] {
        assert_eq!(server.owner(path), (7001, 7001), "{path}");
    }
    // Another owner counts.
    server.chown("repo/file", 7002, 7002);
    sync_and_rest(&laptop, &server);
    sync_and_rest(&laptop, &other);
    assert_eq!(other.owner("repo/file"), (7002, 7002));
}

#[test]
fn a_name_that_is_not_known_waits_and_is_said_once() {
    let Some((a, b)) = two() else { return };
    // On a, the unknown name is the name of an id.
    a.set(ALL, &[("dedupfs-no-such", "#7001"), ("dedupfs-nor-this", "#7002")]);
    a.write("d/1", "1");
    a.write("d/2", "2");
    a.write("3", "3");
    symlink("x", a.at("link")).unwrap();
    for path in ["d", "d/1", "d/2", "link"] {
        a.chown(path, 7001, 7009);
    }
    a.set_acl("3", "user:#7002:rw-,user:#7003:r--,group::r--", false);
    let (done, _) = sync(&a, &b);
    let about = |done: &Outcome, name: &str| {
        done.skipped.iter().filter(|(_, why)| why.contains(name)).cloned().collect::<Vec<_>>()
    };
    let [(path, why)] = &about(&done, "account dedupfs-no-such")[..] else { panic!("{:?}", done.skipped) };
    assert_eq!(path, b"d");
    assert!(
        why.starts_with("on the other side") && why.contains("3 other files") && why.contains("owners = {"),
        "{why}"
    );
    assert_eq!(about(&done, "dedupfs-nor-this").len(), 1);
    assert_eq!(done.skipped.len(), 2, "{:?}", done.skipped);
    // The group is known.
    assert_eq!((b.owner("d/1"), b.owner("link")), ((0, 7009), (0, 7009)));
    assert_eq!(b.acl("3", false).as_deref(), Some("user:#7003:r--,group::r--"));
    assert_eq!(b.attribute("d/1", OWNER).as_deref(), Some("dedupfs-no-such:#7009"));
    let (rest, _) = sync(&a, &b);
    assert_eq!((rest.here, rest.there, rest.skipped.len()), (Default::default(), Default::default(), 2));
    // It edits one, and gives away another.
    b.write("d/1", "edited");
    b.chown("d/2", 7005, 7005);
    sync(&b, &a);
    assert_eq!((a.owner("d/1"), a.owner("d/2")), ((7001, 7009), (7005, 7005)));
    // Now the names are known.
    b.set(ALL, &[("dedupfs-no-such", "#7101"), ("dedupfs-nor-this", "#7102")]);
    let done = sync_and_rest(&a, &b);
    assert_eq!((done.here, done.there, done.skipped), Default::default());
    assert_eq!((b.owner("d"), b.owner("d/1"), b.owner("link")), ((7101, 7009), (7101, 7009), (7101, 7009)));
    assert_eq!((b.owner("d/2"), a.owner("d/2")), ((7005, 7005), (7005, 7005)));
    assert_eq!(b.acl("3", false).as_deref(), Some("user:#7003:r--,user:#7102:rw-,group::r--"));
}

#[test]
fn names_are_mapped_both_ways() {
    let Some((a, b)) = two() else { return };
    b.set(ALL, &[("#7001", "#7101"), ("#7002", "daemon")]);
    a.write("f", "f");
    a.write("g", "g");
    a.chown("f", 7001, 7001);
    a.set_acl("f", "user:#7002:rw-,group::r--", false);
    sync_and_rest(&a, &b);
    let daemon = fs::read_to_string("/etc/passwd").unwrap();
    let daemon = daemon.lines().find_map(|line| line.strip_prefix("daemon:x:")?.split(':').next()).unwrap();
    assert_eq!(b.owner("f"), (7101, 7101));
    assert_eq!(b.acl("f", false), Some(format!("user:#{daemon}:rw-,group::r--")));
    b.chown("g", daemon.parse().unwrap(), 7101);
    sync_and_rest(&b, &a);
    assert_eq!(a.owner("g"), (7002, 7001));
}

/// Both had synced before owners were seen.
#[test]
fn owners_that_appear_are_no_conflict() {
    let Some((a, b)) = two() else { return };
    for side in [&a, &b] {
        side.set(NONE, &[]);
    }
    a.write("repo/.git/HEAD", "ref");
    a.write("repo/.git/objects/1", "1");
    a.write("repo/f", "f");
    a.write("gone", "gone");
    a.write("same", "same");
    sync(&a, &b);
    // root copied it there.
    for path in ["repo", "repo/.git", "repo/.git/HEAD", "repo/.git/objects/1", "repo/f", "gone", "same"] {
        a.chown(path, 7001, 7001);
    }
    b.chown("same", 7001, 7001);
    fs::remove_file(b.at("gone")).unwrap();
    b.write("repo/f", "edited");
    for side in [&a, &b] {
        side.set(ALL, &[]);
    }
    let done = sync_and_rest(&a, &b);
    assert!(done.conflicts.is_empty() && done.kept.is_empty(), "{done:?}");
    assert!(!a.at("gone").exists() && !b.at("gone").exists(), "an owner is no reason to keep it");
    for side in [&a, &b] {
        assert_eq!(side.names().len(), 7, "{:?}", side.names());
        for path in ["repo", "repo/.git", "repo/.git/HEAD", "repo/.git/objects/1", "repo/f", "same"] {
            assert_eq!(side.owner(path), (7001, 7001), "{path}");
        }
    }
    // With a group of its own content on both sides, nothing but metadata was sent.
    let (c, d) = (of(NONE), of(NONE));
    c.write("f", noise(100_000, 4));
    sync(&c, &d);
    for side in [&c, &d] {
        side.chown("f", 7001, 7001);
        side.set(ALL, &[]);
    }
    let (done, traffic) = sync(&c, &d);
    assert_eq!((done.here, done.there), Default::default());
    assert!(traffic.sent + traffic.received < 2000, "{traffic:?}");
}

#[test]
fn a_switch_changes_nothing() {
    let Some((a, b)) = two() else { return };
    for path in ["1", "2", "3", "d/4"] {
        a.write(path, path);
        a.chown(path, 7001, 7001);
    }
    a.set_acl("1", NAMED, false);
    sync_and_rest(&a, &b);
    // While it is off, a file arrives, and one is changed.
    b.set(NONE, &[]);
    a.write("new", "new");
    a.chown("new", 7002, 7002);
    a.chown("1", 7003, 7003);
    let done = sync_and_rest(&a, &b);
    assert_eq!((done.there.updated, done.here), (1, Default::default()));
    assert_eq!((b.owner("new"), b.owner("1")), ((0, 0), (7001, 7001)));
    sync_and_rest(&b, &a);
    assert_eq!((a.owner("new"), a.owner("1"), a.owner("d/4")), ((7002, 7002), (7003, 7003), (7001, 7001)));
    // Then they get the owners of the tree.
    b.set(ALL, &[]);
    let done = sync_and_rest(&b, &a);
    assert_eq!((done.here, done.there, done.skipped), Default::default());
    for side in [&a, &b] {
        assert_eq!(
            (side.owner("new"), side.owner("1"), side.owner("2")),
            ((7002, 7002), (7003, 7003), (7001, 7001))
        );
        assert_eq!(side.acl("1", false).as_deref(), Some(NAMED));
    }
}

#[test]
fn owners_in_a_group_are_merged_file_by_file() {
    let Some((a, b)) = two() else { return };
    for path in ["repo/.git/HEAD", "repo/.git/objects/1", "repo/.git/refs/x"] {
        a.write(path, path);
    }
    for path in
        ["repo", "repo/.git", "repo/.git/HEAD", "repo/.git/objects", "repo/.git/objects/1", "repo/.git/refs"]
    {
        a.chown(path, 7001, 7001);
    }
    sync_and_rest(&a, &b);
    assert_eq!(
        (b.owner("repo/.git"), b.owner("repo/.git/objects"), b.owner("repo/.git/HEAD")),
        ((7001, 7001), (7001, 7001), (7001, 7001))
    );
    assert_eq!(b.owner("repo/.git/refs/x"), (0, 0));
    // One side commits, the other gives files away.
    let ino = |side: &Copy, path: &str| side.at(path).metadata().unwrap().ino();
    let kept = ino(&b, "repo/.git");
    a.chown("repo/.git/HEAD", 7002, 7002);
    a.set_acl("repo/.git/HEAD", NAMED, false);
    sync_and_rest(&a, &b);
    assert_eq!(b.owner("repo/.git/HEAD"), (7002, 7002));
    assert_eq!(b.acl("repo/.git/HEAD", false).as_deref(), Some(NAMED));
    assert_eq!(ino(&b, "repo/.git"), kept, "only attributes were set");
    b.write("repo/.git/objects/2", "2");
    b.chown("repo/.git/objects/2", 7003, 7003);
    a.chown("repo/.git/objects/1", 7004, 7004);
    a.chown("repo/.git", 7005, 7005);
    let done = sync_and_rest(&a, &b);
    assert!(done.conflicts.is_empty(), "{done:?}");
    for side in [&a, &b] {
        assert_eq!((side.owner("repo/.git"), side.owner("repo/.git/HEAD")), ((7005, 7005), (7002, 7002)));
        assert_eq!(
            (side.owner("repo/.git/objects/1"), side.owner("repo/.git/objects/2")),
            ((7004, 7004), (7003, 7003))
        );
    }
    // Both commit: both versions, each with its owners.
    a.write("repo/.git/HEAD", "a");
    b.write("repo/.git/HEAD", "b");
    let done = sync_and_rest(&a, &b);
    let copy = shown(&done.conflicts[0].copy);
    for side in [&a, &b] {
        assert_eq!(side.owner(&format!("{copy}/HEAD")), (7002, 7002));
        assert_eq!(side.owner(&copy), (7005, 7005));
    }
}

#[test]
fn in_a_conflict_each_version_keeps_its_owner() {
    let Some((a, b)) = two() else { return };
    a.write("f", "f");
    sync(&a, &b);
    a.write("f", "a");
    a.chown("f", 7001, 7001);
    b.write("f", "b");
    b.chown("f", 7002, 7002);
    let done = sync_and_rest(&a, &b);
    let copy = shown(&done.conflicts[0].copy);
    for side in [&a, &b] {
        for path in ["f", &copy] {
            let expected = if side.read(path) == b"a" { 7001 } else { 7002 };
            // The name keeps what the merge of both owners gave.
            let merged = if path == "f" { 7002 } else { expected };
            assert_eq!(side.owner(path), (merged, merged), "{path}");
        }
    }
}

/// A peer names what is no account, or would be too much.
#[test]
fn what_a_peer_may_not_say_is_refused() {
    let Some((a, _)) = two() else { return };
    a.write("f", "f");
    let good = a.tree();
    for (name, value) in [
        (OWNER, &b"root"[..]),
        (OWNER, b"#4294967295:#0"),
        (ACL, b"user::rwx,group::rwx"),
        (DEFAULT_ACL, b"user::rwx,group::r-x,other::---"),
        (b"security.capability", b"x"),
        (b"system.posix_acl_access", b"x"),
    ] {
        let mut tree = good.clone();
        tree.entries.get_mut(&b"f"[..]).unwrap().xattrs.insert(name.to_vec(), value.to_vec());
        let bytes = diff::encode(&good, &tree, None, &BTreeSet::new()).unwrap();
        assert!(matches!(diff::decode(&good, &bytes), Err(SyncError::Tree(_))), "{name:?}");
    }
}

/// A sync is cut at every frame.
#[test]
fn owners_survive_an_interrupted_sync() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for frames in 1..14 {
        let (a, b) = (of(ALL), of(ALL));
        a.write("d/f", "f");
        a.write("g", noise(100_000, 9));
        a.chown("d/f", 7001, 7001);
        sync(&a, &b);
        a.write("d/f", "new");
        a.chown("g", 7002, 7002);
        b.write("h", "h");
        b.chown("h", 7003, 7003);
        let _ = sync_cut(&a, &b, Options::default(), (frames, u32::MAX));
        let _ = sync_cut(&b, &a, Options::default(), (u32::MAX, frames));
        sync_and_rest(&a, &b);
        for side in [&a, &b] {
            let owners = ["d/f", "g", "h"].map(|path| side.owner(path).0);
            assert_eq!(owners, [7001, 7002, 7003], "{frames}");
        }
    }
}

#[test]
fn a_dry_run_sets_nothing() {
    let Some((a, b)) = two() else { return };
    a.write("f", "f");
    sync(&a, &b);
    a.chown("f", 7001, 7001);
    let options = Options { dry_run: true, ..Options::default() };
    let (done, _) = sync_cut(&a, &b, options, (u32::MAX, u32::MAX));
    assert_eq!(done.unwrap().0.there.updated, 1);
    assert_eq!(b.owner("f"), (0, 0));
    sync_and_rest(&a, &b);
    assert_eq!(b.owner("f"), (7001, 7001));
}

/// The daemon of a mount lists a change of the owner.
#[test]
fn a_listed_change_of_the_owner_is_found() {
    let Some((a, b)) = two() else { return };
    a.write("f", "f");
    a.write("g", "g");
    *a.changed.lock().unwrap() = Some(Vec::new());
    sync(&a, &b);
    sync(&a, &b);
    a.chown("f", 7001, 7001);
    sync(&a, &b);
    assert_eq!(b.owner("f"), (0, 0), "it was not listed");
    *a.changed.lock().unwrap() = Some(vec![(b"f".to_vec(), false)]);
    sync(&a, &b);
    assert_eq!(b.owner("f"), (7001, 7001));
    // A switch walks.
    *a.changed.lock().unwrap() = Some(Vec::new());
    a.set(Sees { owner: true, acl: false }, &[]);
    a.write("unlisted", "x");
    sync(&a, &b);
    assert!(b.at("unlisted").exists());
}

#[test]
fn a_device_with_a_part_of_the_tree_keeps_all_owners() {
    for sees in [ALL, NONE] {
        let Some((server, _)) = two() else { return };
        let part = of(sees);
        part.rules.lock().unwrap().selection = crate::sync::selection::tests::selection(&["/d"], &[]);
        for path in ["d/f", "d/g", "e/h"] {
            server.write(path, path);
            server.chown(path, 7001, 7001);
        }
        sync_and_rest(&server, &part);
        assert!(!part.at("e/h").exists());
        server.chown("d/f", 7002, 7002);
        server.chown("e/h", 7003, 7003);
        sync_and_rest(&server, &part);
        assert_eq!(part.owner("d/f").0, if sees == ALL { 7002 } else { 0 });
        part.write("d/f", "edited");
        sync_and_rest(&part, &server);
        let owners = ["d/f", "d/g", "e/h"].map(|path| server.owner(path).0);
        assert_eq!((server.read("d/f"), owners), (b"edited".to_vec(), [7002, 7001, 7003]));
        // It sees owners for the first time, or no longer.
        part.set(if sees == ALL { NONE } else { ALL }, &[]);
        sync_and_rest(&part, &server);
        let owners = ["d/f", "d/g", "e/h"].map(|path| server.owner(path).0);
        assert_eq!((part.owner("d/g").0, owners), (7001, [7002, 7001, 7003]));
    }
}

#[test]
fn a_peer_of_an_earlier_release_gets_no_owners() {
    let Some((a, _)) = two() else { return };
    a.write("f", "f");
    let device = Device::named("old");
    let snapshot = Snapshot::of(Tree::default().root(), None, device.clone(), 1);
    let (head, mut told) = (snapshot.id(), Told::default());
    told.greet(&device);
    let known = Known { head, snapshots: vec![snapshot], trees: [head].into(), heads: vec![], begun: false };
    let (features, store, options) = (vec![], String::new(), Some(Options::default()));
    let hello = Hello { protocol: PROTOCOL, features, store, device, options };
    let messages = [Message::Hello(hello), Message::Known(told.tell(&known))];
    let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
    let talk = |local: &mut Local<'_>| {
        link::run(&mut Session::answer(), local, &mut &bytes[..], &mut Vec::new(), &mut |_, _| {})
            .unwrap_err()
    };
    let error = talk(&mut a.open(true).unwrap());
    assert!(matches!(error, SyncError::WithoutOwners) && error.hint().is_some(), "{error}");
    // Without owners, that peer is answered.
    let b = of(NONE);
    b.write("f", "f");
    assert!(!matches!(talk(&mut b.open(true).unwrap()), SyncError::WithoutOwners));
}
