//! Kinds of views.

use std::str::FromStr;

/// A way to interpret a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// The unchanged bytes.
    Raw,
    /// Letters and digits of a text, in lower case.
    Text,
    /// The text of HTML and XML, like [`View::Text`].
    Html,
    /// The tokens of source code, a byte each: names, numbers and strings are one symbol, comments are left
    /// out.
    Source,
    /// A PostScript program without prolog and comments.
    PostScript,
    /// The streams of a PDF, decompressed.
    Pdf,
    /// The members of a zip archive (docx, odt, jar, epub), by name, each through its own view.
    Archive,
    /// The decompressed data, through its own view.
    Gzip,
}

impl View {
    /// Every view except the raw bytes.
    pub const ALL: [View; 7] =
        [View::Text, View::Html, View::Source, View::PostScript, View::Pdf, View::Archive, View::Gzip];

    /// Returns its name for users.
    pub fn name(self) -> &'static str {
        match self {
            View::Raw => "raw",
            View::Text => "text",
            View::Html => "html",
            View::Source => "source",
            View::PostScript => "postscript",
            View::Pdf => "pdf",
            View::Archive => "archive",
            View::Gzip => "gzip",
        }
    }

    /// Whether the format compresses: then raw bytes are almost useless for comparisons.
    pub fn hides_bytes(self) -> bool {
        matches!(self, View::Pdf | View::Archive | View::Gzip)
    }
}

impl FromStr for View {
    type Err = ();

    fn from_str(name: &str) -> Result<View, ()> {
        let all = std::iter::once(View::Raw).chain(View::ALL);
        all.into_iter().find(|view| view.name() == name).ok_or(())
    }
}
