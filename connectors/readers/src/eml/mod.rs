//! Reads `.eml` files: the subject is the title, and the text is that of the message; HTML is converted by the reader of
//! HTML. Attachments are not read; the metadata has their names.

mod calendar;
mod disarm;

use std::collections::HashSet;

use mail_parser::{Address, Message, MessageParser, MessagePart, MimeHeaders, PartType};
use turnflow_engine::document::Markup;

use super::fields::{Fields, tidy};
use super::{Content, ReadError, html};

/// Maximum number of lines that start with `--`, as those between the parts of a message do.
const MOST_BOUNDARIES: usize = 20_000;
/// Maximum number of lines that look like headers, and of bytes in them and in the lines that continue them.
const MOST_HEADERS: usize = 500_000;
const MOST_HEADER_BYTES: usize = 8 << 20;

/// Reads a message.
///
/// # Errors
///
/// The file is no message, or has too many parts or headers, or its HTML would take the parser too long.
pub fn read(bytes: &[u8]) -> Result<Content, ReadError> {
    check(bytes)?;
    let bytes = &*disarm::disarm(bytes);
    let broken = || ReadError::Broken { format: "eml", reason: "it has no headers".to_owned() };
    let parsed = Parsed(MessageParser::default().parse(bytes).ok_or_else(broken)?);
    let message = &parsed.0;
    let (mut text, markup) = body(message)?;
    if text.is_empty() {
        if is_encrypted(message) {
            return Err(ReadError::Encrypted { format: "eml" });
        }
        text = calendar::texts(message);
    }
    if text.is_empty() {
        text = unmarked(message, bytes).unwrap_or_default();
    }
    let title = tidy(message.subject().unwrap_or_default());
    let mut fields = Fields::default();
    for (name, addresses) in [("from", message.from()), ("to", message.to()), ("cc", message.cc())] {
        fields.one_or_more(name, &addresses.map(written).unwrap_or_default());
    }
    if let Some(date) = message.date().filter(|date| date.is_valid()) {
        fields.text("date", &date.to_rfc3339());
    }
    let names: Vec<&str> = message.attachments().filter_map(|part| part.attachment_name()).collect();
    fields.list("attachments", names);
    Ok(Content { title, text, markup, metadata: fields.finish() })
}

/// The text of a message which says that it has several parts, but does not mark them.
fn unmarked(message: &Message<'_>, bytes: &[u8]) -> Option<String> {
    let has_parts = message.content_type().is_some_and(|kind| kind.ctype().eq_ignore_ascii_case("multipart"));
    let whole = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    let (_, body) = whole.split_once("\n\n").filter(|_| has_parts)?;
    (!body.lines().any(|line| line.starts_with("--"))).then(|| body.trim().to_owned())
}

/// Whether the content of a message can only be read with a key.
fn is_encrypted(message: &Message<'_>) -> bool {
    message.parts.iter().filter_map(|part| part.content_type()).any(|kind| {
        let of = |name| kind.attribute(name).unwrap_or_default().to_ascii_lowercase();
        match (kind.ctype(), kind.subtype().unwrap_or_default().to_ascii_lowercase().as_str()) {
            ("multipart", "encrypted") => true,
            ("application", "pkcs7-mime" | "x-pkcs7-mime") => of("smime-type") != "signed-data",
            _ => false,
        }
    })
}

/// A message that is taken apart without recursion, since a message may contain a message that contains a message.
struct Parsed<'x>(Message<'x>);

impl Drop for Parsed<'_> {
    fn drop(&mut self) {
        let mut rest = std::mem::take(&mut self.0.parts);
        while let Some(part) = rest.pop() {
            if let PartType::Message(mut inner) = part.body {
                rest.append(&mut inner.parts);
            }
        }
    }
}

/// Deepest nesting of messages that are forwarded within messages.
const DEEPEST: usize = 8;
/// Of a text that is there in two forms, the plain one is read, unless it has fewer words, and less than this share of the other's:
/// then it has no text, or only says that there is another form.
const SHARE: f32 = 0.5;

/// The texts of the message, and those of the messages that it forwards.
fn body(message: &Message<'_>) -> Result<(String, Markup), ReadError> {
    let mut texts = Vec::new();
    let mut markup = Markup::Plain;
    let mut messages = vec![(message, 0)];
    while let Some((message, depth)) = messages.pop() {
        let before = texts.len();
        own(message, &mut texts, &mut markup)?;
        if depth > 0 && texts[before..].iter().any(|text| !text.trim().is_empty()) {
            texts.insert(before, format!("Forwarded: {}", tidy(message.subject().unwrap_or_default())));
        }
        let inner = message.parts.iter().rev().filter_map(|part| match &part.body {
            PartType::Message(inner) if depth < DEEPEST => Some((inner, depth + 1)),
            _ => None,
        });
        messages.extend(inner);
    }
    texts.retain(|text| !text.trim().is_empty());
    Ok((texts.join("\n\n"), markup))
}

/// The texts of a message itself.
fn own(message: &Message<'_>, texts: &mut Vec<String>, markup: &mut Markup) -> Result<(), ReadError> {
    let mut parts: Vec<&MessagePart<'_>> = message.text_bodies().collect();
    if parts.is_empty() {
        // The parser does not count the text of a message that was cut off.
        parts.extend(message.parts.iter().filter(|part| part.is_encoding_problem).take(1));
    }
    if !message.html_bodies().any(MessagePart::is_text_html) {
        texts.extend(parts.into_iter().filter_map(plain));
        return Ok(());
    }
    let has_only_page = parts.iter().any(|part| part.is_text_html());
    let plains: Vec<String> = parts.into_iter().filter_map(plain).collect();
    let mut pages = Vec::new();
    for part in message.html_bodies() {
        match &part.body {
            PartType::Html(page) => pages.push(html::read(page)?.text),
            _ => pages.extend(plain(part)),
        }
    }
    let (known, wanted) = (words(&plains), words(&pages));
    let found = wanted.iter().filter(|word| known.contains(*word)).count();
    let tells_more = wanted.len() >= known.len() && (found as f32) < SHARE * wanted.len() as f32;
    if has_only_page || tells_more {
        *markup = Markup::Markdown;
        texts.append(&mut pages);
    } else {
        texts.extend(plains);
    }
    Ok(())
}

/// The words of texts, without what is around them.
fn words(texts: &[String]) -> HashSet<String> {
    let words = texts.iter().flat_map(|text| text.split(|letter: char| !letter.is_alphanumeric()));
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// The text of a plain part.
fn plain(part: &MessagePart<'_>) -> Option<String> {
    let PartType::Text(text) = &part.body else { return None };
    let text = text.replace("\r\n", "\n");
    let is_flowed = part.content_type().and_then(|kind| kind.attribute("format")).is_some_and(|form| form == "flowed");
    let text = if is_flowed { flowed(&text) } else { text };
    Some(text.trim().to_owned())
}

/// Joins the lines of a paragraph, each of which ends with a blank (RFC 3676).
fn flowed(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match line.strip_suffix(" \n") {
            Some(soft) if soft != "--" && !soft.starts_with('>') => {
                joined.push_str(soft);
                joined.push(' ');
            }
            _ => joined.push_str(line),
        }
    }
    joined
}

/// Addresses as `Name <address>`.
fn written(addresses: &Address<'_>) -> Vec<String> {
    const MOST_ADDRESSES: usize = 256;
    let written = addresses.iter().take(MOST_ADDRESSES).map(|one| match (one.name(), one.address()) {
        (Some(name), Some(address)) => format!("{name} <{address}>"),
        (name, address) => name.or(address).unwrap_or_default().to_owned(),
    });
    written.filter(|one| !one.is_empty()).collect()
}

/// Counts what the parser would make parts and headers of, for each of which it takes a few hundred bytes.
fn check(bytes: &[u8]) -> Result<(), ReadError> {
    let (mut boundaries, mut headers, mut header_bytes) = (0, 0, 0);
    let mut is_header = false;
    for line in bytes.split(|byte| *byte == b'\n') {
        boundaries += usize::from(line.starts_with(b"--"));
        if !matches!(line.first(), Some(b' ' | b'\t')) {
            is_header = line.iter().find(|byte| !byte.is_ascii_graphic() || **byte == b':') == Some(&b':');
            headers += usize::from(is_header);
        }
        header_bytes += if is_header { line.len() } else { 0 };
    }
    for (count, what, limit) in [
        (boundaries, "lines that start with `--`", MOST_BOUNDARIES),
        (headers, "lines that look like headers", MOST_HEADERS),
        (header_bytes, "bytes of headers", MOST_HEADER_BYTES),
    ] {
        if count > limit {
            return Err(ReadError::TooMany { what, limit: limit as u64 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
