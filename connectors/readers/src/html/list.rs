//! The marks of the items of a list.

use crate::docx::roman;

/// An open list.
pub(super) struct List {
    /// How its numbers are written; `None` for a list with signs.
    numbers: Option<char>,
    pub(super) next: i64,
    step: i64,
    /// Length of the last mark, with a blank.
    pub(super) width: usize,
}

impl List {
    pub(super) fn of<'e>(name: &str, attribute: impl Fn(&str) -> Option<&'e str>) -> Self {
        let kind = attribute("type").and_then(|kind| kind.chars().next()).unwrap_or('1');
        let is_reversed = attribute("reversed").is_some();
        Self {
            // Without its start, the end of a reversed list is not known here.
            numbers: (name == "ol" && !(is_reversed && attribute("start").is_none())).then_some(kind),
            next: attribute("start").and_then(|start| start.parse().ok()).unwrap_or(1),
            step: if is_reversed { -1 } else { 1 },
            width: 2,
        }
    }

    /// The mark of the next item.
    pub(super) fn mark(&mut self) -> String {
        let number = self.next;
        self.next = self.next.saturating_add(self.step);
        let letters = u32::try_from(number).ok().filter(|number| (1..=26).contains(number));
        let letter = letters.and_then(|number| char::from_digit(number + 9, 36));
        let mark = match (self.numbers, letter) {
            (None, _) => "- ".to_owned(),
            (Some('a'), Some(letter)) => format!("- {letter}. "),
            (Some('A'), Some(letter)) => format!("- {}. ", letter.to_ascii_uppercase()),
            (Some(kind @ ('i' | 'I')), _) if (1..5000).contains(&number) => {
                let roman = roman(number as u32);
                format!("- {}. ", if kind == 'I' { roman.to_uppercase() } else { roman })
            }
            _ => format!("{number}. "),
        };
        self.width = if mark.starts_with('-') { 2 } else { mark.len() };
        mark
    }
}
