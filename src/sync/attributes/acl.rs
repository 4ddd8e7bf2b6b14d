//! An ACL in its two forms: text, as in `getfacl`'s short form, and the value of the kernel's xattr.
//!
//! The access ACL of a file has four entries that its mode has too: those of the owner, of others, and the mask. An access ACL
//! here has the rest. A default ACL here has all entries.

use super::account::is_account;
use std::collections::BTreeMap;

/// Xattr of the access ACL.
pub const ACCESS_XATTR: &str = "system.posix_acl_access";
/// Xattr of the default ACL.
pub const DEFAULT_XATTR: &str = "system.posix_acl_default";

/// Maximum bytes of a text. The kernel's limits are lower for names of usual length.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Version of the xattr's form, and the bytes of an entry.
const VERSION: [u8; 4] = 2u32.to_le_bytes();
const ENTRY_BYTES: usize = 8;
/// The id of an entry without one.
const NO_ID: u32 = u32::MAX;

/// The account that an entry of an ACL concerns; `N` is its name or id. In the order of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key<N> {
    /// The owner of the file.
    Owner,
    /// A user.
    User(N),
    /// The group of the file.
    OwnGroup,
    /// A group.
    Group(N),
    /// The limit of all but the owner and others.
    Mask,
    /// Everyone else.
    Other,
}

/// Entries and their rights: 4 to read, 2 to write, 1 to execute.
pub type Acl<N> = BTreeMap<Key<N>, u8>;
/// An ACL with names.
pub type Named = Acl<Vec<u8>>;
/// An ACL with ids.
pub type Numbered = Acl<u32>;

fn rights_text(rights: u8) -> [u8; 3] {
    let mark = |bit, letter| if rights & bit != 0 { letter } else { b'-' };
    [mark(4, b'r'), mark(2, b'w'), mark(1, b'x')]
}

fn parse_rights(text: &[u8]) -> Option<u8> {
    (0..8).find(|rights| rights_text(*rights) == text)
}

/// Returns the text.
pub fn text(acl: &Named) -> Vec<u8> {
    let entry = |(key, rights): (&Key<Vec<u8>>, &u8)| {
        let (kind, name): (&[u8], &[u8]) = match key {
            Key::Owner => (b"user", b""),
            Key::User(name) => (b"user", name),
            Key::OwnGroup => (b"group", b""),
            Key::Group(name) => (b"group", name),
            Key::Mask => (b"mask", b""),
            Key::Other => (b"other", b""),
        };
        [kind, b":", name, b":", &rights_text(*rights)].concat()
    };
    acl.iter().map(entry).collect::<Vec<_>>().join(&b","[..])
}

/// Parses a text; returns `None` unless it is the only text of a valid ACL.
pub fn parse(text: &[u8], default: bool) -> Option<Named> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let entry = |part: &[u8]| {
        let mut fields = part.split(|byte| *byte == b':');
        let (kind, name, rights) = (fields.next()?, fields.next()?, fields.next()?);
        let key = match (kind, name) {
            (b"user", b"") => Key::Owner,
            (b"group", b"") => Key::OwnGroup,
            (b"mask", b"") => Key::Mask,
            (b"other", b"") => Key::Other,
            (b"user", name) => Key::User(name.to_vec()),
            (b"group", name) => Key::Group(name.to_vec()),
            _ => return None,
        };
        fields.next().is_none().then_some((key, parse_rights(rights)?))
    };
    let acl: Named = text.split(|byte| *byte == b',').map(entry).collect::<Option<_>>()?;
    (is_whole(&acl, default) && self::text(&acl) == text).then_some(acl)
}

fn is_whole(acl: &Named, default: bool) -> bool {
    let has = |key| acl.contains_key(&key);
    let mut names = acl.keys().filter_map(|key| match key {
        Key::User(name) | Key::Group(name) => Some(name),
        _ => None,
    });
    let named = names.clone().next().is_some();
    let of_mode = [has(Key::Owner), has(Key::Other)];
    let fits = match default {
        true => of_mode == [true, true] && (has(Key::Mask) || !named),
        false => of_mode == [false, false] && !has(Key::Mask),
    };
    fits && has(Key::OwnGroup) && names.all(|name| is_account(name))
}

/// Returns whether an xattr is an ACL.
pub fn is_xattr(name: &[u8]) -> bool {
    name == ACCESS_XATTR.as_bytes() || name == DEFAULT_XATTR.as_bytes()
}

/// Returns the value of the xattr for an ACL with all entries.
pub fn encode(acl: &Numbered) -> Vec<u8> {
    let mut value = VERSION.to_vec();
    for (key, rights) in acl {
        let (tag, id): (u16, u32) = match key {
            Key::Owner => (1, NO_ID),
            Key::User(id) => (2, *id),
            Key::OwnGroup => (4, NO_ID),
            Key::Group(id) => (8, *id),
            Key::Mask => (16, NO_ID),
            Key::Other => (32, NO_ID),
        };
        value.extend(tag.to_le_bytes());
        value.extend(u16::from(*rights).to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Reads the value of the xattr.
pub fn decode(value: &[u8]) -> Option<Numbered> {
    let entries = value.strip_prefix(&VERSION)?;
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    let entry = |entry: &[u8; ENTRY_BYTES]| {
        let id = u32::from_le_bytes(*entry.last_chunk()?);
        let key = match u16::from_le_bytes([entry[0], entry[1]]) {
            1 => Key::Owner,
            2 => Key::User(id),
            4 => Key::OwnGroup,
            8 => Key::Group(id),
            16 => Key::Mask,
            32 => Key::Other,
            _ => return None,
        };
        Some((key, entry[2] & 7))
    };
    if rest.is_empty() { entries.iter().map(entry).collect() } else { None }
}

/// Adds the entries of an access ACL that the mode has.
pub fn with_mode(acl: &Numbered, mode: u16) -> Numbered {
    let bits = |shift: u16| (mode >> shift & 7) as u8;
    let mut acl = acl.clone();
    acl.extend([(Key::Owner, bits(6)), (Key::Mask, bits(3)), (Key::Other, bits(0))]);
    acl
}

/// Removes the entries of an access ACL that the mode has. Returns `None` if nothing else is left.
pub fn without_mode(mut acl: Numbered) -> Option<Numbered> {
    acl.remove(&Key::Mask)?;
    acl.remove(&Key::Owner);
    acl.remove(&Key::Other);
    Some(acl)
}

/// Returns `mode` with the rights of the file's group instead of the mask: the mode for a device that cannot set the ACL in the
/// text `acl`. With the mask, the group would get rights that the ACL gives to others.
pub fn mode_without(acl: &[u8], mode: u16) -> u16 {
    let own = parse(acl, false).and_then(|acl| acl.get(&Key::OwnGroup).copied()).unwrap_or(7);
    mode & !(7 << 3) | (mode & u16::from(own) << 3)
}

/// Translates names or ids. Leaves out entries without a translation.
pub fn translate<A, B: Ord>(acl: &Acl<A>, mut to: impl FnMut(&A, bool) -> Option<B>) -> Acl<B> {
    let mut key = |key: &Key<A>| {
        Some(match key {
            Key::Owner => Key::Owner,
            Key::User(user) => Key::User(to(user, true)?),
            Key::OwnGroup => Key::OwnGroup,
            Key::Group(group) => Key::Group(to(group, false)?),
            Key::Mask => Key::Mask,
            Key::Other => Key::Other,
        })
    };
    let mut out: Acl<B> = Acl::new();
    for (from, rights) in acl {
        // Two accounts of one name get the rights of both, as a person with both would have.
        if let Some(to) = key(from) {
            *out.entry(to).or_default() |= rights;
        }
    }
    out
}
