//! Mails of a mailbox (RFC 4155).

use jaq_json::Val;
use mail_parser::decoders::base64::base64_decode;
use mail_parser::decoders::quoted_printable::quoted_printable_decode;
use mail_parser::{Encoding, HeaderValue, MessageParser, MimeHeaders as _, PartType};

use super::{Odd, Records, object};
use crate::functions::html_text;

pub(super) fn read(bytes: &[u8], records: &mut Records<'_>) {
    for (number, mail) in (1..).zip(mails(bytes)) {
        let parsed = MessageParser::default().parse(mail);
        let value = parsed.map(|mail| value(&mail, &mut records.odd)).ok_or_else(|| "it is no mail".to_owned());
        records.take(number, value);
    }
}

/// The mails of a mailbox: each begins with a line `From …` after an empty line, which fields of a header follow. A text may
/// have such a line, too.
fn mails(bytes: &[u8]) -> Vec<&[u8]> {
    let mut starts = Vec::new();
    let (mut at, mut is_after_blank) = (0, true);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let end = at + line.len();
        if is_after_blank && line.starts_with(b"From ") && (starts.is_empty() || begins_header(&bytes[end..])) {
            starts.push((at, end));
        }
        is_after_blank = line.trim_ascii().is_empty();
        at = end;
    }
    if starts.is_empty() {
        return vec![bytes];
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([bytes.len()]);
    starts.iter().zip(ends).map(|((_, from), to)| &bytes[*from..to]).collect()
}

/// Whether a text begins with a field, which another one, more of it, or the end of the header follows.
fn begins_header(text: &[u8]) -> bool {
    let is_field = |line: &[u8]| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        !name.is_empty() && name.len() < line.len() && name.iter().all(u8::is_ascii_graphic)
    };
    let mut lines = text.split(|byte| *byte == b'\n');
    let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    is_field(first)
        && (is_field(second) || second.trim_ascii().is_empty() || second.starts_with(b" ") || second.starts_with(b"\t"))
}

/// The text of a mail. Bytes in an unknown encoding, or in none, are UTF-8, or else as Windows writes them in western Europe.
fn body(mail: &mail_parser::Message<'_>, odd: &mut Odd) -> Option<String> {
    let text = match mail.text_part(0).map(|part| &part.body) {
        Some(PartType::Html(html)) => html_text(html).into(),
        _ => mail.body_text(0)?,
    };
    if !text.contains('\u{fffd}') {
        return Some(text.into_owned());
    }
    let part = mail.text_part(0)?;
    let charset = part.content_type().and_then(|of| of.attribute("charset"));
    let is_known = charset.is_some_and(|charset| encoding_rs::Encoding::for_label(charset.as_bytes()).is_some());
    let raw = mail.raw_message().get(part.offset_body as usize..part.offset_end as usize).unwrap_or_default();
    let bytes = match part.encoding {
        Encoding::None => Some(raw.to_vec()),
        Encoding::QuotedPrintable => quoted_printable_decode(raw),
        Encoding::Base64 => base64_decode(raw),
    };
    let Some(bytes) = bytes.filter(|_| !is_known) else {
        odd.broken += 1;
        return Some(text.into_owned());
    };
    let decoded = String::from_utf8(bytes)
        .unwrap_or_else(|error| encoding_rs::WINDOWS_1252.decode(error.as_bytes()).0.into_owned())
        .replace("\r\n", "\n");
    Some(if matches!(part.body, PartType::Html(_)) { html_text(&decoded) } else { decoded })
}

fn text(value: Option<&str>) -> Val {
    value.map_or(Val::Null, |value| Val::from(value.to_owned()))
}

fn ids(value: &HeaderValue<'_>) -> Vec<Val> {
    match value {
        HeaderValue::Text(id) => vec![Val::from(id.to_string())],
        HeaderValue::TextList(ids) => ids.iter().map(|id| Val::from(id.to_string())).collect(),
        _ => Vec::new(),
    }
}

fn value(mail: &mail_parser::Message<'_>, odd: &mut Odd) -> Val {
    let from = mail.from().and_then(|from| from.first());
    let to = mail.to().and_then(|to| to.first());
    object([
        ("message_id", text(mail.message_id())),
        ("references", ids(mail.references()).into_iter().collect()),
        ("in_reply_to", ids(mail.in_reply_to()).into_iter().collect()),
        ("from", text(from.and_then(|from| from.address()))),
        ("from_name", text(from.and_then(|from| from.name()))),
        ("to", text(to.and_then(|to| to.address()))),
        ("subject", text(mail.subject())),
        ("date", mail.date().map_or(Val::Null, |date| Val::from(date.to_timestamp() as isize))),
        ("auto_submitted", text(mail.header_raw("Auto-Submitted").map(str::trim))),
        ("text", text(body(mail, odd).as_deref())),
    ])
}
