//! How one method did in a comparison.

/// Name of the index that is always kept.
pub(super) const DEFAULT: &str = "default";

/// How one method did.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// As users write it, with the parameters that differ from the defaults.
    pub method: String,
    /// Whether the parameters were fitted to the sizes of the files.
    pub fitted: bool,
    /// All its parameters, for people to read.
    pub parameters: String,
    /// The share of contents with a containment of a quarter that the method lists with at least half of it; `None` if there
    /// are none.
    pub recall_25: Option<f64>,
    /// The same of half.
    pub recall_50: Option<f64>,
    /// The same of four fifths.
    pub recall_80: Option<f64>,
    /// Share of right contents among those listed with a quarter or more, either way round; `None` if it lists none.
    pub precision: Option<f64>,
    /// Bytes of its index by bytes of contents.
    pub index_share: f64,
    /// MiB sketched and added to the index in a second of processor time.
    pub mib_per_s: f64,
    /// Processor time of a query, without making its sketch.
    pub query_ms: f64,
}

impl Standing {
    /// Returns the recall at 25%, 50% and 80%.
    pub fn recall(&self) -> [Option<f64>; 3] {
        [self.recall_25, self.recall_50, self.recall_80]
    }

    /// Whether it is the index that is always kept.
    pub fn is_default(&self) -> bool {
        self.method == DEFAULT
    }
}
