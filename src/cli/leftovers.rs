//! Leftover private mounts of syncs whose daemons were killed.
//!
//! A private mount normally ends with its process. This clears the mount of a daemon that was killed too, if
//! - its name is one that this program gives, in the runtime directory of this user, and its process is gone;
//! - it is a mount of dedupfs in this mount namespace, and the kernel reports no daemon behind it. An empty
//!   directory may be the mount point of a sync in another namespace, which would lose its mount: it stays.

use crate::fuse;
use std::path::Path;

/// Name prefix of directories for private mounts. The number of a process follows.
pub(super) const TEMPORARY: &str = "dedupfs-sync-";

/// Clears leftovers in `runtime`.
pub(super) fn clear(runtime: &Path) {
    let Ok(list) = std::fs::read_dir(runtime) else { return };
    let names = list.flatten().map(|entry| entry.file_name());
    for name in names.filter(|name| is_left(&name.to_string_lossy())) {
        let path = runtime.join(name);
        if !is_mount_of_dedupfs(&path) {
            continue;
        }
        match fuse::clear_dead_mount(&path) {
            Ok(true) => {
                tracing::info!("{}: a dead mount was cleared", path.display());
                // Fails on anything that is not empty.
                let _ = rustix::fs::rmdir(&path);
            }
            Ok(false) => {}
            Err(e) => tracing::warn!("{e}"),
        }
    }
}

fn is_left(name: &str) -> bool {
    let process = name.strip_prefix(TEMPORARY).and_then(|number| number.parse::<u32>().ok());
    process.is_some_and(|process| !is_running(process))
}

/// Returns whether a process runs; one that has ended and waits for its parent does not.
fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before the state may contain any characters.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn is_mount_of_dedupfs(path: &Path) -> bool {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    String::from_utf8_lossy(&table).lines().any(|line| {
        // Fields of proc_pid_mountinfo(5); names of this program have nothing that is escaped there.
        let Some((mount, kind)) = line.split_once(" - ") else { return false };
        kind.starts_with("fuse.dedupfs ") && mount.split(' ').nth(4) == path.to_str()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_dead_mount_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // Numbers of processes are smaller.
        let gone = format!("{TEMPORARY}{}", u32::MAX);
        let alive = format!("{TEMPORARY}{}", std::process::id());
        for name in [&gone, &alive, "dedupfs-sync-x", "other"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        clear(dir.path());
        assert!([&gone, &alive, "dedupfs-sync-x", "other"].iter().all(|name| at(name).exists()));
        assert_eq!([&gone, &alive, "dedupfs-sync-x"].map(is_left), [true, false, false]);
    }
}
