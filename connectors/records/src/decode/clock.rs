//! Times of day as people write them: `21:22`, `9:22:39 p. m.`, `下午9:22`, `kl. 21.22`, `13 h 05`, `9:22 PM CET`.

use super::halves::half;

/// A time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// Hour, minute and second. The hour may be 24.
    pub time: [i8; 3],
    /// Seconds before UTC, if a zone is written.
    pub offset: Option<i32>,
    /// Whether `AM` or `PM` is written, without dots.
    pub has_am_pm: bool,
    /// Whether it has a word in the letters of China, Japan or Korea.
    pub is_east: bool,
    /// Whether it has a word that is not known. Such a word does not change the time.
    pub has_unknown: bool,
}

/// Words beside a time that tell no half of the day.
const OTHER: &str = "\
    uhr um h hr hrs hs hour hours oclock at on min mins m s sec secs sek uur u om kl klo kello klokken klockan heure \
    heures à a ore ora alle alleore hora horas las alas ales as às ás la le o ob v ve na în la у в о об ч час часа \
    часов г год година годин мин сек с hod hodin godz godzina óra perc ur tim val valanda plkst saat saati dk sn \
    pukul jam pkl wib wita wit giờ phút giây lúc ώρα στις ست ساعت الساعة س سا שעה בשעה ב น นาฬิกา น 時 时 分 秒 點 点 點鐘 \
    点钟 分鐘 分钟 整 시 분 초 時頃";

/// Zones with one meaning, and their hours before UTC.
const ZONES: [(&str, i32); 22] = [
    ("z", 0),
    ("utc", 0),
    ("gmt", 0),
    ("ut", 0),
    ("wet", 0),
    ("west", 1),
    ("cet", 1),
    ("mez", 1),
    ("cest", 2),
    ("mesz", 2),
    ("eet", 2),
    ("eest", 3),
    ("msk", 3),
    ("trt", 3),
    ("est", -5),
    ("edt", -4),
    ("cdt", -5),
    ("mst", -7),
    ("mdt", -6),
    ("pst", -8),
    ("pdt", -7),
    ("jst", 9),
];

/// The seconds before UTC of a zone that a word names.
pub(crate) fn zone(word: &str) -> Option<i32> {
    let word = word.to_ascii_lowercase();
    ZONES.iter().find(|(name, _)| *name == word).map(|(_, hours)| hours * 3600)
}

/// Maximum length of a time, in bytes.
const LONGEST: usize = 200;
/// Maximum number of words that are one, as in `de la tarde`.
const WORDS: usize = 5;

/// Reads a time whose digits are those of ASCII, and whose blanks are blanks.
pub(super) fn read(written: &str) -> Option<Clock> {
    if written.len() > LONGEST {
        return None;
    }
    let written = written.to_lowercase();
    let (written, mut offset) = match offset_in(&written) {
        Some((before, offset)) => (before, Some(offset)),
        None => (&*written, None),
    };
    let is_digit = |letter: char| letter.is_ascii_digit();
    let numbers: Vec<&str> = written.split(|letter| !is_digit(letter)).filter(|part| !part.is_empty()).collect();
    let mut time = [0; 3];
    for (place, number) in time.iter_mut().zip(&numbers) {
        *place = number.parse::<i8>().ok()?;
    }
    let first = written.find(is_digit)?;
    let mut words = Words::default();
    words.take(&written[..first], true);
    written[first..].split(is_digit).for_each(|words_behind| words.take(words_behind, false));
    if numbers.len() < 2 && !words.has_hour {
        return None;
    }
    if let Some(half) = words.half.filter(|_| time[0] <= 12) {
        time[0] = half.hour(time[0]);
    }
    offset = offset.or(words.hours.filter(|_| offset.is_none()).map(|hours| hours * 3600));
    let is_east = written.chars().any(|letter| matches!(u32::from(letter), 0x3040..=0x9fff | 0xac00..=0xd7a3));
    let has_am_pm = words.has_am_pm;
    Some(Clock { time, offset, has_am_pm, is_east, has_unknown: words.has_unknown })
}

/// A time without `+01:00`, `-3` or `+0530` at its end, and the seconds that these are.
fn offset_in(written: &str) -> Option<(&str, i32)> {
    let (at, sign) = written.char_indices().rfind(|(_, letter)| matches!(letter, '+' | '-' | '\u{2212}'))?;
    let (before, behind) = (&written[..at], written[at + sign.len_utf8()..].trim());
    // `21-22` is no zone.
    before.split(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty()).nth(1)?;
    let digits = behind.replacen(':', "", 1);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) || digits.len() > 4 {
        return None;
    }
    let number = digits.parse::<i32>().ok()?;
    let (hours, minutes) = if digits.len() < 3 { (number, 0) } else { (number / 100, number % 100) };
    let seconds = hours * 3600 + minutes * 60;
    (hours <= 14 && minutes < 60).then_some((before, if sign == '+' { seconds } else { -seconds }))
}

/// What the words of a time say.
#[derive(Default)]
struct Words {
    half: Option<super::halves::Half>,
    hours: Option<i32>,
    has_am_pm: bool,
    has_hour: bool,
    has_unknown: bool,
}

impl Words {
    /// Takes words between numbers: the longest ones that are known, one after another.
    fn take(&mut self, text: &str, is_before: bool) {
        let words: Vec<&str> = text.split(' ').filter(|word| !bare(word).is_empty()).collect();
        let mut from = 0;
        while from < words.len() {
            let most = words.len().min(from + WORDS);
            let known = (from + 1..=most).rev().find(|to| {
                let is_only = *to - from == words.len();
                self.is_known(&words[from..*to].concat(), is_before, is_only)
            });
            self.has_unknown |= known.is_none();
            from = known.unwrap_or(from + 1);
        }
    }

    /// Takes a word, if it is known.
    fn is_known(&mut self, written: &str, is_before: bool, is_only: bool) -> bool {
        let word = bare(written);
        // Behind a time, `a` is the half: `9:22a`.
        if OTHER.split_whitespace().any(|other| other == word) && (is_before || word != "a") {
            self.has_hour |= !is_before;
            return true;
        }
        if let Some(half) = half(&word).filter(|_| is_meant(&word, written.contains('.'), is_before, is_only)) {
            self.has_hour = true;
            self.has_am_pm |= matches!(written, "am" | "pm");
            // A second one says the same, or makes no sense.
            self.has_unknown |= self.half.is_some_and(|known| known != half);
            self.half = self.half.or(Some(half));
            return true;
        }
        let zone = ZONES.iter().find(|(name, _)| *name == word);
        self.hours = self.hours.or(zone.map(|(_, hours)| *hours));
        zone.is_some()
    }
}

/// Whether a word that is known as a half of the day is meant so, and is no preposition or day of the week: `in der Nacht`,
/// `Sa 12:30`.
fn is_meant(word: &str, has_dot: bool, is_before: bool, is_only: bool) -> bool {
    let is_latin = |letter: char| u32::from(letter) < 0x250;
    match word {
        _ if word.chars().count() > 3 || !word.chars().all(is_latin) => true,
        "am" | "pm" | "öö" | "ös" => true,
        "de" | "du" => has_dot,
        _ if is_before => false,
        "in" => has_dot,
        "em" | "to" => is_only,
        _ => true,
    }
}

/// A word without what is no letter of it, such as dots, brackets and marks of shortened words.
fn bare(word: &str) -> String {
    let is_mark = |letter: char| {
        letter.is_ascii_punctuation() || "\u{60c}\u{2bc}\u{2019}\u{5f3}\u{5f4}\u{5be}\u{b4}\u{b7}".contains(letter)
    };
    word.chars().filter(|letter| !is_mark(*letter) && !letter.is_whitespace()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_all_languages() {
        for (written, expected) in [
            ("21:22:39", "21:22:39"),
            ("9:22 ÖÖ", "9:22"),
            ("9:22 ÖS", "21:22"),
            ("ÖS 9:22", "21:22"),
            ("9:22 dop.", "9:22"),
            ("9:22 odp.", "21:22"),
            ("9:22 pop.", "21:22"),
            ("9:22 pre podne", "9:22"),
            ("9:22 по подне", "21:22"),
            ("9:22 пре подне", "9:22"),
            ("9:22 לפנה״צ", "9:22"),
            ("9:22 אחה״צ", "21:22"),
            ("9:22 PM", "21:22"),
            ("9:22 অপরাহ্ণ", "21:22"),
            ("9:22 পূর্বাহ্ণ", "9:22"),
            ("9:22 ص", "9:22"),
            ("9:22 م", "21:22"),
            ("9:22 مساءً", "21:22"),
            ("9:22 अपराह्न", "21:22"),
            ("9:22 पूर्वाह्न", "9:22"),
            ("오전 12:05", "0:05"),
            ("오후 9시 22분", "21:22"),
            ("上午12:05", "0:05"),
            ("下午9時22分", "21:22"),
            ("中午11:30", "11:30"),
            ("中午12:30", "12:30"),
            ("中午1:30", "13:30"),
            ("凌晨12:30", "0:30"),
            ("晚上9:22", "21:22"),
            ("午前0:30", "0:30"),
            ("午後9:22", "21:22"),
            ("9:22 π.μ.", "9:22"),
            ("9:22 μ.μ.", "21:22"),
            ("9:22 SA", "9:22"),
            ("9:22 CH", "21:22"),
            ("9:22 p.\u{a0}m.", "21:22"),
            ("9:22 de la tarde", "21:22"),
            ("9:22 ip.", "21:22"),
            ("9:22 f.h.", "9:22"),
            ("du. 9:22", "21:22"),
            ("de. 9:22", "9:22"),
            ("9:22 сл.об.", "21:22"),
            ("9:22 пр.об.", "9:22"),
            ("9:22 дп", "9:22"),
            ("9:22 пп", "21:22"),
            ("9:22 pēcp.", "21:22"),
            ("9:22 popiet", "21:22"),
            ("9:22 e.h.", "21:22"),
            ("9:22 หลังเที่ยง", "21:22"),
            ("9:22 ب.ظ.", "21:22"),
            ("9:22 ق.ظ.", "9:22"),
            ("9:22 MD", "21:22"),
            ("9:22 PD", "9:22"),
            ("12 PM", "12:00"),
            ("12 AM", "0:00"),
            ("11 p.m.", "23:00"),
            ("24:00", "24:00"),
            ("9:22p", "21:22"),
            // What is no half does not change the hour.
            ("12:30 Uhr", "12:30"),
            ("0:30 Uhr", "0:30"),
            ("kl. 12:30", "12:30"),
            ("klo 12.30", "12:30"),
            ("12:30 h", "12:30"),
            ("12:30 uur", "12:30"),
            ("à 12:30", "12:30"),
            ("12 h 05 min 22 s", "12:05:22"),
            ("9 h 05", "9:05"),
            ("21 Uhr", "21:00"),
            ("12:30 ч.", "12:30"),
            ("12:30 น.", "12:30"),
            ("12:30Z", "12:30 +0"),
            ("12:30 UTC", "12:30 +0"),
            ("9:22 PM CET", "21:22 +3600"),
            ("12:30 GMT+1", "12:30 +3600"),
            ("9:22 PM UTC-03:30", "21:22 +-12600"),
            ("12:30+0530", "12:30 +19800"),
            ("Sa 12:30", "12:30 ?"),
            ("So. 9:22", "9:22 ?"),
            ("9:22 in der Nacht", "9:22 ?"),
            ("11:22 nachts", "23:22"),
            ("2:30 de la madrugada", "2:30"),
            ("9:22 em", "21:22"),
            ("em 9:22", "9:22 ?"),
            ("9:22 i.n.", "21:22"),
            ("9 часов вечера", "21:00"),
            ("9 вечера", "21:00"),
            ("7 утра", "7:00"),
            ("9:22 TO", "9:22"),
            ("9:22 TK", "21:22"),
            ("9:22 da noite", "21:22"),
            ("9:22 du soir", "21:22"),
            ("9:22 Nachmittag", "21:22"),
            ("9:22 tối", "21:22"),
            ("12:30 blurb", "12:30 ?"),
            ("blurb 12:30", "12:30 ?"),
            ("21:22 PM", "21:22"),
        ] {
            let clock = read(&written.replace('\u{a0}', " ")).unwrap_or_else(|| panic!("{written}"));
            let [hour, minute, second] = clock.time;
            let mut found = format!("{hour}:{minute:02}");
            if second > 0 {
                found += &format!(":{second:02}");
            }
            found += &clock.offset.map_or_else(String::new, |offset| format!(" +{offset}"));
            found += if clock.has_unknown { " ?" } else { "" };
            assert_eq!(found, expected, "{written}");
        }
        for written in ["", "12", "noon", "999:00", &"12:30 ".repeat(100)] {
            assert_eq!(read(written), None, "{written}");
        }
    }
}
