//! Directories in which a store needs the user's explicit consent: system directories, other users' homes,
//! and directories that contain mounts.
//!
//! A store turns everything below its directory into an overlay, for every user. No user wants that for
//! `/etc`.

use super::error::RepoError;
use std::path::{Path, PathBuf};

/// System directories, with everything below them.
const TREES: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr",
];
/// System directories that contain users' directories.
const DIRS: &[&str] = &["/home", "/run", "/tmp", "/var", "/var/cache", "/var/lib", "/var/log", "/var/tmp"];
/// A memory filesystem for users' files, inside a system directory.
const EXCEPT: &str = "/dev/shm";

/// Users and mounts of this machine.
struct Machine<'a> {
    /// Text of `/etc/passwd`.
    passwd: &'a str,
    /// Text of `/proc/self/mountinfo`.
    mounts: &'a str,
    uid: u32,
}

fn read(path: &str) -> String {
    std::fs::read(path).map_or(String::new(), |text| String::from_utf8_lossy(&text).into_owned())
}

/// Fails if a store must not be created in `root`, which is canonical.
pub(super) fn check(root: &Path, force_root: bool) -> Result<(), RepoError> {
    let (passwd, mounts) = (read("/etc/passwd"), read("/proc/self/mountinfo"));
    let machine = Machine { passwd: &passwd, mounts: &mounts, uid: rustix::process::geteuid().as_raw() };
    if !force_root && let Some(reason) = machine.reason_against(root) {
        return Err(RepoError::Guarded { path: root.to_owned(), reason });
    }
    Ok(())
}

/// Warns if a store is made in the user's own home directory.
pub(super) fn warn_of_home(root: &Path, home: Option<&Path>) {
    let passwd = read("/etc/passwd");
    let machine = Machine { passwd: &passwd, mounts: "", uid: rustix::process::geteuid().as_raw() };
    let is_home = |home: &Path| home.canonicalize().is_ok_and(|home| home == root);
    if home.is_some_and(is_home) || machine.own_homes().any(is_home) {
        tracing::warn!(
            "{}: this is your whole home directory: programs that keep their files there will run on the overlay, and \
             see empty files while it is not mounted",
            root.display()
        );
    }
}

impl<'a> Machine<'a> {
    fn reason_against(&self, root: &Path) -> Option<String> {
        let in_tree = TREES.iter().find(|tree| root.starts_with(tree));
        let excepted = root.starts_with(EXCEPT) && root != Path::new(EXCEPT);
        if let Some(tree) = in_tree.filter(|_| !excepted) {
            return Some(match Path::new(tree) == root {
                true => "it is a directory of the system".to_owned(),
                false => format!("it lies in {tree}, a directory of the system"),
            });
        }
        if DIRS.iter().any(|dir| Path::new(dir) == root) {
            return Some("it is a directory of the system, shared by all users".to_owned());
        }
        let others = self.homes().filter(|(_, uid, _)| *uid != self.uid);
        if let Some((user, ..)) = others.into_iter().find(|(.., home)| *home == root)
            && !self.own_homes().any(|home| home == root)
        {
            return Some(format!("it is the home directory of the user {user}"));
        }
        let below = self.mount_points().find(|at| at.starts_with(root) && at != root)?;
        Some(format!("{} is mounted below it, and its files would not be seen", below.display()))
    }

    /// Returns name, number and home directory of each user.
    fn homes(&self) -> impl Iterator<Item = (&'a str, u32, &'a Path)> + use<'a> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (user, uid) = (fields.next()?, fields.nth(1)?.parse().ok()?);
            Some((user, uid, Path::new(fields.nth(2)?))).filter(|(.., home)| home.is_absolute())
        })
    }

    fn own_homes(&self) -> impl Iterator<Item = &'a Path> + use<'a> {
        let own = self.uid;
        self.homes().filter(move |(_, uid, _)| *uid == own).map(|(.., home)| home)
    }

    fn mount_points(&self) -> impl Iterator<Item = PathBuf> + use<'a> {
        self.mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|at| PathBuf::from(unescape(at)))
    }
}

/// Undoes the `\040` escapes for blanks in the kernel's paths.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/sh\n\
                          bob:x:1001:1001::/home/bob:/bin/sh\nodd\n";
    const MOUNTS: &str =
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:5 / /srv/with\\040blank/disk rw - tmpfs none rw\n";

    fn reason(root: &str, uid: u32) -> Option<String> {
        Machine { passwd: PASSWD, mounts: MOUNTS, uid }.reason_against(Path::new(root))
    }

    #[test]
    fn no_store_is_made_in_directories_of_the_system() {
        for root in [
            "/etc",
            "/etc/ssl",
            "/usr",
            "/usr/share",
            "/var",
            "/boot",
            "/dev",
            "/dev/shm",
            "/proc",
            "/sys",
            "/tmp",
            "/home",
            "/lib64",
        ] {
            assert!(reason(root, 0).is_some_and(|reason| reason.contains("system")), "{root}");
        }
        for root in ["/tmp/mine", "/var/www/site", "/dev/shm/mine", "/data", "/etcetera", "/home/x"] {
            assert_eq!(reason(root, 0), None, "{root}");
        }
    }

    #[test]
    fn no_store_is_made_in_homes_of_others_and_above_mounts() {
        assert_eq!(reason("/home/bob", 1000).unwrap(), "it is the home directory of the user bob");
        assert_eq!(reason("/home/bob", 1001), None);
        assert_eq!(reason("/home/bob/data", 0), None);
        assert_eq!(reason("/root", 0), None);
        for root in ["/srv", "/srv/with blank"] {
            let below = reason(root, 0);
            assert!(
                below.is_some_and(|reason| reason.starts_with("/srv/with blank/disk is mounted")),
                "{root}"
            );
        }
        assert_eq!(reason("/srv/with blank/disk", 0), None);
        assert_eq!(reason("/srv/with", 0), None);
    }
}
