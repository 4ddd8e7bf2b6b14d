//! Output of settings: the text of a `config.toml`.

use super::Config;
use crate::contents::Indexing;
use crate::convert::Amount;
use crate::history::Rules;
use crate::similarity::methods::Chosen;
use crate::tree::{Dedup, Rule};
use crate::view::View;
use std::time::Duration;

impl Config {
    /// Returns the text of a `config.toml` with these settings; settings with their default value are comments.
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
        let list = |name: &str, value: Option<&Vec<String>>, example: &str| match value {
            Some(value) => format!("{name} = {}", toml::Value::from(value.clone())),
            None => format!("# {name} = {example}"),
        };
        let some = |values: &Vec<String>| !values.is_empty();
        let is_set = some(&self.groups) || some(&self.sync_not) || self.sync_only.is_some();
        let is_set = is_set || self.owner.or(self.acl).is_some() || !self.owners.is_empty();
        let sync = if is_set { "[sync]" } else { "# [sync]" };
        let groups = Some(&self.groups).filter(|groups| some(groups));
        let groups = list("groups", groups, "[\"*.photoslibrary\", \"/mail/index\"]");
        let only = list("only", self.sync_only.as_ref(), "[\"/docs\", \"/photos/2024*\"]");
        let not = Some(&self.sync_not).filter(|not| some(not));
        let not = list("not", not, "[\"/docs/huge\", \"*.iso\"]");
        let attribute = |name: &str, value: Option<bool>| match value {
            None => format!("# {name} = \"auto\""),
            Some(on) => format!("{name} = \"{}\"", if on { "auto" } else { "off" }),
        };
        let (owner, acl) = (attribute("owner", self.owner), attribute("acl", self.acl));
        let rows = self.owners.iter().map(|(there, here)| (there.clone(), toml::Value::from(here.clone())));
        let owners = match self.owners.is_empty() {
            true => "# owners = { \"alice\" = \"al\", \"#1000\" = \"bob\" }".to_owned(),
            false => format!("owners = {}", toml::Value::Table(rows.collect())),
        };
        let history = history_text(self.history.as_ref());
        let rules: String = match self.rules.is_empty() {
            true => EXAMPLE_RULES.to_owned(),
            false => self.rules.iter().map(rule_text).collect(),
        };
        format!(
            "# Settings of this dedupfs store. Programs read them when they open it; their flags override settings.\n\
             \n\
             # When a file moves into the store: \"on-close\" (when the last program closes it),\n\
             # \"idle:10m\" (when no program had it open for that long), or \"off\" (never: files stay as they\n\
             # are; `dedupctl similar` and similar commands still find them).\n\
             {dedup_mark}dedup = \"{}\"\n\
             \n\
             # Files smaller than this stay as they are, and are only indexed. Without this setting, files stay that\n\
             # would take no less room in the store.\n\
             {min_size}\n\
             \n\
             # How many bytes a second conversions may read while no command waits for them: `dedupctl settle`,\n\
             # `scan` and `unmount` run at full speed. Without this setting there is no limit.\n\
             {rate}\n\
             \n\
             # Total memory for caches and write buffers. More makes a large store faster. docs/memory.md lists\n\
             # the memory that is not included.\n\
             {memory}\n\
             \n\
             # Memory for decoded data. Without this setting it is a quarter of `memory`.\n\
             {cache}\n\
             \n\
             # When the daemon collects garbage: \"auto\" (when a quarter of the data is no longer needed), or \"off\"\n\
             # (never; run `dedupctl gc`).\n\
             {gc}\n\
             \n\
             # When the daemon groups similar chunks, so that they take less room: \"off\" (never; run `dedupctl\n\
             # optimize`), or \"idle:1h\" (when nothing was stored for that long, and much was stored since the last time).\n\
             {optimize}\n\
             \n\
             # How much of a file the index for `dedupctl similar` and `groups` has: \"full\"; \"chunks\" (ids of chunks: finds\n\
             # files that share whole chunks, takes a seventh of the space for text); or \"off\" (finds only identical files).\n\
             # `dedupctl scan` applies \"off\" to existing files; see docs/policies.md.\n\
             {similarity_mark}similarity = \"{similarity}\"\n\
             \n\
             # Formats whose extracted content is also indexed, so that `dedupctl similar` finds documents with the same\n\
             # text: \"auto\" (compressed formats: archive, gzip, pdf), \"all\", \"off\", or a list. `dedupctl scan` adds\n\
             # existing files.\n\
             {views}\n\
             \n\
             # Methods of published papers whose indexes are maintained in addition to the default index, for `dedupctl\n\
             # similar --method` and `groups --method`: \"sif\", \"winnow\", \"chunk-graph\", \"simhash\", if needed with\n\
             # parameters, like \"winnow:k=30,w=20\". `dedupctl scan` adds existing files.\n\
             {methods}\n\
             \n\
             # A write to a file in the store first makes the whole file plain. Files of at least this size become hybrid\n\
             # instead: only the changed bytes are outside the store until the file is closed. \"off\": no file does.\n\
             {hybrid_min}\n\
             \n\
             # Hot files are files of 1 MiB or more in the store that programs often open to read. They are kept plain too, so\n\
             # that the kernel reads them directly (in mounts of root). This is their maximum space on disk; \"off\": none.\n\
             {hot_bytes}\n\
             \n\
             # A hot file goes back into the store when no program has had it open for this long.\n\
             {hot_time}\n\
             \n\
             # Space of the filesystem that conversions leave free for programs: a size, or a share like \"5%\". Without this\n\
             # setting it is the smaller of 5% and 1 GiB. A file that does not fit stays plain until there is space.\n\
             {keep_free}\n\
             \n\
             # Rules for files with certain names: `match` is one pattern or several, as in a .gitignore in the root of\n\
             # the overlay. If several rules match a file, the last one counts, for each setting separately.\n\
             {rules}\
             \n\
             # Versions of files are kept in addition to their present content: all from the time `all`, then the last one\n\
             # of each hour, day, week and month, for these numbers of hours, days, weeks and months. With \"none\" for\n\
             # `keep` there are no versions; a rule with \"off\" for `history` excludes files. `max` is the maximum space of\n\
             # all versions, a share of the filesystem or a size: the oldest and least valuable versions are removed first.\n\
             # Snapshots with a name stay. `snapshots` lets the daemon take snapshots: here every hour. It keeps the last\n\
             # one of each of 24 hours, 7 days and 4 weeks. Without this setting the daemon takes none.\n\
             {history}\
             \n\
             {sync}\n\
             # Directories that `dedupctl sync` reads at one moment and changes as a whole, by name or, with a slash, by path.\n\
             # If both sides changed one, both versions of all of it are kept. Git's directories and SQLite databases need\n\
             # no setting.\n\
             {groups}\n\
             \n\
             # The part of the tree that this device syncs: `only` these paths from the root, with all below them (a glob\n\
             # between two slashes matches one name), and `not` these (lines as in a .gitignore). Other devices keep the\n\
             # rest. Without these settings everything is synced.\n\
             {only}\n\
             {not}\n\
             \n\
             # Whether a sync by root carries owners, and ACLs: \"auto\", or \"off\". `owners` has names of users and groups on\n\
             # the other side, and their names here; \"#1000\" stands for an id without a name.\n\
             {owner}\n\
             {acl}\n\
             {owners}\n",
            dedup_text(dedup)
        )
    }
}

fn history_text(rules: Option<&Rules>) -> String {
    let default = Rules::default();
    let (mark, rules) = rules.map_or(("# ", &default), |rules| ("", rules));
    let all = rules.all.as_secs();
    let Rules { none, hourly, daily, weekly, monthly, max, snapshots, .. } = rules;
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
        + &match snapshots.is_empty() {
            true => "# snapshots = \"hourly:24 daily:7 weekly:4\"\n".to_owned(),
            false => format!("snapshots = \"{snapshots}\"\n"),
        }
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

/// Returns a rule in the syntax of `config.toml`. It can be appended to the file after all other rules.
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

/// Writes an amount of indexing in the syntax of `config.toml`.
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
