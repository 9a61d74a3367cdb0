//! The signs of the fonts Symbol and Wingdings, which have no letters.

/// The sign with this number (in hexadecimal digits) of a font; `None` if it has no meaning that is known.
pub(super) fn symbol(font: &str, number: &str) -> Option<char> {
    let number = u32::from_str_radix(number, 16).ok()?;
    let code = if (0xF000..=0xF0FF).contains(&number) { number - 0xF000 } else { number };
    match font.to_ascii_lowercase().as_str() {
        "symbol" => of_symbol(code),
        "wingdings" => of_wingdings(code),
        _ => char::from_u32(number).filter(|sign| !('\u{E000}'..='\u{F8FF}').contains(sign)),
    }
}

fn of_symbol(code: u32) -> Option<char> {
    const CAPITALS: &str = "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ";
    const SMALL: &str = "αβχδεφγηιϕκλμνοπθρστυϖωξψζ";
    Some(match code {
        0x41..=0x5A => return CAPITALS.chars().nth(code as usize - 0x41),
        0x61..=0x7A => return SMALL.chars().nth(code as usize - 0x61),
        0x22 => '∀',
        0x24 => '∃',
        0x2D => '−',
        0xA3 => '≤',
        0xA5 => '∞',
        0xAB => '↔',
        0xAC => '←',
        0xAD => '↑',
        0xAE => '→',
        0xAF => '↓',
        0xB0 => '°',
        0xB1 => '±',
        0xB3 => '≥',
        0xB4 => '×',
        0xB5 => '∝',
        0xB7 => '•',
        0xB8 => '÷',
        0xB9 => '≠',
        0xBA => '≡',
        0xBB => '≈',
        0xC7 => '∩',
        0xC8 => '∪',
        0xCE => '∈',
        0xCF => '∉',
        0xD1 => '∇',
        0xD5 => '∏',
        0xD6 => '√',
        0xDE => '⇒',
        0xE5 => '∑',
        0xF2 => '∫',
        0x20..=0x7E => return char::from_u32(code),
        _ => return None,
    })
}

fn of_wingdings(code: u32) -> Option<char> {
    Some(match code {
        0x28 => '☎',
        0x2A => '✉',
        0x4A => '☺',
        0x6C => '●',
        0x6E => '■',
        0x6F | 0xA8 => '☐',
        0x76 => '❖',
        0xA7 => '▪',
        0xD8 => '➢',
        0xDF | 0xE7 => '←',
        0xE0 | 0xE8 => '→',
        0xFB | 0xFD => '✗',
        0xFC => '✓',
        0xFE => '☑',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_those_that_are_shown() {
        for (font, number, sign) in [
            ("Wingdings", "F0FC", Some('✓')),
            ("Symbol", "F061", Some('α')),
            ("Symbol", "57", Some('Ω')),
            ("Symbol", "F0AE", Some('→')),
            ("Arial", "20AC", Some('€')),
            ("Unknown", "F0FC", None),
            ("Wingdings", "zz", None),
        ] {
            assert_eq!(symbol(font, number), sign, "{font} {number}");
        }
    }
}
