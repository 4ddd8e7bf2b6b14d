use super::error::CliError;
use super::output::Output;
use super::{CliResult, Outcome, Program};
use crate::config::Config;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::PathBuf;

/// Print a manual page, or write all of them
#[derive(clap::Args)]
#[command(after_help = "Example: dedupctl man | man -l -\n\
    Example: dedupctl man --program config | man -l -\n\
    Example: dedupctl man --out pages")]
pub(super) struct Man {
    /// The page
    #[arg(long, value_name = "PAGE", default_value = "dedupctl")]
    program: Page,
    /// Write a page for each program and command, and for `config.toml`, to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Page {
    Dedupctl,
    Dedupfs,
    /// The settings of `config.toml`
    Config,
}

/// The page of `config.toml`.
const CONFIG_PAGE: &str = "dedupfs-config.5";

impl Man {
    pub(super) fn run(&self, parser: fn(Program) -> clap::Command, out: &Output) -> CliResult {
        if let Some(dir) = &self.out {
            std::fs::create_dir_all(dir).map_err(|e| CliError::io("make directory", dir, &e))?;
            for program in [Program::Dedupctl, Program::Dedupfs] {
                clap_mangen::generate_to(parser(program), dir)
                    .map_err(|e| CliError::io("write to", dir, &e))?;
            }
            let path = dir.join(CONFIG_PAGE);
            std::fs::write(&path, settings()).map_err(|e| CliError::io("write", &path, &e))?;
            return Ok(Outcome::Clean);
        }
        let program = match self.program {
            Page::Dedupctl => Program::Dedupctl,
            Page::Dedupfs => Program::Dedupfs,
            Page::Config => {
                out.raw(settings().as_bytes())?;
                return Ok(Outcome::Clean);
            }
        };
        let mut text = Vec::new();
        let page = clap_mangen::Man::new(parser(program));
        page.render(&mut text).map_err(|e| CliError::new(e.to_string()))?;
        out.raw(&text)?;
        Ok(Outcome::Clean)
    }
}

/// Returns the page of all settings, made from the file that `dedupctl init` writes. There, each setting has a
/// description, then the lines that set it (its default or an example).
fn settings() -> String {
    let mut page = Roff::new();
    page.control("TH", ["dedupfs-config", "5", "", concat!("dedupfs ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]);
    page.text([roman("dedupfs-config - settings of a dedupfs store, in its file config.toml")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "The file is in the directory of the store: .dedupfs/config.toml, unless the store is elsewhere. An invalid line is an \
         error that names it, and nothing is mounted then. Each setting is shown with its default or an example.",
    )]);
    page.control("SH", ["SETTINGS"]);
    let text = Config::default().to_text();
    let mut blocks = text.split("\n\n").map(Block::of);
    // The description of the whole file; DESCRIPTION above covers it.
    blocks.next();
    for Block { prose, lines } in blocks {
        // The file has the description first; the page has the lines first.
        page.control("PP", []);
        page.control("nf", []);
        for line in lines {
            page.text([bold(line)]);
        }
        page.control("fi", []);
        page.control("RS", ["4"]);
        page.text([roman(prose)]);
        page.control("RE", []);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([roman("dedupfs(1), dedupctl(1), dedupctl-init(1)")]);
    page.to_roff()
}

/// A setting, or several that belong together, with its description.
struct Block {
    prose: String,
    lines: Vec<String>,
}

impl Block {
    fn of(text: &str) -> Block {
        let (mut prose, mut lines) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let bare = line.strip_prefix('#').map_or(line, |line| line.strip_prefix(' ').unwrap_or(line));
            let sets = bare.starts_with('[') || bare.split_once(" = ").is_some_and(|(name, _)| is_name(name));
            match sets || (bare.is_empty() && !lines.is_empty()) {
                true => lines.push(bare.to_owned()),
                false => prose.push(bare),
            }
        }
        Block { prose: prose.join(" "), lines }
    }
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}
