//! Options of a search for similar contents.

use super::filter::Filter;
use super::shares::{Ranking, Shares};
use crate::similarity::Boilerplate;
use crate::similarity::exact::Patterns;
use crate::view::View;

/// Fewer common bytes than this are no resemblance, unless the caller sets another minimum.
pub(crate) const COMMON_BYTES_MIN: u64 = 64;

/// How compared files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Look {
    /// As bytes, and as the contents of archives and compressed files.
    #[default]
    Both,
    /// Through the view that suits the queried file.
    Auto,
    /// Through this view.
    Through(View),
}

/// Options of a search for similar files.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SimilarOptions {
    /// Smallest share, 0 to 1.
    pub min: f64,
    /// At most this many matches.
    pub limit: usize,
    /// The ranking.
    pub by: Ranking,
    /// Trust the index's estimates instead of comparing bytes.
    pub estimate: bool,
    /// Fewest bytes in common; matches with less are left out.
    pub common_min: u64,
    /// Whether templates and padding count nothing.
    pub templates: bool,
    /// Which files may be named.
    pub filter: Filter,
    /// How to look at the files.
    #[serde(default)]
    pub look: Look,
}

impl Default for SimilarOptions {
    /// A quarter in common and 64 bytes, twenty matches, by the mean of the containments, verified, without templates.
    fn default() -> Self {
        let filter = Filter::default();
        SimilarOptions {
            min: 0.25,
            limit: 20,
            by: Ranking::Mean,
            estimate: false,
            common_min: COMMON_BYTES_MIN,
            templates: true,
            filter,
            look: Look::default(),
        }
    }
}

impl SimilarOptions {
    /// Returns the patterns that do not count: the boilerplate and padding, or none.
    pub(crate) fn patterns<'a>(&self, boilerplate: &'a Boilerplate) -> Patterns<'a> {
        if self.templates { boilerplate.patterns() } else { Patterns::none() }
    }
}

impl Shares {
    /// Returns whether they reach the minimum of `options`.
    pub fn reach(&self, options: &SimilarOptions) -> bool {
        let reached = match options.by {
            Ranking::Resemblance => self.resemblance,
            Ranking::Mean | Ranking::Containment | Ranking::Bytes => self.containment.max(self.contained_in),
        };
        reached >= options.min && (self.bytes_common >= options.common_min || self.identical)
    }
}
