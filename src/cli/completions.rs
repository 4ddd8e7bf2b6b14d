use super::output::Output;
use super::{CliResult, Outcome, Program};
use clap_complete::Shell;

/// Print shell completions
#[derive(clap::Args)]
#[command(
    after_help = "Example: dedupctl completions bash > ~/.local/share/bash-completion/completions/dedupctl"
)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
    /// The program
    #[arg(long, default_value = "dedupctl")]
    program: Program,
}

impl Completions {
    pub(super) fn run(&self, parser: fn(Program) -> clap::Command, out: &Output) -> CliResult {
        let mut parser = parser(self.program);
        let name = parser.get_name().to_owned();
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut parser, name, &mut text);
        out.raw(&text)?;
        Ok(Outcome::Clean)
    }
}
