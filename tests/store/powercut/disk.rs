//! A filesystem made on an image, and mounted through a loop device.

use crate::common::succeed;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A filesystem of the kernel, and how it is mounted.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub options: &'static str,
    /// Of the disk.
    pub bytes: usize,
}

impl Kind {
    pub const fn ext4(options: &'static str) -> Kind {
        Kind { name: "ext4", options, bytes: 128 << 20 }
    }

    /// xfs or btrfs, which want larger disks.
    pub const fn other(name: &'static str) -> Kind {
        Kind { name, options: "", bytes: 304 << 20 }
    }

    /// Makes an empty filesystem. Nothing is left to be initialized later, which would only fill the log.
    pub fn make(&self, image: &Path) {
        let mut command = Command::new(format!("mkfs.{}", self.name));
        match self.name {
            "ext4" => command.args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]),
            "xfs" => command.args(["-q", "-f", "-K"]),
            _ => command.args(["-q", "-f", "--nodiscard"]),
        };
        succeed(command.arg(image));
    }

    /// Checks an unmounted filesystem without changing it; the text says what is wrong.
    pub fn check(&self, image: &Path) -> Result<(), String> {
        let (program, args): (_, &[_]) = match self.name {
            "ext4" => ("e2fsck", &["-f", "-n"]),
            "xfs" => ("xfs_repair", &["-n", "-f"]),
            _ => ("btrfs", &["check", "--readonly"]),
        };
        let output =
            Command::new(program).args(args).arg(image).output().map_err(|e| format!("{program}: {e}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("{program}: {}", crate::common::text(&output)))
        }
    }
}

/// A mounted filesystem; unmounted, and its loop device let go, when dropped.
pub struct Mounted {
    at: PathBuf,
    is: bool,
}

impl Mounted {
    pub fn new(image: &Path, at: &Path, kind: Kind) -> io::Result<Mounted> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("losetup: {}", crate::common::text(&output))));
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let options = CString::new(kind.options).expect("options have no zero");
        let mounted = mount(&device, at, kind.name, MountFlags::empty(), Some(options.as_c_str()));
        // Of a mounted device this means: as soon as it is unmounted.
        succeed(Command::new("losetup").arg("--detach").arg(&device));
        mounted.map_err(|e| io::Error::other(format!("mount {device} as {}: {e}", kind.name)))?;
        Ok(Mounted { at: at.to_owned(), is: true })
    }

    /// Unmounts. A process that was just killed may hold it for a moment.
    pub fn unmount(mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        while let Err(e) = unmount(&self.at, UnmountFlags::empty()) {
            assert!(Instant::now() < until, "unmount {}: {e}", self.at.display());
            std::thread::sleep(Duration::from_millis(10));
        }
        self.is = false;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is {
            let _ = unmount(&self.at, UnmountFlags::DETACH);
        }
    }
}

/// An image in memory, reachable by a path for as long as this exists.
pub struct Image(File);

impl Image {
    pub fn new(bytes: &[u8]) -> Image {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("powercut", flags).expect("memory"));
        file.set_len(bytes.len() as u64).expect("memory");
        const ZEROS: [u8; 4096] = [0; 4096];
        for (i, block) in bytes.chunks(ZEROS.len()).enumerate() {
            if *block != ZEROS[..block.len()] {
                file.write_all_at(block, (i * ZEROS.len()) as u64).expect("memory");
            }
        }
        Image(file)
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}
