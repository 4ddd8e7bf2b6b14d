//! Owners and ACLs between mounts of root, with a user's copy in between, and with names that only one side knows.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, root_and_fuse_available, succeed, text};
use crate::scenarios::world::{FORMS, Form, Side};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::Command;

/// The user of a copy between two servers.
const USER: u32 = 65534;

fn chown(path: &Path, id: u32) {
    lchown(path, Some(id), Some(id + 10)).unwrap();
}

#[track_caller]
fn assert_owner(path: &Path, id: u32) {
    let meta = path.symlink_metadata().unwrap();
    assert_eq!((meta.uid(), meta.gid()), (id, id + 10), "{}", path.display());
}

fn setfacl(path: &Path, args: &[&str]) {
    succeed(Command::new("setfacl").args(args).arg(path));
}

/// Without the comments.
fn getfacl(path: &Path) -> String {
    let output = succeed(Command::new("getfacl").args(["-cpn"]).arg(path));
    String::from_utf8(output.stdout).unwrap()
}

/// A tree with an owner and an ACL for each kind of file.
fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("d/repo/.git/objects")).unwrap();
    for path in ["d/f", "d/g", "d/acl", "d/repo/.git/HEAD", "d/repo/.git/objects/1"] {
        fs::write(dir.join(path), path).unwrap();
    }
    fs::hard_link(dir.join("d/f"), dir.join("hard")).unwrap();
    symlink("/etc/passwd", dir.join("d/link")).unwrap();
    for (n, path) in
        ["d", "d/f", "d/g", "d/link", "d/repo", "d/repo/.git", "d/repo/.git/HEAD"].iter().enumerate()
    {
        chown(&dir.join(path), 7001 + n as u32);
    }
    setfacl(&dir.join("d/acl"), &["-m", "u:7050:rw,g:7051:r"]);
    setfacl(&dir.join("d"), &["-d", "-m", "u:7050:rwx"]);
}

#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let paths = [
        "d",
        "d/f",
        "d/g",
        "d/acl",
        "d/link",
        "d/repo/.git",
        "d/repo/.git/HEAD",
        "d/repo/.git/objects/1",
        "hard",
    ];
    for path in paths {
        let [here, there] = [a, b].map(|dir| {
            let meta = dir.join(path).symlink_metadata().unwrap();
            (meta.uid(), meta.gid(), meta.mode())
        });
        assert_eq!(here, there, "{path}");
        if !a.join(path).is_symlink() {
            assert_eq!(getfacl(&a.join(path)), getfacl(&b.join(path)), "{path}");
        }
    }
}

#[track_caller]
fn assert_rest(a: &Side, b: &Side) {
    let (code, report) = a.sync(b, &[]);
    assert_eq!((code, &report["created"], &report["updated"]), (0, &0.into(), &0.into()), "{report}");
}

#[test]
fn root_syncs_owners_and_acls() {
    if !root_and_fuse_available() {
        return;
    }
    for form in FORMS {
        let (a, b) = (Side::new(form), Side::new(form));
        let (here, there) = (a.root(), b.root());
        fill(&here);
        assert_eq!(a.sync(&b, &[]).0, 0);
        assert_same(&here, &there);
        assert_owner(&there.join("d/link"), 7004);
        assert!(getfacl(&there.join("d/acl")).contains("user:7050:rw-"), "{form:?}");
        assert!(!getfacl(&there.join("d/f")).contains("7050"), "the default ACL is not inherited");
        for _ in 0..2 {
            assert_rest(&a, &b);
        }
        // Owner alone, ACL alone, in both directions.
        chown(&there.join("d/g"), 7100);
        setfacl(&there.join("hard"), &["-m", "u:7052:r"]);
        chown(&here.join("d/repo/.git/objects/1"), 7101);
        setfacl(&here.join("d"), &["-k"]);
        let (code, report) = a.sync(&b, &["--dry-run"]);
        assert_eq!((code, &report["updated"]), (0, &4.into()), "{form:?}: {report}");
        assert_owner(&here.join("d/g"), 7003);
        assert_eq!(a.sync(&b, &[]).0, 0);
        assert_same(&here, &there);
        assert_owner(&here.join("d/g"), 7100);
        assert_owner(&there.join("d/repo/.git/objects/1"), 7101);
        assert!(getfacl(&here.join("d/f")).contains("user:7052:r--"), "{form:?}");
        assert!(!getfacl(&there.join("d")).contains("default"), "{form:?}");
        // A mode and an ACL.
        fs::set_permissions(here.join("d/acl"), PermissionsExt::from_mode(0o640)).unwrap();
        setfacl(&there.join("d/acl"), &["-n", "-m", "u:7053:r"]);
        assert_eq!(a.sync(&b, &[]).0, 0);
        assert_same(&here, &there);
        let acl = getfacl(&here.join("d/acl"));
        assert!(acl.contains("user:7053:r--") && acl.contains("mask::r--"), "{acl}");
        // Without owners, and with them again.
        chown(&here.join("d/g"), 7200);
        fs::write(here.join("d/new"), "new").unwrap();
        chown(&here.join("d/new"), 7201);
        assert_eq!(a.sync(&b, &["--no-owner", "--no-acl"]).0, 0);
        assert_owner(&there.join("d/g"), 7100);
        assert_eq!(a.sync(&b, &[]).0, 0);
        assert_owner(&there.join("d/g"), 7100);
        assert_owner(&here.join("d/g"), 7100);
        assert_rest(&a, &b);
    }
}

/// Root on two servers, and a user's copy that meets both.
#[test]
fn a_users_copy_between_two_servers_keeps_owners() {
    if !root_and_fuse_available() {
        return;
    }
    let (a, b) = (Side::new(Form::Elsewhere), Side::new(Form::OverItself));
    let laptop = tempfile::tempdir().unwrap();
    fs::set_permissions(laptop.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_dedupctl")).parent().unwrap();
    for name in ["dedupctl", "dedupfs"] {
        fs::copy(programs.join(name), laptop.path().join(name)).unwrap();
    }
    for name in ["tree", "home"] {
        fs::create_dir(laptop.path().join(name)).unwrap();
        lchown(laptop.path().join(name), Some(USER), Some(USER)).unwrap();
    }
    let (ssh, tree) = (laptop.path().join("ssh"), laptop.path().join("tree"));
    let script = format!(
        "#!/bin/sh\nexec env -u XDG_RUNTIME_DIR HOME={} setpriv --reuid={USER} --regid={USER} --clear-groups sh -c \"$3\"\n",
        laptop.path().join("home").display()
    );
    fs::write(&ssh, script).unwrap();
    fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).unwrap();
    let sync = |side: &Side, args: &[&str]| {
        let mut command = side.mount.dedupctl();
        command.arg("sync").args(args).arg("--ssh").arg(&ssh);
        command.arg("--remote-program").arg(laptop.path().join("dedupctl"));
        command.arg(format!("laptop:{}", tree.display())).arg(side.root()).output().unwrap()
    };
    fill(&a.root());
    succeed_with(&sync(&a, &[]));
    assert_eq!(tree.join("d/g").metadata().unwrap().uid(), USER);
    succeed_with(&sync(&b, &[]));
    assert_same(&a.root(), &b.root());
    assert_owner(&b.root().join("d/repo/.git/HEAD"), 7007);
    // It edits, replaces and makes files, below its mount's place.
    for (path, content) in [("d/g", "edited"), ("d/repo/.git/HEAD", "new"), ("d/repo/new", "new")] {
        fs::write(tree.join(path), content).unwrap();
        lchown(tree.join(path), Some(USER), Some(USER)).unwrap();
    }
    for side in [&a, &b] {
        succeed_with(&sync(side, &[]));
        assert_eq!(fs::read(side.root().join("d/g")).unwrap(), b"edited");
        assert_owner(&side.root().join("d/g"), 7003);
        assert_owner(&side.root().join("d/repo/.git/HEAD"), 7007);
        assert_owner(&side.root().join("d/repo/new"), 7005);
    }
    assert_same(&a.root(), &b.root());
    let output = sync(&a, &["--owner"]);
    let said = text(&output);
    assert!(
        output.status.code() == Some(2) && said.contains("--owner") && said.contains("not run as root"),
        "{said}"
    );
}

#[track_caller]
fn succeed_with(output: &std::process::Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text(output));
}

#[test]
fn names_are_mapped_and_unknown_ones_are_said() {
    if !root_and_fuse_available() {
        return;
    }
    let (a, b) = (Side::new(Form::Elsewhere), Side::new(Form::Elsewhere));
    let settings = |side: &Side, owners: &str| {
        let path = side.mount.backing().join(".dedupfs/config.toml");
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("\n[sync]").next().unwrap();
        fs::write(path, format!("{text}\n[sync]\nowners = {{ {owners} }}\n")).unwrap();
    };
    settings(&a, "\"dedupfs-ann\" = \"#7001\"");
    for name in ["1", "2"] {
        fs::write(a.root().join(name), name).unwrap();
        lchown(a.root().join(name), Some(7001), Some(7011)).unwrap();
    }
    for _ in 0..2 {
        let mut command = a.mount.dedupctl();
        let output = command.arg("sync").arg(b.root()).arg(a.root()).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.matches("no account dedupfs-ann").count(), 1, "{said}");
        assert!(said.contains("one other file") && said.contains("owners = {"), "{said}");
    }
    let meta = b.root().join("1").metadata().unwrap();
    assert_eq!((meta.uid(), meta.gid()), (0, 7011));
    settings(&b, "\"dedupfs-ann\" = \"daemon\"");
    assert_rest(&a, &b);
    let daemon = b.root().join("2").metadata().unwrap().uid();
    assert!(daemon != 0 && daemon != 7001);
    assert_rest(&a, &b);
    for bad in ["\"x\" = \"a:b\"", "\"x\" = \"\"", "\"#x\" = \"y\"", "\"x\" = \"z\", \"y\" = \"z\""] {
        settings(&b, bad);
        let output = a.mount.dedupctl().arg("sync").arg(b.root()).arg(a.root()).output().unwrap();
        assert!(
            output.status.code() == Some(2) && text(&output).contains("owners"),
            "{bad}: {}",
            text(&output)
        );
    }
}

/// A user's sync says nothing of owners, and refuses to promise them.
#[test]
fn a_user_cannot_promise_owners() {
    as_both(|user| {
        let (a, b) = (Mount::new(user), Mount::new(user));
        fs::write(a.at("f"), "f").unwrap();
        let sync =
            |args: &[&str]| a.dedupctl().arg("sync").args(args).arg(b.mnt()).arg(a.mnt()).output().unwrap();
        succeed_with(&sync(&[]));
        let code = sync(&["--owner", "--acl"]).status.code();
        assert_eq!(code, Some(if user == As::Root { 0 } else { 2 }));
    });
}
