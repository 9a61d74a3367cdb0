//! How a configuration reports values that have the right type but are invalid.

use std::collections::BTreeMap;

use crate::language::SamplingFields;
use crate::spec::{Diagnostic, FilePath, Kind, Sources, Span, Tree};

/// Collects the errors of one configuration, and the texts that it reads from files. Errors are
/// reported at its fields.
pub struct Check<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) owner: &'a str,
    pub(crate) diagnostics: &'a mut Vec<Diagnostic>,
    pub(crate) texts: &'a mut Texts,
    pub(crate) sources: &'a Sources,
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

    /// Reports an error within the text in a field, or in the first value there, as in `field: Name("text")`: at the line
    /// and the column (from 1, in characters) of the text.
    pub fn error_within(&mut self, code: &'static str, field: &str, place: (usize, usize), message: impl Into<String>) {
        let value = self.tree.get(field).unwrap_or(self.tree);
        let value = match &value.kind {
            Kind::Tuple(_, values) => values.first().unwrap_or(value),
            _ => value,
        };
        let written = self.sources.get(value.span.source).text.get(value.span.start..value.span.end);
        let at = written.map_or(0, |written| place_within(written, place));
        let span = Span { start: value.span.start + at, end: value.span.end.max(value.span.start + at), ..value.span };
        let end = written.and_then(|written| written[at..].find('\n')).map_or(span.end, |end| span.start + end);
        let message = format!("{}: {}", self.owner, message.into());
        self.diagnostics.push(Diagnostic::new(code, Span { end: end.max(span.start), ..span }, message));
    }

    /// Reports a value outside of `low..=high`.
    pub fn range<N: PartialOrd + std::fmt::Display>(&mut self, field: &str, value: N, low: N, high: N) {
        if !(value >= low && value <= high) {
            self.out_of_range(field, value, format!("expected {low} to {high}"));
        }
    }

    /// Reports a value below `low`.
    pub fn at_least<N: PartialOrd + std::fmt::Display>(&mut self, field: &str, value: N, low: N) {
        let label = format!("expected at least {low}");
        if !(low..).contains(&value) {
            self.out_of_range(field, value, label);
        }
    }

    fn out_of_range(&mut self, field: &str, value: impl std::fmt::Display, label: String) {
        let span = self.tree.get(field).map_or(self.tree.span, |value| value.span);
        let message = format!("{}: `{field}` is {value}, out of range", self.owner);
        self.diagnostics.push(Diagnostic::new("out-of-range", span, message).label(label));
    }

    /// Checks the configuration in a field; errors are reported at its own fields.
    pub fn within(&mut self, field: &str, check: impl FnOnce(&mut Check<'_>)) {
        let tree = self.tree.get(field).unwrap_or(self.tree);
        let (diagnostics, texts) = (&mut *self.diagnostics, &mut *self.texts);
        check(&mut Check { tree, owner: self.owner, diagnostics, texts, sources: self.sources });
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

/// The byte of a text as RON writes it, in quotes, at which this line and column of its value are.
fn place_within(written: &str, (line, column): (usize, usize)) -> usize {
    let is_raw = written.starts_with('r');
    let Some(quote) = written.find('"') else { return 0 };
    let (mut at, mut now) = (quote + 1, (1, 1));
    while now < (line, column) {
        let rest = &written[at..];
        let Some(first) = rest.chars().next() else { break };
        let mut value = first;
        let length = match (first, is_raw) {
            ('"', false) => break,
            ('\\', false) => {
                let escaped = rest[1..].chars().next().unwrap_or('\\');
                value = if escaped == 'n' { '\n' } else { ' ' };
                match escaped {
                    'x' => 4,
                    'u' => rest.find('}').map_or(2, |end| end + 1),
                    other => 1 + other.len_utf8(),
                }
            }
            _ => first.len_utf8(),
        };
        at = (at + length).min(written.len());
        now = if value == '\n' { (now.0 + 1, 1) } else { (now.0, now.1 + 1) };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::place_within;

    #[test]
    fn places_within_texts_are_found() {
        for (written, place, expected) in [
            ("\"abc\"", (1, 2), "bc\""),
            ("r#\"abc\n  d\"#", (2, 3), "d\"#"),
            ("\"a\\n  d\"", (2, 3), "d\""),
            ("\"\\\"\\u{e9}é\\x41d\"", (1, 5), "d\""),
            ("\"ab\"", (9, 9), "\""),
        ] {
            assert_eq!(&written[place_within(written, place)..], expected, "{written}");
        }
    }
}
