//! Dates and times of day as people write them, in texts whose numbers do not tell which one is the day.

use std::cmp::Reverse;

use jiff::civil::DateTime;

/// A date of three numbers, and a time of day.
pub(super) struct Written {
    numbers: [i16; 3],
    /// The first number is a year.
    is_year_first: bool,
    /// As in `3/7/26`: with slashes, without zeros, and with two digits of the year.
    is_short: bool,
    time: [i8; 3],
    has_half: bool,
}

/// What a time of day is followed or preceded by in the second half of the day, without dots, blanks and capitals.
const LATER: &[&str] = &[
    "pm",
    "p",
    "م",
    "مساءً",
    "مساء",
    "下午",
    "晚上",
    "中午",
    "오후",
    "午後",
    "μμ",
    "nachm",
    "abends",
    "em",
    "ip",
    "ιp",
    "dop",
    "odp",
    "du",
    "ch",
    "ب.ظ",
    "بظ",
    "অপরাহ্ণ",
    "अपराह्न",
    "หลังเที่ยง",
    "ög",
    "öö",
    "ös",
];

impl Written {
    /// Reads a date such as `07.03.26`, `3/7/2026` or `2026/03/07`, and a time such as `21:22`, `9:22:39 p. m.` or `下午9:22`.
    pub fn read(date: &str, clock: &str) -> Option<Self> {
        let date = plain(date);
        let parts: Vec<&str> =
            date.split(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
        let [first, second, third] = parts[..] else { return None };
        let number = |part: &str| part.parse::<i16>().ok();
        let clock = plain(clock).to_lowercase();
        let mut times = clock.split(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty());
        let mut time = [0; 3];
        for (at, place) in time.iter_mut().enumerate() {
            match times.next() {
                Some(part) => *place = part.parse::<i8>().ok()?,
                None if at == 2 => {}
                None => return None,
            }
        }
        let half: String =
            clock.chars().filter(|letter| !letter.is_ascii_digit() && !" .:،,".contains(*letter)).collect();
        if !half.is_empty() && time[0] <= 12 {
            time[0] = time[0] % 12 + if LATER.contains(&&*half) { 12 } else { 0 };
        }
        Some(Self {
            numbers: [number(first)?, number(second)?, number(third)?],
            is_year_first: first.len() == 4,
            is_short: date.contains('/') && third.len() == 2 && !first.starts_with('0') && !second.starts_with('0'),
            time,
            has_half: !half.is_empty(),
        })
    }

    /// The time, if the day is the number before the month.
    fn time(&self, is_day_first: bool) -> Option<DateTime> {
        let [first, second, third] = self.numbers;
        let (year, month, day) = match (self.is_year_first, is_day_first) {
            (true, _) => (first, second, third),
            (false, true) => (third, second, first),
            (false, false) => (third, first, second),
        };
        let year = if year < 100 { year + if year < 70 { 2000 } else { 1900 } } else { year };
        let [hour, minute, second] = self.time;
        DateTime::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?, hour, minute, second, 0).ok()
    }
}

/// The times of a text, in its order. Whether the day comes before the month is the same in all of it: so that each is a
/// date; or else so that time does not go back; or else, the month comes first only in short dates with halves of the day,
/// as in `3/7/26, 9:22 PM`.
pub(super) fn times(written: &[Option<Written>]) -> Vec<Option<DateTime>> {
    let all = |is_day_first: bool| -> Vec<Option<DateTime>> {
        written.iter().map(|written| written.as_ref()?.time(is_day_first)).collect()
    };
    let known = || written.iter().flatten().filter(|written| !written.is_year_first);
    let is_american = known().all(|written| written.is_short && written.has_half) && known().next().is_some();
    let fit = |times: &[Option<DateTime>]| {
        let found: Vec<&DateTime> = times.iter().flatten().collect();
        let back = found.windows(2).filter(|pair| pair[1] < pair[0]).count();
        (found.len(), Reverse(back))
    };
    let (day_first, month_first) = (all(true), all(false));
    match fit(&day_first).cmp(&fit(&month_first)) {
        std::cmp::Ordering::Less => month_first,
        std::cmp::Ordering::Equal if is_american => month_first,
        _ => day_first,
    }
}

/// A text with ASCII digits and blanks, without marks of the direction.
fn plain(text: &str) -> String {
    let one = |letter: char| match u32::from(letter) {
        0x200b..=0x200f | 0x202a..=0x202e | 0x2066..=0x2069 | 0xfeff => None,
        _ if letter.is_whitespace() => Some(' '),
        code => Some(digit(code).unwrap_or(letter)),
    };
    text.chars().filter_map(one).collect()
}

/// The ASCII digit of a decimal digit in another script.
fn digit(code: u32) -> Option<char> {
    const ZEROS: [u32; 9] = [0x660, 0x6f0, 0x966, 0x9e6, 0xa66, 0xae6, 0xbe6, 0xe50, 0xff10];
    ZEROS.iter().find_map(|zero| char::from_digit(code.checked_sub(*zero).filter(|digit| *digit < 10)?, 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(all: &[(&str, &str)]) -> Vec<String> {
        let written: Vec<_> = all.iter().map(|(date, clock)| Written::read(date, clock)).collect();
        times(&written).iter().map(|time| time.map_or_else(|| "?".to_owned(), |time| time.to_string())).collect()
    }

    #[test]
    fn the_whole_text_tells_which_number_is_the_day() {
        for (all, first) in [
            (&[("07.03.26", "21:22:39")][..], "2026-03-07T21:22:39"),
            (&[("14/10/2021", "3:34:09\u{202f}PM")], "2021-10-14T15:34:09"),
            (&[("28/3/2025", "9:29 p.\u{a0}m."), ("1/4/2025", "0:10 a. m.")], "2025-03-28T21:29:00"),
            (&[("\u{200f}٢٨\u{200f}/٣\u{200f}/٢٠٢٥", "٩:٢٩ م")], "2025-03-28T21:29:00"),
            (&[("2021/01/02", "13:05")], "2021-01-02T13:05:00"),
            (&[("2021. 1. 2.", "오후 1:05:22")], "2021-01-02T13:05:22"),
            (&[("3/24/14", "1:59:59 PM")], "2014-03-24T13:59:59"),
            // One date that only one order allows decides for all.
            (&[("3/4/14", "13:59"), ("3/24/14", "14:00")], "2014-03-04T13:59:00"),
            // Else, time does not go back.
            (&[("1/12/23", "10:00"), ("2/1/23", "10:00")], "2023-01-12T10:00:00"),
            (&[("1/12/22", "10:00"), ("2/1/23", "10:00")], "2022-12-01T10:00:00"),
            (&[("1/4/23", "7:02\u{202f}PM"), ("2/4/23", "10:35\u{202f}PM")], "2023-01-04T19:02:00"),
            (&[("01/04/23", "7:02 pm"), ("02/04/23", "10:35 pm")], "2023-04-01T19:02:00"),
            (&[("1/4/23", "12:02 AM")], "2023-01-04T00:02:00"),
            (&[("31/31/23", "12:02")], "?"),
            (&[("3/4", "12:02")], "?"),
        ] {
            assert_eq!(read(all)[0], first, "{all:?}");
        }
    }
}
