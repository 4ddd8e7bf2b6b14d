//! Who may do what: owners, modes, groups, ACLs, and what is taken away from files that others change.

use super::twin::{MEMBER, STRANGER, Twin};
use crate::common::{As, as_both, root_and_fuse_available};

const FLAGS: [&[&str]; 2] = [&[], &["--no-passthrough"]];

/// Seen to fail, for `: > f`, when the daemon does not take the bits away itself, and when it leaves setgid without
/// group execution to a caller outside the group.
#[test]
fn strangers_who_change_a_file_take_its_setuid_bit_away() {
    if !root_and_fuse_available() {
        return;
    }
    for flags in FLAGS {
        let twin = Twin::with_flags(As::Root, flags);
        let files = ["write", "append", "empty", "shorten", "own", "group", "locked"];
        for stubs in [false, true] {
            twin.run(
                "for f in write append empty shorten own group; do seq 9000 > $f; chmod 6777 $f; done
                seq 9000 > locked; chmod 2767 locked",
            );
            if stubs {
                twin.settle(&files);
                twin.run("stat -c '%n %a' *");
            }
            twin.run_as(
                &STRANGER,
                "echo x 1<> write; stat -c %a write; echo x >> append; stat -c %a append; : > empty; stat -c %a empty
                truncate -s 5 shorten; stat -c %a shorten; : > locked; stat -c %a locked; chmod 6777 own",
            );
            twin.run("chown 1000 own; stat -c %a own; chgrp 2000 group; stat -c %a group; stat -c '%n %a' *");
            // Root's own writes leave the bits.
            twin.run("chmod 6777 write; echo root >> write; stat -c %a write; : > write; stat -c %a write; md5sum *");
            twin.run("rm *");
        }
    }
}

/// Conversion empties files and writing back fills them, which takes the bits away from an ordinary user's.
/// Seen to fail when such files are converted.
#[test]
fn setuid_files_keep_their_mode_in_a_users_mount() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("for f in a b c; do seq 9000 > $f; done; chmod 4755 a; chmod 2755 b");
        twin.settle(&["c"]);
        twin.run("stat -c '%n %a' *; chmod 6755 c; : <> c; stat -c '%n %a' c; md5sum *");
        twin.mount.settle();
        twin.run("stat -c '%n %a' *; md5sum *");
    });
}

/// Root keeps the bits, and an ordinary user loses them, in whichever way the file is changed.
#[test]
fn changing_a_file_treats_its_setuid_bit_as_below() {
    as_both(|user| {
        let twin = Twin::new(user);
        for change in ["echo x >> f", "echo x 1<> f", ": > f", "truncate -s 5 f", "fallocate -l 90000 f"] {
            twin.run(&format!("seq 9000 > f; chmod 6755 f; stat -c %a f; {change}; stat -c '%a %s' f; rm f"));
        }
        twin.run(
            "exec 3> f; chmod 4755 f; stat -c %a f; echo x >&3; stat -c %a f; chmod 2755 f; stat -c %a f
            echo y >&3; stat -c %a f; exec 3>&-; stat -c '%a %s' f; cat f",
        );
    });
}

/// Found by tests/mount/same_syscalls.rs: after a new mount an ordinary user's daemon could not tell an empty file without
/// permissions from a stub, and gave EIO for its attributes.
#[test]
fn files_without_permissions_can_be_looked_at() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run("touch never; seq 9000 > once; seq 9000 > full; seq 9000 > stub");
        twin.settle(&["once", "full", "stub"]);
        twin.run("echo x >> once; : > once; chmod 000 never; chmod 200 once; chmod 000 full; chmod 400 stub");
        twin.mount.remount();
        twin.run("stat -c '%n %a %s' *; cat never once full; tail -1 stub; chmod 600 *; md5sum *");
    });
}

/// Seen to fail (EBADF), in a user's mount, with one descriptor for all opens of a file.
#[test]
fn a_file_is_read_by_some_and_written_by_others_whatever_its_mode_was() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run(
            "echo a > f; chmod 200 f; exec 3>> f; chmod 644 f; echo b >&3; cat f
            echo a > g; chmod 400 g; exec 4< g; chmod 200 g; exec 5>> g; echo b >&5; cat <&4
            echo a > h; chmod 200 h; exec 6>> h; chmod 400 h; exec 7< h; echo b >&6; cat <&7",
        );
    });
}

/// Found by tests/mount/same_syscalls.rs: in a user's mount this was EACCES, as the daemon wanted to read the file for it.
#[test]
fn who_may_only_write_a_file_is_told_where_its_data_lies() {
    as_both(|user| {
        let twin = Twin::new(user);
        let seek =
            "python3 -c 'import os; print(os.lseek(3, 0, os.SEEK_DATA), os.lseek(3, 0, os.SEEK_HOLE))'";
        twin.run(&format!("umask 577; exec 3> f; echo a >&3; {seek}; exec 3>&-; exec 3>> f; {seek}"));
        twin.run(&format!("seq 9000 > g; chmod 200 g; exec 3>> g; {seek}"));
    });
}

/// Seen to fail when a stub that is given a capability stays one: writing back takes it away.
#[test]
fn capabilities_of_files_survive() {
    if !root_and_fuse_available() {
        return;
    }
    for flags in FLAGS {
        let twin = Twin::with_flags(As::Root, flags);
        // cap_net_raw, permitted and effective.
        let set = "setfattr -n security.capability -v 0x0100000200200000000000000000000000000000";
        let get = "getfattr -m security -d -e hex * 2> /dev/null; md5sum *";
        twin.run(&format!("seq 9000 > plain; seq 9001 > stub; {set} plain"));
        twin.settle(&["stub"]);
        twin.run(get);
        // On a stub: also when it is opened for writing, and nobody writes.
        twin.run(&format!("{set} stub; : <> stub; {get}"));
        twin.mount.settle();
        twin.mount.remount();
        twin.run(get);
        // A write takes them away, root's too.
        twin.run(&format!("echo x >> plain; echo x 1<> stub; {get}"));
        twin.settle(&["plain"]);
        twin.run(get);
    }
}

/// Seen to fail when names of trusted xattrs are listed to everybody.
#[test]
fn extended_attributes_are_kept() {
    as_both(|user| {
        let twin = Twin::new(user);
        let list = "getfattr -d -m - * | grep -v '^# file' | sort; md5sum f d/g";
        twin.run(&format!("seq 9000 > f; mkdir d; seq 9001 > d/g; setfattr -n user.a -v one f; setfattr -n user.b -v two d; {list}"));
        twin.settle(&["f", "d/g"]);
        twin.run(&format!(
            "{list}; setfattr -n user.c -v three d/g; setfattr -x user.a f; setfattr -n user.a -v 1 f; {list}"
        ));
        twin.mount.remount();
        // Room for our own record is made where somebody wants it.
        twin.run(&format!(
            "setfattr -n user.big -v $(printf 'x%.0s' {{1..3900}}) f && echo fits; {list} | md5sum"
        ));
        twin.mount.settle();
        twin.run(&format!("{list} | md5sum"));
        if user == As::Root {
            twin.run("setfattr -n trusted.t -v secret f; setfattr -n security.s -v label f; getfattr -d -m - f; chmod 644 f");
            twin.run_as(&STRANGER, "getfattr -d -m - f; getfattr -n trusted.t f; setfattr -n user.x -v 1 f");
        }
    });
}

#[test]
fn acls_are_checked_inherited_and_kept() {
    if !root_and_fuse_available() {
        return;
    }
    for flags in FLAGS {
        let twin = Twin::with_flags(As::Root, flags);
        twin.run("seq 9000 > f; chmod 600 f; setfacl -m u:1000:rw f; getfacl f; stat -c %a f");
        twin.run("seq 9001 > g; chmod 600 g");
        twin.settle(&["g"]);
        twin.run("setfacl -m u:1000:r g; getfacl g");
        let access = "head -1 f; head -1 g; echo more >> f; echo more >> g; id -u";
        twin.run_as(&MEMBER, access);
        twin.run_as(&STRANGER, access);
        twin.mount.settle();
        twin.run_as(&MEMBER, access);
        twin.run("chmod 640 f; getfacl f; chmod g-r f; getfacl f");
        twin.run_as(&MEMBER, access);
        twin.run("setfacl -b f; getfacl f; stat -c %a f");
        twin.run_as(&MEMBER, access);
        twin.run(
            "mkdir d; setfacl -d -m u:1000:rwx,g:2000:r-x,o:- d; setfacl -m u:1000:rwx d
            umask 077; echo new > d/f; mkdir d/sub; mkfifo d/p; getfacl d d/f d/sub d/p; stat -c %a d/*",
        );
        twin.run_as(&MEMBER, "umask 027; echo by > d/own; mkdir d/sub/dir; getfacl d/own d/sub/dir");
        twin.run_as(&STRANGER, "cat d/own; ls d");
        twin.mount.remount();
        twin.run("getfacl -R .");
    }
}

/// Seen to fail when the daemon leaves that to the backing filesystem, which takes it for root's doing.
#[test]
fn an_acl_set_from_outside_the_group_takes_setgid_away() {
    if !root_and_fuse_available() {
        return;
    }
    let twin = Twin::new(As::Root);
    twin.run(
        "for f in a b; do seq 9000 > $f; chown 1000:3000 $f; chmod 2755 $f; done; chgrp 2000 b; chmod 2755 b",
    );
    twin.run_as(&MEMBER, "setfacl -m u:5:r a b; stat -c '%n %a' a b");
    twin.run("chmod 2755 a b");
    twin.run_as(&MEMBER, "chmod 2775 a b; stat -c '%n %a' a b");
}

/// Seen to fail (mkdir: Permission denied) when the daemon asks the backing filesystem in the caller's name but
/// without the caller's groups.
#[test]
fn supplementary_groups_count() {
    if !root_and_fuse_available() {
        return;
    }
    for flags in FLAGS {
        let twin = Twin::with_flags(As::Root, flags);
        twin.run(
            "seq 9000 > readable; chgrp 2000 readable; chmod 640 readable; seq 9001 > stub; chgrp 2000 stub; chmod 660 stub
            mkdir shared setgid; chgrp 2000 shared setgid; chmod 770 shared; chmod 2770 setgid",
        );
        twin.settle(&["stub"]);
        let script = "tail -n 1 readable stub; echo x >> stub; umask 002
            for d in shared setgid; do
                echo new > $d/file; mkdir $d/dir; mkfifo $d/pipe; ln -s x $d/link; ln stub $d/hard
                stat -c '%n %u %g %a %F' $d/*; chmod 2775 $d/dir; chmod 2755 $d/file; stat -c '%n %a' $d/*
                mv $d/file $d/moved; rm -r $d/dir
            done";
        twin.run_as(&MEMBER, script);
        twin.run_as(&STRANGER, script);
    }
}

#[test]
fn sticky_and_setgid_directories() {
    if !root_and_fuse_available() {
        return;
    }
    let twin = Twin::new(As::Root);
    twin.run("mkdir sticky setgid; chmod 1777 sticky; chgrp 3000 setgid; chmod 2777 setgid; seq 9 > sticky/of-root");
    twin.run_as(&MEMBER, "echo x > sticky/own; rm -f sticky/of-root; mv sticky/of-root sticky/y; ls sticky");
    twin.run_as(&STRANGER, "rm -f sticky/own; mv sticky/own sticky/z; ls sticky");
    // Not in the directory's group: a program's setgid bit is dropped, a directory's inherited.
    twin.run_as(
        &MEMBER,
        "umask 0; echo x > setgid/f; mkdir setgid/d; stat -c '%n %u %g %a' setgid/*; chmod 2775 setgid/f
        stat -c '%n %a' setgid/f; install -m 2755 /dev/null setgid/i; stat -c '%n %g %a' setgid/i; rm sticky/own; ls sticky",
    );
}

/// With the privilege to exceed them, quotas of users would not hold where root's daemon writes in its own name.
/// This can only fail where root has that privilege, as not in every container.
#[test]
fn the_daemon_answers_without_the_right_to_exceed_quotas() {
    if !root_and_fuse_available() {
        return;
    }
    let twin = Twin::new(As::Root);
    const SYS_RESOURCE: u64 = 1 << 24;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", twin.mount.pid())).unwrap();
    let mut seen = 0;
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        if field("Name:").starts_with("fuse") {
            let effective = u64::from_str_radix(&field("CapEff:"), 16).unwrap();
            assert_eq!(effective & SYS_RESOURCE, 0, "{status}");
            seen += 1;
        }
    }
    assert!(seen > 1, "threads that answer requests");
}
