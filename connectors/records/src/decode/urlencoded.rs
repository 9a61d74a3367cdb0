//! Forms as browsers and webhooks send them (`application/x-www-form-urlencoded`): each line is an object of texts. A name
//! that comes again has a list of them.

use std::collections::HashMap;
use std::io::{self, BufRead};

use jaq_json::Val;

use super::{Line, Records, each_line};

/// What is told of a line that is no form.
pub(crate) const NO_FORM: &str = "it is no form, such as `a=1&b=2`";
/// Maximum number of fields of a form.
const FIELDS: usize = 50_000;
/// Maximum size of a form, in bytes.
const LONGEST: u64 = 8 << 20;

pub(super) fn read(file: &mut dyn BufRead, records: &mut Records<'_>) -> io::Result<()> {
    each_line(file, LONGEST, &mut |number, line| match line {
        Line::TooLong(reason) => records.take(number, Err(reason)),
        Line::Whole(line) | Line::Last(line) => {
            let line = line.trim_ascii();
            if !line.is_empty() {
                records.take(number, form(line));
            }
        }
    })
}

/// The fields of a form.
///
/// # Errors
///
/// It is none, or has too many fields.
pub(crate) fn form(form: &[u8]) -> Result<Val, String> {
    let count = form.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).take(FIELDS + 1).count();
    if count > FIELDS {
        return Err(format!("the form has more than {FIELDS} fields"));
    }
    fields(form).ok_or_else(|| NO_FORM.to_owned())
}

/// The fields of a form; nothing, if it is none, or has too many.
pub(crate) fn fields(form: &[u8]) -> Option<Val> {
    let mut fields: Vec<(String, Vec<String>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let pairs = form.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    for (count, pair) in pairs.enumerate() {
        if count == FIELDS {
            return None;
        }
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
