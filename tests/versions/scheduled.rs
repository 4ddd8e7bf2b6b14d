//! Snapshots on schedule: when they are taken, which stay, and that a user's are left alone.
//!
//! Older ones are taken by a library with a clock that is some hours slow. So the daemon under test needs no short interval.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::session::{Session, fast_dir};
use crate::common::{As, Mount, as_both, fuse_available, prose, text};
use dedupfs::admin::{self, Context, Request};
use dedupfs::config::Config;
use dedupfs::history::{HistoryError, Rules, Taken};
use dedupfs::overlay::stub::Time;
use dedupfs::repo::{InitOptions, Repo};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const HOUR: i64 = 3600;
/// Limit of waiting for the daemon, however busy the machine is.
const TIME_MAX: Duration = Duration::from_secs(60);

fn hours_ago<const N: i64>() -> Time {
    let now = Time::now();
    Time { sec: now.sec - N * HOUR, ..now }
}

fn open(dir: &Path) -> Session {
    let session = Session::open(dir).unwrap();
    admin::catch_up(session.repo(), &mut |_| true).unwrap();
    session
}

fn take(session: &Session, clock: fn() -> Time) -> Option<Taken> {
    let repo = session.repo();
    repo.history().scheduled_snapshot(repo.id(), false, clock, &mut |_| true).unwrap()
}

fn take_own(session: &Session, name: &str) {
    session.repo().history().snapshot(name, session.repo().id(), false, &mut |_| true).unwrap();
}

fn names(session: &Session) -> Vec<String> {
    session.repo().history().snapshots().iter().map(|(_, snapshot)| snapshot.name.clone()).collect()
}

fn gc(session: &Session) {
    let context = Context { repo: session.repo(), mountpoint: None };
    admin::run(context, Request::Gc { dry_run: false }, &mut |_| true).unwrap();
}

fn listed(mount: &Mount) -> Vec<String> {
    let list = mount.ctl(&["snapshot", "list"]);
    list["snapshots"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the daemon has looked at the clock, and returns its status.
fn status(mount: &Mount) -> serde_json::Value {
    let end = Instant::now() + TIME_MAX;
    loop {
        let status = mount.ctl(&["status"]);
        if status["next_scheduled_snapshot"].is_string() {
            return status;
        }
        assert!(Instant::now() < end, "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn seconds(time: &serde_json::Value) -> i64 {
    time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_second()
}

/// An overlay with a schedule, unmounted.
fn prepare(user: As, schedule: &str) -> Mount {
    let mut mount = Mount::prepare(user);
    mount.in_place = true;
    mount.init(&format!("[history]\nsnapshots = \"{schedule}\""));
    fs::write(mount.dir().join("first"), prose(1, 50_000)).unwrap();
    mount
}

#[test]
fn the_daemon_takes_what_is_due_and_keeps_what_the_schedule_says() {
    as_both(|user| {
        let mount = prepare(user, "hourly:2");
        let session = open(&mount.dir());
        let put = |name: &str| fs::write(mount.dir().join(name), prose(2, 30_000)).unwrap();
        take(&session, hours_ago::<5>).unwrap();
        take_own(&session, "mine");
        take_own(&session, "");
        put("second");
        take(&session, hours_ago::<4>).unwrap();
        put("third");
        let last = take(&session, hours_ago::<3>).unwrap().snapshot.name.clone();
        assert_eq!(names(&session).len(), 5);
        session.close().unwrap();
        put("fourth");

        mount.start();
        let after = status(&mount);
        let now = listed(&mount);
        assert_eq!(now[..3], ["mine".to_owned(), String::new(), last.clone()], "{now:?}");
        assert_eq!(now.len(), 4, "{now:?}");
        let rows = mount.ctl(&["snapshot", "list"]);
        assert_eq!(
            (&rows["snapshots"][1]["scheduled"], &rows["snapshots"][3]["scheduled"]),
            (&false.into(), &true.into())
        );
        for (name, there) in [(&last, false), (&now[3], true)] {
            assert_eq!(mount.at(&format!(".snapshots/{name}/fourth")).exists(), there, "{name}");
        }
        assert_eq!(after["snapshot_schedule"], "hourly:2");
        let taken = seconds(&after["last_scheduled_snapshot"]);
        assert!((Time::now().sec - taken).abs() < 120, "{after}");
        assert_eq!(seconds(&after["next_scheduled_snapshot"]), taken + HOUR);
        let shown = text(&mount.dedupctl().arg("status").arg(mount.mnt()).output().unwrap());
        let row = shown.lines().find(|line| line.starts_with("schedule")).unwrap();
        assert!(row.contains("hourly:2; last 20") && row.contains(", next 20"), "{row}");

        // A restart changes nothing, and the next one counts from the last.
        fs::write(mount.at("fifth"), "text").unwrap();
        mount.remount();
        assert_eq!(status(&mount)["next_scheduled_snapshot"], after["next_scheduled_snapshot"]);
        assert_eq!(listed(&mount), now);
        // Its names are its own.
        let output =
            mount.dedupctl().args(["snapshot", "create", "--name", "scheduled-x"]).arg(mount.mnt()).output();
        let output = output.unwrap();
        assert!(
            output.status.code() == Some(2) && text(&output).contains("scheduled snapshots"),
            "{}",
            text(&output)
        );
        mount.unmount();
        let closed = mount.dedupctl().args(["status", "--json"]).arg(mount.dir()).output().unwrap();
        let closed: serde_json::Value = serde_json::from_slice(&closed.stdout).unwrap();
        assert_eq!(closed["last_scheduled_snapshot"], after["last_scheduled_snapshot"]);
        assert!(closed["next_scheduled_snapshot"].is_null(), "{closed}");
    });
}

#[test]
fn none_is_taken_if_nothing_changed() {
    if !fuse_available() {
        return;
    }
    let mount = prepare(As::Root, "daily:7 hourly:24");
    let session = open(&mount.dir());
    let first = take(&session, hours_ago::<5>).unwrap();
    assert!(take(&session, hours_ago::<4>).is_none());
    session.close().unwrap();
    // The next look comes after an interval, not at once. The note in the bare directory is no change.
    for _ in 0..2 {
        mount.start();
        let after = status(&mount);
        assert_eq!(listed(&mount), std::slice::from_ref(&first.snapshot.name));
        assert!((seconds(&after["next_scheduled_snapshot"]) - Time::now().sec - HOUR).abs() < 120, "{after}");
        mount.unmount();
    }
    // A file removed, and an attribute of the root directory.
    let session = open(&mount.dir());
    fs::remove_file(mount.dir().join("first")).unwrap();
    assert!(take(&session, hours_ago::<3>).is_some());
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(mount.dir(), fs::Permissions::from_mode(0o711)).unwrap();
    assert!(take(&session, hours_ago::<2>).is_some());
    assert!(take(&session, hours_ago::<1>).is_none());
    session.close().unwrap();
}

/// In a mount over the directory itself only changes are examined, also after a look that took none.
#[test]
fn changes_after_a_look_that_took_none_are_known() {
    let dir = fast_dir();
    Repo::init(dir.path(), None, &InitOptions::default()).unwrap();
    let session = open(dir.path());
    let put = |name: &str| session.write(name, &prose(3, 40_000)).unwrap();
    let take = || {
        let repo = session.repo();
        let taken = repo.history().scheduled_snapshot(repo.id(), true, Time::now, &mut |_| true).unwrap();
        taken.map(|taken| (taken.walked, taken.snapshot.files))
    };
    put("a");
    assert_eq!(take(), Some((true, 1)));
    assert_eq!((take(), take()), (None, None));
    put("b");
    assert_eq!(take(), Some((false, 2)));
    put("c");
    let own = session.repo().history().snapshot("own", session.repo().id(), true, &mut |_| true).unwrap();
    assert!(!own.walked);
    assert_eq!(take(), Some((false, 3)), "a user's snapshot is not the last scheduled one");
    assert_eq!(take(), None);
    session.close().unwrap();
}

#[test]
fn a_mount_for_reading_takes_none_and_says_so_once() {
    if !fuse_available() {
        return;
    }
    let mount = prepare(As::Root, "hourly:24");
    open(&mount.dir()).close().unwrap();
    let log = mount.root.path().join("log");
    let mut daemon = mount.dedupfs();
    daemon.args(["--foreground", "--read-only"]).arg(mount.dir()).stderr(fs::File::create(&log).unwrap());
    let mut daemon = daemon.spawn().unwrap();
    let end = Instant::now() + TIME_MAX;
    while !mount.is_mounted() || !fs::read_to_string(&log).unwrap().contains(": mounted\n") {
        assert!(Instant::now() < end, "{}", fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    let shown = mount.ctl(&["status"]);
    assert_eq!(shown["snapshot_schedule"], "hourly:24");
    assert!(shown["next_scheduled_snapshot"].is_null() && listed(&mount).is_empty(), "{shown}");
    mount.unmount();
    daemon.wait().unwrap();
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("no scheduled snapshots are taken").count(), 1, "{log}");
}

/// Whatever step it stops at, a snapshot is not listed, and the next one is.
#[test]
fn an_interrupted_one_is_not_listed() {
    let dir = fast_dir();
    let config = Config { history: Some(rules("hourly:24")), ..Config::default() };
    Repo::init(dir.path(), None, &InitOptions { config, ..InitOptions::default() }).unwrap();
    (0..3200).for_each(|i| fs::write(dir.path().join(format!("f{i}")), prose(i, 200)).unwrap());
    let mut session = open(dir.path());
    for stop_at in 0.. {
        let mut steps = 0;
        let repo = session.repo();
        let taken = repo.history().scheduled_snapshot(repo.id(), false, Time::now, &mut |_| {
            steps += 1;
            steps <= stop_at
        });
        match taken {
            Err(HistoryError::Interrupted) => {
                assert!(names(&session).is_empty(), "stopped at step {stop_at}")
            }
            taken => {
                assert!(taken.unwrap().is_some() && stop_at > 1, "after {stop_at} steps");
                break;
            }
        }
        session.close().unwrap();
        session = open(dir.path());
        assert!(names(&session).is_empty(), "after step {stop_at} and a restart");
    }
    assert_eq!(names(&session).len(), 1);
    session.close().unwrap();
}

fn rules(schedule: &str) -> Rules {
    // Rules that keep nothing by themselves.
    let all = Duration::ZERO;
    let snapshots = schedule.parse().unwrap();
    Rules { all, hourly: 0, daily: 0, weekly: 0, monthly: 0, snapshots, ..Rules::default() }
}

/// The rules for versions do not touch scheduled snapshots while there is a schedule. Without one they decide, as about
/// unnamed snapshots: the newest stays.
#[test]
fn gc_leaves_them_to_the_schedule() {
    let dir = fast_dir();
    let config = Config { history: Some(rules("hourly:2")), ..Config::default() };
    Repo::init(dir.path(), None, &InitOptions { config, ..InitOptions::default() }).unwrap();
    let session = open(dir.path());
    for (i, clock) in [hours_ago::<9>, hours_ago::<8>, hours_ago::<7>].into_iter().enumerate() {
        fs::write(dir.path().join(format!("f{i}")), prose(i as u64, 2_000)).unwrap();
        take(&session, clock).unwrap();
    }
    let all = names(&session);
    take_own(&session, "");
    take_own(&session, "");
    take_own(&session, "mine");
    // Rules keep the last second.
    std::thread::sleep(Duration::from_millis(2100));
    gc(&session);
    assert_eq!(names(&session), [&all[..], &[String::new(), "mine".to_owned()]].concat(), "gc");
    session.repo().history().drop_scheduled().unwrap();
    assert_eq!(names(&session), [&all[1..], &[String::new(), "mine".to_owned()]].concat(), "the schedule");
    session.close().unwrap();
    let path = dir.path().join(".dedupfs/config.toml");
    let config = fs::read_to_string(&path).unwrap().replace("snapshots = \"hourly:2\"", "");
    fs::write(&path, config).unwrap();
    let session = open(dir.path());
    session.repo().history().drop_scheduled().unwrap();
    assert_eq!(names(&session).len(), 4, "nothing is removed before a gc");
    gc(&session);
    assert_eq!(names(&session), [&all[2..], &[String::new(), "mine".to_owned()]].concat(), "no schedule");
    session.close().unwrap();
}
