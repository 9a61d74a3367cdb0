//! Values of a pipeline file that know where they stand.

use super::Span;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Where.
    pub span: Span,
    /// What.
    pub kind: Kind,
}

/// A name with its place.
#[derive(Clone, Debug)]
pub struct Name {
    /// The identifier.
    pub text: String,
    /// Where it stands.
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

/// What a value is.
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
    /// The value of a field or key, if this is a struct or map that has it.
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

    /// As [`Tree::entries`], to change.
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

    /// Stands in for a field that is missing, so that the rest can be judged: any type
    /// that has an empty or zero value reads that from it. No text reads as one.
    pub(crate) fn hole() -> Self {
        let nowhere = Span { source: usize::MAX, start: usize::MAX, end: usize::MAX };
        Self { span: nowhere, kind: Kind::Scalar(ron::Value::Unit) }
    }

    pub(crate) fn is_hole(&self) -> bool {
        matches!(self.kind, Kind::Scalar(ron::Value::Unit))
    }

    /// What to call it in a message.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Map(_) => "a map".into(),
            Kind::Seq(_) => "a list".into(),
            Kind::Struct(Some(name), _) | Kind::Tuple(Some(name), _) => format!("`{}`", name.text),
            Kind::Struct(None, _) | Kind::Tuple(None, _) => "`(…)` without a name".into(),
            Kind::Scalar(ron::Value::String(text)) => format!("the text {text:?}"),
            Kind::Scalar(ron::Value::Bool(value)) => format!("`{value}`"),
            Kind::Scalar(ron::Value::Number(number)) => format!("the number {}", number.into_f64()),
            Kind::Scalar(ron::Value::Char(c)) => format!("the character {c:?}"),
            Kind::Scalar(_) => "`None`".into(),
        }
    }

    /// A form that depends on the values alone, not on layout or the files they are from.
    pub fn canonical(&self) -> String {
        let mut out = String::new();
        self.write_canonical(&mut out);
        out
    }

    /// As [`Tree::canonical`], without some of the fields.
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
            Kind::Scalar(ron::Value::Number(number)) => out.push_str(&number.into_f64().to_string()),
            Kind::Scalar(value) => out.push_str(&format!("{value:?}")),
        }
    }
}
