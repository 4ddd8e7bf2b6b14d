//! `conflicts resolve --tool` and `conflicts diff` on real mounts.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{Mount, as_both, fuse_available, succeed, text};
use crate::scenarios::world::{Do, Form, Side, act, manifest};
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

/// A line that one side deleted stays deleted, and one that it changed is changed: the sync has kept the version before both edits,
/// whether editors write in place or save a new file, and however small it is.
///
/// Seen to fail without a look at the versions.
#[test]
fn a_sync_keeps_the_version_before_both_edits() {
    if !fuse_available() {
        return;
    }
    for form in [Form::OverItself, Form::Elsewhere] {
        let (a, b) = (Side::new(form), Side::new(form));
        act(
            &a.root(),
            &[
                Do::Write("todo.txt", "milk\neggs\nbread\ntea\njam\n"),
                Do::Write("notes.md", "1\n2\n3\n4\n5\n"),
            ],
        );
        assert_eq!(a.sync(&b, &[]).0, 0);
        // Until then a file is one that never had another content.
        for side in [&a, &b] {
            succeed(side.mount.dedupctl().arg("settle").arg(side.root()));
        }
        act(
            &a.root(),
            &[Do::Save("todo.txt", "eggs\nbread\nTEA\njam\n"), Do::Write("notes.md", "1\n3\n4\n5\n")],
        );
        act(
            &b.root(),
            &[
                Do::Write("todo.txt", "milk\neggs\nbread\ntea\njam\nrice\n"),
                Do::Save("notes.md", "1\n2\n3\n4\n5\n6\n"),
            ],
        );
        let (_, report) = a.sync(&b, &[]);
        assert_eq!(report["conflicts"].as_array().map(Vec::len), Some(2), "{form:?}: {report}");
        for side in [&a, &b] {
            let mut command = side.mount.dedupctl();
            let output =
                command.args(["conflicts", "diff", "--json", "--at"]).arg(side.root()).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{}", text(&output));
            let rows = self::report(&output)["conflicts"].as_array().unwrap().clone();
            let mut changes: Vec<_> = rows
                .iter()
                .flat_map(|row| ["ours_changed", "theirs_changed"].map(|which| row[which].as_str()))
                .map(|changed| changed.unwrap_or_else(|| panic!("{form:?}: {rows:#?}")))
                .collect();
            changes.sort_unstable();
            let expected = [
                "@@ -1,5 +1,4 @@\n 1\n-2\n 3\n 4\n 5\n",
                "@@ -1,5 +1,4 @@\n-milk\n eggs\n bread\n-tea\n+TEA\n jam\n",
                "@@ -3,3 +3,4 @@ eggs\n bread\n tea\n jam\n+rice\n",
                "@@ -3,3 +3,4 @@\n 3\n 4\n 5\n+6\n",
            ];
            assert_eq!(changes.len(), expected.len());
            for changed in expected {
                assert!(changes.contains(&changed), "{form:?}: {changed} in {changes:#?}");
            }
        }
        let merged =
            a.mount.dedupctl().args(["conflicts", "resolve", "--tool", "--at"]).arg(a.root()).output();
        assert_eq!(merged.as_ref().unwrap().status.code(), Some(0), "{}", text(&merged.unwrap()));
        assert_eq!(a.sync(&b, &[]).0, 0);
        assert_eq!(fs::read_to_string(b.root().join("todo.txt")).unwrap(), "eggs\nbread\nTEA\njam\nrice\n");
        assert_eq!(fs::read_to_string(b.root().join("notes.md")).unwrap(), "1\n3\n4\n5\n6\n");
        assert_eq!(manifest(&a.root()), manifest(&b.root()));
        for side in [&a, &b] {
            succeed(side.mount.dedupctl().arg("conflicts").arg(side.root()));
            let state = side.mount.root.path().join(".dedupfs/sync/bases");
            assert!(!state.exists(), "{form:?}: {}", state.display());
        }
    }
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
