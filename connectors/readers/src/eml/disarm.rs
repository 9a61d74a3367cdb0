//! Disarms messages that are inside messages in a coded form. The parser decodes them, and copies what is in them with a
//! recursion that is as deep as messages are inside each other. No part that is a message may be coded, so what says
//! that one is coded is struck out; then the parser reads it without recursion.

use std::borrow::Cow;

const CODING: &[u8] = b"content-transfer-encoding";
const TYPE: &[u8] = b"content-type";

/// The message without codings of parts that may be messages.
pub(super) fn disarm(bytes: &[u8]) -> Cow<'_, [u8]> {
    let lower = bytes.to_ascii_lowercase();
    // Parts of a digest are messages if they do not say what they are.
    let is_digest = find(&lower, b"digest").is_some();
    if !is_digest && !names_message(&lower) {
        return Cow::Borrowed(bytes);
    }
    let mut disarmed = bytes.to_vec();
    // Headers of one part are never on both sides of an empty line.
    for range in blocks(&lower) {
        let block = &lower[range.clone()];
        let is_untyped = is_digest && find(block, TYPE).is_none();
        if !is_untyped && !names_message(block) {
            continue;
        }
        let mut at = range.start;
        while let Some(found) = find(&lower[at..range.end], CODING) {
            at += found + CODING.len();
            disarmed[at - CODING.len()..at].fill(b'x');
        }
    }
    Cow::Owned(disarmed)
}

/// The ranges between empty lines.
fn blocks(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut blocks, mut start, mut at) = (Vec::new(), 0, 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if matches!(line, b"\n" | b"\r\n") {
            blocks.push(start..at);
            start = at + line.len();
        }
        at += line.len();
    }
    blocks.push(start..at);
    blocks
}

/// Whether a text may have a type such as `message/rfc822`, perhaps with blanks or a comment within it.
fn names_message(text: &[u8]) -> bool {
    const MESSAGE: &[u8] = b"message";
    let mut rest = text;
    while let Some(at) = find(rest, MESSAGE) {
        rest = &rest[at + MESSAGE.len()..];
        let next = rest.iter().find(|byte| !byte.is_ascii_whitespace());
        if matches!(next, Some(b'/' | b'(')) {
            return true;
        }
    }
    false
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    let first = *word.first()?;
    let mut at = 0;
    loop {
        at += text.get(at..)?.iter().position(|byte| *byte == first)?;
        if text[at..].starts_with(word) {
            return Some(at);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disarmed(text: &str) -> String {
        String::from_utf8(disarm(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn only_codings_of_messages_are_struck_out() {
        let plain = "Message-ID: x\nSubject: a message\nContent-Transfer-Encoding: base64\n\nTWVzc2FnZQ==\n";
        assert_eq!(disarmed(plain), plain);
        let struck = "x".repeat(CODING.len());
        for kind in ["message/rfc822", "Message (x)/rfc822", "message /global"] {
            let part = format!(
                "{plain}--b\nContent-Transfer-Encoding: base64\r\nContent-Type: {kind}\r\n\r\nContent-Transfer-Encoding: x\n"
            );
            let expected =
                format!("{plain}--b\n{struck}: base64\r\nContent-Type: {kind}\r\n\r\nContent-Transfer-Encoding: x\n");
            assert_eq!(disarmed(&part), expected);
        }
        let digest = "Content-Type: multipart/digest; boundary=b\n\n--b\nContent-transfer-encoding: base64\n\nx\n";
        assert_eq!(disarmed(digest), digest.replace("Content-transfer-encoding", &struck));
    }
}
