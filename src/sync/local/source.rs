//! Reads the contents that a directory sends, from files that may change meanwhile.

use super::Local;
use crate::id::RecipeId;
use crate::sync::bases::Base;
use crate::sync::content::{CHANGED, Sink, Source, nameless};
use crate::sync::error::{self, SyncError};
use crate::sync::print::{print, unchanged};
use crate::sync::tree::{ContentId, TreePath};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;

/// Versions of a file that are read to find one.
const VERSIONS_READ_MAX: usize = 16;

impl Local<'_> {
    /// Returns a content of a group that changes all the time, in a file with its own offset.
    pub(super) fn kept(&self, content: ContentId) -> Result<Option<File>, SyncError> {
        let Some(kept) = self.kept.get(&content) else { return Ok(None) };
        let again = File::open(format!("/proc/self/fd/{}", kept.as_raw_fd()));
        again.map(Some).map_err(|e| SyncError::io("open", "a content that was kept", e))
    }

    /// Returns a copy of the first bytes of a file if they are this content.
    fn beginning(&mut self, file: &File, size: u64, content: ContentId) -> Result<Option<File>, SyncError> {
        let mut copy = self.memory.spool()?;
        let mut hasher = blake3::Hasher::new();
        let (mut from, mut buffer) = (file.take(size), vec![0; 1 << 20]);
        let io = |e| SyncError::io("copy", "a content to send", e);
        loop {
            let len = from.read(&mut buffer).map_err(io)?;
            if len == 0 {
                break;
            }
            hasher.update(&buffer[..len]);
            copy.write_all(&buffer[..len]).map_err(io)?;
        }
        copy.rewind().map_err(io)?;
        let same = *hasher.finalize().as_bytes() == content.0;
        if same {
            self.copied.insert(content);
        }
        Ok(same.then_some(copy))
    }

    /// Opens the version before both edits of a conflict: a former content, or one that the history has.
    pub(super) fn base(&mut self, base: &Base) -> Result<Option<File>, SyncError> {
        if let Some(file) = Source::past(self, base.content)? {
            return Ok(Some(file));
        }
        let Some(past) = &mut self.past else { return Ok(None) };
        let mut versions = past.versions(&base.path);
        versions.retain(|version| version.size == base.size);
        for version in versions.into_iter().rev().take(VERSIONS_READ_MAX) {
            let Some(mut file) = past.read(version.recipe)? else { continue };
            if hash(&mut file)? == base.content {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// Returns whether the file of a content is unchanged since the scan.
    fn is_at_rest(&self, content: ContentId) -> bool {
        let Some(path) = self.contents.get(&content) else { return true };
        let (stat, known) = (self.root.stat(path).ok().flatten(), self.memory.cache.get(path));
        stat.zip(known).is_none_or(|(stat, known)| unchanged(known, &print(&stat, None)))
    }
}

fn hash(file: &mut File) -> Result<ContentId, SyncError> {
    let mut hasher = blake3::Hasher::new();
    let read = file.rewind().and_then(|()| hasher.update_reader(file).map(drop));
    read.map_err(|e| SyncError::io("read", "a content of the past", e))?;
    Ok(ContentId(*hasher.finalize().as_bytes()))
}

fn in_memory(bytes: &[u8]) -> Result<File, SyncError> {
    let mut file = nameless()?;
    let written = file.write_all(bytes).and_then(|()| file.rewind());
    written.map_err(|e| SyncError::io("write", "a file in memory", e))?;
    Ok(file)
}

impl Source for Local<'_> {
    /// Opens the file if it is unchanged since the scan. Otherwise returns a copy of the former content, if there is
    /// one: the file's beginning (for example, of a log), or in the store.
    fn open(&mut self, content: ContentId) -> Result<File, SyncError> {
        if let Some(kept) = self.kept(content)? {
            return Ok(kept);
        }
        if let Some(bytes) = self.ahead.take(content) {
            self.copied.insert(content);
            return in_memory(&bytes);
        }
        let gone = || {
            // Only an older peer asks for it.
            let not_here = format!(
                "is not on {}: its config.toml leaves it out, or it has not arrived there; sync with a device that has it",
                self.memory.device
            );
            let removed = "was removed before it was sent".to_owned();
            SyncError::Changed(if self.here.is_some() { not_here } else { removed })
        };
        let path = self.contents.get(&content).cloned().ok_or_else(gone)?;
        let known = self.memory.cache.get(&path).cloned();
        let file = match self.root.open_at(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) => Some(File::from(fd)),
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => None,
            Err(e) => return Err(error::on("open", &path, e)),
        };
        if let (Some(file), Some(known)) = (file, known) {
            let stat = rustix::fs::fstat(&file).map_err(|e| error::on("look at", &path, e))?;
            if unchanged(&known, &print(&stat, None)) && !known.fresh {
                return Ok(file);
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && let Some(copy) = self.beginning(&file, known.size, content)?
            {
                return Ok(copy);
            }
        }
        self.past(content)?.ok_or_else(|| SyncError::Changed(CHANGED.to_owned()))
    }

    fn ahead(&mut self, next: &mut dyn Iterator<Item = (ContentId, u64)>) -> Result<(), SyncError> {
        let Some(past) = &mut self.past else { return Ok(()) };
        let (contents, cache) = (&self.contents, &self.memory.cache);
        let recipe_of = |content: ContentId| {
            let print = cache.get(contents.get(&content)?)?;
            print.recipe.filter(|_| print.content == Some(content)).map(RecipeId)
        };
        self.ahead.fill(next, &recipe_of, &mut |recipes| past.read_together(recipes))
    }

    fn is_still(&mut self, content: ContentId) -> Result<bool, SyncError> {
        let Some(path) = self.contents.get(&content).filter(|_| !self.kept.contains_key(&content)) else {
            return Ok(true);
        };
        let stat = self.root.stat(path).map_err(|e| error::on("look at", path, e))?;
        let known = self.memory.cache.get(path);
        // A content that was copied first cannot change.
        let copied = known.is_some_and(|known| known.fresh) || self.copied.contains(&content);
        Ok(copied || stat.zip(known).is_some_and(|(stat, known)| unchanged(known, &print(&stat, None))))
    }

    fn holds(&mut self, content: ContentId) -> Result<bool, SyncError> {
        Ok(self.contents.contains_key(&content) || self.held.contains(&content))
    }

    fn past_together(&mut self, contents: &[ContentId]) -> Result<(), SyncError> {
        let Some(past) = &mut self.past else { return Ok(()) };
        let gone = contents.iter().filter(|content| !self.contents.contains_key(content));
        let wanted = gone.filter_map(|content| Some((*content, RecipeId(*self.memory.past.get(content)?))));
        self.past_ahead.fill_with(wanted.collect(), &mut |recipes| past.read_together(recipes))
    }

    fn past(&mut self, content: ContentId) -> Result<Option<File>, SyncError> {
        if let Some(file) = self.own(content)?.filter(|_| self.is_at_rest(content)) {
            return Ok(Some(file));
        }
        if let Some(bytes) = self.past_ahead.take(content) {
            self.copied.insert(content);
            return in_memory(&bytes).map(Some);
        }
        let now = self.contents.get(&content).and_then(|path| self.memory.cache.get(path)?.recipe);
        let (Some(past), Some(recipe)) = (&mut self.past, self.memory.past.get(&content).copied().or(now))
        else {
            return Ok(None);
        };
        let Some(mut file) = past.read(RecipeId(recipe))? else { return Ok(None) };
        let found = hash(&mut file)?;
        self.copied.insert(content);
        Ok((found == content).then_some(file))
    }

    fn gone(&mut self) -> Vec<ContentId> {
        self.held.iter().copied().collect()
    }

    fn resembling(&mut self, content: ContentId) -> Result<Vec<(ContentId, f64)>, SyncError> {
        let (Some(past), Some(path)) = (&mut self.past, self.contents.get(&content)) else {
            return Ok(Vec::new());
        };
        let found = past.resembling(path).into_iter();
        let content =
            |(path, share)| Some((self.on_disk().entries.get::<TreePath>(&path)?.kind.content()?, share));
        Ok(found.filter_map(content).collect())
    }

    fn spool(&mut self) -> Result<File, SyncError> {
        self.memory.spool()
    }
}
