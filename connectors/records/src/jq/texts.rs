//! Filters of jq that make texts.

use std::fmt::{self, Write as _};

use jaq_core::data::JustLut;
use jaq_core::native::{Fun, bome, run, unary, v};
use jaq_core::{Error, ValR};
use jaq_json::Val;
use jaq_std::ValT as _;
use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::Offset;

use super::held::{self, Parts};
use super::limits::{self, Lent, steps};
use super::natives::Own;
use super::ops;
use super::value::{Value, told};
use crate::message::short;

pub(super) fn natives() -> impl Iterator<Item = Fun<JustLut<Value>>> {
    let all: [Own; 20] = [
        ("fromdateiso8601", v(0), |cv| bome(date(&cv.1))),
        ("join", v(1), |cv| unary(cv, |parts, between| join(parts, &between))),
        ("split", v(1), |cv| unary(cv, |of, between| split(&of, &between))),
        ("strptime", v(1), |cv| unary(cv, |of, form| time_of(&of, &form))),
        ("@csv", v(0), |cv| bome(row(&cv.1, "CSV", ",", &csv))),
        ("@tsv", v(0), |cv| bome(row(&cv.1, "TSV", "\t", &tsv))),
        ("@sh", v(0), |cv| bome(shell(&cv.1))),
        ("@html", v(0), |cv| bome(escaped(&cv.1, html))),
        ("@uri", v(0), |cv| bome(escaped(&cv.1, uri))),
        ("@base32", v(0), |cv| bome(base32(&cv.1))),
        ("@base32d", v(0), |cv| bome(from_base32(&cv.1))),
        ("@base64d", v(0), |cv| bome(from_base64(&cv.1))),
        ("startswith", v(1), |cv| unary(cv, |of, part| both(&of, &part, "startswith", |a, b| a.starts_with(b)))),
        ("endswith", v(1), |cv| unary(cv, |of, part| both(&of, &part, "endswith", |a, b| a.ends_with(b)))),
        ("ltrimstr", v(1), |cv| unary(cv, |of, part| Ok(without(of, &part, |of, part| of.strip_prefix(part))))),
        ("rtrimstr", v(1), |cv| unary(cv, |of, part| Ok(without(of, &part, |of, part| of.strip_suffix(part))))),
        ("trim", v(0), |cv| bome(trimmed(cv.1, str::trim))),
        ("ltrim", v(0), |cv| bome(trimmed(cv.1, str::trim_start))),
        ("rtrim", v(0), |cv| bome(trimmed(cv.1, str::trim_end))),
        ("implode", v(0), |cv| bome(implode(&cv.1))),
    ];
    all.into_iter().map(run::<JustLut<Value>>)
}

/// A text without blanks at its ends.
fn trimmed(value: Value, trim: fn(&str) -> &str) -> ValR<Value> {
    let Val::TStr(text) = &value.val else { return Err(Error::typ(value, "string")) };
    steps(1 + text.len() as u64 / 256);
    match std::str::from_utf8(text) {
        Ok(valid) => Ok(Value::of(held::part(text, trim(valid).as_bytes()), 0)),
        Err(_) => Ok(Value::of(held::part(text, text.trim_ascii()), 0)),
    }
}

/// Maximum length of a time and of its form, in bytes.
const LONGEST: usize = 500;

/// A text that grows. What it takes is counted.
struct Growing {
    text: String,
    lent: Lent,
}

impl Growing {
    fn new() -> Self {
        Self { text: String::new(), lent: Lent::of(0) }
    }

    fn push(&mut self, part: &str) {
        self.lent.more(part.len() as u64);
        self.text.push_str(part);
        limits::text(self.text.len() as u64);
    }

    fn done(self) -> Value {
        let Self { text, lent } = self;
        drop(lent);
        Value::from(text)
    }
}

/// A text as it is, and anything else as JSON.
fn plain(value: &Val) -> String {
    match value {
        Val::TStr(text) | Val::BStr(text) => {
            steps(text.len() as u64 / 256);
            String::from_utf8_lossy(text).into_owned()
        }
        other => super::shown(other),
    }
}

fn join(parts: Value, between: &Value) -> ValR<Value> {
    let mut text = Growing::new();
    let parts =
        Parts::of(parts).map_err(|other| told(&format_args!("{other:#} cannot be joined, because it is no list")))?;
    for (at, part) in parts.enumerate() {
        steps(1);
        if at > 0 {
            match &between.val {
                Val::TStr(between) => text.push(&String::from_utf8_lossy(between)),
                Val::Null => {}
                _ => return Err(told(&format_args!("{between:#} cannot be put between texts, because it is no text"))),
            }
        }
        match &part.val {
            Val::Null => {}
            Val::Arr(_) | Val::Obj(_) => {
                return Err(told(&format_args!("{part:#} cannot be joined, because it is no text")));
            }
            value => text.push(&plain(value)),
        }
    }
    Ok(text.done())
}

fn split(of: &Value, between: &Value) -> ValR<Value> {
    match (&of.val, &between.val) {
        (Val::TStr(of), Val::TStr(between)) => Ok(Value::of(held::listed(ops::split(of, between)), 1)),
        (Val::TStr(_), _) => Err(told(&format_args!("a text is split at a text, and not at {between:#}"))),
        _ => Err(told(&format_args!("{of:#} cannot be split, because it is no text"))),
    }
}

/// The seconds of a date in ISO 8601.
fn date(of: &Value) -> ValR<Value> {
    let text = of.as_utf8_bytes().filter(|text| text.len() <= LONGEST);
    let text = text.and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default();
    let time: Timestamp = text.parse().map_err(|error| told(&format_args!("{of:#} is no date: {error}")))?;
    Ok(match text.contains('.') {
        true => Value::from(time.as_microsecond() as f64 / 1e6),
        false => Value::from(time.as_second() as isize),
    })
}

/// The parts of a time, by its form.
fn time_of(of: &Value, form: &Value) -> ValR<Value> {
    let fails = |reason: &dyn fmt::Display| told(&format_args!("{of:#} is no time of the form {form:#}: {reason}"));
    let (Some(time), Some(shape)) = (of.as_utf8_bytes(), form.as_utf8_bytes()) else {
        return Err(fails(&"it is no text"));
    };
    if time.len() > LONGEST || shape.len() > LONGEST {
        return Err(fails(&"it is too long"));
    }
    steps(16 + (time.len() + shape.len()) as u64 / 16);
    let (time, shape) = (String::from_utf8_lossy(time), String::from_utf8_lossy(shape));
    let mut parts = BrokenDownTime::parse(&*shape, &*time).map_err(|error| fails(&error))?;
    if (parts.offset(), parts.iana_time_zone()) == (None, None) {
        parts.set_offset(Some(Offset::UTC));
    }
    let zoned = parts.to_zoned().or_else(|_| {
        // What the form does not have is that of the first day.
        parts.set_year(parts.year().or(Some(1970)))?;
        parts.set_month(parts.month().or(Some(1)))?;
        parts.set_day(parts.day().or(Some(1)))?;
        parts.to_zoned()
    });
    let time = zoned.map_err(|error| fails(&error))?.datetime();
    let second = f64::from(time.second()) + f64::from(time.subsec_nanosecond()) / 1e9;
    let whole =
        [time.year().into(), i32::from(time.month()) - 1, time.day().into(), time.hour().into(), time.minute().into()];
    let days = [i32::from(time.weekday().to_sunday_zero_offset()), i32::from(time.day_of_year()) - 1];
    let of_whole = |number: i32| Value::from(number as isize);
    Ok(whole.map(of_whole).into_iter().chain([Value::from(second)]).chain(days.map(of_whole)).collect())
}

/// A row of a table.
fn row(value: &Value, form: &str, between: &str, quoted: &dyn Fn(&str) -> String) -> ValR<Value> {
    let Val::Arr(cells) = &value.val else {
        return Err(told(&format_args!("{value:#} cannot be a row of {form}, because it is no list")));
    };
    let mut text = Growing::new();
    for (at, cell) in cells.iter().enumerate() {
        steps(1);
        if at > 0 {
            text.push(between);
        }
        match cell {
            Val::Null => {}
            Val::TStr(inner) | Val::BStr(inner) => {
                steps(inner.len() as u64 / 32);
                text.push(&quoted(&plain(cell)));
            }
            Val::Bool(_) | Val::Num(_) => text.push(&plain(cell)),
            other => {
                let other = short(other);
                return Err(told(&format_args!(
                    "{other} cannot be in a row of {form}, because it is no text or number"
                )));
            }
        }
    }
    Ok(text.done())
}

fn csv(cell: &str) -> String {
    format!("\"{}\"", cell.replace('"', "\"\""))
}

fn tsv(cell: &str) -> String {
    let mut text = String::new();
    for letter in cell.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            letter => text.push(letter),
        }
    }
    text
}

/// Words of a command.
fn shell(value: &Value) -> ValR<Value> {
    let words = match &value.val {
        Val::Arr(words) => words.as_slice(),
        one => std::slice::from_ref(one),
    };
    let mut text = Growing::new();
    for (at, word) in words.iter().enumerate() {
        steps(1);
        if at > 0 {
            text.push(" ");
        }
        match word {
            Val::TStr(_) | Val::BStr(_) => text.push(&format!("'{}'", plain(word).replace('\'', "'\\''"))),
            Val::Arr(_) | Val::Obj(_) => {
                return Err(told(&format_args!("{} cannot be a word of a command", short(word))));
            }
            other => text.push(&plain(other)),
        }
    }
    Ok(text.done())
}

/// The text of a value with each byte changed.
fn escaped(value: &Value, escape: fn(&mut String, char)) -> ValR<Value> {
    let (plain, mut text) = (plain(&value.val), String::new());
    steps(plain.len() as u64 / 8);
    let _lent = Lent::of(12 * plain.len() as u64);
    plain.chars().for_each(|letter| escape(&mut text, letter));
    Ok(Value::from(text))
}

fn html(text: &mut String, letter: char) {
    match letter {
        '<' => text.push_str("&lt;"),
        '>' => text.push_str("&gt;"),
        '&' => text.push_str("&amp;"),
        '\'' => text.push_str("&apos;"),
        '"' => text.push_str("&quot;"),
        letter => text.push(letter),
    }
}

fn uri(text: &mut String, letter: char) {
    match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' | '~' => text.push(letter),
        letter => {
            for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
}

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base32(value: &Value) -> ValR<Value> {
    let plain = plain(&value.val);
    steps(plain.len() as u64 / 64);
    let _lent = Lent::of(2 * plain.len() as u64);
    let mut text = String::new();
    for group in plain.as_bytes().chunks(5) {
        let bits = (0..5).fold(0_u64, |bits, at| bits << 8 | u64::from(group.get(at).copied().unwrap_or(0)));
        for at in 0..8 {
            let is_filled = at * 5 < group.len() * 8;
            text.push(if is_filled { BASE32[(bits >> (35 - 5 * at) & 31) as usize] as char } else { '=' });
        }
    }
    Ok(Value::from(text))
}

/// Bytes as a text; what is not UTF-8 becomes U+FFFD.
fn text_of(bytes: Vec<u8>) -> Value {
    Value::from(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Bytes of letters of so many bits each.
fn decoded(value: &Value, form: &str, bits: u32, digit: fn(u8) -> Option<u32>) -> ValR<Value> {
    let plain = plain(&value.val);
    steps(plain.len() as u64 / 64);
    let _lent = Lent::of(plain.len() as u64);
    let letters = plain.trim_end_matches('=').as_bytes();
    let (mut bytes, mut rest, mut width) = (Vec::new(), 0_u32, 0);
    for letter in letters {
        let Some(digit) = digit(*letter) else { return Err(told(&format_args!("{value:#} is not valid {form}"))) };
        rest = rest << bits | digit;
        width += bits;
        if width >= 8 {
            width -= 8;
            bytes.push((rest >> width) as u8);
            rest &= (1 << width) - 1;
        }
    }
    if bytes.is_empty() && !plain.is_empty() {
        return Err(told(&format_args!("{value:#} is not valid {form}")));
    }
    Ok(text_of(bytes))
}

fn from_base32(value: &Value) -> ValR<Value> {
    decoded(value, "base32", 5, |letter| BASE32.iter().position(|one| *one == letter).map(|at| at as u32))
}

fn from_base64(value: &Value) -> ValR<Value> {
    let digit = |letter| {
        Some(match letter {
            b'A'..=b'Z' => u32::from(letter - b'A'),
            b'a'..=b'z' => u32::from(letter - b'a') + 26,
            b'0'..=b'9' => u32::from(letter - b'0') + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    decoded(value, "base64", 6, digit)
}

fn both(of: &Value, part: &Value, name: &str, f: fn(&[u8], &[u8]) -> bool) -> ValR<Value> {
    held::named(&part.val);
    match (of.as_utf8_bytes(), part.as_utf8_bytes()) {
        (Some(of), Some(part)) => Ok(f(of, part).into()),
        (None, _) => Err(told(&format_args!("`{name:#}` needs a text, and gets {of:#}"))),
        (_, None) => Err(told(&format_args!("`{name:#}` looks for a text, and gets {part:#}"))),
    }
}

/// A text without a part of it; as in jq, what is no text stays as it is.
fn without(of: Value, part: &Value, strip: for<'a> fn(&'a [u8], &[u8]) -> Option<&'a [u8]>) -> Value {
    held::named(&part.val);
    let rest = match (&of.val, part.as_utf8_bytes()) {
        (Val::TStr(text), Some(part)) => strip(text, part).map(|rest| held::part(text, rest)),
        _ => None,
    };
    rest.map_or(of, |rest| Value::of(rest, 0))
}

fn implode(value: &Value) -> ValR<Value> {
    let Val::Arr(letters) = &value.val else {
        return Err(told(&format_args!("{value:#} cannot be imploded, because it is no list")));
    };
    steps(letters.len() as u64 / 16);
    let _lent = Lent::of(4 * letters.len() as u64);
    let letter = |letter: &Val| match letter.as_f64() {
        Some(number) => Ok(letter_of(number)),
        None => Err(told(&format_args!("{} is no number of a letter", short(letter)))),
    };
    Ok(Value::from(letters.iter().map(letter).collect::<Result<String, _>>()?))
}

/// The letter that a number names, if one does.
fn letter_of(number: f64) -> char {
    let letter = (number >= 0.0).then(|| char::from_u32(number as u32)).flatten();
    letter.unwrap_or(char::REPLACEMENT_CHARACTER)
}
