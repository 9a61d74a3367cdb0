//! Trees to configurations. One that is wrong in places is read as far as it goes, so that
//! all its mistakes are told.

use super::Resolver;
use crate::component::{Check, Parse};
use crate::spec::{Diagnostic, Entry, Name, Problem, Span, SpecError, Tree};

/// A configuration with the names of its fields that are wrong or missing; it may be looked
/// at for further mistakes, and used only if there are none.
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

/// Takes the innermost field at `span` out; the name of the outermost.
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

/// The innermost field whose value holds `span`.
fn field_at(tree: &Tree, span: Span) -> Option<&str> {
    let entry = tree.entries()?.iter().find(|entry| entry.value.span.contains(&span))?;
    Some(field_at(&entry.value, span).unwrap_or(&entry.key.text))
}

/// The part of a value to underline when all of it is meant: its name, if it has one.
pub(super) fn head(tree: &Tree) -> Span {
    tree.name().map_or(tree.span, |name| name.span)
}

impl Resolver<'_> {
    /// Types a configuration. A struct is typed again without each field that is wrong, and
    /// with a hole for each that is missing, so that all its mistakes are told, not only
    /// the first.
    pub(super) fn config<C: ?Sized>(&mut self, owner: &str, tree: &Tree, parse: Parse<C>) -> Option<Typed<C>> {
        let mut rest = tree.clone();
        let (mut wrong, mut missing): (Vec<String>, Vec<String>) = Default::default();
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
                    // A field that was dropped is missing through us, not through the author.
                    if !wrong.iter().any(|name| name == field) {
                        self.diagnostics.push(self.explain(owner, tree, &error));
                    }
                    let entries = rest.entries_mut().filter(|_| !missing.iter().any(|name| name == field))?;
                    entries.push(Entry { key: Name { text: field.to_owned(), span: tree.span }, value: Tree::hole() });
                    missing.push(field.to_owned());
                }
                _ => {
                    self.diagnostics.push(self.explain(owner, tree, &error));
                    wrong.push(drop_at(&mut rest, error.span?)?);
                }
            }
        }
    }

    /// Reports values that cannot be, except in fields of which something is told already.
    pub(super) fn validate<C: ?Sized>(
        &mut self,
        owner: &str,
        tree: &Tree,
        typed: &Typed<C>,
        validate: impl FnOnce(&C, &mut Check<'_>),
    ) {
        // What a hole was read as is nobody's value, and others are compared with it.
        if !typed.missing.is_empty() {
            return;
        }
        let mut found = Vec::new();
        validate(&typed.config, &mut Check { tree, owner, diagnostics: &mut found, texts: &mut self.texts });
        let told = |span: Span| {
            let value = |name: &String| tree.get(name).is_some_and(|value| value.span.contains(&span));
            typed.wrong.iter().any(value)
        };
        self.diagnostics.extend(found.into_iter().filter(|found| !found.span.is_some_and(told)));
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
                // Underline the name of what lacks the field, not all of it.
                let place = if span == tree.span { head(tree) } else { span };
                Diagnostic::new("missing-field", place, format!("{owner}: missing field `{field}`"))
                    .label(format!("`{field}` has no default and is not given"))
            }
            Problem::UnknownVariant { variant, expected } => {
                Diagnostic::new("unknown-variant", span, format!("{owner}: unknown `{variant}`"))
                    .label("none of the choices")
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
            Problem::Other(message) => Diagnostic::new("wrong-value", span, format!("{owner}: {message}")),
        }
    }
}
