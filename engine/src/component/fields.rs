//! The fields of configurations, as [`macro@super::config`] makes them: what kind of value each has, its default and its
//! range, and how its value is shown.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

#[doc(hidden)]
pub use serde;

use super::Check;
use crate::filter::Operand;
use crate::spec::FilePath;

/// The fields of a struct, or the variants of an enum.
#[derive(Debug)]
pub struct Fields {
    /// What it is, in words.
    pub name: &'static str,
    /// Its doc comment.
    pub help: &'static str,
    /// Whether these are variants.
    pub is_choice: bool,
    /// The fields or variants.
    pub fields: &'static [Field],
}

/// A field, or a variant.
#[derive(Debug)]
pub struct Field {
    /// Its name in files.
    pub name: &'static str,
    /// Its doc comment.
    pub help: &'static str,
    /// Whether it must be given.
    pub required: bool,
    /// What is written there.
    pub kind: fn() -> Kind,
    /// The value without one in the file.
    pub default: Option<fn() -> String>,
    /// Its range.
    pub range: Option<fn() -> Bounds>,
}

/// The lowest value, and the highest one.
pub type Bounds = (String, Option<String>);

/// What is written in a field.
#[derive(Debug, Default)]
pub struct Kind {
    /// In plain words, such as "list of text".
    pub words: String,
    /// The parts of it that have fields or choices of their own.
    pub inside: Vec<&'static Fields>,
}

impl Kind {
    /// What these words say.
    pub fn plain(words: &str) -> Self {
        Self { words: words.to_owned(), inside: Vec::new() }
    }

    /// A struct or an enum.
    pub fn of(fields: &'static Fields) -> Self {
        Self { words: fields.name.to_owned(), inside: vec![fields] }
    }

    /// The kinds of the values of a variant.
    pub fn several(kinds: Vec<Self>) -> Self {
        let words: Vec<String> = kinds.iter().map(|kind| kind.in_choice()).collect();
        Self { words: words.join(", "), inside: kinds.into_iter().flat_map(|kind| kind.inside).collect() }
    }

    /// The fields of a variant.
    pub fn named(names: &str, kinds: Vec<Self>) -> Self {
        Self { words: names.to_owned(), inside: kinds.into_iter().flat_map(|kind| kind.inside).collect() }
    }

    /// A struct has its fields between the parentheses of a variant.
    fn in_choice(&self) -> String {
        match self.inside[..] {
            [Fields { is_choice: false, name, .. }] if self.words == *name => "…".to_owned(),
            _ => self.words.clone(),
        }
    }

    fn worded(self, words: impl FnOnce(&str) -> String) -> Self {
        Self { words: words(&self.words), inside: self.inside }
    }
}

/// A type that a field of a configuration can have.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the type of a field of a configuration",
    note = "give the type `#[config]`, or implement `turnflow_engine::component::fields::Setting` for it"
)]
pub trait Setting {
    /// What is written in a field of this type.
    fn kind() -> Kind;
    /// The value as `explain` shows it; `None` if nothing is set.
    fn shown(&self) -> Option<String>;
}

/// A configuration with fields. [`macro@super::config`] implements it; for a configuration without fields, the
/// implementation is empty.
pub trait Configured {
    /// Its fields.
    fn fields() -> &'static Fields
    where
        Self: Sized,
    {
        &Fields { name: "", help: "", is_choice: false, fields: &[] }
    }
    /// Reports values outside of the ranges of their fields.
    fn check_ranges(&self, _: &mut Check<'_>) {}
    /// Its settings in one line.
    fn effective(&self) -> String {
        String::new()
    }
}

/// The value as `explain` and the reference show it.
pub fn shown<T: Setting>(value: &T) -> String {
    value.shown().unwrap_or_else(|| "none".to_owned())
}

/// Those fields that have a value, in one line.
pub fn line(fields: &[(&str, Option<String>)]) -> String {
    let set = fields.iter().filter_map(|(name, value)| Some(format!("{name}: {}", value.as_ref()?)));
    set.collect::<Vec<_>>().join(", ")
}

/// A configuration inside another one; `None` for a struct of which no field has a value.
pub fn inside<C: Configured>(config: &C) -> Option<String> {
    let line = config.effective();
    match C::fields().is_choice {
        true => Some(line),
        false => (!line.is_empty()).then(|| format!("({line})")),
    }
}

/// A variant with the values in its parentheses.
pub fn with(name: &str, values: &[Option<String>]) -> String {
    match values {
        [None] => name.to_owned(),
        // A struct has parentheses already.
        [Some(value)] if value.starts_with('(') => format!("{name}{value}"),
        _ => {
            let values: Vec<&str> = values.iter().map(|value| value.as_deref().unwrap_or("none")).collect();
            format!("{name}({})", values.join(", "))
        }
    }
}

/// Types with a name in plain words, and how their values are shown.
macro_rules! settings {
    ($($($of:ty),+ => $words:expr, |$value:ident| $shown:expr;)*) => {$($(
        impl Setting for $of {
            fn kind() -> Kind {
                Kind::plain($words)
            }
            fn shown(&self) -> Option<String> {
                let $value = self;
                Some($shown)
            }
        }
    )+)*};
}

settings! {
    u8, u16, u32, u64, usize, i32, i64, NonZeroUsize => "whole number", |value| value.to_string();
    f32, f64 => "number", |value| value.to_string();
    bool => "`true` or `false`", |value| value.to_string();
    String, Arc<str> => "text", |value| format!("{value:?}");
    FilePath => "path", |value| format!("{:?}", value.written);
    SocketAddr => "address and port", |value| value.to_string();
    Operand => "value", |value| value.to_string();
    super::CorpusRef => "a corpus's name, or `FromTurn`", |value| value.to_string();
    serde_json::Value => "value", |value| value.to_string();
    serde_json::Map<String, serde_json::Value> => "values by name", |value| format!("{value:?}");
}

impl<T: Setting> Setting for Option<T> {
    fn kind() -> Kind {
        T::kind()
    }
    fn shown(&self) -> Option<String> {
        self.as_ref()?.shown()
    }
}

impl<T: Setting> Setting for Box<T> {
    fn kind() -> Kind {
        T::kind()
    }
    fn shown(&self) -> Option<String> {
        (**self).shown()
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn kind() -> Kind {
        T::kind().worded(|words| format!("list of {words}"))
    }
    fn shown(&self) -> Option<String> {
        let values: Vec<String> = self.iter().map(shown).collect();
        (!values.is_empty()).then(|| format!("[{}]", values.join(", ")))
    }
}

impl<T: Setting> Setting for BTreeMap<String, T> {
    fn kind() -> Kind {
        T::kind().worded(|words| format!("{words} by name"))
    }
    fn shown(&self) -> Option<String> {
        let values: Vec<String> = self.iter().map(|(name, value)| format!("{name:?}: {}", shown(value))).collect();
        (!values.is_empty()).then(|| format!("{{{}}}", values.join(", ")))
    }
}

impl<A: Setting, B: Setting> Setting for (A, B) {
    fn kind() -> Kind {
        Kind::several(vec![A::kind(), B::kind()]).worded(|words| format!("({words})"))
    }
    fn shown(&self) -> Option<String> {
        Some(format!("({}, {})", shown(&self.0), shown(&self.1)))
    }
}

#[cfg(test)]
mod tests;
