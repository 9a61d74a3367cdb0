//! What a schema may have, so that its grammar is made with bounded time, memory and stack.
//!
//! The library follows references by recursion, without a bound: a chain of some hundred definitions overflows the stack of
//! an ordinary thread, which ends the process. A grammar is made on a thread with a stack for all levels that are allowed
//! here. The optional properties of an object take a time that grows with the square of their number.

use std::collections::HashSet;

use serde_json::Value;

/// The longest schema, in bytes.
const MOST_BYTES: usize = 128 << 10;
/// Maximum number of properties of one object.
const MOST_PROPERTIES: usize = 1000;
/// Maximum number of levels, if every reference is followed once.
const MOST_LEVELS: usize = 4000;
/// The stack for that many levels, in bytes. A level takes some 6 kB.
pub(super) const STACK: usize = 64 << 20;

/// Checks the size of a schema.
///
/// # Errors
///
/// What there is too much of.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let bytes = schema.to_string().len();
    if bytes > MOST_BYTES {
        let (kib, most) = (bytes.div_ceil(1024), MOST_BYTES / 1024);
        return Err(format!("it is too large: it has {kib} KiB, and at most {most} are supported"));
    }
    let mut walk = Walk { root: schema, followed: HashSet::new(), levels: height(schema) };
    walk.value(schema)
}

struct Walk<'s> {
    root: &'s Value,
    followed: HashSet<&'s str>,
    levels: usize,
}

impl<'s> Walk<'s> {
    fn value(&mut self, value: &'s Value) -> Result<(), String> {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    self.follow(reference)?;
                }
                let properties = fields.get("properties").and_then(Value::as_object).map_or(0, |named| named.len());
                if properties > MOST_PROPERTIES {
                    let problem = "properties, and at most";
                    return Err(format!("an object has {properties} {problem} {MOST_PROPERTIES} are supported"));
                }
                fields.values().try_for_each(|part| self.value(part))
            }
            Value::Array(parts) => parts.iter().try_for_each(|part| self.value(part)),
            _ => Ok(()),
        }
    }

    /// Adds the levels of the part to which a reference leads. Each may be reached from the end of every other.
    fn follow(&mut self, reference: &'s str) -> Result<(), String> {
        if !self.followed.insert(reference) {
            return Ok(());
        }
        // What is named otherwise may be any part.
        let part = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)).unwrap_or(self.root);
        self.levels += height(part).max(1);
        match self.levels > MOST_LEVELS {
            true => Err("its references lead through too many levels".to_owned()),
            false => Ok(()),
        }
    }
}

/// How deep the parts of a value are nested.
fn height(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(height).max().unwrap_or(0),
        Value::Array(parts) => 1 + parts.iter().map(height).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// Definitions of which each refers to the next.
    fn chain(length: usize) -> Value {
        let next = |n: usize| json!({ "properties": { "next": { "$ref": format!("#/$defs/{}", n + 1) } } });
        let mut parts: Map<_, _> = (0..length).map(|n| (n.to_string(), next(n))).collect();
        parts.insert(length.to_string(), json!({ "type": "string" }));
        json!({ "$defs": parts, "$ref": "#/$defs/0" })
    }

    #[test]
    fn what_is_too_large_is_told() {
        assert_eq!(check(&chain(1000)), Ok(()));
        assert!(check(&chain(1500)).unwrap_err().contains("too many levels"));
        let named = |count: usize| (0..count).map(|n| (n.to_string(), json!(true))).collect::<Map<_, _>>();
        let object = |count| json!({ "items": [{ "properties": named(count) }] });
        assert_eq!(check(&object(MOST_PROPERTIES)), Ok(()));
        assert!(check(&object(MOST_PROPERTIES + 1)).unwrap_err().contains("1001 properties"));
        assert!(check(&json!({ "const": "x".repeat(MOST_BYTES) })).unwrap_err().contains("129 KiB"));
        // A part that is referred to often, or by itself, is followed once.
        let again = json!({ "$defs": { "a": { "items": { "$ref": "#/$defs/a" } } }, "anyOf": vec![json!({ "$ref": "#/$defs/a" }); 2000] });
        assert_eq!(check(&again), Ok(()));
    }
}
