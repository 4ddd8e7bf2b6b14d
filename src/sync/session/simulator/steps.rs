//! Steps of a plan, done to a device of the simulator: it refuses, stops, and users interfere.

use super::super::super::tree::Ident;
use super::disk::{Disk, Node, What};
use super::*;

impl Steps for Disk {
    fn run(&mut self, ops: &[Op]) -> Result<Vec<Skipped>, SyncError> {
        let mut skipped = Vec::new();
        let mut changed: BTreeSet<u64> = BTreeSet::new();
        let mut unsaved: BTreeSet<ContentId> = BTreeSet::new();
        for (n, op) in ops.iter().enumerate() {
            // Contents that the last step should have put somewhere, if it was skipped.
            if let Some(last) = n.checked_sub(1).map(|last| &ops[last])
                && skipped.iter().any(|step: &Skipped| step.path == *last.path() || step.path.is_empty())
            {
                unsaved.extend(last.puts());
            }
            self.tick()?;
            tell(format!("{} does {op:?}", self.device));
            if let Some((path, ..)) = op.staged().into_iter().find(|(_, entry, _)| {
                entry.kind.content().is_some_and(|content| self.absent.contains_key(&content))
            }) {
                skipped.push(Skipped { path, why: String::new(), again: false });
                unsaved.extend(op.puts());
                continue;
            }
            if op.takes_away().iter().any(|content| unsaved.contains(content)) {
                skipped.push(Skipped { path: op.path().clone(), why: String::new(), again: true });
                continue;
            }
            if let Op::Replace { path, .. } | Op::Remove { path, .. } | Op::Meta { path, .. } = op
                && let Some(ino) = self.files.get(path).map(|node| node.ino)
                && self.strict
                && !changed.insert(ino)
            {
                skipped.push(Skipped { path: path.clone(), why: String::new(), again: true });
                continue;
            }
            // A user writes to a file between two steps.
            if let Some(left) = &mut self.interferes {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.interferes = None;
                    let path = self
                        .files
                        .iter()
                        .find(|(_, node)| matches!(node.what, What::File(_)))
                        .map(|(p, _)| p.clone());
                    if let Some(path) = path {
                        INTERFERED.with_borrow_mut(|all| {
                            all.push((self.files[&path].what.clone(), self.device.clone()))
                        });
                        let n = INTERFERED.with_borrow(Vec::len);
                        let text = What::File(format!("written meanwhile {n} on {}", self.device));
                        let ino = self.files[&path].ino;
                        self.files
                            .values_mut()
                            .filter(|node| node.ino == ino)
                            .for_each(|node| node.what = text.clone());
                        self.note_states();
                    }
                }
            }
            let parent_is_there = |path: &TreePath| {
                let dir = split(path).0;
                dir.is_empty() || self.files.get(dir).is_some_and(|node| node.what == What::Dir)
            };
            let mut skip = |path: &TreePath| {
                skipped.push(Skipped { path: path.clone(), why: String::new(), again: true })
            };
            if let Some(left) = &mut self.refuses {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.refuses = None;
                    skip(&Vec::new());
                    continue;
                }
            }
            match op {
                Op::MakeDir { path, entry } => {
                    if self.files.contains_key(path) || !parent_is_there(path) {
                        skip(path);
                        continue;
                    }
                    let ino = self.ino();
                    self.files
                        .insert(path.clone(), Node { ino, what: What::Dir, mode: entry.mode, mtime: 0 });
                }
                Op::Move { from, to } => {
                    if self.files.contains_key(to) || !self.files.contains_key(from) || !parent_is_there(to) {
                        skip(from);
                        continue;
                    }
                    self.rename(from, to);
                }
                Op::Create { path, entry, link } | Op::Replace { path, entry, link, .. } => {
                    let fits = match op {
                        Op::Replace { was, .. } => self.matches(path, was),
                        _ => !self.files.contains_key(path),
                    };
                    if !fits || !parent_is_there(path) {
                        skip(path);
                        continue;
                    }
                    let node = match link {
                        Some(link) => match self.files.get(link) {
                            Some(node) if self.matches(link, entry) => node.clone(),
                            _ => {
                                skip(path);
                                continue;
                            }
                        },
                        None => {
                            let text = self
                                .staged
                                .get(&entry.kind.content().unwrap())
                                .expect("staged before")
                                .clone();
                            let ino = self.ino();
                            Node { ino, what: What::File(text), mode: entry.mode, mtime: entry.mtime.0 }
                        }
                    };
                    self.files.insert(path.clone(), node);
                }
                Op::Remove { path, was } => {
                    let below = join(path, b"");
                    let inside = self.files.iter().filter(|(other, _)| other.starts_with(&below));
                    let is_in = |(other, node): (&TreePath, &Node)| {
                        self.selection.includes(other, node.what == What::Dir)
                    };
                    let (inside, included) =
                        (inside.clone().count(), inside.filter(|row| is_in(*row)).count());
                    if !self.matches(path, was) || included > 0 {
                        skip(path);
                        continue;
                    }
                    // Files that are left out keep their directory.
                    if inside == 0 {
                        self.files.remove(path);
                    }
                }
                Op::Group { path, was, is } => {
                    let at = |suffix: &Vec<u8>| [&path[..], suffix].concat();
                    let below = join(path, b"");
                    let dir = |rows: &Rows| rows.get(ITSELF).is_some_and(|row| row.kind.is_dir());
                    let there = match (was.is_empty(), dir(was)) {
                        (true, _) => self.files.keys().filter(|other| *other == path).count(),
                        (_, true) => self
                            .files
                            .keys()
                            .filter(|other| *other == path || other.starts_with(&below))
                            .count(),
                        _ => was.len(),
                    };
                    let fits = was.iter().all(|(suffix, row)| self.matches(&at(suffix), row));
                    if !fits || there != was.len() || !parent_is_there(path) {
                        skip(path);
                        continue;
                    }
                    let mut old: BTreeMap<Vec<u8>, Node> = BTreeMap::new();
                    for suffix in was.keys() {
                        old.insert(suffix.clone(), self.files.remove(&at(suffix)).unwrap());
                    }
                    let mut links: BTreeMap<Ident, Node> = BTreeMap::new();
                    for (suffix, row) in is {
                        let stays = was.get(suffix).is_some_and(|was| group::stays(was, row));
                        let node = links.get(&row.ident).cloned().filter(|_| !row.kind.is_dir());
                        let node = node.unwrap_or_else(|| match (old.remove(suffix), row.kind.content()) {
                            (Some(node), _) if stays => node,
                            (_, Some(content)) => {
                                let text = self.staged.get(&content).expect("staged before").clone();
                                Node {
                                    ino: self.ino(),
                                    what: What::File(text),
                                    mode: row.mode,
                                    mtime: row.mtime.0,
                                }
                            }
                            _ => Node { ino: self.ino(), what: What::Dir, mode: row.mode, mtime: 0 },
                        });
                        links.insert(row.ident, node.clone());
                        self.files.insert(at(suffix), node);
                    }
                }
                Op::Meta { path, was, entry } => {
                    if !self.matches(path, was) {
                        skip(path);
                        continue;
                    }
                    let ino = self.files[path].ino;
                    for node in self.files.values_mut().filter(|node| node.ino == ino) {
                        (node.mode, node.mtime) = (entry.mode, entry.mtime.0);
                    }
                }
            }
        }
        Ok(skipped)
    }

    fn groups(&self) -> Groups {
        Groups::default()
    }

    fn ignored(&mut self, _: &Tree) -> Result<Ignored, SyncError> {
        Ok(Ignored::of(""))
    }

    fn keep_twice(&mut self, conflicts: &[Conflict]) {
        KEPT_TWICE.with_borrow_mut(|all| {
            all.extend(conflicts.iter().map(|conflict| conflict.copy.clone()));
        });
    }

    fn look_again(&mut self, before: &Tree, agreed: &Tree) -> Result<Now, SyncError> {
        let tree = self.tree_of_disk(before, Some(agreed));
        Ok(Now { tree, here: self.here.clone() })
    }

    fn goal(&self, now: &Now, target: &Tree, agreed: &Tree) -> Result<Tree, SyncError> {
        let Some(here) = &now.here else { return Ok(target.clone()) };
        let agreed = agreed.contents();
        let sources = presence::Sources {
            can_come: &|content| self.staged.contains_key(&content) || self.absent.contains_key(&content),
            is_elsewhere: &|content| agreed.contains_key(&content) && !self.kept.contains(&content),
            is_used: &|path| self.files.contains_key(path),
        };
        Ok(presence::goal(&self.selection, &Groups::default(), here, target, &sources).tree)
    }

    fn stage_for(&mut self, ops: &[Op]) -> Result<(), SyncError> {
        for op in ops {
            for content in op.staged().iter().filter_map(|(_, entry, _)| entry.kind.content()) {
                if !self.absent.contains_key(&content) && !self.stage(content)? {
                    return Err(SyncError::Changed("a content is neither staged nor at home".to_owned()));
                }
            }
        }
        Ok(())
    }
}
