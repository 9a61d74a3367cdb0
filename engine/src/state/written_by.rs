//! Which pipeline has written a state directory: `pipeline.json` in it. Another pipeline that is run on it by mistake would
//! remove the passages of the first one, and take its answers for given.
//!
//! A pipeline may be edited and its file may be moved. So the file at the same path always goes on, and another file does if
//! it has something in common with the one that has written the directory: a corpus that reads the same documents, or a
//! source that reads the same turns. A source without a place of its own, such as `Stdin`, says nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::StateError;
use crate::append;
use crate::plan::{NodeKind, Plan};

/// The name of the file.
const FILE: &str = "pipeline.json";
/// Most parts of a pipeline that an error names.
const NAMED: usize = 3;

/// What is remembered of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Writer {
    name: String,
    /// Its absolute path.
    file: PathBuf,
    /// What its corpora read, by name.
    corpora: BTreeMap<String, Read>,
    /// What its sources of turns read, by node.
    sources: BTreeMap<String, Read>,
}

/// What a corpus or a source reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Read {
    kind: String,
    /// Its settings, without secrets, as `turnflow explain` shows them.
    settings: String,
}

impl Read {
    fn new(kind: &str, settings: String) -> Self {
        Self { kind: kind.to_owned(), settings }
    }

    /// The first setting, which says where it reads; `None` if it has no place of its own.
    fn place(&self) -> Option<&str> {
        self.settings.split(", ").next().filter(|first| first.contains('"'))
    }
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.kind, self.place().unwrap_or_default())
    }
}

/// Whether two parts read the same. `is_named`: they have the same name.
fn is_same(one: &Read, other: &Read, is_named: bool) -> bool {
    let has_place = one.place().is_some();
    one.kind == other.kind
        && (one.settings == other.settings && (has_place || is_named) || is_named && one.place() == other.place())
}

fn have_common(one: &BTreeMap<String, Read>, other: &BTreeMap<String, Read>) -> bool {
    one.iter().any(|(name, read)| other.iter().any(|(named, also)| is_same(read, also, name == named)))
}

impl Writer {
    /// What is remembered of a plan that was read from this file.
    pub fn of(plan: &Plan, file: &Path) -> Self {
        let corpora = plan.corpora.iter();
        let corpora =
            corpora.map(|corpus| (corpus.name.to_string(), Read::new(corpus.source_name, corpus.source.explain())));
        let sources = plan.nodes.iter().filter_map(|node| match &node.kind {
            NodeKind::Source(source) => Some((node.id.to_string(), Read::new(node.kind_name, source.explain()))),
            _ => None,
        });
        let whole = file.canonicalize().or_else(|_| std::path::absolute(file));
        Self {
            name: plan.name.clone(),
            file: whole.unwrap_or_else(|_| file.to_owned()),
            corpora: corpora.collect(),
            sources: sources.collect(),
        }
    }

    /// The sources of turns that have a place.
    fn placed(&self) -> BTreeMap<String, Read> {
        let sources = self.sources.iter().filter(|(_, read)| read.place().is_some());
        sources.map(|(name, read)| (name.clone(), read.clone())).collect()
    }

    /// Whether this pipeline may be that one after an edit.
    fn continues(&self, before: &Self) -> bool {
        let (own, placed) = (self.placed(), before.placed());
        let says_nothing = |one: &Self, placed: &BTreeMap<String, Read>| one.corpora.is_empty() && placed.is_empty();
        self.file == before.file
            || have_common(&self.corpora, &before.corpora)
            || have_common(&own, &placed)
            || says_nothing(self, &own) && says_nothing(before, &placed)
    }

    /// Refuses to go on in a directory that another pipeline has written.
    ///
    /// # Errors
    ///
    /// It has, and this one has nothing in common with it.
    pub fn check(&self, directory: &Path) -> Result<(), StateError> {
        match read(directory).filter(|before| !self.continues(before)) {
            Some(before) => Err(StateError::OfAnother {
                path: directory.to_owned(),
                remembered: directory.join(FILE),
                before: before.to_string(),
                file: before.file,
                now: self.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Remembers that this pipeline has written a directory.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep(&self, directory: &Path) -> Result<(), StateError> {
        if read(directory).as_ref() == Some(self) {
            return Ok(());
        }
        let path = directory.join(FILE);
        let text = serde_json::to_vec(self).map_err(std::io::Error::from);
        let written = text.and_then(|text| append::replace(&path, &text));
        written.map_err(|source| StateError::Io { action: "write", path, source })
    }
}

/// What is remembered in a directory. A file that cannot be read remembers nothing.
fn read(directory: &Path) -> Option<Writer> {
    serde_json::from_slice(&std::fs::read(directory.join(FILE)).ok()?).ok()
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |what: &'static str, parts: &BTreeMap<String, Read>| {
            let all: Vec<String> = parts.iter().map(|(name, read)| format!("{what} `{name}`: {read}")).collect();
            let more = all.len().saturating_sub(NAMED);
            let shown = all.into_iter().take(NAMED);
            shown.chain((more > 0).then(|| format!("{more} more"))).collect::<Vec<_>>()
        };
        let mut parts = named("corpus", &self.corpora);
        parts.extend(named("source", &self.sources));
        write!(f, "`{}` of `{}` ({})", self.name, self.file.display(), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(file: &str, corpora: &[(&str, &str, &str)], sources: &[(&str, &str, &str)]) -> Writer {
        let parts = |parts: &[(&str, &str, &str)]| {
            let read = |(name, kind, settings): &(&str, &str, &str)| {
                ((*name).to_owned(), Read::new(kind, (*settings).to_owned()))
            };
            parts.iter().map(read).collect()
        };
        Writer { name: "p".to_owned(), file: file.into(), corpora: parts(corpora), sources: parts(sources) }
    }

    #[test]
    fn an_edit_is_told_from_another_pipeline() {
        let (docs, typed) = (("docs", "JsonLines", "path: \"a\", watch: true"), ("in", "Stdin", ""));
        let log = ("in", "JsonLinesTurns", "path: \"log\", follow: true");
        let first = writer("/p.ron", &[docs], &[typed]);
        let other = ("manuals", "JsonLines", "path: \"b\", watch: true");
        // The same file, whatever is in it.
        assert!(writer("/p.ron", &[other], &[log]).continues(&first));
        // Renamed, with other settings or with another name of the corpus.
        assert!(writer("/q.ron", &[("docs", "JsonLines", "path: \"a\", watch: false")], &[log]).continues(&first));
        assert!(writer("/q.ron", &[("texts", docs.1, docs.2), other], &[]).continues(&first));
        assert!(writer("/q.ron", &[other], &[log]).continues(&writer("/p.ron", &[docs], &[log])));
        // Another one, even if its parts have the same names.
        assert!(!writer("/q.ron", &[other], &[typed]).continues(&first));
        assert!(!writer("/q.ron", &[("docs", "JsonLines", "path: \"b\", watch: true")], &[typed]).continues(&first));
        assert!(!writer("/q.ron", &[("docs", "Directory", "path: \"a\"")], &[typed]).continues(&first));
        assert!(!writer("/q.ron", &[], &[typed]).continues(&first));
        // Documents that callers give belong to the corpus of that name.
        let given = |name| writer("/g.ron", &[(name, "Documents", "max_bytes: 1")], &[typed]);
        let moved = |name| Writer { file: "/h.ron".into(), ..given(name) };
        assert!(moved("docs").continues(&given("docs")));
        assert!(!moved("more").continues(&given("docs")));
        // Nothing says that they differ.
        assert!(writer("/q.ron", &[], &[typed]).continues(&writer("/p.ron", &[], &[("asked", "Stdin", "")])));
    }

    #[test]
    fn what_is_remembered_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let first = writer("/p.ron", &[("docs", "JsonLines", "path: \"a\"")], &[]);
        first.check(directory.path()).unwrap();
        first.keep(directory.path()).unwrap();
        first.check(directory.path()).unwrap();
        let other = writer("/q.ron", &[("docs", "JsonLines", "path: \"b\"")], &[("in", "Stdin", "")]);
        let refused = other.check(directory.path()).unwrap_err().to_string();
        for part in ["/p.ron", "/q.ron", "JsonLines(path: \"a\")", "source `in`: Stdin()", "--state", FILE] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        // A power loss has torn it.
        std::fs::write(directory.path().join(FILE), "{\"name\": \"p").unwrap();
        other.check(directory.path()).unwrap();
    }
}
