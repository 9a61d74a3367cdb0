//! Citations in an answer: `[1]`, `[1, 3]`, `[2][4]`.

/// Result of checking an answer's citations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cited {
    /// The text without citations of passages that do not exist.
    pub text: String,
    /// Numbers of the cited passages, counted from 1, without duplicates, ascending.
    pub passages: Vec<usize>,
    /// Cited numbers that match no passage, in order of occurrence.
    pub removed: Vec<String>,
}

/// Checks an answer's citations against passages numbered 1 to `passages`.
pub fn check(text: &str, passages: usize) -> Cited {
    let mut cited = Cited { text: String::with_capacity(text.len()), ..Cited::default() };
    let mut rest = text;
    while let Some(open) = rest.find('[') {
        cited.text.push_str(&rest[..open]);
        let Some(numbers) = numbers(&rest[open..]) else {
            cited.text.push('[');
            rest = &rest[open + 1..];
            continue;
        };
        rest = &rest[open + numbers.len() + 2..];
        let mut kept: Vec<&str> = Vec::new();
        for number in numbers.split([',', ';', ' ']).filter(|number| !number.is_empty()) {
            match number.parse::<usize>() {
                Ok(at) if (1..=passages).contains(&at) => {
                    kept.push(number);
                    cited.passages.push(at);
                }
                _ => cited.removed.push(number.to_owned()),
            }
        }
        if kept.is_empty() {
            // The space before the removed citation is removed too.
            cited.text.truncate(cited.text.trim_end_matches(' ').len());
        } else {
            cited.text.push_str(&format!("[{}]", kept.join(", ")));
        }
    }
    cited.text.push_str(rest);
    cited.passages.sort_unstable();
    cited.passages.dedup();
    cited
}

/// The text without any citations.
pub fn without(text: &str) -> String {
    check(text, 0).text
}

/// The content of the brackets that the text starts with, if it consists of numbers.
fn numbers(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('[')?;
    // Stops at the first character that is not part of a number list: the text may be nothing but brackets.
    let end = inner.find(|c: char| !(c.is_ascii_digit() || ",; ".contains(c)))?;
    let (inner, rest) = inner.split_at(end);
    let only = rest.starts_with(']') && inner.len() < 40;
    (only && inner.chars().any(|c| c.is_ascii_digit())).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_cited() {
        for (text, want, passages, removed) in [
            ("Paris [1].", "Paris [1].", vec![1], vec![]),
            ("Paris [7]. Rome [2][1, 9].", "Paris. Rome [2][1].", vec![1, 2], vec!["7", "9"]),
            ("a[0] = [x] [ ] [1", "a = [x] [ ] [1", vec![], vec!["0"]),
            ("[99999999999999999999]", "", vec![], vec!["99999999999999999999"]),
            ("[é] [1;2]", "[é] [1, 2]", vec![1, 2], vec![]),
        ] {
            let cited = check(text, 2);
            assert_eq!((cited.text.as_str(), cited.passages), (want, passages), "{text}");
            assert_eq!(cited.removed, removed);
        }
        assert_eq!(without("Paris [1], Rome [2]."), "Paris, Rome.");
        // This would be quadratic if each bracket searched for its closing bracket.
        let brackets = "[".repeat(1_000_000);
        assert_eq!(check(&brackets, 2).text, brackets);
    }
}
