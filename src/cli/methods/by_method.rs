//! `--method`: a published method instead of the default; uses the overlay's saved index if there is one,
//! otherwise reads the files of a directory.

use super::super::Global;
use super::super::error::CliError;
use super::super::output::Output;
use super::super::session::{Session, Work, find, find_for_file};
use super::index::MethodIndex;
use super::reading::readable;
use super::winnow::WinnowAsked;
use crate::admin::{FileRef, NotKnown, Request, Response, WinnowRequest};
use crate::control::Found;
use crate::similarity::methods::{BadMethod, Chosen, examples, names};
use clap::error::ErrorKind;
use std::path::{Path, PathBuf};

/// Users' name of the default index.
const DEFAULT: &str = "default";

/// Which method, and the files to ask about.
#[derive(clap::Args)]
pub(in crate::cli) struct ByMethod {
    #[arg(long, value_name = "METHOD", default_value = DEFAULT, value_parser = parse_method, help = help())]
    method: String,
    /// With another --method: read the files below this directory, in an overlay or not [default: use the
    /// overlay]
    #[arg(long = "in", value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn help() -> String {
    let front = "How to find files: `default` asks the index that is always kept; the others are of published papers (see \
        `dedupctl compare-methods`), and ask theirs if `methods` in config.toml has it kept, else read every file first. \
        Parameters follow a colon: ";
    front.to_owned() + &examples().join("; ")
}

/// Refuses options of other methods. Each struct of options that only some methods have is a group of the
/// parser, named after these methods.
pub(in crate::cli) fn check_options(
    parser: &clap::Command,
    matches: &clap::ArgMatches,
) -> Result<(), clap::Error> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let Some(command) = parser.find_subcommand(name) else { return Ok(()) };
    let Ok(Some(method)) = matches.try_get_one::<String>("method") else { return Ok(()) };
    let (known, chosen) = (known(), method);
    let method = chosen.split(':').next().unwrap_or_default();
    for group in command.get_groups() {
        let of: Vec<&str> = group.get_id().as_str().split(' ').collect();
        if of.contains(&method) || !of.iter().all(|of| known.contains(of)) {
            continue;
        }
        let given = matches.get_many::<clap::Id>(group.get_id().as_str()).and_then(|mut ids| ids.next());
        if let Some(id) = given {
            let long = command.get_arguments().find(|arg| arg.get_id() == id).and_then(|arg| arg.get_long());
            let of = of.join(" or ");
            let message =
                format!("--{} is an option of --method {of}, not of {method}", long.unwrap_or(id.as_str()));
            return Err(command.clone().error(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}

impl ByMethod {
    /// Returns the method, if it is not the default.
    pub(in crate::cli) fn method(&self) -> Option<Chosen> {
        self.method.parse().ok()
    }

    /// Returns the content of the overlay's index, for a method with its own report; `None` if files must be
    /// read.
    pub(super) fn kept(
        &self,
        chosen: &Chosen,
        path: Option<&Path>,
        global: &Global,
        out: &Output,
    ) -> Result<Option<MethodIndex>, CliError> {
        let Some(found) = (match self.dir {
            Some(_) => None,
            // Outside of an overlay, files are read; if that is not possible, that code reports the error.
            None => find(global, path).ok(),
        }) else {
            return Ok(None);
        };
        match MethodIndex::open(found, chosen, out)? {
            Ok(kept) => {
                self.say(&kept.not_known, out);
                Ok(Some(kept))
            }
            Err(has) => {
                out.note(&format!("{}: every file is read; {}", none_kept(chosen, has), enable(chosen)));
                Ok(None)
            }
        }
    }

    /// Returns the directory to read for a method with its own report.
    pub(super) fn groups_dir(&self, path: Option<&Path>, global: &Global) -> Result<PathBuf, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(readable(dir));
        }
        match (find(global, path), path) {
            (Ok(Found::Daemon { info, path, .. }), _) => Ok(info.mountpoint.join(path)),
            (Ok(Found::Direct { .. }), _) => {
                let message = format!("--method {}: the overlay is not mounted", self.method);
                Err(CliError::new(message).hint("mount it, or name a directory with --in"))
            }
            // A directory outside of any overlay.
            (Err(_), Some(dir)) => Ok(dir.to_owned()),
            (Err(e), None) => Err(self.no_overlay(e)),
        }
    }

    /// Asks an overlay's index about files that resemble `file`, or returns the directory to read.
    pub(super) fn ask_about(
        &self,
        file: &Path,
        winnow: &WinnowAsked,
        request: impl FnOnce(FileRef, WinnowRequest) -> Request,
        global: &Global,
        out: &Output,
    ) -> Result<Asked, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(Asked::Read(readable(dir)));
        }
        let (found, path, outside) = find_for_file(global, file).map_err(|e| self.no_overlay(e))?;
        match winnow.look {
            Some(_) => Ok(Asked::Read(self.mounted(&found)?)),
            None => {
                let request = request(FileRef { path, outside }, winnow.request(&found)?);
                self.ask(found, request, out)
            }
        }
    }

    /// Asks an overlay's index about files at or below `path`, or returns the directory to read.
    pub(super) fn ask_or_read(
        &self,
        path: Option<&Path>,
        winnow: &WinnowAsked,
        request: impl FnOnce(PathBuf, Vec<FileRef>) -> Request,
        global: &Global,
        out: &Output,
    ) -> Result<Asked, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(Asked::Read(readable(dir)));
        }
        let look = winnow.look;
        match (find(global, path), path) {
            (Ok(found), Some(dir)) if look.is_some() && self.mounted(&found).is_err() => {
                Ok(Asked::Read(dir.to_owned()))
            }
            (Ok(found), _) if look.is_some() => {
                let Found::Daemon { path, .. } = &found else { return self.mounted(&found).map(Asked::Read) };
                let below = path.clone();
                Ok(Asked::Read(self.mounted(&found)?.join(below)))
            }
            (Ok(found), given) => {
                let below = match &found {
                    Found::Daemon { path, .. } | Found::Direct { path, .. } => path.clone(),
                };
                let request = request(below, winnow.request(&found)?.base);
                match (self.ask(found, request, out), given) {
                    (Ok(Asked::Read(_)), Some(dir)) => Ok(Asked::Read(dir.to_owned())),
                    (asked, _) => asked,
                }
            }
            // A directory outside of any overlay.
            (Err(_), Some(dir)) => Ok(Asked::Read(dir.to_owned())),
            (Err(e), None) => Err(self.no_overlay(e)),
        }
    }

    /// Returns the path at which the files of an overlay can be read.
    fn mounted(&self, found: &Found) -> Result<PathBuf, CliError> {
        match found {
            Found::Daemon { info, .. } => Ok(info.mountpoint.clone()),
            Found::Direct { .. } => {
                let message = format!("--method {}: the overlay is not mounted", self.method);
                Err(CliError::new(message).hint("mount it, or name a directory with --in"))
            }
        }
    }

    /// Asks an overlay's saved index, or returns the directory to read instead.
    fn ask(&self, found: Found, request: Request, out: &Output) -> Result<Asked, CliError> {
        let mountpoint = self.mounted(&found).ok();
        let (session, _) = Session::open(found, Work::Ask, out)?;
        match (session.ask(request, out)?, mountpoint, self.method()) {
            (Response::NotKept(has), Some(dir), Some(chosen)) => {
                out.note(&format!("{}: every file is read; {}", none_kept(&chosen, has), enable(&chosen)));
                Ok(Asked::Read(dir))
            }
            (Response::NotKept(has), None, Some(chosen)) => {
                let message = format!("{}, and the overlay is not mounted", none_kept(&chosen, has));
                let hint = format!("{}; or mount it, or name a directory with --in", enable(&chosen));
                Err(CliError::new(message).hint(hint))
            }
            (response, ..) => Ok(Asked::Answered(Box::new(response))),
        }
    }

    fn no_overlay(&self, e: CliError) -> CliError {
        e.hint(format!("--method {} needs an overlay or a directory: name one with --in", self.method))
    }

    /// Reports the files that the index lacks.
    pub(super) fn say(&self, not: &NotKnown, out: &Output) {
        if not.files > 0 {
            let (name, files) = (&self.method, not.files);
            let more = if not.behind { " or more" } else { "" };
            out.note(&format!(
                "{files} files{more} are not in the index of {name} yet; `dedupctl scan` takes them in"
            ));
        }
    }
}

/// Describes the missing index.
fn none_kept(chosen: &Chosen, has: Option<String>) -> String {
    let name = chosen.name();
    match has {
        None => format!("no index of {name} is kept"),
        Some(has) => {
            let wanted = chosen.any().settings();
            format!("the saved index of {name} was made with {has}, not with {wanted}")
        }
    }
}

fn enable(chosen: &Chosen) -> String {
    format!("methods = [\"{chosen}\"] in the store's config.toml keeps its index from the next mount on")
}

/// Result of asking an overlay's saved index.
pub(super) enum Asked {
    Answered(Box<Response>),
    /// There is no index: read the files of this directory.
    Read(PathBuf),
}

fn parse_method(text: &str) -> Result<String, String> {
    match text.parse::<Chosen>() {
        _ if text == DEFAULT => Ok(text.to_owned()),
        Ok(_) => Ok(text.to_owned()),
        Err(BadMethod::Unknown(_)) => Err(format!("expected {}", known().join(", "))),
        Err(e) => Err(e.to_string()),
    }
}

fn known() -> Vec<&'static str> {
    std::iter::once(DEFAULT).chain(names()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::Program;
    use super::super::super::commands::parser;
    use super::known;

    /// A group with another name would be accepted with every method. Groups of clap's own are named after structs.
    #[test]
    fn groups_of_options_are_named_after_methods() {
        let parser = parser(Program::Dedupctl);
        let mut found = Vec::new();
        for command in ["similar", "groups"].map(|name| parser.find_subcommand(name).unwrap()) {
            let ids = command.get_groups().map(|group| group.get_id().as_str());
            for id in ids.filter(|id| id.starts_with(char::is_lowercase)) {
                assert!(id.split(' ').all(|name| known().contains(&name)), "{id}");
                found.push(id.to_owned());
            }
        }
        assert!(found.len() > 5, "{found:?}");
    }
}
