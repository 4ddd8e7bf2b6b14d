//! What `/proc` knows of a process.

use std::fs;

/// A process by its id.
#[derive(Clone, Copy)]
pub struct Process(pub u32);

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Memory {
    pub resident: u64,
    pub proportional: u64,
    pub anonymous: u64,
}

impl Process {
    fn read(self, name: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{name}", self.0)).ok()
    }

    /// True until it has ended: a zombie has.
    pub fn runs(self) -> bool {
        self.read("stat").is_some_and(|stat| fields(&stat).next() != Some("Z"))
    }

    /// Seconds of processor time, also of a zombie.
    pub fn seconds(self) -> f64 {
        let Some(stat) = self.read("stat") else { return 0.0 };
        // 100 ticks a second on every Linux that dedupfs runs on.
        fields(&stat).skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
    }

    /// Starts a new peak.
    pub fn forget_peak(self) {
        fs::write(format!("/proc/{}/clear_refs", self.0), "5").unwrap();
    }

    /// The most resident bytes since it began, or since `forget_peak`.
    pub fn peak(self) -> u64 {
        self.read("status").and_then(|text| kib(&text, "VmHWM:")).unwrap_or(0)
    }

    pub fn memory(self) -> Memory {
        let Some(text) = self.read("smaps_rollup") else { return Memory::default() };
        let of = |name| kib(&text, name).unwrap_or(0);
        Memory { resident: of("Rss:"), proportional: of("Pss:"), anonymous: of("Anonymous:") }
    }

    /// Open descriptors.
    pub fn descriptors(self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0)).map_or(0, Iterator::count)
    }
}

/// The fields of `stat` after the name, which may have spaces.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit(") ").next().unwrap_or("").split(' ')
}

/// A field in KiB, as bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}
