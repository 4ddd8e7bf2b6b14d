use super::acl::{Named, Numbered};
use super::*;

#[test]
fn values_have_one_form() {
    let owner = |value: &[u8]| is_valid(OWNER, value, Place::Other);
    for good in [&b"alice:users"[..], b"#0:#4294967294", b"DOM\\ann smith:\xc3\xa4", b"a:#7"] {
        assert!(owner(good), "{good:?}");
    }
    let long = [&[b'a'; 256][..], b":g"].concat();
    let numbers = [&b"#:g"[..], b"#-1:g", b"#+1:g", b"#007:g", b"#4294967295:g", b"#1x:g", b"##1:g"];
    for bad in [&b""[..], b"a", b":", b"a:", b":g", b"a:b:c", b"a\0:g", b"a\n:g", b"a,b:g", b"a:\x7f", &long]
        .into_iter()
        .chain(numbers)
    {
        assert!(!owner(bad), "{bad:?}");
    }
    let acl = |value: &[u8]| is_valid(ACL, value, Place::File);
    for good in
        [&b"group::r--"[..], b"user:bob:r-x,group::---,group:#5:rwx", b"user:a:---,user:b:r--,group::r--"]
    {
        assert!(acl(good), "{}", String::from_utf8_lossy(good));
        assert!(is_valid(ACL, good, Place::Dir) && !is_valid(ACL, good, Place::Other));
    }
    let bad: [&[u8]; 15] = [
        b"",
        b"user:bob:r-x",
        b"group::r--,",
        b"group::rw",
        b"group::rwX",
        b"group::xwr",
        b"group::r--,user:bob:r--",
        b"user:b:r--,user:a:r--,group::r--",
        b"user:a:r--,user:a:r--,group::r--",
        b"user::rwx,group::r--",
        b"group::r--,mask::r--",
        b"group::r--,other::r--",
        b"group::r--:x",
        b"user:#01:r--,group::r--",
        b"root::rwx,group::r--",
    ];
    for bad in bad {
        assert!(!acl(bad), "{}", String::from_utf8_lossy(bad));
    }
    let many: Vec<String> = (0..20_000).map(|n| format!("user:{n:06}:r--")).collect();
    assert!(!acl([many.join(",").as_bytes(), b",group::r--"].concat().as_slice()), "too long");
    let default = |value: &[u8]| is_valid(DEFAULT_ACL, value, Place::Dir);
    assert!(default(b"user::rwx,group::r-x,other::---"));
    assert!(default(b"user::rwx,user:bob:rwx,group::r-x,mask::rwx,other::---"));
    assert!(!default(b"user::rwx,user:bob:rwx,group::r-x,other::---") && !default(b"group::r-x"));
    assert!(!is_valid(DEFAULT_ACL, b"user::rwx,group::r-x,other::---", Place::File));
    for name in
        [&b"user.x"[..], b"security.capability", b"system.posix_acl_access", b"Owner", b"trusted.x", b""]
    {
        assert!(!is_valid(name, b"alice:users", Place::Dir), "{name:?}");
    }
}

#[test]
fn an_acl_in_the_form_of_the_kernel_comes_back() {
    let acl = acl::parse(b"user:#7:r-x,user:#8:-w-,group::r--,group:#3:rwx", false).unwrap();
    let ids = acl::translate(&acl, |name, _| id_of(name));
    let whole = acl::with_mode(&ids, 0o1750);
    let value = acl::encode(&whole);
    assert_eq!(value.len(), 4 + 7 * 8);
    assert_eq!(acl::decode(&value), Some(whole.clone()));
    assert_eq!(acl::without_mode(whole), Some(ids.clone()));
    let names = |acl: &Numbered| acl::translate(acl, |id, _| Some(format!("#{id}").into_bytes()));
    assert_eq!(names(&ids), acl);
    // Without a mask, the mode has it all.
    let minimal = Numbered::from([(Key::Owner, 7), (Key::OwnGroup, 5), (Key::Other, 0)]);
    assert_eq!(acl::without_mode(minimal), None);
    for bad in [&value[..3], &value[..5], &[3, 0, 0, 0], &[&value[..4], &[64, 0, 0, 0, 0, 0, 0, 0]].concat()]
    {
        assert_eq!(acl::decode(bad), None);
    }
    // Two ids of one name.
    let one: Named = acl::translate(&ids, |_, _| Some(b"one".to_vec()));
    assert_eq!(acl::text(&one), b"user:one:rwx,group::r--,group:one:rwx");
}

#[test]
fn a_device_without_acls_gives_the_group_its_own_rights() {
    assert_eq!(acl::mode_without(b"user:bob:rw-,group::---", 0o660), 0o600);
    assert_eq!(acl::mode_without(b"user:bob:rw-,group::rwx", 0o1640), 0o1640);
    assert_eq!(acl::mode_without(b"nonsense", 0o664), 0o664);
}

fn merged(name: &[u8], base: Option<&str>, left: Option<&str>, right: Option<&str>) -> Option<String> {
    let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
    let (base, left, right) = (bytes(base), bytes(left), bytes(right));
    let merged = merge(name, base.as_ref(), left.as_ref(), right.as_ref());
    assert_eq!(merged, merge(name, base.as_ref(), right.as_ref(), left.as_ref()), "the sides are alike");
    merged.map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn owners_that_both_sides_changed() {
    let owner = |base, left, right| merged(OWNER, base, Some(left), Some(right)).unwrap();
    // Never agreed on: root copied it.
    assert_eq!(owner(None, "root:root", "alice:users"), "alice:users");
    assert_eq!(owner(None, "root:root", "root:adm"), "root:root");
    // Both changed it: root takes rights away.
    assert_eq!(owner(Some("alice:users"), "root:root", "zoe:users"), "root:root");
    assert_eq!(owner(Some("alice:users"), "bob:users", "zoe:adm"), "zoe:adm");
}

#[test]
fn acls_are_merged_entry_by_entry() {
    let acl = |base, left, right| merged(ACL, base, left, right);
    let base = Some("user:bob:rwx,group::r-x");
    assert_eq!(
        acl(base, Some("user:bob:rwx,user:eve:r--,group::r-x"), Some("user:bob:r-x,group::r-x")).unwrap(),
        "user:bob:r-x,user:eve:r--,group::r-x"
    );
    assert_eq!(
        acl(base, Some("user:bob:rw-,group::r-x"), Some("user:bob:-wx,group::r-x")).unwrap(),
        "user:bob:-w-,group::r-x"
    );
    assert_eq!(acl(base, Some("group::r-x"), Some("user:bob:rwx,group::r--")).unwrap(), "group::r--");
    assert_eq!(acl(base, None, Some("group::r--")).unwrap(), "group::r--");
    // Without a mask on one side, which named entries need.
    let default = |left, right| merged(DEFAULT_ACL, None, Some(left), Some(right)).unwrap();
    assert_eq!(
        default("user::rwx,group::r-x,other::---", "user::r-x,user:bob:rwx,group::rwx,mask::rwx,other::---"),
        "user::r-x,user:bob:rwx,group::r-x,mask::rwx,other::---"
    );
}
