//! Mounts that syncs made for themselves, and of which nothing is left but the mount point.
//!
//! Such a mount ends with the process that it is for. What is cleared here is what a daemon leaves that was killed too:
//! - the name is one that this program gives, in the runtime directory of this user, and its process is gone;
//! - a dead mount is cleared only if it is one of dedupfs and the kernel says that nobody serves it;
//! - a directory is removed only if it is empty.

use crate::fuse;
use std::path::Path;

/// How names of directories begin where an overlay is mounted for a sync only. The number of a process follows.
pub(super) const TEMPORARY: &str = "dedupfs-sync-";

/// Clears what is left in `runtime`.
pub(super) fn clear(runtime: &Path) {
    let Ok(list) = std::fs::read_dir(runtime) else { return };
    let names = list.flatten().map(|entry| entry.file_name());
    for name in names.filter(|name| is_left(&name.to_string_lossy())) {
        let path = runtime.join(name);
        if is_mount_of_dedupfs(&path) {
            match fuse::clear_dead_mount(&path) {
                Ok(true) => tracing::info!("{}: a dead mount was cleared", path.display()),
                Ok(false) => continue,
                Err(e) => {
                    tracing::warn!("{e}");
                    continue;
                }
            }
        }
        // Fails on anything that is not empty, or mounted.
        let _ = rustix::fs::rmdir(&path);
    }
}

fn is_left(name: &str) -> bool {
    let process = name.strip_prefix(TEMPORARY).and_then(|number| number.parse::<u32>().ok());
    process.is_some_and(|process| !is_running(process))
}

/// Also not one that has ended, and whose parent does not ask.
fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before the state may have anything in it.
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
    fn only_what_is_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // Numbers of processes are smaller.
        let gone = format!("{TEMPORARY}{}", u32::MAX);
        let full = format!("{TEMPORARY}{}", u32::MAX - 1);
        let alive = format!("{TEMPORARY}{}", std::process::id());
        for name in [&gone, &full, &alive, "dedupfs-sync-x", "other"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at(&full).join("file"), "f").unwrap();
        clear(dir.path());
        let left = [&gone, &full, &alive, "dedupfs-sync-x", "other"].map(|name| at(name).exists());
        assert_eq!(left, [false, true, true, true, true]);
    }
}
