//! Another machine in an argument, as ssh and rsync write it.

use super::error::CliError;

/// Returns HOST and DIR of a peer that is not a directory here: as for scp, a colon before any slash.
pub(super) fn parse_host(peer: &str) -> Option<(&str, &str)> {
    let (host, dir) = peer.split_once(':')?;
    (!host.is_empty() && !host.contains('/')).then_some((host, dir))
}

/// Refuses a host that ssh would take for an option, and addresses of other programs.
pub(super) fn check_host(peer: &str, host: &str, dir: &str) -> Result<(), CliError> {
    if host.starts_with('-') || dir.is_empty() || dir.starts_with("//") {
        let message = format!("{peer}: expected HOST:DIR or USER@HOST:DIR");
        return Err(CliError::new(message).hint("give a directory on the host, like server:/data"));
    }
    Ok(())
}
