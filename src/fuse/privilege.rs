//! With which privileges root's daemon answers requests, and what is known of the caller's.
//!
//! The kernel checks each request against the caller (`default_permissions`) before it comes here. What remains is
//! to do it so that the backing filesystem accounts and names it rightly, without asking again with less knowledge.

use rustix::thread::{
    CapabilitiesSecureBits as SecureBits, CapabilitySet, capabilities, capabilities_secure_bits,
    set_capabilities, set_capabilities_secure_bits,
};

/// Prepares this thread, and those that it starts, for answering requests.
pub(super) fn prepare_thread() -> rustix::io::Result<()> {
    // Making a file in the caller's name switches the filesystem user. That alone would also take away the right to
    // do what the kernel has allowed already, and the caller's supplementary groups are not known here.
    set_capabilities_secure_bits(capabilities_secure_bits()? | SecureBits::NO_SETUID_FIXUP)?;
    // Quotas hold for whoever owns the file, also where the kernel writes in this process's name (passthrough).
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    set_capabilities(None, sets)
}

/// Whether a change that this process makes to a file takes its setuid and setgid bits away, whoever asked for it.
pub(super) fn drops_setid() -> bool {
    capabilities(None).is_ok_and(|sets| !sets.effective.contains(CapabilitySet::FSETID))
}

/// Whether a process is in a group beyond its first one. Not for one that cannot be asked.
pub(super) fn has_group(pid: u32, gid: u32) -> bool {
    let groups = status(pid, "Groups:");
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

/// Whether a process has a capability. Not one that cannot be asked.
pub(super) fn has(pid: u32, capability: CapabilitySet) -> bool {
    let set = status(pid, "CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_some_and(|effective| CapabilitySet::from_bits_retain(effective).contains(capability))
}

/// Whether a process has a file of this number open for writing.
pub(super) fn has_open_to_write(pid: u32, ino: u64) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return false;
    };
    files.flatten().any(|file| {
        let info = std::fs::read_to_string(file.path()).unwrap_or_default();
        let field = |title| info.lines().find_map(|line| line.strip_prefix(title)).map(str::trim);
        let flags = field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
        // Kernels before 5.14 say nothing of numbers.
        let may_be_it = field("ino:").is_none_or(|number| number.parse() == Ok(ino));
        may_be_it && flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
    })
}

/// What a process that waits for an answer asked the kernel for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Call {
    /// A change of owner.
    Owner,
    /// A change of what a file holds.
    Content,
    /// Something else, or a process that cannot be asked, or one whose numbers of calls are not ours.
    Unknown,
}

/// Numbers of a program for 32 bits mean other calls. None of its changes of owner has a number of [`CONTENT`].
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

/// What a process, which waits for an answer, is doing.
pub(super) fn call(pid: u32) -> Call {
    let read = || std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let mut call = read();
    // It may not have fallen asleep yet, on a busy machine for long.
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

/// What the kernel says of a process under a title.
fn status(pid: u32, title: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(title)).map(str::to_owned)
}
