//! Settings as they are written: the text of a `config.toml`.

use super::Config;
use crate::history::Rules;
use crate::overlay::{Amount, Dedup, Indexing, Rule};
use crate::similarity::methods::Chosen;
use crate::view::View;
use std::time::Duration;

impl Config {
    /// The text of a `config.toml` with these settings; those left at their defaults are comments.
    pub fn to_text(&self) -> String {
        let (dedup_mark, dedup) = match self.dedup {
            Some(dedup) => ("", dedup),
            None => ("# ", Dedup::OnClose),
        };
        let memory = match self.memory_bytes {
            Some(bytes) => format!("memory = {bytes}"),
            None => "# memory = \"256MiB\"".to_owned(),
        };
        let cache = match self.cache_bytes {
            Some(bytes) => format!("cache_bytes = {bytes}"),
            None => "# cache_bytes = \"64MiB\"".to_owned(),
        };
        let gc = match self.gc {
            None => "# gc = \"auto\"",
            Some(true) => "gc = \"auto\"",
            Some(false) => "gc = \"off\"",
        };
        let optimize = match self.optimize {
            None => "# optimize = \"idle:1h\"".to_owned(),
            Some(None) => "optimize = \"off\"".to_owned(),
            Some(Some(rest)) => format!("optimize = \"{}\"", dedup_text(Dedup::Idle(rest))),
        };
        let min_size = match self.min_bytes {
            // As text: TOML has no larger numbers than i64.
            Some(bytes) => format!("min_size = \"{bytes}\""),
            None => "# min_size = \"64KiB\"".to_owned(),
        };
        let rate = match self.convert_rate {
            Some(bytes) => format!("convert_rate = \"{bytes}/s\""),
            None => "# convert_rate = \"50MiB/s\"".to_owned(),
        };
        let hybrid_min = match self.hybrid_min_bytes {
            None => "# hybrid_min = \"16MiB\"".to_owned(),
            Some(u64::MAX) => "hybrid_min = \"off\"".to_owned(),
            Some(bytes) => format!("hybrid_min = \"{bytes}\""),
        };
        let hot_bytes = match self.hot_bytes {
            None => "# hot_bytes = \"1GiB\"".to_owned(),
            Some(0) => "hot_bytes = \"off\"".to_owned(),
            Some(bytes) => format!("hot_bytes = \"{bytes}\""),
        };
        let hot_time = match self.hot_time {
            None => "# hot_time = \"1h\"".to_owned(),
            Some(time) => format!("hot_time = \"{}\"", duration_text(time)),
        };
        let keep_free = match self.keep_free {
            None => "# keep_free = \"5%\"".to_owned(),
            Some(amount) => format!("keep_free = \"{}\"", amount_text(amount)),
        };
        let (similarity_mark, similarity) = match self.similarity {
            None => ("# ", Indexing::Full),
            Some(similarity) => ("", similarity),
        };
        let similarity = similarity_text(similarity);
        let views = match &self.views {
            None => "# views = \"auto\"".to_owned(),
            Some(views) => format!("views = {}", views_text(views)),
        };
        let methods = match &self.methods {
            None => "# methods = [\"sif\"]".to_owned(),
            Some(methods) => {
                let methods: Vec<String> = methods.iter().map(Chosen::to_string).collect();
                format!("methods = {}", list_text(methods.iter().map(String::as_str)))
            }
        };
        let groups = match self.groups.is_empty() {
            true => "# [sync]\n# groups = [\"*.photoslibrary\", \"/mail/index\"]".to_owned(),
            false => format!("[sync]\ngroups = {}", toml::Value::from(self.groups.clone())),
        };
        let history = history_text(self.history.as_ref());
        let rules: String = match self.rules.is_empty() {
            true => EXAMPLE_RULES.to_owned(),
            false => self.rules.iter().map(rule_text).collect(),
        };
        format!(
            "# Settings of this dedupfs store. They are read when it is opened; flags of the programs win.\n\
             \n\
             # When a file moves into the store: \"on-close\" (when the last program closes it),\n\
             # \"idle:10m\" (when nobody had it open for that long), or \"off\" (never: files stay as they\n\
             # are, and only `dedupctl similar` and its kind know them).\n\
             {dedup_mark}dedup = \"{}\"\n\
             \n\
             # Files smaller than this stay as they are, and are only indexed. Without it those do that would take\n\
             # no less room in the store.\n\
             {min_size}\n\
             \n\
             # How many bytes a second may be read to move files into the store while nobody waits for it.\n\
             # `dedupctl settle`, `scan` and `unmount` are not slowed. Without it there is no limit.\n\
             {rate}\n\
             \n\
             # Memory for caches and for what is gathered before it is written, in all. More makes a large\n\
             # store faster; what is beyond it is said in docs/architecture.md.\n\
             {memory}\n\
             \n\
             # Memory for decoded data: a quarter of that unless it is set here.\n\
             {cache}\n\
             \n\
             # When garbage is collected: \"auto\" (when a quarter of the data is no longer needed), or \"off\"\n\
             # (only by `dedupctl gc`).\n\
             {gc}\n\
             \n\
             # When chunks that resemble each other are stored together, so that they take less room: \"off\" (only by\n\
             # `dedupctl optimize`), or \"idle:1h\" (when nothing was stored for that long, and much came since).\n\
             {optimize}\n\
             \n\
             # How much the index for `dedupctl similar` and `groups` has of files: \"full\"; \"chunks\" (ids of chunks: finds\n\
             # files that share whole chunks, takes a seventh of the space for text); or \"off\" (only files that are the same to\n\
             # the byte are found). `dedupctl scan` applies \"off\" to files that were there before; see docs/policies.md.\n\
             {similarity_mark}similarity = \"{similarity}\"\n\
             \n\
             # What files say apart from their format is indexed too, so that `dedupctl similar` finds documents\n\
             # with the same text: \"auto\" (what compression hides: archive, gzip, pdf), \"all\", \"off\", or a\n\
             # list. `dedupctl scan` takes in what was there before.\n\
             {views}\n\
             \n\
             # Methods of published papers whose indexes are kept beside the default, for `dedupctl similar --method` and\n\
             # `groups --method`: any of \"sif\", \"winnow\", \"chunk-graph\", \"simhash\", with parameters if not the\n\
             # default ones: \"winnow:k=30,w=20\". `dedupctl scan` takes in what was there before.\n\
             {methods}\n\
             \n\
             # A file in the store that is written to gets its content back first, unless it has at least this\n\
             # size: then only what changes is kept beside the store until it is closed. \"off\": always.\n\
             {hybrid_min}\n\
             \n\
             # A file in the store of 1 MiB or more that is opened to be read again and again is kept as a plain file too, so that\n\
             # the kernel reads it by itself (in mounts of root). So many bytes on disk such files may take together; \"off\": none.\n\
             {hot_bytes}\n\
             \n\
             # It goes back into the store when nobody has had it open for so long.\n\
             {hot_time}\n\
             \n\
             # Conversions leave so much of the filesystem free for programs: a size, or a share like \"5%\". Without it the\n\
             # smaller of 5% and 1 GiB. A file that does not fit stays plain until there is space.\n\
             {keep_free}\n\
             \n\
             # Rules for files of certain names: `match` is one pattern or several, as in .gitignore, from the root of\n\
             # the overlay on. Of the rules that match a file the last counts, for each setting by itself.\n\
             {rules}\
             \n\
             # Versions of files are kept beside their present content: all that were there within `all`, then what was\n\
             # there at the end of each of so many hours, days, weeks and months. With \"none\" for `keep` there are no\n\
             # versions; a rule with \"off\" for `history` leaves files out. `max` is how much of the filesystem all that\n\
             # may take, a share or a size: the oldest and least valuable versions go first. Snapshots with a name stay.\n\
             {history}\
             \n\
             # Directories that `dedupctl sync` reads at one moment, changes as a whole, and keeps twice as a whole where both sides\n\
             # changed them: by name or, with a slash, by path. Those of git and SQLite databases are known without this.\n\
             {groups}\n",
            dedup_text(dedup)
        )
    }
}

fn history_text(rules: Option<&Rules>) -> String {
    let default = Rules::default();
    let (mark, rules) = rules.map_or(("# ", &default), |rules| ("", rules));
    let all = rules.all.as_secs();
    let Rules { none, hourly, daily, weekly, monthly, max, .. } = rules;
    let keep = if *none { "none" } else { "rules" };
    [
        "[history]".to_owned(),
        format!("keep = \"{keep}\""),
        if all.is_multiple_of(3600) {
            format!("all = \"{}h\"", all / 3600)
        } else {
            format!("all = \"{all}s\"")
        },
        format!("hourly = {hourly}"),
        format!("daily = {daily}"),
        format!("weekly = {weekly}"),
        format!("monthly = {monthly}"),
        format!("max = \"{}\"", amount_text(*max)),
    ]
    .map(|line| format!("{mark}{line}\n"))
    .concat()
}

const EXAMPLE_RULES: &str = "\
    # [[policy]]\n\
    # match = [\"*.sqlite\", \"*.sqlite-*\", \"*.db-wal\"]\n\
    # dedup = \"off\"\n\
    #\n\
    # [[policy]]\n\
    # match = \"target/\"\n\
    # dedup = \"idle:10m\"\n\
    # history = \"off\"\n\
    #\n\
    # [[policy]]\n\
    # match = \"*.iso\"\n\
    # min_size = \"1MiB\"\n\
    #\n\
    # [[policy]]\n\
    # match = [\"*.mp4\", \"*.qcow2\"]\n\
    # similarity = \"chunks\"\n";

/// A rule as it stands in a `config.toml`. One can be put behind all others at the end of the file.
pub fn rule_text(rule: &Rule) -> String {
    let globs: toml::Value = rule.globs.iter().map(String::as_str).collect::<Vec<_>>().into();
    let dedup = rule.dedup.map(|dedup| format!("dedup = \"{}\"\n", dedup_text(dedup)));
    let min_size = rule.min_bytes.map(|bytes| format!("min_size = \"{bytes}\"\n"));
    let history =
        rule.keep_history.map(|keep| format!("history = \"{}\"\n", if keep { "on" } else { "off" }));
    let similarity =
        rule.similarity.map(|similarity| format!("similarity = \"{}\"\n", similarity_text(similarity)));
    let settings = [dedup, min_size, history, similarity].map(Option::unwrap_or_default).concat();
    format!("[[policy]]\nmatch = {globs}\n{settings}\n")
}

/// Writes how much the similarity index has of files, as it stands in a `config.toml`.
pub fn similarity_text(similarity: Indexing) -> &'static str {
    match similarity {
        Indexing::Full => "full",
        Indexing::Chunks => "chunks",
        Indexing::Off => "off",
    }
}

/// Writes a policy as [`super::parse_dedup`] reads it.
pub fn dedup_text(dedup: Dedup) -> String {
    let Dedup::Idle(time) = dedup else {
        return if dedup == Dedup::Off { "off" } else { "on-close" }.to_owned();
    };
    format!("idle:{}", duration_text(time))
}

fn amount_text(amount: Amount) -> String {
    match amount {
        Amount::Percent(percent) => format!("{percent}%"),
        Amount::Bytes(bytes) => bytes.to_string(),
    }
}

/// Writes a duration in whole seconds as [`super::parse_duration`] reads it.
fn duration_text(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, 'd'), (3600, 'h'), (60, 'm')];
    let unit = units.iter().find(|(length, _)| seconds > 0 && seconds.is_multiple_of(*length));
    match unit {
        Some((length, letter)) => format!("{}{letter}", seconds / length),
        None => format!("{seconds}s"),
    }
}

fn views_text(views: &[View]) -> String {
    list_text(views.iter().map(|view| view.name()))
}

fn list_text<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.map(|name| format!("\"{name}\"")).collect();
    if names.is_empty() { "\"off\"".to_owned() } else { format!("[{}]", names.join(", ")) }
}
