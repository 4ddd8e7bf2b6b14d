//! The entries of a tree by path, shared by clones of the tree until one of them changes: a sync has the same tree in several
//! roles, and a tree may have a million entries.

use super::{Entry, TreePath};
use std::collections::{BTreeMap, btree_map};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

type Map = BTreeMap<TreePath, Entry>;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Entries(Arc<Map>);

impl Deref for Entries {
    type Target = Map;

    fn deref(&self) -> &Map {
        &self.0
    }
}

impl DerefMut for Entries {
    /// Copies the map first if another tree shares it.
    fn deref_mut(&mut self) -> &mut Map {
        Arc::make_mut(&mut self.0)
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Entries) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Entries {}

impl From<Map> for Entries {
    fn from(map: Map) -> Entries {
        Entries(Arc::new(map))
    }
}

impl FromIterator<(TreePath, Entry)> for Entries {
    fn from_iter<I: IntoIterator<Item = (TreePath, Entry)>>(rows: I) -> Entries {
        Map::from_iter(rows).into()
    }
}

impl IntoIterator for Entries {
    type Item = (TreePath, Entry);
    type IntoIter = btree_map::IntoIter<TreePath, Entry>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).into_iter()
    }
}

impl<'a> IntoIterator for &'a Entries {
    type Item = (&'a TreePath, &'a Entry);
    type IntoIter = btree_map::Iter<'a, TreePath, Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::device::Device;
    use crate::sync::tree::{Ident, Kind};

    #[test]
    fn a_clone_keeps_its_entries() {
        let author = Device::named("a");
        let entry = Entry {
            ident: Ident(1),
            author,
            kind: Kind::Fifo,
            mode: 0,
            mtime: (0, 0),
            xattrs: BTreeMap::new(),
        };
        let one: Entries = [(b"a".to_vec(), entry.clone())].into_iter().collect();
        let mut two = one.clone();
        assert_eq!(one, two);
        two.insert(b"b".to_vec(), entry);
        assert_eq!((one.len(), two.len()), (1, 2));
        assert_ne!(one, two);
    }
}
