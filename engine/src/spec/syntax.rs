//! Turns RON syntax errors into plain diagnostics.
//!
//! The parser reports the position where it stopped, which is often far from the error.
//! So brackets and quotes are counted first.

use ron::Error;

use super::lexical::skip_blank;
use super::{Diagnostic, Span};

/// The diagnostic for a parser error in the text that begins at byte `base`.
pub(super) fn diagnose(source: usize, text: &str, base: usize, error: &ron::error::SpannedError) -> Diagnostic {
    let offset = |position: ron::error::Position| {
        let line_start =
            text[base..].split_inclusive('\n').take(position.line.saturating_sub(1)).map(str::len).sum::<usize>();
        let column = text[base + line_start..]
            .char_indices()
            .nth(position.col.saturating_sub(1))
            .map_or(text.len() - base - line_start, |(at, _)| at);
        base + line_start + column
    };
    let end = offset(error.span.end);
    let start = offset(error.span.start).min(end);
    // The parser may have stopped at the whitespace before the unexpected token.
    let start = if start == end { text.len() - skip_blank(&text[start..]).len() } else { start };
    let start = if start == text.len() { end } else { start };
    let span = Span { source, start, end: end.max(start + width(text, start)).min(text.len().max(start)) };
    if skip_blank(text).is_empty() {
        return Diagnostic::new("syntax", span, "no value found").label("expected a value");
    }
    if matches!(error.code, Error::UnclosedBlockComment) {
        let start = text[..span.end].rfind("/*").unwrap_or(span.start);
        let span = Span { start, end: (start + 2).min(text.len()), ..span };
        return Diagnostic::new("syntax", span, "unterminated comment").label("no `*/` ends it");
    }
    unbalanced(source, text).unwrap_or_else(|| worded(text, span, &error.code))
}

/// Length in bytes of the character at `at`; 1 at the end of the text.
fn width(text: &str, at: usize) -> usize {
    text.get(at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8)
}

fn worded(text: &str, span: Span, error: &Error) -> Diagnostic {
    let at = |message: &str| Diagnostic::new("syntax", span, message);
    match error {
        Error::ExpectedComma => {
            let before = text[..span.start].trim_end();
            let word = last_word(before);
            let is_field = word.starts_with(|c: char| c == '_' || c.is_alphabetic());
            if is_field && innermost(before) == Some('(') {
                return at(&format!("expected `:` after `{word}`")).label("expected `:` before this");
            }
            at("expected a comma, or the closing bracket").label("expected `,` before this")
        }
        Error::ExpectedMapColon => at("expected `:` and a value after the key").label("expected `:` before this"),
        Error::TrailingCharacters => at("unexpected text after the end").label("expected the end of the file"),
        Error::Eof => at("unexpected end of the file").label("expected more"),
        Error::ExpectedChar => {
            let rest = &text[span.start..];
            let length = rest.char_indices().skip(1).find(|(_, c)| "'\n".contains(*c)).map_or(1, |(at, _)| at);
            let closed = usize::from(rest[length..].starts_with('\''));
            let span = Span { end: span.start + length + closed, ..span };
            Diagnostic::new("syntax", span, "text must be in double quotes").label("expected `\"` around this")
        }
        Error::ExpectedIdentifier => at("expected a field's name").label("expected a name"),
        Error::InvalidEscape(_) => {
            let slash = text[..span.end].rfind('\\').unwrap_or(span.start);
            let after = slash + 1 + width(text, slash + 1);
            let span = Span { start: slash, end: after.min(text.len()), ..span };
            Diagnostic::new("syntax", span, "unknown escape in a string")
                .label("no such escape")
                .help("a `\\` is written `\\\\`; in a path, `/` works on every system")
        }
        Error::UnexpectedChar(c) if ")]},:".contains(*c) => {
            at("expected a value").label("expected a value before this")
        }
        Error::UnexpectedChar(c) => at(&format!("`{c}` is not expected here")).label("expected a value"),
        // Only map keys are typed at this stage.
        Error::InvalidValueForType { .. } => {
            let before = text[..span.start].trim_end();
            let span = match last_word(before).len() {
                0 => span,
                length => Span { start: before.len() - length, end: before.len(), ..span },
            };
            Diagnostic::new("syntax", span, "map keys must be in quotes").label("expected a name in quotes")
        }
        Error::ExceededRecursionLimit => {
            at("brackets are nested too deeply").label("deeper than any pipeline").help("the limit is 128 levels")
        }
        other => {
            let words = other.to_string();
            let mut letters = words.chars();
            let lower: String = letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
            at(&format!("this is not RON: {lower}")).label("here")
        }
    }
}

/// The name or number at the end of the text; empty if there is none.
fn last_word(text: &str) -> &str {
    &text[text.trim_end_matches(|c: char| c == '_' || c.is_alphanumeric()).len()..]
}

/// The result of a scan over brackets, strings and comments.
struct Scan {
    /// Brackets still open at the end of the text, with their positions.
    open: Vec<(char, usize)>,
    /// The first closing bracket that does not match the innermost open one.
    wrong: Option<(char, usize)>,
    /// Start of the unterminated string. The first string that spans lines is the likely one.
    string: Option<usize>,
}

fn closing(open: char) -> char {
    match open {
        '(' => ')',
        '[' => ']',
        _ => '}',
    }
}

fn innermost(text: &str) -> Option<char> {
    scan(text).open.last().map(|(open, _)| *open)
}

fn scan(text: &str) -> Scan {
    let mut found = Scan { open: Vec::new(), wrong: None, string: None };
    let mut long_string = None;
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        if rest.starts_with("//") || rest.starts_with("/*") {
            at = text.len() - skip_blank(rest).len();
            continue;
        }
        let length = match c {
            '"' | 'r' => match string(rest) {
                Some(Some(length)) => {
                    if rest[..length].contains('\n') {
                        long_string.get_or_insert(at);
                    }
                    length
                }
                Some(None) => {
                    found.string = Some(long_string.unwrap_or(at));
                    return found;
                }
                None => 1,
            },
            '\'' => character(rest),
            '(' | '[' | '{' => {
                found.open.push((c, at));
                1
            }
            ')' | ']' | '}' => {
                if found.open.last().is_none_or(|(open, _)| closing(*open) != c) {
                    found.wrong = Some((c, at));
                    return found;
                }
                found.open.pop();
                1
            }
            // A name may end in `r` before a quote, so whole names are skipped.
            _ if c == '_' || c.is_alphanumeric() => {
                rest.find(|c: char| !(c == '_' || c.is_alphanumeric())).unwrap_or(rest.len())
            }
            _ => c.len_utf8(),
        };
        at += length;
    }
    found
}

/// Length in bytes of the string at the start: `Some(None)` if it is unterminated, `None` if there is no string.
fn string(text: &str) -> Option<Option<usize>> {
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let body = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(body.find(&end).map(|at| text.len() - body.len() + at + end.len()));
    }
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return Some(Some(at + 1)),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    Some(None)
}

/// Length in bytes of the character literal at the start; 1 if there is none.
fn character(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    let (Some((_, first)), Some((at, second))) = (letters.next(), letters.next()) else { return 1 };
    match (first, second, letters.next()) {
        ('\\', _, Some((end, '\''))) => end + 1,
        (_, '\'', _) if first != '\'' => at + 1,
        _ => 1,
    }
}

fn unbalanced(source: usize, text: &str) -> Option<Diagnostic> {
    let found = scan(text);
    let span = |at: usize| Span { source, start: at, end: at + 1 };
    if let Some(at) = found.string {
        let line = text[at..].find('\n').map_or(text.len(), |length| at + length);
        let span = Span { source, start: at, end: line };
        return Some(Diagnostic::new("syntax", span, "unterminated string").label("no `\"` ends it on this line"));
    }
    match (found.wrong, found.open.last().copied()) {
        (Some((close, at)), Some((open, opened))) => Some(
            Diagnostic::new("syntax", span(at), format!("unclosed `{open}`"))
                .label(format!("expected `{}` before this `{close}`", closing(open)))
                .related(span(opened), "opened here"),
        ),
        (Some((close, at)), None) => {
            Some(Diagnostic::new("syntax", span(at), format!("`{close}` has no opening bracket")).label("unmatched"))
        }
        (None, Some((open, opened))) => Some(
            Diagnostic::new("syntax", span(opened), format!("unclosed `{open}`"))
                .label(format!("opened here, but never closed by `{}`", closing(open))),
        ),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_and_quotes_are_counted_outside_of_strings_and_comments() {
        for (text, want) in [
            ("P(a: \"(\", b: ')', c: [1, {\"}\": 2}]) // (", None),
            ("P(a: r#\"(\"\"#, b: '\\'', /* ( */ c: \"\\\"(\")", None),
            ("P(a: [1, 2)", Some("unclosed `[`")),
            ("P(a: 1", Some("unclosed `(`")),
            ("P(a: 1))", Some("`)` has no opening bracket")),
            ("P(a: \"x, b: 1)", Some("unterminated string")),
            ("P(a: \"x,\n b: \"y\")", Some("unterminated string")),
            ("P(a: r\"x)", Some("unterminated string")),
            ("P(a: 'é', b: 'xy')", None),
        ] {
            assert_eq!(unbalanced(0, text).map(|found| found.message), want.map(str::to_owned), "{text}");
        }
    }
}
