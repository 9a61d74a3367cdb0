//! Values as JSON, as jq writes them.

use std::fmt::{self, Write};

use jaq_json::{Num, Val};

/// A value in JSON.
pub(super) struct Json<'a>(pub &'a Val);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        json(f, self.0)
    }
}

/// Bytes of a text that somebody may see in a message.
const SEEN: usize = 400;

/// A value in JSON for a message that shows its beginning: of a long text, the rest is not even looked at.
pub(crate) struct Shortly<'a>(pub &'a Val);

impl fmt::Display for Shortly<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        written(f, self.0, SEEN)
    }
}

/// Writes a value in JSON.
pub(super) fn json(f: &mut fmt::Formatter<'_>, value: &Val) -> fmt::Result {
    written(f, value, usize::MAX)
}

/// Writes a value in JSON, of each text at most so many bytes.
fn written(f: &mut fmt::Formatter<'_>, value: &Val, longest: usize) -> fmt::Result {
    match value {
        Val::TStr(text) if text.len() > longest => {
            fmt::Display::fmt(&Val::from(String::from_utf8_lossy(&text[..longest]).into_owned()), f)
        }
        Val::Num(Num::Float(number)) => float(f, *number),
        Val::Arr(values) => {
            f.write_char('[')?;
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    f.write_char(',')?;
                }
                written(f, value, longest)?;
            }
            f.write_char(']')
        }
        Val::Obj(fields) => {
            f.write_char('{')?;
            for (at, (name, value)) in fields.iter().enumerate() {
                if at > 0 {
                    f.write_char(',')?;
                }
                written(f, name, longest)?;
                f.write_char(':')?;
                written(f, value, longest)?;
            }
            f.write_char('}')
        }
        other => fmt::Display::fmt(other, f),
    }
}

/// The largest number, which stands for those without an end.
pub(super) fn finite(number: f64) -> f64 {
    number.clamp(f64::MIN, f64::MAX)
}

/// Writes a number: the fewest digits that tell it from others, and an exponent if it is far from them.
fn float(f: &mut fmt::Formatter<'_>, number: f64) -> fmt::Result {
    if number.is_nan() {
        return f.write_str("null");
    }
    let shown = format!("{:e}", finite(number));
    let Some((digits, exponent)) = shown.split_once('e') else { return f.write_str(&shown) };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let count = digits.bytes().filter(u8::is_ascii_digit).count() as i32;
    if exponent < -4 || exponent >= count + 15 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return write!(f, "{digits}e{sign}{:02}", exponent.abs());
    }
    write!(f, "{}", finite(number))
}
