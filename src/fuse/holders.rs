//! Processes that hold a filesystem after it was unmounted here. A mount namespace that was copied while it
//! was mounted has its own mount, and the kernel keeps the connection for that.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

/// A process in another mount namespace that has a mount of the filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The first process found there.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.pid)
    }
}

/// Returns one process of each other mount namespace in which the device is mounted, as far as this user may
/// look. O(processes).
pub(super) fn of(device: u64) -> Vec<Holder> {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/mnt")).ok();
    let mut seen = HashSet::from([namespace(Path::new("/proc/self"))]);
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let numbered = processes.filter_map(|path| Some((path.file_name()?.to_str()?.parse().ok()?, path)));
    let mut found = Vec::new();
    for (pid, process) in numbered {
        let Some(there) = namespace(&process) else { continue };
        let table = || std::fs::read(process.join("mountinfo")).unwrap_or_default();
        if seen.insert(Some(there)) && is_in(&table(), device) {
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.push(Holder { pid, name: name.trim().to_owned() });
        }
    }
    found
}

/// Whether a mount table (proc_pid_mountinfo(5)) contains the device.
fn is_in(table: &[u8], device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let numbers =
        table.split(|&byte| byte == b'\n').filter_map(|line| line.split(|&byte| byte == b' ').nth(2));
    numbers.into_iter().any(|found| found == number.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_its_whole_number() {
        let table = b"22 1 0:5 / / rw - proc proc rw\n40 22 0:57 / /mnt/a\\040b rw - fuse.dedupfs data rw\n";
        let device = |minor| rustix::fs::makedev(0, minor);
        assert!(is_in(table, device(57)) && is_in(table, device(5)));
        assert!(!is_in(table, device(7)) && !is_in(table, device(570)));
    }
}
