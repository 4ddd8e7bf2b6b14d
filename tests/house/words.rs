//! Rejects words and constructions that readers must parse twice, in documents, messages, help and comments.
//!
//! Read are the documents at the top and in `docs`, and of `src` the comments and texts (help is made of doc comments),
//! without unit tests. Code in documents is skipped, as are headings and questions.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Phrases that are rejected; `^` stands for the start of a sentence. Next to them: what to write instead.
const REJECTED: &[(&str, &[&str])] = &[
    (
        "say `again` or `from scratch`, `next to`, `of it`, `in it`",
        &["anew", "beside", "thereof", "therein", "wherein", "whereof", "thereby", "whereby"],
    ),
    ("say how many, or `N`", &["so many", "so much of"]),
    ("name the thing, and start a new sentence", &["of which"]),
    ("name the actor: the daemon, the caller, another process", &["whoever", "somebody", "nobody"]),
    (
        "name the actor instead of `who`",
        &["^who", "and who", "of who", "for who", "by who", "to who", "that who"],
    ),
    ("name the actor instead of `who`", &["or who", "but who", "if who", "with who", "from who", "than who"]),
    ("use the term that the code uses", &["told", "kin", "lend", "lends", "lent", "what it is of"]),
    (
        "name the thing instead of `what is`",
        &["what is", "what was", "what has", "what there is", "what are"],
    ),
    ("say `except`, or write a second sentence", &["but for", "save for", "^but for", "by turns"]),
    (
        "say what happens",
        &["it is said", "is said so", "this is said", "it is known what", "puts by", "put by"],
    ),
    ("start with the subject", &["^of", "^what", "^where", "^whose", "^to whom", "^whom", "^that which"]),
];

/// The words of a text in lower case, with `^` before each sentence. Questions are left out.
fn words(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut sentence: Vec<String> = Vec::new();
    let mut end = |sentence: &mut Vec<String>, question: bool| {
        let words = std::mem::take(sentence);
        if !question && !words.is_empty() {
            // A word alone is a heading or a name.
            all.extend((words.len() > 1).then(|| "^".to_owned()));
            all.extend(words);
        }
    };
    for word in text.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '`').to_lowercase();
        if !bare.is_empty() {
            sentence.push(bare);
        }
        let closed = word.trim_end_matches(['"', ')', '*', '_', '\'']);
        if closed.ends_with(['.', ':', '?', '!', ';']) {
            end(&mut sentence, closed.ends_with('?'));
        } else if closed.ends_with([',', '—']) || word.ends_with(')') {
            // Keeps phrases from reaching over a comma.
            sentence.push(",".to_owned());
        }
    }
    end(&mut sentence, false);
    all
}

type Hit = (&'static str, &'static str);

/// Finds rejected phrases by their first word.
struct Finder(HashMap<&'static str, Vec<(Vec<&'static str>, Hit)>>);

impl Finder {
    fn new() -> Self {
        let mut by_first: HashMap<_, Vec<_>> = HashMap::new();
        for (instead, phrases) in REJECTED {
            for phrase in *phrases {
                let words: Vec<&str> = match phrase.strip_prefix('^') {
                    Some(rest) => std::iter::once("^").chain(rest.split(' ')).collect(),
                    None => phrase.split(' ').collect(),
                };
                by_first.entry(words[0]).or_default().push((words, (*phrase, *instead)));
            }
        }
        Self(by_first)
    }

    /// Returns each rejected phrase in `text` with the advice, and the words around it.
    fn hits(&self, text: &str) -> Vec<(Hit, String)> {
        let words = words(text);
        let mut found = Vec::new();
        for (at, word) in words.iter().enumerate() {
            for (phrase, hit) in self.0.get(word.as_str()).into_iter().flatten() {
                let same = |(a, b): (&String, &&str)| a == b;
                if words.len() - at >= phrase.len() && words[at..].iter().zip(phrase).all(same) {
                    let around = at.saturating_sub(3)..words.len().min(at + 6);
                    found.push((*hit, words[around].join(" ")));
                }
            }
        }
        found
    }
}

/// Replaces the code between backquotes.
fn without_code(text: &str) -> String {
    text.split('`').enumerate().map(|(i, part)| if i % 2 == 0 { part } else { "``" }).collect()
}

/// The paragraphs, list items and table cells of a document, without headings, code and comments of HTML.
fn paragraphs(document: &str) -> Vec<String> {
    let (mut all, mut last, mut code) = (Vec::new(), String::new(), false);
    for line in document.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            code = !code;
        }
        let starts = line.starts_with(['-', '*', '|', '>']) || line.starts_with(|c: char| c.is_ascii_digit());
        if code || line.is_empty() || line.starts_with(['#', '`', '<']) && !line.starts_with('`') || starts {
            all.push(std::mem::take(&mut last));
        }
        if code || line.starts_with("```") || line.starts_with(['#', '<']) {
            continue;
        }
        match line.strip_prefix('|') {
            Some(row) => all.extend(row.split('|').map(str::to_owned)),
            None => {
                last.push_str(line);
                last.push(' ');
            }
        }
    }
    all.push(last);
    all.into_iter().map(|text| without_code(&text)).collect()
}

/// Comments (successive lines are one) and texts of a source file.
fn prose(source: &str) -> Vec<String> {
    let (mut all, mut comment) = (Vec::new(), String::new());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            let line = rest.lines().next().unwrap();
            let text = line.trim_start_matches('/');
            let text = text.strip_prefix('!').unwrap_or(text);
            comment.push_str(text.strip_prefix(' ').unwrap_or(text));
            comment.push('\n');
            rest = rest[line.len()..].trim_start_matches('\n').trim_start_matches(' ');
            continue;
        }
        all.extend(paragraphs(&std::mem::take(&mut comment)));
        let hashes = rest.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
        if let Some(hashes) = hashes.filter(|hashes| rest[1 + hashes..].starts_with('"')) {
            let end = format!("\"{}", "#".repeat(hashes));
            let (text, after) = rest[hashes + 2..].split_once(&end).unwrap();
            all.push(without_code(text));
            rest = after;
        } else if let Some(text) = rest.strip_prefix('"') {
            let mut escaped = false;
            let end = text.find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let end = end.unwrap();
            all.push(without_code(&text[..end].replace("\\n", " ").replace("\\\n", " ")));
            rest = &text[end + 1..];
        } else if let Some(quoted) = rest
            .strip_prefix('\'')
            .filter(|quoted| quoted.starts_with('\\') || quoted.chars().nth(1) == Some('\''))
        {
            let skip = if quoted.starts_with('\\') { 2 } else { quoted.chars().next().unwrap().len_utf8() };
            let end = quoted[skip..].find('\'').unwrap();
            rest = &quoted[skip + end + 1..];
        } else {
            // A name as a whole, so that the `r` at the end of one begins no text.
            let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let raw = rest.starts_with("r\"") || rest.starts_with("r#");
            rest = &rest[if raw || name == 0 { c.len_utf8() } else { name }..];
        }
    }
    all.extend(paragraphs(&comment));
    all
}

fn find(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, extension, found);
        } else if path.extension().is_some_and(|is| is == extension) {
            found.push(path);
        }
    }
}

/// Hits by file.
fn all_hits(top: &Path) -> BTreeMap<String, Vec<(Hit, String)>> {
    let finder = Finder::new();
    let mut documents = Vec::new();
    find(&top.join("docs"), "md", &mut documents);
    documents
        .extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| top.join(name)));
    let mut sources = Vec::new();
    find(&top.join("src"), "rs", &mut sources);
    sources.retain(|path| !path.components().any(|part| part.as_os_str() == "tests"));
    sources.retain(|path| !path.ends_with("tests.rs"));
    assert!(documents.len() > 60 && sources.len() > 400, "{} and {}", documents.len(), sources.len());
    let mut all = BTreeMap::new();
    for path in documents.iter().chain(&sources) {
        let text = fs::read_to_string(path).unwrap();
        let parts = if documents.contains(path) {
            paragraphs(&text)
        } else {
            prose(text.split("#[cfg(test)]\nmod tests {").next().unwrap())
        };
        let found: Vec<_> = parts.iter().flat_map(|part| finder.hits(part)).collect();
        if !found.is_empty() {
            all.insert(path.strip_prefix(top).unwrap().display().to_string(), found);
        }
    }
    all
}

#[test]
fn prose_is_plain() {
    let mut wrong = String::new();
    for (name, hits) in all_hits(Path::new(env!("CARGO_MANIFEST_DIR"))) {
        writeln!(wrong, "{name}:").unwrap();
        for ((phrase, instead), around) in hits {
            writeln!(wrong, "  \"{phrase}\" in \"{around}\": {instead}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "see \"How we write\" in CONTRIBUTING.md\n{wrong}");
}

#[test]
fn phrases_are_found_where_they_are_prose() {
    let finder = Finder::new();
    let phrases = |text: &str| finder.hits(text).iter().map(|((phrase, _), _)| *phrase).collect::<Vec<_>>();
    assert_eq!(phrases("The index is written anew."), ["anew"]);
    assert_eq!(phrases("It ends. Who asks waits."), ["^who"]);
    assert_eq!(phrases("The user who asks waits. Who asks? Akin to skin."), [""; 0]);
    assert_eq!(phrases("A list, of what is there"), ["what is"]);
    let code = "/// Says what\n/// is there.\nfn f() { g('\"', \"told\"); } // anew\nlet r = r#\"so many\"#; /* kin */";
    let found: Vec<_> =
        prose(code).iter().flat_map(|part| finder.hits(part)).map(|((phrase, _), _)| phrase).collect();
    assert_eq!(found, ["what is", "told", "anew", "so many"]);
    let document = "# What is it\n\nPlain `told`.\n```\nanew\n```\n| a | Who asks |\n\nso\nmany\n";
    let found: Vec<_> = paragraphs(document)
        .iter()
        .flat_map(|part| finder.hits(part))
        .map(|((phrase, _), _)| phrase)
        .collect();
    assert_eq!(found, ["^who", "so many"]);
}
