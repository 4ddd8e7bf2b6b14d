//! User settings: the policy file `config.toml`, and the syntax of sizes, times and policies.
//! `docs/policies.md` describes all of it.
//!
//! Pure: text in, values out. An invalid text is an error that names it and shows a valid form; nothing is guessed.

use crate::contents::Indexing;
use crate::convert::Amount;
use crate::history::Rules;
use crate::similarity::methods::Chosen;
use crate::tree::{BadGlob, Dedup, Policies, Policy, Rule};
use crate::view::View;
use std::collections::BTreeMap;
use std::time::Duration;

mod error;
mod form;
mod pattern;
mod text;
mod values;

pub use error::ConfigError;
pub use pattern::{BadPattern, PathPattern};
pub use text::{dedup_text, rule_text, similarity_text};
pub use values::{parse_dedup, parse_duration, parse_rate, parse_size, views_auto};

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
    /// Whether owners are synced if this is possible.
    pub owner: Option<bool>,
    /// The same for ACLs.
    pub acl: Option<bool>,
    /// Names of users and groups on the other side of a sync, and their names here.
    pub owners: BTreeMap<String, String>,
    /// Published methods for similar files whose indexes are maintained, each once.
    pub methods: Option<Vec<Chosen>>,
}

impl Config {
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
            owner: Some(false),
            acl: Some(true),
            owners: BTreeMap::from([("#1000".to_owned(), "al \"b\"".to_owned())]),
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
    fn owners_in_a_sync() {
        let sync = |text: &str| Config::parse(&format!("[sync]\n{text}"));
        let config = sync("owner = \"off\"\nacl = \"auto\"\nowners = { \"a b\" = \"#0\" }").unwrap();
        assert_eq!((config.owner, config.acl, config.owners.len()), (Some(false), Some(true), 1));
        for (text, expected) in [
            ("owner = \"on\"", "owner \"on\" in [sync]: expected auto or off, on line 2"),
            ("owners = { \"#-1\" = \"a\" }", "\"#-1\""),
            ("owners = { a = \"#4294967295\" }", "#4294967295"),
            ("owners = { a = \"b:c\" }", "b:c"),
            ("owners = { a = \"x\", b = \"x\" }", "both \"a\" and \"b\" map to \"x\""),
        ] {
            let error = sync(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
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
