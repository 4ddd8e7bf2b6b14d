//! Options of winnowing: base files, front ends, fewer look-ups.

use super::super::error::CliError;
use super::super::parse::parse_look;
use crate::admin::{FileRef, WinnowRequest};
use crate::contents::Look;
use crate::control::{self, Found};
use crate::query::methods::winnow::read_base;
use crate::similarity::methods::Chosen;
use crate::similarity::methods::winnow::{Base, Query, Winnow};
use crate::view::View;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[group(id = "winnow")]
#[command(next_help_heading = "With --method winnow")]
pub(in crate::cli) struct WinnowOptions {
    /// Ignore everything that this file contains, such as a handout. Can be repeated
    #[arg(long, value_name = "FILE")]
    base: Vec<PathBuf>,
    /// Look up FILE's fingerprints of a window of this many hashes: w of the index, or more
    #[arg(long, value_name = "W")]
    window: Option<u32>,
    /// Look up only this many of its hashes, the smallest: a few suffice for resemblance
    #[arg(long, value_name = "N")]
    smallest: Option<usize>,
}

#[derive(clap::Args)]
#[group(id = "winnow")]
#[command(next_help_heading = "With --method winnow")]
pub(in crate::cli) struct WinnowGroups {
    /// Ignore everything that this file contains, such as a handout. Can be repeated
    #[arg(long, value_name = "FILE")]
    base: Vec<PathBuf>,
    /// Read files through this front end: `auto` selects one for each, or text, html, source, postscript,
    /// pdf, archive or gzip [default: raw bytes]
    #[arg(long, value_name = "VIEW", value_parser = parse_look)]
    view: Option<Look>,
}

/// Options of winnowing, of either command.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct WinnowAsked {
    options: WinnowOptions,
    /// Front end, unless files are read as raw bytes.
    pub(super) look: Option<Look>,
}

impl WinnowOptions {
    pub(in crate::cli) fn asked(&self, view: Option<Look>) -> WinnowAsked {
        WinnowAsked { options: self.clone(), look: not_raw(view) }
    }
}

impl WinnowGroups {
    pub(super) fn asked(&self) -> WinnowAsked {
        let options = WinnowOptions { base: self.base.clone(), ..WinnowOptions::default() };
        WinnowAsked { options, look: not_raw(self.view) }
    }
}

fn not_raw(view: Option<Look>) -> Option<Look> {
    view.filter(|view| *view != Look::Through(View::Raw))
}

impl WinnowAsked {
    /// Converts the options for files that are read here; `None` if there are none, or the method is another.
    pub(super) fn query(&self, chosen: &Chosen) -> Result<Option<Query>, CliError> {
        let WinnowOptions { window, smallest, .. } = self.options;
        let winnow = chosen.of::<Winnow>().filter(|_| self.options != WinnowOptions::default());
        let query = winnow
            .map(|winnow| Query::new(winnow, self.base(chosen)?, window, smallest).map_err(CliError::new));
        query.transpose()
    }

    /// Reads the base files, through the same front end.
    pub(super) fn base(&self, chosen: &Chosen) -> Result<Base, CliError> {
        match chosen.of::<Winnow>() {
            Some(winnow) => Ok(read_base(&winnow, &self.options.base, self.look)?),
            None => Ok(Base::default()),
        }
    }

    /// Converts the options for a saved index of this overlay.
    pub(super) fn request(&self, found: &Found) -> Result<WinnowRequest, CliError> {
        let mut base = Vec::new();
        for file in &self.options.base {
            let whole = file.canonicalize().map_err(|e| CliError::io("find", file, &e))?;
            let inside = control::find(file).ok().filter(|other| root(other) == root(found));
            base.push(match inside {
                Some(Found::Daemon { path, .. } | Found::Direct { path, .. }) => {
                    FileRef { path, outside: false }
                }
                None => FileRef { path: whole, outside: true },
            });
        }
        Ok(WinnowRequest { base, window: self.options.window, smallest: self.options.smallest })
    }
}

fn root(found: &Found) -> &Path {
    match found {
        Found::Daemon { info, .. } => &info.root,
        Found::Direct { layout, .. } => &layout.root,
    }
}
