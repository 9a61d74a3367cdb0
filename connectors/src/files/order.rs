//! The order in which files are read: the oldest first.

use std::cmp::Reverse;
use std::path::Path;

use chrono::DateTime;

use super::listing::Found;

/// The day of a file, its last change, what number a rotation gave it, and its name with numbers in order.
pub(super) type Key = (String, u64, Reverse<u64>, Vec<Part>);

/// A part of a name: texts are compared as texts, and numbers as numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Number(u128),
    Text(String),
}

/// What files are sorted by.
pub(super) fn key(file: &Found) -> Key {
    let day = day_of(&file.path).unwrap_or_else(|| {
        let time = DateTime::from_timestamp_nanos(i64::try_from(file.modified).unwrap_or(i64::MAX));
        time.format("%Y%m%d").to_string()
    });
    (day, file.modified, Reverse(rotation(&file.path)), parts(&file.path.to_string_lossy()))
}

/// The first day that a path names: `2026-03-05`, `2026/03/05`, `20260305`.
fn day_of(path: &Path) -> Option<String> {
    let path = path.to_string_lossy();
    let bytes = path.as_bytes();
    let digits = |at: usize, number: usize| {
        let part = bytes.get(at..at + number)?;
        part.iter().all(u8::is_ascii_digit).then(|| part.iter().fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0')))
    };
    (0..bytes.len()).find_map(|at| {
        let is_inside = at > 0 && bytes[at - 1].is_ascii_digit();
        let year = digits(at, 4).filter(|year| !is_inside && (1990..2200).contains(year))?;
        let between = |at: usize| usize::from(bytes.get(at).is_some_and(|byte| b"-/._".contains(byte)));
        let first = between(at + 4);
        let month = digits(at + 4 + first, 2).filter(|month| (1..=12).contains(month))?;
        let second = between(at + 6 + first);
        let day = digits(at + 6 + first + second, 2).filter(|day| (1..=31).contains(day))?;
        (first == second).then(|| format!("{year}{month:02}{day:02}"))
    })
}

/// The number behind the name of a rotated log: `turns.jsonl.2.gz` is older than `turns.jsonl.1`.
fn rotation(path: &Path) -> u64 {
    let plain = turnflow_records::decode::plain(path);
    let ending = plain.extension().map(|ending| ending.to_string_lossy().into_owned()).unwrap_or_default();
    ending.parse().ok().filter(|number| *number < 100_000).unwrap_or(0)
}

fn parts(name: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let is_number = rest.starts_with(|letter: char| letter.is_ascii_digit());
        let end = rest.find(|letter: char| letter.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        parts.push(match part.parse() {
            Ok(number) if is_number => Part::Number(number),
            _ => Part::Text(part.to_owned()),
        });
        rest = behind;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_comes_first() {
        let file = |path: &str, modified: u64| Found {
            path: path.into(),
            identity: (0, 0),
            created: None,
            size: 0,
            modified: modified * 1_000_000_000,
            matches: true,
        };
        // 2026-03-05 is 1772668800.
        let mut files = [
            file("turns.jsonl", 1_772_700_000),
            file("2026/03/04/b10.jsonl", 1_772_900_000),
            file("2026/03/04/b9.jsonl", 1_772_900_000),
            file("2026-03-03/a.jsonl", 1_772_900_000),
            file("turns.jsonl.1", 1_772_699_000),
            file("turns.jsonl.2.gz", 1_772_699_000),
            file("turns-20260302.jsonl", 1_772_900_000),
        ];
        files.sort_by_key(key);
        let sorted: Vec<&str> = files.iter().filter_map(|file| file.path.to_str()).collect();
        let expected = [
            "turns-20260302.jsonl",
            "2026-03-03/a.jsonl",
            "2026/03/04/b9.jsonl",
            "2026/03/04/b10.jsonl",
            "turns.jsonl.2.gz",
            "turns.jsonl.1",
            "turns.jsonl",
        ];
        assert_eq!(sorted, expected);
    }
}
