//! Forms as browsers and webhooks send them (`application/x-www-form-urlencoded`): each line is an object of texts. A name
//! that comes again has a list of them.

use std::collections::HashMap;

use jaq_json::Val;

use super::Records;

/// What is told of a line that is no form.
pub(crate) const NO_FORM: &str = "it is no form, such as `a=1&b=2`";

pub(super) fn read(text: &str, records: &mut Records<'_>) {
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if !line.is_empty() {
            let fields = fields(line.as_bytes()).ok_or_else(|| NO_FORM.to_owned());
            records.take(number, fields);
        }
    }
}

/// The fields of a form; nothing, if it is none.
pub(crate) fn fields(form: &[u8]) -> Option<Val> {
    let mut fields: Vec<(String, Vec<String>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for pair in form.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let name = decoded(parts.next()?);
        let value = parts.next();
        if value.is_none() && pair.len() == form.len() {
            return None;
        }
        let value = decoded(value.unwrap_or_default());
        match places.get(&name) {
            Some(at) => fields[*at].1.push(value),
            None => {
                places.insert(name.clone(), fields.len());
                fields.push((name, vec![value]));
            }
        }
    }
    let value = |mut values: Vec<String>| match values.len() {
        1 => Val::from(values.pop().unwrap_or_default()),
        _ => values.into_iter().map(Val::from).collect(),
    };
    Some(Val::obj(fields.into_iter().map(|(name, values)| (Val::from(name), value(values))).collect()))
}

/// A text without `+` for blanks and `%20` for bytes.
fn decoded(text: &[u8]) -> String {
    let digit = |at: usize| text.get(at).and_then(|digit| char::from(*digit).to_digit(16));
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        match (byte, digit(at + 1).zip(digit(at + 2))) {
            (b'%', Some((high, low))) => {
                bytes.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
