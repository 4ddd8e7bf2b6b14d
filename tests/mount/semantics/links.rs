//! Names: hard links, renames, files without a name.

use super::twin::Twin;
use crate::common::{as_both, noise};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};

#[test]
fn names_of_one_file_share_its_content() {
    as_both(|user| {
        let twin = Twin::new(user);
        let script = "cat a b c/a | md5sum; stat -c '%h %s %U' a b c/a; cmp a b && echo same; [ a -ef c/a ] && echo one";
        twin.run("seq 20000 > a; ln a b; mkdir c; ln b c/a");
        twin.settle(&["a", "b", "c/a"]);
        twin.run(script);
        twin.run("echo by b >> b; tail -1 a c/a");
        twin.run(script);
        twin.settle(&["a", "b", "c/a"]);
        twin.run("rm a; tail -1 b; mv b c/a; tail -1 c/a; ls . c");
        twin.mount.remount();
        twin.run("rm b; tail -1 c/a; stat -c %h c/a; ln c/a a");
        twin.run(": > a; stat -c '%h %s' c/a; seq 30000 >> c/a; md5sum < a");
        twin.settle(&["a", "c/a"]);
        twin.run("md5sum < a; stat -c '%h %s' a");
    });
}

#[test]
fn renames_do_not_replace_or_they_exchange() {
    as_both(|user| {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let twin = Twin::new(user);
        let (at, mount) = (|name: &str| twin.mount.at(name), &twin.mount);
        fs::create_dir(at("one")).unwrap();
        fs::create_dir(at("two")).unwrap();
        for stubs in [false, true] {
            fs::write(at("one/file"), noise(1, 50_000)).unwrap();
            fs::write(at("two/file"), noise(2, 60_000)).unwrap();
            if stubs {
                twin.settle(&["one/file", "two/file"]);
            }
            let rename = |flags| renameat_with(CWD, at("one/file"), CWD, at("two/file"), flags);
            assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
            assert_eq!(fs::read(at("one/file")).unwrap(), noise(1, 50_000));
            rename(RenameFlags::EXCHANGE).unwrap();
            if !stubs {
                twin.settle(&["one/file", "two/file"]);
            }
            for (name, seed, len) in [("one/file", 2, 60_000), ("two/file", 1, 50_000)] {
                assert_eq!(fs::read(at(name)).unwrap(), noise(seed, len), "{name}");
                // The catalog knows it right away.
                let copy = mount.root.path().join("copy");
                fs::write(&copy, noise(seed, len)).unwrap();
                let found = mount.ctl(&["similar", copy.to_str().unwrap()]);
                assert_eq!(found["matches"][0]["path"], name, "{found}");
            }
        }
        twin.mount.remount();
        assert_eq!(fs::read(at("one/file")).unwrap(), noise(2, 60_000));
    });
}

#[test]
fn a_file_without_a_name_is_used_as_before() {
    as_both(|user| {
        let twin = Twin::new(user);
        for stub in [false, true] {
            let path = twin.mount.at("file");
            fs::write(&path, noise(3, 300_000)).unwrap();
            if stub {
                twin.settle(&["file"]);
            }
            let mut reader = File::open(&path).unwrap();
            let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            fs::remove_file(&path).unwrap();
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, noise(3, 300_000), "stub: {stub}");
            writer.seek(SeekFrom::Start(100_000)).unwrap();
            writer.write_all(b"WRITTEN").unwrap();
            writer.set_len(200_000).unwrap();
            assert_eq!(writer.metadata().unwrap().len(), 200_000);
            twin.mount.settle();
            bytes.truncate(200_000);
            bytes[100_000..100_007].copy_from_slice(b"WRITTEN");
            let mut found = Vec::new();
            reader.seek(SeekFrom::Start(0)).unwrap();
            reader.read_to_end(&mut found).unwrap();
            assert_eq!(found, bytes);
            // A stub that is open to be read only.
            fs::write(&path, noise(4, 300_000)).unwrap();
            twin.settle(&["file"]);
            let mut reader = File::open(&path).unwrap();
            fs::remove_file(&path).unwrap();
            found.clear();
            reader.read_to_end(&mut found).unwrap();
            assert_eq!(found, noise(4, 300_000));
        }
    });
}
