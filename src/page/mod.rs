//! Reports as HTML: one file that needs no network, works in light and dark, on paper, and without a mouse.
//!
//! A page has figures, pictures and a table; if rows belong to sets, also a map of these. Names and contents
//! are untrusted, so all text goes through the template engine, which escapes it, or into JSON that cannot
//! end its element. Rows enter the page by columns: a hundred thousand take about ten megabytes, and only the
//! visible ones are in the document.

mod side_by_side;
mod site;

pub use side_by_side::{MARKED_MAX, Piece, Shared, SideBySide};
pub use site::{Field, Form, Site};

use askama::Template;
use serde::Serialize;
use side_by_side::{Mark, Shown};
use std::fmt::Write as _;

/// A figure of the summary.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its label.
    pub label: String,
    /// The figure, with its unit.
    pub value: String,
}

/// Meaning of a part of a bar; selects its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes that are needed in any case.
    Once,
    /// Common bytes of similar files.
    Saved,
    /// Redundant copies.
    Same,
    /// A figure for comparison.
    Mark,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Kind::Once => "once",
            Kind::Saved => "saved",
            Kind::Same => "same",
            Kind::Mark => "mark",
        }
    }
}

/// A part of a bar.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its meaning.
    pub kind: Kind,
    /// Share of the bar, 0 to 1.
    pub share: f64,
    /// Its label.
    pub label: String,
}

impl Part {
    fn width(&self) -> String {
        let share = if self.share.is_finite() { self.share.clamp(0.0, 1.0) } else { 0.0 };
        format!("{:.3}", share * 100.0)
    }
}

/// A bar of parts.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its label.
    pub label: String,
    /// Parts from left to right.
    pub parts: Vec<Part>,
}

impl Bar {
    fn told(&self) -> String {
        self.parts.iter().map(|part| part.label.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// A group of bars.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Its heading.
    pub title: String,
    /// Bars from top to bottom.
    pub bars: Vec<Bar>,
}

/// Values of a column, one for each row; numbers may be missing.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Values {
    /// Names.
    Text(Vec<String>),
    /// Bytes.
    Bytes(Vec<u64>),
    /// Whole numbers.
    Number(Vec<u64>),
    /// Shares, 0 to 1.
    Share(Vec<Option<f64>>),
    /// Other numbers.
    Decimal(Vec<f64>),
}

impl Values {
    fn kind(&self) -> &'static str {
        match self {
            Values::Text(_) => "text",
            Values::Bytes(_) => "bytes",
            Values::Number(_) => "number",
            Values::Share(_) => "share",
            Values::Decimal(_) => "decimal",
        }
    }
}

/// A column of the table.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Explanation next to the heading.
    pub help: &'static str,
    /// One for each row.
    pub values: Values,
}

/// Consecutive rows of the table that belong together.
#[derive(Clone, Debug, Serialize)]
pub struct Set {
    /// Its name.
    pub name: String,
    /// Its first row.
    pub from: usize,
    /// The row after its last one.
    pub to: usize,
    /// Bytes that it could save: its area in the map.
    pub saves: u64,
    /// Whether its files are identical.
    pub same: bool,
}

/// The table of a page.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// Columns from left to right, all of the same length.
    pub columns: Vec<Column>,
    /// For the map; may be none.
    pub sets: Vec<Set>,
    /// The column with the sizes of files, for the map.
    pub size: usize,
    /// The column of shares that sets the darkness of a file in the map.
    pub darkness: usize,
    /// Highlighted rows.
    pub first: Vec<bool>,
    /// Address prefix for links from the texts of the first column.
    pub link: Option<String>,
}

impl Table {
    fn has_sets(&self) -> bool {
        !self.sets.is_empty()
    }

    fn json(&self, marks: &[Mark]) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Heading {
            name: &'static str,
            help: &'static str,
            kind: &'static str,
        }
        #[derive(Serialize)]
        struct Data<'a> {
            columns: Vec<Heading>,
            rows: Vec<&'a Values>,
            sets: &'a [Set],
            size: usize,
            darkness: usize,
            first: Vec<u8>,
            #[serde(skip_serializing_if = "Option::is_none")]
            link: Option<&'a str>,
            marks: &'a [Mark],
        }
        let heading =
            |column: &Column| Heading { name: column.name, help: column.help, kind: column.values.kind() };
        let data = Data {
            columns: self.columns.iter().map(heading).collect(),
            rows: self.columns.iter().map(|column| &column.values).collect(),
            sets: &self.sets,
            size: self.size,
            darkness: self.darkness,
            first: self.first.iter().map(|&first| u8::from(first)).collect(),
            link: self.link.as_deref(),
            marks,
        };
        serde_json::to_string(&data).map(|json| json_in_html(&json))
    }
}

/// A report.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// Its subject.
    pub about: String,
    /// The summary.
    pub figures: Vec<Figure>,
    /// Notes to read first.
    pub notes: Vec<String>,
    /// Pictures under the summary.
    pub pictures: Vec<Picture>,
    /// Two contents side by side.
    pub side_by_side: Option<SideBySide>,
    /// The table.
    pub table: Option<Table>,
}

#[derive(Template)]
#[template(path = "page.html")]
struct Filled<'a> {
    title: &'a str,
    about: &'a str,
    figures: &'a [Figure],
    notes: &'a [String],
    pictures: &'a [Picture],
    side_by_side: Option<&'a Shown>,
    table: Option<&'a Table>,
    site: Option<&'a Site>,
    version: &'static str,
    made: &'a str,
    style: &'static str,
    scripts: Vec<&'static str>,
    data: Option<String>,
}

impl Page {
    /// Returns the HTML file, as of the time `made`.
    ///
    /// # Errors
    ///
    /// Fails if a figure has no JSON form.
    pub fn html(&self, made: &str) -> std::io::Result<String> {
        self.fill(made, None)
    }

    /// Returns the page as part of a served site.
    ///
    /// # Errors
    ///
    /// As [`Page::html`].
    pub fn served(&self, made: &str, site: &Site) -> std::io::Result<String> {
        self.fill(made, Some(site))
    }

    fn fill(&self, made: &str, site: Option<&Site>) -> std::io::Result<String> {
        let side_by_side = self.side_by_side.as_ref().map(SideBySide::shown);
        let marks = side_by_side.as_ref().map(|shown| &shown.marks[..]).unwrap_or_default();
        let mut scripts = Vec::new();
        if self.table.is_some() {
            scripts.push(include_str!("page.js"));
        }
        if side_by_side.is_some() {
            scripts.push(include_str!("side_by_side.js"));
        }
        if site.is_some_and(|site| site.live) {
            scripts.push(include_str!("live.js"));
        }
        let filled = Filled {
            title: &self.title,
            about: &self.about,
            figures: &self.figures,
            notes: &self.notes,
            pictures: &self.pictures,
            side_by_side: side_by_side.as_ref(),
            table: self.table.as_ref(),
            site,
            version: env!("CARGO_PKG_VERSION"),
            made,
            style: include_str!("style.css"),
            scripts,
            data: self.table.as_ref().map(|table| table.json(marks)).transpose()?,
        };
        filled.render().map_err(std::io::Error::other)
    }
}

/// Makes JSON safe inside a `script` element: nothing is escaped there, and `</script` or `<!--` would end
/// it.
fn json_in_html(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // These occur only in strings, where JSON allows this form.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> Page {
        let text = || name.to_owned();
        let table = Table {
            title: text(),
            columns: vec![
                Column { name: "File", help: "", values: Values::Text(vec![text()]) },
                Column { name: "Size", help: "", values: Values::Bytes(vec![7]) },
                Column { name: "Share", help: "", values: Values::Share(vec![None]) },
            ],
            sets: vec![Set { name: text(), from: 0, to: 1, saves: 7, same: false }],
            size: 1,
            darkness: 2,
            first: vec![true],
            link: None,
        };
        let part = Part { kind: Kind::Same, share: f64::NAN, label: text() };
        Page {
            title: text(),
            about: text(),
            figures: vec![Figure { label: text(), value: text() }],
            notes: vec![text()],
            pictures: vec![Picture { title: text(), bars: vec![Bar { label: text(), parts: vec![part] }] }],
            side_by_side: Some(SideBySide {
                names: [text(), text()],
                sizes: [name.len() as u64; 2],
                pieces: [(); 2]
                    .map(|()| vec![Piece { offset: 0, lines_before: 0, bytes: name.as_bytes().to_vec() }]),
                shared: vec![Shared { from: [0, 0], length: 1 }],
            }),
            table: Some(table),
        }
    }

    /// Whatever a file is called, it is text on the page and nothing else, and can be read back from the data.
    #[test]
    fn names_of_files_are_text() {
        for name in [
            "</script><script>alert(1)</script>",
            "<!--<script>",
            "\"'><img src=x>",
            "a&amp;\u{2028}b\\u003c",
        ] {
            let html = page(name).html("now").unwrap();
            assert_eq!(html.matches("<script").count(), 3, "only those of the page: {name}");
            assert_eq!(html.matches("</script").count(), 3);
            assert!(!html.contains("<img") && !html.contains("alert(1)</script"));
            let data = html.split("application/json\">").nth(1).unwrap().split("</script>").next().unwrap();
            let data: serde_json::Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["rows"][0][0], name);
            assert_eq!(data["sets"][0]["name"], name);
            assert_eq!(data["rows"][2][0], serde_json::Value::Null);
        }
    }

    /// So is what stands in a form, and a script without the nonce does not run.
    #[test]
    fn a_page_that_is_served_is_no_other() {
        let hostile = "\"><script>alert(1)</script>";
        let field = Field { name: "file", label: "File", value: hostile.to_owned(), example: "" };
        let site = Site {
            links: &[("groups", "Groups")],
            here: "groups",
            nonce: "abc".to_owned(),
            form: Some(Form { to: "similar", fields: vec![field], button: "Look" }),
            refresh_seconds: Some(2),
            live: true,
        };
        let html = page("x").served("now", &site).unwrap();
        assert!(!html.contains("alert(1)</script"));
        assert_eq!(html.matches("<script").count(), 4);
        assert_eq!(html.matches("<script nonce=\"abc\">").count(), 3, "all but the data");
        assert!(!html.contains("Content-Security-Policy"), "the head of the answer has it");
        assert!(html.contains("content=\"2\"") && html.contains("aria-current=\"page\""));
    }

    /// Nothing on the page is loaded from anywhere.
    #[test]
    fn a_page_is_whole() {
        let html = page("x").html("now").unwrap();
        for from_elsewhere in ["http://", "https://", " src=", "@import", "url("] {
            let found = html.matches(from_elsewhere).count();
            // The namespace of SVG is a name, and is not asked for.
            assert_eq!(found, usize::from(from_elsewhere == "http://"), "{from_elsewhere}");
        }
        assert!(html.contains("width:0.000%"), "a share that is no number");
    }
}
