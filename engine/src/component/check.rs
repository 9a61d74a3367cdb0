//! How a configuration tells of values that have the right type and yet cannot be.

use std::collections::BTreeMap;

use crate::language::SamplingFields;
use crate::spec::{Diagnostic, FilePath, Tree};

/// Collects what is wrong with one configuration, and the texts that it takes from files;
/// places are its fields.
pub struct Check<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) owner: &'a str,
    pub(crate) diagnostics: &'a mut Vec<Diagnostic>,
    pub(crate) texts: &'a mut Texts,
}

/// Hashes and paths of files that are part of what a pipeline says, by who names them in which field.
pub(crate) type Texts = BTreeMap<(String, String), (blake3::Hash, std::path::PathBuf)>;

impl Check<'_> {
    /// Reports a mistake at a field (or at the whole, if the field is not written).
    pub fn error(&mut self, code: &'static str, field: &str, message: impl Into<String>) {
        let span = self.tree.get(field).map_or(self.tree.span, |value| value.span);
        let message = format!("{}: {}", self.owner, message.into());
        self.diagnostics.push(Diagnostic::new(code, span, message));
    }

    /// Reports a value outside of `low..=high`.
    pub fn range<N: PartialOrd + std::fmt::Display>(&mut self, field: &str, value: N, low: N, high: N) {
        if !(value >= low && value <= high) {
            let span = self.tree.get(field).map_or(self.tree.span, |value| value.span);
            let message = format!("{}: `{field}` is {value}, out of range", self.owner);
            let label = format!("expected {low} to {high}");
            self.diagnostics.push(Diagnostic::new("out-of-range", span, message).label(label));
        }
    }

    /// Reports settings of sampling that cannot be.
    pub fn sampling(&mut self, field: &str, sampling: &SamplingFields) {
        for problem in sampling.problems() {
            self.error("out-of-range", field, problem);
        }
    }

    /// The text of a file that is part of what the pipeline says, as a prompt is: if it
    /// changes, so does the pipeline's hash. Reports one that cannot be read.
    pub fn text(&mut self, field: &str, file: &FilePath) -> Option<String> {
        self.exists(field, file);
        if !file.path.exists() {
            return None;
        }
        match std::fs::read_to_string(&file.path) {
            Ok(text) => {
                let hash = blake3::hash(text.as_bytes());
                self.texts.insert((self.owner.to_owned(), field.to_owned()), (hash, file.path.clone()));
                Some(text)
            }
            Err(error) => {
                self.error("bad-prompt", field, format!("cannot read `{}`: {error}", file.written));
                None
            }
        }
    }

    /// Reports a path that does not exist.
    pub fn exists(&mut self, field: &str, path: &FilePath) {
        if path.path.exists() {
            return;
        }
        let span = self.tree.get(field).map_or(self.tree.span, |value| value.span);
        let message = format!("{}: there is no `{}`", self.owner, path.written);
        let mut diagnostic = Diagnostic::new("no-such-path", span, message)
            .label("this path does not exist")
            .help(format!("looked for {}", path.path.display()));
        if let Some(near) = crate::spec::near_file(&path.path) {
            diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
        }
        diagnostic.missing = Some(path.path.clone());
        self.diagnostics.push(diagnostic);
    }
}
