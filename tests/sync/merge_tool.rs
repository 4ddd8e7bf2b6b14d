//! `conflicts resolve --tool` on real mounts. A conflict is two names, so no sync is needed.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{Mount, as_both, succeed, text};
use serde_json::Value;
use std::fs;
use std::process::Output;

fn resolve(mount: &Mount, args: &[&str]) -> Output {
    let mut command = mount.dedupctl();
    command.args(["conflicts", "--json", "--at"]).arg(mount.mnt()).arg("resolve").args(args);
    command.output().unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(output)))
}

#[test]
fn a_tool_merges_both_versions_and_they_stay_as_versions() {
    as_both(|user| {
        let mount = Mount::in_place(user);
        // Small files have no versions.
        let base: String = (0..3000).map(|i| format!("line {i}\n")).collect();
        let names = ["list.txt", "other.txt", "photo"];
        let copy = |name: &str| match name.split_once('.') {
            Some((stem, end)) => format!("{stem}.conflict-attic-1-00000000.{end}"),
            None => format!("{name}.conflict-attic-1-00000000"),
        };
        let put = |name: &str, ours: &[u8], theirs: &[u8]| {
            fs::write(mount.at(name), ours).unwrap();
            fs::write(mount.at(&copy(name)), theirs).unwrap();
        };
        put(names[0], format!("eggs\n{base}").as_bytes(), format!("{base}tea\n").as_bytes());
        put(names[1], b"red\n", b"blue\n");
        put(names[2], b"\0ours", b"\0theirs");
        mount.settle();

        let merged = resolve(&mount, &["--tool"]);
        assert_eq!(merged.status.code(), Some(1), "{}", text(&merged));
        let said = report(&merged);
        assert_eq!(
            (&said["resolved"], said["conflicts"].as_array().unwrap().len()),
            (&1.into(), 2),
            "{said}"
        );
        let reasons = said["not_merged"].as_array().unwrap();
        assert_eq!((&reasons[0]["path"], &reasons[1]["path"]), (&"other.txt".into(), &"photo".into()));
        assert!(reasons[0]["reason"].as_str().unwrap().contains("different lines at 1 place"), "{said}");
        assert!(reasons[1]["reason"].as_str().unwrap().contains("is not text"), "{said}");
        assert_eq!(fs::read_to_string(mount.at(names[0])).unwrap(), format!("eggs\n{base}tea\n"));
        assert!(!mount.at(&copy(names[0])).exists());
        assert_eq!(fs::read(mount.at(names[1])).unwrap(), b"red\n");
        assert_eq!(fs::read(mount.at(&copy(names[2]))).unwrap(), b"\0theirs");

        // Both former contents can be restored.
        mount.settle();
        for (name, content) in
            [(names[0].to_owned(), format!("eggs\n{base}")), (copy(names[0]), format!("{base}tea\n"))]
        {
            let out = mount.root.path().join("out");
            let version = format!("{name}@1");
            succeed(mount.dedupctl().args(["restore", &version, "-o"]).arg(&out).current_dir(mount.mnt()));
            assert_eq!(fs::read_to_string(&out).unwrap(), content, "{version}");
            fs::remove_file(&out).unwrap();
        }

        let failed = resolve(&mount, &["--tool=false", "other.txt"]);
        assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
        let by_command =
            resolve(&mount, &["--tool=cat \"$LOCAL\" \"$REMOTE\" > \"$MERGED\"", "other.txt", "photo"]);
        assert_eq!(by_command.status.code(), Some(0), "{}", text(&by_command));
        assert_eq!(fs::read(mount.at(names[1])).unwrap(), b"red\nblue\n");
        assert_eq!(fs::read(mount.at(names[2])).unwrap(), b"\0ours\0theirs");
        assert_eq!(report(&resolve(&mount, &["--tool"]))["conflicts"].as_array().map(Vec::len), Some(0));
    });
}
