//! A serde deserializer over [`Tree`]. Its errors carry a structured [`Problem`] and a span.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::path::PATH_TOKEN;
use super::{Entry, Kind, Name, Problem, Sources, SpecError, Tree};

/// Deserializes a tree into `T`; returns the first error.
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
        let mut fields = Fields { node: self, entries, read: Vec::new() };
        visitor.visit_map(&mut fields).map_err(|error| fields.named(error))
    }

    fn items<'de, V: Visitor<'de>>(self, items: &'a [Tree], visitor: V) -> Result<V::Value, SpecError> {
        visitor.visit_seq(Items { node: self, items: items.iter() })
    }

    /// A list of values, with or without a name before its parentheses.
    fn unnamed<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        match &self.tree.kind {
            Kind::Tuple(_, items) => self.items(items, visitor).map_err(|error| error.at(self.tree.span)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn wrong_type<'de, V: Visitor<'de>>(self, visitor: &V) -> SpecError {
        SpecError::expected(&(visitor as &dyn de::Expected).to_string()).at(self.tree.span)
    }
}

/// Methods that deserialize the value in the file, or a default value if the tree is a hole.
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
            Kind::Tuple(Some(name), _) => visitor.visit_enum(Variant { node: self, name }),
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
            Kind::Scalar(ron::Value::String(written)) if written.trim().is_empty() => {
                return Err(SpecError::new(Problem::EmptyPath).at(self.tree.span));
            }
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

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        if self.tree.is_hole() {
            return visitor.visit_seq(de::value::SeqDeserializer::new(std::iter::empty::<u8>()));
        }
        self.unnamed(visitor)
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
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        visitor.visit_unit()
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, SpecError> {
        self.unnamed(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        self.unnamed(visitor)
    }

    forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct identifier
    }
}

struct Fields<'a> {
    node: Node<'a>,
    entries: &'a [Entry],
    /// For each entry read so far, the field that its name means, as a hash: an earlier name of a
    /// field means the same field.
    read: Vec<u64>,
}

impl Fields<'_> {
    /// Names the entry with the old name, if the error is that a field has two.
    fn named(&self, error: SpecError) -> SpecError {
        let Problem::Twice(field) = error.problem else { return error };
        let Some((last, before)) = self.read.split_last() else { return error };
        let Some(first) = before.iter().position(|one| one == last) else { return error };
        let (first, second) = (&self.entries[first].key, &self.entries[before.len()].key);
        let (old, new) = if first.text == field { (second, first) } else { (first, second) };
        SpecError::new(Problem::OldName { old: old.text.clone(), new: new.text.clone(), other: new.span }).at(old.span)
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = SpecError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, SpecError> {
        let Some(entry) = self.entries.get(self.read.len()) else { return Ok(None) };
        let key: StrDeserializer<'_, SpecError> = StrDeserializer::new(&entry.key.text);
        let key = seed.deserialize(key).map_err(|error| error.at(entry.key.span))?;
        let mut field = DefaultHasher::new();
        std::mem::discriminant(&key).hash(&mut field);
        self.read.push(field.finish());
        Ok(Some(key))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, SpecError> {
        match self.read.len().checked_sub(1).and_then(|at| self.entries.get(at)) {
            Some(Entry { value, .. }) => seed.deserialize(self.node.child(value)).map_err(|error| error.at(value.span)),
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
                let message = format!("`{name}` takes no parentheses");
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

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::spec::{Span, from_str};

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Renamed {
        #[serde(rename = "top")]
        _top: usize,
        #[serde(rename = "warnings", alias = "notes")]
        _warnings: Vec<String>,
    }

    #[test]
    fn an_old_name_beside_the_current_one_is_told() {
        assert!(from_str::<Renamed>("(notes: [], top: 1)").is_ok());
        for text in ["(top: 1, notes: [], warnings: [])", "(warnings: [], top: 1, notes: [])"] {
            let error = from_str::<Renamed>(text).unwrap_err();
            let Problem::OldName { old, new, other } = &error.problem else { panic!("{error:?}") };
            assert_eq!((&**old, &**new), ("notes", "warnings"));
            let at = |span: Span| &text[span.start..span.end];
            assert_eq!((at(error.span.unwrap()), at(*other)), ("notes", "warnings"));
        }
    }
}
