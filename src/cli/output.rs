//! The only place that prints. A reader that goes away (`| head`) is no error.

use super::error::CliError;
use super::pager;
use crate::admin::{Progress, Unit};
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{self, ErrorKind, IsTerminal, Write};

const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
const BOLD: Style = Style::new().bold();

/// Target of results and messages.
pub(super) struct Output {
    json: bool,
    paged: bool,
}

impl Output {
    /// With `paged`, text longer than the terminal goes through a pager.
    pub(super) fn new(json: bool, paged: bool) -> Output {
        Output { json, paged: paged && !json && io::stdout().is_terminal() }
    }

    /// Prints the result: the document with `--json`, otherwise the output of `text`.
    pub(super) fn result<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let text = match self.json {
            true => {
                let json = serde_json::to_string_pretty(value);
                json.map_err(|e| CliError::new(format!("the result is no JSON: {e}")))? + "\n"
            }
            false => text(value),
        };
        self.raw(text.as_bytes())
    }

    /// Prints bytes as they are, without colours if stdout is no terminal.
    pub(super) fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        if self.paged && pager::show(bytes) {
            return Ok(());
        }
        let mut out = anstream::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(e) => Err(CliError::new(format!("write to stdout: {e}"))),
        }
    }

    /// Prints a repeated result: it replaces the last one on a terminal, and is one line with `--json`. Returns false
    /// if the reader has gone.
    pub(super) fn again<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<bool, CliError> {
        self.one_of_many(value, |value| {
            let text = format!("{}\n{}", now(), text(value));
            match io::stdout().is_terminal() {
                // Escapes: home; clear the rest of each line; clear the rest of the screen. This avoids flicker.
                true => format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")),
                false => text + "\n",
            }
        })
    }

    /// Prints one of many results below the last one, after the time. Returns false if the reader has gone.
    pub(super) fn line<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<bool, CliError> {
        self.one_of_many(value, |value| format!("{} {}", now(), text(value)))
    }

    fn one_of_many<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<bool, CliError> {
        let text = match self.json {
            true => {
                let json = serde_json::to_string(value);
                json.map_err(|e| CliError::new(format!("the result is no JSON: {e}")))? + "\n"
            }
            false => text(value),
        };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(CliError::new(format!("write to stdout: {e}"))),
        }
    }

    /// Prints a message besides the result.
    pub(super) fn note(&self, text: &str) {
        let _ = writeln!(anstream::stderr(), "{YELLOW}note:{YELLOW:#} {text}");
    }

    /// Asks for a yes on the terminal after a warning; `None` if stdin is no terminal.
    pub(super) fn confirm(&self, warning: &str) -> Result<Option<bool>, CliError> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let _ = write!(anstream::stderr(), "{YELLOW}warning:{YELLOW:#} {warning}\nGo on? [y/N] ");
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map_err(|e| CliError::new(format!("read the answer: {e}")))?;
        Ok(Some(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")))
    }

    pub(super) fn error(&self, error: &CliError) {
        if error.silent {
            return;
        }
        let mut err = anstream::stderr().lock();
        let _ = writeln!(err, "{RED}error:{RED:#} {}", error.message);
        if let Some(hint) = &error.hint {
            let _ = writeln!(err, " {BOLD}hint:{BOLD:#} {hint}");
        }
    }

    /// Returns a progress bar on stderr, if that is a terminal.
    pub(super) fn meter(&self) -> Meter {
        let target = match io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        Meter { bar: ProgressBar::with_draw_target(None, target), unit: None }
    }
}

/// Returns the time of day.
fn now() -> String {
    jiff::Zoned::now().strftime("%H:%M:%S").to_string()
}

/// Shows how far long work has come. Vanishes when dropped.
pub(super) struct Meter {
    bar: ProgressBar,
    unit: Option<(Unit, bool)>,
}

impl Meter {
    pub(super) fn show(&mut self, step: &Progress) {
        let style = (step.unit, step.total > 0);
        if self.unit != Some(style) {
            self.unit = Some(style);
            let template = match style {
                (Unit::Bytes, true) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}",
                (Unit::Files, true) => "{msg} {wide_bar} {pos}/{len} files ETA {eta}",
                (Unit::Bytes, false) => "{spinner} {msg} {bytes}",
                (Unit::Files, false) => "{spinner} {msg} {pos} files",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style);
            }
            self.bar.reset_eta();
        }
        self.bar.set_message(step.what.clone());
        if step.total > 0 {
            self.bar.set_length(step.total);
        }
        self.bar.set_position(step.done);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Rows of cells as aligned lines; columns are two spaces apart. Those in `right` are numbers.
pub(super) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            match right.contains(&column) {
                true => line.push_str(&format!("{cell:>width$}  ")),
                false => line.push_str(&format!("{cell:<width$}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats a number of bytes for people: `17 B`, `1.5 KiB`, `230 MiB`.
pub(super) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 999.5 || unit == "TiB" {
            return match value < 9.95 && unit != "B" {
                true => format!("{value:.1} {unit}"),
                false => format!("{value:.0} {unit}"),
            };
        }
        value /= 1024.0;
    }
    format!("{bytes} B")
}

/// Formats a share for people. Less than the whole never shows as the whole.
pub(super) fn share(share: f64) -> String {
    let percent = share * 100.0;
    if (99.95..100.0).contains(&percent) { "99.9%".to_owned() } else { format!("{percent:.1}%") }
}

/// Members of a group, and paths of a set, that a table shows.
pub(super) const ROWS: usize = 10;

/// Says how many rows a table leaves out.
pub(super) fn more(all: usize) -> String {
    if all > ROWS { format!("  and {} more\n", all - ROWS) } else { String::new() }
}

/// Escapes control characters in text from elsewhere (names of files), so that a name can neither break a table nor
/// control the terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        let sizes =
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (1536, "1.5 KiB"), (230 << 20, "230 MiB")];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(u64::MAX), "16777216 TiB");
        assert_eq!([share(0.0), share(0.99999), share(1.0)], ["0.0%", "99.9%", "100.0%"]);
        assert_eq!(plain("a\u{1b}[31m\n\u{e9}"), "a\\u{1b}[31m\\n\u{e9}");
    }

    #[test]
    fn tables_are_aligned() {
        let rows = [vec!["a".to_owned(), "10".to_owned()], vec!["bcd".to_owned(), "1".to_owned()]];
        assert_eq!(table(&rows, &[1]), "a    10\nbcd   1\n");
        assert_eq!(table(&[], &[]), "");
    }
}
