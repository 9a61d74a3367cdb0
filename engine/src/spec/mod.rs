//! Pipeline files: parses RON into a tree in which each value has a file and a span, merges
//! includes and overrides of the command line, and deserializes values on demand.
//!
//! This module knows only the syntax; `plan` knows pipelines.

mod de;
mod diagnostic;
mod error;
mod foreign;
mod lexical;
mod load;
mod parse;
mod path;
mod syntax;
mod tree;

pub use de::from_tree;
pub use diagnostic::{Diagnostic, did_you_mean};
pub use error::{Problem, SpecError};
pub(crate) use load::near_file;
pub use load::{Loaded, Override, load, load_str};
pub use parse::parse;
pub use path::FilePath;
pub use tree::{Entry, Kind, Name, Tree};

use std::path::PathBuf;
use std::sync::Arc;

/// A range of bytes in one of the [`Sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Index into [`Sources`].
    pub source: usize,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// Whether `other` lies within this span.
    pub fn contains(&self, other: &Span) -> bool {
        self.source == other.source && self.start <= other.start && other.end <= self.end
    }
}

/// A text that values are read from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name shown to the user: the path as given, or `--set …`.
    pub name: String,
    /// The directory that its relative paths are resolved against.
    pub base: PathBuf,
    /// Its text.
    pub text: Arc<str>,
}

/// All texts that a pipeline is read from.
#[derive(Clone, Debug, Default)]
pub struct Sources(Vec<Source>);

impl Sources {
    /// Adds a text and returns its index.
    pub fn add(&mut self, mut source: Source) -> usize {
        // RON accepts no comment that ends with the text.
        if !source.text.ends_with('\n') {
            source.text = format!("{}\n", source.text).into();
        }
        self.0.push(source);
        self.0.len() - 1
    }

    /// The text with that index.
    pub fn get(&self, index: usize) -> &Source {
        &self.0[index]
    }

    /// The names of the files among them, as they were opened.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|source| source.name.as_str()).filter(|name| !name.starts_with("--set "))
    }

    /// Line and column of the start of a span, both counted from 1; the column counts characters.
    pub fn line_column(&self, span: Span) -> (usize, usize) {
        let text = &self.0[span.source].text;
        let before = &text[..span.start.min(text.len())];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// Deserializes RON text, with paths relative to the working directory; for tests and examples.
pub fn from_str<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, SpecError> {
    let mut sources = Sources::default();
    let source = sources.add(Source { name: "text".into(), base: PathBuf::new(), text: text.into() });
    match parse(&sources, source) {
        Ok(tree) => from_tree(&tree, &sources),
        Err(errors) => Err(SpecError {
            problem: Problem::Other(errors.into_iter().map(|error| error.message).collect::<Vec<_>>().join("; ")),
            span: None,
        }),
    }
}
