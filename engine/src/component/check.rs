//! How a configuration tells of values that have the right type and yet cannot be.

use crate::spec::{Diagnostic, FilePath, Tree};

/// Collects what is wrong with one configuration; places are its fields.
pub struct Check<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) owner: &'a str,
    pub(crate) diagnostics: &'a mut Vec<Diagnostic>,
}

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
