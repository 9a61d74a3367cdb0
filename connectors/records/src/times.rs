//! Times of every unit and form, in seconds since 1970.

use jaq_json::Val;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::message::{number, text_of};

/// The largest number of seconds that is read as seconds (the year 5138); larger ones are milliseconds, microseconds or
/// nanoseconds.
const MOST_SECONDS: f64 = 1e11;

/// The time that a value is: a number of seconds, milliseconds, microseconds or nanoseconds, also as a text, or a date in
/// ISO 8601 or as mails have it. Without a zone, it is UTC.
pub(crate) fn seconds(value: &Val) -> Option<f64> {
    match value {
        Val::Num(_) => scaled(number(value)?),
        value => of_text(text_of(value)?.trim()),
    }
}

fn scaled(number: f64) -> Option<f64> {
    let units = [1.0, 1e3, 1e6, 1e9];
    units.into_iter().map(|unit| number / unit).find(|seconds| seconds.abs() < MOST_SECONDS)
}

fn of_text(text: &str) -> Option<f64> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || b".-+".contains(&byte)) {
        let is_number = text.bytes().filter(|byte| *byte == b'-').count() < 2;
        if let Some(number) = text.parse().ok().filter(|_| is_number) {
            return scaled(number);
        }
    }
    let of = |time: Timestamp| time.as_nanosecond() as f64 / 1e9;
    // `2026-03-05 11:23:40.5 UTC`, as databases write it.
    let text = text.strip_suffix(" UTC").map_or_else(|| text.to_owned(), |time| format!("{time}Z"));
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(of(time));
    }
    if let Ok(time) = text.parse::<DateTime>() {
        return civil(time);
    }
    jiff::fmt::rfc2822::parse(&text).ok().map(|time: Zoned| of(time.timestamp()))
}

fn civil(time: DateTime) -> Option<f64> {
    let zoned = time.to_zoned(TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_nanosecond() as f64 / 1e9)
}

/// The time that a text of this form is, as in `%d.%m.%Y %H:%M:%S`. Without a zone, it is UTC.
pub(crate) fn of_form(text: &str, form: &str) -> Result<f64, String> {
    let parsed = jiff::fmt::strtime::parse(form, text.trim()).map_err(|error| error.to_string())?;
    if let Ok(time) = parsed.to_timestamp() {
        return Ok(time.as_nanosecond() as f64 / 1e9);
    }
    let time = parsed.to_datetime().or_else(|_| parsed.to_date().map(DateTime::from));
    time.ok().and_then(civil).ok_or_else(|| format!("{text:?} is no time of the form {form:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_forms_are_recognised() {
        for (text, expected) in [
            ("1772709820.5", Some(1_772_709_820.5)),
            ("1772709820500", Some(1_772_709_820.5)),
            ("1772709820500000", Some(1_772_709_820.5)),
            ("1772709820500000000", Some(1_772_709_820.5)),
            ("2026-03-05T11:23:40.5Z", Some(1_772_709_820.5)),
            ("2026-03-05 11:23:40.500000 UTC", Some(1_772_709_820.5)),
            ("2026-03-05 11:23:40.5", Some(1_772_709_820.5)),
            ("2026-03-05T12:23:40.5+01:00", Some(1_772_709_820.5)),
            ("2026-03-05T12:23:40.5000000+0100", Some(1_772_709_820.5)),
            ("Thu, 05 Mar 2026 12:23:40 +0100", Some(1_772_709_820.0)),
            ("2026-03-05", Some(1_772_668_800.0)),
            ("soon", None),
            ("", None),
        ] {
            let whole = |time: Option<f64>| time.map(|time| (time * 1e3).round());
            assert_eq!(whole(seconds(&Val::from(text.to_owned()))), whole(expected), "{text}");
        }
        assert_eq!(of_form("06.03.2026 10:20:05", "%d.%m.%Y %H:%M:%S"), Ok(1_772_792_405.0));
        assert_eq!(of_form("1:56 pm on 8 May, 2023", "%I:%M %p on %d %B, %Y"), Ok(1_683_554_160.0));
        assert!(of_form("x", "%d").is_err());
    }
}
