//! Check of a store and of the files that depend on it. Changes nothing on disk.
//!
//! Memory grows with the damage, not with the store: about 300 bytes for each damaged frame and for each row.

use super::text::shown;
use super::{AdminError, Progress, Report};
use crate::env::Refusal;
use crate::id::{ChunkId, PackId};
use crate::maintain::{Finding, Trouble};
use crate::repo::Repo;
use crate::store::{Damage, DamageKind, Object, Wanted};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Limit of damage rows in a report; [`CheckReport::omitted`] counts the rest.
const ROWS_MAX: usize = 500_000;

/// Findings of a verification, and results of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Frames of packs checked.
    pub checked: u64,
    /// Stubs checked.
    pub stubs: u64,
    /// The damage: one row for each finding and affected file. After a repair, the rest.
    pub damaged: Vec<Damaged>,
    /// Rows omitted from `damaged` and `unchecked`, because there are too many.
    #[serde(default)]
    pub omitted: u64,
    /// Objects that the system refused to read: they are not known to be damaged.
    #[serde(default)]
    pub unchecked: Vec<Unchecked>,
    /// Damage with an intact later copy: nothing is lost.
    pub healed: Vec<Damaged>,
    /// Actions of the plan that were done and verified.
    pub repaired: u64,
    /// Whether chunks were decoded and hashed too.
    pub deep: bool,
    /// With a repair: possible actions and lost objects, in order.
    #[serde(default)]
    pub plan: Vec<Action>,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    /// Kind: `pack`, `pack-header`, `frame`, `footer`, `index`, `chunk`, `recipe`, `stub`, `file`.
    pub kind: String,
    /// The object.
    pub object: String,
    /// The affected file; none if no checked file needs the object.
    pub path: Option<String>,
    /// Number of its pack file, eight hexadecimal digits, if known.
    #[serde(default)]
    pub pack: Option<String>,
    /// Offset in the pack file, in bytes, if known.
    #[serde(default)]
    pub offset: Option<u64>,
    /// The finding in words.
    pub reason: String,
}

/// An object that could not be checked. A repair leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unchecked {
    /// Kind: `pack` or `file`.
    pub kind: String,
    /// The object.
    pub object: String,
    /// The file; none for a pack.
    pub path: Option<String>,
    /// The system's message.
    pub reason: String,
    /// Advice.
    pub remedy: String,
}

/// An action of a repair, or a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// `store-again` (a chunk or recipe), `write-record` (of a stub), `rebuild-index`; or `lost`: no intact
    /// copy was found; or `left`: nothing is lost.
    pub action: String,
    /// The chunk, recipe, file or pack.
    pub object: String,
    /// Source of its content; none without one.
    pub from: Option<String>,
    /// One of the files that need it.
    pub path: Option<String>,
    /// How many files need it.
    pub files: u64,
    /// Whether it has been done and verified.
    pub done: bool,
    /// The reason, or advice.
    pub reason: String,
}

/// A check, with details for a repair.
pub(super) struct Survey {
    pub(super) report: CheckReport,
    /// Chunks and recipes that cannot be read.
    pub(super) wanted: Wanted,
    /// Files whose records are invalid.
    pub(super) records: Vec<PathBuf>,
    /// One file that needs each of them, and the number of such files.
    pub(super) needed: HashMap<Object, (PathBuf, u64)>,
}

/// Verifies the packs, then finds the files below `path` that the damage affects.
pub(super) fn check(
    repo: &Repo,
    path: &Path,
    deep: bool,
    report: Report<'_>,
) -> Result<CheckReport, AdminError> {
    survey(repo, path, deep, report).map(|survey| survey.report)
}

pub(super) fn survey(repo: &Repo, path: &Path, deep: bool, report: Report<'_>) -> Result<Survey, AdminError> {
    let store = repo.overlay().store();
    let mut rows = Rows::default();
    let verified = store.verify(
        deep,
        &mut |done, total| {
            report(Progress::bytes("checking packs", done, total));
        },
        &mut |found| rows.add_damage(found, repo),
    )?;
    for (pack, refusal) in &verified.unchecked {
        rows.add_unchecked("pack", format!("pack {pack}"), None, *refusal);
    }
    let mut waited_for = true;
    let stubs = repo.overlay().maintenance.check_stubs(
        path,
        &mut |stubs| {
            waited_for = report(Progress::files("checking files", stubs, 0));
            waited_for
        },
        &mut |found| rows.add_file(found, repo),
    )?;
    if !waited_for {
        return Err(AdminError::Interrupted);
    }
    rows.add_unneeded();
    let Rows { damaged, unchecked, healed, omitted, wanted, records, needed, .. } = rows;
    let checked = verified.frames;
    let report =
        CheckReport { checked, stubs, deep, damaged, unchecked, healed, omitted, ..CheckReport::default() };
    Ok(Survey { report, wanted, records, needed })
}

/// The growing rows of a report.
#[derive(Default)]
struct Rows {
    damaged: Vec<Damaged>,
    unchecked: Vec<Unchecked>,
    healed: Vec<Damaged>,
    omitted: u64,
    wanted: Wanted,
    records: Vec<PathBuf>,
    needed: HashMap<Object, (PathBuf, u64)>,
    /// Unreadable chunks and recipes, and their locations.
    losses: HashMap<Object, Damage>,
    /// Packs that are gone or end too early: the finding, and lost chunks and recipes.
    packs: BTreeMap<PackId, (String, u64, u64)>,
}

impl Rows {
    fn push(&mut self, row: Damaged) {
        match self.damaged.len() < ROWS_MAX {
            true => self.damaged.push(row),
            false => self.omitted += 1,
        }
    }

    fn add_unchecked(&mut self, kind: &str, object: String, path: Option<String>, refusal: Refusal) {
        if self.unchecked.len() >= ROWS_MAX {
            self.omitted += 1;
            return;
        }
        let (reason, remedy) = (refusal.to_string(), refusal.remedy().to_owned());
        self.unchecked.push(Unchecked { kind: kind.to_owned(), object, path, reason, remedy });
    }

    fn add_damage(&mut self, mut found: Damage, repo: &Repo) {
        found.reason = repo.readable(&found.reason);
        let object = found.object();
        match found.kind {
            DamageKind::Superseded => {
                if self.healed.len() < ROWS_MAX {
                    self.healed.push(frame_row(&found));
                }
            }
            DamageKind::Pack => {
                let reason = found.reason.clone();
                let (_, chunks, recipes) = self.packs.entry(found.pack).or_insert((reason, 0, 0));
                *chunks += u64::from(found.chunk.is_some());
                *recipes += u64::from(found.recipe.is_some());
            }
            DamageKind::Frame if object.is_some() => {}
            DamageKind::Frame | DamageKind::Footer | DamageKind::PackHeader | DamageKind::Index => {
                self.push(frame_row(&found));
            }
        }
        if let Some(object) = object
            && matches!(found.kind, DamageKind::Pack | DamageKind::Frame)
        {
            self.wanted.add(object);
            self.losses.insert(object, found);
        }
    }

    fn add_file(&mut self, found: Finding, repo: &Repo) {
        let Finding { path, trouble } = found;
        match trouble {
            Trouble::Unchecked(refusal) => {
                self.add_unchecked("file", shown(&path), Some(shown(&path)), refusal);
            }
            Trouble::Unreadable(reason) => {
                self.push(row("file", shown(&path), &path, repo.readable(&reason)))
            }
            Trouble::Record(reason) => {
                self.push(row("stub", shown(&path), &path, reason));
                self.records.push(path);
            }
            Trouble::Length { recipe, stub_bytes, recipe_bytes } => {
                let reason = format!("the stub says {stub_bytes} bytes, its recipe {recipe_bytes}");
                self.push(row("stub", recipe.to_string(), &path, reason));
            }
            Trouble::Recipe(id, reason) => {
                let object = Object::Recipe(id);
                self.need(object, &path);
                let known = self.losses.get(&object).map(|loss| loss_row(loss, &path));
                let reason = if reason.is_empty() { "it is not in the store" } else { &reason };
                let new = row("recipe", id.to_string(), &path, repo.readable(&reason));
                self.push(known.unwrap_or(new));
            }
            Trouble::Chunks(ids) => self.add_chunks(&ids, &path),
        }
    }

    fn add_chunks(&mut self, ids: &[ChunkId], path: &Path) {
        let mut packs_named = HashSet::new();
        let mut absent = Vec::new();
        for id in ids {
            let object = Object::Chunk(*id);
            self.need(object, path);
            match self.losses.get(&object) {
                // A file has one row for a pack, however many of its chunks were there.
                Some(loss) if loss.kind == DamageKind::Pack && !packs_named.insert(loss.pack) => {}
                Some(loss) => {
                    let row = loss_row(loss, path);
                    self.push(row);
                }
                None => absent.push(id),
            }
        }
        if let Some(first) = absent.first() {
            let reason = match absent.len() {
                1 => "it is not in the store".to_owned(),
                n => format!("it and {} more chunks of the file are not in the store", n - 1),
            };
            self.push(row("chunk", first.to_string(), path, reason));
        }
    }

    fn need(&mut self, object: Object, path: &Path) {
        self.wanted.add(object);
        self.needed.entry(object).or_insert_with(|| (path.to_owned(), 0)).1 += 1;
    }

    /// Adds rows for packs, and for lost frames without an affected file.
    fn add_unneeded(&mut self) {
        for (pack, (reason, chunks, recipes)) in std::mem::take(&mut self.packs) {
            let reason = match chunks + recipes {
                0 => reason,
                _ => format!("{reason}: {chunks} chunks and {recipes} recipes are lost with it"),
            };
            let object = format!("pack {pack}");
            let pack = Some(pack.to_string());
            self.push(Damaged { kind: "pack".to_owned(), object, path: None, pack, offset: None, reason });
        }
        let losses = std::mem::take(&mut self.losses);
        let unneeded = |(object, loss): &(&Object, &Damage)| {
            loss.kind != DamageKind::Pack && !self.needed.contains_key(object)
        };
        let mut left: Vec<&Damage> = losses.iter().filter(unneeded).map(|(_, loss)| loss).collect();
        left.sort_by_key(|loss| (loss.pack, loss.offset));
        left.into_iter().for_each(|loss| self.push(frame_row(loss)));
    }
}

fn row(kind: &str, object: String, path: &Path, reason: String) -> Damaged {
    Damaged { kind: kind.to_owned(), object, path: Some(shown(path)), pack: None, offset: None, reason }
}

/// Returns the row of a file that needs lost content.
fn loss_row(loss: &Damage, path: &Path) -> Damaged {
    let (pack, path) = (Some(loss.pack.to_string()), Some(shown(path)));
    let reason = loss.reason.clone();
    if loss.kind == DamageKind::Pack {
        let object = format!("pack {}", loss.pack);
        return Damaged { kind: "pack".to_owned(), object, path, pack, offset: None, reason };
    }
    let kind = if loss.chunk.is_some() { "chunk" } else { "recipe" };
    Damaged { kind: kind.to_owned(), path, ..frame_row(loss) }
}

/// Returns the row of damaged bytes on disk.
fn frame_row(found: &Damage) -> Damaged {
    let kind = match found.kind {
        DamageKind::PackHeader => "pack-header",
        DamageKind::Pack => "pack",
        DamageKind::Frame => "frame",
        DamageKind::Superseded => "superseded",
        DamageKind::Footer => "footer",
        DamageKind::Index => "index",
    };
    let object = match found.object() {
        Some(object) => name_of(&object),
        None => format!("pack {}", found.pack),
    };
    let (pack, offset) = (Some(found.pack.to_string()), Some(found.offset));
    Damaged { kind: kind.to_owned(), object, path: None, pack, offset, reason: found.reason.clone() }
}

/// Returns the bare id of a chunk or recipe.
pub(super) fn name_of(object: &Object) -> String {
    match object {
        Object::Chunk(id) => id.to_string(),
        Object::Recipe(id) => id.to_string(),
    }
}
