//! Finds where a value begins in RON text: skips whitespace and nested comments, measures identifiers.

/// Length in bytes of the identifier at the start; 0 if there is none.
pub(super) fn identifier(text: &str) -> usize {
    let is_start = |c: char| c == '_' || c.is_alphabetic();
    if !text.starts_with(is_start) {
        return 0;
    }
    text.find(|c: char| !(c == '_' || c.is_alphanumeric())).unwrap_or(text.len())
}

/// Removes whitespace and comments before a value, and whitespace after it.
pub(super) fn trim(text: &str) -> &str {
    skip_blank(text).trim_end()
}

pub(super) fn skip_blank(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix("//") {
            text = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if text.starts_with("/*") {
            text = block_comment(text);
        } else {
            return text;
        }
    }
}

/// RON's block comments nest.
fn block_comment(text: &str) -> &str {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return &text[at..];
        }
    }
    ""
}
