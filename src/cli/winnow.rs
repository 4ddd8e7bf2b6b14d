//! Options of winnowing: base files, front ends, fewer look-ups.

use super::error::CliError;
use super::methods::failed;
use super::similar::parse_look;
use crate::admin::{FileRef, WinnowRequest};
use crate::contents::Look;
use crate::control::{self, Found};
use crate::query::methods::winnow::read_base;
use crate::similarity::methods::winnow::{Base, Query, Winnow};
use crate::view::View;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[group(id = "winnow")]
#[command(next_help_heading = "With --method winnow")]
pub(super) struct WinnowOptions {
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
pub(super) struct WinnowGroups {
    /// Ignore everything that this file contains, such as a handout. Can be repeated
    #[arg(long, value_name = "FILE")]
    base: Vec<PathBuf>,
    /// Read files through this front end: `auto` selects one for each, or text, html, source, postscript,
    /// pdf, archive or gzip [default: raw bytes]
    #[arg(long, value_name = "VIEW", value_parser = parse_look)]
    view: Option<Look>,
}

/// Options of winnowing.
#[derive(Clone, Debug, Default)]
pub(super) struct WinnowAsked {
    base: Vec<PathBuf>,
    window: Option<u32>,
    smallest: Option<usize>,
    /// Front end, unless files are read as raw bytes.
    pub(super) look: Option<Look>,
}

impl WinnowOptions {
    pub(super) fn asked(&self, view: Option<Look>) -> WinnowAsked {
        let (base, look) = (self.base.clone(), not_raw(view));
        WinnowAsked { base, window: self.window, smallest: self.smallest, look }
    }
}

impl WinnowGroups {
    pub(super) fn asked(&self) -> WinnowAsked {
        WinnowAsked { base: self.base.clone(), look: not_raw(self.view), ..WinnowAsked::default() }
    }
}

fn not_raw(view: Option<Look>) -> Option<Look> {
    view.filter(|view| *view != Look::Through(View::Raw))
}

impl WinnowAsked {
    /// Returns whether no option is set.
    pub(super) fn is_plain(&self) -> bool {
        self.base.is_empty() && self.window.is_none() && self.smallest.is_none()
    }

    /// Converts the options for files that are read here.
    pub(super) fn query(&self, winnow: Winnow) -> Result<Query, CliError> {
        Query::new(winnow, self.base(&winnow)?, self.window, self.smallest).map_err(CliError::new)
    }

    /// Reads the base files, through the same front end.
    pub(super) fn base(&self, winnow: &Winnow) -> Result<Base, CliError> {
        read_base(winnow, &self.base, self.look).map_err(failed)
    }

    /// Converts the options for a saved index of this overlay.
    pub(super) fn request(&self, found: &Found) -> Result<WinnowRequest, CliError> {
        let mut base = Vec::new();
        for file in &self.base {
            let whole = file.canonicalize().map_err(|e| CliError::io("find", file, &e))?;
            let inside = control::find(file).ok().filter(|other| root(other) == root(found));
            base.push(match inside {
                Some(Found::Daemon { path, .. } | Found::Direct { path, .. }) => {
                    FileRef { path, outside: false }
                }
                None => FileRef { path: whole, outside: true },
            });
        }
        Ok(WinnowRequest { base, window: self.window, smallest: self.smallest })
    }
}

fn root(found: &Found) -> &Path {
    match found {
        Found::Daemon { info, .. } => &info.root,
        Found::Direct { layout, .. } => &layout.root,
    }
}
