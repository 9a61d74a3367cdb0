//! Dates and times of day as people write them, in texts whose numbers do not tell which one is the day.

use std::cmp::Reverse;

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};

use super::clock::{self, Clock};

/// A date of three numbers, and a time of day.
pub(super) struct Written {
    numbers: [i16; 3],
    /// The first number is a year.
    is_year_first: bool,
    /// As in `3/7/26`: with slashes, without zeros, and with two digits of the year.
    is_short: bool,
    /// Whether other orders than day, month and year are common with what is between the numbers.
    is_open: bool,
    /// As in `26. 3. 27.`: in Korea and Hungary the year comes first then, and the day in countries beside these.
    ends_in_dot: bool,
    clock: Clock,
}

/// Which numbers of a date are the year, the month and the day, if the year is not the first one for sure.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Day,
    Month,
    Year,
}

/// Years of other calendars, which no chat has in ours: those of Iran, and of the Hijra.
const OTHERS: std::ops::Range<i16> = 1300..1500;
/// Years of Thailand's calendar, which begins so many years before ours.
const THAI: std::ops::Range<i16> = 2500..2700;
const BEFORE: i16 = 543;

impl Written {
    /// Reads a date such as `07.03.26`, `3/7/2026` or `2026/03/07`, and a time such as `21:22`, `9:22:39 p. m.` or `下午9:22`.
    pub fn read(date: &str, clock: &str) -> Option<Self> {
        let date = plain(date);
        let parts: Vec<&str> =
            date.split(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
        let [first, second, third] = parts[..] else { return None };
        let number = |part: &str| part.parse::<i16>().ok();
        let ends_in_dot = third.len() == 2 && date.trim_end().ends_with('.');
        let clock = clock::read(&plain(clock))?;
        Some(Self {
            numbers: [number(first)?, number(second)?, number(third)?],
            is_year_first: first.len() == 4,
            is_short: date.contains('/') && third.len() == 2 && !first.starts_with('0') && !second.starts_with('0'),
            is_open: first.len() < 3 && (!date.contains('.') || ends_in_dot && !clock.is_east),
            ends_in_dot,
            clock,
        })
    }

    /// Whether it has a word that is not known.
    pub fn has_unknown(&self) -> bool {
        self.clock.has_unknown
    }

    fn time(&self, order: Order) -> Option<DateTime> {
        let [first, second, third] = self.numbers;
        let (year, month, day) = match order {
            _ if self.is_year_first => (first, second, third),
            Order::Day => (third, second, first),
            Order::Month => (third, first, second),
            Order::Year => (first, second, third),
        };
        let year = match year {
            0..70 => year + 2000,
            70..100 => year + 1900,
            _ if OTHERS.contains(&year) => return None,
            _ if THAI.contains(&year) => year - BEFORE,
            _ => year,
        };
        let [hour, minute, second] = self.clock.time;
        let (month, day) = (i8::try_from(month).ok()?, i8::try_from(day).ok()?);
        if hour == 24 && minute == 0 && second == 0 {
            return DateTime::new(year, month, day, 0, 0, 0, 0).ok()?.tomorrow().ok();
        }
        DateTime::new(year, month, day, hour, minute, second, 0).ok()
    }

    /// The time as a text: with a zone, if one is written or given.
    pub fn told(&self, time: DateTime, zone: Option<&TimeZone>) -> String {
        let offset = self.clock.offset.and_then(|seconds| Offset::from_seconds(seconds).ok());
        let zoned = match (offset, zone) {
            (Some(offset), _) => time.to_zoned(TimeZone::fixed(offset)).ok(),
            (None, Some(zone)) => time.to_zoned(zone.clone()).ok(),
            (None, None) => None,
        };
        zoned.map_or_else(|| time.to_string(), |time| time.timestamp().display_with_offset(time.offset()).to_string())
    }
}

/// The times of the messages of a text.
pub(super) struct Times {
    /// Each, in their order; none for those that cannot be read.
    pub times: Vec<Option<DateTime>>,
    /// Number of those that could be another day: nothing in the text tells which number is the day.
    pub unsure: u64,
}

/// The times of a text, in its order. Whether the day comes before the month is the same in all of it: so that each is a
/// date; or else so that time does not go back; or else, the year comes first beside words of China, Japan and Korea, the
/// month in short dates with halves of the day, as in `3/7/26, 9:22 PM`, and the day in all others.
pub(super) fn times(written: &[Option<Written>]) -> Times {
    let all = |order: Order| -> Vec<Option<DateTime>> {
        written.iter().map(|written| written.as_ref()?.time(order)).collect()
    };
    let known: Vec<&Written> = written.iter().flatten().filter(|written| !written.is_year_first).collect();
    let is_american = known.iter().all(|written| written.is_short && written.clock.has_am_pm);
    let is_east = known.iter().any(|written| written.clock.is_east);
    let has_year = is_east || known.iter().any(|written| written.ends_in_dot || written.numbers[0] > 31);
    let mut orders = vec![Order::Day, Order::Month];
    if is_american {
        orders.reverse();
    }
    if has_year {
        orders.insert(if is_east { 0 } else { 2 }, Order::Year);
    }
    let fit = |times: &[Option<DateTime>]| {
        let found: Vec<&DateTime> = times.iter().flatten().collect();
        let back = found.windows(2).filter(|pair| pair[1] < pair[0]).count();
        (found.len(), Reverse(back))
    };
    let mut readings = orders.into_iter().map(|order| {
        let times = all(order);
        (fit(&times), times)
    });
    let Some(mut best) = readings.next() else { return Times { times: Vec::new(), unsure: 0 } };
    let mut unsure = 0;
    for reading in readings {
        match reading.0.cmp(&best.0) {
            std::cmp::Ordering::Greater => (best, unsure) = (reading, 0),
            std::cmp::Ordering::Equal => {
                let differs = best.1.iter().zip(&reading.1).zip(written).filter(|((one, other), written)| {
                    one != other && written.as_ref().is_some_and(|written| written.is_open)
                });
                unsure = unsure.max(differs.count() as u64);
            }
            std::cmp::Ordering::Less => {}
        }
    }
    Times { times: best.1, unsure }
}

/// A text with ASCII digits and blanks, without marks of the direction.
fn plain(text: &str) -> String {
    let one = |letter: char| match u32::from(letter) {
        0x200b..=0x200f | 0x202a..=0x202e | 0x2066..=0x2069 | 0x61c | 0xfeff => None,
        _ if letter.is_whitespace() => Some(' '),
        code => Some(digit(code).unwrap_or(letter)),
    };
    text.chars().filter_map(one).collect()
}

/// The ASCII digit of a decimal digit in another script.
fn digit(code: u32) -> Option<char> {
    const ZEROS: [u32; 19] = [
        0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0, 0xf20,
        0x1040, 0x17e0, 0xff10,
    ];
    ZEROS.iter().find_map(|zero| char::from_digit(code.checked_sub(*zero).filter(|digit| *digit < 10)?, 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(all: &[(&str, &str)]) -> (Vec<String>, u64) {
        let written: Vec<_> = all.iter().map(|(date, clock)| Written::read(date, clock)).collect();
        let Times { times, unsure } = times(&written);
        let told = |(time, written): (&Option<DateTime>, &Option<Written>)| {
            let time = time.zip(written.as_ref()).map(|(time, written)| written.told(time, None));
            time.unwrap_or_else(|| "?".to_owned())
        };
        (times.iter().zip(&written).map(told).collect(), unsure)
    }

    #[test]
    fn the_whole_text_tells_which_number_is_the_day() {
        for (all, first, unsure) in [
            (&[("07.03.26", "21:22:39")][..], "2026-03-07T21:22:39", 0),
            (&[("14/10/2021", "3:34:09\u{202f}PM")], "2021-10-14T15:34:09", 0),
            (&[("28/3/2025", "9:29 p.\u{a0}m."), ("1/4/2025", "0:10 a. m.")], "2025-03-28T21:29:00", 0),
            (&[("\u{200f}٢٨\u{200f}/٣\u{200f}/٢٠٢٥", "٩:٢٩ م")], "2025-03-28T21:29:00", 0),
            (&[("2021/01/02", "13:05")], "2021-01-02T13:05:00", 0),
            (&[("2021. 1. 2.", "오후 1:05:22")], "2021-01-02T13:05:22", 0),
            (&[("2021年1月2日", "下午1:05")], "2021-01-02T13:05:00", 0),
            (&[("21. 1. 12.", "오후 1:05")], "2021-01-12T13:05:00", 0),
            (&[("26. 3. 27.", "13:05")], "2027-03-26T13:05:00", 1),
            (&[("26. 03. 27.", "13:05"), ("26. 03. 28.", "9:05"), ("26. 04. 01.", "9:05")], "2026-03-27T13:05:00", 0),
            (&[("27. 3. 26.", "13:05"), ("28. 3. 26.", "9:05"), ("1. 4. 26.", "9:05")], "2026-03-27T13:05:00", 0),
            (&[("98/12/31", "13:05"), ("99/1/2", "13:05")], "1998-12-31T13:05:00", 0),
            (&[("3/24/14", "1:59:59 PM")], "2014-03-24T13:59:59", 0),
            // One date that only one order allows decides for all.
            (&[("3/4/14", "13:59"), ("3/24/14", "14:00")], "2014-03-04T13:59:00", 0),
            // Else, time does not go back.
            (&[("1/12/23", "10:00"), ("2/1/23", "10:00")], "2023-01-12T10:00:00", 0),
            (&[("1/12/22", "10:00"), ("2/1/23", "10:00")], "2022-12-01T10:00:00", 2),
            (&[("1/4/23", "7:02\u{202f}PM"), ("2/4/23", "10:35\u{202f}PM")], "2023-01-04T19:02:00", 2),
            (&[("01/04/23", "7:02 pm"), ("02/04/23", "10:35 pm")], "2023-04-01T19:02:00", 2),
            (&[("2/4/23", "7:02 p. m."), ("3/4/23", "10:35 p. m.")], "2023-04-02T19:02:00", 2),
            (&[("1/4/23", "12:02 AM")], "2023-01-04T00:02:00", 1),
            (&[("31.12.25", "24:00")], "2026-01-01T00:00:00", 0),
            (&[("07.03.26", "9:22 PM CET")], "2026-03-07T21:22:00+01:00", 0),
            (&[("07.03.26", "9:22Z")], "2026-03-07T09:22:00+00:00", 0),
            (&[("2/1/2564", "13:05 น.")], "2021-01-02T13:05:00", 1),
            // Another calendar.
            (&[("۱۴۰۰/۱/۲", "۱۳:۰۵")], "?", 0),
            (&[("31/31/23", "12:02")], "?", 0),
            (&[("3/4", "12:02")], "?", 0),
            (&[("31.12.25", "24:01")], "?", 0),
        ] {
            let (found, sure) = read(all);
            assert_eq!((&*found[0], sure), (first, unsure), "{all:?}");
        }
    }
}
