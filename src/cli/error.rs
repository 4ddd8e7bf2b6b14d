use crate::admin::AdminError;
use crate::config::ConfigError;
use crate::contents::OverlayError;
use crate::control::{ControlError, Fault};
use crate::daemon::DaemonError;
use crate::repo::RepoError;
use std::io;
use std::path::Path;

/// The error that a user sees, with advice. The exit code is 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CliError {
    pub message: String,
    pub hint: Option<String>,
    /// The reader of the output has gone: prints nothing, and is no failure.
    pub silent: bool,
}

impl CliError {
    pub(super) fn new(message: impl Into<String>) -> CliError {
        CliError { message: message.into(), hint: None, silent: false }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> CliError {
        CliError { hint: Some(hint.into()), ..self }
    }

    pub(super) fn io(operation: &str, path: &Path, source: &io::Error) -> CliError {
        let error = CliError::new(format!("{operation} {}: {source}", path.display()));
        match source.kind() {
            io::ErrorKind::NotFound => error.hint("give a path that exists"),
            io::ErrorKind::PermissionDenied => error.hint("run this as a user who may, or as root"),
            _ => error,
        }
    }
}

impl From<RepoError> for CliError {
    fn from(e: RepoError) -> CliError {
        CliError { message: e.to_string(), hint: e.hint(), silent: false }
    }
}

impl From<ControlError> for CliError {
    fn from(e: ControlError) -> CliError {
        let hint = match &e {
            ControlError::Denied(_) => Some(as_root(&std::env::args().skip(1).collect::<Vec<_>>())),
            _ => e.hint(),
        };
        CliError { message: e.to_string(), hint, silent: false }
    }
}

/// Returns advice how to run `dedupctl` with these arguments as root.
fn as_root(args: &[String]) -> String {
    if args.first().is_some_and(|command| command == "serve") {
        return "another user mounted it: sync with `--remote-program 'sudo dedupctl'`".to_owned();
    }
    let is_plain = |word: &&String| {
        !word.is_empty() && word.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_./:=@,".contains(&c))
    };
    match args.iter().all(|word| is_plain(&word)) {
        true => format!("run it as the user who mounted it, or as root: `sudo dedupctl {}`", args.join(" ")),
        // Quoting for the user's shell is not known.
        false => "run it as the user who mounted it, or as root: the same command after `sudo`".to_owned(),
    }
}

impl From<DaemonError> for CliError {
    fn from(e: DaemonError) -> CliError {
        CliError { message: e.to_string(), hint: e.hint(), silent: false }
    }
}

impl From<AdminError> for CliError {
    fn from(e: AdminError) -> CliError {
        CliError { message: e.to_string(), hint: e.hint(), silent: false }
    }
}

impl From<OverlayError> for CliError {
    fn from(e: OverlayError) -> CliError {
        match e {
            OverlayError::Io { operation, path, source } => CliError::io(operation, &path, &source),
            other => CliError::new(other.to_string()),
        }
    }
}

impl From<ConfigError> for CliError {
    fn from(e: ConfigError) -> CliError {
        CliError::new(e.to_string())
    }
}

impl From<Fault> for CliError {
    fn from(fault: Fault) -> CliError {
        CliError { message: fault.message, hint: fault.hint, silent: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_is_a_command() {
        let args = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(
            as_root(&args("sync server:/data /data")).ends_with("`sudo dedupctl sync server:/data /data`")
        );
        assert!(as_root(&args("serve --stdio -- /data")).contains("--remote-program 'sudo dedupctl'"));
        assert!(as_root(&[String::from("similar"), String::from("it's")]).contains("the same command"));
    }
}
