//! `similar --method winnow`: without a base, and with fewer look-ups.

use super::error::CliError;
use super::methods::failed;
use crate::overlay::methods::base::read_base;
use crate::similarity::methods::AnyMethod;
use crate::similarity::methods::winnow::{Query, Winnow};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args)]
#[group(id = "winnow")]
#[command(next_help_heading = "With --method winnow")]
pub(super) struct WinnowOptions {
    /// What is in this file counts nothing: it was given to everyone. Can be repeated
    #[arg(long, value_name = "FILE")]
    base: Vec<PathBuf>,
    /// Look up what a window of so many hashes keeps of the file asked about: 100, as is indexed, or more
    #[arg(long, value_name = "W")]
    window: Option<u32>,
    /// Look up only so many of its hashes, the smallest: a few tell resemblance
    #[arg(long, value_name = "N")]
    smallest: Option<usize>,
}

impl WinnowOptions {
    pub(super) fn method(&self) -> Result<Arc<dyn AnyMethod>, CliError> {
        let winnow = Winnow::default();
        let base = read_base(&winnow, &self.base).map_err(failed)?;
        let query = Query::new(winnow, base, self.window, self.smallest).map_err(CliError::new)?;
        Ok(Arc::new(query))
    }
}
