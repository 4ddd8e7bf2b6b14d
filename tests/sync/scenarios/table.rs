//! What two users do to one tree between two syncs, and what is there after it.

use super::world::Do::{self, *};

pub struct Scenario {
    pub name: &'static str,
    /// Before the first sync.
    pub before: &'static [Do],
    pub here: &'static [Do],
    pub there: &'static [Do],
    /// Files that are there then, and their texts.
    pub files: &'static [(&'static str, &'static str)],
    /// Names that are not there then.
    pub gone: &'static [&'static str],
    /// How many copies a conflict has made.
    pub copies: usize,
}

const NONE: Scenario =
    Scenario { name: "", before: &[], here: &[], there: &[], files: &[], gone: &[], copies: 0 };

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "edited-here",
        before: &[Write("f", "old")],
        here: &[Write("f", "new")],
        files: &[("f", "new")],
        ..NONE
    },
    Scenario {
        name: "edited-there",
        before: &[Write("f", "old")],
        there: &[Write("f", "new")],
        files: &[("f", "new")],
        ..NONE
    },
    Scenario {
        name: "saved-here",
        before: &[Write("f", "old")],
        here: &[Save("f", "new")],
        files: &[("f", "new")],
        ..NONE
    },
    Scenario {
        name: "emptied-here",
        before: &[Write("f", "old")],
        here: &[Write("f", "")],
        files: &[("f", "")],
        ..NONE
    },
    Scenario {
        name: "same-edit",
        before: &[Write("f", "old")],
        here: &[Write("f", "new")],
        there: &[Write("f", "new")],
        files: &[("f", "new")],
        ..NONE
    },
    Scenario {
        name: "two-edits",
        before: &[Write("f.txt", "old")],
        here: &[Write("f.txt", "of here")],
        there: &[Save("f.txt", "of there")],
        copies: 1,
        ..NONE
    },
    Scenario {
        name: "edit-follows-rename",
        before: &[Write("f", "old")],
        here: &[Rename("f", "g")],
        there: &[Append("f", " and new")],
        files: &[("g", "old and new")],
        gone: &["f"],
        ..NONE
    },
    Scenario {
        name: "save-follows-rename",
        before: &[Write("f", "old")],
        here: &[Save("f", "new")],
        there: &[Rename("f", "g")],
        files: &[("g", "new")],
        gone: &["f"],
        ..NONE
    },
    Scenario {
        name: "edits-follow-swap",
        before: &[Write("f", "1"), Write("g", "2")],
        here: &[Rename("f", "x"), Rename("g", "f"), Rename("x", "g")],
        there: &[Append("f", " edited"), Append("g", " too")],
        files: &[("f", "2 too"), ("g", "1 edited")],
        gone: &["x"],
        ..NONE
    },
    Scenario {
        name: "save-follows-swap",
        before: &[Write("f", "1"), Write("g", "2")],
        here: &[Rename("f", "x"), Rename("g", "f"), Rename("x", "g")],
        there: &[Save("f", "1 saved")],
        files: &[("f", "2"), ("g", "1 saved")],
        ..NONE
    },
    Scenario {
        name: "edit-follows-chain",
        before: &[Write("f1", "1"), Write("f2", "2")],
        here: &[Rename("f2", "f22"), Rename("f1", "f2")],
        there: &[Append("f1", " edited"), Append("f2", " too")],
        files: &[("f2", "1 edited"), ("f22", "2 too")],
        gone: &["f1"],
        ..NONE
    },
    Scenario {
        name: "edit-follows-chain-here-too",
        before: &[Write("f1", "1"), Write("f2", "2"), Write("f3", "3")],
        here: &[Rename("f3", "f4"), Rename("f2", "f3"), Rename("f1", "f2"), Append("f4", " here")],
        there: &[Append("f1", " there")],
        files: &[("f2", "1 there"), ("f3", "2"), ("f4", "3 here")],
        gone: &["f1"],
        ..NONE
    },
    Scenario {
        name: "logs-rotated",
        before: &[Write("log", "0"), Write("log.1", "1"), Write("log.2", "2")],
        here: &[Remove("log.2"), Rename("log.1", "log.2"), Rename("log", "log.1"), Write("log", "new")],
        files: &[("log", "new"), ("log.1", "0"), ("log.2", "1")],
        ..NONE
    },
    Scenario {
        name: "edit-in-renamed-directory",
        before: &[MakeDir("d"), Write("d/f", "old")],
        here: &[Rename("d", "e")],
        there: &[Write("d/f", "new"), Write("d/g", "made")],
        files: &[("e/f", "new"), ("e/g", "made")],
        gone: &["d"],
        ..NONE
    },
    Scenario {
        name: "edit-in-moved-directory",
        before: &[MakeDir("d"), MakeDir("to"), Write("d/f", "old")],
        here: &[Rename("d", "to/d")],
        there: &[Save("d/f", "new")],
        files: &[("to/d/f", "new")],
        gone: &["d"],
        ..NONE
    },
    Scenario {
        name: "edits-in-swapped-directories",
        before: &[MakeDir("d"), MakeDir("e"), Write("d/f", "1"), Write("e/f", "2")],
        here: &[Rename("d", "x"), Rename("e", "d"), Rename("x", "e")],
        there: &[Write("d/f", "1 edited"), Write("e/f", "2 edited")],
        files: &[("e/f", "1 edited"), ("d/f", "2 edited")],
        gone: &["x"],
        ..NONE
    },
    Scenario {
        name: "directories-into-each-other",
        before: &[MakeDir("d"), MakeDir("e"), Write("d/f", "1"), Write("e/g", "2")],
        here: &[Rename("d", "e/d")],
        there: &[Rename("e", "d/e")],
        ..NONE
    },
    Scenario {
        name: "edit-beats-deletion",
        before: &[Write("f", "old")],
        here: &[Remove("f")],
        there: &[Write("f", "new")],
        files: &[("f", "new")],
        ..NONE
    },
    Scenario {
        name: "deletion",
        before: &[Write("f", "old"), Write("g", "g")],
        here: &[Remove("f")],
        files: &[("g", "g")],
        gone: &["f"],
        ..NONE
    },
    Scenario {
        name: "deleted-on-both",
        before: &[Write("f", "old")],
        here: &[Remove("f")],
        there: &[Remove("f")],
        gone: &["f"],
        ..NONE
    },
    Scenario {
        name: "made-in-deleted-directory",
        before: &[MakeDir("d"), Write("d/f", "old")],
        here: &[RemoveAll("d")],
        there: &[Write("d/g", "made")],
        files: &[("d/g", "made")],
        gone: &["d/f"],
        ..NONE
    },
    Scenario {
        name: "moved-out-of-deleted-directory",
        before: &[MakeDir("d"), Write("d/f", "old")],
        here: &[Rename("d/f", "f"), RemoveAll("d")],
        there: &[Write("d/f", "new")],
        files: &[("f", "new")],
        gone: &["d"],
        ..NONE
    },
    Scenario {
        name: "mode-and-edit",
        before: &[Write("f", "old"), Mode("f", 0o644)],
        here: &[Mode("f", 0o600)],
        there: &[Write("f", "new")],
        files: &[("f", "new")],
        ..NONE
    },
    Scenario {
        name: "two-modes",
        before: &[Write("f", "f"), Mode("f", 0o666)],
        here: &[Mode("f", 0o640)],
        there: &[Mode("f", 0o604)],
        files: &[("f", "f")],
        ..NONE
    },
    Scenario {
        name: "directory-not-to-be-written-to",
        before: &[MakeDir("d"), Write("d/f", "old"), Mode("d", 0o555)],
        here: &[Write("d/f", "new")],
        there: &[Mode("d", 0o511)],
        files: &[("d/f", "new")],
        ..NONE
    },
    Scenario {
        name: "xattr-and-edit",
        before: &[Write("f", "old")],
        here: &[Xattr("f", "of here")],
        there: &[Write("f", "new")],
        files: &[("f", "new")],
        ..NONE
    },
    Scenario {
        name: "name-added-and-edit",
        before: &[Write("n1", "old")],
        here: &[Link("n1", "n2")],
        there: &[Append("n1", " and new")],
        files: &[("n1", "old and new"), ("n2", "old and new")],
        ..NONE
    },
    Scenario {
        name: "edit-behind-one-name",
        before: &[MakeDir("d"), Write("n1", "old"), Link("n1", "n2"), Link("n1", "d/n3")],
        here: &[Append("n2", " and new")],
        files: &[("n1", "old and new"), ("n2", "old and new"), ("d/n3", "old and new")],
        ..NONE
    },
    Scenario {
        name: "edit-behind-one-name-and-one-removed",
        before: &[Write("n1", "old"), Link("n1", "n2")],
        here: &[Append("n1", " and new")],
        there: &[Remove("n2")],
        files: &[("n1", "old and new")],
        gone: &["n2"],
        ..NONE
    },
    Scenario {
        name: "edit-behind-one-name-and-one-renamed",
        before: &[Write("n1", "old"), Link("n1", "n2")],
        here: &[Append("n1", " and new")],
        there: &[Rename("n2", "n3")],
        files: &[("n1", "old and new"), ("n3", "old and new")],
        gone: &["n2"],
        ..NONE
    },
    Scenario {
        name: "symlink-elsewhere",
        before: &[Write("f", "f"), Symlink("f", "s")],
        here: &[Remove("s"), Symlink("/etc/../nowhere", "s")],
        there: &[Rename("f", "g")],
        files: &[("g", "f")],
        ..NONE
    },
    Scenario {
        name: "file-becomes-directory",
        before: &[Write("f", "old")],
        here: &[Remove("f"), MakeDir("f"), Write("f/g", "in it")],
        files: &[("f/g", "in it")],
        ..NONE
    },
    Scenario {
        name: "directory-becomes-file",
        before: &[MakeDir("d"), Write("d/f", "in it")],
        here: &[RemoveAll("d"), Write("d", "a file")],
        files: &[("d", "a file")],
        ..NONE
    },
    Scenario {
        name: "made-alike",
        here: &[Write("f", "same")],
        there: &[Write("f", "same")],
        files: &[("f", "same")],
        ..NONE
    },
    Scenario {
        name: "made-differently",
        here: &[Write("f", "of here")],
        there: &[Write("f", "of there")],
        copies: 1,
        ..NONE
    },
    Scenario {
        name: "directory-made-on-both",
        here: &[MakeDir("d"), Write("d/1", "of here")],
        there: &[MakeDir("d"), Write("d/2", "of there")],
        files: &[("d/1", "of here"), ("d/2", "of there")],
        ..NONE
    },
    Scenario {
        name: "renamed-alike",
        before: &[Write("f", "f")],
        here: &[Rename("f", "g")],
        there: &[Rename("f", "g")],
        files: &[("g", "f")],
        gone: &["f"],
        ..NONE
    },
    Scenario {
        name: "renamed-differently",
        before: &[Write("f", "f")],
        here: &[Rename("f", "g")],
        there: &[Rename("f", "h")],
        gone: &["f"],
        ..NONE
    },
    Scenario {
        name: "renamed-over-another",
        before: &[Write("f", "1"), Write("g", "2")],
        here: &[Rename("f", "g")],
        files: &[("g", "1")],
        gone: &["f"],
        ..NONE
    },
    Scenario {
        name: "case",
        before: &[Write("File", "f")],
        here: &[Rename("File", "file")],
        files: &[("file", "f")],
        gone: &["File"],
        ..NONE
    },
    Scenario {
        name: "odd-names",
        here: &[
            Write("a\nb", "1"),
            Write("-x", "2"),
            Write("*?", "3"),
            MakeDir(" "),
            Write(" /\u{e4}\u{1f600}", "4"),
        ],
        there: &[Write(".hidden", "5"), Write("c:d", "6")],
        files: &[
            ("a\nb", "1"),
            ("-x", "2"),
            ("*?", "3"),
            (" /\u{e4}\u{1f600}", "4"),
            (".hidden", "5"),
            ("c:d", "6"),
        ],
        ..NONE
    },
    Scenario {
        name: "fifo",
        here: &[Fifo("p"), Write("f", "f")],
        there: &[MakeDir("empty")],
        files: &[("f", "f")],
        ..NONE
    },
];
