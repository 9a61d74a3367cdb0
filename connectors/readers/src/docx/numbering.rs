//! The lists of a document: what stands before each item, as Word shows it (ECMA-376-1, 17.9).

use std::collections::HashMap;

use super::FORMAT;
use crate::ReadError;
use crate::xml::{Event, Xml, attribute, end_name, is_on, name};

/// Number of levels of a list.
pub(super) const LEVELS: usize = 9;
/// The greatest number that is written in letters or in Roman numerals.
const MOST_LETTERS: u32 = 5000;

/// A level of a list.
#[derive(Clone, Debug, Default)]
struct Level {
    /// How numbers are written, such as `lowerLetter`.
    format: String,
    /// What stands before an item: `%1.%2` is the numbers of the first two levels. Without it, the number and a point.
    text: Option<String>,
    start: u32,
    /// Whether the numbers of all levels are written in digits.
    is_legal: bool,
    /// The paragraph style whose paragraphs are at this level.
    style: Option<String>,
}

/// A kind of list, which lists may share.
#[derive(Clone, Debug, Default)]
struct Kind {
    levels: [Level; LEVELS],
    /// The style that names this kind, and the one that names another kind, which is used instead.
    named: Option<String>,
    instead: Option<String>,
}

/// A list: its kind, and where it starts anew.
#[derive(Clone, Debug, Default)]
struct List {
    kind: String,
    starts: HashMap<usize, u32>,
}

/// The lists of a document.
#[derive(Default)]
pub(super) struct Numbering {
    kinds: HashMap<String, Kind>,
    lists: HashMap<String, List>,
}

/// The numbers so far.
#[derive(Default)]
pub(super) struct Counters {
    /// The last number at each level, by kind of list.
    kinds: HashMap<String, [Option<u32>; LEVELS]>,
    /// Lists that have had an item: where such a list starts anew, it does so once.
    begun: HashMap<String, [bool; LEVELS]>,
}

/// What stands before an item.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A sign without a number.
    Bullet,
    /// A number with what is around it; may be empty.
    Number(String),
}

impl Numbering {
    pub(super) fn read(text: &str) -> Result<Self, ReadError> {
        let mut numbering = Self::default();
        let mut kind: Option<(String, Kind)> = None;
        let mut list: Option<(String, List)> = None;
        let mut level = 0;
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            let start = match event {
                Event::Open(start) => start,
                Event::Close(end) => {
                    match end_name(&end) {
                        "abstractNum" => numbering.kinds.extend(kind.take()),
                        "num" => numbering.lists.extend(list.take()),
                        _ => {}
                    }
                    continue;
                }
                Event::Text(_) => continue,
            };
            let value = || attribute(&start, "val").unwrap_or_default();
            let number = |name: &str| attribute(&start, name).and_then(|number| number.parse::<u32>().ok());
            match name(&start) {
                "abstractNum" => {
                    let levels = std::array::from_fn(|_| Level { start: 1, ..Level::default() });
                    kind = attribute(&start, "abstractNumId").map(|id| (id, Kind { levels, ..Kind::default() }));
                }
                "num" => list = attribute(&start, "numId").map(|id| (id, List::default())),
                "lvl" | "lvlOverride" => level = number("ilvl").unwrap_or_default().min(LEVELS as u32 - 1) as usize,
                element => {
                    if let Some((_, list)) = &mut list {
                        match element {
                            "abstractNumId" => list.kind = value(),
                            "startOverride" => drop(list.starts.insert(level, number("val").unwrap_or(1))),
                            _ => {}
                        }
                    } else if let Some((_, kind)) = &mut kind {
                        let at = &mut kind.levels[level];
                        match element {
                            "numFmt" => at.format = value(),
                            "lvlText" => at.text = Some(value()),
                            "start" => at.start = number("val").unwrap_or(1),
                            "isLgl" => at.is_legal = attribute(&start, "val").is_none_or(|on| is_on(Some(&on))),
                            "pStyle" => at.style = Some(value()),
                            "styleLink" => kind.named = Some(value()),
                            "numStyleLink" => kind.instead = Some(value()),
                            _ => {}
                        }
                    }
                }
            }
        }
        Ok(numbering)
    }

    fn kind(&self, list: &str) -> Option<(&str, &Kind)> {
        let id = &self.lists.get(list)?.kind;
        let kind = self.kinds.get(id)?;
        match &kind.instead {
            Some(style) => {
                let mut others = self.kinds.iter().filter(|(_, other)| other.named.as_ref() == Some(style));
                others.next().map(|(id, kind)| (id.as_str(), kind))
            }
            None => Some((id, kind)),
        }
    }

    /// The level of paragraphs with a style, if the list names it.
    pub(super) fn level_of(&self, list: &str, style: &str) -> Option<u32> {
        let (_, kind) = self.kind(list)?;
        let at = kind.levels.iter().position(|level| level.style.as_deref() == Some(style))?;
        Some(at as u32)
    }

    /// Counts an item at a level of a list, and says what stands before it. `None` if there is no such list.
    pub(super) fn next(&self, list: &str, level: usize, counters: &mut Counters) -> Option<Mark> {
        let (id, kind) = self.kind(list)?;
        let level = level.min(LEVELS - 1);
        let at = &kind.levels[level];
        let numbers = counters.kinds.entry(id.to_owned()).or_default();
        let begun = counters.begun.entry(list.to_owned()).or_default();
        let anew = self.lists.get(list).and_then(|list| list.starts.get(&level)).filter(|_| !begun[level]);
        begun[level] = true;
        numbers[level] = Some(match (anew, numbers[level]) {
            (Some(start), _) => *start,
            (None, Some(last)) => last.saturating_add(1),
            (None, None) => at.start,
        });
        numbers[level + 1..].fill(None);
        if matches!(at.format.as_str(), "bullet" | "") {
            return Some(Mark::Bullet);
        }
        let mut mark = String::new();
        let text = at.text.clone().unwrap_or_else(|| format!("%{}.", level + 1));
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            let digit = characters.peek().and_then(|digit| digit.to_digit(10)).filter(|digit| (1..=9).contains(digit));
            match (character, digit) {
                ('%', Some(digit)) => {
                    characters.next();
                    let one = digit as usize - 1;
                    let number = numbers[one].unwrap_or(kind.levels[one].start);
                    let format = if at.is_legal { "decimal" } else { &kind.levels[one].format };
                    mark.push_str(&written(number, format));
                }
                _ => mark.push(character),
            }
        }
        Some(Mark::Number(mark.split_whitespace().collect::<Vec<_>>().join(" ")))
    }
}

/// A number in a format of Word.
fn written(number: u32, format: &str) -> String {
    match format {
        "none" => String::new(),
        "lowerLetter" | "upperLetter" if (1..=MOST_LETTERS).contains(&number) => {
            // After z come aa, bb and so on.
            let letter = char::from(b'a' + ((number - 1) % 26) as u8);
            let letters = String::from_iter(std::iter::repeat_n(letter, (number as usize - 1) / 26 + 1));
            if format == "upperLetter" { letters.to_uppercase() } else { letters }
        }
        "lowerRoman" | "upperRoman" if (1..=MOST_LETTERS).contains(&number) => {
            let roman = roman(number);
            if format == "upperRoman" { roman.to_uppercase() } else { roman }
        }
        "decimalZero" => format!("{number:02}"),
        "ordinal" => format!("{number}."),
        _ => number.to_string(),
    }
}

/// A number in small Roman numerals.
pub(crate) fn roman(mut number: u32) -> String {
    const SIGNS: [(u32, &str); 13] = [
        (1000, "m"),
        (900, "cm"),
        (500, "d"),
        (400, "cd"),
        (100, "c"),
        (90, "xc"),
        (50, "l"),
        (40, "xl"),
        (10, "x"),
        (9, "ix"),
        (5, "v"),
        (4, "iv"),
        (1, "i"),
    ];
    let mut roman = String::new();
    for (value, sign) in SIGNS {
        while number >= value {
            roman.push_str(sign);
            number -= value;
        }
    }
    roman
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_word_does() {
        for (number, format, expected) in [
            (2, "decimal", "2"),
            (28, "lowerLetter", "bb"),
            (3, "upperLetter", "C"),
            (1994, "upperRoman", "MCMXCIV"),
            (4, "lowerRoman", "iv"),
            (7, "decimalZero", "07"),
            (0, "lowerLetter", "0"),
            (9_999_999, "lowerRoman", "9999999"),
        ] {
            assert_eq!(written(number, format), expected);
        }
    }

    #[test]
    fn levels_count_by_themselves_and_lists_of_a_kind_together() {
        let level = |at: usize, format: &str, text: &str, more: &str| {
            format!("<lvl ilvl='{at}'><start val='1'/><numFmt val='{format}'/><lvlText val='{text}'/>{more}</lvl>")
        };
        let text = format!(
            "<numbering><abstractNum abstractNumId='5'>{}{}{}</abstractNum><num numId='1'><abstractNumId val='5'/></num>\
             <num numId='2'><abstractNumId val='5'/></num><num numId='3'><abstractNumId val='5'/>\
             <lvlOverride ilvl='0'><startOverride val='4'/></lvlOverride></num></numbering>",
            level(0, "upperRoman", "Part %1", "<pStyle val='Part'/>"),
            level(1, "decimal", "%1.%2", "<isLgl/>"),
            level(2, "bullet", "·", ""),
        );
        let (numbering, mut counters) = (Numbering::read(&text).unwrap(), Counters::default());
        let mut next = |list: &str, level| match numbering.next(list, level, &mut counters) {
            Some(Mark::Number(number)) => number,
            Some(Mark::Bullet) => "-".to_owned(),
            None => "none".to_owned(),
        };
        let found =
            [("1", 0), ("1", 1), ("1", 1), ("1", 2), ("2", 0), ("2", 1), ("3", 0), ("3", 0), ("1", 0), ("9", 0)];
        let found = found.map(|(list, level)| next(list, level));
        assert_eq!(found, ["Part I", "1.1", "1.2", "-", "Part II", "2.1", "Part IV", "Part V", "Part VI", "none"]);
        assert_eq!(numbering.level_of("2", "Part"), Some(0));
        assert_eq!(numbering.level_of("2", "Other"), None);
    }
}
