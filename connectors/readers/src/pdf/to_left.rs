//! The order of words in lines of Hebrew and Arabic: from the order in which they look to that in which they are read.

use super::shape::{Bounds, Segment, Word};

/// Two words so close are one, as a share of the letters' size.
const CLOSE: f32 = 0.22;

/// Whether a letter is of a script that is written to the left.
pub(super) fn is_to_left(letter: char) -> bool {
    matches!(letter, '\u{590}'..='\u{8FF}' | '\u{FB1D}'..='\u{FDFF}' | '\u{FE70}'..='\u{FEFC}')
}

/// The text of segments beside each other.
pub(super) fn text_of(row: &[Segment]) -> String {
    let texts: Vec<String> = words_of(row).into_iter().map(|word| word.text).collect();
    texts.join(" ")
}

/// The words of segments beside each other, as they are read.
pub(super) fn words_of(row: &[Segment]) -> Vec<Word> {
    let mut words: Vec<Word> = row.iter().flat_map(|segment| &segment.words).cloned().collect();
    let has_such = words.iter().any(|word| word.text.contains(is_to_left));
    if has_such && are_to_left(words.iter().map(|word| &word.text)) {
        order(&mut words);
    }
    words
}

/// Whether most letters of texts are of such a script.
pub(super) fn are_to_left<'a>(texts: impl Iterator<Item = &'a String>) -> bool {
    let (mut to_left, mut to_right) = (0, 0);
    for letter in texts.flat_map(|text| text.chars()).filter(|letter| letter.is_alphabetic()) {
        *if is_to_left(letter) { &mut to_left } else { &mut to_right } += 1;
    }
    to_left > to_right
}

/// A word with letters that are written to the left. `places` is where each of its characters is. Some files have such
/// words as they look, from left to right; the numbers in them are always so.
pub(super) fn read_word(letters: Vec<char>, places: &[f32]) -> String {
    if letters.iter().any(|letter| letter.is_alphabetic() && !is_to_left(*letter)) {
        return read_mixed(letters, places);
    }
    let letters: Vec<(char, f32)> = letters.into_iter().zip(places.iter().copied()).collect();
    let mut parts: Vec<(f32, String)> = Vec::new();
    for part in letters.chunk_by(|a, b| is_to_left(a.0) == is_to_left(b.0)) {
        let mut part = part.to_vec();
        let rightmost = part.iter().map(|(_, place)| *place).fold(f32::MIN, f32::max);
        let text = |part: &[(char, f32)]| part.iter().map(|(letter, _)| *letter).collect::<String>();
        if is_to_left(part[0].0) {
            if part[0].1 < part[part.len() - 1].1 {
                part.reverse();
            }
            parts.push((rightmost, text(&part)));
        } else {
            part.sort_by(|a, b| a.1.total_cmp(&b.1));
            parts.push((rightmost, read_part(&text(&part))));
        }
    }
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    parts.into_iter().map(|(_, text)| text).collect()
}

/// A word of letters in both directions.
fn read_mixed(mut letters: Vec<char>, places: &[f32]) -> String {
    let first = letters.iter().position(|letter| is_to_left(*letter)).unwrap_or_default();
    let last = letters.iter().rposition(|letter| is_to_left(*letter)).unwrap_or_default();
    if places.get(first) < places.get(last) {
        letters[first..=last].reverse();
    }
    letters.into_iter().collect()
}

/// What has no such letters, but is among them: numbers and Latin words stay, and all around them is turned.
fn read_part(seen: &str) -> String {
    let letters: Vec<char> = seen.chars().rev().collect();
    let (Some(first), Some(last)) = (
        letters.iter().position(|letter| letter.is_alphanumeric()),
        letters.iter().rposition(|letter| letter.is_alphanumeric()),
    ) else {
        return letters.into_iter().map(mirrored).collect();
    };
    // A sign of a number stays on its side.
    let mut from = first;
    let mut to = last;
    if letters.get(to + 1).is_some_and(|sign| matches!(sign, '%' | '$' | '€' | '₪' | '+')) && to + 2 == letters.len()
    {
        to += 1;
    }
    if from == 1 && matches!(letters[0], '%' | '°') {
        from = 0;
    }
    let around = |letters: &[char]| letters.iter().copied().map(mirrored).collect::<String>();
    let within: String = letters[from..=to].iter().rev().collect();
    around(&letters[..from]) + &within + &around(&letters[to + 1..])
}

fn mirrored(letter: char) -> char {
    match letter {
        '(' => ')',
        ')' => '(',
        '[' => ']',
        ']' => '[',
        '{' => '}',
        '}' => '{',
        '<' => '>',
        '>' => '<',
        '«' => '»',
        '»' => '«',
        letter => letter,
    }
}

/// Puts the words of a line that is written to the left into the order in which they are read.
fn order(words: &mut Vec<Word>) {
    words.sort_by(|a, b| b.bounds.x0.total_cmp(&a.bounds.x0));
    let mut read: Vec<Word> = Vec::new();
    for mut word in words.drain(..) {
        let has_such = word.text.contains(is_to_left);
        if !has_such && !word.text.contains(char::is_alphabetic) {
            word.text = read_part(&word.text);
        }
        // A bracket may be apart from what it is around, because they are written in other directions.
        match read.last_mut() {
            Some(last) if is_close(last, &word) => {
                last.text.push_str(&word.text);
                last.bounds = last.bounds.with(word.bounds);
            }
            _ => read.push(word),
        }
        let Some(last) = read.last_mut() else { continue };
        if last.text.ends_with(['(', '[']) && last.text.chars().count() > 1 {
            let bounds = Bounds { x1: last.bounds.x0 + 0.1 * last.bounds.height(), ..last.bounds };
            let bracket = last.text.pop().into_iter().collect();
            read.push(Word { text: bracket, bounds });
        }
    }
    // Words of Latin letters, with numbers after them, are read to the right.
    let is_latin = |word: &Word| word.text.contains(char::is_alphabetic) && !word.text.contains(is_to_left);
    let is_number = |word: &Word| !word.text.contains(char::is_alphabetic) && word.text.contains(char::is_numeric);
    let mut at = 0;
    while at < read.len() {
        let from = at;
        if is_number(&read[at]) && read.get(at + 1).is_some_and(is_latin) {
            at += 1;
        }
        while read.get(at).is_some_and(is_latin)
            || at > from && read.get(at).is_some_and(is_number) && read.get(at + 1).is_some_and(is_latin)
        {
            at += 1;
        }
        read[from..at].reverse();
        at = at.max(from + 1);
    }
    *words = read;
}

/// Whether a word follows another one without a blank, and one of them is a bracket or a mark.
fn is_close(last: &Word, next: &Word) -> bool {
    let is_mark = |word: &Word| !word.text.contains(char::is_alphanumeric);
    let gap = last.bounds.x0 - next.bounds.x1;
    (is_mark(last) || is_mark(next)) && gap.abs() < CLOSE * next.bounds.height()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_from_the_right() {
        // As they look, from the left: each character is one wide.
        for (seen, read) in [
            (".22:15 העש", "שעה 22:15."),
            ("pu", "pu"),
            ("םיילבחו תרכומ Supplies Ltd תיזכרמה תרבח", "חברת המרכזית Supplies Ltd מוכרת וחבליים"),
            ("תצק Boeing 747 סוטמה", "המטוס Boeing 747 קצת"),
            ("דויצו (מ\"מ 12) םילבח", "חבלים (12 מ\"מ) וציוד"),
            ("בכרל 120-ו", "ו-120 לרכב"),
        ] {
            let mut words = Vec::new();
            let mut at = 0.0;
            for word in seen.split(' ') {
                let letters: Vec<char> = word.chars().collect();
                let places: Vec<f32> = (0..letters.len()).map(|number| at + number as f32).collect();
                let bounds = Bounds { x0: at, x1: at + letters.len() as f32, y0: 0.0, y1: 1.0 };
                at += letters.len() as f32 + 1.0;
                let text = if letters.iter().any(|letter| is_to_left(*letter)) {
                    read_word(letters, &places)
                } else {
                    word.to_owned()
                };
                words.push(Word { text, bounds });
            }
            assert_eq!(text_of(&[Segment::of(words, 1.0, false, 0)]), read);
        }
    }
}
