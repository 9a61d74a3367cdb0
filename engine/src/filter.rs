//! Filters: conditions on the metadata of passages.
//!
//! ```ron
//! And([Eq("lang", "en"), Ge("date", "2026-01-01"), In("product", FromTurn("products")), Not(Exists("archived"))])
//! ```
//!
//! A field with a list meets a condition if one of its values does. A field that a passage does not have meets none, so
//! `Not(Eq("lang", "en"))` holds for it. Numbers are compared with numbers and texts with texts, by their bytes; dates in
//! ISO 8601 with the same time zone are ordered like that.
//!
//! A condition on a field that the turn does not have is neither true nor false, and neither is its `Not`. A passage is
//! found only if the whole filter is true, so a turn that leaves out what the filter asks for finds nothing.
//! `TurnHas("lang")` tells whether the turn has a field: `Or([Not(TurnHas("lang")), Eq("lang", FromTurn("lang"))])`.

mod json;

use crate::component::config;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

pub use self::json::FilterError;
use crate::metadata::{FieldValue, Metadata, Numeric};
use crate::record::Turn;

/// A condition on a passage's metadata.
#[config]
#[derive(PartialEq, Eq)]
pub enum Filter {
    /// The field has this value.
    Eq(Arc<str>, Operand),
    /// The field has one of these values.
    In(Arc<str>, Operand),
    /// The field is less than a number or a text.
    Lt(Arc<str>, Operand),
    /// The field is at most a number or a text.
    Le(Arc<str>, Operand),
    /// The field is greater than a number or a text.
    Gt(Arc<str>, Operand),
    /// The field is at least a number or a text.
    Ge(Arc<str>, Operand),
    /// The field begins with a text.
    Prefix(Arc<str>, Operand),
    /// The passage has the field.
    Exists(Arc<str>),
    /// The turn has the field.
    TurnHas(Arc<str>),
    /// All conditions hold.
    And(Vec<Filter>),
    /// At least one condition holds.
    Or(Vec<Filter>),
    /// The condition does not hold.
    Not(Box<Filter>),
}

/// The value that a condition compares with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// One value.
    Value(FieldValue),
    /// Several values.
    Values(Vec<FieldValue>),
    /// A field of the turn, or a path into it, such as `principal.groups`.
    FromTurn(Arc<str>),
}

impl<'de> Deserialize<'de> for Operand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> serde::de::Visitor<'de> for Any {
            type Value = Operand;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, a boolean, a list of these, or FromTurn(\"field\")")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Operand, E> {
                Ok(Operand::Value(FieldValue::Bool(value)))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Operand, E> {
                Ok(Operand::Value(FieldValue::Number(Numeric::Int(value))))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Operand, E> {
                Ok(Operand::Value(FieldValue::Number(Numeric::whole(value))))
            }
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Operand, E> {
                let number = Numeric::new(value).ok_or_else(|| E::custom("the number is not finite"))?;
                Ok(Operand::Value(FieldValue::Number(number)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Operand, E> {
                Ok(Operand::Value(text.into()))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Operand, A::Error> {
                let mut values = Vec::new();
                while let Some(item) = items.next_element::<Operand>()? {
                    match item {
                        Operand::Value(value) => values.push(value),
                        _ => return Err(serde::de::Error::custom("a list has texts, numbers and booleans only")),
                    }
                }
                Ok(Operand::Values(values))
            }
            fn visit_enum<A: serde::de::EnumAccess<'de>>(self, data: A) -> Result<Operand, A::Error> {
                use serde::de::VariantAccess;
                let (name, content) = data.variant::<String>()?;
                match &*name {
                    "FromTurn" => Ok(Operand::FromTurn(content.newtype_variant::<String>()?.into())),
                    _ => Err(serde::de::Error::custom(format!("expected a value or FromTurn(\"field\"), not {name}"))),
                }
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// A range of values.
type Bounds = (Bound<FieldValue>, Bound<FieldValue>);

/// A filter with the values of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Condition {
    /// A value of the field is among these.
    OneOf(Arc<str>, Vec<FieldValue>),
    /// A value of the field is within these bounds.
    Range(Arc<str>, Bound<FieldValue>, Bound<FieldValue>),
    /// A text of the field begins with this one.
    Prefix(Arc<str>, Arc<str>),
    Exists(Arc<str>),
    And(Vec<Condition>),
    Or(Vec<Condition>),
    Not(Box<Condition>),
    /// It depends on the turn only; `None` if the turn lacks what it asks for.
    Constant(Option<bool>),
}

impl Filter {
    /// The fields of passages that it reads.
    pub fn fields(&self) -> Vec<&Arc<str>> {
        match self {
            Self::Eq(field, _)
            | Self::In(field, _)
            | Self::Lt(field, _)
            | Self::Le(field, _)
            | Self::Gt(field, _)
            | Self::Ge(field, _)
            | Self::Prefix(field, _)
            | Self::Exists(field) => vec![field],
            Self::TurnHas(_) => Vec::new(),
            Self::And(filters) | Self::Or(filters) => filters.iter().flat_map(Self::fields).collect(),
            Self::Not(filter) => filter.fields(),
        }
    }

    /// Each condition that compares a field with values of the file, with these values.
    pub fn literals(&self) -> Vec<(&Arc<str>, &[FieldValue])> {
        match self {
            Self::Eq(field, operand)
            | Self::In(field, operand)
            | Self::Lt(field, operand)
            | Self::Le(field, operand)
            | Self::Gt(field, operand)
            | Self::Ge(field, operand)
            | Self::Prefix(field, operand) => match operand {
                Operand::Value(value) => vec![(field, std::slice::from_ref(value))],
                Operand::Values(values) => vec![(field, values.as_slice())],
                Operand::FromTurn(_) => Vec::new(),
            },
            Self::Exists(_) | Self::TurnHas(_) => Vec::new(),
            Self::And(filters) | Self::Or(filters) => filters.iter().flat_map(Self::literals).collect(),
            Self::Not(filter) => filter.literals(),
        }
    }

    /// What is wrong with it, if something is.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Eq(field, Operand::Values(_)) => {
                Some(format!("`Eq(\"{field}\", …)` takes one value: use `In` for a list"))
            }
            Self::In(field, Operand::Value(_)) => {
                Some(format!("`In(\"{field}\", …)` takes a list: use `Eq` for one value"))
            }
            Self::Lt(field, Operand::Values(_) | Operand::Value(FieldValue::Bool(_)))
            | Self::Le(field, Operand::Values(_) | Operand::Value(FieldValue::Bool(_)))
            | Self::Gt(field, Operand::Values(_) | Operand::Value(FieldValue::Bool(_)))
            | Self::Ge(field, Operand::Values(_) | Operand::Value(FieldValue::Bool(_))) => {
                Some(format!("the field `{field}` can be compared with a number or a text only"))
            }
            Self::Prefix(field, Operand::Values(_) | Operand::Value(FieldValue::Bool(_) | FieldValue::Number(_))) => {
                Some(format!("`Prefix(\"{field}\", …)` takes a text"))
            }
            Self::And(filters) | Self::Or(filters) => filters.iter().find_map(Self::problem),
            Self::Not(filter) => filter.problem(),
            _ => None,
        }
    }

    /// The condition for a turn.
    pub(crate) fn resolve(&self, turn: &Turn) -> Condition {
        let values = |operand: &Operand| match operand {
            Operand::Value(value) => Some(vec![value.clone()]),
            Operand::Values(values) => Some(values.clone()),
            Operand::FromTurn(path) => turn_values(turn, path),
        };
        let one_of = |field: &Arc<str>, operand| match values(operand) {
            Some(values) => Condition::OneOf(field.clone(), values),
            None => Condition::Constant(None),
        };
        let range = |field: &Arc<str>, operand, bounds: fn(&FieldValue) -> Option<Bounds>| {
            let Some(values) = values(operand) else { return Condition::Constant(None) };
            let ranges = values.iter().filter_map(bounds);
            Condition::Or(ranges.map(|(low, high)| Condition::Range(field.clone(), low, high)).collect())
        };
        match self {
            Self::Eq(field, operand) | Self::In(field, operand) => one_of(field, operand),
            Self::Lt(field, operand) => {
                range(field, operand, |value| Some((least(value)?, Bound::Excluded(value.clone()))))
            }
            Self::Le(field, operand) => {
                range(field, operand, |value| Some((least(value)?, Bound::Included(value.clone()))))
            }
            Self::Gt(field, operand) => {
                range(field, operand, |value| Some((Bound::Excluded(value.clone()), greatest(value)?)))
            }
            Self::Ge(field, operand) => {
                range(field, operand, |value| Some((Bound::Included(value.clone()), greatest(value)?)))
            }
            Self::Prefix(field, operand) => match values(operand) {
                Some(values) => {
                    let prefix = |value: &FieldValue| match value {
                        FieldValue::Text(text) => Some(Condition::Prefix(field.clone(), text.clone())),
                        _ => None,
                    };
                    Condition::Or(values.iter().filter_map(prefix).collect())
                }
                None => Condition::Constant(None),
            },
            Self::Exists(field) => Condition::Exists(field.clone()),
            Self::TurnHas(path) => Condition::Constant(Some(turn_values(turn, path).is_some())),
            Self::And(filters) => Condition::And(filters.iter().map(|filter| filter.resolve(turn)).collect()),
            Self::Or(filters) => Condition::Or(filters.iter().map(|filter| filter.resolve(turn)).collect()),
            Self::Not(filter) => Condition::Not(Box::new(filter.resolve(turn))),
        }
    }

    /// Whether it is true for a passage with this metadata, in a turn.
    pub fn holds(&self, metadata: &Metadata, turn: &Turn) -> bool {
        self.resolve(turn).is(metadata, true)
    }
}

impl Condition {
    /// Whether it is certainly true, or certainly false.
    fn is(&self, metadata: &Metadata, wanted: bool) -> bool {
        let any =
            |field: &str, meets: &dyn Fn(&FieldValue) -> bool| metadata.values(field).into_iter().any(meets) == wanted;
        match self {
            Self::OneOf(field, values) => any(field, &|value| values.contains(value)),
            Self::Range(field, low, high) => {
                let range = (low.as_ref(), high.as_ref());
                any(field, &|value| std::ops::RangeBounds::contains(&range, value))
            }
            Self::Prefix(field, prefix) => {
                any(field, &|value| matches!(value, FieldValue::Text(text) if text.starts_with(&**prefix)))
            }
            Self::Exists(field) => any(field, &|_| true),
            Self::And(all) if wanted => all.iter().all(|one| one.is(metadata, true)),
            Self::And(all) => all.iter().any(|one| one.is(metadata, false)),
            Self::Or(all) if wanted => all.iter().any(|one| one.is(metadata, true)),
            Self::Or(all) => all.iter().all(|one| one.is(metadata, false)),
            Self::Not(one) => one.is(metadata, !wanted),
            Self::Constant(value) => *value == Some(wanted),
        }
    }
}

/// The lower end of the values that can be compared with this one.
fn least(value: &FieldValue) -> Option<Bound<FieldValue>> {
    match value {
        // Booleans come before numbers.
        FieldValue::Number(_) => Some(Bound::Excluded(FieldValue::Bool(true))),
        FieldValue::Text(_) => Some(Bound::Included("".into())),
        _ => None,
    }
}

/// The upper end of the values that can be compared with this one.
fn greatest(value: &FieldValue) -> Option<Bound<FieldValue>> {
    match value {
        // Texts come after numbers.
        FieldValue::Number(_) => Some(Bound::Excluded("".into())),
        FieldValue::Text(_) => Some(Bound::Unbounded),
        _ => None,
    }
}

/// The scalars of a turn's field; `None` if the turn does not have it.
fn turn_values(turn: &Turn, path: &str) -> Option<Vec<FieldValue>> {
    if path == "collection" {
        return turn.collection.as_deref().map(|name| vec![name.into()]);
    }
    // A name with dots is found before a path, except that a caller must not take the principal's place.
    let mut found = turn.extra.get(path).filter(|_| !path.starts_with("principal."));
    if found.is_none() {
        let (mut fields, mut rest) = (&turn.extra, path);
        while let Some((name, inner)) = rest.split_once('.') {
            let Some(Json::Object(next)) = fields.get(name) else { break };
            (fields, rest) = (next, inner);
        }
        found = fields.get(rest);
    }
    match FieldValue::of(found?)? {
        FieldValue::List(values) => {
            let is_scalar = |value: &&FieldValue| !matches!(value, FieldValue::List(_) | FieldValue::Object(_));
            Some(values.iter().filter(is_scalar).cloned().collect())
        }
        FieldValue::Object(_) => None,
        scalar => Some(vec![scalar]),
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{}", value.to_json()),
            Self::Values(values) => write!(f, "{}", Json::from_iter(values.iter().map(FieldValue::to_json))),
            Self::FromTurn(path) => write!(f, "FromTurn({path:?})"),
        }
    }
}

impl fmt::Display for Filter {
    /// As in a pipeline file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, name: &str, filters: &[Self]| {
            write!(f, "{name}([")?;
            for (at, filter) in filters.iter().enumerate() {
                let separator = if at == 0 { "" } else { ", " };
                write!(f, "{separator}{filter}")?;
            }
            f.write_str("])")
        };
        match self {
            Self::Eq(field, operand) => write!(f, "Eq({field:?}, {operand})"),
            Self::In(field, operand) => write!(f, "In({field:?}, {operand})"),
            Self::Lt(field, operand) => write!(f, "Lt({field:?}, {operand})"),
            Self::Le(field, operand) => write!(f, "Le({field:?}, {operand})"),
            Self::Gt(field, operand) => write!(f, "Gt({field:?}, {operand})"),
            Self::Ge(field, operand) => write!(f, "Ge({field:?}, {operand})"),
            Self::Prefix(field, operand) => write!(f, "Prefix({field:?}, {operand})"),
            Self::Exists(field) => write!(f, "Exists({field:?})"),
            Self::TurnHas(path) => write!(f, "TurnHas({path:?})"),
            Self::And(filters) => list(f, "And", filters),
            Self::Or(filters) => list(f, "Or", filters),
            Self::Not(filter) => write!(f, "Not({filter})"),
        }
    }
}

#[cfg(test)]
mod tests;
