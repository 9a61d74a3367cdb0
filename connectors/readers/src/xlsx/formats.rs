//! Formats of numbers: which numbers are dates, times or percentages, and how they are written.

use std::collections::HashMap;

use chrono::{Days, NaiveDate};

use super::FORMAT;
use crate::ReadError;
use crate::xml::{Event, Xml, attribute, end_name, name};

/// What a number is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Plain,
    Percent,
    Date,
    Time,
    DateTime,
    /// A number of hours, minutes and seconds, which may be more than a day.
    Duration,
}

/// The kind of each cell style.
#[derive(Default)]
pub(super) struct Formats(Vec<Kind>);

impl Formats {
    pub(super) fn read(text: &str) -> Result<Self, ReadError> {
        let mut codes = HashMap::new();
        let mut kinds = Vec::new();
        let mut is_inside = false;
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            match event {
                Event::Open(start) => match name(&start) {
                    "numFmt" => {
                        let code = attribute(&start, "formatCode").unwrap_or_default();
                        codes.insert(attribute(&start, "numFmtId").unwrap_or_default(), kind(&code));
                    }
                    "cellXfs" => is_inside = true,
                    "xf" if is_inside => {
                        let id = attribute(&start, "numFmtId").unwrap_or_default();
                        kinds.push(codes.get(&id).copied().unwrap_or_else(|| built_in(&id)));
                    }
                    _ => {}
                },
                Event::Close(end) if end_name(&end) == "cellXfs" => is_inside = false,
                Event::Close(_) | Event::Text(_) => {}
            }
        }
        Ok(Self(kinds))
    }

    /// A number as it is written in a cell of this style.
    pub(super) fn written(&self, number: &str, style: usize, since_1904: bool) -> String {
        let kind = self.0.get(style).copied().unwrap_or_default();
        let Some(value) = number.trim().parse::<f64>().ok().filter(|value| value.is_finite()) else {
            return number.to_owned();
        };
        match kind {
            Kind::Plain => rounded(value),
            Kind::Percent => format!("{}%", rounded(value * 100.0)),
            kind => moment(value, kind, since_1904).unwrap_or_else(|| rounded(value)),
        }
    }
}

/// A number with the 15 digits that programs show, which hides errors of binary fractions.
fn rounded(value: f64) -> String {
    let rounded = format!("{value:.14e}").parse().unwrap_or(value);
    // Without an exponent, a number may have hundreds of digits.
    if rounded == 0.0 || (1e-9..1e21).contains(&f64::abs(rounded)) {
        format!("{rounded}")
    } else {
        format!("{rounded:e}")
    }
}

/// A date or time in the form of ISO 8601; `None` if the number is none.
fn moment(value: f64, kind: Kind, since_1904: bool) -> Option<String> {
    const LAST_DAY: f64 = 2_958_466.0;
    const DAY: u64 = 86_400;
    if !(0.0..LAST_DAY).contains(&value) {
        return None;
    }
    let seconds = (value * DAY as f64).round() as u64;
    let (days, second) = (seconds / DAY, seconds % DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    if kind == Kind::Duration {
        return Some(format!("{}:{minute:02}:{second:02}", days * 24 + hour));
    }
    let time = format!("{hour:02}:{minute:02}:{second:02}");
    if kind == Kind::Time {
        return Some(time);
    }
    let epoch = if since_1904 {
        NaiveDate::from_ymd_opt(1904, 1, 1)
    } else {
        // Programs count a 29th of February 1900.
        NaiveDate::from_ymd_opt(1899, 12, if days < 60 { 31 } else { 30 })
    };
    let date = epoch?.checked_add_days(Days::new(days))?;
    // The debug form of a date is ISO 8601.
    Some(if kind == Kind::Date { format!("{date:?}") } else { format!("{date:?} {time}") })
}

/// The kind of a built-in format.
fn built_in(id: &str) -> Kind {
    match id.parse::<u32>() {
        Ok(9 | 10) => Kind::Percent,
        Ok(14..=17 | 27..=31 | 36 | 50..=54 | 57 | 58) => Kind::Date,
        Ok(18..=21 | 32..=35 | 45 | 47 | 55 | 56) => Kind::Time,
        Ok(22) => Kind::DateTime,
        Ok(46) => Kind::Duration,
        _ => Kind::Plain,
    }
}

/// The kind of a format, by the letters in the part for positive numbers.
fn kind(code: &str) -> Kind {
    let (mut has_date, mut has_time, mut has_month, mut is_percent) = (false, false, false, false);
    let mut characters = code.chars();
    while let Some(character) = characters.next() {
        match character.to_ascii_lowercase() {
            ';' => break,
            '"' => drop(characters.by_ref().find(|character| *character == '"')),
            '\\' | '_' | '*' => drop(characters.next()),
            '[' => {
                let inside: String = characters.by_ref().take_while(|character| *character != ']').collect();
                let inside = inside.to_ascii_lowercase();
                if !inside.is_empty() && ["h", "m", "s"].iter().any(|unit| inside.replace(unit, "").is_empty()) {
                    return Kind::Duration;
                }
            }
            'y' | 'd' => has_date = true,
            'h' | 's' => has_time = true,
            'm' => has_month = true,
            '%' => is_percent = true,
            // `General`, which has letters of its own.
            'g' if code.to_ascii_lowercase().contains("general") => return Kind::Plain,
            _ => {}
        }
    }
    match (has_date, has_time) {
        (true, true) => Kind::DateTime,
        (true, false) => Kind::Date,
        (false, true) => Kind::Time,
        (false, false) if has_month => Kind::Date,
        (false, false) if is_percent => Kind::Percent,
        (false, false) => Kind::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_tell_dates_from_numbers() {
        for (code, expected) in [
            ("General", Kind::Plain),
            ("0.00E+00", Kind::Plain),
            ("#,##0.00 \"days\"", Kind::Plain),
            ("0.0%", Kind::Percent),
            ("yyyy-mm-dd", Kind::Date),
            ("mmm", Kind::Date),
            ("[$-409]d\\-mmm;@", Kind::Date),
            ("h:mm AM/PM", Kind::Time),
            ("dd/mm/yyyy hh:mm", Kind::DateTime),
            ("[hh]:mm:ss", Kind::Duration),
            ("[Red]0", Kind::Plain),
        ] {
            assert_eq!(kind(code), expected, "{code}");
        }
    }

    #[test]
    fn numbers_are_written_as_programs_show_them() {
        let kinds = [Kind::Plain, Kind::Percent, Kind::Date, Kind::Time, Kind::DateTime, Kind::Duration];
        let formats = Formats(kinds.to_vec());
        for (number, style, written) in [
            ("0.30000000000000004", 0, "0.3"),
            ("1E+300", 0, "1e300"),
            ("12345678", 9, "12345678"),
            ("0.256", 1, "25.6%"),
            ("1", 2, "1900-01-01"),
            ("61", 2, "1900-03-01"),
            ("45943", 2, "2025-10-13"),
            ("0.5", 3, "12:00:00"),
            ("45943.541", 4, "2025-10-13 12:59:02"),
            ("1.5", 5, "36:00:00"),
            ("-1", 2, "-1"),
            ("1e300", 4, "1e300"),
            ("NaN", 0, "NaN"),
        ] {
            assert_eq!(formats.written(number, style, false), written, "{number}");
        }
        assert_eq!(formats.written("0", 2, true), "1904-01-01");
    }
}
