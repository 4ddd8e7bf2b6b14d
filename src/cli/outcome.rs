use super::error::CliError;

/// Outcome of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Clean,
    /// There is damage, or a difference, or a part could not be done.
    Findings,
    /// Not everything could be examined, so the findings are incomplete.
    Incomplete,
}

pub(super) type CliResult = Result<Outcome, CliError>;
