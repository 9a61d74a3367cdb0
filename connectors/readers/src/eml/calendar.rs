//! Invitations: messages whose only text is an event of a calendar (RFC 5545).

use mail_parser::{Message, MimeHeaders as _, PartType};

/// What is read of an event, and its name in the text.
const FIELDS: [(&str, &str); 6] = [
    ("SUMMARY", ""),
    ("DTSTART", "Start: "),
    ("DTEND", "End: "),
    ("LOCATION", "Place: "),
    ("ORGANIZER", "From: "),
    ("DESCRIPTION", ""),
];

/// The texts of the events of a message.
pub(super) fn texts(message: &Message<'_>) -> String {
    let mut lines = Vec::new();
    for part in &message.parts {
        let is_calendar = part.content_type().is_some_and(|kind| {
            kind.ctype().eq_ignore_ascii_case("text")
                && kind.subtype().is_some_and(|kind| kind.eq_ignore_ascii_case("calendar"))
        });
        match &part.body {
            PartType::Text(text) if is_calendar => events(text, &mut lines),
            PartType::Binary(bytes) | PartType::InlineBinary(bytes) if is_calendar => {
                events(&String::from_utf8_lossy(bytes), &mut lines);
            }
            _ => {}
        }
    }
    lines.join("\n")
}

fn events(text: &str, lines: &mut Vec<String>) {
    // A long line goes on after a line break and a blank.
    let text = text.replace("\r\n", "\n").replace("\n ", "").replace("\n\t", "");
    let mut is_in_event = false;
    for line in text.lines() {
        match line {
            "BEGIN:VEVENT" | "BEGIN:VTODO" => is_in_event = true,
            "END:VEVENT" | "END:VTODO" | "BEGIN:VALARM" => is_in_event = false,
            "END:VALARM" => is_in_event = true,
            _ if is_in_event => {
                let Some((head, value)) = line.split_once(':') else { continue };
                let name = head.split(';').next().unwrap_or_default();
                let Some((_, label)) = FIELDS.iter().find(|(field, _)| *field == name) else { continue };
                let value = value.replace("\\n", "\n").replace("\\N", "\n").replace("\\,", ",");
                let value = value.replace("\\;", ";").replace("\\\\", "\\");
                if !value.trim().is_empty() {
                    lines.push(format!("{label}{}", value.trim()));
                }
            }
            _ => {}
        }
    }
}
