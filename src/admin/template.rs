//! Templates: list, add, learn, remove. Only their files change.

use super::text::{self, shown};
use super::{AdminError, Progress, Report};
use crate::contents::OverlayError;
use crate::overlay::templates::{
    LEARNED, TEMPLATE_BYTES_MIN, TEMPLATE_SUFFIX, TEMPLATES_BYTES_MAX, TEMPLATES_DIR, Template,
    is_template_name,
};
use crate::repo::Repo;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A request about templates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum TemplateRequest {
    /// List them.
    List,
    /// Add a file, or a part of it.
    Add {
        /// Its name.
        name: String,
        /// The file: below the root, or with `outside` an absolute path.
        #[serde(with = "text")]
        path: PathBuf,
        /// Whether the file is outside the overlay.
        outside: bool,
        /// Byte range, without its end; by default the whole file.
        range: Option<(u64, u64)>,
    },
    /// Find passages that many contents share, and save them as templates.
    Learn {
        /// Smallest share of all contents with the passage, 0 to 1.
        share: f64,
        /// Smallest number of contents with the passage.
        files_min: u64,
        /// Only show them.
        dry_run: bool,
    },
    /// Remove one.
    Remove {
        /// Its name.
        name: String,
    },
}

/// Templates: all of them, or those added, learned or removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TemplateReport {
    /// By name; learned ones by the number of their files, the most first.
    pub templates: Vec<TemplateRow>,
}

/// One template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TemplateRow {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Approximate number of files with it, identical ones counted once; only for newly learned ones.
    pub files: Option<u64>,
    /// `marked` by a user, or `learned`.
    pub origin: String,
    /// Its beginning.
    pub begins: String,
}

const BEGINNING_BYTES: usize = 60;

impl TemplateRow {
    fn of(template: &Template, files: Option<u64>) -> TemplateRow {
        let beginning = &template.bytes[..template.bytes.len().min(BEGINNING_BYTES)];
        TemplateRow {
            name: template.name.clone(),
            bytes: template.bytes.len() as u64,
            files,
            origin: if template.is_learned() { "learned" } else { "marked" }.to_owned(),
            begins: String::from_utf8_lossy(beginning).into_owned(),
        }
    }
}

pub(super) fn template(
    repo: &Repo,
    request: &TemplateRequest,
    report: Report<'_>,
) -> Result<TemplateReport, AdminError> {
    let changes = !matches!(request, TemplateRequest::List | TemplateRequest::Learn { dry_run: true, .. });
    if changes && repo.read_only() {
        return Err(OverlayError::ReadOnly.into());
    }
    let templates = match request {
        TemplateRequest::List => {
            repo.overlay().templates()?.iter().map(|template| TemplateRow::of(template, None)).collect()
        }
        TemplateRequest::Add { name, path, outside, range } => {
            check_name(name)?;
            let bytes = part(repo, path, *outside, *range)?;
            let template = Template { name: name.clone(), bytes };
            add(repo, &template)?;
            vec![TemplateRow::of(&template, None)]
        }
        TemplateRequest::Learn { share, files_min, dry_run } => {
            learn(repo, *share, *files_min, *dry_run, report)?
        }
        TemplateRequest::Remove { name } => vec![remove(repo, name)?],
    };
    Ok(TemplateReport { templates })
}

fn check_name(name: &str) -> Result<(), AdminError> {
    if !is_template_name(name) || name.starts_with(LEARNED) {
        return Err(AdminError::refused(
            format!("{name:?} is no name for a template"),
            format!(
                "use up to 64 letters, digits, `-`, `_` and `.`, beginning with a letter, digit or `_`, and not with \
                 `{LEARNED}`"
            ),
        ));
    }
    Ok(())
}

/// Returns the bytes of a future template.
fn part(repo: &Repo, path: &Path, outside: bool, range: Option<(u64, u64)>) -> Result<Vec<u8>, AdminError> {
    let wrong = |found: String| {
        let hint = format!(
            "mark a passage of {TEMPLATE_BYTES_MIN} to {TEMPLATES_BYTES_MAX} bytes, with --range FROM..TO if it is a \
             part of the file"
        );
        AdminError::refused(format!("{}: {found}", shown(path)), hint)
    };
    let size = repo.overlay().size_of(path, outside)?;
    let (start, end) = range.unwrap_or((0, size));
    if start > end || end > size {
        return Err(wrong(format!("{start}..{end} is not within its {size} bytes")));
    }
    let len = end - start;
    if !(TEMPLATE_BYTES_MIN..=TEMPLATES_BYTES_MAX).contains(&len) {
        return Err(wrong(format!("{len} bytes are {} for a template", too(len))));
    }
    Ok(repo.overlay().read_part(path, outside, start..end)?)
}

fn too(len: u64) -> &'static str {
    if len < TEMPLATE_BYTES_MIN { "too few" } else { "too many" }
}

/// Writes its file; replaces one of the same name.
fn add(repo: &Repo, template: &Template) -> Result<(), AdminError> {
    let others = repo.overlay().templates()?;
    let others = others.iter().filter(|other| other.name != template.name);
    let all = others.map(|other| other.bytes.len() as u64).sum::<u64>() + template.bytes.len() as u64;
    if all > TEMPLATES_BYTES_MAX {
        return Err(AdminError::refused(
            format!("{}: all templates would be {all} bytes long", template.name),
            format!("{TEMPLATES_BYTES_MAX} are allowed: remove one with `dedupctl template remove NAME`"),
        ));
    }
    let dir = repo.state_file(TEMPLATES_DIR);
    if let Err(e) = std::fs::create_dir(&dir)
        && e.kind() != ErrorKind::AlreadyExists
    {
        return Err(OverlayError::io("make the directory", dir, e).into());
    }
    Ok(repo.write_state_file(&file(&template.name), &template.bytes)?)
}

fn file(name: &str) -> String {
    format!("{TEMPLATES_DIR}/{name}{TEMPLATE_SUFFIX}")
}

/// Removes its file, even if it is not usable as a template.
fn remove(repo: &Repo, name: &str) -> Result<TemplateRow, AdminError> {
    let missing = || {
        AdminError::refused(
            format!("{name:?}: there is no template of that name"),
            "`dedupctl template list` shows the templates".to_owned(),
        )
    };
    if !is_template_name(name) {
        return Err(missing());
    }
    let path = repo.state_file(file(name));
    let size = path.metadata().map(|meta| meta.len());
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(missing()),
        Err(e) => return Err(OverlayError::io("remove the template", path, e).into()),
    }
    let removed = TemplateRow::of(&Template { name: name.to_owned(), bytes: Vec::new() }, None);
    Ok(TemplateRow { bytes: size.unwrap_or(0), ..removed })
}

fn learn(
    repo: &Repo,
    share: f64,
    files_min: u64,
    dry_run: bool,
    report: Report<'_>,
) -> Result<Vec<TemplateRow>, AdminError> {
    let contents = repo.overlay().similarity().stats().contents;
    let contents_min = ((contents as f64 * share).ceil() as u64).max(files_min).max(2);
    let mut waited_for = true;
    let learned = repo.overlay().learn(contents_min, &mut |done, all| {
        waited_for = report(Progress::files("comparing passages", done, all));
        waited_for
    })?;
    if !waited_for {
        return Err(AdminError::Interrupted);
    }
    let mut rows = Vec::new();
    let mut all: u64 = repo.overlay().templates()?.iter().map(|template| template.bytes.len() as u64).sum();
    for passage in learned {
        all += passage.bytes.len() as u64;
        if all > TEMPLATES_BYTES_MAX {
            tracing::warn!(
                "templates have reached {TEMPLATES_BYTES_MAX} bytes; the less frequent are left out"
            );
            break;
        }
        let hash = crate::id::ChunkId::of(&passage.bytes).to_string();
        let name = format!("{LEARNED}{}", &hash[..12]);
        let template = Template { name, bytes: passage.bytes };
        if !dry_run {
            add(repo, &template)?;
        }
        rows.push(TemplateRow::of(&template, Some(passage.contents)));
    }
    Ok(rows)
}
