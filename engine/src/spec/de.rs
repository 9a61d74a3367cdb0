//! A serde deserializer over [`Tree`], whose errors keep what went wrong as a value and
//! where it went wrong as a span.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

use super::{Entry, Kind, Name, Sources, Span, Tree};

/// The name by which [`FilePath`] asks for the path to be resolved.
const PATH_TOKEN: &str = "$turnflow::FilePath";

/// A path in a pipeline file: relative to the directory of the file that it stands in
/// (on the command line: to the working directory).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath {
    /// As written.
    pub written: String,
    /// Where it is.
    pub path: PathBuf,
}

impl AsRef<Path> for FilePath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl From<&Path> for FilePath {
    fn from(path: &Path) -> Self {
        Self { written: path.display().to_string(), path: path.to_owned() }
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Resolved;
        impl<'de> Visitor<'de> for Resolved {
            type Value = FilePath;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path in quotes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<FilePath, E> {
                Ok(FilePath { written: text.to_owned(), path: text.into() })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FilePath, A::Error> {
                let missing = || de::Error::custom("a path has two forms");
                let written = seq.next_element()?.ok_or_else(missing)?;
                let path: String = seq.next_element()?.ok_or_else(missing)?;
                Ok(FilePath { written, path: path.into() })
            }
        }
        deserializer.deserialize_newtype_struct(PATH_TOKEN, Resolved)
    }
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// A field that the struct doesn't have.
    UnknownField {
        /// As written.
        field: String,
        /// Those there are.
        expected: &'static [&'static str],
    },
    /// A field without default is not given.
    MissingField(&'static str),
    /// A name that is none of the choices.
    UnknownVariant {
        /// As written.
        variant: String,
        /// Those there are.
        expected: &'static [&'static str],
    },
    /// Of another type than asked for.
    Type {
        /// What is asked for.
        expected: String,
    },
    /// Anything else, said by the type itself.
    Other(String),
}

/// A value that could not be typed.
#[derive(Clone, Debug)]
pub struct SpecError {
    /// What is wrong.
    pub problem: Problem,
    /// Where.
    pub span: Option<Span>,
}

impl SpecError {
    fn new(problem: Problem) -> Self {
        Self { problem, span: None }
    }

    fn expected(what: &str) -> Self {
        let expected = match what {
            "f32" | "f64" => "a number",
            "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number, 0 or more",
            "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
            "a string" | "a borrowed string" => "text in quotes",
            "a boolean" => "true or false",
            "a sequence" => "a list",
            other => other,
        };
        Self::new(Problem::Type { expected: expected.to_owned() })
    }

    fn at(mut self, span: Span) -> Self {
        self.span.get_or_insert(span);
        self
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Problem::UnknownField { field, .. } => write!(f, "unknown field `{field}`"),
            Problem::MissingField(field) => write!(f, "missing field `{field}`"),
            Problem::UnknownVariant { variant, .. } => write!(f, "unknown `{variant}`"),
            Problem::Type { expected } => write!(f, "expected {expected}"),
            Problem::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for SpecError {}

impl de::Error for SpecError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Problem::Other(message.to_string()))
    }
    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::expected(&expected.to_string())
    }
    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::expected(&expected.to_string())
    }
    fn invalid_length(_: usize, expected: &dyn de::Expected) -> Self {
        Self::expected(&expected.to_string())
    }
    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Problem::UnknownVariant { variant: variant.to_owned(), expected })
    }
    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Problem::UnknownField { field: field.to_owned(), expected })
    }
    fn missing_field(field: &'static str) -> Self {
        Self::new(Problem::MissingField(field))
    }
}

/// Types a tree; the first error is told.
pub fn from_tree<T: DeserializeOwned>(tree: &Tree, sources: &Sources) -> Result<T, SpecError> {
    T::deserialize(Node { tree, sources })
}

#[derive(Clone, Copy)]
struct Node<'a> {
    tree: &'a Tree,
    sources: &'a Sources,
}

impl<'a> Node<'a> {
    fn child(self, tree: &'a Tree) -> Self {
        Self { tree, ..self }
    }

    fn fields<'de, V: Visitor<'de>>(self, entries: &'a [Entry], visitor: V) -> Result<V::Value, SpecError> {
        visitor.visit_map(Fields { node: self, entries: entries.iter(), value: None })
    }

    fn items<'de, V: Visitor<'de>>(self, items: &'a [Tree], visitor: V) -> Result<V::Value, SpecError> {
        visitor.visit_seq(Items { node: self, items: items.iter() })
    }

    fn wrong_type<'de, V: Visitor<'de>>(self, visitor: &V) -> SpecError {
        SpecError::expected(&(visitor as &dyn de::Expected).to_string()).at(self.tree.span)
    }
}

/// A value of one of these types: what the file has there, or what a hole reads as.
macro_rules! typed {
    ($($method:ident => |$visitor:ident| $hole:expr,)*) => {$(
        fn $method<V: Visitor<'de>>(self, $visitor: V) -> Result<V::Value, SpecError> {
            if self.tree.is_hole() { $hole } else { self.deserialize_any($visitor) }
        }
    )*};
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = SpecError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        let span = self.tree.span;
        match &self.tree.kind {
            _ if self.tree.is_hole() => visitor.visit_str(""),
            Kind::Struct(Some(name), fields) if fields.is_empty() => visitor.visit_str(&name.text),
            Kind::Map(entries) | Kind::Struct(_, entries) => self.fields(entries, visitor),
            Kind::Seq(items) | Kind::Tuple(_, items) => self.items(items, visitor),
            Kind::Scalar(value) => value.clone().deserialize_any(visitor).map_err(|error| match error {
                ron::Error::InvalidValueForType { expected, .. } => SpecError::expected(&expected),
                ron::Error::Message(message) => SpecError::new(Problem::Other(message)),
                other => SpecError::new(Problem::Other(other.to_string())),
            }),
        }
        .map_err(|error| error.at(span))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        match &self.tree.kind {
            Kind::Scalar(ron::Value::Option(None) | ron::Value::Unit) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        if name != PATH_TOKEN {
            return visitor.visit_newtype_struct(self);
        }
        let written = match &self.tree.kind {
            Kind::Scalar(ron::Value::String(written)) => written,
            Kind::Scalar(ron::Value::Unit) => return visitor.visit_str(""),
            _ => return Err(self.wrong_type(&visitor)),
        };
        let path = self.sources.get(self.tree.span.source).base.join(written);
        let forms = [written.clone(), path.to_string_lossy().into_owned()];
        visitor.visit_seq(de::value::SeqDeserializer::new(forms.into_iter()))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        match &self.tree.kind {
            Kind::Struct(_, entries) => self.fields(entries, visitor).map_err(|error| error.at(self.tree.span)),
            _ => {
                let name = self.tree.name().map_or("", |name| name.text.as_str());
                let first = fields.first().map_or(String::new(), |field| format!("{field}: …"));
                Err(SpecError::expected(&format!("fields with their names, as in `{name}({first})`"))
                    .at(self.tree.span))
            }
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        match &self.tree.kind {
            Kind::Map(entries) => self.fields(entries, visitor).map_err(|error| error.at(self.tree.span)),
            Kind::Scalar(ron::Value::Unit) => self.fields(&[], visitor),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        if let Some(name) = self.tree.name() {
            return visitor.visit_enum(Variant { node: self, name }).map_err(|error| error.at(self.tree.span));
        }
        let expected = match &self.tree.kind {
            Kind::Scalar(ron::Value::String(text)) if variants.contains(&text.as_str()) => {
                format!("`{text}` without quotes")
            }
            _ => variants.iter().map(|variant| format!("`{variant}`")).collect::<Vec<_>>().join(" or "),
        };
        Err(SpecError::expected(&expected).at(self.tree.span))
    }

    typed! {
        deserialize_bool => |visitor| visitor.visit_bool(false),
        deserialize_i8 => |visitor| visitor.visit_i64(0),
        deserialize_i16 => |visitor| visitor.visit_i64(0),
        deserialize_i32 => |visitor| visitor.visit_i64(0),
        deserialize_i64 => |visitor| visitor.visit_i64(0),
        deserialize_u8 => |visitor| visitor.visit_u64(0),
        deserialize_u16 => |visitor| visitor.visit_u64(0),
        deserialize_u32 => |visitor| visitor.visit_u64(0),
        deserialize_u64 => |visitor| visitor.visit_u64(0),
        deserialize_f32 => |visitor| visitor.visit_f64(0.0),
        deserialize_f64 => |visitor| visitor.visit_f64(0.0),
        deserialize_seq => |visitor| visitor.visit_seq(de::value::SeqDeserializer::new(std::iter::empty::<u8>())),
    }

    forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Fields<'a> {
    node: Node<'a>,
    entries: std::slice::Iter<'a, Entry>,
    value: Option<&'a Tree>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = SpecError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, SpecError> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.value = Some(&entry.value);
        let key: StrDeserializer<'_, SpecError> = StrDeserializer::new(&entry.key.text);
        seed.deserialize(key).map(Some).map_err(|error| error.at(entry.key.span))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, SpecError> {
        match self.value.take() {
            Some(value) => seed.deserialize(self.node.child(value)).map_err(|error| error.at(value.span)),
            None => Err(de::Error::custom("a value without a key")),
        }
    }
}

struct Items<'a> {
    node: Node<'a>,
    items: std::slice::Iter<'a, Tree>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = SpecError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, SpecError> {
        let Some(item) = self.items.next() else { return Ok(None) };
        seed.deserialize(self.node.child(item)).map(Some).map_err(|error| error.at(item.span))
    }
}

struct Variant<'a> {
    node: Node<'a>,
    name: &'a Name,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = SpecError;
    type Variant = Node<'a>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Node<'a>), SpecError> {
        let name: StrDeserializer<'_, SpecError> = StrDeserializer::new(&self.name.text);
        Ok((seed.deserialize(name).map_err(|error| error.at(self.name.span))?, self.node))
    }
}

impl<'de> VariantAccess<'de> for Node<'_> {
    type Error = SpecError;

    fn unit_variant(self) -> Result<(), SpecError> {
        match &self.tree.kind {
            Kind::Struct(_, fields) if fields.is_empty() => Ok(()),
            _ => {
                let name = self.tree.name().map_or("", |name| name.text.as_str());
                let message = format!("`{name}` takes nothing in parentheses");
                Err(SpecError::new(Problem::Other(message)).at(self.tree.span))
            }
        }
    }

    /// `Name(value)`, and `Name(field: …)` for a variant that wraps a struct.
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, SpecError> {
        match &self.tree.kind {
            Kind::Tuple(_, items) if items.len() == 1 => seed.deserialize(self.child(&items[0])),
            Kind::Struct(Some(name), fields) if fields.is_empty() => {
                seed.deserialize(self).map_err(|error| match error.problem {
                    Problem::Type { expected } => {
                        SpecError::expected(&format!("{expected} with it, `{}(…)`", name.text)).at(self.tree.span)
                    }
                    _ => error,
                })
            }
            _ => seed.deserialize(self),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, SpecError> {
        match &self.tree.kind {
            Kind::Tuple(_, items) => self.items(items, visitor),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, SpecError> {
        match &self.tree.kind {
            Kind::Struct(_, entries) => self.fields(entries, visitor),
            _ => Err(self.wrong_type(&visitor)),
        }
    }
}
