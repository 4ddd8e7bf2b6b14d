//! Merges the two files of a conflict with a tool, in a temporary directory.
//!
//! The base is the version before both edits, if the sync could save it; otherwise the lines that both files have, as `git
//! mergetool` makes it for files without a common ancestor: then the result has all lines of both.

use crate::sync::conflicts::Pending;
use crate::sync::tree::split;
use crate::sync::two_versions::TwoVersions;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file is binary if there is a zero byte among its first bytes, as in git.
const HEAD_BYTES: u64 = 8000;
/// Limit of a text file, since a difference is in memory.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Merges a conflict of the tree at `tree`. `command` is a line for the shell; if it is empty, `git merge-file` merges
/// text. `base` is the version before both edits. Returns the reason if both files stay.
pub(super) fn merge(
    tree: &Path,
    conflict: &Pending,
    base: Option<&[u8]>,
    command: &str,
) -> Result<(), String> {
    let versions = TwoVersions::open(tree, conflict).map_err(|e| e.to_string())?;
    let (work, text) = Work::of(&versions, conflict, base)?;
    let copied = copy(versions.ours(), &work.merged);
    copied.map_err(|e| format!("copy to {}: {e}", work.dir.display()))?;
    match command {
        "" if !text => {
            return Err("is not text, or larger than 64 MiB; name a program with --tool=COMMAND, or keep one version with \
                 --ours, --theirs or --newer"
                .to_owned());
        }
        "" => {
            if base.is_none() {
                work.write_base()?;
            }
            work.merge_text()?;
        }
        command => {
            if text && base.is_none() {
                // Without git the base stays empty.
                let _ = work.write_base();
            }
            work.run(command)?;
        }
    }
    let mut merged = File::open(&work.merged).map_err(|e| format!("open the result: {e}"))?;
    versions.replace(&mut merged).map_err(|e| e.to_string())
}

/// Returns how both texts of a conflict, this device's and the other, differ from `base`, as unified hunks.
pub(super) fn differences(tree: &Path, conflict: &Pending, base: &[u8]) -> Result<[String; 2], String> {
    let versions = TwoVersions::open(tree, conflict).map_err(|e| e.to_string())?;
    let (work, text) = Work::of(&versions, conflict, Some(base))?;
    if !text || base[..base.len().min(HEAD_BYTES as usize)].contains(&0) {
        return Err("is not text, or larger than 64 MiB".to_owned());
    }
    Ok([work.difference(&work.local)?, work.difference(&work.remote)?])
}

/// Files of one merge; removed at the end.
struct Work {
    dir: PathBuf,
    base: PathBuf,
    local: PathBuf,
    remote: PathBuf,
    merged: PathBuf,
}

impl Work {
    /// `name` is the file's: a tool may choose by its extension.
    fn new(name: &[u8]) -> io::Result<Work> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
        let dir = std::env::temp_dir().join(format!("dedupctl-merge-{:016x}", u64::from_le_bytes(random)));
        DirBuilder::new().mode(0o700).create(&dir)?;
        let extension = Path::new(OsStr::from_bytes(name)).extension();
        let file = |role: &str| {
            let mut name = OsString::from(role);
            if let Some(extension) = extension {
                name.push(".");
                name.push(extension);
            }
            dir.join(name)
        };
        let [base, local, remote, merged] = ["BASE", "LOCAL", "REMOTE", "MERGED"].map(file);
        Ok(Work { base, local, remote, merged, dir })
    }

    /// Copies both versions and `base`; returns also whether both versions are text.
    fn of(
        versions: &TwoVersions<'_>,
        conflict: &Pending,
        base: Option<&[u8]>,
    ) -> Result<(Work, bool), String> {
        let work =
            Work::new(split(&conflict.path).1).map_err(|e| format!("make a temporary directory: {e}"))?;
        let text = is_text(versions.ours()).and_then(|ours| Ok(ours && is_text(versions.theirs())?));
        let text = text.map_err(|e| format!("read: {e}"))?;
        let copied = copy(versions.ours(), &work.local)
            .and_then(|()| copy(versions.theirs(), &work.remote))
            .and_then(|()| std::fs::write(&work.base, base.unwrap_or_default()));
        copied.map_err(|e| format!("copy to {}: {e}", work.dir.display()))?;
        Ok((work, text))
    }

    /// Returns the hunks in which a version differs from the base.
    fn difference(&self, version: &Path) -> Result<String, String> {
        let diff = ["diff", "--no-index", "--no-color", "--no-ext-diff", "--no-textconv", "--text"];
        let (_, diff) = self.git(&diff, &[&self.base, version])?;
        let diff = String::from_utf8_lossy(&diff).into_owned();
        Ok(diff.find("\n@@").map_or_else(String::new, |at| diff[at + 1..].to_owned()))
    }

    /// Runs git without the settings of the user.
    fn git(&self, args: &[&str], files: &[&Path]) -> Result<(i32, Vec<u8>), String> {
        let mut git = Command::new("git");
        git.args(args).args(files).current_dir(&self.dir).stdin(Stdio::null());
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env("LC_ALL", "C");
        git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
        let output = git.output().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                "git is not installed; install it, or name a program with --tool=COMMAND".to_owned()
            }
            _ => format!("run git: {e}"),
        })?;
        match output.status.code() {
            // git has -1 for its own errors.
            Some(code @ 0..=127) => Ok((code, output.stdout)),
            _ => Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Writes the common lines of both files.
    fn write_base(&self) -> Result<(), String> {
        let diff =
            ["diff", "--no-index", "--no-color", "--no-ext-diff", "--no-textconv", "--text", "-U1000000000"];
        let written = match self.git(&diff, &[&self.local, &self.remote])? {
            (0, _) => std::fs::copy(&self.local, &self.base).map(drop),
            (_, diff) => std::fs::write(&self.base, common_lines(&diff)),
        };
        written.map_err(|e| format!("write {}: {e}", self.base.display()))
    }

    fn merge_text(&self) -> Result<(), String> {
        match self.git(&["merge-file", "-p"], &[&self.local, &self.base, &self.remote])? {
            (0, merged) => std::fs::write(&self.merged, merged)
                .map_err(|e| format!("write {}: {e}", self.merged.display())),
            (1, _) => Err("both versions have different lines at 1 place".to_owned()),
            (places, _) => Err(format!("both versions have different lines at {places} places")),
        }
    }

    /// Runs the user's command. Its output goes to stderr, since the report has stdout.
    fn run(&self, command: &str) -> Result<(), String> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).stdout(io::stderr());
        shell.env("BASE", &self.base).env("LOCAL", &self.local).env("REMOTE", &self.remote);
        let status = shell.env("MERGED", &self.merged).status().map_err(|e| format!("run sh: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("the tool failed ({status})")) }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn copy(mut from: &File, to: &Path) -> io::Result<()> {
    from.rewind()?;
    io::copy(&mut from, &mut File::create_new(to)?).map(drop)
}

fn is_text(mut file: &File) -> io::Result<bool> {
    let mut head = Vec::new();
    file.take(HEAD_BYTES).read_to_end(&mut head)?;
    file.rewind()?;
    Ok(!head.contains(&0) && file.metadata()?.len() <= TEXT_BYTES_MAX)
}

/// Returns the lines that a unified difference with all lines has in common.
fn common_lines(diff: &[u8]) -> Vec<u8> {
    let (mut base, mut in_hunk, mut common) = (Vec::new(), false, false);
    for line in diff.split_inclusive(|byte| *byte == b'\n') {
        match line.first() {
            Some(b'@') => in_hunk = true,
            Some(b' ') if in_hunk => base.extend_from_slice(&line[1..]),
            // "No newline at end of file", of the line before.
            Some(b'\\') if common => drop(base.pop()),
            _ => {}
        }
        common = in_hunk && line.first() == Some(&b' ');
    }
    base
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: &str = "notes.conflict-other-1-00000000.txt";

    struct Tree {
        tree: tempfile::TempDir,
        conflict: Pending,
        base: Option<Vec<u8>>,
    }

    impl Tree {
        /// `ours` has the name, or the other has it.
        fn new(ours: &[u8], theirs: &[u8], ours_has_name: bool) -> Tree {
            let tree = tempfile::tempdir().unwrap();
            let (named, other) = if ours_has_name { (ours, theirs) } else { (theirs, ours) };
            std::fs::write(tree.path().join("notes.txt"), named).unwrap();
            std::fs::write(tree.path().join(COPY), other).unwrap();
            let (path, copy) = (b"notes.txt".to_vec(), COPY.as_bytes().to_vec());
            let (ours, theirs) = match ours_has_name {
                true => (path.clone(), copy.clone()),
                false => (copy.clone(), path.clone()),
            };
            Tree { tree, conflict: Pending { path, ours, theirs, copy, times: (None, None) }, base: None }
        }

        fn merge(&self, command: &str) -> Result<(), String> {
            let done = merge(self.tree.path(), &self.conflict, self.base.as_deref(), command);
            let names = std::fs::read_dir(self.tree.path()).unwrap().count();
            assert_eq!(names, if done.is_ok() { 1 } else { 2 }, "{done:?}");
            done
        }

        fn read(&self, name: &str) -> Vec<u8> {
            std::fs::read(self.tree.path().join(name)).unwrap()
        }
    }

    #[test]
    fn lines_that_one_side_added_are_merged() {
        for ours_has_name in [true, false] {
            let tree = Tree::new(b"a\nours\nb\nc\n", b"a\nb\nc\ntheirs", ours_has_name);
            use std::os::unix::fs::PermissionsExt;
            let path = tree.tree.path().join("notes.txt");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
            tree.merge("").unwrap();
            assert_eq!(tree.read("notes.txt"), b"a\nours\nb\nc\ntheirs");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o640);
        }
        let same = Tree::new(b"a\nb", b"a\nb", true);
        same.merge("").unwrap();
        assert_eq!(same.read("notes.txt"), b"a\nb");
    }

    #[test]
    fn the_version_before_both_edits_shows_what_each_side_did() {
        let before = b"a\nb\nc\nd\ne\nf\n";
        for ours_has_name in [true, false] {
            // Ours deletes a line and changes one; theirs adds one.
            let with = |base: Option<&[u8]>| Tree {
                base: base.map(<[u8]>::to_vec),
                ..Tree::new(b"b\nC\nd\ne\nf\n", b"a\nb\nc\nd\ne\nf\ng\n", ours_has_name)
            };
            let tree = with(Some(before));
            let [ours, theirs] = differences(tree.tree.path(), &tree.conflict, before).unwrap();
            assert_eq!(ours, "@@ -1,6 +1,5 @@\n-a\n b\n-c\n+C\n d\n e\n f\n");
            assert_eq!(theirs, "@@ -4,3 +4,4 @@ c\n d\n e\n f\n+g\n");
            assert!(differences(tree.tree.path(), &tree.conflict, b"\0").is_err());
            tree.merge("cp \"$BASE\" \"$MERGED\"").unwrap();
            assert_eq!(tree.read("notes.txt"), before);
            let tree = with(Some(before));
            tree.merge("").unwrap();
            assert_eq!(tree.read("notes.txt"), b"b\nC\nd\ne\nf\ng\n");
            // Common lines alone do not tell who changed a line.
            assert!(with(None).merge("").is_err());
        }
    }

    #[test]
    fn both_stay_if_the_tool_does_not_merge_them() {
        let conflict = Tree::new(b"a\nours\nb\n", b"a\ntheirs\nb\n", true);
        assert_eq!(conflict.merge("").unwrap_err(), "both versions have different lines at 1 place");
        let failed = conflict.merge("echo x > \"$MERGED\"; exit 3").unwrap_err();
        assert!(failed.contains("exit status: 3"), "{failed}");
        let changed =
            "echo new > '".to_owned() + &conflict.tree.path().join("notes.txt").display().to_string() + "'";
        assert!(conflict.merge(&changed).unwrap_err().contains("notes.txt: was changed meanwhile"));
        assert_eq!(conflict.read("notes.txt"), b"new\n");
        assert_eq!(conflict.read(COPY), b"a\ntheirs\nb\n");
        let binary = Tree::new(b"a\0b", b"a\0c", true);
        assert!(binary.merge("").unwrap_err().contains("is not text"));
        let database = Tree::new(b"SQLite format 3\0a", b"SQLite format 3\0b", true);
        assert!(database.merge("true").unwrap_err().contains("is a database"));
    }

    #[test]
    fn a_command_gets_the_files() {
        let tree = Tree::new(b"a\nours\nb\n", b"a\ntheirs\nb\n", false);
        tree.merge("cat \"$BASE\" \"$LOCAL\" \"$REMOTE\" > \"$MERGED\"").unwrap();
        assert_eq!(tree.read("notes.txt"), b"a\nb\na\nours\nb\na\ntheirs\nb\n");
        let binary = Tree::new(b"\0a", b"\0b", true);
        binary
            .merge("test ! -s \"$BASE\" && case \"$MERGED\" in *.txt) cp \"$REMOTE\" \"$MERGED\";; esac")
            .unwrap();
        assert_eq!(binary.read("notes.txt"), b"\0b");
    }
}
