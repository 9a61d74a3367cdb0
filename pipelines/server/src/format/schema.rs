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

/// What is wrong with a schema: the place, such as `schema.properties.hours.type`, and the problem.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    Walk { root: schema }.schema(schema, "schema")
}

/// The end of a message: what stands there instead.
fn not(value: &Value) -> String {
    let text = value.to_string();
    match text.chars().nth(SHOWN) {
        None => format!(", not {text}"),
        Some(_) => format!(", not {}…", text.chars().take(SHOWN).collect::<String>()),
    }
}

struct Walk<'s> {
    root: &'s Value,
}

impl Walk<'_> {
    fn schema(&self, schema: &Value, at: &str) -> Result<(), String> {
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(fields) => fields.iter().try_for_each(|(keyword, value)| {
                let place = format!("{at}.{keyword}");
                self.keyword(keyword, value, &place)
            }),
            other => Err(format!("`{at}` must be a schema, which is an object or a boolean{}", not(other))),
        }
    }

    fn keyword(&self, keyword: &str, value: &Value, at: &str) -> Result<(), String> {
        let must = |is_right: bool, what: &str| match is_right {
            true => Ok(()),
            false => Err(format!("`{at}` must be {what}{}", not(value))),
        };
        match keyword {
            "type" => match value {
                Value::Array(names) => {
                    must(!names.is_empty(), "a type, or a list of types")?;
                    names.iter().enumerate().try_for_each(|(n, name)| of_type(name, &format!("{at}[{n}]")))
                }
                name => of_type(name, at),
            },
            "items" if value.is_array() => self.list(value, at),
            "items" => self.schema(value, at),
            "required" => texts(value, at),
            "dependentRequired" => self.named(value, at, |_, value, at| texts(value, at)),
            "dependencies" => self.named(value, at, |this, value, at| match value {
                Value::Array(_) => texts(value, at),
                schema => this.schema(schema, at),
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
            _ if ONE.contains(&keyword) => self.schema(value, at),
            _ if LISTS.contains(&keyword) => self.list(value, at),
            _ if NAMED.contains(&keyword) => self.named(value, at, |this, schema, at| this.schema(schema, at)),
            _ if COUNTS.contains(&keyword) => {
                let is_count = value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0);
                must(is_count, "a whole number from 0")
            }
            _ if TEXTS.contains(&keyword) => must(value.is_string(), "a text"),
            _ => Ok(()),
        }
    }

    fn list(&self, value: &Value, at: &str) -> Result<(), String> {
        let Some(schemas) = value.as_array().filter(|schemas| !schemas.is_empty()) else {
            return Err(format!("`{at}` must be a list of schemas{}", not(value)));
        };
        schemas.iter().enumerate().try_for_each(|(n, schema)| self.schema(schema, &format!("{at}[{n}]")))
    }

    fn named(
        &self,
        value: &Value,
        at: &str,
        each: impl Fn(&Self, &Value, &str) -> Result<(), String>,
    ) -> Result<(), String> {
        let fields: &Map<String, Value> =
            value.as_object().ok_or_else(|| format!("`{at}` must be an object{}", not(value)))?;
        fields.iter().try_for_each(|(name, value)| each(self, value, &format!("{at}.{name}")))
    }

    /// Whether a reference leads to a part of this schema, as far as its form tells. Anchors and other documents are left to
    /// whoever reads the schema.
    fn leads(&self, reference: &str) -> bool {
        let Some(pointer) = reference.strip_prefix('#').filter(|rest| rest.starts_with('/')) else { return true };
        let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8_lossy();
        self.root.pointer(&pointer).is_some()
    }
}

fn of_type(name: &Value, at: &str) -> Result<(), String> {
    match name.as_str().is_some_and(|name| TYPES.contains(&name)) {
        true => Ok(()),
        false => Err(format!("`{at}` must be one of {}{}", TYPES.join(", "), not(name))),
    }
}

fn texts(value: &Value, at: &str) -> Result<(), String> {
    match value.as_array().is_some_and(|names| names.iter().all(Value::is_string)) {
        true => Ok(()),
        false => Err(format!("`{at}` must be a list of names{}", not(value))),
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
