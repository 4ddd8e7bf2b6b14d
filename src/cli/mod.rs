//! The two programs: arguments and environment in, text and exit codes out. One command a file.
//!
//! Exit codes: 0 clean, 1 findings, 2 failed or misused. With `--json` exactly one document goes to
//! stdout; all else goes to stderr. Only `output` prints.

mod attributes;
mod background;
mod check;
mod commands;
mod compare_methods;
mod completions;
mod conflicts;
mod contained;
mod diff;
mod error;
mod export;
mod export_copy;
mod file_version;
mod gc;
mod global;
mod groups;
mod home;
mod host;
mod init;
mod leftovers;
mod log;
mod logging;
mod man;
mod merge_tool;
mod met;
mod methods;
mod metrics;
mod mount;
mod mount_options;
mod names;
mod old_contents;
mod optimize;
mod outcome;
mod output;
mod pager;
mod pages;
mod parse;
mod peer_process;
mod program;
mod regions;
mod remote;
mod remount;
mod replica;
mod restore;
mod scan;
mod serve;
mod service;
mod session;
mod settle;
mod similar;
mod similar_rows;
mod snapshot;
mod status;
mod sync;
mod synced;
mod tasks;
mod template;
mod ui;
mod unmount;
mod watch;
mod watcher;

pub use commands::run;
pub use program::Program;

use global::Global;
use outcome::{CliResult, Outcome};
