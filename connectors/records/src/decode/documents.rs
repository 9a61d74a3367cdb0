//! Documents of JSON: one, or several one after another, as programs write them. The elements of a list are records.

use jaq_json::Val;

use super::{Records, json};

pub(super) fn read(text: &str, records: &mut Records<'_>) {
    let mut number = 0;
    let mut take = |value: Result<Val, String>| match value {
        Ok(Val::Arr(list)) => list.iter().for_each(|value| {
            number += 1;
            records.take(number, Ok(value.clone()));
        }),
        value => {
            number += 1;
            records.take(number, value);
        }
    };
    let mut odd = super::Odd::default();
    let parts = parts(text);
    if parts.is_empty() && !text.trim().is_empty() {
        take(json(text.as_bytes(), &mut odd));
    }
    for part in parts {
        let value = json(part.as_bytes(), &mut odd);
        let value = value.or_else(|error| match without_last_commas(part) {
            Some(mended) => json(mended.as_bytes(), &mut odd).map_err(|_| error),
            None => Err(error),
        });
        take(value);
    }
    records.odd.add(odd);
}

/// The objects and lists of a text that lie one after another. What is before them (`window.data = `), between them (`;`,
/// record separators) and behind them is left out.
fn parts(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let (mut parts, mut at, mut depth, mut start) = (Vec::new(), 0, 0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' if depth > 0 => at = end_of_text(bytes, at),
            b'{' | b'[' => {
                if depth == 0 {
                    start = at;
                }
                depth += 1;
            }
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    parts.push(&text[start..=at]);
                }
            }
            _ => {}
        }
        at += 1;
    }
    if depth > 0 {
        parts.push(&text[start..]);
    }
    parts
}

/// The place of the quote that ends the text that begins here, or the end.
fn end_of_text(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The same without commas before the end of an object or a list; `None` if there are none.
fn without_last_commas(part: &str) -> Option<String> {
    let bytes = part.as_bytes();
    let (mut kept, mut from, mut at) = (String::new(), 0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = end_of_text(bytes, at),
            b',' => {
                let next = bytes[at + 1..].iter().find(|byte| !byte.is_ascii_whitespace());
                if matches!(next, Some(b'}' | b']')) {
                    kept.push_str(&part[from..at]);
                    from = at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if from == 0 {
        return None;
    }
    kept.push_str(&part[from..]);
    Some(kept)
}
