//! Users and groups of this machine, and their names in trees.
//!
//! - A tree has the names of the other side. The setting `owners` maps them to names here, and back.
//! - An id without a name here is `#1000` in a tree.
//! - The two directions are inverse: a file that got an owner from a tree gives that tree again.

use super::attributes::{id_of, is_account};
use std::collections::{BTreeMap, HashMap};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of questions to `getent`, so that a peer with many names cannot keep this machine busy.
const ASKED_MAX: u32 = 1000;

/// Names of the other side, and the names that they have here.
pub type NameMap = BTreeMap<String, String>;

/// The reason why a name of a tree means no account here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unknown {
    /// No account has this name.
    Missing(Vec<u8>),
    /// An id without a name on the other side, and the name that it has here.
    Named(Vec<u8>, Vec<u8>),
    /// A name here that the map uses for another name of the other side.
    Used(Vec<u8>),
}

/// A database of the system.
struct Table {
    /// `passwd` or `group`.
    database: &'static str,
    names: HashMap<u32, Option<Vec<u8>>>,
    ids: HashMap<Vec<u8>, Option<u32>>,
}

impl Table {
    fn of(database: &'static str, text: &[u8]) -> Table {
        let mut table = Table { database, names: HashMap::new(), ids: HashMap::new() };
        for (name, id) in text.split(|byte| *byte == b'\n').filter_map(parse_line) {
            table.learn(name, id);
        }
        table
    }

    /// The first line counts, as for the system.
    fn learn(&mut self, name: Vec<u8>, id: u32) {
        self.names.entry(id).or_insert_with(|| Some(name.clone()));
        self.ids.entry(name).or_insert(Some(id));
    }

    /// Asks the system, which may know more accounts than the file does.
    fn ask(&mut self, key: &[u8], asked: &mut u32) {
        if *asked >= ASKED_MAX {
            return;
        }
        *asked += 1;
        let mut command = Command::new("getent");
        let key = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(key);
        command.arg("--").arg(self.database).arg(key).stdin(Stdio::null()).stderr(Stdio::null());
        let answer = command.output().ok().filter(|answer| answer.status.success());
        if let Some((name, id)) = answer.and_then(|answer| parse_line(&answer.stdout)) {
            self.learn(name, id);
        }
    }

    fn name(&mut self, id: u32, asked: &mut u32) -> Option<Vec<u8>> {
        if !self.names.contains_key(&id) {
            self.ask(id.to_string().as_bytes(), asked);
        }
        self.names.entry(id).or_insert(None).clone()
    }

    fn id(&mut self, name: &[u8], asked: &mut u32) -> Option<u32> {
        if !self.ids.contains_key(name) {
            self.ask(name, asked);
        }
        *self.ids.entry(name.to_vec()).or_insert(None)
    }
}

/// Returns name and id of a line of `passwd` or `group`.
fn parse_line(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let mut fields = line.split(|byte| *byte == b':' || *byte == b'\n');
    let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
    let id = std::str::from_utf8(id).ok()?.parse().ok()?;
    (!name.is_empty()).then(|| (name.to_vec(), id))
}

struct Tables {
    users: Table,
    groups: Table,
    asked: u32,
}

/// See the module.
pub struct Accounts {
    tables: Mutex<Tables>,
    here: HashMap<Vec<u8>, Vec<u8>>,
    there: HashMap<Vec<u8>, Vec<u8>>,
}

impl Accounts {
    /// Returns the accounts of this machine.
    pub fn of_system(map: &NameMap) -> Accounts {
        let read = |path| std::fs::read(path).unwrap_or_default();
        Accounts::of(&read("/etc/passwd"), &read("/etc/group"), map, 0)
    }

    /// Returns accounts for a device that sees no attribute with a name.
    pub fn none() -> Accounts {
        Accounts::of(b"", b"", &NameMap::new(), ASKED_MAX)
    }

    fn of(passwd: &[u8], group: &[u8], map: &NameMap, asked: u32) -> Accounts {
        let bytes = |text: &String| text.as_bytes().to_vec();
        let tables = Tables { users: Table::of("passwd", passwd), groups: Table::of("group", group), asked };
        Accounts {
            tables: Mutex::new(tables),
            here: map.iter().map(|(there, here)| (bytes(there), bytes(here))).collect(),
            there: map.iter().map(|(there, here)| (bytes(here), bytes(there))).collect(),
        }
    }

    /// Returns the name of a user, or of a group, in trees.
    pub fn name(&self, id: u32, user: bool) -> Vec<u8> {
        let number = format!("#{id}").into_bytes();
        let name = self.local_name(id, user);
        let known =
            [Some(&number), name.as_ref()].into_iter().flatten().find_map(|name| self.there.get(name));
        if let Some(there) = known {
            return there.clone();
        }
        // A name that means another account in trees.
        name.filter(|name| !self.here.contains_key(name)).unwrap_or(number)
    }

    /// Returns the id of a name in a tree.
    pub fn id(&self, name: &[u8], user: bool) -> Result<u32, Unknown> {
        let mapped = self.here.get(name);
        if mapped.is_none() && self.there.contains_key(name) {
            return Err(Unknown::Used(name.to_vec()));
        }
        let here = mapped.map_or(name, |here| here);
        if let Some(id) = id_of(here) {
            return match self.local_name(id, user) {
                Some(named) if mapped.is_none() && !self.here.contains_key(&named) => {
                    Err(Unknown::Named(name.to_vec(), named))
                }
                _ => Ok(id),
            };
        }
        let found = {
            let Tables { users, groups, asked } = &mut *self.tables();
            let table = if user { users } else { groups };
            table.id(here, asked)
        };
        // An id with several names comes back as the first of them, which would be a change.
        let is_first = |id: &u32| self.local_name(*id, user).as_deref() == Some(here);
        found.filter(is_first).ok_or_else(|| Unknown::Missing(here.to_vec()))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of an id here, if that name leads back to it and can be in a tree.
    fn local_name(&self, id: u32, user: bool) -> Option<Vec<u8>> {
        let Tables { users, groups, asked } = &mut *self.tables();
        let table = if user { users } else { groups };
        let name = table.name(id, asked)?;
        let leads_back = table.id(&name, asked) == Some(id);
        (leads_back && is_account(&name) && name[0] != b'#').then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\nal:x:1000:1000::/:/bin/sh\n\
        ann:x:1001:1001::/:\nalice:x:1002:1002::/:\nodd,name:x:1003:1003::/:\nbroken\n::\nx:y:z:\n";

    fn accounts(map: &[(&str, &str)]) -> Accounts {
        let map = map.iter().map(|(there, here)| ((*there).to_owned(), (*here).to_owned())).collect();
        Accounts::of(PASSWD, b"users:x:100:al,ann\nal:x:1000:\n", &map, ASKED_MAX)
    }

    fn name(accounts: &Accounts, id: u32) -> String {
        let name = accounts.name(id, true);
        assert_eq!(accounts.id(&name, true), Ok(id), "the way back of {}", String::from_utf8_lossy(&name));
        String::from_utf8(name).unwrap()
    }

    #[test]
    fn names_lead_back() {
        let all = accounts(&[]);
        let names: Vec<String> = [0, 1000, 1002, 1003, 77].map(|id| name(&all, id)).to_vec();
        assert_eq!(names, ["root", "al", "alice", "#1003", "#77"]);
        assert_eq!((all.name(100, false), all.id(b"users", false)), (b"users".to_vec(), Ok(100)));
        // It would come back as root.
        assert_eq!(all.id(b"toor", true), Err(Unknown::Missing(b"toor".to_vec())));
        assert_eq!(all.id(b"nobody", true), Err(Unknown::Missing(b"nobody".to_vec())));
        // An id without a name there has one here.
        assert_eq!(all.id(b"#1001", true), Err(Unknown::Named(b"#1001".to_vec(), b"ann".to_vec())));
        assert_eq!(all.id(b"#1001", false), Ok(1001), "no group has this id");
    }

    #[test]
    fn a_map_leads_both_ways() {
        let all = accounts(&[("alice", "al"), ("#1000", "ann"), ("web", "#33"), ("x", "missing")]);
        let names: Vec<String> = [1000, 1001, 1002, 33].map(|id| name(&all, id)).to_vec();
        // The alice of here is not the one of there.
        assert_eq!(names, ["alice", "#1000", "#1002", "web"]);
        assert_eq!(all.id(b"alice", true), Ok(1000));
        // It would come back as alice.
        assert_eq!(all.id(b"al", true), Err(Unknown::Used(b"al".to_vec())));
        assert_eq!(all.id(b"x", true), Err(Unknown::Missing(b"missing".to_vec())));
    }
}
