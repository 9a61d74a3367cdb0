//! Filters in requests, as JSON.
//!
//! ```json
//! {"and": [{"eq": ["lang", "en"]}, {"ge": ["date", "2026-01-01"]}, {"not": {"exists": "archived"}}]}
//! ```
//!
//! The forms are those of a pipeline file, in lower case: `eq`, `in`, `lt`, `le`, `gt`, `ge`, `prefix`, `exists`, `and`, `or`
//! and `not`. `TurnHas` and `FromTurn` have no form here: a caller knows the values. The size of a filter is limited.

use std::sync::Arc;

use serde_json::Value as Json;

use super::{Filter, Operand};
use crate::metadata::FieldValue;
use crate::schema::Schema;

/// Maximum depth of conditions within conditions.
const DEEPEST: usize = 16;
/// Maximum number of conditions.
const MOST_CONDITIONS: usize = 100;
/// Maximum number of values in all conditions.
const MOST_VALUES: usize = 1000;
/// Maximum size of all texts and names of fields, in bytes.
const MOST_BYTES: usize = 32 << 10;

/// What is wrong with a filter of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{place}` {problem}")]
pub struct FilterError {
    /// Where it is, as in `filter.and[1].eq`.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
}

impl Filter {
    /// Reads a filter from JSON.
    ///
    /// ```
    /// use turnflow_engine::filter::Filter;
    ///
    /// let filter = Filter::from_json(&serde_json::json!({"or": [{"eq": ["lang", "en"]}, {"exists": "tags"}]})).unwrap();
    /// assert_eq!(filter.to_string(), r#"Or([Eq("lang", "en"), Exists("tags")])"#);
    /// let error = Filter::from_json(&serde_json::json!({"eq": ["lang"]})).unwrap_err();
    /// assert_eq!(error.to_string(), "`filter.eq` must be a list of a field and a value, as in [\"lang\", \"en\"]");
    /// ```
    ///
    /// # Errors
    ///
    /// It is not a filter, or it is too large.
    pub fn from_json(json: &Json) -> Result<Self, FilterError> {
        Reader::default().filter(json, "filter", 0)
    }

    /// What is wrong with applying it to a corpus that declares fields: a field is unknown, or has another type than a
    /// value that it is compared with.
    pub fn misuse(&self, schema: &Schema) -> Option<String> {
        let fields = self.fields().into_iter().map(|field| (field, &[][..]));
        self.literals()
            .into_iter()
            .chain(fields)
            .find_map(|(field, values)| Some(format!("the field `{field}` {}", schema.misuse(field, values)?)))
    }
}

#[derive(Default)]
struct Reader {
    conditions: usize,
    values: usize,
    bytes: usize,
}

fn error(place: &str, problem: impl Into<String>) -> FilterError {
    FilterError { place: place.to_owned(), problem: problem.into() }
}

impl Reader {
    fn filter(&mut self, json: &Json, place: &str, depth: usize) -> Result<Filter, FilterError> {
        if depth > DEEPEST {
            return Err(error(place, format!("is nested too deeply: the limit is {DEEPEST}")));
        }
        self.conditions += 1;
        if self.conditions > MOST_CONDITIONS {
            return Err(error(place, format!("is one condition too many: the limit is {MOST_CONDITIONS}")));
        }
        let only = json.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.iter().next());
        let Some((name, inner)) = only else {
            return Err(error(place, "must be an object with one condition, as in {\"eq\": [\"lang\", \"en\"]}"));
        };
        let at = format!("{place}.{}", name.chars().take(20).collect::<String>());
        let compared =
            |filter: fn(Arc<str>, Operand) -> Filter, (field, value)| Ok(filter(field, Operand::Value(value)));
        match name.as_str() {
            "eq" => compared(Filter::Eq, self.one(inner, &at)?),
            "lt" => compared(Filter::Lt, self.ordered(inner, &at)?),
            "le" => compared(Filter::Le, self.ordered(inner, &at)?),
            "gt" => compared(Filter::Gt, self.ordered(inner, &at)?),
            "ge" => compared(Filter::Ge, self.ordered(inner, &at)?),
            "prefix" => match self.one(inner, &at)? {
                (field, FieldValue::Text(text)) => Ok(Filter::Prefix(field, Operand::Value(FieldValue::Text(text)))),
                _ => Err(error(&at, "compares with a text only")),
            },
            "in" => {
                let shape = "must be a list of a field and a list of values, as in [\"lang\", [\"en\", \"de\"]]";
                let Some([field, Json::Array(values)]) = inner.as_array().map(Vec::as_slice) else {
                    return Err(error(&at, shape));
                };
                let field = self.field(field, &at)?;
                let values = values.iter().map(|value| self.value(value, &at)).collect::<Result<_, _>>()?;
                Ok(Filter::In(field, Operand::Values(values)))
            }
            "exists" => Ok(Filter::Exists(self.field(inner, &at)?)),
            "and" => Ok(Filter::And(self.several(inner, &at, depth)?)),
            "or" => Ok(Filter::Or(self.several(inner, &at, depth)?)),
            "not" => Ok(Filter::Not(Box::new(self.filter(inner, &at, depth + 1)?))),
            _ => Err(error(&at, "is not a condition: use eq, in, lt, le, gt, ge, prefix, exists, and, or, not")),
        }
    }

    fn several(&mut self, json: &Json, place: &str, depth: usize) -> Result<Vec<Filter>, FilterError> {
        let Some(filters) = json.as_array() else { return Err(error(place, "must be a list of conditions")) };
        let each = filters.iter().enumerate();
        each.map(|(number, filter)| self.filter(filter, &format!("{place}[{number}]"), depth + 1)).collect()
    }

    /// A field and a value.
    fn one(&mut self, json: &Json, place: &str) -> Result<(Arc<str>, FieldValue), FilterError> {
        match json.as_array().map(Vec::as_slice) {
            Some([field, value]) => Ok((self.field(field, place)?, self.value(value, place)?)),
            _ => Err(error(place, "must be a list of a field and a value, as in [\"lang\", \"en\"]")),
        }
    }

    /// A field and a value that has an order.
    fn ordered(&mut self, json: &Json, place: &str) -> Result<(Arc<str>, FieldValue), FilterError> {
        match self.one(json, place)? {
            (_, FieldValue::Bool(_)) => Err(error(place, "compares with a number or a text only")),
            found => Ok(found),
        }
    }

    fn field(&mut self, json: &Json, place: &str) -> Result<Arc<str>, FilterError> {
        match json.as_str() {
            Some(name) if !name.is_empty() => {
                self.count(name, place)?;
                Ok(name.into())
            }
            _ => Err(error(place, "needs the name of a field, which is a text")),
        }
    }

    fn value(&mut self, json: &Json, place: &str) -> Result<FieldValue, FilterError> {
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err(error(place, format!("has too many values: the limit of a filter is {MOST_VALUES}")));
        }
        match FieldValue::of(json) {
            Some(FieldValue::Text(text)) => {
                self.count(&text, place)?;
                Ok(FieldValue::Text(text))
            }
            Some(value @ (FieldValue::Bool(_) | FieldValue::Number(_))) => Ok(value),
            _ => Err(error(place, "compares with texts, numbers, and true or false only")),
        }
    }

    fn count(&mut self, text: &str, place: &str) -> Result<(), FilterError> {
        self.bytes += text.len();
        match self.bytes > MOST_BYTES {
            true => Err(error(place, format!("has too much text: the limit of a filter is {MOST_BYTES} bytes"))),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::FieldType;
    use crate::spec::from_str;

    #[test]
    fn each_form_is_that_of_a_pipeline_file() {
        for (json, ron) in [
            (json!({"eq": ["lang", "en"]}), r#"Eq("lang", "en")"#),
            (json!({"eq": ["open", true]}), r#"Eq("open", true)"#),
            (json!({"in": ["year", [2025, 2026.5]]}), r#"In("year", [2025, 2026.5])"#),
            (json!({"in": ["year", []]}), r#"In("year", [])"#),
            (json!({"lt": ["year", 1]}), r#"Lt("year", 1)"#),
            (json!({"le": ["date", "2026"]}), r#"Le("date", "2026")"#),
            (json!({"gt": ["year", -1.5]}), r#"Gt("year", -1.5)"#),
            (json!({"ge": ["year", 1]}), r#"Ge("year", 1)"#),
            (json!({"prefix": ["path", "guide/"]}), r#"Prefix("path", "guide/")"#),
            (json!({"exists": "tags"}), r#"Exists("tags")"#),
            (json!({"and": []}), "And([])"),
            (
                json!({"or": [{"not": {"exists": "a"}}, {"and": [{"eq": ["b", 1]}, {"eq": ["c", 2]}]}]}),
                r#"Or([Not(Exists("a")), And([Eq("b", 1), Eq("c", 2)])])"#,
            ),
        ] {
            let read = Filter::from_json(&json).unwrap();
            assert_eq!(read, from_str::<Filter>(ron).unwrap(), "{json}");
            assert_eq!(read.problem(), None, "{json}");
        }
    }

    #[test]
    fn what_is_no_filter_says_where_and_why() {
        for (json, told) in [
            (json!(null), "`filter` must be an object with one condition"),
            (json!({}), "`filter` must be an object with one condition"),
            (json!({"eq": ["a", 1], "in": ["a", [1]]}), "`filter` must be an object with one condition"),
            (json!({"like": ["a", 1]}), "`filter.like` is not a condition"),
            (json!({"turn_has": "a"}), "`filter.turn_has` is not a condition"),
            (json!({"and": [{"exists": "a"}, {"eq": ["a", null]}]}), "`filter.and[1].eq` compares with texts, numbers"),
            (json!({"eq": ["a", ["b"]]}), "`filter.eq` compares with texts, numbers"),
            (json!({"eq": ["a", {"FromTurn": "b"}]}), "`filter.eq` compares with texts, numbers"),
            (json!({"eq": ["", 1]}), "`filter.eq` needs the name of a field"),
            (json!({"in": ["a", "b"]}), "`filter.in` must be a list of a field and a list"),
            (json!({"lt": ["a", false]}), "`filter.lt` compares with a number or a text only"),
            (json!({"prefix": ["a", 1]}), "`filter.prefix` compares with a text only"),
            (json!({"not": [{"exists": "a"}]}), "`filter.not` must be an object"),
            (json!({"or": {"exists": "a"}}), "`filter.or` must be a list of conditions"),
            (json!({"in": ["a", vec![1; 1001]]}), "`filter.in` has too many values"),
            (json!({"eq": ["a", "x".repeat(40_000)]}), "`filter.eq` has too much text"),
            (json!({"and": vec![json!({"exists": "a"}); 100]}), "`filter.and[99]` is one condition too many"),
        ] {
            let error = Filter::from_json(&json).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error} should begin with {told}");
        }
        let deep = (0..40).fold(json!({"exists": "a"}), |inner, _| json!({"not": inner}));
        assert!(Filter::from_json(&deep).unwrap_err().problem.starts_with("is nested too deeply"));
    }

    #[test]
    fn a_field_that_a_corpus_does_not_declare_is_told() {
        let fields = [("lang".into(), FieldType::Text), ("year".into(), FieldType::Integer)].into_iter().collect();
        let schema = Schema { access: Some("groups".into()), fields };
        let misuse = |json| Filter::from_json(&json).unwrap().misuse(&schema);
        assert_eq!(
            misuse(json!({"and": [{"eq": ["lang", "en"]}, {"ge": ["year", 2026]}, {"exists": "groups"}]})),
            None
        );
        assert_eq!(misuse(json!({"exists": "x"})).unwrap(), "the field `x` is not declared in `fields`");
        let told = misuse(json!({"not": {"eq": ["year", "2026"]}})).unwrap();
        assert_eq!(told, "the field `year` is a whole number, and cannot be compared with \"2026\"");
        assert_eq!(Filter::from_json(&json!({"exists": "x"})).unwrap().misuse(&Schema::default()), None);
    }
}
