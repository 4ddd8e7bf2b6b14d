//! Owners and ACLs in a sync: flags, settings, and whether this process can set them.

use super::error::CliError;
use crate::config::Config;
use crate::sync::attributes::acl::ACCESS_XATTR;
use crate::sync::owners::Sees;
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Flags for owners and ACLs.
#[derive(clap::Args, Clone, Copy, Default)]
pub(super) struct Attributes {
    /// Sync owners; an error if a side cannot do that. Without this, sides do so that run as root
    #[arg(long, conflicts_with = "no_owner")]
    owner: bool,
    /// Do not sync owners
    #[arg(long)]
    no_owner: bool,
    /// Sync ACLs; an error if a side cannot do that. Without this, sides do so that run as root
    #[arg(long, conflicts_with = "no_acl")]
    acl: bool,
    /// Do not sync ACLs
    #[arg(long)]
    no_acl: bool,
}

impl Attributes {
    /// Returns the flags for the other side.
    pub(super) fn flags(self) -> [(&'static str, bool); 4] {
        let Attributes { owner, no_owner, acl, no_acl } = self;
        [("--owner", owner), ("--no-owner", no_owner), ("--acl", acl), ("--no-acl", no_acl)]
    }

    /// Returns what the side at `tree` sees; the process `daemon` serves its mount.
    pub(super) fn sees(self, tree: &Path, daemon: Option<u32>, config: &Config) -> Result<Sees, CliError> {
        let can_chown = || match daemon.map(|pid| std::fs::metadata(format!("/proc/{pid}"))) {
            _ if !rustix::process::geteuid().is_root() => Err("it does not run as root"),
            Some(Ok(daemon)) if daemon.uid() != 0 => Err("its mount does not belong to root"),
            _ => Ok(()),
        };
        let has_acls = || match rustix::fs::getxattr(tree, ACCESS_XATTR, &mut [0u8; 0][..]) {
            Err(Errno::NOTSUP) => Err("its filesystem has no ACLs"),
            _ => Ok(()),
        };
        let can_set_acls = || can_chown().and_then(|()| has_acls());
        type Possible<'a> = &'a dyn Fn() -> Result<(), &'static str>;
        let choose = |flag, (on, off): (bool, bool), setting: Option<bool>, is_possible: Possible<'_>| {
            if off || (!on && setting == Some(false)) {
                return Ok(false);
            }
            match is_possible() {
                Err(why) if on => {
                    let message = format!("{}: `{flag}` is not possible on this side: {why}", tree.display());
                    Err(CliError::new(message).hint(format!(
                        "run both sides as root, or leave out `{flag}`: then this side keeps the owners and ACLs that the other \
                         side has, and sets none"
                    )))
                }
                possible => Ok(possible.is_ok()),
            }
        };
        Ok(Sees {
            owner: choose("--owner", (self.owner, self.no_owner), config.owner, &can_chown)?,
            acl: choose("--acl", (self.acl, self.no_acl), config.acl, &can_set_acls)?,
        })
    }
}
