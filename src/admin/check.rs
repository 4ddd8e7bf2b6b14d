use super::text::shown;
use super::{AdminError, Progress, Report};
use crate::overlay::Finding;
use crate::repo::Repo;
use crate::store::{Damage, DamageKind};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::Path;

/// What verification found. It changed nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Frames of packs checked.
    pub checked: u64,
    /// Stubs checked.
    pub stubs: u64,
    /// What is wrong.
    pub damaged: Vec<Damaged>,
    /// Damage of which a whole copy was stored later: nothing is lost.
    pub healed: Vec<Damaged>,
    /// Findings put right.
    pub repaired: u64,
    /// Whether chunks were decoded and hashed too.
    pub deep: bool,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    /// What kind of thing: `pack`, `pack-header`, `frame`, `footer`, `index`, `chunk`, `recipe`, `stub`, `file`.
    pub kind: String,
    /// Which one.
    pub object: String,
    /// The file whose content it is part of; none if no file needs it.
    pub path: Option<String>,
    /// What was found.
    pub reason: String,
}

/// Verifies the packs, then looks which files below `path` the damage touches.
pub(super) fn check(
    repo: &Repo,
    path: &Path,
    deep: bool,
    report: Report<'_>,
) -> Result<CheckReport, AdminError> {
    let store = repo.overlay().store();
    let mut damage = Vec::new();
    let checked = store.verify(
        deep,
        &mut |done, total| {
            report(Progress::bytes("checking packs", done, total));
        },
        &mut |found| damage.push(found),
    )?;
    let lost: HashSet<_> =
        damage.iter().filter(|found| is_loss(found.kind)).filter_map(|found| found.chunk).collect();
    let mut files = Vec::new();
    let stubs = repo.overlay().check_stubs(
        path,
        &lost,
        &mut |stubs| {
            report(Progress::files("checking files", stubs, 0));
        },
        &mut |found| files.push(damaged_file(found)),
    )?;
    let named: HashSet<String> = files.iter().map(|file| file.object.clone()).collect();
    let mut done = CheckReport { checked, stubs, deep, ..CheckReport::default() };
    for found in &damage {
        let entry = damaged_frame(found, repo);
        if found.kind == DamageKind::Superseded {
            done.healed.push(entry);
        } else if !named.contains(&entry.object) {
            // What a file is named for below needs no line of its own.
            done.damaged.push(entry);
        }
    }
    done.damaged.extend(files);
    Ok(done)
}

/// Whether a chunk that this damage names cannot be read.
fn is_loss(kind: DamageKind) -> bool {
    match kind {
        DamageKind::Pack | DamageKind::Frame | DamageKind::Index => true,
        DamageKind::PackHeader | DamageKind::Superseded | DamageKind::Footer => false,
    }
}

fn damaged_frame(found: &Damage, repo: &Repo) -> Damaged {
    let kind = match found.kind {
        DamageKind::PackHeader => "pack-header",
        DamageKind::Pack => "pack",
        DamageKind::Frame => "frame",
        DamageKind::Superseded => "superseded",
        DamageKind::Footer => "footer",
        DamageKind::Index => "index",
    };
    let object = match (found.chunk, found.recipe) {
        (Some(chunk), _) => chunk.to_string(),
        (None, Some(recipe)) => recipe.to_string(),
        (None, None) => format!("pack {}", found.pack),
    };
    Damaged { kind: kind.to_owned(), object, path: None, reason: repo.readable(found) }
}

fn damaged_file(found: Finding) -> Damaged {
    let Finding { kind, object, path, reason } = found;
    Damaged { kind, object, path: path.as_deref().map(shown), reason }
}
