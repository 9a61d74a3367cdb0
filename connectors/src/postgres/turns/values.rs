//! Values of the log in JSON, as `row_to_json` writes them: a row is the same turn, however it was found.

use serde_json::Value;
use turnflow_engine::odd_json;

use crate::postgres::pgoutput::Cell;

/// What a type looks like in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    /// A number; `NaN` and infinity are texts.
    Number,
    /// JSON itself.
    Json,
    /// A time, which JSON has in the form of ISO 8601.
    Time,
    Text,
}

/// The kind of a type, and whether it is a list of it. The numbers are those of the catalog `pg_type`, which never change.
fn kind(of: u32) -> (Kind, bool) {
    match of {
        16 => (Kind::Bool, false),
        1000 => (Kind::Bool, true),
        // int8, int2, int4, oid, float4, float8, numeric
        20 | 21 | 23 | 700 | 701 | 1700 => (Kind::Number, false),
        1016 | 1005 | 1007 | 1021 | 1022 | 1231 => (Kind::Number, true),
        // json, jsonb
        114 | 3802 => (Kind::Json, false),
        199 | 3807 => (Kind::Json, true),
        // timestamp, timestamptz
        1114 | 1184 => (Kind::Time, false),
        1115 | 1185 => (Kind::Time, true),
        // text, varchar, char, name, uuid, date, time, timetz, interval, inet, cidr, bytea, xml, money
        1009 | 1015 | 1014 | 1003 | 2951 | 1182 | 1183 | 1270 | 1187 | 1041 | 651 | 1001 | 143 | 791 => {
            (Kind::Text, true)
        }
        _ => (Kind::Text, false),
    }
}

/// A value in JSON, and whether it has something that JSON cannot hold, which is then left out.
pub(super) fn value(of: u32, cell: &Cell<'_>) -> (Value, bool) {
    let Cell::Text(text) = cell else { return (Value::Null, false) };
    match kind(of) {
        (kind, false) => one(kind, text),
        // Bounds other than from 1 are written in front.
        (kind, true) => {
            let items =
                text.split_once('=').filter(|(bounds, _)| bounds.starts_with('[')).map_or(*text, |(_, list)| list);
            List { rest: items, kind, is_odd: false }
                .whole()
                .unwrap_or_else(|| (Value::String((*text).to_owned()), false))
        }
    }
}

fn one(kind: Kind, text: &str) -> (Value, bool) {
    let string = |text: String| (Value::String(text), false);
    match kind {
        Kind::Bool => (Value::Bool(text == "t"), false),
        Kind::Number if !text.ends_with(|last: char| last.is_ascii_digit()) => string(text.to_owned()),
        Kind::Number | Kind::Json => match odd_json::read(text) {
            Ok((value, odd)) => (value, !odd.is_empty()),
            Err(_) => string(text.to_owned()),
        },
        Kind::Time => string(iso(text)),
        Kind::Text => string(text.to_owned()),
    }
}

/// A time as ISO 8601 has it: `2024-01-01 00:00:00+02` is `2024-01-01T00:00:00+02:00`.
fn iso(text: &str) -> String {
    let time = text.replacen(' ', "T", 1);
    // `+02`, `-03:30` or `+01:15:30`, and perhaps ` BC`.
    let (time, era) = time.strip_suffix(" BC").map_or((&*time, ""), |time| (time, " BC"));
    let zone = time.find('T').and_then(|at| time[at..].rfind(['+', '-']).map(|zone| &time[at + zone..]));
    let minutes = if zone.is_some_and(|zone| zone.len() == 3) { ":00" } else { "" };
    format!("{time}{minutes}{era}")
}

/// Deepest list: that of PostgreSQL.
const DEEPEST: usize = 6;

/// A list as PostgreSQL writes it: `{1,NULL,"a \"b\""}`.
struct List<'a> {
    rest: &'a str,
    kind: Kind,
    is_odd: bool,
}

impl List<'_> {
    /// The list, if there is nothing else.
    fn whole(mut self) -> Option<(Value, bool)> {
        let list = self.list(DEEPEST)?;
        self.rest.is_empty().then_some((list, self.is_odd))
    }

    fn list(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        let mut items = Vec::new();
        self.rest = self.rest.strip_prefix('{')?;
        if let Some(rest) = self.rest.strip_prefix('}') {
            self.rest = rest;
            return Some(items.into());
        }
        loop {
            items.push(if self.rest.starts_with('{') { self.list(depth)? } else { self.item()? });
            let mut next = self.rest.chars();
            match next.next()? {
                ',' => self.rest = next.as_str(),
                '}' => {
                    self.rest = next.as_str();
                    return Some(items.into());
                }
                _ => return None,
            }
        }
    }

    fn item(&mut self) -> Option<Value> {
        let text = match self.rest.strip_prefix('"') {
            Some(rest) => {
                let (mut text, mut next) = (String::new(), rest.chars());
                loop {
                    match next.next()? {
                        '"' => break,
                        '\\' => text.push(next.next()?),
                        other => text.push(other),
                    }
                }
                self.rest = next.as_str();
                text
            }
            None => {
                let (text, _) = self.rest.split_at(self.rest.find([',', '}'])?);
                self.rest = &self.rest[text.len()..];
                if text.eq_ignore_ascii_case("null") {
                    return Some(Value::Null);
                }
                text.to_owned()
            }
        };
        let (value, is_odd) = one(self.kind, &text);
        self.is_odd |= is_odd;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_of_row_to_json() {
        for (of, text, expected) in [
            (16, "t", json!(true)),
            (20, "9007199254740993", json!(9_007_199_254_740_993_i64)),
            (1700, "1.50", json!(1.5)),
            (1700, "NaN", json!("NaN")),
            (701, "-Infinity", json!("-Infinity")),
            (25, "1", json!("1")),
            (3802, "{\"a\": [1]}", json!({"a": [1]})),
            (1114, "2024-01-01 00:00:00.5", json!("2024-01-01T00:00:00.5")),
            (1184, "2024-01-01 02:00:00+02", json!("2024-01-01T02:00:00+02:00")),
            (1184, "2024-01-01 02:00:00-03:30", json!("2024-01-01T02:00:00-03:30")),
            (1184, "0044-03-15 00:00:00+00 BC", json!("0044-03-15T00:00:00+00:00 BC")),
            (1184, "infinity", json!("infinity")),
            (1007, "{1,NULL,3}", json!([1, null, 3])),
            (1007, "{}", json!([])),
            (1007, "[2:3]={1,2}", json!([1, 2])),
            (1009, r#"{a,"b, \"c\" \\","NULL",null,"{}"}"#, json!(["a", "b, \"c\" \\", "NULL", null, "{}"])),
            (1016, "{{1,2},{3,4}}", json!([[1, 2], [3, 4]])),
            (1231, "{NaN,1}", json!(["NaN", 1])),
            (1000, "{t,f}", json!([true, false])),
            (1185, r#"{"2024-01-01 00:00:00+00"}"#, json!(["2024-01-01T00:00:00+00:00"])),
            (1007, "{1,", json!("{1,")),
        ] {
            assert_eq!(value(of, &Cell::Text(text)), (expected, false), "{of} {text}");
        }
        assert_eq!(value(25, &Cell::Null), (Value::Null, false));
        // Numbers that no float has are texts.
        let wide = format!("1{}", "0".repeat(400));
        assert_eq!(value(1700, &Cell::Text(&wide)), (json!(wide), false));
        assert_eq!(value(114, &Cell::Text(r#"{"a": "\ud83d"}"#)), (json!({"a": "\u{fffd}"}), true));
    }
}
