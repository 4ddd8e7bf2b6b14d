//! The graph of imports between the files of a crate.
//!
//! - An edge leads from a file to the file that defines an item which the first one uses, by `use` or by a path in code.
//! - A `pub use` is followed to the definition. For the file that contains it, it is an edge only if its code uses the name too.
//! - Modules under `#[cfg(test)]`, and files called `tests` or `testing`, have no edges.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Path of a module: the names after `crate::`.
type Module = Vec<String>;

/// One name of a `use`.
struct Import {
    path: Vec<String>,
    name: String,
    public: bool,
}

/// The imports of a file, and the names in its code.
#[derive(Default)]
struct File {
    shown: String,
    imports: Vec<Import>,
    /// Paths of two names or more.
    paths: Vec<Vec<String>>,
    /// Names that stand alone or begin a path.
    names: BTreeSet<String>,
    /// Names that stand alone.
    alone: BTreeSet<String>,
    /// Modules under `#[cfg(test)]`.
    tests: Vec<String>,
}

/// The files that each file uses, with the names of the used items.
pub type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Splits code into names and signs, without comments, lifetimes and literals.
fn tokens(source: &str) -> Vec<String> {
    let text: Vec<char> = source.chars().collect();
    let at = |i: usize| text.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut i) = (Vec::new(), 0);
    while i < text.len() {
        match at(i) {
            '/' if at(i + 1) == '/' => i += text[i..].iter().take_while(|c| **c != '\n').count(),
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= text.len() {
                        break;
                    }
                }
            }
            '"' => {
                i += 1;
                while i < text.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
            }
            '\'' if at(i + 1) == '\\' => {
                i += 3 + text[i + 3..].iter().take_while(|c| **c != '\'').count() + 1
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            '\'' => i += 1 + text[i + 1..].iter().take_while(|c| is_word(**c)).count(),
            c if is_word(c) => {
                let word: String = text[i..].iter().take_while(|c| is_word(**c)).collect();
                i += word.chars().count();
                let hashes = text[i..].iter().take_while(|c| **c == '#').count();
                if ["r", "br", "cr"].contains(&&word[..]) && at(i + hashes) == '"' {
                    let end: Vec<char> =
                        std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
                    let from = i + hashes + 1;
                    let len = text[from..].windows(end.len()).position(|part| part == end).unwrap();
                    i = from + len + end.len();
                } else if !["b", "c"].contains(&&word[..]) || !['"', '\''].contains(&at(i)) {
                    found.push(word);
                }
            }
            ':' if at(i + 1) == ':' => {
                found.push("::".to_owned());
                i += 2;
            }
            c => {
                found.extend((!c.is_whitespace()).then(|| c.to_string()));
                i += 1;
            }
        }
    }
    found
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the number of tokens of an item, statement or field.
fn item_len(tokens: &[String]) -> usize {
    const ITEMS: &[&str] =
        &["const", "enum", "fn", "impl", "let", "mod", "static", "struct", "trait", "type", "unsafe", "use"];
    let first = match tokens {
        [public, open, ..] if public == "pub" && open == "(" => {
            tokens.iter().position(|t| t == ")").unwrap() + 1
        }
        [public, ..] if public == "pub" => 1,
        _ => 0,
    };
    let is_item = tokens.get(first).is_some_and(|token| ITEMS.contains(&&token[..]));
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate() {
        match &token[..] {
            "}" | ")" | "]" if depth == 0 => return i,
            "}" if depth == 1 => return i + 1,
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            ";" if depth == 0 => return i + 1,
            "," if depth == 0 && !is_item => return i + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Adds the names of a tree of `use`.
fn add_tree(tree: &[String], prefix: &[String], public: bool, imports: &mut Vec<Import>) {
    let mut path = prefix.to_vec();
    let mut i = 0;
    while i < tree.len() {
        match &tree[i][..] {
            "{" => {
                let inner = &tree[i + 1..tree.len() - 1];
                let mut depth = 0;
                let parts = inner.split(|token| {
                    depth += i32::from(token == "{") - i32::from(token == "}");
                    token == "," && depth == 0
                });
                parts.filter(|part| !part.is_empty()).for_each(|part| add_tree(part, &path, public, imports));
                return;
            }
            "as" => {
                imports.push(Import { path, name: tree[i + 1].clone(), public });
                return;
            }
            "::" => {}
            "self" if i + 1 == tree.len() && !path.is_empty() => {}
            name => path.push(name.to_owned()),
        }
        i += 1;
    }
    let name = path.last().unwrap().clone();
    imports.push(Import { path, name, public });
}

fn parse(source: &str) -> File {
    let tokens = tokens(source);
    let starts = |i: usize, with: &[&str]| {
        tokens.len() >= i + with.len() && tokens[i..].iter().zip(with).all(|(token, with)| token == with)
    };
    let mut file = File::default();
    let mut i = 0;
    while i < tokens.len() {
        if starts(i, &["#", "[", "cfg", "(", "test", ")", "]"]) {
            i += 7;
            // Other attributes have no brackets inside.
            while starts(i, &["#", "["]) {
                i += tokens[i..].iter().position(|token| token == "]").unwrap() + 1;
            }
            let len = item_len(&tokens[i..]);
            if let Some(at) = tokens[i..i + len].iter().position(|token| token == "mod") {
                file.tests.push(tokens[i + at + 1].clone());
            }
            i += len;
        } else if tokens[i] == "use" && tokens.get(i + 1).is_some_and(|next| next != "<") {
            let len = tokens[i..].iter().position(|token| token == ";").unwrap();
            let public = i > 0 && ["pub", ")"].contains(&&tokens[i - 1][..]);
            add_tree(&tokens[i + 1..i + len], &[], public, &mut file.imports);
            i += len + 1;
        } else if tokens[i] == "mod" && tokens.get(i + 2).is_some_and(|end| end == ";") {
            i += 3;
        } else if is_name(&tokens[i]) && (i == 0 || ![".", "::"].contains(&&tokens[i - 1][..])) {
            let mut path = vec![tokens[i].clone()];
            while starts(i + 1, &["::"]) && tokens.get(i + 2).is_some_and(|next| is_name(next)) {
                path.push(tokens[i + 2].clone());
                i += 2;
            }
            file.names.insert(path[0].clone());
            match path.len() {
                1 => file.alone.extend(path),
                _ => file.paths.push(path),
            }
            i += 1;
        } else {
            i += 1;
        }
    }
    file
}

/// All files of a crate.
struct Crate {
    files: BTreeMap<Module, File>,
}

impl Crate {
    /// Reads the files below `root`.
    fn read(root: &Path, sources: &[std::path::PathBuf]) -> Crate {
        let mut files = BTreeMap::new();
        for path in sources {
            let inside = path.strip_prefix(root).unwrap();
            let shown = inside.display().to_string();
            let mut module: Module =
                inside.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            module.pop_if(|last| last == "mod");
            if module == ["lib"] {
                module.clear();
            }
            files.insert(module, File { shown, ..parse(&std::fs::read_to_string(path).unwrap()) });
        }
        Crate { files }
    }

    fn is_test(&self, module: &Module) -> bool {
        (1..=module.len()).any(|len| {
            let (name, parent) = module[..len].split_last().unwrap();
            ["tests", "testing"].contains(&&name[..])
                || self.files.get(parent).is_some_and(|parent| parent.tests.contains(name))
        })
    }

    /// Returns the file that a path in `module` leads to, and the rest of the path.
    fn resolve<'p>(&self, module: &Module, path: &'p [String]) -> Option<(Module, &'p [String])> {
        let child = |module: &Module, name: &String| [&module[..], std::slice::from_ref(name)].concat();
        let (mut at, mut rest) = match &path[0][..] {
            "crate" => (Module::new(), &path[1..]),
            "self" => (module.clone(), &path[1..]),
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                (module[..module.len().checked_sub(ups)?].to_vec(), &path[ups..])
            }
            _ if self.files.contains_key(&child(module, &path[0])) => (module.clone(), path),
            name => {
                // The name of an imported module.
                let bound = |import: &&Import| import.name == name && import.path[0] != name;
                let import = self.files[module].imports.iter().find(bound)?;
                let (at, rest) = self.resolve(module, &import.path)?;
                (at, if rest.is_empty() { &path[1..] } else { return None })
            }
        };
        while let Some((name, more)) = rest.split_first()
            && self.files.contains_key(&child(&at, name))
        {
            (at, rest) = (child(&at, name), more);
        }
        Some((at, rest))
    }

    /// Returns the file that defines the item which `module` exports as `name`.
    fn definition(&self, module: Module, name: &str) -> Module {
        let shown = |import: &&Import| import.public && import.name == name;
        let import = self.files.get(&module).and_then(|file| file.imports.iter().find(shown));
        match import.and_then(|import| self.resolve(&module, &import.path)) {
            Some((at, [name, ..])) if at != module => self.definition(at, name),
            _ => module,
        }
    }

    /// Returns the file that defines the item at a path of `module`, and the name of the item.
    fn item<'p>(&self, module: &Module, path: &'p [String]) -> Option<(Module, &'p String)> {
        let (at, rest) = self.resolve(module, path)?;
        if let [name, ..] = rest {
            return Some((self.definition(at, name), name));
        }
        // An item may have the name of a module next to it.
        let (name, parent) = (path.last()?, at.split_last()?.1.to_vec());
        let to = self.definition(parent.clone(), name);
        (self.files[module].alone.contains(name) && to != parent).then_some((to, name))
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (module, file) in self.files.iter().filter(|(module, _)| !self.is_test(module)) {
            let used = |import: &&Import| !import.public || file.names.contains(&import.name);
            let imports = file.imports.iter().filter(used).map(|import| &import.path);
            for path in imports.chain(&file.paths) {
                let Some((to, name)) = self.item(module, path) else { continue };
                if to != *module
                    && !self.is_test(&to)
                    && let Some(to) = self.files.get(&to)
                {
                    let edges = graph.entry(file.shown.clone()).or_default();
                    edges.entry(to.shown.clone()).or_default().insert(name.clone());
                }
            }
        }
        graph
    }
}

/// Returns the graph of the files below `root`.
pub fn graph(root: &Path, sources: &[std::path::PathBuf]) -> Graph {
    Crate::read(root, sources).graph()
}

/// Returns the strongly connected components: files that import each other in a circle, with the edges inside.
pub fn cycles(graph: &Graph) -> Vec<Graph> {
    let reach = |from: &String| {
        let (mut found, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            let edges = graph.get(file).into_iter().flat_map(|edges| edges.keys());
            next.extend(edges.filter(|to| found.insert((*to).clone())));
        }
        found
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|file| (file, reach(file))).collect();
    let mut sets: Vec<Graph> = Vec::new();
    for (file, there) in &reached {
        if !there.contains(*file) || sets.iter().any(|set| set.contains_key(*file)) {
            continue;
        }
        let back = |other: &&String| there.contains(*other) && reached[other].contains(*file);
        let set: BTreeSet<&String> = reached.keys().copied().filter(back).collect();
        let inside = |file: &String| {
            graph[file]
                .iter()
                .filter(|(to, _)| set.contains(to))
                .map(|(to, names)| (to.clone(), names.clone()))
        };
        sets.push(set.iter().map(|file| ((*file).clone(), inside(file).collect())).collect());
    }
    sets
}
