//! Deserializes trees into configurations. Invalid fields are skipped, so that all errors of a
//! configuration are reported at once.

use super::Resolver;
use crate::component::{Check, Configured, Parse};
use crate::spec::{Diagnostic, Entry, Name, Problem, Span, SpecError, Tree};

/// A configuration with the names of its invalid and missing fields. It can be checked for further
/// errors, but used only if both lists are empty.
pub(super) struct Typed<C: ?Sized> {
    pub(super) config: Box<C>,
    wrong: Vec<String>,
    missing: Vec<String>,
}

impl<C: ?Sized> Typed<C> {
    pub(super) fn has(&self, field: &str) -> bool {
        !self.wrong.iter().chain(&self.missing).any(|name| name == field)
    }

    pub(super) fn whole(self) -> Option<Box<C>> {
        (self.wrong.is_empty() && self.missing.is_empty()).then_some(self.config)
    }
}

/// Removes the innermost field at `span`; returns the name of the outermost field around it.
fn drop_at(tree: &mut Tree, span: Span) -> Option<String> {
    let entries = tree.entries_mut()?;
    let at = entries.iter().position(|entry| entry.key.span == span || entry.value.span.contains(&span))?;
    let name = entries[at].key.text.clone();
    let inner = entries[at].key.span != span && entries[at].value.span != span;
    if !inner || drop_at(&mut entries[at].value, span).is_none() {
        entries.remove(at);
    }
    Some(name)
}

/// The innermost field whose value contains `span`.
fn field_at(tree: &Tree, span: Span) -> Option<&str> {
    let entry = tree.entries()?.iter().find(|entry| entry.value.span.contains(&span))?;
    Some(field_at(&entry.value, span).unwrap_or(&entry.key.text))
}

/// The part of a value to underline when the whole value is meant: its name, if it has one.
pub(super) fn head(tree: &Tree) -> Span {
    tree.name().map_or(tree.span, |name| name.span)
}

impl Resolver<'_> {
    /// Deserializes a configuration. After each error it tries again, without the invalid field or
    /// with a hole for the missing one, so that all errors are reported, not only the first.
    pub(super) fn config<C: ?Sized>(&mut self, owner: &str, tree: &Tree, parse: Parse<C>) -> Option<Typed<C>> {
        let mut rest = tree.clone();
        let (mut wrong, mut missing): (Vec<String>, Vec<String>) = Default::default();
        let mut places: Vec<Span> = Vec::new();
        loop {
            let error = match parse(&rest, self.sources) {
                Ok(config) => return Some(Typed { config, wrong, missing }),
                Err(error) => error,
            };
            if error.span == Some(Tree::hole().span) {
                return None;
            }
            match error.problem {
                Problem::MissingField(field) if error.span == Some(tree.span) => {
                    // A field dropped by this loop is not missing in the file.
                    if !wrong.iter().any(|name| name == field) {
                        self.diagnostics.push(self.explain(owner, tree, &error));
                    }
                    let entries = rest.entries_mut().filter(|_| !missing.iter().any(|name| name == field))?;
                    entries.push(Entry { key: Name { text: field.to_owned(), span: tree.span }, value: Tree::hole() });
                    missing.push(field.to_owned());
                }
                problem => {
                    let place = error.span?;
                    // The same holds for a field of a configuration inside this one.
                    let was_dropped = places.iter().any(|other| place.contains(other) && *other != place);
                    if !(matches!(problem, Problem::MissingField(_)) && was_dropped) {
                        self.diagnostics.push(self.explain(owner, tree, &SpecError { problem, span: error.span }));
                    }
                    places.push(place);
                    wrong.push(drop_at(&mut rest, place)?);
                }
            }
        }
    }

    /// Reports invalid values, except in fields that already have a diagnostic.
    pub(super) fn validate<C: Configured + ?Sized>(
        &mut self,
        owner: &str,
        tree: &Tree,
        typed: &Typed<C>,
        validate: impl FnOnce(&C, &mut Check<'_>),
    ) {
        // A hole has a made-up value, and other fields may be compared with it.
        if !typed.missing.is_empty() {
            return;
        }
        let mut found = Vec::new();
        let texts = &mut self.texts;
        let mut check = Check { tree, owner, diagnostics: &mut found, texts, sources: self.sources };
        typed.config.check_ranges(&mut check);
        validate(&typed.config, &mut check);
        let told = |span: Span| {
            let value = |name: &String| tree.get(name).is_some_and(|value| value.span.contains(&span));
            typed.wrong.iter().any(value)
        };
        self.diagnostics.extend(found.into_iter().filter(|found| !found.span.is_some_and(told)));
    }

    /// Runs a check on a part of a configuration that has been read without errors.
    pub(super) fn validated(&mut self, owner: &str, tree: &Tree, validate: impl FnOnce(&mut Check<'_>)) {
        let (diagnostics, texts) = (&mut *self.diagnostics, &mut self.texts);
        validate(&mut Check { tree, owner, diagnostics, texts, sources: self.sources });
    }

    fn explain(&self, owner: &str, tree: &Tree, error: &SpecError) -> Diagnostic {
        let span = error.span.unwrap_or(tree.span);
        match &error.problem {
            Problem::UnknownField { field, expected } => {
                Diagnostic::new("unknown-field", span, format!("{owner}: unknown field `{field}`"))
                    .label("no such field")
                    .choices(field, expected.iter().copied())
            }
            Problem::MissingField(field) => {
                // Underline only the name of the struct that lacks the field.
                let place = if span == tree.span { head(tree) } else { span };
                Diagnostic::new("missing-field", place, format!("{owner}: missing field `{field}`"))
                    .label(format!("`{field}` has no default and is missing"))
            }
            Problem::UnknownVariant { variant, expected } => {
                Diagnostic::new("unknown-variant", span, format!("{owner}: unknown `{variant}`"))
                    .label("not a valid choice")
                    .choices(variant, expected.iter().copied())
            }
            Problem::Type { expected } => {
                let text = &self.sources.get(span.source).text;
                let written = text.get(span.start..span.end).unwrap_or_default();
                let mut short: String = written.chars().take_while(|c| *c != '\n').take(40).collect();
                if short.len() < written.len() {
                    short.push('…');
                }
                let message = match field_at(tree, span) {
                    Some(field) => format!("{owner}: `{field}` cannot be `{short}`"),
                    None => format!("{owner} cannot be `{short}`"),
                };
                Diagnostic::new("wrong-type", span, message).label(format!("expected {expected}"))
            }
            Problem::EmptyPath => {
                let message = match field_at(tree, span) {
                    Some(field) => format!("{owner}: `{field}` is empty"),
                    None => format!("{owner}: the path is empty"),
                };
                Diagnostic::new("wrong-value", span, message).label("expected the path of a file or a directory")
            }
            Problem::OldName { old, new, other } => {
                let message = format!("{owner}: `{old}` is the old name of `{new}`, and both are given");
                Diagnostic::new("duplicate", span, message)
                    .label("the old name")
                    .related(*other, "the same field")
                    .help(format!("remove `{old}`"))
            }
            Problem::Twice(field) => Diagnostic::new("duplicate", span, format!("{owner}: `{field}` is given twice")),
            Problem::Other(message) => Diagnostic::new("wrong-value", span, format!("{owner}: {message}")),
        }
    }
}
