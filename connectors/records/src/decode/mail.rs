//! Mails of a mailbox (RFC 4155).

use jaq_json::Val;
use mail_parser::{HeaderValue, MessageParser};

use super::{Records, object};

pub(super) fn read(bytes: &[u8], records: &mut Records<'_>) {
    for (number, mail) in (1..).zip(mails(bytes)) {
        let parsed = MessageParser::default().parse(mail);
        records.take(number, parsed.map(|mail| value(&mail)).ok_or_else(|| "it is no mail".to_owned()));
    }
}

/// The mails of a mailbox: each begins with a line `From …` after an empty line.
fn mails(bytes: &[u8]) -> Vec<&[u8]> {
    let mut starts = Vec::new();
    let (mut at, mut is_after_blank) = (0, true);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if is_after_blank && line.starts_with(b"From ") {
            starts.push((at, at + line.len()));
        }
        is_after_blank = line.trim_ascii().is_empty();
        at += line.len();
    }
    if starts.is_empty() {
        return vec![bytes];
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([bytes.len()]);
    starts.iter().zip(ends).map(|((_, from), to)| &bytes[*from..to]).collect()
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

fn value(mail: &mail_parser::Message<'_>) -> Val {
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
        ("text", text(mail.body_text(0).as_deref())),
    ])
}
