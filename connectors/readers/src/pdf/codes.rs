//! What the codes of letters say.

use pdfium_render::prelude::PdfPageTextChar;

/// A code that is no character.
const NONE: char = '\u{FFFF}';

/// What a letter of a page is to its reader.
pub(super) enum Kind {
    /// A letter that is drawn.
    Letter,
    /// A blank between words.
    Blank,
    /// The end of a line, which pdfium guesses.
    End,
    /// Nothing.
    Nothing,
}

/// What a character of a page is, and whether it stands for a letter of which the file does not say which it is.
pub(super) fn kind(char: &PdfPageTextChar<'_>, character: char) -> (Kind, bool) {
    match character {
        '\0' | '\u{FFFE}' => (Kind::Nothing, false),
        NONE => (Kind::Nothing, true),
        // pdfium's mark of a hyphen at the end of a line; or a code of the font's own.
        '\u{2}' if char.is_hyphen().unwrap_or_default() => (Kind::Letter, false),
        '\r' | '\n' if char.is_generated().unwrap_or(true) => (Kind::End, false),
        '\t' | '\r' | '\n' => (Kind::Blank, is_drawn(char)),
        // Some fonts have this code for their blank.
        '\u{2}' => (Kind::Blank, false),
        _ if character.is_control() => (Kind::Blank, is_drawn(char)),
        _ if character.is_whitespace() => (Kind::Blank, false),
        // A font may have a code of its own for the blank.
        _ if is_private(character) && !is_drawn(char) => (Kind::Blank, false),
        _ => (Kind::Letter, is_private(character)),
    }
}

/// Whether a character means something in one font only.
fn is_private(character: char) -> bool {
    matches!(character, '\u{FFFD}' | '\u{E000}'..='\u{F8FF}' | '\u{F0000}'..)
}

/// Whether there is something to see.
fn is_drawn(char: &PdfPageTextChar<'_>) -> bool {
    char.tight_bounds().is_ok_and(|bounds| bounds.height().value > 0.0 && bounds.width().value > 0.0)
}

/// A character of a number; pdfium may give the two halves of UTF-16 one after the other, and the bytes of UTF-8 of a font
/// whose codes are UTF-8.
pub(super) fn whole(number: u32, half: &mut Option<u32>) -> Option<char> {
    match (number, half.take()) {
        (0xD800..=0xDBFF, _) => {
            *half = Some(number);
            None
        }
        (0xDC00..=0xDFFF, Some(high)) => char::from_u32(0x10000 + ((high - 0xD800) << 10) + (number - 0xDC00)),
        _ => Some(char::from_u32(number).or_else(|| of_bytes(number)).unwrap_or(NONE)),
    }
}

/// The character whose bytes in UTF-8, three or four, are those of a number.
fn of_bytes(number: u32) -> Option<char> {
    let bytes = number.to_be_bytes();
    let from = bytes.iter().position(|byte| *byte != 0)?;
    let mut characters = std::str::from_utf8(&bytes[from..]).ok()?.chars();
    characters.next().filter(|_| characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_characters() {
        let mut half = None;
        for (number, character) in [
            (0x41, Some('A')),
            (0xD835, None),
            (0xDC4E, Some('𝑎')),
            (0xE3_80_81, Some('、')),
            (0xF0_A8_A7_80, Some('\u{289C0}')),
            (0xFF_FF_FF_FF, Some(NONE)),
            (0xDC4E, Some(NONE)),
        ] {
            assert_eq!(whole(number, &mut half), character, "{number:x}");
        }
    }
}
