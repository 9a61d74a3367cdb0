//! Whether a value is a JSON schema at all, before any model is asked.
//!
//! What each keyword must be is that of JSON Schema's own meta-schema (draft 2020-12), with the forms of earlier drafts. Unknown
//! keywords are allowed, as they are there.

use serde_json::{Map, Value};

/// The types of JSON.
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];
/// Keywords with one schema.
const ONE: [&str; 11] = [
    "not",
    "if",
    "then",
    "else",
    "additionalProperties",
    "additionalItems",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Keywords with a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords with schemas by name.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords with a whole number from 0.
const COUNTS: [&str; 8] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"];
/// Keywords with a text.
const TEXTS: [&str; 8] = ["pattern", "format", "title", "description", "$ref", "$id", "$schema", "$anchor"];
/// The longest value that an error shows, in characters.
const SHOWN: usize = 60;
/// The longest place that an error shows, in characters.
const PLACE: usize = 200;

/// What is wrong with a schema: the place, such as `schema.properties.hours.type`, and the problem.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut walk = Walk { root: schema, place: "schema".to_owned() };
    walk.schema(schema).map_err(|problem| format!("`{}` must be {problem}", start(&walk.place, PLACE)))
}

/// The start of a text.
fn start(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// The end of a message: what stands there instead.
fn not(value: &Value) -> String {
    format!(", not {}", start(&value.to_string(), SHOWN))
}

struct Walk<'s> {
    root: &'s Value,
    /// Where it is, or where the problem is. One text for all places: names may be long, and have many parts.
    place: String,
}

impl Walk<'_> {
    /// Checks a part behind a place.
    fn at(
        &mut self,
        part: impl std::fmt::Display,
        check: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let length = self.place.len();
        self.place += &part.to_string();
        check(self)?;
        self.place.truncate(length);
        Ok(())
    }

    fn schema(&mut self, schema: &Value) -> Result<(), String> {
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(fields) => fields.iter().try_for_each(|(keyword, value)| {
                self.at(format_args!(".{keyword}"), |walk| walk.keyword(keyword, value))
            }),
            other => Err(format!("a schema, which is an object or a boolean{}", not(other))),
        }
    }

    fn keyword(&mut self, keyword: &str, value: &Value) -> Result<(), String> {
        let must = |is_right: bool, what: &str| match is_right {
            true => Ok(()),
            false => Err(format!("{what}{}", not(value))),
        };
        match keyword {
            "type" => match value {
                Value::Array(names) => {
                    must(!names.is_empty(), "a type, or a list of types")?;
                    let mut names = names.iter().enumerate();
                    names.try_for_each(|(n, name)| self.at(format_args!("[{n}]"), |_| of_type(name)))
                }
                name => of_type(name),
            },
            "items" if value.is_array() => self.list(value),
            "items" => self.schema(value),
            "required" => texts(value),
            "dependentRequired" => self.named(value, |_, value| texts(value)),
            "dependencies" => self.named(value, |walk, value| match value {
                Value::Array(_) => texts(value),
                schema => walk.schema(schema),
            }),
            "enum" => must(value.as_array().is_some_and(|values| !values.is_empty()), "a list of values"),
            "minimum" | "maximum" => must(value.is_number(), "a number"),
            "exclusiveMinimum" | "exclusiveMaximum" => must(value.is_number() || value.is_boolean(), "a number"),
            "multipleOf" => must(value.as_f64().is_some_and(|number| number > 0.0), "a number above 0"),
            "uniqueItems" => must(value.is_boolean(), "true or false"),
            "$ref" => {
                must(value.is_string(), "a text")?;
                must(self.leads(value.as_str().unwrap_or_default()), "a reference to a part of the schema")
            }
            _ if ONE.contains(&keyword) => self.schema(value),
            _ if LISTS.contains(&keyword) => self.list(value),
            _ if NAMED.contains(&keyword) => self.named(value, Self::schema),
            _ if COUNTS.contains(&keyword) => {
                let is_count = value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0);
                must(is_count, "a whole number from 0")
            }
            _ if TEXTS.contains(&keyword) => must(value.is_string(), "a text"),
            _ => Ok(()),
        }
    }

    fn list(&mut self, value: &Value) -> Result<(), String> {
        let Some(schemas) = value.as_array().filter(|schemas| !schemas.is_empty()) else {
            return Err(format!("a list of schemas{}", not(value)));
        };
        let mut schemas = schemas.iter().enumerate();
        schemas.try_for_each(|(n, schema)| self.at(format_args!("[{n}]"), |walk| walk.schema(schema)))
    }

    fn named(&mut self, value: &Value, each: impl Fn(&mut Self, &Value) -> Result<(), String>) -> Result<(), String> {
        let fields: &Map<String, Value> = value.as_object().ok_or_else(|| format!("an object{}", not(value)))?;
        fields.iter().try_for_each(|(name, value)| self.at(format_args!(".{name}"), |walk| each(walk, value)))
    }

    /// Whether a reference leads to a part of this schema, as far as its form tells. Anchors and other documents are left to
    /// whoever reads the schema.
    fn leads(&self, reference: &str) -> bool {
        let Some(pointer) = reference.strip_prefix('#').filter(|rest| rest.starts_with('/')) else { return true };
        let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8_lossy();
        self.root.pointer(&pointer).is_some()
    }
}

fn of_type(name: &Value) -> Result<(), String> {
    match name.as_str().is_some_and(|name| TYPES.contains(&name)) {
        true => Ok(()),
        false => Err(format!("one of {}{}", TYPES.join(", "), not(name))),
    }
}

fn texts(value: &Value) -> Result<(), String> {
    match value.as_array().is_some_and(|names| names.iter().all(Value::is_string)) {
        true => Ok(()),
        false => Err(format!("a list of names{}", not(value))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_that_is_none_says_where() {
        for (schema, told) in [
            (json!({ "type": "foo" }), "`schema.type` must be one of null, boolean"),
            (json!({ "type": ["string", 7] }), "`schema.type[1]` must be one of"),
            (json!({ "type": [] }), "`schema.type` must be a type, or a list of types, not []"),
            (json!({ "properties": [] }), "`schema.properties` must be an object, not []"),
            (json!({ "properties": { "a": "string" } }), "`schema.properties.a` must be a schema"),
            (json!({ "items": { "anyOf": [] } }), "`schema.items.anyOf` must be a list of schemas"),
            (json!({ "items": [true, { "enum": 1 }] }), "`schema.items[1].enum` must be a list of values, not 1"),
            (json!({ "required": "a" }), "`schema.required` must be a list of names"),
            (json!({ "properties": { "a": { "required": true } } }), "`schema.properties.a.required`"),
            (json!({ "minLength": -1 }), "`schema.minLength` must be a whole number"),
            (json!({ "not": { "maxItems": 1.5 } }), "`schema.not.maxItems`"),
            (json!({ "minimum": "1" }), "`schema.minimum` must be a number, not \"1\""),
            (json!({ "multipleOf": 0 }), "`schema.multipleOf` must be a number above 0"),
            (json!({ "pattern": 1 }), "`schema.pattern` must be a text"),
            (json!({ "$ref": "#/$defs/none" }), "`schema.$ref` must be a reference to a part"),
            (json!({ "dependencies": { "a": [1] } }), "`schema.dependencies.a` must be a list of names"),
            (json!({ "additionalProperties": null }), "`schema.additionalProperties` must be a schema"),
        ] {
            let problem = check(&schema).unwrap_err();
            assert!(problem.starts_with(told), "{schema}: {problem}");
        }
        let long = check(&json!({ "required": "x".repeat(500) })).unwrap_err();
        assert!(long.chars().count() < 120 && long.ends_with('…'), "{long}");
    }

    /// A name may be half of the request, and have thousands of parts: nothing is made of it for each.
    #[test]
    fn long_names_take_no_more_time() {
        let parts: Map<_, _> = (0..200_000).map(|n| (n.to_string(), json!(true))).collect();
        let mut schema = json!({ "properties": { "x".repeat(2 << 20): { "properties": parts } } });
        let (sender, receiver) = std::sync::mpsc::channel();
        let valid = schema.clone();
        std::thread::spawn(move || sender.send(check(&valid)));
        // Made anew for each part, the places have 400 GB, which takes half a minute.
        let checked = receiver.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(checked, Ok(Ok(())), "it takes too long");
        for (_, part) in schema["properties"].as_object_mut().unwrap() {
            *part = json!(1);
        }
        let told = check(&schema).unwrap_err();
        assert!(told.starts_with("`schema.properties.xxx") && told.len() < 400, "{}", told.len());
    }

    #[test]
    fn names_and_values_are_no_keywords() {
        for schema in [
            json!({}),
            json!({ "type": ["string", "null"], "nullable": "yes", "x-order": 1 }),
            json!({ "properties": { "type": { "type": "string" }, "properties": true, "required": false } }),
            json!({ "const": { "type": "foo" }, "default": { "properties": [] }, "enum": [{ "type": 1 }] }),
            json!({ "$defs": { "a/b": { "$ref": "#" } }, "$ref": "#/$defs/a~1b" }),
            json!({ "$defs": { "Reply[int]": {} }, "$ref": "#/$defs/Reply%5Bint%5D" }),
            json!({ "$ref": "https://example.org/schema.json" }),
            json!({ "minimum": 0, "exclusiveMinimum": true, "maxLength": 3.0, "examples": [1], "required": [] }),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }
}
