//! Marks of the items of lists.

/// The mark of an item of a list, and the rest of the line.
pub(super) fn marked(line: &str) -> (Option<&str>, &str) {
    let Some((first, rest)) = line.split_once(' ') else { return (None, line) };
    // A row of stars parts two sections.
    if !rest.contains(char::is_alphanumeric) {
        return (None, line);
    }
    match (is_bullet(first), is_number(first)) {
        (true, _) => (Some("-"), rest),
        (_, true) => (Some(first), rest),
        _ => (None, line),
    }
}

/// Whether a mark may also be a dash or a number within a text.
pub(super) fn is_unsure(line: &str) -> bool {
    line.starts_with(['–', '-', '*', '·', '(']) || line.starts_with(|letter: char| letter.is_ascii_alphanumeric())
}

fn is_bullet(first: &str) -> bool {
    let mut characters = first.chars();
    matches!(
        (characters.next(), characters.next()),
        (Some('•' | '‣' | '◦' | '▪' | '■' | '□' | '●' | '○' | '–' | '·' | '*' | '-' | '\u{E000}'..='\u{F8FF}'), None)
    )
}

/// `1.`, `12)`, `(3)`, `a)`, `(b)` and `iv)`.
fn is_number(first: &str) -> bool {
    let (is_open, number) = first.strip_prefix('(').map_or((false, first), |rest| (true, rest));
    let inner = number.trim_end_matches(['.', ')']);
    let end = &number[inner.len()..];
    let is_digits = (1..=3).contains(&inner.len()) && inner.bytes().all(|byte| byte.is_ascii_digit());
    let is_letter = inner.len() == 1 && inner.bytes().all(|byte| byte.is_ascii_lowercase());
    let is_roman = (1..=5).contains(&inner.len()) && inner.bytes().all(|byte| b"ivx".contains(&byte));
    match is_open {
        true => end == ")" && (is_digits || is_letter || is_roman),
        false => !end.is_empty() && is_digits || end == ")" && (is_letter || is_roman),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_from_words() {
        for (line, mark) in [
            ("• one", Some("-")),
            ("12. one", Some("12.")),
            ("a) one", Some("a)")),
            ("(b) one", Some("(b)")),
            ("iv) one", Some("iv)")),
            ("(2) one", Some("(2)")),
            ("* * *", None),
            ("A. Lovelace", None),
            ("(see) one", None),
            ("(mix) one", None),
            ("2026. one", None),
            ("x one", None),
        ] {
            assert_eq!(marked(line).0, mark, "{line}");
        }
    }
}
