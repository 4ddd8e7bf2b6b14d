//! The end of a run: all devices meet without faults, agree, and have lost nothing.

use super::disk::{Disk, What};
use super::*;

impl World {
    /// Checks that names of one file stay so on all devices, and that no other name undoes an edit through one name.
    fn check_links(&self, texts: &BTreeSet<String>) {
        for disk in &self.disks {
            let mut inodes: BTreeMap<&String, BTreeSet<u64>> = BTreeMap::new();
            for node in disk.files.values() {
                if let What::File(text) = &node.what {
                    inodes.entry(text).or_default().insert(node.ino);
                }
            }
            for (text, inodes) in inodes {
                let apart =
                    [&self.conflicted, &self.deleted, &self.loose].iter().any(|all| all.contains(text));
                let once = inodes.len() == 1 || apart;
                assert!(once, "{text} is in {} files on {}", inodes.len(), disk.device);
            }
        }
        for (text, old) in &self.in_place {
            let known = [&self.conflicted, &self.deleted, &self.loose].iter().any(|all| all.contains(old));
            let both = texts.contains(text) && texts.contains(old);
            assert!(known || !both, "{old} came back, though {text} replaced it");
        }
    }

    /// Checks that all devices have what they select, and then selects everything.
    fn heal_parts(&mut self) {
        // A directory that files which are left out have kept comes back on the others in later rounds.
        self.meet_all(6);
        let (whole, stale) = (self.disks[0].seen(), self.disks[0].stale.clone());
        for disk in &mut self.disks[1..] {
            // No device has their contents, since users have removed the last copies where they were left out.
            let lost: BTreeSet<TreePath> = disk.stale.union(&stale).cloned().collect();
            let files = |seen: &BTreeMap<TreePath, Seen>| -> Vec<_> {
                let is_out = |path: &TreePath| {
                    let node = disk.files.get(path);
                    node.is_some_and(|node| !disk.selection.includes(path, node.what == What::Dir))
                };
                // An entry of another type, which is left out, has the name.
                let is_blocked = |path: &TreePath| {
                    is_out(path) || (0..path.len()).any(|at| path[at] == b'/' && is_out(&path[..at].to_vec()))
                };
                let is_in = |path: &TreePath, seen: &Seen| {
                    disk.selection.includes(path, seen.kind.is_dir())
                        && !lost.contains(path)
                        && !is_blocked(path)
                };
                let rows = seen.iter().filter(|(path, seen)| self.groups || is_in(path, seen));
                rows.map(|(path, seen)| (path.clone(), seen.kind.clone(), seen.mode)).collect()
            };
            if !self.groups {
                assert_eq!(files(&disk.seen()), files(&whole), "{} has another part", disk.device);
            }
            assert!(disk.staged.is_empty() && disk.journal.is_none());
            disk.selection = Selection::default();
        }
        tell("all devices select everything".to_owned());
    }

    /// Syncs one device with each other one, two times or more, up to `rounds` times, until nothing changes.
    fn meet_all(&mut self, rounds: u32) {
        for round in 0..rounds {
            let before: Vec<_> = self.disks.iter().map(|disk| disk.head).collect();
            for d in 1..self.disks.len() {
                self.sync(0, d, u32::MAX, Direction::Both).unwrap();
            }
            if round > 0 && self.disks.iter().map(|disk| disk.head).eq(before) {
                return;
            }
        }
    }

    /// Syncs all devices, and checks what they have then.
    pub(super) fn heal(&mut self) {
        if self.parts {
            self.heal_parts();
        }
        // A directory that is no longer a group somewhere needs another round.
        self.meet_all(if self.groups { 3 } else { 2 });
        // No device has the contents of some, since users have removed the last copies where they were left out.
        let stale: BTreeSet<TreePath> = self.disks.iter().flat_map(|disk| disk.stale.clone()).collect();
        let files = |disk: &Disk| -> Vec<_> {
            let seen = disk.seen().into_iter().filter(|(path, _)| !stale.contains(path));
            seen.map(|(path, seen)| (path, seen.kind, seen.mode)).collect()
        };
        let first = files(&self.disks[0]);
        for disk in &self.disks[1..] {
            let files = files(disk);
            assert_eq!(files, first, "{} holds something else", disk.device);
        }
        let texts = self.disks[0].texts();
        for text in self.made.difference(&self.gone) {
            assert!(texts.contains(text), "the content {text} was lost");
        }
        if !self.groups && !self.parts {
            self.check_links(&texts);
        }
        for path in self.disks[0].files.keys() {
            assert!(!path.starts_with(b".dedupfs"), "a file waits for ever");
            assert!(!self.apart || !self.loose.is_empty() || parse_conflict_name(split(path).1).is_none());
        }
        for disk in &self.disks {
            assert!(disk.staged.is_empty() && disk.journal.is_none());
            assert!(disk.dag.len() < 200);
        }
        // All devices are at rest.
        let heads: BTreeSet<_> = self.disks.iter().map(|disk| disk.head).collect();
        assert_eq!(heads.len(), 1, "one state");
        let outcome = self.sync(0, 1, u32::MAX, Direction::Both).unwrap();
        assert_eq!((outcome.here, outcome.there), Default::default());
    }
}
