//! Citations in an answer: `[1]`, `[1, 3]`, `[2][4]`.

/// What became of an answer's citations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cited {
    /// The text without citations of what is not there.
    pub text: String,
    /// The passages that are cited, from 1, each once, ascending.
    pub passages: Vec<usize>,
    /// The numbers that no passage has, in order.
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
            // The blank before it goes with it.
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

/// The text without any citation.
pub fn without(text: &str) -> String {
    check(text, 0).text
}

/// What stands between the brackets that a text begins with, if it is numbers.
fn numbers(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('[')?;
    // No further than numbers go: a text may be nothing but brackets.
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
        // As long as it would take to look for the end of each.
        let brackets = "[".repeat(1_000_000);
        assert_eq!(check(&brackets, 2).text, brackets);
    }
}
