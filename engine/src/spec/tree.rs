//! Values of a pipeline file with their spans.

use super::Span;

/// A value with its span.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Where.
    pub span: Span,
    /// The value.
    pub kind: Kind,
}

/// A name with its span.
#[derive(Clone, Debug)]
pub struct Name {
    /// The identifier.
    pub text: String,
    /// Where.
    pub span: Span,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Field or key.
    pub key: Name,
    /// Its value.
    pub value: Tree,
}

/// A value.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `{"a": 1}`
    Map(Vec<Entry>),
    /// `[1, 2]`
    Seq(Vec<Tree>),
    /// `Name(a: 1)`, `(a: 1)`, `Name()` and the bare `Name`.
    Struct(Option<Name>, Vec<Entry>),
    /// `Name(1, 2)`, `(1, 2)`.
    Tuple(Option<Name>, Vec<Tree>),
    /// Numbers, strings, characters, booleans, `None`.
    Scalar(ron::Value),
}

impl Tree {
    /// The value of a field or key; `None` if this is not a struct or map that contains it.
    pub fn get(&self, key: &str) -> Option<&Tree> {
        self.entries()?.iter().find(|entry| entry.key.text == key).map(|entry| &entry.value)
    }

    /// Fields or keys in the order of the file.
    pub fn entries(&self) -> Option<&[Entry]> {
        match &self.kind {
            Kind::Map(entries) | Kind::Struct(_, entries) => Some(entries),
            _ => None,
        }
    }

    /// Like [`Tree::entries`], but mutable.
    pub fn entries_mut(&mut self) -> Option<&mut Vec<Entry>> {
        match &mut self.kind {
            Kind::Map(entries) | Kind::Struct(_, entries) => Some(entries),
            _ => None,
        }
    }

    /// The name before the parentheses, or the bare identifier.
    pub fn name(&self) -> Option<&Name> {
        match &self.kind {
            Kind::Struct(name, _) | Kind::Tuple(name, _) => name.as_ref(),
            _ => None,
        }
    }

    /// The text, if this is one.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar(ron::Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// A placeholder for a missing field, so that the rest of the struct can be checked. A type with
    /// an empty or zero value deserializes to that value. No source text parses to a hole.
    pub(crate) fn hole() -> Self {
        let nowhere = Span { source: usize::MAX, start: usize::MAX, end: usize::MAX };
        Self { span: nowhere, kind: Kind::Scalar(ron::Value::Unit) }
    }

    pub(crate) fn is_hole(&self) -> bool {
        matches!(self.kind, Kind::Scalar(ron::Value::Unit))
    }

    /// A short description for messages.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Map(_) => "a map".into(),
            Kind::Seq(_) => "a list".into(),
            Kind::Struct(Some(name), _) | Kind::Tuple(Some(name), _) => format!("`{}`", name.text),
            Kind::Struct(None, _) | Kind::Tuple(None, _) => "`(…)` without a name".into(),
            Kind::Scalar(ron::Value::String(text)) => format!("the text {text:?}"),
            Kind::Scalar(ron::Value::Bool(value)) => format!("`{value}`"),
            Kind::Scalar(ron::Value::Number(number)) => format!("the number {}", written(*number)),
            Kind::Scalar(ron::Value::Char(c)) => format!("the character {c:?}"),
            Kind::Scalar(_) => "`None`".into(),
        }
    }

    /// A canonical form that depends only on the values, not on layout or source files.
    pub fn canonical(&self) -> String {
        let mut out = String::new();
        self.write_canonical(&mut out);
        out
    }

    /// Like [`Tree::canonical`], without the given fields.
    pub fn canonical_without(&self, fields: &[&str]) -> String {
        let mut rest = self.clone();
        if let Some(entries) = rest.entries_mut() {
            entries.retain(|entry| !fields.contains(&entry.key.text.as_str()));
        }
        rest.canonical()
    }

    fn write_canonical(&self, out: &mut String) {
        let name = |name: &Option<Name>, out: &mut String| {
            if let Some(name) = name {
                out.push_str(&name.text);
            }
        };
        match &self.kind {
            Kind::Map(entries) | Kind::Struct(_, entries) => {
                name(&self.name().cloned(), out);
                let mut sorted: Vec<&Entry> = entries.iter().collect();
                sorted.sort_by(|a, b| a.key.text.cmp(&b.key.text));
                out.push('{');
                for entry in sorted {
                    out.push_str(&format!("{:?}:", entry.key.text));
                    entry.value.write_canonical(out);
                    out.push(',');
                }
                out.push('}');
            }
            Kind::Seq(items) | Kind::Tuple(_, items) => {
                name(&self.name().cloned(), out);
                out.push('[');
                for item in items {
                    item.write_canonical(out);
                    out.push(',');
                }
                out.push(']');
            }
            Kind::Scalar(ron::Value::Number(number)) => out.push_str(&written(*number)),
            Kind::Scalar(value) => out.push_str(&format!("{value:?}")),
        }
    }
}

/// A number as text. A whole number that a float does not hold is written exactly.
fn written(number: ron::value::Number) -> String {
    let float = number.into_f64();
    match number {
        ron::value::Number::I64(value) if float as i128 != i128::from(value) => value.to_string(),
        ron::value::Number::U64(value) if float as i128 != i128::from(value) => value.to_string(),
        _ => float.to_string(),
    }
}
