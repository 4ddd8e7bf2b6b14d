use super::ControlError;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Returns this user's directory for sockets, and creates it if it is missing: `/run/dedupfs` for root,
/// otherwise `dedupfs` in `user_runtime` (`XDG_RUNTIME_DIR`), otherwise one in `/tmp` that no other user can
/// have created.
pub fn runtime_dir(user_runtime: Option<&Path>) -> Result<PathBuf, ControlError> {
    let uid = rustix::process::geteuid();
    let preferred = match user_runtime {
        _ if uid.is_root() => Some(Path::new("/run")),
        given => given.filter(|dir| dir.is_absolute() && dir.is_dir()),
    };
    let fallback = PathBuf::from(format!("/tmp/dedupfs-{uid}"));
    let dir = match preferred {
        Some(base) if rustix::fs::access(base, rustix::fs::Access::WRITE_OK).is_ok() => base.join("dedupfs"),
        _ => fallback,
    };
    private_dir(&dir, uid.as_raw())?;
    Ok(dir)
}

fn private_dir(dir: &Path, uid: u32) -> Result<(), ControlError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(ControlError::io("make directory", dir, e)),
    }
    let stat = dir.symlink_metadata().map_err(|e| ControlError::io("look at", dir, e))?;
    if stat.is_dir() && stat.uid() == uid && stat.mode() & 0o077 == 0 {
        return Ok(());
    }
    let found = match stat.is_dir() {
        true => format!("one of user {} with mode {:04o}", stat.uid(), stat.mode() & 0o7777),
        false => "something else".to_owned(),
    };
    Err(ControlError::Runtime { path: dir.to_owned(), found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let path = dir.path().join("dedupfs");
        private_dir(&path, uid).unwrap();
        private_dir(&path, uid).unwrap();
        assert!(private_dir(&path, uid + 1).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = private_dir(&path, uid).unwrap_err().to_string();
        assert!(error.ends_with(&format!("found one of user {uid} with mode 0755")), "{error}");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(private_dir(&link, uid).is_err());
    }
}
