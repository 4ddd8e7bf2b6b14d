use super::error::CliError;
use super::output::Output;
use super::{CliResult, Outcome, Program, parser};
use std::path::PathBuf;

/// Print the manual page, or write all of them into a directory
#[derive(clap::Args)]
#[command(after_help = "Example: dedupctl man | man -l -")]
pub(super) struct Man {
    /// Which program's
    #[arg(long, default_value = "dedupctl")]
    program: Program,
    /// Write a page for each program and command there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(&self, out: &Output) -> CliResult {
        if let Some(dir) = &self.out {
            std::fs::create_dir_all(dir).map_err(|e| CliError::io("make directory", dir, &e))?;
            for program in [Program::Dedupctl, Program::Dedupfs] {
                clap_mangen::generate_to(parser(program), dir)
                    .map_err(|e| CliError::io("write to", dir, &e))?;
            }
            return Ok(Outcome::Clean);
        }
        let mut text = Vec::new();
        let page = clap_mangen::Man::new(parser(self.program));
        page.render(&mut text).map_err(|e| CliError::new(e.to_string()))?;
        out.raw(&text)?;
        Ok(Outcome::Clean)
    }
}
