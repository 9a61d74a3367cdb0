//! Metadata of documents: fields with typed values.
//!
//! A document's metadata is part of each of its chunks, so that retrievers can filter by it, hits show it, and prompts
//! can use it. It is no part of a chunk's content: a change of metadata alone embeds nothing.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value as Json};

use crate::document::{PAGE_CONFIDENCE, PAGE_OFFSETS, page_starts};

/// Maximum nesting depth of a field. Anything deeper is left out.
const DEEPEST: usize = 32;
/// Maximum size of a field, in bytes of its texts and 16 for each other value. A larger field is left out, such as a
/// vector or a second text of the document.
pub const FIELD_BYTES: usize = 16 << 10;

/// Maximum size of a field that has a value for each page of a document: that of some 100,000 pages. Passages do not have it.
pub const PAGES_BYTES: usize = 1 << 20;

/// Maximum size of all other fields of a document, in the same measure.
pub const ALL_BYTES: usize = 64 << 10;

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FieldValue {
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(Numeric),
    /// A text.
    Text(Arc<str>),
    /// A list.
    List(Arc<[FieldValue]>),
    /// An object.
    Object(Arc<BTreeMap<Arc<str>, FieldValue>>),
}

/// A number with a total order: integers exactly, and other finite numbers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Numeric {
    /// A whole number, also if it was written as `1.0`.
    Int(i64),
    /// Any other finite number.
    Float(f64),
    /// A whole number of 2^63 or more, below 2^64.
    Large(u64),
}

impl Numeric {
    /// A number; `None` if it is not finite.
    pub fn new(value: f64) -> Option<Self> {
        // Both bounds are exact.
        let is_whole =
            value.fract() == 0.0 && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value);
        let is_large = (9_223_372_036_854_775_808.0..18_446_744_073_709_551_616.0).contains(&value);
        match value.is_finite() {
            true if is_whole => Some(Self::Int(value as i64)),
            // Numbers of this size are whole.
            true if is_large => Some(Self::Large(value as u64)),
            true => Some(Self::Float(value)),
            false => None,
        }
    }

    /// A whole number that is not negative.
    pub fn whole(value: u64) -> Self {
        i64::try_from(value).map_or(Self::Large(value), Self::Int)
    }

    fn of(number: &Number) -> Option<Self> {
        let whole = number.as_i64().map(Self::Int).or_else(|| number.as_u64().map(Self::whole));
        whole.or_else(|| Self::new(number.as_f64()?))
    }
}

impl Ord for Numeric {
    fn cmp(&self, other: &Self) -> Ordering {
        match (*self, *other) {
            (Self::Int(a), Self::Int(b)) => a.cmp(&b),
            (Self::Float(a), Self::Float(b)) => a.total_cmp(&b),
            (Self::Int(a), Self::Float(b)) => against(a, b),
            (Self::Float(a), Self::Int(b)) => against(b, a).reverse(),
            (Self::Large(a), Self::Large(b)) => a.cmp(&b),
            (Self::Large(_), Self::Int(_)) => Ordering::Greater,
            (Self::Int(_), Self::Large(_)) => Ordering::Less,
            // No other number lies among the large ones.
            (Self::Large(_), Self::Float(b)) if b >= 18_446_744_073_709_551_616.0 => Ordering::Less,
            (Self::Large(_), Self::Float(_)) => Ordering::Greater,
            (Self::Float(a), Self::Large(_)) if a >= 18_446_744_073_709_551_616.0 => Ordering::Greater,
            (Self::Float(_), Self::Large(_)) => Ordering::Less,
        }
    }
}

/// Compares an integer with a number that is not one, or that is outside of the integers' range.
fn against(a: i64, b: f64) -> Ordering {
    if b >= 9_223_372_036_854_775_808.0 {
        Ordering::Less
    } else if b < -9_223_372_036_854_775_808.0 || a > b.floor() as i64 {
        Ordering::Greater
    } else {
        Ordering::Less
    }
}

impl PartialOrd for Numeric {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Numeric {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Numeric {}
impl std::hash::Hash for Numeric {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        match self {
            Self::Int(value) => value.hash(state),
            Self::Large(value) => value.hash(state),
            Self::Float(value) => value.to_bits().hash(state),
        }
    }
}

impl From<&str> for FieldValue {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl FieldValue {
    /// The value of a JSON value; `None` for null, and for what is nested too deeply.
    pub fn of(value: &Json) -> Option<Self> {
        Self::within(value, DEEPEST)
    }

    fn within(value: &Json, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        match value {
            Json::Null => None,
            Json::Bool(value) => Some(Self::Bool(*value)),
            Json::Number(value) => Some(Self::Number(Numeric::of(value)?)),
            Json::String(value) => Some(Self::Text(value.as_str().into())),
            Json::Array(values) => {
                Some(Self::List(values.iter().filter_map(|value| Self::within(value, depth)).collect()))
            }
            Json::Object(fields) => {
                let field = |(name, value): (&String, &Json)| Some((name.as_str().into(), Self::within(value, depth)?));
                Some(Self::Object(Arc::new(fields.iter().filter_map(field).collect())))
            }
        }
    }

    /// The value as JSON.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Bool(value) => Json::Bool(*value),
            Self::Number(Numeric::Int(value)) => Json::from(*value),
            Self::Number(Numeric::Large(value)) => Json::from(*value),
            Self::Number(Numeric::Float(value)) => Json::from(*value),
            Self::Text(text) => Json::from(&**text),
            Self::List(values) => values.iter().map(Self::to_json).collect(),
            Self::Object(fields) => fields.iter().map(|(name, value)| (name.to_string(), value.to_json())).collect(),
        }
    }

    /// Approximate size in bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Bool(_) | Self::Number(_) => 16,
            Self::Text(text) => 16 + text.len(),
            Self::List(values) => 16 + values.iter().map(Self::bytes).sum::<usize>(),
            Self::Object(fields) => 16 + fields.iter().map(|(name, value)| name.len() + value.bytes()).sum::<usize>(),
        }
    }

    /// Calls `each` for every scalar at a path of object fields; each value of a list counts.
    fn scalars<'a>(&'a self, path: Option<&str>, each: &mut dyn FnMut(&'a Self)) {
        match (self, path) {
            (Self::List(values), path) => values.iter().for_each(|value| value.scalars(path, each)),
            (Self::Object(fields), Some(path)) => at_path(fields, path, each),
            (Self::Object(_), None) | (_, Some(_)) => {}
            (value, None) => each(value),
        }
    }
}

/// Finds the values of a path in an object: a field of that name, or a field of an inner object.
fn at_path<'a>(fields: &'a BTreeMap<Arc<str>, FieldValue>, path: &str, each: &mut dyn FnMut(&'a FieldValue)) {
    if let Some(value) = fields.get(path) {
        return value.scalars(None, each);
    }
    for (at, _) in path.match_indices('.') {
        if let Some(value) = fields.get(&path[..at]) {
            return value.scalars(Some(&path[at + 1..]), each);
        }
    }
}

impl fmt::Display for FieldValue {
    /// A text as it is; any other value as JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            other => write!(f, "{}", other.to_json()),
        }
    }
}

/// The fields of a document. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Metadata(Option<Arc<BTreeMap<Arc<str>, FieldValue>>>);

impl Metadata {
    /// The fields of a JSON object. Nulls are left out, and so are fields larger than [`FIELD_BYTES`], and fields after
    /// [`ALL_BYTES`]; the names of these are returned. The fields of a document's pages may be larger ([`PAGES_BYTES`]).
    pub fn of(fields: &Map<String, Json>) -> (Self, Vec<String>) {
        let mut kept = BTreeMap::new();
        let mut large = Vec::new();
        let mut left = ALL_BYTES;
        let has_pages = fields.get(PAGE_OFFSETS).and_then(Json::as_str).is_some_and(|text| page_starts(text).is_some());
        for (name, value) in fields {
            let value = FieldValue::of(value);
            if has_pages && [PAGE_OFFSETS, PAGE_CONFIDENCE].contains(&&**name) {
                match value {
                    Some(value) if value.bytes() <= PAGES_BYTES => drop(kept.insert(name.as_str().into(), value)),
                    _ => large.push(name.clone()),
                }
                continue;
            }
            let bytes = value.as_ref().map_or(0, |value| name.len() + value.bytes());
            let fits = bytes <= FIELD_BYTES.min(left);
            left -= if fits { bytes } else { 0 };
            match value {
                Some(_) if !fits => large.push(name.clone()),
                Some(value) => drop(kept.insert(name.as_str().into(), value)),
                None => {}
            }
        }
        (Self::from(kept), large)
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The fields by name.
    pub fn fields(&self) -> impl Iterator<Item = (&Arc<str>, &FieldValue)> {
        self.0.iter().flat_map(|fields| fields.iter())
    }

    /// The field of this name.
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        self.0.as_ref()?.get(name)
    }

    /// The scalars of a field: its value, or the values of its list. A dotted name leads into objects.
    ///
    /// ```
    /// use serde_json::json;
    /// use turnflow_engine::metadata::Metadata;
    ///
    /// let row = json!({"lang": "en", "author": {"teams": ["a", "b"]}});
    /// let (metadata, _) = Metadata::of(row.as_object().unwrap());
    /// assert_eq!(metadata.values("lang").len(), 1);
    /// assert_eq!(metadata.values("author.teams").len(), 2);
    /// assert!(metadata.values("teams").is_empty());
    /// ```
    pub fn values(&self, path: &str) -> Vec<&FieldValue> {
        let mut found = Vec::new();
        if let Some(fields) = &self.0 {
            at_path(fields, path, &mut |value| found.push(value));
        }
        found
    }

    /// The metadata with a further field, unless a field has this name.
    pub fn with_default(&self, name: &str, value: FieldValue) -> Self {
        let mut fields = self.0.as_deref().cloned().unwrap_or_default();
        fields.entry(name.into()).or_insert(value);
        Self::from(fields)
    }

    /// The fields of this text, which is what they are as JSON; `None` if it is not. Unlike other readers of JSON, this one
    /// reads each number exactly.
    pub fn of_stored(text: &str) -> Option<Self> {
        if text == "{}" {
            return Some(Self::default());
        }
        match stored(serde_json::from_str(text).ok()?)? {
            FieldValue::Object(fields) => Some(Self::from(Arc::unwrap_or_clone(fields))),
            _ => None,
        }
    }

    /// The fields as a JSON object.
    pub fn to_json(&self) -> Map<String, Json> {
        self.fields().map(|(name, value)| (name.to_string(), value.to_json())).collect()
    }
}

/// The value of a JSON text.
fn stored(text: &RawValue) -> Option<FieldValue> {
    let text = text.get();
    Some(match text.as_bytes().first()? {
        b'{' => {
            let fields: BTreeMap<Arc<str>, &RawValue> = serde_json::from_str(text).ok()?;
            let fields = fields.into_iter().map(|(name, value)| Some((name, stored(value)?)));
            FieldValue::Object(Arc::new(fields.collect::<Option<_>>()?))
        }
        b'[' => {
            let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            FieldValue::List(values.into_iter().map(stored).collect::<Option<_>>()?)
        }
        b'"' => FieldValue::Text(serde_json::from_str(text).ok()?),
        b't' | b'f' => FieldValue::Bool(text.parse().ok()?),
        _ => {
            let whole = text.parse().map(Numeric::Int).or_else(|_| text.parse().map(Numeric::whole));
            FieldValue::Number(whole.ok().or_else(|| Numeric::new(text.parse().ok()?))?)
        }
    })
}

impl From<BTreeMap<Arc<str>, FieldValue>> for Metadata {
    fn from(fields: BTreeMap<Arc<str>, FieldValue>) -> Self {
        Self((!fields.is_empty()).then(|| Arc::new(fields)))
    }
}

/// As JSON in formats for people; otherwise exactly as it is, since some formats cannot hold a value of any type.
impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return self.0.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.fields() {
            map.serialize_entry(&**name, &value.to_json())?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Option::deserialize(deserializer).map(Self);
        }
        Ok(Self::of(&Map::deserialize(deserializer)?).0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(value: &Json) -> Metadata {
        Metadata::of(value.as_object().unwrap()).0
    }

    #[test]
    fn fields_keep_their_values_and_nulls_are_left_out() {
        let row = json!({"a": 1, "b": 1.5, "c": "x", "d": [true, null, "y"], "e": {"f": {"g": 7}}, "h": null});
        let metadata = of(&row);
        let expected = json!({"a": 1, "b": 1.5, "c": "x", "d": [true, "y"], "e": {"f": {"g": 7}}});
        assert_eq!(Json::Object(metadata.to_json()), expected);
        assert_eq!(metadata.values("e.f.g"), [&FieldValue::Number(Numeric::Int(7))]);
        assert_eq!(serde_json::from_str::<Metadata>(&serde_json::to_string(&metadata).unwrap()).unwrap(), metadata);
        assert!(of(&json!({"x": null})).is_empty());
    }

    #[test]
    fn equal_numbers_are_equal_and_all_are_ordered() {
        let number = |text: &str| Numeric::of(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(number("1.0"), number("1"));
        assert_eq!(number("1e19"), number("10000000000000000000"));
        let sorted = [
            "-1e300",
            "-9223372036854775808",
            "-1",
            "-0.5",
            "0",
            "0.25",
            "9007199254740993",
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551614",
            "18446744073709551615",
            "1e20",
        ];
        for (at, a) in sorted.iter().enumerate() {
            for (other, b) in sorted.iter().enumerate() {
                assert_eq!(number(a).cmp(&number(b)), at.cmp(&other), "{a} {b}");
            }
        }
        assert_eq!(Numeric::new(f64::NAN), None);
    }

    #[test]
    fn large_and_deep_fields_are_left_out() {
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let row = json!({"small": "x", "vector": vec![0.5; 2000], "deep": deep});
        let (metadata, large) = Metadata::of(row.as_object().unwrap());
        assert_eq!(large, ["vector"]);
        assert_eq!(metadata.values("small").len(), 1);
        assert!(metadata.values("deep").is_empty());
    }

    #[test]
    fn the_fields_of_pages_may_be_larger() {
        let starts: Vec<String> = (0..50_000).map(|page| (page * 2000).to_string()).collect();
        let starts = starts.join(" ");
        let row = json!({"author": "Ada", PAGE_OFFSETS: starts, PAGE_CONFIDENCE: vec!["0.25"; 50_000].join(" ")});
        let (metadata, large) = Metadata::of(row.as_object().unwrap());
        assert_eq!((metadata.fields().count(), large.len()), (3, 0));
        // Passages keep what is no list of pages, so it has the size of other fields.
        for row in [
            json!({PAGE_OFFSETS: format!("{starts} 0")}),
            json!({PAGE_OFFSETS: "x ".repeat(20_000)}),
            json!({PAGE_CONFIDENCE: "0.5 ".repeat(20_000)}),
            json!({PAGE_OFFSETS: vec![starts.clone(); 3].join(" ")}),
        ] {
            let (metadata, large) = Metadata::of(row.as_object().unwrap());
            assert_eq!((metadata.is_empty(), large.len()), (true, 1));
        }
    }

    #[test]
    fn a_name_with_dots_is_found_before_a_path() {
        let metadata = of(&json!({"a.b": 1, "a": {"b": 2, "c.d": 3, "list": [{"x": 4}, {"x": 5}, 6]}}));
        assert_eq!(metadata.values("a.b"), [&FieldValue::Number(Numeric::Int(1))]);
        assert_eq!(metadata.values("a.c.d"), [&FieldValue::Number(Numeric::Int(3))]);
        assert_eq!(metadata.values("a.list.x").len(), 2);
    }
}
