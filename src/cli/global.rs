use std::path::PathBuf;

/// Options of every command of `dedupctl`.
#[derive(clap::Args)]
pub(super) struct Global {
    /// Print one JSON document
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Use this store, or the store of this directory
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,
    /// Do not page long output on a terminal (`PAGER`, or less)
    #[arg(long, global = true)]
    pub(super) no_pager: bool,
    /// Print more on stderr; twice for everything
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
}
