//! How a configuration reports values that have the right type but are invalid.

use std::collections::BTreeMap;

use crate::language::SamplingFields;
use crate::spec::{Diagnostic, FilePath, Tree};

/// Collects the errors of one configuration, and the texts that it reads from files. Errors are
/// reported at its fields.
pub struct Check<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) owner: &'a str,
    pub(crate) diagnostics: &'a mut Vec<Diagnostic>,
    pub(crate) texts: &'a mut Texts,
}

/// Hashes and paths of the text files of a pipeline, by the component and the field that name them.
pub(crate) type Texts = BTreeMap<(String, String), (blake3::Hash, std::path::PathBuf)>;

impl Check<'_> {
    /// Reports an error at a field, or at the whole configuration if the field is absent.
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

    /// Checks the configuration in a field; errors are reported at its own fields.
    pub fn within(&mut self, field: &str, check: impl FnOnce(&mut Check<'_>)) {
        let tree = self.tree.get(field).unwrap_or(self.tree);
        check(&mut Check { tree, owner: self.owner, diagnostics: self.diagnostics, texts: self.texts });
    }

    /// Reports invalid sampling settings.
    pub fn sampling(&mut self, field: &str, sampling: &SamplingFields) {
        for problem in sampling.problems() {
            self.error("out-of-range", field, problem);
        }
    }

    /// The text of a file that belongs to the pipeline, such as a prompt. A change of the text
    /// changes the pipeline's hash. Reports a file that cannot be read.
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
