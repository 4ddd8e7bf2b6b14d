//! Pages for a browser: that they say what the report says, and, in a real browser, that they work.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod common;

use common::{As, Mount, noise, prose, succeed, text};
use dedupfs::page::{Column, Page, Set, Table, Values};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The data of a page.
fn data(html: &str) -> Value {
    let json = html.split("application/json\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(json).unwrap()
}

/// A store with files that are the same and files that are alike, one of them with a hostile name, and its page.
fn groups_page(dir: &Path) -> String {
    let mount = Mount::prepare(As::Root);
    let files = mount.dir();
    let shared = noise(1, 90_000);
    fs::write(files.join("one.bin"), &shared).unwrap();
    fs::write(files.join("<script>alert(1)<_script>.bin"), &shared).unwrap();
    fs::write(files.join("longer & more.bin"), [&shared[..], &noise(2, 30_000)].concat()).unwrap();
    fs::write(files.join("alone"), prose(3, 20_000)).unwrap();
    succeed(mount.dedupctl().args(["init", "--dedup", "off"]).arg(&files));
    succeed(mount.dedupctl().arg("scan").arg(&files));
    let page = dir.join("groups.html");
    let output = succeed(mount.dedupctl().args(["groups", "--html"]).arg(&page).arg(&files));
    assert!(output.stdout.is_empty() && text(&output).contains("groups.html"), "{}", text(&output));
    let json = succeed(mount.dedupctl().args(["groups", "--json", "--html"]).arg(&page).arg(&files));
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["identical_sets"], 1);
    fs::read_to_string(page).unwrap()
}

#[test]
fn a_page_says_what_the_report_says() {
    let dir = tempfile::tempdir().unwrap();
    let html = groups_page(dir.path());
    let data = data(&html);
    let names: Vec<&str> =
        data["rows"][0].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(names.len(), 4, "two that are the same; one of them, and what resembles it: {names:?}");
    assert!(names.contains(&"<script>alert(1)<_script>.bin") && names.contains(&"longer & more.bin"));
    assert_eq!(data["sets"].as_array().unwrap().len(), 2);
    assert_eq!(data["sets"][0]["saves"], 90_000);
    assert_eq!(html.matches("<script").count(), 2, "a name is no element");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the page");
    let refused = dir.path().join("missing/page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_dedupctl"))
        .args(["compare-methods", "src/page", "--queries", "1", "--html"])
        .arg(&refused)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("missing/page.html"), "{}", text(&output));
    succeed(
        Command::new(env!("CARGO_BIN_EXE_dedupctl"))
            .args(["compare-methods", "src/page", "--queries", "1", "--html"])
            .arg(dir.path().join("methods.html")),
    );
    let methods = fs::read_to_string(dir.path().join("methods.html")).unwrap();
    assert_eq!(self::data(&methods)["rows"][0][0], "default");
}

/// A page of 100,000 files in 500 sets.
fn large_page() -> String {
    let rows = 100_000;
    let name = |i: usize| format!("project-{}/src/module{:05}/file{i}.rs", i / 200, i * 7919 % rows);
    let columns = vec![
        Column { name: "File", help: "", values: Values::Text((0..rows).map(name).collect()) },
        Column {
            name: "Size",
            help: "",
            values: Values::Bytes((0..rows).map(|i| i as u64 * 7919 % 1_000_003).collect()),
        },
        Column {
            name: "Contained",
            help: "",
            values: Values::Share((0..rows).map(|i| Some((i % 100) as f64 / 100.0)).collect()),
        },
    ];
    let set = |i: usize| Set {
        name: name(i * 200),
        from: i * 200,
        to: i * 200 + 200,
        saves: 1_000_000 / (i as u64 + 1),
        same: i.is_multiple_of(3),
    };
    let table = Table {
        title: "Files".into(),
        columns,
        sets: (0..500).map(set).collect(),
        size: 1,
        darkness: 2,
        first: Vec::new(),
    };
    let page = Page {
        title: "Many".into(),
        about: String::new(),
        figures: Vec::new(),
        notes: Vec::new(),
        pictures: Vec::new(),
        table,
    };
    page.html("now").unwrap()
}

/// What is in the document after `script` has run in the page.
fn browse(dir: &Path, html: &str, script: &str) -> String {
    let path = dir.join("browsed.html");
    fs::write(&path, html.replace("</body>", &format!("<script>{{{script}}}</script></body>"))).unwrap();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1280,1600",
            "--virtual-time-budget=20000",
        ])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("--screenshot={}", dir.join("shot.png").display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", path.display()))
        .output()
        .expect("chromium, of Debian's package of that name");
    let dom = String::from_utf8(output.stdout).unwrap();
    assert!(dom.contains("</html>"), "{}", String::from_utf8_lossy(&output.stderr));
    dom
}

/// What a script has put into the title.
fn told(dom: &str) -> &str {
    dom.split("<title>").nth(1).unwrap().split("</title>").next().unwrap()
}

/// `DEDUPFS_SHOTS=DIR` keeps what it looked like.
#[test]
#[ignore = "needs a browser: apt-get install chromium, then run by hand"]
fn a_browser_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let keep = |name: &str| {
        if let Some(shots) = std::env::var_os("DEDUPFS_SHOTS") {
            fs::copy(dir.path().join("shot.png"), Path::new(&shots).join(name)).unwrap();
        }
    };
    let html = groups_page(dir.path());
    let dom = browse(dir.path(), &html, "");
    assert!(dom.contains("&lt;script&gt;alert(1)&lt;_script&gt;.bin") && !dom.contains("alert(1)<_"));
    assert_eq!(dom.matches("class=\"frame\"").count(), 2, "both sets are in the map");
    assert!(dom.contains("4 rows"), "{dom}");
    keep("groups.png");
    // By keys alone: a set of the map is opened, then all is shown again.
    let keys = "
        const press = (node, key) => node.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
        const set = document.querySelectorAll('#map .set')[1]; set.focus(); press(set, 'Enter');
        const after = document.getElementById('shown').textContent;
        const focusable = document.activeElement === set;
        document.getElementById('all').click();
        document.title = [after, focusable, document.getElementById('shown').textContent].join('|');";
    assert_eq!(told(&browse(dir.path(), &html, keys)), "2 of 4 rows|true|4 rows");
    // Sorting, filtering and scrolling a hundred thousand.
    let many = "
        const time = (work) => { const t = performance.now(); work(); return Math.round(performance.now() - t); };
        const heads = document.querySelectorAll('th button'); const box = document.getElementById('scroll');
        const input = document.getElementById('filter'); const rows = () => document.querySelectorAll('#table tbody tr').length;
        const size = time(() => heads[1].click()); const top = document.querySelector('#table tbody tr td:nth-child(2)').textContent;
        const name = time(() => heads[0].click()); const few = rows();
        box.scrollTop = box.scrollHeight; window.dispatchEvent(new Event('resize'));
        const last = [...document.querySelectorAll('#table tbody tr')].at(-1).textContent;
        input.value = 'project-7/ file1'; input.dispatchEvent(new Event('input'));
        setTimeout(() => { document.title = ['ms', size, name, '|', few, '|', top, '|', last, '|', document.getElementById('shown').textContent].join(' '); }, 1000);";
    let dom = browse(dir.path(), &large_page(), many);
    let parts: Vec<&str> = told(&dom).split(" | ").collect();
    assert!(
        parts[1].trim().parse::<usize>().unwrap() < 200,
        "only rows in sight are in the document: {parts:?}"
    );
    assert_eq!(parts[2].trim(), "977 KiB", "the largest first");
    assert!(parts[3].contains("project-99/"), "the last name: {parts:?}");
    assert_eq!(parts[4].trim(), "200 of 100,000 rows", "both words are asked for");
    keep("many.png");
    let print = browse(
        dir.path(),
        &large_page(),
        "window.dispatchEvent(new Event('beforeprint')); document.title = document.querySelectorAll('#table tbody tr').length;",
    );
    assert_eq!(told(&print), "2001", "two thousand rows and what is left out");
}
