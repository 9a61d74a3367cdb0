//! Reads what a PDF says about itself: its author, subject, keywords and dates. Its title is left out, because it is
//! more often a file name.

use pdf_extract::{Document as Pdf, Object, decode_text_string};
use turnflow_engine::metadata::Metadata;

use crate::readers::fields::Fields;

/// The entries of the information dictionary.
pub(super) fn info(pdf: &Pdf) -> Metadata {
    let mut fields = Fields::default();
    let info = match pdf.trailer.get(b"Info") {
        Ok(Object::Reference(id)) => pdf.objects.get(id).and_then(|info| info.as_dict().ok()),
        Ok(info) => info.as_dict().ok(),
        Err(_) => None,
    };
    let Some(info) = info else { return Metadata::default() };
    let entries: [(&[u8], &str); 5] = [
        (b"Author", "author"),
        (b"Subject", "subject"),
        (b"Keywords", "keywords"),
        (b"CreationDate", "created"),
        (b"ModDate", "updated"),
    ];
    for (entry, name) in entries {
        // A text in another object is rare.
        let Some(text) = info.get(entry).ok().and_then(|text| decode_text_string(text).ok()) else { continue };
        let text = text.replace('\0', "");
        match name {
            "keywords" => fields.keywords(&text),
            "created" | "updated" => fields.text(name, &date(&text).unwrap_or_default()),
            name => fields.text(name, &text),
        }
    }
    fields.finish()
}

/// A date such as `D:20261125215649+01'00'` in the form of RFC 3339, or a day if there is no time.
fn date(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.strip_prefix("D:").unwrap_or(text);
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, zone) = text.split_at(length);
    let part = |from: usize, to: usize| digits.get(from..to);
    let day = format!("{}-{}-{}", part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (Some(hour), Some(minute)) = (part(8, 10), part(10, 12)) else { return Some(day) };
    let second = part(12, 14).unwrap_or("00");
    let digits: String = zone.chars().filter(char::is_ascii_digit).take(4).collect();
    let zone = match zone.chars().next() {
        Some(sign @ ('+' | '-')) if digits.len() >= 2 => {
            let minutes = digits.get(2..4).unwrap_or("00");
            format!("{sign}{}:{minutes}", &digits[..2])
        }
        Some('Z') => "Z".to_owned(),
        // Local time of an unknown place.
        _ => String::new(),
    };
    Some(format!("{day}T{hour}:{minute}:{second}{zone}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_become_rfc_3339() {
        for (written, expected) in [
            ("D:20261125215649+01'00'", Some("2026-11-25T21:56:49+01:00")),
            ("D:20261125215649Z", Some("2026-11-25T21:56:49Z")),
            ("20261125215649-0330", Some("2026-11-25T21:56:49-03:30")),
            ("D:202611252156", Some("2026-11-25T21:56:00")),
            ("D:20261125", Some("2026-11-25")),
            ("D:2026", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(date(written).as_deref(), expected, "{written}");
        }
    }
}
