//! Reads the key and the answer of a line, and keeps nothing else of it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use turnflow_engine::record::AnswerRecord;

/// The fields of a line that are read.
#[derive(Default)]
pub(super) struct Fields {
    /// Never empty.
    pub(super) key: Option<String>,
    pub(super) revision: Option<u64>,
    pub(super) retracted: Option<bool>,
    pub(super) answer: Option<String>,
}

impl Fields {
    /// The key that identifies the line: the answer's key, its revision, and whether it is a retraction.
    pub(super) fn delivery_key(&self) -> Option<String> {
        let (revision, retracted) = (self.revision.unwrap_or_default(), self.retracted.unwrap_or_default());
        Some(AnswerRecord::delivery_key(self.key.as_deref()?, revision, retracted))
    }
}

/// `None` if the line is not a JSON object. The answer is read only if `with_answer` is set.
pub(super) fn fields_of(line: &[u8], with_answer: bool) -> Option<Fields> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let fields = deserializer.deserialize_map(Wanted { with_answer }).ok()?;
    deserializer.end().ok()?;
    Some(fields)
}

struct Wanted {
    with_answer: bool,
}

impl<'de> Visitor<'de> for Wanted {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = map.next_key_seed(Text)? {
            // The record's own fields come before fields passed through from the turn, which may have the same names.
            match name.as_deref() {
                Some("key") if fields.key.is_none() => fields.key = map.next_value_seed(Text)?,
                Some("revision") if fields.revision.is_none() => {
                    fields.revision = Some(map.next_value::<serde_json::Value>()?.as_u64().unwrap_or_default());
                }
                Some("retracted") if fields.retracted.is_none() => {
                    fields.retracted = Some(map.next_value::<serde_json::Value>()?.as_bool().unwrap_or_default());
                }
                Some("answer") if self.with_answer && fields.answer.is_none() => {
                    fields.answer = map.next_value_seed(Text)?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        fields.key = fields.key.filter(|key| !key.is_empty());
        Ok(fields)
    }
}

/// A string; `None` for a value of another type, which is skipped.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_answers() {
        let deep = format!("{{\"x\": {}1{}, \"key\": \"k\"}}", "[".repeat(100), "]".repeat(100));
        for (line, key) in [
            ("{\"key\": \"k\", \"answer\": \"a\"}", Some(Some("k"))),
            // A field of the turn with the same name comes later.
            ("{\"key\": \"k\", \"x\": {\"key\": 1}, \"key\": \"other\"}", Some(Some("k"))),
            ("{\"k\\u0065y\": \"\\u006b\"}", Some(Some("k"))),
            (&deep, Some(Some("k"))),
            ("{\"key\": \"\"}", Some(None)),
            ("{\"key\": [{\"a\": null}]}", Some(None)),
            ("{\"key\": 1.5}", Some(None)),
            ("{}", Some(None)),
            ("[]", None),
            ("{\"key\": \"k\"", None),
            ("{\"key\": \"k\"} x", None),
            ("", None),
        ] {
            let found = fields_of(line.as_bytes(), true).map(|fields| fields.key);
            assert_eq!(found, key.map(|key| key.map(str::to_owned)), "{line:.60}");
        }
        assert!(fields_of(b"{\"key\": \"\xff\"}", false).is_none());
    }
}
