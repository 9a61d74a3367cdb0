//! Parses replies of language models.

use serde_json::{Map, Value as Json};

use crate::code::Code;

/// Chat-format tokens at the end of a turn. What small models write after them is no part of the reply.
pub(crate) const ENDS: &[&str] = &["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"];
/// Tokens before or after a text. Within it they are text: `<s>` is a tag of HTML too.
const EDGES: &[&str] = &["<|im_start|>assistant", "<|im_start|>", "<s>", "</s>", "<pad>"];

/// The text without chat-format tokens and surrounding white space.
pub fn clean(text: &str) -> String {
    let mut text = text.trim();
    while let Some(rest) = EDGES.iter().chain(ENDS).find_map(|token| text.strip_prefix(token)) {
        text = rest.trim_start();
    }
    if ENDS.iter().any(|end| text.contains(end)) {
        let code = Code::of(text);
        let places = ENDS.iter().flat_map(|end| text.match_indices(end)).map(|(at, _)| at);
        text = &text[..places.filter(|at| !code.holds(*at)).min().unwrap_or(text.len())];
    }
    loop {
        let shorter = text.trim_end();
        let bare = EDGES.iter().find_map(|token| shorter.strip_suffix(token)).unwrap_or(shorter);
        let is_closing = shorter.len() - bare.len() == "</s>".len() && shorter.ends_with("</s>");
        // `<s>old</s>` is struck text.
        if bare.len() == shorter.len() || is_closing && bare.contains("<s>") {
            return shorter.to_owned();
        }
        text = bare;
    }
}

/// The text without leading labels, ignoring letter case. Removes several labels in a row.
pub fn strip<'t>(text: &'t str, labels: &[impl AsRef<str>]) -> &'t str {
    let mut text = text.trim();
    loop {
        let shorter = labels.iter().map(AsRef::as_ref).find_map(|label: &str| {
            let head = text.get(..label.len())?;
            (!label.is_empty() && head.eq_ignore_ascii_case(label)).then(|| text[label.len()..].trim_start())
        });
        match shorter {
            Some(shorter) => text = shorter,
            None => return text,
        }
    }
}

/// The text without quotation marks, code marks or emphasis around the whole of it.
pub fn unquote(text: &str) -> &str {
    let mut text = text.trim();
    for (open, close) in [("\"", "\""), ("'", "'"), ("“", "”"), ("‘", "’"), ("**", "**"), ("`", "`"), ("*", "*")]
    {
        let inner = text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        // `"A" and "B"` is not one quotation.
        if let Some(inner) = inner.filter(|inner| !inner.contains(open) && !inner.is_empty()) {
            text = inner.trim();
        }
    }
    text
}

/// The first JSON object in a text, ignoring the text around it.
pub fn object(text: &str) -> Option<Map<String, Json>> {
    text.match_indices('{').find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Map<String, Json>>();
        values.next()?.ok()
    })
}

/// The whole numbers in a text, in order, without signs.
pub fn numbers(text: &str) -> Vec<u64> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    digits.filter_map(|digits| digits.parse().ok()).collect()
}

/// The first whole number in a text.
pub fn number(text: &str) -> Option<u64> {
    numbers(text).first().copied()
}

/// The items of a list, one on each line, without bullets and numbers.
pub fn lines(text: &str) -> Vec<&str> {
    let item = |line: &'_ str| -> usize {
        let trimmed = line.trim_start_matches(['-', '*', '•', ' ', '\t']);
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let rest = &trimmed[digits..];
        // "1. What" is numbered, "1.5 million" is not.
        let marked = rest.strip_prefix(['.', ')', ':']).is_some_and(|rest| rest.starts_with([' ', '\t']));
        let numbered = (1..=2).contains(&digits) && marked;
        line.len() - if numbered { rest.len() - 1 } else { trimmed.len() }
    };
    text.lines().map(|line| unquote(&line[item(line)..])).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_unpacked() {
        for (text, want) in [
            ("</s> Paris.<|im_end|>\n", "Paris."),
            ("<s> Paris.</s><pad><pad>", "Paris."),
            ("Paris.<|im_end|>\n<|im_start|>user\nAnd Rome?", "Paris."),
            ("Was <s>10</s>, and <pad> for padding", "Was <s>10</s>, and <pad> for padding"),
            ("Now 5, <s>10</s>", "Now 5, <s>10</s>"),
            ("End with `<|im_end|>`.", "End with `<|im_end|>`."),
        ] {
            assert_eq!(clean(text), want);
        }
        assert_eq!(strip("ANSWER: answer:  Paris", &["answer:"]), "Paris");
        for (text, want) in
            [("\"a b\"", "a b"), ("“a”", "a"), ("\"a\" or \"b\"", "\"a\" or \"b\""), ("**a**", "a"), ("\"", "\"")]
        {
            assert_eq!(unquote(text), want);
        }
        assert_eq!(number("Score: 4 of 5"), Some(4));
        assert_eq!(number("none"), None);
        assert_eq!(lines("1. What?\n\n- \"Who?\"\n2) 3 men\n1.5 m?"), ["What?", "Who?", "3 men", "1.5 m?"]);
    }

    #[test]
    fn objects_are_found_among_words() {
        let got = object("Sure {here}: ```json\n{\"class\": \"standalone\"}\n``` {}").unwrap();
        assert_eq!(got["class"], "standalone");
        assert_eq!(object("{\"class\": "), None);
        assert_eq!(object("[1]"), None);
    }
}
