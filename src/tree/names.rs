//! Names of inodes, and the policies that follow from them.

use super::Tree;
use super::inode::Inode;
use super::policy::Policy;
use crate::catalog::Finder;
use crate::contents::error::Result;
use std::path::PathBuf;

impl Tree {
    /// Returns the policy of a file by its names; `None` if names matter and none of its names is known.
    ///
    /// The strictest of several names decides: the name it was opened by, and those in directories that the catalog knows.
    pub(crate) fn policy_of(
        &self,
        inode: &Inode,
        names: u64,
        finder: &mut Finder<'_>,
    ) -> Result<Option<Policy>> {
        let policies = self.policies();
        if policies.rules() == 0 {
            return Ok(Some(policies.fallback()));
        }
        let mut paths: Vec<_> = self.path_of(inode).into_iter().collect();
        if names > 1 || paths.is_empty() {
            finder.paths_of(inode.file_id(), &mut paths)?;
        }
        Ok(paths.iter().map(|path| policies.of(path)).reduce(Policy::strictest))
    }

    /// Returns whether a file of `bytes` bytes may become a stub, by the name it was opened by.
    pub(crate) fn may_convert(&self, inode: &Inode, bytes: u64) -> bool {
        let policy = self.policy_of(inode, 1, &mut self.catalog.finder(&self.backing));
        policy.ok().flatten().is_some_and(|policy| policy.converts(bytes))
    }

    /// A name for messages.
    pub(crate) fn name_of(&self, inode: &Inode) -> String {
        match self.path_of(inode) {
            Some(path) => path.display().to_string(),
            None => format!("(inode {} without a name)", inode.identity.ino),
        }
    }

    /// Returns the present path of an inode below the root, if it has a name.
    pub(crate) fn path_of(&self, inode: &Inode) -> Option<PathBuf> {
        self.backing.relative_path(inode.path_fd().ok()?).ok()?
    }
}
