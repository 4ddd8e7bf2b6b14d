//! Which method to use: parameters that fit the sizes of the files, and a recommendation by measured recall.

use super::standing::Standing;
use crate::similarity::methods::Chosen;

/// Fingerprints, chunks and passages that a file of the median size should have.
const PARTS: u64 = 10;
/// The shortest passage that winnowing is fitted to.
const PASSAGE_BYTES_MIN: u64 = 20;
/// The shortest k-gram.
const GRAM_BYTES_MIN: u64 = 8;
/// At most this share of what a recommended method lists is wrong.
const WRONG_MAX: f64 = 0.1;

/// A method to use, and why.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Recommendation {
    /// The method as users write it, with its parameters; `default` for the index that is always kept.
    pub method: String,
    /// The reason, in one sentence.
    pub because: String,
    /// The line for `config.toml`; `None` if none is needed.
    pub config: Option<String>,
}

impl Recommendation {
    /// Says which method to use, why, and how.
    pub fn sentence(&self) -> String {
        let Recommendation { method, because, config } = self;
        let how = match config {
            Some(line) => format!("{line} in the store's config.toml keeps its index"),
            None => "it is always kept, and needs no line in config.toml".to_owned(),
        };
        format!("recommended: {method}, because {because}; {how}")
    }
}

/// Returns methods with parameters for files of a median size, those whose defaults do not fit it. With the defaults of the
/// papers such files have few fingerprints or chunks, or none.
pub(super) fn fitted(median: u64) -> Vec<Chosen> {
    let mut fitted = Vec::new();
    // One substring in 2^zeros is kept.
    let zeros = (median / PARTS).checked_ilog2().unwrap_or(0);
    if zeros < 8 {
        fitted.push(format!("sif:zeros={zeros}"));
    }
    let passage = (median / PARTS).max(PASSAGE_BYTES_MIN);
    if passage < 149 {
        let k = (passage / 3).max(GRAM_BYTES_MIN);
        fitted.push(format!("winnow:k={k},w={}", passage - k + 1));
    }
    if median / PARTS < 256 {
        fitted.push("chunk-graph:target=100".to_owned());
    }
    fitted.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns the method that finds most; among those that find as much, in whole percents, the one with the smallest index.
/// `None` if nothing could be found.
pub(super) fn recommend(standings: &[Standing]) -> Option<Recommendation> {
    let percent = |share: f64| (share * 100.0).round() as u64;
    let is_right = |standing: &&Standing| standing.precision.is_some_and(|right| right >= 1.0 - WRONG_MAX);
    let best = standings.iter().filter(is_right).max_by(|a, b| {
        let found = |standing: &Standing| standing.recall_25.map(percent);
        found(a).cmp(&found(b)).then(b.index_share.total_cmp(&a.index_share))
    })?;
    let found = percent(best.recall_25?);
    let because = format!(
        "it lists {found}% of the files that have a quarter of the one asked about, {}% of what it lists is right, and its index \
        has {:.1}% of the bytes",
        percent(best.precision?),
        best.index_share * 100.0
    );
    let config = (!best.is_default()).then(|| format!("methods = [\"{}\"]", best.method));
    Some(Recommendation { method: best.method.clone(), because, config })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(median: u64) -> Vec<String> {
        fitted(median).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn small_files_have_parameters_of_their_own() {
        assert_eq!(texts(100_000), Vec::<String>::new());
        assert_eq!(texts(2000), ["sif:zeros=7", "chunk-graph:target=100"]);
        assert_eq!(texts(489), ["sif:zeros=5", "winnow:k=16,w=33", "chunk-graph:target=100"]);
        assert_eq!(texts(0), ["sif:zeros=0", "winnow:k=8,w=13", "chunk-graph:target=100"]);
    }

    #[test]
    fn what_finds_most_is_recommended_then_what_is_smallest() {
        let standing = |method: &str, recall, precision, index_share| Standing {
            name: method.split(':').next().unwrap_or_default().to_owned(),
            method: method.to_owned(),
            fitted: false,
            parameters: String::new(),
            recall_25: recall,
            recall_50: recall,
            recall_80: recall,
            precision,
            index_share,
            mib_per_s: 1.0,
            query_ms: 1.0,
        };
        let method = |standings: &[Standing]| recommend(standings).map(|found| (found.method, found.config));
        let default = standing("default", Some(0.99), Some(1.0), 0.03);
        let sif = standing("sif:zeros=5", Some(0.991), Some(0.95), 0.01);
        let wrong = standing("simhash", Some(1.0), Some(0.5), 0.001);
        let line = "methods = [\"sif:zeros=5\"]".to_owned();
        assert_eq!(
            method(&[default.clone(), sif, wrong.clone()]),
            Some(("sif:zeros=5".to_owned(), Some(line)))
        );
        assert_eq!(method(&[default, wrong.clone()]), Some(("default".to_owned(), None)));
        assert_eq!(method(&[wrong]), None);
        assert_eq!(method(&[standing("default", None, None, 0.0)]), None);
    }
}
