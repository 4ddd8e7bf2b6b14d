//! Times of directories.

use super::*;
use std::time::{Duration, SystemTime};

impl Copy {
    /// Sets the time of a directory to this many seconds ago.
    fn age(&self, path: &str, seconds: u64) {
        let time = SystemTime::now() - Duration::from_secs(seconds);
        File::open(self.at(path)).unwrap().set_modified(time).unwrap();
    }

    fn time(&self, path: &str) -> SystemTime {
        self.at(path).metadata().unwrap().modified().unwrap()
    }
}

#[track_caller]
fn assert_times(a: &Copy, b: &Copy, paths: &[&str]) {
    for path in paths {
        assert_eq!(a.time(path), b.time(path), "{path}");
    }
}

#[test]
fn directories_get_the_time_of_the_side_that_changed_them() {
    let (a, b) = (Copy::new(), Copy::new());
    a.write("d/e/f", "f");
    a.write("d/.git/HEAD", "ref");
    a.write("d/.git/objects/1", "1");
    fs::create_dir(a.at("empty")).unwrap();
    fs::create_dir(a.at("closed")).unwrap();
    fs::set_permissions(a.at("closed"), PermissionsExt::from_mode(0o500)).unwrap();
    let all = ["d/e", "d/.git/objects", "d/.git", "d", "empty", "closed"];
    all.iter().zip(1..).for_each(|(path, n)| a.age(path, 1000 * n));
    sync(&a, &b);
    assert_times(&a, &b, &all);
    // Each kind of change, by both ways of a sync.
    for n in 0..2 {
        a.write(&format!("d/e/new {n}"), "new");
        a.age("d/e", 900 - 300 * n);
        sync(&a, &b);
        assert_times(&a, &b, &all);
        b.write("d/.git/HEAD", format!("ref {n}"));
        fs::rename(b.at(&format!("d/e/new {n}")), b.at(&format!("empty/{n}"))).unwrap();
        b.age("empty", 800 - 300 * n);
        b.age("d/e", 850 - 300 * n);
        sync(&a, &b);
        assert_times(&a, &b, &all);
        fs::remove_file(a.at(&format!("empty/{n}"))).unwrap();
        b.write(&format!("{n}"), "on both");
        a.age("empty", 700 - 300 * n);
        sync(&a, &b);
        assert_times(&a, &b, &all);
    }
    // A content alone changes no time of a directory, and a time alone is no change.
    a.write("d/e/f", "edited");
    let before = a.time("d/e");
    sync(&a, &b);
    assert_eq!((a.time("d/e"), b.time("d/e")), (before, before));
    a.age("d/e", 5);
    let (done, _) = sync(&a, &b);
    assert_eq!((done.here, done.there), Default::default());
    assert_eq!(b.time("d/e"), before);
}
