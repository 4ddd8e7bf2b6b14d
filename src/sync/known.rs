//! Names and snapshots that two sides send each other. Each goes only once; later, its number among those that either
//! side has sent refers to it. So the called side sends only those that the caller does not know.

use super::device::Device;
use super::error::SyncError;
use super::version::{DEVICES_MAX, SNAPSHOTS_MAX, Snapshot, SnapshotId, VersionError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The history that a side knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The snapshot of its present tree.
    pub head: SnapshotId,
    /// The snapshots that it remembers.
    pub snapshots: Vec<Snapshot>,
    /// The snapshots whose trees it has.
    pub trees: BTreeSet<SnapshotId>,
    /// The last known snapshots of other devices.
    pub heads: Vec<(Device, SnapshotId)>,
    /// Whether an interrupted sync left files in its staging that the other side does not know of.
    pub begun: bool,
}

/// A snapshot by its number, or by id if no side remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Name {
    Told(u32),
    Forgotten(SnapshotId),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    root: [u8; 32],
    parents: Vec<Name>,
    seen: Option<(u32, u64)>,
}

/// The encoded form of [`Known`], relative to what both sides sent before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telling {
    devices: Vec<Device>,
    rows: Vec<Row>,
    head: u32,
    /// A bit for each snapshot sent so far, the lowest first.
    trees: Vec<u8>,
    heads: Vec<(u32, u32)>,
    begun: bool,
}

/// Devices and snapshots that either side has sent.
#[derive(Default)]
pub struct Told {
    devices: Vec<Device>,
    ids: Vec<SnapshotId>,
}

impl Told {
    /// Adds a device, which both sides know from the hellos.
    pub fn greet(&mut self, device: &Device) {
        if !self.devices.contains(device) {
            self.devices.push(device.clone());
        }
    }

    /// Encodes `known`, and adds its devices and snapshots.
    pub fn tell(&mut self, known: &Known) -> Telling {
        let mut dag: BTreeMap<SnapshotId, &Snapshot> =
            known.snapshots.iter().map(|snapshot| (snapshot.id(), snapshot)).collect();
        let mut telling = Telling {
            devices: Vec::new(),
            rows: Vec::new(),
            head: 0,
            trees: Vec::new(),
            heads: Vec::new(),
            begun: known.begun,
        };
        let mut devices: BTreeMap<Device, u32> = self.devices.iter().cloned().zip(0..).collect();
        let mut places: BTreeMap<SnapshotId, u32> = self.ids.iter().copied().zip(0..).collect();
        let mut number = |device: &Device, new: &mut Vec<Device>| {
            let next = devices.len() as u32;
            *devices.entry(device.clone()).or_insert_with(|| {
                new.push(device.clone());
                next
            })
        };
        dag.retain(|id, _| !places.contains_key(id));
        // Parents first.
        let mut next: Vec<SnapshotId> = dag.keys().rev().copied().collect();
        while let Some(id) = next.pop() {
            let Some(snapshot) = dag.get(&id) else { continue };
            let before: Vec<SnapshotId> =
                snapshot.parents.iter().copied().filter(|parent| dag.contains_key(parent)).collect();
            if !before.is_empty() {
                next.push(id);
                next.extend(before);
                continue;
            }
            let name = |id: &SnapshotId| places.get(id).map_or(Name::Forgotten(*id), |at| Name::Told(*at));
            let parents = snapshot.parents.iter().map(name).collect();
            let seen =
                snapshot.seen.as_ref().map(|(device, seq)| (number(device, &mut telling.devices), *seq));
            telling.rows.push(Row { root: snapshot.root.0, parents, seen });
            places.insert(id, places.len() as u32);
            self.ids.push(id);
            dag.remove(&id);
        }
        telling.head = places.get(&known.head).copied().unwrap_or(u32::MAX);
        telling.trees = vec![0; self.ids.len().div_ceil(8)];
        for at in known.trees.iter().filter_map(|id| places.get(id)) {
            telling.trees[*at as usize / 8] |= 1 << (at % 8);
        }
        for (device, id) in &known.heads {
            if let Some(at) = places.get(id) {
                telling.heads.push((number(device, &mut telling.devices), *at));
            }
        }
        self.devices.extend(telling.devices.iter().cloned());
        telling
    }

    /// Decodes a peer's message.
    pub fn take(&mut self, telling: Telling) -> Result<Known, SyncError> {
        let unknown = || SyncError::peer("named a snapshot that it did not send");
        self.devices.extend(telling.devices);
        if telling.rows.len() > SNAPSHOTS_MAX
            || telling.heads.len() > DEVICES_MAX
            || self.devices.len() > 2 * DEVICES_MAX
        {
            return Err(VersionError::TooMany.into());
        }
        let device = |at: u32| self.devices.get(at as usize).cloned().ok_or_else(unknown);
        let mut snapshots = Vec::with_capacity(telling.rows.len());
        for row in telling.rows {
            let id = |name: Name| match name {
                Name::Told(at) => self.ids.get(at as usize).copied().ok_or_else(unknown),
                Name::Forgotten(id) => Ok(id),
            };
            let parents = row.parents.into_iter().map(id).collect::<Result<_, _>>()?;
            let seen = row.seen.map(|(at, seq)| Ok::<_, SyncError>((device(at)?, seq))).transpose()?;
            let snapshot = Snapshot { root: super::tree::RootHash(row.root), parents, seen };
            self.ids.push(snapshot.id());
            snapshots.push(snapshot);
        }
        let id = |at: u32| self.ids.get(at as usize).copied().ok_or_else(unknown);
        let has = |at: usize| telling.trees.get(at / 8).is_some_and(|bits| bits & (1 << (at % 8)) != 0);
        let heads = telling.heads.into_iter().map(|(of, at)| Ok((device(of)?, id(at)?)));
        Ok(Known {
            head: id(telling.head)?,
            snapshots,
            trees: self.ids.iter().enumerate().filter(|(at, _)| has(*at)).map(|(_, id)| *id).collect(),
            heads: heads.collect::<Result<_, SyncError>>()?,
            begun: telling.begun,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::RootHash;
    use super::*;

    fn dag(names: &[&str]) -> (Vec<Snapshot>, SnapshotId) {
        let (mut all, mut last) = (Vec::new(), Some(SnapshotId([9; 32])));
        for (name, n) in names.iter().zip(1..) {
            let snapshot = Snapshot::of(RootHash([n; 32]), last, Device::named(name), u64::from(n));
            last = Some(snapshot.id());
            all.push(snapshot);
        }
        (all, last.unwrap())
    }

    fn of(snapshots: &[Snapshot], head: SnapshotId) -> Known {
        let heads = vec![(Device::named("c"), snapshots[0].id())];
        let trees = BTreeSet::from([head]);
        Known { head, snapshots: snapshots.to_vec(), trees, heads, begun: true }
    }

    #[test]
    fn what_was_told_once_is_not_told_again() {
        let (all, head) = dag(&["a", "b", "a"]);
        let (mut caller, mut called) = (Told::default(), Told::default());
        for side in [&mut caller, &mut called] {
            side.greet(&Device::named("a"));
            side.greet(&Device::named("b"));
        }
        let telling = caller.tell(&of(&all, head));
        let there = called.take(telling).unwrap();
        let sorted = |known: &Known| {
            let mut ids: Vec<_> = known.snapshots.iter().map(Snapshot::id).collect();
            ids.sort();
            ids
        };
        assert_eq!(sorted(&there), sorted(&of(&all, head)));
        assert_eq!((there.head, &there.heads, there.begun), (head, &of(&all, head).heads, true));
        // It knows two of them, and one more.
        let older = all[1].id();
        let answer = called.tell(&of(&all[..2], older));
        assert!(postcard::to_allocvec(&answer).unwrap().len() < 12, "{answer:?}");
        let here = caller.take(answer).unwrap();
        assert_eq!((here.head, here.snapshots, here.trees), (older, vec![], BTreeSet::from([older])));
    }

    #[test]
    fn what_was_not_told_is_refused() {
        let (all, head) = dag(&["a"]);
        let good = Told::default().tell(&of(&all, head));
        let wrong = [
            Telling { head: 1, ..good.clone() },
            Telling { heads: vec![(2, 0)], ..good.clone() },
            Telling { heads: vec![(0, 1)], ..good.clone() },
            Telling { devices: vec![], ..good.clone() },
            Telling {
                rows: vec![Row { parents: vec![Name::Told(0)], ..good.rows[0].clone() }],
                ..good.clone()
            },
        ];
        for telling in wrong {
            assert!(Told::default().take(telling.clone()).is_err(), "{telling:?}");
        }
        Told::default().take(good).unwrap();
    }
}
