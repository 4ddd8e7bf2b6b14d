//! The two programs: one file under two names, as the Debian package installs it, or a file each.
//!
//! Each file has both programs, and the name that the caller used says which one runs. So a program that starts itself or the
//! other one passes that name.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Program {
    /// Asks and steers.
    Dedupctl,
    /// Mounts.
    Dedupfs,
}

impl Program {
    /// The program that the first argument names; `otherwise` if it names neither.
    pub(super) fn named(argument: Option<&OsStr>, otherwise: Program) -> Program {
        let name = argument.and_then(|argument| Path::new(argument).file_name()?.to_str());
        match name {
            Some("dedupctl") => Program::Dedupctl,
            Some("dedupfs") => Program::Dedupfs,
            _ => otherwise,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Program::Dedupctl => "dedupctl",
            Program::Dedupfs => "dedupfs",
        }
    }

    /// Returns a command that runs this program from the file that runs now.
    pub(super) fn command(self) -> Command {
        let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
        let mut command = Command::new(&this);
        // With the directory, so that lists of processes show it.
        command.arg0(this.with_file_name(self.name()));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_which_program_runs() {
        let named = |name: &str| Program::named(Some(OsStr::new(name)), Program::Dedupfs);
        assert_eq!(named("/usr/bin/dedupctl"), Program::Dedupctl);
        assert_eq!(named("dedupfs"), Program::Dedupfs);
        assert_eq!(named("mount-test"), Program::Dedupfs);
        assert_eq!(Program::named(None, Program::Dedupctl), Program::Dedupctl);
    }
}
