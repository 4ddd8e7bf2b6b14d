//! `dedupctl ui` on a real server: who is answered, who is not, and that each page says what its command says.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, fuse_available, noise, prose, succeed, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `dedupctl ui`.
struct Ui {
    child: Child,
    port: u16,
    token: String,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert!(self.head.contains("\r\nContent-Type: application/json"), "{}", self.head);
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The data of the table on a page.
    fn table(&self) -> Value {
        let json = self.body.split("application/json\">").nth(1).unwrap_or_else(|| panic!("{}", self.body));
        serde_json::from_str(json.split("</script>").next().unwrap()).unwrap()
    }
}

impl Ui {
    fn start(mount: &Mount, at: &Path) -> Ui {
        let mut command = mount.dedupctl();
        command.args(["ui", "--json"]).arg(at).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut json = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while !json.ends_with('}') {
            json += &lines.next().expect("it says where it is").unwrap();
        }
        let url = serde_json::from_str::<Value>(&json).unwrap()["url"].as_str().unwrap().to_owned();
        let rest = url.strip_prefix("http://127.0.0.1:").unwrap();
        let (port, token) = rest.strip_suffix('/').unwrap().split_once('/').unwrap();
        assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{url}");
        Ui { child, port: port.parse().unwrap(), token: token.to_owned() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn send(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        answer(stream).expect("an answer")
    }

    fn get(&self, page: &str) -> Answer {
        let (port, token) = (self.port, &self.token);
        self.send(format!("GET /{token}/{page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").as_bytes())
    }

    fn ok(&self, page: &str) -> Answer {
        let answer = self.get(page);
        assert_eq!(answer.status, 200, "{page}: {}", answer.body);
        answer
    }

    /// Ends it, and returns its exit code.
    fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What comes back; nothing if the connection is closed without an answer.
fn answer(mut stream: TcpStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let whole = String::from_utf8(bytes).unwrap();
    let (head, body) = whole.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Some(Answer { status, head: format!("{head}\r\n"), body: body.to_owned() })
}

fn json(command: &mut Command) -> Value {
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.code().is_some_and(|code| code < 2), "{command:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

const HOSTILE: &str = "<script>alert(1)<_script> & \"x\".txt";

/// Files that are the same, alike, and of other kinds; one has a hostile name.
fn fill(dir: &Path) {
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("one.txt"), prose(1, 60_000)).unwrap();
    fs::write(dir.join(HOSTILE), prose(1, 60_000)).unwrap();
    fs::write(dir.join("sub/longer.txt"), [prose(1, 60_000), prose(2, 30_000)].concat()).unwrap();
    fs::write(dir.join("noise"), noise(3, 50_000)).unwrap();
}

#[test]
fn pages_say_what_the_commands_say() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let mnt = mount.mnt();
    fill(&mnt);
    mount.settle();
    succeed(mount.dedupctl().args(["snapshot", "create", "--name", "first"]).arg(&mnt));
    fs::write(mnt.join("one.txt"), [prose(1, 60_000), prose(4, 5_000)].concat()).unwrap();
    fs::write(mnt.join("todo.conflict-laptop-0011aabb.txt"), prose(5, 3_000)).unwrap();
    fs::write(mnt.join("todo.txt"), prose(6, 3_000)).unwrap();
    mount.settle();
    let ctl = |args: &[&str]| {
        let mut command = mount.dedupctl();
        command.args(args).current_dir(&mnt);
        json(&mut command)
    };
    let ui = Ui::start(&mount, &mnt);

    let (told, said) = (ui.ok("status.json").json(), ctl(&["status"]));
    for field in [
        "root",
        "store_id",
        "mounted",
        "mountpoint",
        "files",
        "logical_bytes",
        "unique_bytes",
        "chunks",
        "pid",
    ] {
        assert_eq!(told[field], said[field], "{field}");
    }
    assert_eq!(
        told.as_object().unwrap().keys().collect::<Vec<_>>(),
        said.as_object().unwrap().keys().collect::<Vec<_>>()
    );
    let page = ui.ok("");
    let words = page.table()["rows"][1].to_string();
    assert!(words.contains(said["root"].as_str().unwrap()) && page.body.contains("id=\"live\""), "{words}");

    let said = ctl(&["similar", "one.txt", "--min", "0.1"]);
    assert_eq!(said["matches"].as_array().unwrap().len(), 2, "{said}");
    let whole = format!("similar.json?min=0.1&file={}", mnt.join("one.txt").display());
    for page in ["similar.json?file=one.txt&min=0.1", &whole] {
        assert_eq!(ui.ok(page).json()["matches"], said["matches"], "{page}");
    }
    let page = ui.ok("similar?file=one.txt&min=0.1&limit=");
    let paths: Vec<&Value> = said["matches"].as_array().unwrap().iter().map(|found| &found["path"]).collect();
    assert_eq!(page.table()["rows"][0].as_array().unwrap().iter().collect::<Vec<_>>(), paths);
    assert!(paths.iter().any(|path| **path == HOSTILE), "{paths:?}");
    assert!(!page.body.contains("<script>alert"), "a name is text");
    assert_eq!(page.table()["link"], "diff?a=one%2Etxt&b=");
    let outside = mount.root.path().join("outside");
    fs::write(&outside, prose(2, 30_000)).unwrap();
    let found = ui.ok(&format!("similar.json?file={}", outside.display())).json();
    assert_eq!(found["matches"][0]["path"], "sub/longer.txt", "{found}");

    for (a, b) in [("one.txt", "sub/longer.txt"), ("one.txt@1", "one.txt@2")] {
        let said = ctl(&["diff", a, b]);
        assert_eq!(ui.ok(&format!("diff.json?a={a}&b={b}")).json(), said);
        let page = ui.ok(&format!("diff?a={a}&b={b}"));
        assert_eq!(page.table()["rows"][3][0], said["regions"][0]["length"]);
        assert_eq!(page.body.matches("class=\"pane").count(), 2);
    }

    let begun = ui.get("groups.json?min=0.5");
    assert!([200, 202].contains(&begun.status), "{}", begun.body);
    let end = Instant::now() + Duration::from_secs(60);
    while ui.get("groups.json").status == 202 {
        assert!(Instant::now() < end, "the comparison does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (told, said) = (ui.ok("groups.json").json(), ctl(&["groups", "--min", "0.5"]));
    assert_eq!((&told["identical"], &told["groups"]), (&said["identical"], &said["groups"]));
    assert!(said["groups"].as_array().is_some_and(|groups| !groups.is_empty()), "{said}");
    let members: usize = said["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["members"].as_array().unwrap().len())
        .sum();
    let sets: usize =
        said["identical"].as_array().unwrap().iter().map(|set| set["paths"].as_array().unwrap().len()).sum();
    let page = ui.ok("groups");
    assert_eq!(page.table()["rows"][0].as_array().unwrap().len(), members + sets);
    assert!(page.body.contains("value=\"0.5\""), "the last that was asked");

    let said = ctl(&["conflicts"]);
    assert_eq!(said["conflicts"].as_array().map(Vec::len), Some(1), "{said}");
    assert_eq!(ui.ok("conflicts.json").json(), said);
    assert_eq!(ui.ok("conflicts").table()["rows"][0][0], said["conflicts"][0]["path"]);
    // No sync made it.
    let named = format!("?path={}", said["conflicts"][0]["path"].as_str().unwrap());
    assert!(ui.ok(&format!("conflicts{named}")).body.contains("was not kept"));
    let compared = ui.ok(&format!("conflicts.json{named}")).json();
    assert_eq!(compared["conflicts"][0]["reason"], "the version before both edits was not kept");
    assert!(ui.ok("conflicts?path=other").body.contains("has no conflict"));

    let said = ctl(&["snapshot", "list"]);
    assert_eq!(ui.ok("snapshots.json").json(), said);
    assert_eq!(ui.ok("snapshots").table()["rows"][1][0], "first");
    let said = ctl(&["snapshot", "show", "first", "sub"]);
    assert_eq!(ui.ok("snapshots.json?id=first&path=sub").json(), said);
    assert_eq!(ui.ok("snapshots?id=first&path=sub").table()["rows"][0][0], "longer.txt");
    let link = ui.ok("snapshots?id=first&path=sub").table()["link"].as_str().unwrap().to_owned();
    assert_eq!(ui.ok(&format!("{link}longer.txt")).table()["rows"][0].as_array().unwrap().len(), 1);

    // What cannot be answered is an error of one page, in its form, and says what to do.
    for page in [
        "similar?file=missing",
        "similar?file=../outside",
        "similar?file=one.txt&min=2",
        "diff?a=one.txt",
        "groups?min=x",
        "snapshots?id=none",
    ] {
        let answer = ui.get(page);
        assert!(answer.status == 400 && answer.body.contains("class=\"note\""), "{page}: {}", answer.body);
        let (name, query) = page.split_once('?').unwrap();
        let error = ui.get(&format!("{name}.json?{query}"));
        assert!(error.status == 400 && error.json()["error"].is_string(), "{page}: {}", error.body);
    }
    // The mount may come and go.
    mount.unmount();
    let gone = ui.get("status.json");
    assert!(gone.status == 400 && gone.body.contains("not mounted any more"), "{}", gone.body);
    mount.start();
    assert_eq!(ui.ok("status.json").json()["mounted"], true);
    assert_eq!(ui.end(Signal::INT), Some(0));
}

/// A store without a daemon, in which only indexes are kept.
fn unmounted() -> Mount {
    let mount = Mount::prepare(As::Root);
    fill(&mount.dir());
    succeed(mount.dedupctl().args(["init", "--dedup", "off"]).arg(mount.dir()));
    succeed(mount.dedupctl().arg("scan").arg(mount.dir()));
    mount
}

#[test]
fn a_store_without_a_daemon_is_told_of_too() {
    let mount = unmounted();
    let said = json(mount.dedupctl().args(["similar"]).arg(mount.dir().join("one.txt")));
    let ui = Ui::start(&mount, &mount.dir());
    let status = ui.ok("status.json").json();
    assert_eq!((&status["mounted"], &status["files"]), (&false.into(), &4.into()));
    assert_eq!(ui.ok("similar.json?file=one.txt").json()["matches"], said["matches"]);
    ui.ok("diff?a=one.txt&b=sub/longer.txt");
    ui.ok("snapshots");
    let conflicts = ui.get("conflicts");
    assert!(conflicts.status == 400 && conflicts.body.contains("mount it"), "{}", conflicts.body);
    let taken =
        mount.dedupctl().args(["ui", "--port", &ui.port.to_string()]).arg(mount.dir()).output().unwrap();
    assert_eq!(taken.status.code(), Some(2), "the store is in use: {}", text(&taken));
    assert_eq!(ui.end(Signal::TERM), Some(0));
    succeed(mount.dedupctl().arg("status").arg(mount.dir()));
}

/// What a killed daemon left out is taken in by who may convert files, and not by who looks.
#[test]
fn a_store_that_is_behind_is_left_as_it_is() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::with_flags(As::Root, &["--dedup", "idle:1h"]);
    fill(&mount.mnt());
    mount.kill();
    let ui = Ui::start(&mount, &mount.dir());
    assert_eq!(ui.ok("status.json").json()["behind"], true);
    let refused = ui.get("diff?a=one.txt&b=noise");
    assert!(refused.status == 400 && refused.body.contains("dedupctl scan"), "{}", refused.body);
    assert!(ui.ok("similar?file=one.txt").body.contains("Files may be missing"));
    assert_eq!(ui.end(Signal::INT), Some(0));
    assert!(!mount.is_stub("one.txt"), "nothing was converted");
}

#[test]
fn nobody_else_is_answered() {
    let mount = unmounted();
    let ui = Ui::start(&mount, &mount.dir());
    let (port, token) = (ui.port, ui.token.clone());
    let head =
        |method: &str, path: &str, host: &str| format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let (own, local) = (format!("127.0.0.1:{port}"), format!("localhost:{port}"));
    let first = format!("/{token}/");
    assert_eq!(ui.send(head("GET", &first, &own).as_bytes()).status, 200);
    assert_eq!(ui.send(head("GET", &first, &local).as_bytes()).status, 200);
    let other = if token.starts_with('0') { "1" } else { "0" };
    let wrong = format!("/{other}{}/", &token[1..]);
    let body = format!("POST {first} HTTP/1.1\r\nHost: {own}\r\nContent-Length: 4\r\n\r\nx=y\n");
    let long = format!("GET {first}?{} HTTP/1.1\r\nHost: {own}\r\n\r\n", "a".repeat(20_000));
    let twice = format!("GET {first} HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n\r\n");
    let cases: Vec<(&str, String, u16)> = vec![
        ("no token", head("GET", "/", &own), 404),
        ("another page of the root", head("GET", "/status.json", &own), 404),
        ("a wrong token", head("GET", &wrong, &own), 404),
        ("half a token", head("GET", &format!("/{}/", &token[..32]), &own), 404),
        ("a token and more", head("GET", &format!("/{token}0/"), &own), 404),
        ("another host", head("GET", &first, &format!("evil.example:{port}")), 403),
        ("another port", head("GET", &first, "127.0.0.1:1"), 403),
        ("no host", format!("GET {first} HTTP/1.1\r\n\r\n"), 403),
        ("two hosts", twice, 403),
        ("POST", body, 405),
        ("PUT", head("PUT", &first, &own), 405),
        ("OPTIONS", head("OPTIONS", &first, &own), 405),
        ("..", head("GET", &format!("{first}../../etc/passwd"), &own), 404),
        ("encoded ..", head("GET", &format!("{first}%2e%2e%2fetc%2fpasswd"), &own), 404),
        ("no such page", head("GET", &format!("{first}nothing"), &own), 404),
        ("a whole address", head("GET", &format!("http://{own}{first}"), &own), 404),
        ("too long", long, 431),
        ("garbage", "\0\u{1}\u{2} nonsense\r\n\r\n".to_owned(), 400),
    ];
    for (what, request, status) in cases {
        let answer = ui.send(request.as_bytes());
        assert_eq!(answer.status, status, "{what}: {}", answer.body);
        assert!(!answer.body.contains("one.txt") && !answer.body.contains(&token), "{what}: {}", answer.body);
    }
    for page in ["", "status.json", "nothing"] {
        let head = ui.get(page).head.to_ascii_lowercase();
        assert!(!head.contains("access-control"), "no other page may read it: {head}");
        for field in [
            "content-security-policy: default-src 'none'",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(field), "{page}: {field}: {head}");
        }
    }
    let (page, again) = (ui.ok(""), ui.ok(""));
    let nonce =
        |answer: &Answer| answer.head.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
    assert!(page.body.contains(&format!("<script nonce=\"{}\">", nonce(&page))));
    assert_ne!(nonce(&page), nonce(&again));
    assert!(!page.body.contains("onclick") && !page.head.contains("script-src 'unsafe-inline'"));
    // Only at one address of this machine.
    assert!(TcpStream::connect(("127.0.0.2", port)).is_err());
    assert_eq!(ui.end(Signal::INT), Some(0));
}

#[test]
fn who_is_slow_keeps_nobody_waiting() {
    let mount = unmounted();
    let ui = Ui::start(&mount, &mount.dir());
    // All but one of the places.
    let slow: Vec<TcpStream> = (0..31).map(|_| ui.connect()).collect();
    (&slow[0]).write_all(b"GET /").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    ui.ok("status.json");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    // More than there are places for: they are told so, at once or when the slow ones have had their time.
    let more: Vec<TcpStream> = (0..40).map(|_| ui.connect()).collect();
    let told: Vec<u16> = more.into_iter().filter_map(answer).map(|answer| answer.status).collect();
    assert!(told.contains(&503) && told.iter().all(|status| [503, 408].contains(status)), "{told:?}");
    for stream in slow {
        assert_eq!(answer(stream).map(|answer| answer.status), Some(408));
    }
    // One that goes on a byte at a time has no longer than the others.
    let mut byte_by_byte = ui.connect();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) && byte_by_byte.write_all(b"x").is_ok() {
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    ui.ok("status.json");
    // Many at once.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                (0..10).for_each(|_| assert_eq!(ui.ok("similar.json?file=one.txt").json()["identical"], 1))
            });
        }
    });
    // Who takes no answer does not hold it up at the end either.
    let mut deaf = ui.connect();
    let (port, token) = (ui.port, &ui.token);
    write!(deaf, "GET /{token}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").unwrap();
    let begun = Instant::now();
    assert_eq!(ui.end(Signal::TERM), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// What is in the document once its scripts have run for a while; `DEDUPFS_SHOTS=DIR` keeps what it looked like.
fn browse(dir: &Path, url: &str, name: &str) -> String {
    let output = Command::new("timeout")
        .args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"])
        .arg("--virtual-time-budget=6000")
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("--screenshot={}", dir.join("shot.png").display()))
        .args(["--dump-dom", url])
        .output()
        .expect("chromium, of Debian's package of that name");
    if let Some(shots) = std::env::var_os("DEDUPFS_SHOTS") {
        fs::copy(dir.join("shot.png"), Path::new(&shots).join(name)).unwrap();
    }
    let dom = String::from_utf8(output.stdout).unwrap();
    assert!(dom.contains("</html>"), "{}", String::from_utf8_lossy(&output.stderr));
    dom
}

#[test]
#[ignore = "needs a browser: apt-get install chromium, then run by hand"]
fn a_browser_shows_the_pages() {
    let mount = Mount::new(As::Root);
    fill(&mount.mnt());
    fs::write(mount.at("todo.conflict-laptop-0011aabb.txt"), prose(5, 3_000)).unwrap();
    fs::write(mount.at("todo.txt"), prose(6, 3_000)).unwrap();
    mount.settle();
    succeed(mount.dedupctl().args(["snapshot", "create", "--name", "first"]).arg(mount.mnt()));
    let ui = Ui::start(&mount, &mount.mnt());
    let dir = tempfile::tempdir().unwrap();
    let look = |page: &str, name: &str| {
        browse(dir.path(), &format!("http://127.0.0.1:{}/{}/{page}", ui.port, ui.token), name)
    };
    let status = look("", "ui-status.png");
    assert!(status.contains("files pending 0") && status.contains("every 2 s"), "the charts live: {status}");
    let points = status.split("<polyline").nth(1).unwrap().split("points=\"").nth(1).unwrap();
    assert!(points.split('"').next().unwrap().contains(','), "{points}");
    let similar = look("similar?file=one.txt&min=0.1", "ui-similar.png");
    assert!(similar.contains("2 rows") && similar.contains("&lt;script&gt;alert(1)"), "{similar}");
    assert!(similar.contains("href=\"diff?a=one%2Etxt&amp;b=sub%2Flonger.txt\""), "{similar}");
    assert!(look("diff?a=one.txt&b=sub/longer.txt", "ui-diff.png").contains("<mark"));
    let groups = look("groups?min=0.25", "ui-groups.png");
    assert!(groups.contains("class=\"frame\"") && groups.contains("rows"), "{groups}");
    assert!(look("conflicts", "ui-conflicts.png").contains("todo.conflict-laptop"));
    assert!(look("snapshots", "ui-snapshots.png").contains("first"));
    look("similar?file=missing", "ui-error.png");
}
