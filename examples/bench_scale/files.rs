//! What each command costs by the number of files.

use crate::mounted::Mounted;
use crate::row::Row;
use crate::{report, tables, tree};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Measures each number of files, and writes the report.
pub fn run(dir: &Path, counts: &[u64], limit: Duration) {
    fs::create_dir_all(dir).unwrap();
    for &files in counts {
        measure(dir, files, limit);
    }
    report::write(dir);
}

/// Makes a tree, takes all steps, and removes it.
fn measure(dir: &Path, files: u64, limit: Duration) {
    let (root, copy) = (dir.join("tree"), dir.join("copy"));
    let begun = Instant::now();
    fs::create_dir_all(&root).unwrap();
    tree::make(&root, 0, files);
    println!("{files} files made in {:.1} s", begun.elapsed().as_secs_f64());
    let mut rows = fs::File::options().append(true).create(true).open(dir.join("rows.tsv")).unwrap();
    let mut add = |step: &str, row: Row| {
        let row = Row { files, step: step.to_owned(), ..row };
        println!("{}", row.line());
        writeln!(rows, "{}", row.line()).unwrap();
    };
    let mut mounted = Mounted::new(&root, limit);
    let name = root.to_str().unwrap().to_owned();
    // All attributes of each file.
    let find = || {
        let mut find = Command::new("find");
        find.args([&name, "-type", "f", "-size", "+1000"]).stdout(Stdio::null());
        find
    };
    add("mount", mounted.mount());
    add("find", mounted.measure(vec![find()]));
    let ctl = |mounted: &Mounted, args: &[&str]| mounted.program("dedupctl", &[args, &[&name]].concat());
    add("scan, settle", mounted.measure(vec![ctl(&mounted, &["scan"]), ctl(&mounted, &["settle"])]));
    add("scan again", mounted.measure(vec![ctl(&mounted, &["scan"])]));
    add("snapshot create", mounted.measure(vec![ctl(&mounted, &["snapshot", "create"])]));
    add("gc", mounted.measure(vec![ctl(&mounted, &["gc"])]));
    add("check", mounted.measure(vec![ctl(&mounted, &["check"])]));
    add("groups", mounted.measure(vec![ctl(&mounted, &["groups"])]));
    let middle = root.join(tree::path(((files / 2) & !7) | 4));
    add(
        "similar",
        mounted.measure(vec![mounted.program("dedupctl", &["similar", middle.to_str().unwrap()])]),
    );
    add("export --to", mounted.measure(vec![ctl(&mounted, &["export", "--to", copy.to_str().unwrap()])]));
    let _ = fs::remove_dir_all(&copy);
    add("unmount", mounted.unmount());
    add("check, unmounted", mounted.measure(vec![ctl(&mounted, &["check"])]));
    add("mount again", mounted.mount());
    add("find again", mounted.measure(vec![find()]));
    add("unmount again", mounted.unmount());
    tables::print(&root, files, "by file");
    fs::remove_dir_all(&root).unwrap();
}
