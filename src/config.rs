//! User settings: the policy file `config.toml`, and the syntax of sizes, times and policies.
//! `docs/policies.md` describes all of it.
//!
//! Pure: text in, values out. An invalid text is an error that names it and shows a valid form; nothing is guessed.

use crate::contents::Indexing;
use crate::convert::Amount;
use crate::history::{Rules, Schedule};
use crate::similarity::methods::{self, BadMethod, Chosen};
use crate::tree::{BadGlob, Dedup, Policies, Policy, Rule};
use crate::view::View;
use globset::GlobBuilder;
use serde::Deserialize;
use std::time::Duration;
use toml::Spanned;

mod text;

pub use text::{dedup_text, rule_text, similarity_text};

/// A value that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a size.
    #[error("size {0:?}: expected a number of bytes with an optional unit, like 16KiB, 4M or 1000000")]
    Size(String),
    /// Not a duration.
    #[error("duration {0:?}: expected a number with a unit, like 30s, 10m, 2h or 1d")]
    Duration(String),
    /// Not a policy.
    #[error("dedup policy {0:?}: expected on-close, idle:TIME (like idle:10m) or off")]
    Dedup(String),
    /// Not a minimum size of hybrid files.
    #[error("hybrid_min {0:?}: expected a size, like \"16MiB\", or \"off\"")]
    HybridMin(String),
    /// Not a size for hot files, which are kept plain because they are read often.
    #[error("hot_bytes {0:?}: expected a size, like \"1GiB\", or \"off\"")]
    HotBytes(String),
    /// Not a part of a filesystem.
    #[error("{0} {1:?}: expected a size or a share of the filesystem, like \"5GiB\" or \"10%\"")]
    Amount(&'static str, String),
    /// Not a way to collect garbage.
    #[error("gc {0:?}: expected auto or off")]
    Gc(String),
    /// Not a way to group chunks.
    #[error("optimize {0:?}: expected off or idle:TIME (like idle:1h)")]
    Optimize(String),
    /// Not a rate.
    #[error("rate {0:?}: expected a size a second, at least 64KiB/s, like 50MiB/s")]
    Rate(String),
    /// A glob of a rule.
    #[error(transparent)]
    Glob(#[from] BadGlob),
    /// A rule without a setting.
    #[error("[[policy]]: expected {0}")]
    Rule(&'static str),
    /// An error on that line of the file.
    #[error("{error}, on line {line}")]
    Line {
        /// The error.
        error: Box<ConfigError>,
        /// Number of the line, from 1.
        line: usize,
    },
    /// Not views.
    #[error("views {0:?}: expected auto, all, off or a list of {names}", names = view_names())]
    Views(String),
    /// Not methods.
    #[error("methods {0:?}: expected a list of {names}, or off", names = methods::names().join(", "))]
    Methods(String),
    /// Parameters of a method.
    #[error(transparent)]
    Method(BadMethod),
    /// A method more than once.
    #[error("methods: {0} is there twice, and has one index")]
    MethodTwice(&'static str),
    /// Not a way to keep versions.
    #[error("history keep {0:?}: expected rules or none")]
    HistoryKeep(String),
    /// Not a schedule of snapshots.
    #[error(
        "history snapshots {0:?}: expected numbers of snapshots to keep, each at least 1 and once, of hourly, daily, weekly, \
        monthly and yearly, like \"hourly:24 daily:7 weekly:4\""
    )]
    Snapshots(String),
    /// Not an amount of indexing for similarity.
    #[error("similarity {0:?}: expected full, chunks or off")]
    Similarity(String),
    /// Not a choice about versions of some files.
    #[error("history {0:?}: expected on or off")]
    History(String),
    /// A glob of directories that are synced as a whole.
    #[error("groups {0:?} in [sync]: {1}")]
    Group(String, String),
    /// A pattern of paths that are synced.
    #[error("only {0:?} in [sync]: {1}")]
    Only(String, &'static str),
    /// A list without patterns of paths that are synced.
    #[error("only in [sync]: expected at least one path, found none; leave the line out to sync everything")]
    OnlyNothing,
    /// A pattern of paths that are not synced.
    #[error("not {0:?} in [sync]: {1}")]
    Not(String, String),
    /// The file is not TOML of the expected form.
    #[error("{0}")]
    Form(String),
}

/// Minimum rate: a slower conversion would seem to hang.
const RATE_MIN: u64 = 64 << 10;

/// Minimum similarity of two names for one to be a typing error of the other. The same as in clap.
const LIKENESS_MIN: f64 = 0.7;

/// The settings of one overlay; `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// When files are converted.
    pub dedup: Option<Dedup>,
    /// Approximate bytes of memory for all bounded caches and buffers together.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory for decoded chunks: overrides their part of `memory_bytes`.
    pub cache_bytes: Option<u64>,
    /// Whether the daemon collects garbage on its own.
    pub gc: Option<bool>,
    /// Idle time after which the daemon groups chunks on its own; the inner `None` means never.
    pub optimize: Option<Option<Duration>>,
    /// Smaller files stay plain.
    pub min_bytes: Option<u64>,
    /// Bytes a second that conversions may read while no program waits for them.
    pub convert_rate: Option<u64>,
    /// Size in bytes from which on a stub is not hydrated before it is written to; `u64::MAX`: all stubs are hydrated.
    pub hybrid_min_bytes: Option<u64>,
    /// Bytes for hot files, which are kept plain because they are read often; 0: none are.
    pub hot_bytes: Option<u64>,
    /// Time after which a hot file that no program has open goes back into the store.
    pub hot_time: Option<Duration>,
    /// Settings for files with certain names; the last matching rule counts.
    pub rules: Vec<Rule>,
    /// Space of the filesystem that conversions leave free.
    pub keep_free: Option<Amount>,
    /// How much of a file's data the similarity index has.
    pub similarity: Option<Indexing>,
    /// Views by which files are indexed, in addition to their bytes.
    pub views: Option<Vec<View>>,
    /// Which versions are kept.
    pub history: Option<Rules>,
    /// Directories that are synced as a whole: globs of names or, with a slash, of paths.
    pub groups: Vec<String>,
    /// The paths that this device syncs: patterns from the root, each component a glob; `None` means all.
    pub sync_only: Option<Vec<String>>,
    /// The paths that this device does not sync: lines as in a `.gitignore`.
    pub sync_not: Vec<String>,
    /// Published methods for similar files whose indexes are maintained, each once.
    pub methods: Option<Vec<Chosen>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    dedup: Option<Spanned<String>>,
    memory: Option<Spanned<Size>>,
    cache_bytes: Option<Spanned<Size>>,
    gc: Option<Spanned<String>>,
    optimize: Option<Spanned<String>>,
    min_size: Option<Spanned<Size>>,
    convert_rate: Option<Spanned<String>>,
    hybrid_min: Option<Spanned<Size>>,
    hot_bytes: Option<Spanned<Size>>,
    hot_time: Option<Spanned<String>>,
    keep_free: Option<Spanned<Size>>,
    similarity: Option<Spanned<String>>,
    views: Option<Spanned<Names>>,
    methods: Option<Spanned<Names>>,
    #[serde(default)]
    policy: Vec<Spanned<RuleForm>>,
    history: Option<HistoryForm>,
    sync: Option<SyncForm>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SyncForm {
    #[serde(default)]
    groups: Vec<Spanned<String>>,
    only: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    not: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryForm {
    keep: Option<Spanned<String>>,
    all: Option<Spanned<String>>,
    hourly: Option<u32>,
    daily: Option<u32>,
    weekly: Option<u32>,
    monthly: Option<u32>,
    max: Option<Spanned<Size>>,
    snapshots: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    Word(String),
    List(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleForm {
    r#match: Spanned<Globs>,
    dedup: Option<Spanned<String>>,
    min_size: Option<Spanned<Size>>,
    history: Option<Spanned<String>>,
    similarity: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a glob or a list of globs")]
enum Globs {
    One(String),
    Some(Vec<String>),
}

/// The text of a `config.toml`, to find the line of an error.
struct Source<'a>(&'a str);

impl Source<'_> {
    /// Reads a value by `read`; an error names its line.
    fn value<T, U>(
        &self,
        value: Spanned<T>,
        read: impl FnOnce(T) -> Result<U, ConfigError>,
    ) -> Result<U, ConfigError> {
        let before = self.0.get(..value.span().start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        read(value.into_inner()).map_err(|error| match error {
            at @ ConfigError::Line { .. } => at,
            error => ConfigError::Line { error: Box::new(error), line },
        })
    }

    fn optional<T, U>(
        &self,
        value: Option<Spanned<T>>,
        read: impl FnOnce(T) -> Result<U, ConfigError>,
    ) -> Result<Option<U>, ConfigError> {
        value.map(|value| self.value(value, read)).transpose()
    }

    fn rule(&self, form: RuleForm) -> Result<Rule, ConfigError> {
        let globs = self.value(form.r#match, |globs| {
            let globs = match globs {
                Globs::One(glob) => vec![glob],
                Globs::Some(globs) if globs.is_empty() => {
                    return Err(ConfigError::Rule("at least one glob in match, found none"));
                }
                Globs::Some(globs) => globs,
            };
            Rule { globs: globs.clone(), ..Rule::default() }.check()?;
            Ok(globs)
        })?;
        let dedup = self.optional(form.dedup, |text| parse_dedup(&text))?;
        let min_bytes = self.optional(form.min_size, Size::bytes)?;
        let keep_history = self.optional(form.history, |text| match text.as_str() {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(ConfigError::History(text)),
        })?;
        let similarity = self.optional(form.similarity, parse_similarity)?;
        if dedup.is_none() && min_bytes.is_none() && keep_history.is_none() && similarity.is_none() {
            return Err(ConfigError::Rule(
                "dedup or min_size or history or similarity in addition to match, found none of them",
            ));
        }
        Ok(Rule { globs, dedup, min_bytes, keep_history, similarity })
    }

    fn group(glob: String) -> Result<String, ConfigError> {
        match GlobBuilder::new(&glob).literal_separator(true).build() {
            Ok(_) if !glob.trim_matches('/').is_empty() => Ok(glob),
            Ok(_) => Err(ConfigError::Group(glob, "expected a name or a path, like \"*.bundle\"".to_owned())),
            Err(e) => Err(ConfigError::Group(glob, e.kind().to_string())),
        }
    }

    fn only(&self, patterns: Vec<Spanned<String>>) -> Result<Vec<String>, ConfigError> {
        let pattern = |pattern: String| {
            let inner = pattern.strip_prefix('/').unwrap_or(&pattern);
            let inner = inner.strip_suffix('/').unwrap_or(inner);
            let wrong = inner.split('/').find_map(|name| match name {
                "" | "." | ".." => Some("expected a path from the root, like \"/photos/2024*\""),
                "**" => Some("everything below a path is synced with it, so `**` is not needed"),
                name => {
                    let glob = GlobBuilder::new(name).literal_separator(true).build();
                    glob.is_err().then_some("expected globs between the slashes, like \"/photos/2024*\"")
                }
            });
            wrong.map_or(Ok(()), |why| Err(ConfigError::Only(pattern.clone(), why))).map(|()| pattern)
        };
        match patterns.is_empty() {
            true => Err(ConfigError::OnlyNothing),
            false => patterns.into_iter().map(|text| self.value(text, pattern)).collect(),
        }
    }

    fn not(line: String) -> Result<String, ConfigError> {
        match ignore::gitignore::GitignoreBuilder::new("").add_line(None, &line) {
            Ok(_) => Ok(line),
            Err(e) => Err(ConfigError::Not(line, e.to_string())),
        }
    }

    fn history(&self, form: HistoryForm) -> Result<Rules, ConfigError> {
        let none = self.optional(form.keep, |text| match text.as_str() {
            "rules" => Ok(false),
            "none" => Ok(true),
            _ => Err(ConfigError::HistoryKeep(text)),
        })?;
        let all = self.optional(form.all, |text| parse_duration(&text))?;
        let max = self.optional(form.max, |size| size.amount("max"))?;
        let snapshots = self.optional(form.snapshots, |text| parse_snapshots(&text))?;
        let Rules { all: all_by_default, hourly, daily, weekly, monthly, max: max_by_default, .. } =
            Rules::default();
        Ok(Rules {
            none: none.unwrap_or(false),
            all: all.unwrap_or(all_by_default),
            hourly: form.hourly.unwrap_or(hourly),
            daily: form.daily.unwrap_or(daily),
            weekly: form.weekly.unwrap_or(weekly),
            monthly: form.monthly.unwrap_or(monthly),
            max: max.unwrap_or(max_by_default),
            snapshots: snapshots.unwrap_or_default(),
        })
    }
}

impl Size {
    fn bytes(self) -> Result<u64, ConfigError> {
        match self {
            Size::Bytes(bytes) => Ok(bytes),
            Size::Text(text) => parse_size(&text),
        }
    }

    /// Reads a size, or a share of the filesystem.
    fn amount(self, setting: &'static str) -> Result<Amount, ConfigError> {
        let text = match self {
            Size::Bytes(bytes) => return Ok(Amount::Bytes(bytes)),
            Size::Text(text) => text,
        };
        let percent = text.strip_suffix('%').map(|number| number.parse().ok().filter(|share| *share <= 100));
        let amount = match percent {
            Some(percent) => percent.map(Amount::Percent),
            None => parse_size(&text).ok().map(Amount::Bytes),
        };
        amount.ok_or(ConfigError::Amount(setting, text))
    }
}

impl Config {
    /// Reads the text of a `config.toml`.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let form: Form = toml::from_str(text)
            .map_err(|e| ConfigError::Form(e.to_string().trim_end().to_owned() + &meant(e.message())))?;
        let source = Source(text);
        let gc = |text: String| match text.as_str() {
            "auto" => Ok(true),
            "off" => Ok(false),
            _ => Err(ConfigError::Gc(text)),
        };
        let hybrid_min = |size: Size| match size {
            Size::Text(text) if text == "off" => Ok(u64::MAX),
            Size::Text(text) => parse_size(&text).map_err(|_| ConfigError::HybridMin(text)),
            Size::Bytes(bytes) => Ok(bytes),
        };
        let hot_bytes = |size: Size| match size {
            Size::Text(text) if text == "off" => Ok(0),
            Size::Text(text) => parse_size(&text).map_err(|_| ConfigError::HotBytes(text)),
            Size::Bytes(bytes) => Ok(bytes),
        };
        let sync = form.sync.unwrap_or_default();
        let groups = sync.groups.into_iter().map(|glob| source.value(glob, Source::group));
        let not = sync.not.into_iter().map(|line| source.value(line, Source::not));
        let rules = form.policy.into_iter().map(|rule| source.value(rule, |rule| source.rule(rule)));
        Ok(Config {
            dedup: source.optional(form.dedup, |text| parse_dedup(&text))?,
            memory_bytes: source.optional(form.memory, Size::bytes)?,
            cache_bytes: source.optional(form.cache_bytes, Size::bytes)?,
            gc: source.optional(form.gc, gc)?,
            optimize: source.optional(form.optimize, |text| parse_optimize(&text))?,
            min_bytes: source.optional(form.min_size, Size::bytes)?,
            convert_rate: source.optional(form.convert_rate, |text| parse_rate(&text))?,
            hybrid_min_bytes: source.optional(form.hybrid_min, hybrid_min)?,
            hot_bytes: source.optional(form.hot_bytes, hot_bytes)?,
            hot_time: source.optional(form.hot_time, |text| parse_duration(&text))?,
            keep_free: source.optional(form.keep_free, |size| size.amount("keep_free"))?,
            similarity: source.optional(form.similarity, parse_similarity)?,
            views: source.optional(form.views, parse_views)?,
            methods: source.optional(form.methods, parse_methods)?,
            history: form.history.map(|history| source.history(history)).transpose()?,
            groups: groups.collect::<Result<_, _>>()?,
            sync_only: source.optional(sync.only, |only| source.only(only))?,
            sync_not: not.collect::<Result<_, _>>()?,
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the policies for files. `dedup` overrides the setting for all files. If it is `off`, no rule converts
    /// files, and only the rules' settings for the similarity index count.
    pub fn policies(&self, dedup: Option<Dedup>) -> Result<Policies, BadGlob> {
        let similarity = self.similarity.unwrap_or_default();
        if dedup == Some(Dedup::Off) {
            let fallback = Policy { dedup: Dedup::Off, similarity, ..Policy::default() };
            let rules = self.rules.iter().filter(|rule| rule.similarity.is_some());
            let only = |rule: &Rule| Rule {
                globs: rule.globs.clone(),
                similarity: rule.similarity,
                ..Rule::default()
            };
            return Policies::new(fallback, rules.map(only).collect());
        }
        let dedup = dedup.or(self.dedup).unwrap_or(Dedup::OnClose);
        let min_bytes = self.min_bytes.unwrap_or(0);
        let fallback = Policy { dedup, min_bytes, similarity, ..Policy::default() };
        Policies::new(fallback, self.rules.clone())
    }
}

/// Suggests the setting that a misspelt name resembles most. The parser's message has the unknown name first, then the
/// known ones.
fn meant(message: &str) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    let found = names.next().filter(|_| message.starts_with("unknown field"));
    let near = found.and_then(|found| {
        let likeness = |name: &str| strsim::jaro(found, name);
        names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|name| likeness(name) > LIKENESS_MIN)
    });
    near.map_or_else(String::new, |name| format!("\ndid you mean `{name}`?"))
}

/// Reads a rate in bytes a second: a size with `/s`.
pub fn parse_rate(text: &str) -> Result<u64, ConfigError> {
    let rate = text.strip_suffix("/s").and_then(|size| parse_size(size).ok());
    rate.filter(|&rate| rate >= RATE_MIN).ok_or_else(|| ConfigError::Rate(text.to_owned()))
}

/// Reads a policy: `on-close`, `idle:10m` or `off`.
pub fn parse_dedup(text: &str) -> Result<Dedup, ConfigError> {
    match text {
        "on-close" => Ok(Dedup::OnClose),
        "off" => Ok(Dedup::Off),
        _ => {
            let time = text.strip_prefix("idle:").ok_or_else(|| ConfigError::Dedup(text.to_owned()))?;
            Ok(Dedup::Idle(parse_duration(time)?))
        }
    }
}

fn parse_optimize(text: &str) -> Result<Option<Duration>, ConfigError> {
    match text.strip_prefix("idle:") {
        Some(rest) => parse_duration(rest).map(Some),
        None if text == "off" => Ok(None),
        None => Err(ConfigError::Optimize(text.to_owned())),
    }
}

/// Reads a schedule of snapshots, like `hourly:24 daily:7`. An empty text is none.
fn parse_snapshots(text: &str) -> Result<Schedule, ConfigError> {
    text.parse().map_err(|_| ConfigError::Snapshots(text.to_owned()))
}

/// The views that are indexed unless set: those of formats that compress.
pub fn views_auto() -> Vec<View> {
    View::ALL.into_iter().filter(|view| view.hides_bytes()).collect()
}

fn parse_views(names: Names) -> Result<Vec<View>, ConfigError> {
    let names = match names {
        Names::Word(word) => match word.as_str() {
            "auto" => return Ok(views_auto()),
            "all" => return Ok(View::ALL.to_vec()),
            "off" => return Ok(Vec::new()),
            _ => return Err(ConfigError::Views(word)),
        },
        Names::List(names) => names,
    };
    let view =
        |name: String| name.parse().ok().filter(|view| *view != View::Raw).ok_or(ConfigError::Views(name));
    names.into_iter().map(view).collect()
}

fn parse_similarity(text: String) -> Result<Indexing, ConfigError> {
    match text.as_str() {
        "full" => Ok(Indexing::Full),
        "chunks" => Ok(Indexing::Chunks),
        "off" => Ok(Indexing::Off),
        _ => Err(ConfigError::Similarity(text)),
    }
}

fn parse_methods(names: Names) -> Result<Vec<Chosen>, ConfigError> {
    let names = match names {
        Names::Word(word) if word == "off" => return Ok(Vec::new()),
        Names::Word(word) => return Err(ConfigError::Methods(word)),
        Names::List(names) => names,
    };
    let mut chosen: Vec<Chosen> = Vec::new();
    for name in names {
        let method: Chosen = name.parse().map_err(|e| match e {
            BadMethod::Unknown(name) => ConfigError::Methods(name),
            e => ConfigError::Method(e),
        })?;
        if chosen.iter().any(|other| other.name() == method.name()) {
            return Err(ConfigError::MethodTwice(method.name()));
        }
        chosen.push(method);
    }
    Ok(chosen)
}

fn view_names() -> String {
    View::ALL.map(View::name).join(", ")
}

/// Reads a duration: a whole number with one of the units s, m, h, d.
pub fn parse_duration(text: &str) -> Result<Duration, ConfigError> {
    let error = || ConfigError::Duration(text.to_owned());
    let (number, unit) = split_number(text);
    let length = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(error()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(length));
    // A duration beyond a century is a typing error, and would overflow the clock.
    seconds.filter(|&seconds| seconds <= 100 * 366 * 86_400).map(Duration::from_secs).ok_or_else(error)
}

/// Reads a size in bytes, with `K`, `KiB` (1024), `KB` (1000) and so on up to `T`, in any case.
pub fn parse_size(text: &str) -> Result<u64, ConfigError> {
    let error = || ConfigError::Size(text.to_owned());
    let (number, unit) = split_number(text);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (letter, rest) = unit.split_at(unit.chars().next().map_or(0, char::len_utf8));
    let base: u64 = match rest {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return Err(error()),
    };
    let power = match (letter, rest) {
        ("" | "b", "") => 0,
        ("k", _) => 1,
        ("m", _) => 2,
        ("g", _) => 3,
        ("t", _) => 4,
        _ => return Err(error()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(base.pow(power))).ok_or_else(error)
}

fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let good = [("0", 0), ("17", 17), ("5B", 5), ("16KiB", 16384), ("16k", 16384), ("1 MB", 1_000_000)];
        for (text, bytes) in good {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("2T"), Ok(2 << 40));
        for text in ["", "k", "-1", "1.5M", "1x", "1ib", "1bb", "99999999999T", "1é", "16KiBs"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_and_policies() {
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        for text in ["10", "m", "1y", "", "99999999999999d", "1 h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["on-close", "off", "idle:10m", "idle:90s", "idle:2h", "idle:1d", "idle:0s"] {
            assert_eq!(dedup_text(parse_dedup(text).unwrap()), text);
        }
        assert_eq!(
            parse_dedup("always").unwrap_err().to_string(),
            "dedup policy \"always\": expected on-close, idle:TIME (like idle:10m) or off"
        );
    }

    #[test]
    fn a_config_is_read_as_it_was_written() {
        let rule = |globs: &[&str], dedup, min_bytes| Rule {
            globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
            dedup,
            min_bytes,
            keep_history: min_bytes.map(|_| false),
            similarity: min_bytes.map(|_| Indexing::Off),
        };
        let full = Config {
            dedup: Some(Dedup::Off),
            memory_bytes: Some(128 << 20),
            cache_bytes: Some(1 << 20),
            gc: Some(false),
            optimize: Some(Some(Duration::from_secs(3600))),
            min_bytes: Some(u64::MAX),
            convert_rate: Some(50 << 20),
            hybrid_min_bytes: Some(u64::MAX),
            hot_bytes: Some(0),
            hot_time: Some(Duration::from_secs(90)),
            keep_free: Some(Amount::Percent(7)),
            similarity: Some(Indexing::Chunks),
            views: Some(vec![View::Pdf, View::Source]),
            methods: Some(vec![
                "sif".parse().unwrap(),
                "simhash:key=uniform,tolerance.ps=0.0005".parse().unwrap(),
            ]),
            groups: vec!["*.bundle".to_owned(), "/a \"b\"/".to_owned()],
            sync_only: Some(vec!["/docs".to_owned(), "photos/2024*/".to_owned()]),
            sync_not: vec!["*.iso".to_owned(), "!keep \"x\".iso".to_owned()],
            history: Some(Rules {
                none: true,
                hourly: 3,
                max: Amount::Bytes(5 << 30),
                snapshots: "hourly:24 yearly:3".parse().unwrap(),
                ..Rules::default()
            }),
            rules: vec![
                rule(&["*.sqlite", "a \"b\"\n\t\\*"], Some(Dedup::Off), None),
                rule(&["/é/"], Some(Dedup::Idle(Duration::from_secs(60))), Some(u64::MAX)),
            ],
        };
        for config in [Config::default(), full] {
            assert_eq!(Config::parse(&config.to_text()).unwrap(), config);
        }
        assert_eq!(Config::parse("cache_bytes = \"1KiB\"").unwrap().cache_bytes, Some(1024));
        assert_eq!(Config::parse("memory = \"256MiB\"").unwrap().memory_bytes, Some(256 << 20));
        assert_eq!(Config::parse("optimize = \"off\"").unwrap().optimize, Some(None));
        let error = Config::parse("optimize = \"auto\"").unwrap_err().to_string();
        assert!(error.contains("\"auto\": expected off or idle:TIME"), "{error}");
        assert!(Config::parse("memory = \"much\"").is_err());
        assert_eq!(Config::parse("hybrid_min = \"1MiB\"").unwrap().hybrid_min_bytes, Some(1 << 20));
        let error = Config::parse("hybrid_min = \"never\"").unwrap_err().to_string();
        assert_eq!(error, "hybrid_min \"never\": expected a size, like \"16MiB\", or \"off\", on line 1");
        assert_eq!(Config::parse("hot_bytes = \"2GiB\"").unwrap().hot_bytes, Some(2 << 30));
        let error = Config::parse("hot_bytes = \"much\"").unwrap_err().to_string();
        assert_eq!(error, "hot_bytes \"much\": expected a size, like \"1GiB\", or \"off\", on line 1");
        assert_eq!(Config::parse("similarity = \"off\"").unwrap().similarity, Some(Indexing::Off));
        let error = Config::parse("\nsimilarity = \"some\"").unwrap_err().to_string();
        assert_eq!(error, "similarity \"some\": expected full, chunks or off, on line 2");
        assert!(Config::parse("hot_time = \"1\"").is_err());
        assert_eq!(Config::parse("keep_free = \"2GiB\"").unwrap().keep_free, Some(Amount::Bytes(2 << 30)));
        let rules = Config::parse("[history]\nmax = \"25%\"").unwrap().history.unwrap();
        assert_eq!(rules, Rules { max: Amount::Percent(25), ..Rules::default() });
        for text in ["101%", "-1%", "%", "1.5%", "much"] {
            let error = Config::parse(&format!("[history]\nmax = \"{text}\"")).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("\"10%\", on line 2"), "{error}");
        }
    }

    #[test]
    fn schedules_of_snapshots() {
        let schedule = |text: &str| {
            Config::parse(&format!("[history]\nsnapshots = \"{text}\""))
                .map(|config| config.history.unwrap().snapshots)
        };
        assert!(schedule("").unwrap().is_empty() && schedule(" ").unwrap().is_empty());
        assert_eq!(schedule("weekly:4  hourly:24").unwrap().to_string(), "hourly:24 weekly:4");
        for bad in [
            "hourly",
            "hourly:",
            "hourly:0",
            "hourly:-1",
            "daily:7,weekly:4",
            "daily:7 daily:8",
            "minutely:5",
            "5",
        ] {
            let error = schedule(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("history snapshots {bad:?}: expected")), "{error}");
            assert!(error.ends_with("like \"hourly:24 daily:7 weekly:4\", on line 2"), "{error}");
        }
        assert!(Config::parse("[history]\nsnapshots = 24").is_err());
    }

    #[test]
    fn views() {
        let views = |text: &str| Config::parse(text).map(|config| config.views.unwrap_or_default());
        assert_eq!(views("views = \"auto\""), Ok(vec![View::Pdf, View::Archive, View::Gzip]));
        assert_eq!(views("views = \"all\""), Ok(View::ALL.to_vec()));
        assert_eq!(views("views = \"off\""), Ok(vec![]));
        assert_eq!(
            views("views = [\"word\"]").unwrap_err().to_string(),
            "views \"word\": expected auto, all, off or a list of text, html, source, postscript, pdf, archive, gzip, on line 1"
        );
        assert!(views("views = [\"raw\"]").is_err());
    }

    #[test]
    fn methods() {
        let methods = |text: &str| Config::parse(text).map(|config| config.methods.unwrap_or_default());
        assert_eq!(
            methods("methods = [\"sif\", \"chunk-graph\"]"),
            Ok(vec!["sif".parse().unwrap(), "chunk-graph".parse().unwrap()])
        );
        assert_eq!(methods("methods = []"), Ok(vec![]));
        assert_eq!(methods("methods = \"off\""), Ok(vec![]));
        let error = methods("\nmethods = [\"sif\", \"default\"]").unwrap_err().to_string();
        assert_eq!(
            error,
            "methods \"default\": expected a list of sif, winnow, chunk-graph, simhash, or off, on line 2"
        );
        assert!(methods("methods = \"sif\"").is_err());
        let error = methods("methods = [\"winnow:k=30,w=20,t=60\"]").unwrap_err().to_string();
        assert!(error.contains("t = w+k-1 = 49") && error.ends_with("on line 1"), "{error}");
        let error = methods("methods = [\"winnow\", \"winnow:k=30\"]").unwrap_err().to_string();
        assert!(error.contains("winnow is there twice"), "{error}");
    }

    #[test]
    fn the_examples_in_the_file_are_good_ones() {
        let text = Config::default().to_text();
        let settings = text.lines().map(|line| line.strip_prefix("# ").unwrap_or(line));
        let is_setting = |line: &&str| line.starts_with('[') || line.contains(" = ");
        let settings = settings.filter(is_setting).collect::<Vec<_>>().join("\n");
        let config = Config::parse(&settings).unwrap();
        assert_eq!((config.rules.len(), config.convert_rate), (4, Some(50 << 20)), "{settings}");
    }

    #[test]
    fn what_is_not_known_is_named() {
        let error = Config::parse("dedupe = \"off\"").unwrap_err().to_string();
        assert!(error.contains("dedupe") && error.ends_with("did you mean `dedup`?"), "{error}");
        for (text, near) in [
            ("hybridmin = 1", Some("hybrid_min")),
            ("[history]\nhourley = 3", Some("hourly")),
            ("[[policy]]\nmatches = \"a\"", Some("match")),
            ("zzz = 1", None),
            ("dedup = [1]", None),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            let said = error.split("did you mean `").nth(1).and_then(|rest| rest.split('`').next());
            assert_eq!(said, near, "{error}");
        }
        assert!(Config::parse("dedup = \"sometimes\"").is_err());
        assert!(Config::parse("dedup = ").is_err());
        for (text, parts) in [
            ("gc = \"auto\"\n\nmin_size = \"big\"", ["\"big\"", "like 16KiB", "line 3"]),
            ("convert_rate = \"50MiB\"", ["\"50MiB\"", "like 50MiB/s", "line 1"]),
            ("convert_rate = \"0/s\"", ["\"0/s\"", "at least 64KiB/s", "line 1"]),
            ("[[policy]]\nmatch = \"[a\"\ndedup = \"off\"", ["\"[a\"", ".gitignore", "line 2"]),
            ("[[policy]]\nmatch = [\"a\", \"#b\"]\ndedup = \"off\"", ["\"#b\"", "matches nothing", "line 2"]),
            ("\n[[policy]]\nmatch = []\ndedup = \"off\"", ["[[policy]]", "at least one glob", "line 3"]),
            (
                "\n[[policy]]\nmatch = \"a\"",
                ["[[policy]]", "dedup or min_size or history or similarity", "line 2"],
            ),
            ("[[policy]]\nmatch = \"a\"\ndedup = \"no\"", ["\"no\"", "on-close", "line 3"]),
            ("[[policy]]\nmatch = \"a\"\nsimilarity = \"on\"", ["\"on\"", "full, chunks or off", "line 3"]),
            ("[[policy]]\nmatch = \"a\"\nmin_size = -1", ["-1", "min_size", "line 3"]),
            ("[[policy]]\nmatch = 3\ndedup = \"off\"", ["match = 3", "a list of globs", "line 2"]),
            ("[[policy]]\ndedup = \"off\"", ["match", "missing", "line 1"]),
            ("[[policy]]\nmatch = \"a\"\ncolour = 1", ["colour", "unknown", "line 3"]),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
