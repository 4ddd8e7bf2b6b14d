//! The selection of a device, applied to the entries on its disk.

use super::super::group::{BESIDE, Groups};
use super::super::rules::Rules;
use super::super::selection::Selection;
use super::super::tree::{ContentId, Kind, TreePath, split};
use crate::beneath::Root;
use rustix::fs::FileType;
use std::cell::RefCell;
use std::collections::HashMap;

/// See the module.
pub struct Chosen<'a> {
    root: &'a Root,
    groups: &'a Groups,
    selection: &'a Selection,
    /// Whether a directory is a group, or in one.
    known: RefCell<HashMap<TreePath, bool>>,
}

impl<'a> Chosen<'a> {
    /// Applies the selection of `rules` to the entries below `root`.
    pub fn new(root: &'a Root, rules: &'a Rules) -> Chosen<'a> {
        Chosen { root, groups: &rules.groups, selection: &rules.selection, known: RefCell::default() }
    }

    /// Returns whether an entry is included: a member of a group if the group is.
    pub fn includes(&self, path: &[u8], is_dir: bool) -> bool {
        if self.selection.is_all() {
            return true;
        }
        let dir = split(path).0;
        if let Some(group) = self.group_of(dir) {
            return self.selection.includes(&group, true);
        }
        let is_file = |path: &[u8]| self.kind(path) == Some(FileType::RegularFile);
        let database = BESIDE.iter().find_map(|suffix| path.strip_suffix(*suffix));
        match database.filter(|database| !is_dir && !split(database).1.is_empty() && is_file(database)) {
            Some(database) => self.selection.includes(database, false),
            None => self.selection.includes(path, is_dir),
        }
    }

    /// Returns whether nothing below the directory `dir` is included.
    pub fn is_out(&self, dir: &[u8]) -> bool {
        !dir.is_empty() && !self.includes(dir, true)
    }

    fn kind(&self, path: &[u8]) -> Option<FileType> {
        let stat = self.root.stat(path).ok().flatten()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    /// Returns the outermost group that `dir` is, or is in.
    fn group_of(&self, dir: &[u8]) -> Option<TreePath> {
        let ends = (0..=dir.len()).filter(|at| *at == dir.len() || dir[*at] == b'/');
        ends.map(|at| &dir[..at]).find(|dir| !dir.is_empty() && self.is_group(dir)).map(<[u8]>::to_vec)
    }

    fn is_group(&self, dir: &[u8]) -> bool {
        if let Some(known) = self.known.borrow().get(dir) {
            return *known;
        }
        let (is_dir, is_file) = (Kind::Dir, Kind::File { content: ContentId([0; 32]), size: 0 });
        let kind = |path: &[u8]| match self.kind(path)? {
            FileType::Directory => Some(&is_dir),
            FileType::RegularFile => Some(&is_file),
            _ => None,
        };
        let is_group = kind(dir) == Some(&is_dir) && self.groups.is_directory(dir, &kind);
        self.known.borrow_mut().insert(dir.to_vec(), is_group);
        is_group
    }
}
