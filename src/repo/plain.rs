//! A rule at the end of `config.toml` that keeps files plain, and overrides earlier rules.

use super::error::RepoError;
use super::layout::{self, CONFIG};
use super::{Repo, init};
use crate::config::{Config, rule_text};
use crate::tree::{Dedup, Rule};

impl Repo {
    /// Keeps everything that `rule` matches plain from now on, durably. Returns whether the rule was new.
    pub fn stay_plain(&self, rule: Rule) -> Result<bool, RepoError> {
        let (path, shown) = (self.state_file(CONFIG), self.layout.file(CONFIG));
        let form = |e: &dyn std::fmt::Display| RepoError::form(&shown, e.to_string());
        let text = layout::read_text(&path)?.unwrap_or_else(|| Config::default().to_text());
        let config = Config::parse(&text).map_err(|e| form(&e))?;
        // A later rule may contradict it for some files.
        let last = config.rules.iter().rev().take_while(|rule| matches!(rule.dedup, None | Some(Dedup::Off)));
        let mut last = last.filter(|rule| rule.dedup.is_some());
        if last.any(|one| one.globs == rule.globs) {
            return Ok(false);
        }
        let break_before = if text.is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
        let break_line = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let text = format!(
            "{text}{break_line}{break_before}# These files were exported: they stay plain as long as this is here.\n{}",
            rule_text(&rule)
        );
        // Rules in one inline list cannot be extended like this.
        let added = Config::parse(&text).map_err(|e| form(&e))?;
        if added.rules.last() != Some(&rule) {
            return Err(form(&"no rule can be added at its end"));
        }
        self.overlay.tree.policies().with_rule(rule.clone()).map_err(|e| form(&e))?;
        init::write_durable(&path, text.as_bytes(), 0o600)?;
        self.overlay.tree.add_rule(rule).map_err(|e| form(&e))?;
        Ok(true)
    }
}
