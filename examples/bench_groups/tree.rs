//! A real tree: index, identical files, groups, and what others take for identical files.

use crate::PhaseMeter;
use dedupfs::config::Config;
use dedupfs::overlay::{Dedup, GroupOptions, Groups, Overlay};
use dedupfs::repo::{InitOptions, OpenOptions, Repo};
use std::path::Path;
use std::process::{Command, Stdio};

const SHOWN: usize = 25;

pub fn run(dir: &Path, scratch: &Path) {
    let store = scratch.join("store");
    let config = Config { dedup: Some(Dedup::Off), ..Config::default() };
    let options = InitOptions { config, ..InitOptions::default() };
    let layout = Repo::init(dir, Some(&store), &options).unwrap();
    let repo =
        Repo::open(&layout, &OpenOptions { convert: true, ..OpenOptions::default() }, &mut |_| {}).unwrap();
    let background = repo.overlay().start();
    let meter = PhaseMeter::start("index");
    let scanned = repo.overlay().maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
    repo.overlay().maintenance.settle(&mut |_| true).unwrap();
    meter.end(&format!("{} files, {} bytes", scanned.files, scanned.bytes));
    let work = repo.state_file("groups");
    let overlay = repo.overlay();
    let options = GroupOptions { min: 0.25, verify_bytes: 1 << 30, ..GroupOptions::default() };

    let identical = GroupOptions { identical: true, ..options.clone() };
    let found = ask("identical", overlay, &identical, &work);
    println!(
        "  {} sets, {} files, {} redundant bytes",
        found.identical_sets, found.identical_files, found.identical_bytes
    );
    others(dir);
    let estimate = GroupOptions { estimate: true, ..options.clone() };
    ask("groups, first, estimates", overlay, &estimate, &work);
    ask("groups, again", overlay, &estimate, &work);
    ask("groups, another threshold", overlay, &GroupOptions { min: 0.5, ..estimate.clone() }, &work);
    let found = ask("groups, verified", overlay, &options, &work);
    show(&found);
    drop(background);
    repo.close(Vec::new()).unwrap();
    std::fs::remove_dir_all(dir.join(dedupfs::overlay::STATE_DIR)).unwrap();
}

fn ask(name: &'static str, overlay: &Overlay, options: &GroupOptions, work: &Path) -> Groups {
    let meter = PhaseMeter::start(name);
    let found = overlay.groups(Path::new(""), options, work, &mut |_, _, _| true).unwrap();
    meter.end(&format!(
        "{} contents, {} pairs, {} groups of {} estimated, {} shown, {} features suppressed",
        found.contents,
        found.pairs,
        found.estimated_groups,
        found.estimated_members,
        found.groups.len(),
        found.suppressed_features
    ));
    found
}

fn others(dir: &Path) {
    let commands: [&[&str]; 3] = [
        &["jdupes", "-r", "-q", "-m"],
        &["rmlint", "-T", "df", "-o", "summary:stdout", "--hidden"],
        &["fclones", "group", "--hidden", "--no-ignore", "-f", "csv", "-o", "/dev/null"],
    ];
    for command in commands {
        let meter = PhaseMeter::start(command[0]);
        let output = Command::new(command[0]).args(&command[1..]).arg(dir).stderr(Stdio::null()).output();
        let Ok(output) = output else {
            println!("{} is not installed", command[0]);
            continue;
        };
        let said = String::from_utf8_lossy(&output.stdout).trim().replace('\n', "; ");
        meter.end(&said.chars().take(200).collect::<String>());
    }
}

fn show(found: &Groups) {
    for group in found.groups.iter().take(SHOWN) {
        println!(
            "\n{} contents, {} bytes, {} savable",
            group.members.len(),
            group.bytes,
            group.savable_bytes
        );
        for member in group.members.iter().take(8) {
            println!(
                "  {:>5.1}% {:>5.1}% {:>9} {}{}",
                100.0 * member.containment,
                100.0 * member.contained_in,
                member.size,
                member.path.display(),
                if member.verified { "" } else { " (estimate)" }
            );
        }
    }
    let mut sizes: Vec<_> = found.groups.iter().map(|group| group.members.len()).collect();
    sizes.sort_unstable();
    println!("\nmembers of a group: median {:?}, largest {:?}", sizes.get(sizes.len() / 2), sizes.last());
}
