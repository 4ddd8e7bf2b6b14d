//! Descent of tree states: snapshots and their parents.
//!
//! A snapshot is either a device's observation (with the device and its next number) or the merge of two
//! others (with neither: two devices that merge the same two make the same snapshot). Its id is the hash of
//! root, parents, device and number. Descent alone decides which is newer, never a clock.
//!
//! A device's own snapshots form a chain. Two with the same device and number and different ids mean that a
//! replica was copied with its identity, and are refused ([`VersionError::Forked`]).

pub use super::device::Device;

use super::tree::RootHash;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Maximum number of snapshots that a replica remembers, and that a peer may send.
pub const SNAPSHOTS_MAX: usize = 65_536;
/// Maximum number of devices.
pub const DEVICES_MAX: usize = 4096;
/// Maximum number of former trees that one sync uses.
pub(super) const MEETING_POINTS_MAX: usize = 32;
/// Maximum number of other heads with which the meeting points of a head are kept.
const MEETING_HEADS_MAX: usize = 64;

/// The id of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SnapshotId(pub [u8; 32]);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A state of the tree, and its parents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The root of the tree.
    pub root: RootHash,
    /// Ids of its parents, in order: none, one, or the two that were merged.
    pub parents: Vec<SnapshotId>,
    /// The device that observed it, and the number of this observation; `None` for a merge.
    pub seen: Option<(Device, u64)>,
}

impl Snapshot {
    /// Returns the snapshot that `device` observes after `parent`.
    pub fn of(root: RootHash, parent: Option<SnapshotId>, device: Device, seq: u64) -> Snapshot {
        Snapshot { root, parents: parent.into_iter().collect(), seen: Some((device, seq)) }
    }

    /// Returns the snapshot of a merge.
    pub fn merged(root: RootHash, a: SnapshotId, b: SnapshotId) -> Snapshot {
        Snapshot { root, parents: vec![a.min(b), a.max(b)], seen: None }
    }

    /// Returns its id.
    pub fn id(&self) -> SnapshotId {
        let bytes = postcard::to_allocvec(self).expect("a snapshot can be encoded");
        SnapshotId(*blake3::hash(&bytes).as_bytes())
    }
}

/// The highest number of each device, and the snapshot that has it.
pub type VersionVector = BTreeMap<Device, (u64, SnapshotId)>;

/// The reason why snapshots contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Two replicas have the same identity.
    #[error("the snapshot {seq} of {device} exists twice: a replica was copied together with its identity")]
    Forked {
        /// The device of the snapshot.
        device: Device,
        /// The number of the snapshot.
        seq: u64,
    },
    /// There are more than a replica remembers.
    #[error("more than {SNAPSHOTS_MAX} snapshots or {DEVICES_MAX} devices")]
    TooMany,
    /// It has a form that no device makes.
    #[error("a snapshot with {0} parents")]
    Parents(usize),
    /// A head that is unknown.
    #[error("the snapshot {0} is named, but was not sent")]
    Unknown(SnapshotId),
}

/// The remembered snapshots. A forgotten one shows as a parent that is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dag {
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    seen: BTreeMap<(Device, u64), SnapshotId>,
}

impl Dag {
    /// Returns the graph of `snapshots`.
    pub fn of(snapshots: impl IntoIterator<Item = Snapshot>) -> Result<Dag, VersionError> {
        let mut dag = Dag::default();
        snapshots.into_iter().try_for_each(|snapshot| dag.add(snapshot).map(drop))?;
        Ok(dag)
    }

    /// Adds a snapshot.
    pub fn add(&mut self, snapshot: Snapshot) -> Result<SnapshotId, VersionError> {
        let parents = snapshot.parents.len();
        if parents > 2
            || (snapshot.seen.is_none() && parents != 2)
            || (snapshot.seen.is_some() && parents > 1)
        {
            return Err(VersionError::Parents(parents));
        }
        let id = snapshot.id();
        if let Some(key) = &snapshot.seen {
            match self.seen.get(key) {
                Some(other) if *other != id => {
                    return Err(VersionError::Forked { device: key.0.clone(), seq: key.1 });
                }
                _ => self.seen.insert(key.clone(), id),
            };
        }
        self.snapshots.insert(id, snapshot);
        match self.snapshots.len() > SNAPSHOTS_MAX {
            true => Err(VersionError::TooMany),
            false => Ok(id),
        }
    }

    /// Returns a snapshot.
    pub fn get(&self, id: SnapshotId) -> Option<&Snapshot> {
        self.snapshots.get(&id)
    }

    /// Returns all snapshots.
    pub fn iter(&self) -> impl Iterator<Item = (SnapshotId, &Snapshot)> {
        self.snapshots.iter().map(|(id, snapshot)| (*id, snapshot))
    }

    /// Returns the number of snapshots.
    pub fn len(&self) -> usize {
        self.snapshots.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.snapshots.is_empty()
    }

    /// Returns `id` and all its ancestors. The search ends at ids that are not remembered; these are included.
    pub fn ancestors(&self, id: SnapshotId) -> BTreeSet<SnapshotId> {
        let mut found = BTreeSet::from([id]);
        let mut next = VecDeque::from([id]);
        while let Some(id) = next.pop_front() {
            for parent in self.get(id).map_or(&[][..], |snapshot| &snapshot.parents) {
                if found.insert(*parent) {
                    next.push_back(*parent);
                }
            }
        }
        found
    }

    /// Returns whether `b` is `a` or descends from it.
    pub fn descends(&self, b: SnapshotId, a: SnapshotId) -> bool {
        a == b || self.ancestors(b).contains(&a)
    }

    /// Returns the last common ancestors: those that no other common ancestor descends from, in order. There are
    /// several if both sides merged the same two separately.
    pub fn common(&self, a: SnapshotId, b: SnapshotId) -> Vec<SnapshotId> {
        let (of_a, of_b) = (self.ancestors(a), self.ancestors(b));
        // The descendants of a forgotten snapshot are unknown.
        let shared = of_a.intersection(&of_b).copied().filter(|id| self.snapshots.contains_key(id));
        let shared: BTreeSet<SnapshotId> = shared.collect();
        // Ancestors of a shared snapshot are shared too. So the parents of shared ones are to be left out.
        let older: BTreeSet<SnapshotId> = shared
            .iter()
            .flat_map(|id| self.get(*id).map_or(&[][..], |snapshot| &snapshot.parents))
            .copied()
            .collect();
        shared.difference(&older).copied().collect()
    }

    /// Returns the highest number of each device among the ancestors of `id`.
    pub fn vector(&self, id: SnapshotId) -> VersionVector {
        let mut vector = VersionVector::new();
        for id in self.ancestors(id) {
            if let Some(Snapshot { seen: Some((device, seq)), .. }) = self.get(id) {
                let last = vector.entry(device.clone()).or_insert((*seq, id));
                if last.0 < *seq {
                    *last = (*seq, id);
                }
            }
        }
        vector
    }

    /// Returns the meeting points of `a` and `b`: their last common ancestors and, if there are several, the last
    /// common ancestors of these. At most 32.
    pub fn meeting_points(&self, a: SnapshotId, b: SnapshotId) -> BTreeSet<SnapshotId> {
        let mut points = BTreeSet::new();
        let mut next = vec![self.common(a, b)];
        while let Some(common) = next.pop() {
            let new: Vec<SnapshotId> = common
                .into_iter()
                .filter(|id| points.len() < MEETING_POINTS_MAX && points.insert(*id))
                .collect();
            let pairs = new.iter().enumerate().flat_map(|(n, a)| new[n + 1..].iter().map(|b| (*a, *b)));
            next.extend(pairs.map(|(a, b)| self.common(a, b)));
        }
        points
    }

    /// Forgets common ancestors of all `heads`, the last known states of all devices. Keeps the heads, the meeting
    /// points of any two, and the snapshots between these.
    pub fn forget_before(&mut self, heads: &BTreeSet<SnapshotId>) {
        let mut everywhere: Option<BTreeSet<SnapshotId>> = None;
        for head in heads {
            let mut older = self.ancestors(*head);
            older.remove(head);
            everywhere = Some(match everywhere {
                Some(all) => all.intersection(&older).copied().collect(),
                None => older,
            });
        }
        let mut kept = heads.clone();
        for (n, a) in heads.iter().enumerate() {
            for b in heads.iter().skip(n + 1).take(MEETING_HEADS_MAX) {
                kept.extend(self.meeting_points(*a, *b));
            }
        }
        let mut children: BTreeMap<SnapshotId, Vec<SnapshotId>> = BTreeMap::new();
        for (id, snapshot) in &self.snapshots {
            snapshot.parents.iter().for_each(|parent| children.entry(*parent).or_default().push(*id));
        }
        let mut next: Vec<SnapshotId> = kept.iter().copied().collect();
        while let Some(id) = next.pop() {
            next.extend(children.remove(&id).into_iter().flatten().filter(|child| kept.insert(*child)));
        }
        let gone = everywhere.unwrap_or_default();
        self.snapshots.retain(|id, _| !gone.contains(id) || kept.contains(id));
        self.seen.retain(|_, id| self.snapshots.contains_key(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(n: u8) -> RootHash {
        RootHash([n; 32])
    }

    /// Each pair of devices merges the same two on its own, and goes on.
    #[test]
    fn last_common_ancestors() {
        let mut dag = Dag::default();
        let (a, b) = (Device::named("a"), Device::named("b"));
        let first = dag.add(Snapshot::of(root(0), None, a.clone(), 1)).unwrap();
        let left = dag.add(Snapshot::of(root(1), Some(first), a.clone(), 2)).unwrap();
        let right = dag.add(Snapshot::of(root(2), Some(first), b.clone(), 1)).unwrap();
        assert_eq!(dag.common(left, right), [first]);
        let merged = dag.add(Snapshot::merged(root(3), left, right)).unwrap();
        assert_eq!(merged, Snapshot::merged(root(3), right, left).id(), "whoever merges makes the same");
        assert_eq!(dag.common(merged, left), [left]);
        let more = dag.add(Snapshot::of(root(4), Some(left), a.clone(), 3)).unwrap();
        let crossed = dag.add(Snapshot::merged(root(5), more, right)).unwrap();
        let mut both = [left, right];
        both.sort();
        assert_eq!(dag.common(merged, crossed), both);
        assert!(dag.descends(crossed, first) && !dag.descends(first, crossed));
        let vector = dag.vector(crossed);
        assert_eq!(vector[&a].0, 3);
        assert_eq!(vector[&b].0, 1);
    }

    #[test]
    fn a_copied_replica_is_refused() {
        let mut dag = Dag::default();
        dag.add(Snapshot::of(root(1), None, Device::named("a"), 1)).unwrap();
        dag.add(Snapshot::of(root(1), None, Device::named("a"), 1)).unwrap();
        let other = dag.add(Snapshot::of(root(2), None, Device::named("a"), 1));
        assert!(matches!(other, Err(VersionError::Forked { seq: 1, .. })));
        assert_eq!(
            dag.add(Snapshot { parents: vec![], root: root(1), seen: None }),
            Err(VersionError::Parents(0))
        );
    }

    #[test]
    fn only_what_all_have_passed_is_forgotten() {
        let mut dag = Dag::default();
        let a = Device::named("a");
        let ids: Vec<_> = (1..=4u8).fold(vec![], |mut ids, n| {
            let parent = ids.last().copied();
            ids.push(dag.add(Snapshot::of(root(n), parent, a.clone(), n.into())).unwrap());
            ids
        });
        dag.forget_before(&BTreeSet::from([ids[3], ids[1]]));
        assert_eq!(dag.iter().map(|(id, _)| id).collect::<BTreeSet<_>>(), ids[1..].iter().copied().collect());
        assert_eq!(dag.common(ids[3], ids[1]), [ids[1]]);
    }

    /// All three came from the first, and a third one's state is newer than where the other two meet.
    #[test]
    fn where_two_meet_is_not_forgotten() {
        let mut dag = Dag::default();
        let seen = |n: u8, parent, name: &str| Snapshot::of(root(n), parent, Device::named(name), n.into());
        let first = dag.add(seen(1, None, "a")).unwrap();
        let met = dag.add(seen(2, Some(first), "a")).unwrap();
        let ends: Vec<_> =
            ["a", "b", "c"].map(|name| dag.add(seen(3, Some(met), name)).unwrap()).into_iter().collect();
        dag.forget_before(&ends.iter().copied().collect());
        assert_eq!(dag.common(ends[0], ends[1]), [met]);
        assert!(dag.get(met).is_some() && dag.get(first).is_none());
    }
}
