//! Files that have just arrived.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{fuse_available, noise, succeed};
use crate::scenarios::world::{Form, Side};
use std::fs;
use std::path::Path;

/// Replaces some bytes of a file by a new file, as editors do.
fn edit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() / 2;
    bytes[at..at + 4].copy_from_slice(b"edit");
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_file_that_has_just_arrived_is_a_base_of_a_delta() {
    if !fuse_available() {
        return;
    }
    for form in [Form::OverItself, Form::Elsewhere] {
        let (a, b) = (Side::new(form), Side::new(form));
        fs::write(a.root().join("long"), noise(1, 300_000)).unwrap();
        fs::write(a.root().join("zeros"), vec![0; 200_000]).unwrap();
        for n in 2..1100 {
            fs::write(a.root().join(n.to_string()), noise(n, 200)).unwrap();
        }
        assert_eq!(a.sync(&b, &[]).0, 0);
        // The sync does not wait for more than 1,000 contents.
        succeed(b.mount.dedupctl().arg("settle").arg(b.root()));
        for name in ["long", "zeros", "7"] {
            edit(&b.root().join(name));
        }
        let (code, report) = a.sync(&b, &[]);
        assert_eq!((code, &report["updated"]), (0, &3.into()), "{form:?}: {report}");
        for name in ["long", "zeros", "7", "1099"] {
            assert!(
                fs::read(a.root().join(name)).unwrap() == fs::read(b.root().join(name)).unwrap(),
                "{name}"
            );
        }
        // Without a delta, a chunk of `long` has 4 KiB or more.
        let received = report["received_bytes"].as_u64().unwrap();
        assert!(received < 3000, "{form:?}: {received} bytes for three small edits");
    }
}
