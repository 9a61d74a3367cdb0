//! Loading: merges a file, its includes and the overrides of the command line into one tree.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::parse::parse_rest;
use super::tree::Kind;
use super::{Diagnostic, Entry, Source, Sources, Tree, did_you_mean, foreign, parse};

/// Largest pipeline file. Bounds memory for endless files such as `/dev/zero`.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum depth of nested includes.
const MAX_DEPTH: usize = 16;
/// Maximum number of includes in all files of a pipeline together.
const MAX_INCLUDES: usize = 1000;
/// Maximum number of merged values. A file and its includes count each time the file is included.
const MAX_MERGED: usize = 2_000_000;

/// A `--set PATH=RON`.
#[derive(Clone, Debug)]
pub struct Override {
    /// Keys and fields from the root, joined by dots: `corpora.docs.source.path`.
    pub path: String,
    /// The new value, as RON.
    pub value: String,
}

impl std::str::FromStr for Override {
    type Err = OverrideError;

    fn from_str(text: &str) -> Result<Self, OverrideError> {
        let (path, value) = text.split_once('=').ok_or(OverrideError)?;
        if path.trim().is_empty() {
            return Err(OverrideError);
        }
        Ok(Self { path: path.trim().to_owned(), value: value.trim().to_owned() })
    }
}

/// The argument is not of the form `PATH=RON`.
#[derive(Debug, thiserror::Error)]
#[error("expected PATH=RON, as in corpora.docs.source.path=\"docs.jsonl\"")]
pub struct OverrideError;

/// A tree with the source texts it was read from.
#[derive(Debug)]
pub struct Loaded {
    /// Every source text, for rendering diagnostics.
    pub sources: Sources,
    /// The merged tree; `None` if it could not be read.
    pub tree: Option<Tree>,
    /// The errors found so far.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads a pipeline file and its includes, and applies the overrides.
pub fn load(path: &Path, overrides: &[Override]) -> Loaded {
    let mut loader = Loader::default();
    let tree = loader.file(path, None, &mut Vec::new());
    loader.finish(tree, overrides)
}

/// Like [`load`], for a text that is not in a file.
pub fn load_str(name: &str, base: &Path, text: &str, overrides: &[Override]) -> Loaded {
    let mut loader = Loader::default();
    let source = loader.sources.add(Source { name: name.into(), base: base.into(), text: text.into() });
    let tree = loader.source(source, &mut Vec::new());
    loader.finish(tree, overrides)
}

#[derive(Default)]
struct Loader {
    sources: Sources,
    diagnostics: Vec<Diagnostic>,
    /// An include is missing, so the pipeline cannot be checked.
    incomplete: bool,
    /// The files that were read completely, merged with their includes, by canonical path.
    read: HashMap<PathBuf, Included>,
    /// Number of includes so far, and of the values merged from them.
    includes: usize,
    merged: usize,
}

/// A file that was read.
struct Included {
    /// `None` if the file is invalid; its diagnostics are already reported.
    tree: Option<Tree>,
    /// Number of values, those of its includes counted too.
    values: usize,
}

impl Loader {
    fn finish(mut self, tree: Option<Tree>, overrides: &[Override]) -> Loaded {
        let mut tree = tree.filter(|_| !self.incomplete);
        if let Some(tree) = &mut tree {
            for set in overrides {
                self.set(tree, set);
            }
            drop_removed(tree);
        }
        Loaded { sources: self.sources, tree, diagnostics: self.diagnostics }
    }

    /// Reads a file and its includes. A file that was included before is not read again.
    fn file(&mut self, path: &Path, include: Option<super::Span>, open: &mut Vec<PathBuf>) -> Option<Tree> {
        let identity = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if open.contains(&identity) || open.len() >= MAX_DEPTH {
            let name = path.display();
            let (code, message) = match open.contains(&identity) {
                true => ("include-cycle", format!("`{name}` includes itself, directly or through others")),
                false => ("too-many-includes", format!("`{name}` is included {MAX_DEPTH} files deep")),
            };
            self.diagnostics.push(Diagnostic::new(code, include, message));
            return None;
        }
        if let Some(known) = self.read.get(&identity) {
            self.merged += known.values;
            return known.tree.clone();
        }
        let text = self.text(path, include)?;
        let base = path.parent().map(Path::to_owned).unwrap_or_default();
        let source = self.sources.add(Source { name: path.display().to_string(), base, text: text.into() });
        open.push(identity.clone());
        let tree = self.source(source, open);
        open.pop();
        let values = tree.as_ref().map_or(0, values);
        self.merged += values;
        self.read.insert(identity, Included { tree: tree.clone(), values });
        tree
    }

    fn text(&mut self, path: &Path, include: Option<super::Span>) -> Option<String> {
        let name = path.display().to_string();
        let bytes = match read(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = match error.kind() {
                    std::io::ErrorKind::NotFound => format!("there is no file `{name}`"),
                    std::io::ErrorKind::IsADirectory => format!("`{name}` is a directory, not a file"),
                    _ => format!("cannot read `{name}`: {error}"),
                };
                let mut diagnostic = Diagnostic::new("unreadable-file", include, message);
                if error.kind() == std::io::ErrorKind::NotFound
                    && let Some(near) = near_file(path)
                {
                    diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
                }
                self.diagnostics.push(diagnostic);
                return None;
            }
        };
        match String::from_utf8(bytes) {
            // Some editors write a byte order mark at the start.
            Ok(text) => Some(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)),
            Err(error) => {
                let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
                let message = format!("`{name}` is not valid UTF-8, first in line {line}");
                self.diagnostics.push(Diagnostic::new("not-utf8", include, message));
                None
            }
        }
    }

    fn source(&mut self, source: usize, open: &mut Vec<PathBuf>) -> Option<Tree> {
        let before = self.diagnostics.len();
        let tree = parse_rest(&self.sources, source, &mut self.diagnostics);
        if let Some(diagnostic) = foreign::diagnose(source, self.sources.get(source), tree.as_ref()) {
            self.diagnostics.truncate(before);
            self.diagnostics.push(diagnostic);
            return None;
        }
        let mut tree = tree?;
        let Some(entries) = tree.entries_mut() else { return Some(tree) };
        let Some(at) = entries.iter().position(|entry| entry.key.text == "include") else { return Some(tree) };
        let include = entries.remove(at).value;
        let files = match include.kind {
            Kind::Seq(items) => items,
            _ => vec![include],
        };
        let mut base: Option<Tree> = None;
        for file in files {
            let Kind::Scalar(ron::Value::String(name)) = &file.kind else {
                let found = format!("`include` takes paths in quotes, not {}", file.describe());
                self.diagnostics.push(Diagnostic::new("wrong-type", file.span, found).label("expected a path"));
                continue;
            };
            if name.trim().is_empty() {
                let diagnostic = Diagnostic::new("wrong-value", file.span, "`include`: the path is empty");
                self.diagnostics.push(diagnostic.label("expected the path of a file"));
                continue;
            }
            if !self.may_include(file.span) {
                self.incomplete = true;
                break;
            }
            let path = self.sources.get(source).base.join(name);
            let Some(included) = self.file(&path, Some(file.span), open) else {
                self.incomplete = true;
                continue;
            };
            base = Some(match base {
                Some(base) => merge(base, included),
                None => included,
            });
        }
        let Some(base) = base else { return Some(tree) };
        if !self.incomplete {
            self.removes(&base, &tree);
        }
        Some(merge(base, tree))
    }

    /// Reports each `Remove` of a member that no include defines.
    fn removes(&mut self, base: &Tree, tree: &Tree) {
        for entry in tree.entries().unwrap_or_default() {
            let Kind::Map(members) = &entry.value.kind else { continue };
            let there: Vec<&str> = match base.get(&entry.key.text).map(|tree| &tree.kind) {
                Some(Kind::Map(members)) => members.iter().map(|member| member.key.text.as_str()).collect(),
                _ => Vec::new(),
            };
            for member in members.iter().filter(|member| is_remove(member)) {
                let name = &member.key.text;
                if !there.contains(&name.as_str()) {
                    let message = format!("`Remove`: the included `{}` have no `{name}`", entry.key.text);
                    let diagnostic = Diagnostic::new("unknown-path", member.key.span, message).label("not found");
                    self.diagnostics.push(diagnostic.choices(name, there.iter().copied()));
                }
            }
        }
    }

    /// Whether another include is within the limits; reports the first that is not.
    fn may_include(&mut self, place: super::Span) -> bool {
        let told = self.includes > MAX_INCLUDES;
        self.includes += 1;
        let message = if self.merged > MAX_MERGED {
            format!("the included files contain more than {MAX_MERGED} values")
        } else if self.includes > MAX_INCLUDES {
            format!("the pipeline includes more than {MAX_INCLUDES} files, counting repeated includes")
        } else {
            return true;
        };
        self.includes = MAX_INCLUDES + 1;
        if !told {
            self.diagnostics.push(Diagnostic::new("too-many-includes", place, message).label("exceeds the limit"));
        }
        false
    }

    fn set(&mut self, tree: &mut Tree, set: &Override) {
        let name = format!("--set {}", set.path);
        let source = self.sources.add(Source { name, base: PathBuf::new(), text: set.value.as_str().into() });
        let value = match parse(&self.sources, source) {
            Ok(value) => value,
            Err(errors) => {
                let help = format!("the value is RON: a string needs quotes, as in --set '{}=\"…\"'", set.path);
                self.diagnostics.extend(errors.into_iter().map(|error| error.help(help.clone())));
                return;
            }
        };
        let mut at = &mut *tree;
        let mut segments = set.path.split('.').peekable();
        while let Some(segment) = segments.next() {
            if segments.peek().is_none() {
                return put(at, segment, value, &mut self.diagnostics, &set.path);
            }
            let names: Vec<String> =
                at.entries().unwrap_or_default().iter().map(|entry| entry.key.text.clone()).collect();
            let next = match &mut at.kind {
                Kind::Seq(items) | Kind::Tuple(_, items) => {
                    segment.parse::<usize>().ok().and_then(|index| items.get_mut(index))
                }
                Kind::Map(entries) | Kind::Struct(_, entries) => {
                    entries.iter_mut().find(|entry| entry.key.text == segment).map(|entry| &mut entry.value)
                }
                Kind::Scalar(_) => None,
            };
            match next {
                Some(next) => at = next,
                None => {
                    let message = format!("--set {}: there is no `{segment}` here", set.path);
                    let diagnostic = Diagnostic::new("unknown-path", value.span, message);
                    self.diagnostics.push(diagnostic.choices(segment, names.iter().map(String::as_str)));
                    return;
                }
            }
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Reading a named pipe would block. Pipes under /dev and /proc, such as standard input, are intended.
    let is_given = path.starts_with("/dev") || path.starts_with("/proc");
    if !is_given && std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

fn put(at: &mut Tree, key: &str, value: Tree, diagnostics: &mut Vec<Diagnostic>, path: &str) {
    let span = value.span;
    match &mut at.kind {
        Kind::Map(entries) | Kind::Struct(_, entries) => match entries.iter_mut().find(|entry| entry.key.text == key) {
            Some(entry) => entry.value = value,
            None => entries.push(Entry { key: super::Name { text: key.to_owned(), span }, value }),
        },
        Kind::Seq(items) | Kind::Tuple(_, items) => match key.parse::<usize>().ok().and_then(|i| items.get_mut(i)) {
            Some(item) => *item = value,
            None => diagnostics.push(
                Diagnostic::new("unknown-path", span, format!("--set {path}: the list has no item `{key}`"))
                    .help(format!("it has {} items, counted from 0", items.len())),
            ),
        },
        Kind::Scalar(_) => diagnostics.push(Diagnostic::new(
            "unknown-path",
            span,
            format!("--set {path}: a plain value has no `{key}`"),
        )),
    }
}

/// The number of values in a tree.
fn values(tree: &Tree) -> usize {
    1 + match &tree.kind {
        Kind::Map(entries) | Kind::Struct(_, entries) => entries.iter().map(|entry| values(&entry.value)).sum(),
        Kind::Seq(items) | Kind::Tuple(_, items) => items.iter().map(values).sum(),
        Kind::Scalar(_) => 0,
    }
}

/// Merges two trees; `over` wins. Maps, and structs of the same name, are merged member by member.
/// Anything else replaces the old value, including a node with a different operator.
fn merge(base: Tree, over: Tree) -> Tree {
    let kind = match (base.kind, over.kind) {
        (Kind::Map(base), Kind::Map(over)) => Kind::Map(merge_entries(base, over)),
        (Kind::Struct(base_name, base), Kind::Struct(name, over)) if same(&base_name, &name) => {
            Kind::Struct(name.or(base_name), merge_entries(base, over))
        }
        (_, over) => over,
    };
    Tree { span: over.span, kind }
}

fn same(base: &Option<super::Name>, over: &Option<super::Name>) -> bool {
    match (base, over) {
        (Some(base), Some(over)) => base.text == over.text,
        (_, None) => true,
        (None, Some(_)) => false,
    }
}

fn merge_entries(base: Vec<Entry>, over: Vec<Entry>) -> Vec<Entry> {
    // Looked up by key, since a file may have very many entries.
    let mut places: HashMap<String, usize> = HashMap::with_capacity(base.len());
    let mut merged: Vec<Option<Entry>> = Vec::with_capacity(base.len() + over.len());
    for entry in base {
        places.entry(entry.key.text.clone()).or_insert(merged.len());
        merged.push(Some(entry));
    }
    for entry in over {
        match places.get(&entry.key.text) {
            Some(&at) => {
                let value = match merged[at].take() {
                    Some(old) => merge(old.value, entry.value),
                    None => entry.value,
                };
                merged[at] = Some(Entry { key: entry.key, value });
            }
            None => {
                places.insert(entry.key.text.clone(), merged.len());
                merged.push(Some(entry));
            }
        }
    }
    merged.into_iter().flatten().collect()
}

/// Drops the members that `Remove` overrides: nodes, models or corpora of an included file.
fn drop_removed(tree: &mut Tree) {
    for entry in tree.entries_mut().into_iter().flatten() {
        if let Kind::Map(members) = &mut entry.value.kind {
            members.retain(|member| !is_remove(member));
        }
    }
}

fn is_remove(member: &Entry) -> bool {
    matches!(&member.value.kind, Kind::Struct(Some(name), fields) if name.text == "Remove" && fields.is_empty())
}

/// The most similar name in the directory of a missing file, for a did-you-mean.
pub(crate) fn near_file(path: &Path) -> Option<String> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wanted = path.file_name()?.to_str()?;
    let names: Vec<String> =
        std::fs::read_dir(directory).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    did_you_mean(wanted, names.iter().map(String::as_str)).map(str::to_owned)
}

#[cfg(test)]
mod tests;
