//! Privileges of root's daemon while it answers requests, and facts about the calling process.
//!
//! The kernel checks each request against the caller (`default_permissions`) before it arrives. The daemon
//! must only do it so that the backing filesystem accounts and names it correctly, without a second check
//! that knows less.

use rustix::thread::{
    CapabilitiesSecureBits as SecureBits, CapabilitySet, capabilities, capabilities_secure_bits,
    set_capabilities, set_capabilities_secure_bits,
};

/// Prepares this thread, and the threads that it starts, for answering requests.
pub(super) fn prepare_thread() -> rustix::io::Result<()> {
    // Creating a file in the caller's name switches the filesystem user. That alone would also drop the right
    // to do what the kernel has already allowed, and the caller's supplementary groups are unknown here.
    set_capabilities_secure_bits(capabilities_secure_bits()? | SecureBits::NO_SETUID_FIXUP)?;
    // The file owner's quota must hold, also for the kernel's writes in this process's name (passthrough).
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    set_capabilities(None, sets)
}

/// Whether a change by this process drops a file's setuid and setgid bits, for any caller.
pub(super) fn drops_setid() -> bool {
    capabilities(None).is_ok_and(|sets| !sets.effective.contains(CapabilitySet::FSETID))
}

/// Whether a process is in a supplementary group. False if the process cannot be examined.
pub(super) fn has_group(pid: u32, gid: u32) -> bool {
    let groups = status(pid, "Groups:");
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

/// Whether a process has a capability. False if it cannot be examined.
pub(super) fn has(pid: u32, capability: CapabilitySet) -> bool {
    let set = status(pid, "CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_some_and(|effective| CapabilitySet::from_bits_retain(effective).contains(capability))
}

/// Whether a process has a file with this inode number open for writing.
pub(super) fn has_open_to_write(pid: u32, ino: u64) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return false;
    };
    files.flatten().any(|file| {
        let info = std::fs::read_to_string(file.path()).unwrap_or_default();
        let field = |title| info.lines().find_map(|line| line.strip_prefix(title)).map(str::trim);
        let flags = field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
        // Kernels before 5.14 do not show numbers.
        let may_be_it = field("ino:").is_none_or(|number| number.parse() == Ok(ino));
        may_be_it && flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
    })
}

/// The system call of a process that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Call {
    /// A change of owner.
    Owner,
    /// A change of a file's content.
    Content,
    /// Another call, or the process cannot be examined, or uses other call numbers.
    Unknown,
}

/// A 32-bit program uses other numbers. None of its ownership calls has a number of [`CONTENT`].
#[cfg(target_arch = "x86_64")]
const OWNER: [libc::c_long; 4] = [libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown, libc::SYS_fchownat];
#[cfg(not(target_arch = "x86_64"))]
const OWNER: [libc::c_long; 2] = [libc::SYS_fchown, libc::SYS_fchownat];
const CONTENT: [libc::c_long; 9] = [
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_copy_file_range,
    libc::SYS_fallocate,
];

/// Returns the system call of a waiting process.
pub(super) fn call(pid: u32) -> Call {
    let read = || std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let mut call = read();
    // It may not be asleep yet, on a busy machine for a long time.
    for _ in 0..1_000 {
        if !call.starts_with("running") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        call = read();
    }
    match call.split(' ').next().and_then(|number| number.parse().ok()) {
        Some(number) if OWNER.contains(&number) => Call::Owner,
        Some(number) if CONTENT.contains(&number) => Call::Content,
        _ => Call::Unknown,
    }
}

/// Returns the kernel's value for a process under a title.
fn status(pid: u32, title: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(title)).map(str::to_owned)
}
