//! Pages for a browser: that they say what the report says, and, in a real browser, that they work.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, fuse_available, noise, prose, succeed, text};
use dedupfs::page::{Column, Page, Set, Table, Values};
use serde_json::Value;
use std::ffi::OsStr;
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

/// What `dedupctl diff A B` says as JSON, and its page.
fn diff_page(mount: &Mount, a: &Path, b: &Path) -> (Value, String) {
    let page = mount.root.path().join("diff.html");
    let diff = |args: &[&OsStr]| {
        let mut command = mount.dedupctl();
        let output = command.arg("diff").args([a, b]).args(args).current_dir(mount.mnt()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "they differ: {}", text(&output));
        output
    };
    let json = diff(&["--json".as_ref()]);
    let quiet = diff(&["--html".as_ref(), page.as_ref()]);
    assert!(quiet.stdout.is_empty() && text(&quiet).contains("diff.html"), "{}", text(&quiet));
    (serde_json::from_slice(&json.stdout).unwrap(), fs::read_to_string(page).unwrap())
}

/// The rows of one side of a page: number, and what is to be seen.
fn rows(html: &str, side: usize) -> Vec<(String, String)> {
    let pane = html.split("class=\"pane").nth(side + 1).unwrap().split("</section>").next().unwrap();
    let seen = |html: &str| {
        let text = html.split("</i>").map(|part| part.split("<i>").next().unwrap()).collect::<String>();
        let text = text
            .split('<')
            .map(|part| part.split_once('>').map_or(part, |(_, text)| text))
            .collect::<String>();
        [("&#60;", "<"), ("&#62;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&#38;", "&")]
            .iter()
            .fold(text, |text, (escaped, plain)| text.replace(escaped, plain))
    };
    let row = |row: &str| {
        let (number, text) = row.split_once("</b><span>").unwrap();
        (number.to_owned(), seen(text.split("</span></div>").next().unwrap()))
    };
    pane.split("<b>").skip(1).map(row).collect()
}

/// The lines of a side that shows text: long ones are in several rows.
fn lines(html: &str, side: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (number, text) in rows(html, side) {
        match lines.last_mut().filter(|_| number.is_empty()) {
            Some(line) => *line += &text,
            None => lines.push(text),
        }
    }
    lines
}

#[test]
fn the_page_of_two_files_says_what_diff_says() {
    let mount = Mount::prepare(As::Root);
    succeed(mount.dedupctl().args(["init", "--dedup", "off"]).arg(mount.dir()));
    let shared = String::from_utf8(prose(1, 4_000)).unwrap();
    let hostile = "</script><script>document.title = 'driven'</script> & <img src=x onerror=alert(1)>";
    let (a, b) = (mount.dir().join("<b>&\"a\".txt"), mount.dir().join("b.txt"));
    let of_a = format!("{hostile}\nonly in a\n{shared}\n");
    let of_b = format!("{shared}\nonly in b\n{hostile}\n");
    fs::write(&a, &of_a).unwrap();
    fs::write(&b, &of_b).unwrap();
    let (json, html) = diff_page(&mount, &a, &b);
    let on_page = data(&html);
    let regions = json["regions"].as_array().unwrap();
    assert!(regions.len() >= 2, "{json}");
    for (column, field) in [(1, "a_offset"), (2, "b_offset"), (3, "length")] {
        let said: Vec<&Value> = regions.iter().map(|region| &region[field]).collect();
        assert_eq!(on_page["rows"][column].as_array().unwrap().iter().collect::<Vec<_>>(), said, "{field}");
    }
    assert_eq!(on_page["marks"].as_array().unwrap().len(), regions.len());
    assert_eq!(html.matches("<script").count(), 3, "those of the page");
    assert!(!html.contains("<img") && !html.contains("<b>&"), "neither names nor contents are elements");
    for (side, content) in [(0, &of_a), (1, &of_b)] {
        assert_eq!(lines(&html, side), content.lines().collect::<Vec<_>>(), "all of it, line by line");
        assert_eq!(rows(&html, side).last().unwrap().0, content.lines().count().to_string());
    }
    for number in 1..=regions.len() {
        let label = format!("<i>{number}</i>");
        assert_eq!(html.matches(&label).count(), 2, "region {number} has its number on both sides");
    }
    assert!(!html.contains("Not all is shown"));

    // Bytes, and more of them than a page holds: the shared part lies behind all that would be shown of the beginning.
    let common = noise(3, 50_000);
    fs::write(&a, [noise(4, 600_000), common.clone()].concat()).unwrap();
    fs::write(&b, [&common[..], &noise(5, 300_000)].concat()).unwrap();
    let (json, html) = diff_page(&mount, &a, &b);
    assert_eq!(json["regions"][0]["a_offset"], 600_000);
    assert!(html.contains("Not all is shown") && html.len() < 600_000, "{}", html.len());
    let first = rows(&html, 0);
    assert_eq!(first[0].1, "598976 bytes are not shown");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x} ")).collect::<String>();
    let starts = first.iter().find(|(number, _)| *number == format!("{:08x}", 600_000)).unwrap();
    assert!(starts.1.starts_with(&hex(&common[..16])), "{starts:?}");
}

#[test]
fn versions_stand_side_by_side_too() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    for n in [1, 2] {
        fs::write(mount.at("text"), [prose(1, 3_000), prose(n + 1, 1_000)].concat()).unwrap();
        mount.settle();
    }
    let (json, html) = diff_page(&mount, &mount.at("text@1"), &mount.at("text@2"));
    assert_eq!((&json["a"], &json["b"]), (&"text@1".into(), &"text@2".into()));
    assert!(html.contains("<title>text@1 and text@2</title>"));
    assert_eq!(data(&html)["rows"][3][0], json["regions"][0]["length"]);
    let last = |n: u64| String::from_utf8([prose(1, 3_000), prose(n + 1, 1_000)].concat()).unwrap();
    assert_eq!(lines(&html, 1), last(2).lines().collect::<Vec<_>>());
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
        link: None,
    };
    let page = Page {
        title: "Many".into(),
        about: String::new(),
        figures: Vec::new(),
        notes: Vec::new(),
        pictures: Vec::new(),
        side_by_side: None,
        table: Some(table),
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

/// Keys, clicks and scrolling of two files side by side.
#[test]
#[ignore = "needs a browser: apt-get install chromium, then run by hand"]
fn a_browser_moves_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let keep = |name: &str| {
        if let Some(shots) = std::env::var_os("DEDUPFS_SHOTS") {
            fs::copy(dir.path().join("shot.png"), Path::new(&shots).join(name)).unwrap();
        }
    };
    let mount = Mount::prepare(As::Root);
    succeed(mount.dedupctl().args(["init", "--dedup", "off"]).arg(mount.dir()));
    let (a, b) = (mount.dir().join("first.txt"), mount.dir().join("second.txt"));
    let part = |seed| prose(seed, 9_000);
    fs::write(&a, [part(1), part(2), part(3), part(4)].concat()).unwrap();
    // The same parts, others between them, and two exchanged.
    fs::write(&b, [part(5), part(1), part(6), part(3), part(7), part(2), part(8)].concat()).unwrap();
    let html = diff_page(&mount, &a, &b).1;
    let script = "
        window.onerror = (message) => { document.title = message; };
        const panes = [...document.querySelectorAll('.pane')]; const said = () => document.getElementById('region').textContent;
        const press = (pane, key) => pane.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
        const label = (side, n) => [...panes[side].querySelectorAll('mark i')].find((i) => i.textContent === String(n));
        const top = (side, n) => Math.round(label(side, n).parentNode.getBoundingClientRect().top - panes[side].getBoundingClientRect().top);
        const long = JSON.parse(document.getElementById('data').textContent).rows[3].map((bytes, i) => [bytes, i + 1]).sort((x, y) => y[0] - x[0]).slice(0, 3).map((x) => x[1]).sort((x, y) => x - y);
        const out = [];
        panes[0].focus(); press(panes[0], 'n'); out.push(said().startsWith('region 1,'));
        press(panes[0], 'o'); out.push(document.activeElement === panes[1]);
        press(panes[1], 'p'); out.push(said().startsWith('region'));
        label(0, long[1]).click();
        out.push(Math.abs(top(0, long[1]) - top(1, long[1])) <= 20, document.querySelectorAll('mark.chosen').length >= 2);
        // Without a screen nobody tells of scrolling.
        const scroll = (side, to) => { panes[side].scrollTop = to; panes[side].dispatchEvent(new Event('scroll')); };
        scroll(0, 0); out.push(panes[1].scrollTop === 0);
        const first = JSON.parse(document.getElementById('data').textContent).marks.find((mark) => mark.region === long[2]).rows[0][0];
        scroll(0, first * 20 + 100); out.push(panes[1].scrollTop > 0, Math.abs(top(0, long[2]) - top(1, long[2])) <= 20);
        document.getElementById('together').click(); const still = panes[1].scrollTop;
        scroll(0, 0); out.push(panes[1].scrollTop === still);
        document.title = out.join('|');";
    let dom = browse(dir.path(), &html, script);
    assert_eq!(told(&dom), ["true"; 9].join("|"));
    browse(dir.path(), &html, "");
    keep("diff-text.png");
    fs::write(&a, [noise(1, 3_000), noise(2, 5_000), noise(3, 2_000)].concat()).unwrap();
    fs::write(&b, [noise(4, 700), noise(2, 5_000), noise(5, 900), noise(1, 2_000)].concat()).unwrap();
    browse(dir.path(), &diff_page(&mount, &a, &b).1, "");
    keep("diff-binary.png");
}
