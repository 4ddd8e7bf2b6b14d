//! Runs the stages of all contestants in turns, and tells the medians.

use super::side::{NAMES, Side};
use super::stage::{Before, SUITES, Stage, Suite, Took};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What was asked for.
pub(super) struct Options {
    rounds: usize,
    json: bool,
    only: Vec<String>,
    sides: Vec<String>,
}

impl Options {
    pub(super) fn parse(mut flags: &[&str]) -> Option<Options> {
        let mut options = Options { rounds: 3, json: false, only: Vec::new(), sides: Vec::new() };
        let list = |text: &str| text.split(',').map(str::to_owned).collect();
        while let [flag, rest @ ..] = flags {
            flags = match (*flag, rest) {
                ("--json", _) => {
                    options.json = true;
                    rest
                }
                ("--rounds", [count, rest @ ..]) => {
                    options.rounds = count.parse().ok().filter(|rounds| *rounds > 0)?;
                    rest
                }
                ("--only", [names, rest @ ..]) => {
                    options.only = list(names);
                    rest
                }
                ("--sides", [names, rest @ ..]) => {
                    options.sides = list(names);
                    rest
                }
                _ => return None,
            };
        }
        let known = options.sides.iter().all(|side| NAMES.contains(&side.as_str()))
            && options.only.iter().all(|suite| SUITES.iter().any(|known| known.name == suite));
        known.then_some(options)
    }

    fn wants(list: &[String], name: &str) -> bool {
        list.is_empty() || list.iter().any(|wanted| wanted == name)
    }
}

/// One measurement: by a contestant, of a stage, in a round.
#[derive(Clone, Copy)]
struct Sample {
    took: Took,
    daemon: Duration,
}

/// Runs all that was asked for, and prints it.
pub(super) fn run(work: &Path, options: &Options) {
    std::fs::create_dir_all(work).unwrap();
    let work = work.canonicalize().unwrap();
    let bin = copy_programs(&work);
    let wanted = |name: &&&str| **name == "native" || Options::wants(&options.sides, name);
    let mut sides: Vec<Side> = NAMES.iter().filter(wanted).map(|name| Side::new(name, &work, &bin)).collect();
    sides.retain(Side::available);
    let mut rows = Vec::new();
    for suite in SUITES.iter().filter(|suite| Options::wants(&options.only, suite.name)) {
        let mut samples = vec![vec![Vec::new(); suite.stages.len()]; sides.len()];
        for round in 0..options.rounds {
            for turn in 0..sides.len() {
                // Whoever goes first in one round does not in the next.
                let at = (turn + round) % sides.len();
                if takes_part(&sides[at], suite) {
                    eprint_progress(suite, round, &sides[at]);
                    run_suite(&mut sides[at], suite, &mut samples[at]);
                }
            }
        }
        let names: Vec<_> = sides.iter().map(|side| side.name).collect();
        for (at, stage) in suite.stages.iter().enumerate().filter(|(_, stage)| !stage.title.is_empty()) {
            let cells = samples.iter().map(|side| median(&side[at])).collect();
            rows.push(Row { suite: suite.name, stage, names: names.clone(), cells });
        }
    }
    drop(sides);
    std::fs::remove_dir_all(bin).unwrap();
    if options.json {
        println!("{}", serde_json::Value::from(rows.iter().map(Row::json).collect::<Vec<_>>()));
    } else {
        print(&rows);
    }
}

/// The programs, where an ordinary user can run them.
fn copy_programs(work: &Path) -> PathBuf {
    let (from, bin) = (std::env::current_exe().unwrap(), work.join("bin"));
    let from = from.parent().unwrap().parent().unwrap();
    std::fs::create_dir_all(bin.join("examples")).unwrap();
    for name in ["dedupfs", "dedupctl", "examples/bench_mount"] {
        std::fs::copy(from.join(name), bin.join(name))
            .unwrap_or_else(|e| panic!("{name}: {e}: build it in the same profile, by cargo build --bins"));
    }
    bin
}

fn takes_part(side: &Side, suite: &Suite) -> bool {
    match side.name {
        "null" => matches!(suite.name, "data" | "files"),
        "bindfs" => matches!(suite.name, "data" | "files" | "tree"),
        _ => true,
    }
}

fn eprint_progress(suite: &Suite, round: usize, side: &Side) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{}, round {}: {}", suite.name, round + 1, side.name);
}

fn run_suite(side: &mut Side, suite: &Suite, samples: &mut [Vec<Sample>]) {
    side.fresh(suite.converts);
    for (stage, samples) in suite.stages.iter().zip(samples) {
        if stage.name == "settle" {
            side.settle();
            continue;
        }
        if stage.name == "heat" {
            side.heat();
            continue;
        }
        if side.name == "null" && stage.before == Before::Cold {
            continue;
        }
        match stage.before {
            // What converts is to be at it when the next stage starts.
            Before::Warm if suite.name == "converting" => {}
            Before::Warm => side.sync(),
            Before::NoNames => forget(side, "2"),
            Before::Cold => {
                side.restart(suite.converts);
                forget(side, "3");
            }
        }
        let before = side.daemon_cpu();
        let output = side.stage(stage.name).output().unwrap();
        let daemon = side.daemon_cpu() - before;
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}: {}: {}",
            side.name,
            stage.name,
            String::from_utf8_lossy(&output.stderr)
        );
        let mut numbers = text.split_whitespace().map(|word| Duration::from_nanos(word.parse().unwrap()));
        let took = Took { time: numbers.next().unwrap(), cpu: numbers.next().unwrap() };
        samples.push(Sample { took, daemon });
    }
    side.remove();
}

/// Has the kernel forget names and attributes ("2"), or also what files hold ("3").
fn forget(side: &Side, what: &str) {
    side.sync();
    std::fs::write("/proc/sys/vm/drop_caches", what).unwrap();
}

/// The sample whose time is in the middle.
fn median(samples: &[Sample]) -> Option<Sample> {
    let mut samples = samples.to_vec();
    samples.sort_by_key(|sample| sample.took.time);
    samples.get(samples.len() / 2).copied()
}

struct Row {
    suite: &'static str,
    stage: &'static Stage,
    names: Vec<&'static str>,
    cells: Vec<Option<Sample>>,
}

impl Row {
    fn sample(&self, side: &str) -> Option<Sample> {
        self.names.iter().position(|name| *name == side).and_then(|at| self.cells[at])
    }

    /// Speed as a part of plain ext4's.
    fn ratio(&self, side: &str) -> Option<f64> {
        let native = self.cells[0]?.took.time.as_secs_f64();
        Some(native / self.sample(side)?.took.time.as_secs_f64())
    }

    /// What is not as it should be.
    fn missed(&self) -> Vec<String> {
        let [root, user, stubs] = self.stage.wanted;
        let mut missed = Vec::new();
        for (side, wanted) in [("root", root), ("user", user), ("root", stubs), ("user", stubs)] {
            if let (Some(wanted), Some(ratio)) = (wanted, self.ratio(side))
                && ratio < wanted
            {
                missed.push(format!("{side} < {wanted:.2}"));
            }
        }
        for side in ["root", "user"] {
            if let (Some(within), Some(sample)) = (self.stage.within, self.sample(side))
                && sample.took.time > within
            {
                missed.push(format!("{side} > {within:?}"));
            }
        }
        let (bindfs, root) = (self.ratio("bindfs"), self.ratio("root"));
        if self.stage.beats_bindfs && bindfs.zip(root).is_some_and(|(bindfs, root)| root < bindfs) {
            missed.push("root < bindfs".to_owned());
        }
        missed
    }

    fn json(&self) -> serde_json::Value {
        let seconds = |time: Duration| time.as_secs_f64();
        let mut sides = serde_json::Map::new();
        for name in &self.names {
            let Some(sample) = self.sample(name) else { continue };
            let value = serde_json::json!({
                "seconds": seconds(sample.took.time),
                "program_cpu_seconds": seconds(sample.took.cpu),
                "daemon_cpu_seconds": seconds(sample.daemon),
                "ratio": self.ratio(name),
            });
            sides.insert((*name).to_owned(), value);
        }
        serde_json::json!({
            "suite": self.suite, "row": self.stage.title, "sides": sides, "missed": self.missed(),
        })
    }
}

fn print(rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    print!("\n{:<42} {:>10}", "", "native ms");
    for name in &first.names[1..] {
        print!(" | {name:>6} cpu program+daemon");
    }
    println!();
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    for row in rows {
        let native = row.cells[0];
        print!("{:<42} {:>10.1}", row.stage.title, native.map_or(f64::NAN, |native| ms(native.took.time)));
        for name in &row.names[1..] {
            match (row.ratio(name), row.sample(name)) {
                (Some(ratio), Some(Sample { took, daemon })) => {
                    print!(" | {ratio:>6.2} {:>9.0}+{:<8.0}", ms(took.cpu), ms(daemon));
                }
                _ => print!(" | {:>25}", ""),
            }
        }
        println!("  {}", row.missed().join(", "));
    }
    println!(
        "\nspeed as a part of plain ext4's (median of each); CPU in ms, user and system; what is missed stands at the end"
    );
}
