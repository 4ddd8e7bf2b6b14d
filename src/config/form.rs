//! The form of a `config.toml`. An error of a value has its line.

use super::Config;
use super::error::ConfigError;
use super::pattern::PathPattern;
use super::values::{
    parse_dedup, parse_duration, parse_optimize, parse_rate, parse_similarity, parse_size, parse_snapshots,
    views_auto,
};
use crate::convert::Amount;
use crate::history::Rules;
use crate::similarity::methods::{BadMethod, Chosen};
use crate::tree::Rule;
use crate::view::View;
use globset::GlobBuilder;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// Minimum similarity of two names for one to be a typing error of the other. The same as in clap.
const LIKENESS_MIN: f64 = 0.7;

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
    owner: Option<Spanned<String>>,
    acl: Option<Spanned<String>>,
    owners: Option<Spanned<BTreeMap<String, String>>>,
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
            owner: source.optional(sync.owner, |text| parse_attribute("owner", text))?,
            acl: source.optional(sync.acl, |text| parse_attribute("acl", text))?,
            owners: source.optional(sync.owners, parse_owners)?.unwrap_or_default(),
            rules: rules.collect::<Result<_, _>>()?,
        })
    }
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
        let pattern = |pattern: String| match PathPattern::of(&pattern) {
            Ok(_) => Ok(pattern),
            Err(e) => Err(ConfigError::Only(e)),
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

fn parse_attribute(setting: &'static str, text: String) -> Result<bool, ConfigError> {
    match text.as_str() {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err(ConfigError::Attribute(setting, text)),
    }
}

/// Checks the names of accounts on the other side, and their names here.
fn parse_owners(owners: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ConfigError> {
    let is_account = |name: &str| match name.strip_prefix('#') {
        Some(id) => id.parse::<u32>().is_ok_and(|number| number != u32::MAX && number.to_string() == id),
        None => !name.is_empty() && !name.contains([':', ',']) && !name.contains(char::is_control),
    };
    let mut theirs: BTreeMap<&String, &String> = BTreeMap::new();
    for (there, here) in &owners {
        if let Some(bad) = [there, here].into_iter().find(|name| !is_account(name)) {
            return Err(ConfigError::Account(bad.clone()));
        }
        if let Some(other) = theirs.insert(here, there) {
            return Err(ConfigError::AccountTwice(other.clone(), there.clone(), here.clone()));
        }
    }
    Ok(owners)
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
