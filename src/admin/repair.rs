//! Repair: restores damaged content from intact copies, by a plan that can be shown first.
//!
//! Invariants: nothing is deleted or overwritten except records of stubs, and `quarantine/` in the state
//! directory keeps their old values. Bytes count only if their BLAKE3 is the lost id. They are appended like
//! any content, so a crash at any point leaves the store no worse, and a later repair finds the rest.
//!
//! Unchecked objects are left alone: they are not damage.
//!
//! Order: check -> records -> bytes from this store, from plain files of the overlay, from each peer ->
//! fdatasync of the pack -> read again from disk and hashed -> check. A restored recipe can reveal further
//! missing chunks, so this repeats while it helps.

use super::check::{Action, CheckReport, Survey, name_of, survey};
use super::text::{self, shown};
use super::{AdminError, Context, Progress, Report};
use crate::chunk::ChunkParams;
use crate::contents::OverlayError;
use crate::overlay::{FormerRecord, search_tree};
use crate::recipe::Recipe;
use crate::repo::{Layout, OpenOptions, Repo};
use crate::store::{Object, Pin, Salvaged, StoreError, Wanted, Writer, search_packs};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Limit of rounds for newly revealed damage.
const ROUNDS_MAX: usize = 4;
/// In the state directory: replaced records.
const QUARANTINE: &str = "quarantine";
const RESTORE: &str = "write the file again from a backup through the mount";
const RESTORE_OR_NAME: &str = "write the file again from a backup through the mount (the same content heals every \
    file that shares it), or name a copy with --from DIR";

/// Options of a repair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RepairRequest {
    /// Stubs to check, below the root.
    #[serde(with = "text")]
    pub path: PathBuf,
    /// Also decode and hash everything.
    pub deep: bool,
    /// Carry out the plan.
    pub apply: bool,
    /// Absolute paths of directories that may have intact copies: plain files, or another store.
    pub from: Vec<Peer>,
}

/// A directory that may have intact copies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer(#[serde(with = "text")] pub PathBuf);

/// Plans a repair, and carries it out if requested.
pub(super) fn repair(
    context: Context<'_>,
    request: &RepairRequest,
    report: Report<'_>,
) -> Result<CheckReport, AdminError> {
    let repo = context.repo;
    let mut found = survey(repo, &request.path, request.deep, report)?;
    let (mut plan, mut repaired) = (Vec::<Action>::new(), 0);
    for _ in 0..ROUNDS_MAX {
        let actions = round(context, request, &found, report)?;
        let done = actions.iter().filter(|action| action.done).count();
        repaired += done as u64;
        // Each round plans the remaining actions again.
        plan.retain(|action| action.done);
        plan.extend(actions);
        if done == 0 {
            break;
        }
        found = survey(repo, &request.path, request.deep, report)?;
    }
    Ok(CheckReport { plan, repaired, ..found.report })
}

/// Runs one pass over all findings and all sources.
fn round(
    context: Context<'_>,
    request: &RepairRequest,
    found: &Survey,
    report: Report<'_>,
) -> Result<Vec<Action>, AdminError> {
    let mut actions = records(context.repo, request.apply, found)?;
    let of_index = found.report.damaged.iter().filter(|row| row.kind == "index").count();
    if of_index > 0 {
        actions.push(rebuild_index(context, of_index));
        if context.mountpoint.is_none() {
            // With a new index there may be nothing else to repair.
            return Ok(actions);
        }
    }
    let mut surgeon = Surgeon {
        writer: request.apply.then(|| context.repo.overlay().store().writer()),
        _pin: context.repo.overlay().store().pin(),
        needed: &found.needed,
        actions: Vec::new(),
        stored: Vec::new(),
    };
    let mut wanted = found.wanted.clone();
    surgeon.search(context.repo, &request.from, &mut wanted, report)?;
    actions.extend(surgeon.finish(context.repo)?);
    actions.extend(wanted.objects().map(|object| lost(&object, &found.needed)));
    actions.extend(found.report.damaged.iter().filter(|row| is_harmless(&row.kind)).map(|row| Action {
        action: "left".to_owned(),
        object: row.object.clone(),
        from: None,
        path: None,
        files: 0,
        done: false,
        reason: format!("{}; nothing is lost by it", row.reason),
    }));
    Ok(actions)
}

fn is_harmless(kind: &str) -> bool {
    matches!(kind, "footer" | "pack-header")
}

fn rebuild_index(context: Context<'_>, findings: usize) -> Action {
    let reason = match context.mountpoint {
        Some(mounted) => {
            format!("{findings} findings: `dedupctl unmount {}` first, then repair again", mounted.display())
        }
        None => format!("{findings} findings"),
    };
    Action {
        action: "rebuild-index".to_owned(),
        object: "index".to_owned(),
        from: Some("the packs".to_owned()),
        path: None,
        files: 0,
        done: false,
        reason,
    }
}

fn lost(object: &Object, needed: &HashMap<Object, (PathBuf, u64)>) -> Action {
    let need = needed.get(object);
    Action {
        action: "lost".to_owned(),
        object: name_of(object),
        from: None,
        path: need.map(|(path, _)| shown(path)),
        files: need.map_or(0, |(_, files)| *files),
        done: false,
        reason: match need {
            Some(_) => format!("no whole copy was found: {RESTORE_OR_NAME}"),
            None => "no whole copy was found, and no file that was checked needs it".to_owned(),
        },
    }
}

/// Restores invalid or missing records from the catalog.
fn records(repo: &Repo, apply: bool, found: &Survey) -> Result<Vec<Action>, AdminError> {
    let mut actions = Vec::new();
    for path in &found.records {
        let mut action = Action {
            action: "write-record".to_owned(),
            object: shown(path),
            from: Some("the catalog".to_owned()),
            path: Some(shown(path)),
            files: 1,
            done: false,
            reason: String::new(),
        };
        match repo.overlay().former_record(path)? {
            Some(former) => {
                action.from = Some(former.known_by.to_owned());
                action.reason = format!("recipe {}, {} bytes", former.recipe, former.size);
                if apply {
                    action.done = repo.overlay().restore_record(&former, &mut |former| keep(repo, former))?;
                }
            }
            None => {
                action.action = "lost".to_owned();
                action.from = None;
                action.reason = format!("it is not known for certain what its content was: {RESTORE}");
            }
        }
        actions.push(action);
    }
    Ok(actions)
}

/// Durably saves the value of a record before it is replaced.
fn keep(repo: &Repo, former: &FormerRecord) -> Result<(), OverlayError> {
    let dir = repo.state_file(QUARANTINE);
    let made = std::fs::create_dir(&dir);
    if let Err(e) = made
        && e.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(OverlayError::io("make directory", repo.layout().file(QUARANTINE), e));
    }
    let time = jiff::Timestamp::now();
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let old: String = former.old.as_ref().map_or("none".to_owned(), hex);
    let text = format!(
        "# Replaced by `dedupctl check --repair`. To put it back: setfattr -n user.dedupfs -v 0xVALUE PATH, or of none\n\
         # setfattr -x user.dedupfs PATH, on the bare directory\n\
         time: {time}\npath: {}\ninode: {}\nuser.dedupfs: {old}\n",
        former.path.display(),
        former.inode
    );
    let stamp = time.strftime("%Y%m%dT%H%M%S%.6fZ");
    let name = format!("{QUARANTINE}/record-{}-{stamp}.txt", former.inode);
    repo.write_state_file(&name, text.as_bytes()).map_err(|e| {
        OverlayError::io("write", repo.layout().file(&name), std::io::Error::other(e.to_string()))
    })
}

/// Collects intact bytes from any source.
struct Surgeon<'a> {
    /// `None` if only the plan is wanted.
    writer: Option<Writer>,
    /// Stored content must survive gc although no readable recipe may refer to it yet.
    _pin: Pin,
    needed: &'a HashMap<Object, (PathBuf, u64)>,
    actions: Vec<Action>,
    /// The objects of `actions`.
    stored: Vec<Object>,
}

impl Surgeon<'_> {
    fn search(
        &mut self,
        repo: &Repo,
        peers: &[Peer],
        wanted: &mut Wanted,
        report: Report<'_>,
    ) -> Result<(), AdminError> {
        let overlay = repo.overlay();
        let params = repo.chunk_params();
        let mut waited_for = true;
        if !wanted.is_empty() {
            overlay.store().salvage(wanted, &mut packs_step(report, &mut waited_for), &mut |found| {
                let from = match &found.pack {
                    Some(pack) => format!("an older copy in {}", repo.readable(&pack.display())),
                    None => "this store, read again".to_owned(),
                };
                self.take(found.object, found.bytes, from)
            })?;
        }
        if !wanted.is_empty() && waited_for {
            let mut take = |object, bytes: &[u8], path: &Path| {
                self.take(object, bytes, format!("the plain file {}", shown(path)))
            };
            overlay.search_files(
                &params,
                false,
                wanted,
                &mut files_step(report, &mut waited_for),
                &mut take,
            )?;
        }
        for Peer(peer) in peers {
            if !wanted.is_empty() && waited_for {
                self.search_peer(peer, &params, wanted, report, &mut waited_for)?;
            }
        }
        if waited_for { Ok(()) } else { Err(AdminError::Interrupted) }
    }

    /// Searches a directory of plain files, or another overlay or store, or both.
    fn search_peer(
        &mut self,
        peer: &Path,
        params: &ChunkParams,
        wanted: &mut Wanted,
        report: Report<'_>,
        waited_for: &mut bool,
    ) -> Result<(), AdminError> {
        let layout = Layout::named(peer).ok().flatten();
        let state = layout.as_ref().map_or(peer, |layout| &layout.state);
        if state.join("packs").is_dir() {
            let mut take = |found: Salvaged<'_>| {
                let pack = found.pack.as_deref().unwrap_or(peer);
                self.take(found.object, found.bytes, shown(pack))
            };
            search_packs(&state.join("packs"), wanted, &mut packs_step(report, waited_for), &mut take)?;
        }
        let top = layout.as_ref().map_or(peer, |layout| &layout.root);
        let mut take = |object, bytes: &[u8], path: &Path| self.take(object, bytes, shown(path));
        if *waited_for && !wanted.is_empty() {
            search_tree(top, params, wanted, &mut files_step(report, waited_for), &mut take)?;
        }
        // Files that were chunked differently there have none of these chunks until they are chunked again.
        match layout {
            Some(layout) if *waited_for && !wanted.is_empty() => {
                self.cut_anew(&layout, params, wanted, report, waited_for)
            }
            _ => Ok(()),
        }
    }

    fn cut_anew(
        &mut self,
        layout: &Layout,
        params: &ChunkParams,
        wanted: &mut Wanted,
        report: Report<'_>,
        waited_for: &mut bool,
    ) -> Result<(), AdminError> {
        if layout.chunk_params().is_ok_and(|theirs| theirs == *params) {
            return Ok(());
        }
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        match Repo::open(layout, &options, &mut |_| {}) {
            Ok(other) => {
                let mut take = |object, bytes: &[u8], path: &Path| {
                    self.take(object, bytes, shown(&layout.root.join(path)))
                };
                let step = &mut files_step(report, waited_for);
                other.overlay().search_files(params, true, wanted, step, &mut take)?;
            }
            // Probably mounted: then its mount point shows its content.
            Err(e) => tracing::warn!("{}: its files were not chunked again: {e}", layout.root.display()),
        }
        Ok(())
    }

    /// Stores intact bytes, if the plan is to be carried out.
    fn take(&mut self, object: Object, bytes: &[u8], from: String) -> Result<(), StoreError> {
        if let Some(writer) = &mut self.writer {
            match object {
                Object::Chunk(id) => {
                    writer.put(id, bytes)?;
                }
                Object::Recipe(_) => {
                    let Ok(recipe) = Recipe::decode(bytes) else { return Ok(()) };
                    writer.put_recipe(&recipe)?;
                }
            }
        }
        let need = self.needed.get(&object);
        let kind = match object {
            Object::Chunk(_) => "chunk",
            Object::Recipe(_) => "recipe",
        };
        self.stored.push(object);
        self.actions.push(Action {
            action: "store-again".to_owned(),
            object: name_of(&object),
            from: Some(from),
            path: need.map(|(path, _)| shown(path)),
            files: need.map_or(0, |(_, files)| *files),
            done: false,
            reason: format!("a {kind} of {} bytes", bytes.len()),
        });
        Ok(())
    }

    /// Makes the stored bytes durable, and reads them again from disk.
    fn finish(mut self, repo: &Repo) -> Result<Vec<Action>, AdminError> {
        let Some(writer) = &mut self.writer else { return Ok(self.actions) };
        let store = repo.overlay().store();
        writer.flush()?;
        store.sync()?;
        for (action, object) in self.actions.iter_mut().zip(&self.stored) {
            match store.reread(object) {
                Ok(()) => action.done = true,
                Err(e) => action.reason = format!("it was stored and cannot be read: {}", repo.readable(&e)),
            }
        }
        Ok(self.actions)
    }
}

fn packs_step<'a>(report: Report<'a>, waited_for: &'a mut bool) -> impl FnMut(u64, u64) -> bool + 'a {
    |done, total| {
        *waited_for = report(Progress::bytes("searching packs", done, total));
        *waited_for
    }
}

fn files_step<'a>(report: Report<'a>, waited_for: &'a mut bool) -> impl FnMut(u64) -> bool + 'a {
    |bytes| {
        *waited_for = report(Progress::bytes("searching files", bytes, 0));
        *waited_for
    }
}
