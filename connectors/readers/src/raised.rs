//! Raised and lowered digits are kept apart from the digits beside them: ten to the fifth is not one hundred and five.

/// Where a piece of text stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Height {
    #[default]
    Line,
    Raised,
    Lowered,
}

impl Height {
    /// The height with a name of the Office formats: `superscript`, `subscript` or `baseline`.
    pub(super) fn named(name: &str) -> Self {
        match name {
            "superscript" => Self::Raised,
            "subscript" => Self::Lowered,
            _ => Self::Line,
        }
    }
}

/// What comes between a text and a piece at another height that follows it. A digit beside a letter needs nothing.
pub(super) fn between(before: &str, was: Height, now: Height, piece: &str) -> &'static str {
    let ends_with_digit = before.ends_with(|last: char| last.is_numeric());
    let sign = piece.strip_prefix(['-', '−', '+']);
    let starts_with_digit = sign.unwrap_or(piece).starts_with(|first: char| first.is_numeric());
    match now {
        _ if was == now || !ends_with_digit || !starts_with_digit => "",
        Height::Raised => "^",
        Height::Lowered => "_",
        Height::Line if sign.is_some() => "",
        Height::Line => " ",
    }
}

/// A text of pieces at different heights.
#[derive(Clone, Debug, Default)]
pub(super) struct Heights {
    last: Height,
}

impl Heights {
    /// Appends a piece to a text.
    pub(super) fn push(&mut self, text: &mut String, height: Height, piece: &str) {
        if !piece.is_empty() {
            text.push_str(between(text, self.last, height, piece));
            text.push_str(piece);
            self.last = height;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_beside_digits_are_parted() {
        use Height::{Line, Lowered, Raised};
        for (pieces, expected) in [
            (&[("10", Line), ("5", Raised), (" litres", Line)][..], "10^5 litres"),
            (&[("10", Line), ("-7", Raised), ("8", Line)], "10^-7 8"),
            (&[("H", Line), ("2", Lowered), ("O", Line)], "H2O"),
            (&[("1", Line), ("st", Raised), (" of 2", Line)], "1st of 2"),
            (&[("log 10", Line), ("2", Lowered)], "log 10_2"),
            (&[("1990", Line), ("3", Raised), (", 4", Line)], "1990^3, 4"),
            (&[("10", Line), ("1", Raised), ("2", Raised)], "10^12"),
        ] {
            let (mut text, mut heights) = (String::new(), Heights::default());
            pieces.iter().for_each(|(piece, height)| heights.push(&mut text, *height, piece));
            assert_eq!(text, expected);
        }
    }
}
