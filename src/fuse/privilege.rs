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
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}
