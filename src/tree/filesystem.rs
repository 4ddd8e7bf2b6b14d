//! The filesystem: its parts, and what they share.

use super::changes::Changes;
use super::event::{Event, Listener};
use super::handle::DropPages;
use super::heat::{Heat, HotOptions};
use super::hybrid::options::HybridOptions;
use super::hybrid::steps::Steps;
use super::inode::{Inode, Inodes, State as InodeState};
use super::observer::{DirPaths, Observer};
use super::policy::{BadGlob, Dedup, Policies, Rule};
use super::ticks::Ticks;
use crate::backing::Backing;
use crate::backing::stub::GuardKey;
use crate::catalog::Catalog;
use crate::contents::Contents;
use crate::contents::error::{OverlayError, Result};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Parts that a tree is made of.
pub struct TreeParts {
    /// The directory tree.
    pub backing: Backing,
    /// The contents of its stubs.
    pub contents: Arc<Contents>,
    /// Which file has which content.
    pub catalog: Arc<Catalog>,
    /// Key of the stubs' guard.
    pub key: GuardKey,
    /// When which files are converted.
    pub policies: Policies,
    /// Which stubs become hybrid instead of being written back.
    pub hybrid: HybridOptions,
    /// Limits for hot files.
    pub hot: HotOptions,
    /// Change nothing at all.
    pub read_only: bool,
}

/// A filesystem over a backing directory. All methods may be called from many threads.
pub struct Tree {
    pub(crate) backing: Backing,
    pub(crate) contents: Arc<Contents>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) key: GuardKey,
    policies: RwLock<Arc<Policies>>,
    pub(crate) hybrid: HybridOptions,
    pub(crate) heat: Heat,
    pub(crate) read_only: bool,
    pub(crate) inodes: Inodes,
    pub(crate) steps: Arc<Steps>,
    pub(crate) drop_pages: OnceLock<Box<DropPages>>,
    pub(crate) observer: OnceLock<Arc<dyn Observer>>,
    pub(crate) dir_paths: DirPaths,
    pub(crate) changes: Changes,
    pub(crate) ticks: Ticks,
    /// Random.
    pub(crate) opened_at: u64,
    listener: OnceLock<Box<Listener>>,
}

impl Tree {
    /// Makes a tree. Changes nothing, and starts no threads.
    pub fn new(parts: TreeParts) -> Result<Tree> {
        let root = parts.backing.root().try_clone_to_owned();
        let root = root.map_err(|e| OverlayError::io("open", "the backing directory again", e))?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        Ok(Tree {
            backing: parts.backing,
            contents: parts.contents,
            catalog: parts.catalog,
            key: parts.key,
            policies: RwLock::new(Arc::new(parts.policies)),
            hybrid: parts.hybrid,
            heat: Heat::new(parts.hot),
            read_only: parts.read_only,
            inodes: Inodes::new(root),
            steps: Arc::default(),
            drop_pages: OnceLock::new(),
            observer: OnceLock::new(),
            dir_paths: DirPaths::default(),
            changes: Changes::default(),
            ticks: Ticks::default(),
            opened_at: u64::from_le_bytes(random),
            listener: OnceLock::new(),
        })
    }

    /// Reports events to `listener` from now on. A tree has one listener: a second one is ignored.
    pub fn reports_to(&self, listener: Box<Listener>) {
        let _ = self.listener.set(listener);
    }

    /// Reports an event.
    pub(crate) fn tell(&self, event: Event<'_>) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }

    /// The directory below.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Returns when files without a rule are converted.
    pub fn dedup(&self) -> Dedup {
        self.policies().fallback().dedup
    }

    /// Returns the rules that decide how each file is treated.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a rule after all others. It is in force at once, also for files that wait to be converted.
    pub fn add_rule(&self, rule: Rule) -> std::result::Result<(), BadGlob> {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        *policies = Arc::new(policies.with_rule(rule)?);
        Ok(())
    }

    /// Sets whether the kernel does the I/O of plain files by itself.
    pub fn set_passes(&self, passes: bool) {
        self.heat.set_passes(passes && !self.read_only);
    }

    /// Returns the number of hot files that are plain, and the room that they take in bytes.
    pub fn hot(&self) -> (u64, u64) {
        self.heat.kept()
    }

    /// Makes a hot file that is about to be changed an ordinary plain file.
    pub(crate) fn cool(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        self.heat.forget(inode.file_id());
        if state.hot.take().is_some() && state.queued {
            self.tell(Event::Cooled(inode, state));
        }
    }
}
