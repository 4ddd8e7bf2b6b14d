//! The comma-separated lists of `-o`, as mount(8) and fstab pass them.

use super::error::CliError;
use crate::config::{parse_dedup, parse_size};
use crate::daemon::Options;

/// Options that are accepted and ignored: they concern mount(8), systemd or the kernel, are the default, or are
/// harmless.
const ACCEPTED: &[&str] = &[
    "rw",
    "exec",
    "suid",
    "dev",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "async",
    "sync",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "default_permissions",
    "nonempty",
    "big_writes",
    "mand",
    "nomand",
];
/// Accepted and ignored options with a value.
const ACCEPTED_WITH_VALUE: &[&str] =
    &["x-", "X-", "comment=", "fsname=", "subtype=", "user=", "uhelper=", "helper="];

/// Applies one `-o` argument. A later option wins over an earlier one.
pub(super) fn apply(list: &str, options: &mut Options) -> Result<(), CliError> {
    for option in split(list) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option.as_str(), None),
        };
        match (name, value) {
            ("", None) => {}
            ("ro", None) => options.read_only = true,
            ("rw", None) => options.read_only = false,
            ("allow_other", None) => options.allow_other = true,
            ("passthrough", None) => options.passthrough = true,
            ("no_passthrough", None) => options.passthrough = false,
            ("nosuid", None) => options.refuse.nosuid = true,
            ("suid", None) => options.refuse.nosuid = false,
            ("nodev", None) => options.refuse.nodev = true,
            ("dev", None) => options.refuse.nodev = false,
            ("noexec", None) => options.refuse.noexec = true,
            ("exec", None) => options.refuse.noexec = false,
            ("dedup", Some(policy)) => options.dedup = Some(parse_dedup(policy)?),
            ("memory", Some(size)) => options.memory_bytes = Some(parse_size(size)?),
            ("cache_bytes", Some(size)) => options.cache_bytes = Some(parse_size(size)?),
            ("store", Some(dir)) if !dir.is_empty() => options.store = Some(dir.into()),
            _ if ACCEPTED.contains(&option.as_str()) => {}
            _ if ACCEPTED_WITH_VALUE.iter().any(|known| option.starts_with(known)) => {}
            ("dedup" | "memory" | "cache_bytes" | "store", _) => {
                return Err(CliError::new(format!(
                    "mount option {option:?}: expected a value, like {name}=..."
                )));
            }
            _ => {
                return Err(CliError::new(format!("mount option {option:?} is not known")).hint(
                    "known are ro, allow_other, no_passthrough, dedup=POLICY, store=DIR, memory=SIZE, cache_bytes=SIZE, \
                     nosuid, nodev, noexec and the options of mount(8) that need no help from a filesystem",
                ));
            }
        }
    }
    Ok(())
}

/// Splits at commas; `\,` is a comma and `\\` a backslash in a value.
pub(super) fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut chars = list.chars();
    while let Some(c) = chars.next() {
        let literal = match c {
            ',' => {
                options.push(String::new());
                continue;
            }
            '\\' => chars.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(option) = options.last_mut() {
            option.push(literal);
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::super::mount::Mount;
    use super::*;
    use crate::tree::Dedup;
    use clap::Parser;
    use std::path::PathBuf;

    fn options(lists: &[&str]) -> Result<Options, CliError> {
        let mut args = vec!["dedupfs", "/dir"];
        for list in lists {
            args.extend(["-o", list]);
        }
        Mount::try_parse_from(args).unwrap().options()
    }

    #[test]
    fn what_fstab_gives_is_understood() {
        let found =
            options(&["rw,noauto,_netdev,nofail,x-systemd.automount,user,exec,suid,dev,defaults"]).unwrap();
        assert_eq!((found.read_only, found.passthrough, found.refuse), (false, true, Default::default()));
        let found =
            options(&["ro,allow_other", "dedup=idle:10m,memory=2MiB,cache_bytes=1MiB,no_passthrough,nosuid"])
                .unwrap();
        assert!(found.read_only && found.allow_other && !found.passthrough && found.refuse.nosuid);
        assert_eq!(found.dedup, Some(Dedup::Idle(std::time::Duration::from_secs(600))));
        assert_eq!(found.cache_bytes, Some(1 << 20));
        assert_eq!(found.memory_bytes, Some(2 << 20));
        assert!(!options(&["ro,rw"]).unwrap().read_only, "the last one wins");
    }

    #[test]
    fn values_may_hold_commas() {
        let found = options(&["store=/a\\,b\\\\c,ro"]).unwrap();
        assert_eq!(found.store, Some(PathBuf::from("/a,b\\c")));
        assert!(found.read_only);
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (list, message) in [
            ("ro,compress", "mount option \"compress\" is not known"),
            ("dedup", "mount option \"dedup\": expected a value, like dedup=..."),
            ("ro=1", "mount option \"ro=1\" is not known"),
            (
                "cache_bytes=much",
                "size \"much\": expected a number of bytes with an optional unit, like 16KiB, 4M or 1000000",
            ),
        ] {
            assert_eq!(options(&[list]).unwrap_err().message, message);
        }
    }
}
